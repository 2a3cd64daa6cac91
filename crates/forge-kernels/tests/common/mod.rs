//! Kernel specs for tests: every format, epilogue and batch size, at round and odd sizes.

#![allow(dead_code, unused_imports, reason = "each test takes the specs that it needs")]

mod attention;
mod experts;
mod latents;
mod projections;

pub(crate) use attention::{attend, attentions, few_on_a_card, on_a_card, on_a_mac, prologue, rope_append};
pub(crate) use latents::latents;
pub(crate) use projections::{linear, projections};

use experts::experts;
use forge_kernels::Spec;
use forge_kernels::spec::{ChunkLayout, DeltaChunksKernel, Kernel};
use forge_ops::{
    Activation, Argmax, ArgmaxCombine, CausalConv, DeltaChunks, DeltaRule, DeltaStep, Elementwise, Embed,
    Format, Function, GatedRmsNorm, LayerNorm, NormAdd, Quantize, RmsNorm, Sample, SliceColumns, Squares,
    UnaryOp,
};

/// Formats of every kind: every number of bits, each size of groups and both kinds of scales among them.
pub(crate) fn formats() -> Vec<Format> {
    let affine =
        ["affine8_32", "affine6", "affine5_128", "affine4", "affine4_128_bf16", "affine3_32", "affine2_bf16"];
    let plain = [
        "f32", "f16", "bf16", "fp8", "q8_0", "q5_0", "q4_0", "iq4_nl", "iq4_xs", "q6_k", "q5_k", "q4_k",
        "q3_k", "q2_k",
    ];
    let named = |name: &str| Format::from_name(name).unwrap_or_else(|| panic!("{name}"));
    plain.into_iter().chain(affine).map(named).collect()
}

/// Embedding, norms, elementwise functions, and argmax.
pub(crate) fn others() -> Vec<Spec> {
    let mut specs = Vec::new();
    for format in formats() {
        for width in [64, 56, 30] {
            let squares = |gain| Squares { partials: 100, gain };
            for squares in [None, Some(squares(false)), Some(squares(true))] {
                specs.push(Spec::Embed(Embed {
                    format,
                    vocabulary: 512,
                    width,
                    scale: 22.627417,
                    adds: false,
                    squares,
                }));
            }
        }
    }
    for width in [64, 50] {
        let (format, squares) = (Format::Q8_0, None);
        specs.push(Spec::Embed(Embed { format, vocabulary: 512, width, scale: 1.0, adds: true, squares }));
    }
    for width in [64, 56, 30, 4096] {
        for (bias, gather) in [(true, false), (false, true)] {
            specs.push(Spec::LayerNorm(LayerNorm { width, epsilon: 1e-5, bias, gather }));
        }
        for (parts, gather, gain) in
            [(1, false, true), (1, true, true), (1, false, false), (6, false, true), (6, true, true)]
        {
            specs.push(Spec::RmsNorm(RmsNorm { width, parts, epsilon: 1e-5, gain, gather, pitch: None }));
        }
        for (gain, factor, squares) in [
            (true, false, None),
            (false, true, None),
            (true, true, Some(Squares { partials: 4, gain: true })),
            (true, false, Some(Squares { partials: 1, gain: false })),
        ] {
            specs.push(Spec::NormAdd(NormAdd { width, epsilon: 1e-6, gain, factor, squares }));
        }
        for function in [
            Function::Unary(UnaryOp::Activate(Activation::GeluTanh)),
            Function::Unary(UnaryOp::Activate(Activation::Gelu)),
            Function::Unary(UnaryOp::Activate(Activation::Relu)),
            Function::Unary(UnaryOp::Activate(Activation::ReluSquared)),
            Function::Unary(UnaryOp::Activate(Activation::Sigmoid)),
            Function::Unary(UnaryOp::Softcap(30.0)),
            Function::Unary(UnaryOp::Scale(0.22)),
            Function::Multiply,
            Function::ScaleRows,
            Function::Add,
            Function::ScaleBy,
        ] {
            specs.push(Spec::Elementwise(Elementwise { function, width }));
        }
        specs.push(Spec::SliceColumns(SliceColumns { width, of: 3 * width }));
        for (gain, parts) in [(false, 0), (true, 0), (true, 4)] {
            specs.push(Spec::Quantize(Quantize { width, gain, parts, pitch: None }));
        }
    }
    for (width, taps, pitch, activation) in [
        (64, 4, 64, None),
        (300, 2, 311, None),
        (10_240, 4, 14_400, Some(Activation::Silu)),
        (50, 3, 51, Some(Activation::GeluTanh)),
    ] {
        specs.push(Spec::Convolve(CausalConv { width, taps, pitch, activation }));
    }
    for (key_heads, heads, keys, values) in [(16, 32, 128, 128), (2, 4, 16, 16), (3, 3, 10, 6), (1, 3, 7, 11)]
    {
        let (scale, epsilon) = (0.25, 1e-6);
        for gated in [None, Some(1e-5)] {
            let rule = DeltaRule { key_heads, heads, keys, values, scale, epsilon, gated };
            specs.push(Spec::DeltaRule(rule));
            specs.extend(DeltaChunksKernel::of(rule).map(Spec::DeltaChunks));
            specs.push(Spec::DeltaChunks(Kernel {
                op: DeltaChunks { rule },
                layout: ChunkLayout { rows: 8 },
            }));
            specs.extend(gated.map(|_| Spec::DeltaStep(DeltaStep { rule, taps: 4 })));
        }
    }
    for (heads, values) in [(32, 128), (3, 40)] {
        let (pitch, first, epsilon) = (heads * (2 * values + 2), heads * values, 1e-6);
        specs.push(Spec::GatedRmsNorm(GatedRmsNorm { heads, values, pitch, first, epsilon }));
    }
    specs.push(Spec::RmsNorm(RmsNorm {
        width: 64,
        parts: 1,
        epsilon: 1e-5,
        gain: true,
        gather: false,
        pitch: Some(90),
    }));
    specs.extend(latents());
    specs.extend(experts());
    specs.extend([512, 50_257].map(|vocabulary| Spec::Argmax(Argmax { vocabulary })));
    specs.extend([1, 512, 50_257].map(|vocabulary| Spec::Sample(Sample { vocabulary })));
    specs.extend([3, 4_749].map(|candidates| Spec::ArgmaxCombine(ArgmaxCombine { candidates })));
    specs
}
