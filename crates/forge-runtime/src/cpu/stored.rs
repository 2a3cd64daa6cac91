//! Number formats of weights, as types: kernels are compiled for the formats that a program names, and for no others.

use super::affine::{Affine, AffineBf16};
use super::blocks::{Q4_0, Q8_0};
use super::call::Call;
use super::each_head::{self, EachHead};
use super::embed::{self, Embed};
use super::experts::{self, ExpertsInner, ExpertsSum};
use super::experts_tiles::{self, ExpertsTiles};
use super::mxfp4::Mxfp4;
use super::plain::{Bf16, F16, F32};
use super::project::{self, Project};
use super::superblock::{Pairs, Q6K};

/// A format that weights are stored in.
pub trait Stored {
    /// See [`super::project()`].
    fn project(call: &Call<'_>, shape: &Project);

    /// See [`super::embed()`].
    fn embed(call: &Call<'_>, shape: &Embed);

    /// See [`super::each_head()`].
    fn each_head(call: &Call<'_>, shape: &EachHead);

    /// See [`super::experts_inner()`].
    fn experts_inner(call: &Call<'_>, shape: &ExpertsInner);

    /// See [`super::experts_sum()`].
    fn experts_sum(call: &Call<'_>, shape: &ExpertsSum);

    /// See [`super::experts_tiles()`].
    fn experts_tiles(call: &Call<'_>, shape: &ExpertsTiles);
}

macro_rules! stored {
    ($([$($generics:tt)*] $format:ty),*) => {$(
        impl<$($generics)*> Stored for $format {
            #[cfg_attr(any(test, not(feature = "shared")), inline)]
            fn project(call: &Call<'_>, shape: &Project) {
                project::products::<$format>(call, shape);
            }

            #[cfg_attr(any(test, not(feature = "shared")), inline)]
            fn embed(call: &Call<'_>, shape: &Embed) {
                embed::gather::<$format>(call, shape);
            }

            #[cfg_attr(any(test, not(feature = "shared")), inline)]
            fn each_head(call: &Call<'_>, shape: &EachHead) {
                each_head::products::<$format>(call, shape);
            }

            #[cfg_attr(any(test, not(feature = "shared")), inline)]
            fn experts_inner(call: &Call<'_>, shape: &ExpertsInner) {
                experts::inner::<$format>(call, shape);
            }

            #[cfg_attr(any(test, not(feature = "shared")), inline)]
            fn experts_sum(call: &Call<'_>, shape: &ExpertsSum) {
                experts::sum::<$format>(call, shape);
            }

            #[cfg_attr(any(test, not(feature = "shared")), inline)]
            fn experts_tiles(call: &Call<'_>, shape: &ExpertsTiles) {
                experts_tiles::products::<$format>(call, shape);
            }
        }
    )*};
}

stored!([] F32, [] F16, [] Bf16, [] Q8_0, [] Q4_0, [] Mxfp4, [] Q6K, [const BITS: usize] Pairs<BITS>, [const BITS: usize, const GROUP: usize] Affine<BITS, GROUP>, [const BITS: usize, const GROUP: usize] AffineBf16<BITS, GROUP>);
