//! Specs of multi-head latent attention (MLA).

use super::{formats, rope_append};
use forge_kernels::Spec;
use forge_kernels::spec::{CombineLayout, Kernel, MlaExpandedLayout, Operand, PerHeadLayout};
use forge_ops::{
    AttendCombine, Format, LongContext, MlaAppend, MlaAttention, MlaAttentionExpanded, MlaColumns,
    MlaLoadLatents, MlaPrepare, Pairing, PerHeadLinear, RopeParameters,
};

/// MLA: per-head matrices in both directions and in every format, and every size of a cache line.
pub(crate) fn latents() -> Vec<Spec> {
    let mut specs = Vec::new();
    for format in formats() {
        for (heads, rows, columns) in [(16, 128, 512), (3, 7, 30), (2, 100, 56)] {
            for transposed in [false, true] {
                let of_heads = heads * if transposed { rows } else { columns };
                for (pitch, together, each) in [(of_heads, 1, 4), (of_heads + 3, 4, 2), (of_heads + 8, 2, 1)]
                {
                    specs.push(Spec::PerHeadLinear(Kernel {
                        op: PerHeadLinear { format, heads, rows, columns, transposed, pitch },
                        layout: PerHeadLayout { together, each },
                    }));
                }
            }
        }
    }
    for (heads, width, rope_width) in [(128, 512, 64), (5, 21, 4), (1, 24, 8), (16, 256, 128), (7, 700, 100)]
    {
        for cache in [Format::F16, Format::F32] {
            for prepare in prepares(heads, width, rope_width) {
                let prologue = prepare.clone();
                specs.push(Spec::MlaAppend(MlaAppend { width, rope_width, cache, prepare }));
                specs.push(Spec::MlaAttention(MlaAttention {
                    heads,
                    width,
                    rope_width,
                    cache,
                    scale: 0.1,
                    prologue,
                }));
            }
        }
        for cache in [Format::F16, Format::F32] {
            specs.push(Spec::MlaLoadLatents(MlaLoadLatents { width, rope_width, cache }));
        }
        specs.push(Spec::AttendCombine(Kernel {
            op: AttendCombine { query_heads: heads, width, gates: None },
            layout: CombineLayout::default(),
        }));
    }
    for (heads, keys, rope_width, values) in
        [(128, 128, 64, 128), (5, 9, 10, 5), (3, 6, 8, 12), (2, 20, 4, 96)]
    {
        for (operand, more) in [(Operand::F32, 0), (Operand::Ranged, 3)] {
            let tile = MlaExpandedLayout::tile_for(keys, rope_width, values).expect("a tile fits");
            let (queries_pitch, scale) = (heads * keys + more, 0.1);
            specs.push(Spec::MlaAttentionExpanded(Kernel {
                op: MlaAttentionExpanded { heads, keys, rope_width, values, queries_pitch, scale },
                layout: MlaExpandedLayout { operand, tile },
            }));
        }
    }
    specs
}

/// Append with and without fused preparation: in two buffers and in one, and with each RoPE pairing.
fn prepares(heads: usize, width: usize, rope_width: usize) -> Vec<Option<MlaPrepare>> {
    let apart = MlaColumns {
        queries_pitch: heads * rope_width,
        q_rope_first: 0,
        latent_pitch: 40 + width + rope_width,
        latent_first: 40,
        key_pitch: 40 + width + rope_width,
        key_first: 40 + width,
    };
    let all = heads * (width + rope_width);
    let together = MlaColumns {
        queries_pitch: all + width + rope_width,
        q_rope_first: heads * width,
        latent_pitch: all + width + rope_width,
        latent_first: all,
        key_pitch: all + width + rope_width,
        key_first: all + width,
    };
    let prepare = |columns, rope: RopeParameters| Some(MlaPrepare { heads, columns, epsilon: 1e-6, rope });
    let rope = |pairs, pairing| rope_append(1, 1, rope_width, Format::F16, pairs, pairing).rope;
    let mut long = rope(rope_width / 2, Pairing::Interleaved);
    long.long = Some(LongContext::LongRope { original_context: 4096, frequencies: long.frequencies.clone() });
    let mut stretched = rope(rope_width / 2, Pairing::Half);
    stretched.long = Some(LongContext::DynamicNtk { original_context: 4096, factor: 4.0 });
    vec![
        None,
        prepare(apart, rope(rope_width / 2, Pairing::Interleaved)),
        prepare(together, rope(rope_width / 2 - 1, Pairing::Half)),
        prepare(apart, long),
        prepare(together, stretched),
    ]
}
