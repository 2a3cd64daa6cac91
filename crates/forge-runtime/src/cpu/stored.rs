//! Number formats of weights, as types: kernels are compiled for the formats that a program names, and for no others.

use super::affine::{Affine, AffineBf16};
use super::blocks::{Q4_0, Q8_0};
use super::call::Call;
#[cfg(feature = "mla")]
use super::each_head::{self, EachHead};
use super::embed::{self, Embed};
#[cfg(feature = "moe")]
use super::experts::{self, ExpertsInner, ExpertsSum};
#[cfg(feature = "moe")]
use super::experts_tiles::{self, ExpertsTiles};
use super::mxfp4::Mxfp4;
use super::plain::{Bf16, F16, F32};
use super::project::{self, Project};
use super::superblock::{Q4K, Q5K, Q6K};

/// A format that weights are stored in.
pub trait Stored {
    /// See [`super::project()`].
    fn project(call: &Call<'_>, shape: &Project);

    /// See [`super::embed()`].
    fn embed(call: &Call<'_>, shape: &Embed);

    /// See [`super::each_head()`].
    #[cfg(feature = "mla")]
    fn each_head(call: &Call<'_>, shape: &EachHead);

    /// See [`super::experts_inner()`].
    #[cfg(feature = "moe")]
    fn experts_inner(call: &Call<'_>, shape: &ExpertsInner);

    /// See [`super::experts_sum()`].
    #[cfg(feature = "moe")]
    fn experts_sum(call: &Call<'_>, shape: &ExpertsSum);

    /// See [`super::experts_tiles()`].
    #[cfg(feature = "moe")]
    fn experts_tiles(call: &Call<'_>, shape: &ExpertsTiles);
}

macro_rules! stored {
    ($($feature:literal: [$($generics:tt)*] $format:ty,)*) => {$(
        #[cfg(feature = $feature)]
        impl<$($generics)*> Stored for $format {
            fn project(call: &Call<'_>, shape: &Project) {
                project::products::<$format>(call, shape);
            }

            fn embed(call: &Call<'_>, shape: &Embed) {
                embed::gather::<$format>(call, shape);
            }

            #[cfg(feature = "mla")]
            fn each_head(call: &Call<'_>, shape: &EachHead) {
                each_head::products::<$format>(call, shape);
            }

            #[cfg(feature = "moe")]
            fn experts_inner(call: &Call<'_>, shape: &ExpertsInner) {
                experts::inner::<$format>(call, shape);
            }

            #[cfg(feature = "moe")]
            fn experts_sum(call: &Call<'_>, shape: &ExpertsSum) {
                experts::sum::<$format>(call, shape);
            }

            #[cfg(feature = "moe")]
            fn experts_tiles(call: &Call<'_>, shape: &ExpertsTiles) {
                experts_tiles::products::<$format>(call, shape);
            }
        }
    )*};
}

stored! {
    "f32": [] F32,
    "f16": [] F16,
    "bf16": [] Bf16,
    "q8_0": [] Q8_0,
    "q4_0": [] Q4_0,
    "k-quants": [] Q4K,
    "k-quants": [] Q5K,
    "k-quants": [] Q6K,
    "mxfp4": [] Mxfp4,
    "affine": [const BITS: usize, const GROUP: usize] Affine<BITS, GROUP>,
    "affine": [const BITS: usize, const GROUP: usize] AffineBf16<BITS, GROUP>,
}
