//! Weight formats as types. Kernels are compiled only for the formats that a program names.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::elementwise::embed;
use crate::cpu::format::matrix::Matrix;
use crate::cpu::format::weight_format::types::*;
use crate::cpu::matmul::linear;
#[cfg(feature = "mla")]
use crate::cpu::mla::per_head_matmul;
#[cfg(feature = "moe")]
use crate::cpu::moe::decode;
#[cfg(feature = "moe")]
use crate::cpu::moe::grouped;
use forge_ops::Embed;
#[cfg(feature = "moe")]
use forge_ops::ExpertsTiles;
use forge_ops::Format;
use forge_ops::Linear;
#[cfg(feature = "mla")]
use forge_ops::PerHeadLinear;
#[cfg(feature = "affine")]
use forge_ops::Scales;
#[cfg(feature = "moe")]
use forge_ops::{ExpertsInner, ExpertsSum};

/// The types of the weight formats.
pub(crate) mod types {
    pub use crate::cpu::format::float_formats::{Bf16, F16, F32};
    pub use crate::cpu::format::fp8::Fp8;
    pub use crate::cpu::format::quantized::{
        Affine, AffineBf16, Iq4Nl, Iq4Xs, Mxfp4, Nvfp4, Q2K, Q3K, Q4_0, Q4K, Q5_0, Q5K, Q6K, Q8_0,
    };
}

/// A weight format with its kernels.
pub trait WeightFormat {
    /// The format.
    const FORMAT: Format;

    /// See [`crate::cpu::linear()`].
    fn linear(call: &KernelArgs<'_>, shape: &Linear);

    /// See [`crate::cpu::embed()`].
    fn embed(call: &KernelArgs<'_>, shape: &Embed);

    /// See [`crate::cpu::per_head_linear()`].
    #[cfg(feature = "mla")]
    fn per_head_linear(call: &KernelArgs<'_>, shape: &PerHeadLinear);

    /// See [`crate::cpu::experts_inner()`].
    #[cfg(feature = "moe")]
    fn experts_inner(call: &KernelArgs<'_>, shape: &ExpertsInner);

    /// See [`crate::cpu::experts_sum()`].
    #[cfg(feature = "moe")]
    fn experts_sum(call: &KernelArgs<'_>, shape: &ExpertsSum);

    /// See [`crate::cpu::experts_tiles()`].
    #[cfg(feature = "moe")]
    fn experts_tiles(call: &KernelArgs<'_>, shape: &ExpertsTiles);
}

/// The affine format with these parameters.
#[cfg(feature = "affine")]
const fn affine(bits: usize, group: usize, scales: Scales) -> Format {
    Format::Affine(forge_ops::Affine::of(bits, group, scales).expect("the format exists"))
}

// Unit tests use few of these kernels, and a function that is inline is compiled only where it is used.
macro_rules! stored {
    ($($feature:literal: [$($generics:tt)*] $format:ty = $value:expr,)*) => {$(
        #[cfg(feature = $feature)]
        impl<$($generics)*> WeightFormat for $format {
            const FORMAT: Format = $value;

            #[cfg_attr(test, inline)]
            fn linear(call: &KernelArgs<'_>, shape: &Linear) {
                const { assert!((<$format as Matrix>::BITS > 0) == Self::FORMAT.has_integers()) };
                assert_eq!(shape.format, Self::FORMAT);
                linear::products::<$format>(call, shape);
            }

            #[cfg_attr(test, inline)]
            fn embed(call: &KernelArgs<'_>, shape: &Embed) {
                assert_eq!(shape.format, Self::FORMAT);
                embed::gather::<$format>(call, shape);
            }

            #[cfg(feature = "mla")]
            #[cfg_attr(test, inline)]
            fn per_head_linear(call: &KernelArgs<'_>, shape: &PerHeadLinear) {
                assert_eq!(shape.format, Self::FORMAT);
                per_head_matmul::products::<$format>(call, shape);
            }

            #[cfg(feature = "moe")]
            #[cfg_attr(test, inline)]
            fn experts_inner(call: &KernelArgs<'_>, shape: &ExpertsInner) {
                assert_eq!(shape.format, Self::FORMAT);
                decode::inner::<$format>(call, shape);
            }

            #[cfg(feature = "moe")]
            #[cfg_attr(test, inline)]
            fn experts_sum(call: &KernelArgs<'_>, shape: &ExpertsSum) {
                assert_eq!(shape.format, Self::FORMAT);
                decode::sum::<$format>(call, shape);
            }

            #[cfg(feature = "moe")]
            #[cfg_attr(test, inline)]
            fn experts_tiles(call: &KernelArgs<'_>, shape: &ExpertsTiles) {
                assert_eq!(shape.format, Self::FORMAT);
                grouped::products::<$format>(call, shape);
            }
        }
    )*};
}

stored! {
    "f32": [] F32 = Format::F32,
    "f16": [] F16 = Format::F16,
    "bf16": [] Bf16 = Format::Bf16,
    "fp8": [] Fp8 = Format::Fp8,
    "q8_0": [] Q8_0 = Format::Q8_0,
    "q5_0": [] Q5_0 = Format::Q5_0,
    "q4_0": [] Q4_0 = Format::Q4_0,
    "q4_k": [] Q4K = Format::Q4K,
    "q5_k": [] Q5K = Format::Q5K,
    "iq4_nl": [] Iq4Nl = Format::Iq4Nl,
    "iq4_xs": [] Iq4Xs = Format::Iq4Xs,
    "q6_k": [] Q6K = Format::Q6K,
    "q3_k": [] Q3K = Format::Q3K,
    "q2_k": [] Q2K = Format::Q2K,
    "mxfp4": [] Mxfp4 = Format::Mxfp4,
    "nvfp4": [] Nvfp4 = Format::Nvfp4,
    "affine": [const BITS: usize, const GROUP: usize] Affine<BITS, GROUP> = affine(BITS, GROUP, Scales::F16),
    "affine": [const BITS: usize, const GROUP: usize] AffineBf16<BITS, GROUP> = affine(BITS, GROUP, Scales::Bf16),
}
