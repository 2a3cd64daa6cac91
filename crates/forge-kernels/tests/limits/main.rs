//! Unsupported specs are rejected with a message that names the value and a solution.

mod attention;
#[path = "../common/mod.rs"]
mod common;
mod experts;
mod mla;
mod projections;

use forge_kernels::spec::{CombineLayout, Kernel};
use forge_kernels::{Spec, render};
use forge_ops::{
    Argmax, Attend, AttendCombine, Embed, Format, LongContext, NormAdd, Pairing, RmsNorm, RopeParameters,
    Sample, Squares,
};

fn rejection(name: &str, spec: Spec) -> String {
    match render(name, &spec) {
        Ok(_) => format!("{spec:?} is rendered"),
        Err(error) => error.to_string(),
    }
}

fn attend(query_heads: usize, key_heads: usize, width: usize, cache: Format, scale: f32) -> Spec {
    Spec::AttendSplit(
        common::attend(query_heads, key_heads, width, cache).with_op(|op| Attend { scale, ..op }),
    )
}

#[test]
fn rejects_impossible_sizes() {
    let mut invalid_ropes =
        [16, 4, 4, 4].map(|pairs| common::rope_append(2, 1, 16, Format::F16, pairs, Pairing::Half));
    // RoPE is optional, but long-context frequencies need it.
    invalid_ropes[1].rope = RopeParameters {
        long: Some(LongContext::DynamicNtk { original_context: 16, factor: 2.0 }),
        ..RopeParameters::none()
    };
    invalid_ropes[2].rope.frequencies.to_mut()[1] = f32::INFINITY;
    invalid_ropes[3].rope.magnitude = f32::NAN;
    let cases = [
        rejection("2nd", Spec::Argmax(Argmax { vocabulary: 5 })),
        rejection("half", Spec::Argmax(Argmax { vocabulary: 5 })),
        rejection("a", Spec::Argmax(Argmax { vocabulary: 0 })),
        rejection("a", Spec::Sample(Sample { vocabulary: 0 })),
        rejection("a", Spec::Argmax(Argmax { vocabulary: 1 << 32 })),
        rejection(
            "a",
            Spec::Embed(Embed {
                format: Format::F16,
                vocabulary: 1 << 30,
                width: 4096,
                scale: 1.0,
                adds: false,
                squares: None,
            }),
        ),
        rejection(
            "a",
            Spec::Embed(Embed {
                format: Format::F16,
                vocabulary: 8,
                width: 0,
                scale: 1.0,
                adds: false,
                squares: None,
            }),
        ),
        rejection(
            "a",
            Spec::RmsNorm(RmsNorm {
                width: 8,
                parts: 1,
                epsilon: f32::NAN,
                gain: true,
                gather: false,
                pitch: None,
            }),
        ),
        rejection(
            "a",
            Spec::NormAdd(NormAdd {
                width: 8,
                epsilon: 1e-6,
                gain: true,
                factor: false,
                squares: Some(Squares { partials: 0, gain: true }),
            }),
        ),
        rejection(
            "a",
            Spec::AttendCombine(Kernel {
                op: AttendCombine { query_heads: 0, width: 8, gates: None },
                layout: CombineLayout::default(),
            }),
        ),
        rejection("a", attend(4, 2, 7, Format::F16, 1.0)),
        rejection("a", attend(4, 2, 384, Format::F16, 1.0)),
        rejection("a", attend(5, 2, 64, Format::F16, 1.0)),
        rejection("a", attend(64, 1, 64, Format::F16, 1.0)),
        rejection("a", attend(4, 2, 64, Format::Q4_0, 1.0)),
        rejection("a", attend(4, 2, 80, Format::Q8_0, 1.0)),
        rejection("a", attend(4, 2, 64, Format::F16, f32::INFINITY)),
    ]
    .into_iter()
    .chain(invalid_ropes.map(|rope_append| rejection("a", Spec::RopeAppend(rope_append))));
    insta::assert_snapshot!(cases.collect::<Vec<_>>().join("\n"), @r"
    invalid kernel name `2nd`: use letters, digits and underscores, and no C++ keyword or support function
    invalid kernel name `half`: use letters, digits and underscores, and no C++ keyword or support function
    kernel `a`: the vocabulary is 0; leave the kernel out of the plan
    kernel `a`: the vocabulary is 0; leave the kernel out of the plan
    kernel `a`: the vocabulary is 4294967296, and must be below 2^32, the range of token ids
    kernel `a`: the vocabulary is 1073741824, and must be small enough that a matrix of 4096 columns has fewer than 2^32 packets of 16 bytes: split the matrix
    kernel `a`: the width is 0; leave the kernel out of the plan
    kernel `a`: epsilon is NaN: it has to be finite; check the configuration
    kernel `a`: the number of partial sums of squares is 0; leave the kernel out of the plan
    kernel `a`: the number of query heads is 0; leave the kernel out of the plan
    kernel `a`: the head's width is 7, and must be even, since RoPE rotates pairs of channels: pad the head with a zero channel
    kernel `a`: the head's width is 384, and must be at most 256, or 512
    kernel `a`: the number of query heads is 5, and must be a multiple of the number of KV heads, 2
    kernel `a`: the number of query heads per KV head is 64, and must be at most 32: repeat KV heads
    kernel `a`: unsupported KV cache format q4_0: use f32, f16 or q8_0
    kernel `a`: the head's width is 80, and must be a multiple of 32 for a q8_0 KV cache: use f16
    kernel `a`: the scale is inf: it has to be finite; check the configuration
    kernel `a`: the number of rotated pairs is 16, and must be at most half the head's width, which is 16
    kernel `a`: the number of rotated pairs is 0; leave the kernel out of the plan
    kernel `a`: a frequency is inf: it has to be finite; check the configuration
    kernel `a`: the magnitude of RoPE is NaN: it has to be finite; check the configuration
    ");
}
