//! Specs of attention and of the kernels that prepare its inputs.

use forge_kernels::spec::{
    AttendKernel, AttentionKnobs, AttentionLayout, CombineLayout, Kernel, Rows, quantizes_heads,
};
use forge_kernels::{Family, Spec, prologue_fits};
use forge_ops::{
    Append, Attend, AttendCombine, Format, Gates, HeadNorm, KvSource, LongContext, Pairing, Prologue, Rope,
    RopeAppend, RopeParameters,
};

/// Attention without options.
pub(crate) fn attend(query_heads: usize, key_heads: usize, width: usize, cache: Format) -> AttendKernel {
    let scale = 1.0 / (width as f32).sqrt();
    Kernel {
        op: Attend {
            query_heads,
            key_heads,
            width,
            cache,
            ring: None,
            scale,
            window: None,
            softcap: None,
            sinks: false,
            gates: None,
            prologue: None,
        },
        layout: AttentionLayout {
            knobs: AttentionKnobs::for_heads(query_heads, key_heads, width, cache),
            quantizes: false,
        },
    }
}

/// Prefill attention with the layout for an NVIDIA GPU.
pub(crate) fn on_a_card(attend: AttendKernel) -> Spec {
    tiled_for(Family::Nvidia, attend)
}

/// Prefill attention with the layout for an Apple GPU.
pub(crate) fn on_a_mac(attend: AttendKernel) -> Spec {
    tiled_for(Family::Apple9, attend)
}

fn tiled_for(family: Family, attend: AttendKernel) -> Spec {
    let Attend { query_heads, key_heads, width, cache, .. } = attend.op.clone();
    let knobs = AttentionKnobs::for_chip(family, Rows::Many, query_heads, key_heads, width, cache);
    Spec::AttendTiled(attend.clone().with_layout(|layout| AttentionLayout { knobs, ..layout }))
}

/// Decode attention with the layout for an NVIDIA GPU.
pub(crate) fn few_on_a_card(attend: AttendKernel) -> Spec {
    let Attend { query_heads, key_heads, width, cache, .. } = attend.op.clone();
    let knobs = AttentionKnobs::for_chip(Family::Nvidia, Rows::Few, query_heads, key_heads, width, cache);
    Spec::AttendSplit(attend.clone().with_layout(|layout| AttentionLayout { knobs, ..layout }))
}

/// Attention with a fused `rope_append`.
pub(crate) fn prologue(rope_append: &RopeAppend) -> Prologue {
    let RopeAppend { kv_source, norm, ref rope, .. } = *rope_append;
    Prologue { kv_source, norm, rope: rope.clone() }
}

/// RoPE and every attention kernel, for every head width and group size: each with one of the rare options,
/// and once with all of them.
pub(crate) fn attentions() -> Vec<Spec> {
    let norm = Some(HeadNorm { epsilon: 1e-6, after_rope: false, values: false });
    let mut specs = Vec::new();
    for width in [6, 16, 20, 30, 64, 80, 96, 120, 128, 250, 256] {
        for (query_heads, key_heads) in [(1, 1), (4, 2), (9, 3), (10, 2), (6, 1), (9, 1), (32, 1), (14, 2)] {
            let coded = (width % 32 == 0).then_some(Format::Q8_0);
            for cache in [Format::F16, Format::F32].into_iter().chain(coded) {
                let plain = rope_append(query_heads, key_heads, width, cache, width / 2, Pairing::Half);
                let still = RopeAppend { rope: RopeParameters::none(), ..plain.clone() };
                specs.push(Spec::RopeAppend(still.clone()));
                specs.push(Spec::RopeAppend(RopeAppend { norm, ..still.clone() }));
                let split = attend(query_heads, key_heads, width, cache);
                let kv_source = KvSource::KeysValuesAndGates;
                let pitch = kv_source.row_heads(query_heads, key_heads) * width;
                let gates = Some(Gates { pitch, first: pitch - query_heads * width });
                let beside = RopeAppend { kv_source, ..plain.clone() };
                specs.push(Spec::RopeAppend(beside.clone()));
                specs.push(Spec::AttendSplit(split.clone().with_op(|op| Attend { gates, ..op })));
                specs.push(Spec::AttendTiled(split.clone().with_op(|op| Attend { gates, ..op })));
                specs.push(Spec::AttendCombine(Kernel {
                    op: AttendCombine { query_heads, width, gates },
                    layout: CombineLayout::default(),
                }));
                if quantizes_heads(query_heads, width) {
                    let quantizing =
                        split.clone().with_layout(|layout| AttentionLayout { quantizes: true, ..layout });
                    specs.push(Spec::AttendSplit(quantizing));
                    let op = AttendCombine { query_heads, width, gates };
                    let layout = CombineLayout { quantizes: true };
                    specs.push(Spec::AttendCombine(Kernel { op, layout }));
                }
                if prologue_fits(query_heads, key_heads, width) {
                    let prologue = Some(prologue(&beside));
                    specs.push(Spec::AttendSplit(split.clone().with_op(|op| Attend {
                        gates,
                        prologue,
                        ..op
                    })));
                }
                let tiled = attend(query_heads, key_heads, width, cache);
                specs.push(Spec::AttendSplit(split.clone().with_op(|op| Attend { window: Some(40), ..op })));
                let (window, ring) = (Some(40), Some(320));
                specs.push(Spec::AttendSplit(split.clone().with_op(|op| Attend { window, ring, ..op })));
                specs.push(Spec::AttendTiled(tiled.clone().with_op(|op| Attend { window, ring, ..op })));
                specs.push(Spec::RopeAppend(RopeAppend { ring, ..plain.clone() }));
                specs.push(Spec::RopeAppend(RopeAppend { ring, norm, ..plain.clone() }));
                specs.push(Spec::AttendSplit(
                    split.clone().with_op(|op| Attend { softcap: Some(50.0), ..op }),
                ));
                specs.push(Spec::AttendSplit(split.clone().with_op(|op| Attend { sinks: true, ..op })));
                if prologue_fits(query_heads, key_heads, width) {
                    let whole = Some(prologue(&plain));
                    let part =
                        rope_append(query_heads, key_heads, width, cache, width / 2 - 1, Pairing::Half);
                    let part = Some(prologue(&RopeAppend { norm, ..part }));
                    for norm in [None, norm] {
                        let prologue = Some(prologue(&RopeAppend { norm, ..still.clone() }));
                        specs.push(Spec::AttendSplit(split.clone().with_op(|op| Attend { prologue, ..op })));
                    }
                    let prologue = whole.clone();
                    specs.push(Spec::AttendSplit(split.clone().with_op(|op| Attend {
                        prologue,
                        window,
                        ring,
                        ..op
                    })));
                    specs.push(Spec::AttendSplit(
                        split.clone().with_op(|op| Attend { prologue: whole, ..op }),
                    ));
                    specs.push(Spec::AttendSplit(split.clone().with_op(|op| Attend {
                        window: Some(40),
                        softcap: Some(50.0),
                        sinks: true,
                        prologue: part,
                        ..op
                    })));
                }
                specs.push(Spec::AttendTiled(tiled.clone().with_op(|op| Attend {
                    window: Some(40),
                    softcap: Some(50.0),
                    sinks: true,
                    ..op
                })));
                specs.push(Spec::RopeAppend(RopeAppend { norm, ..plain.clone() }));
                specs.push(Spec::RopeAppend(plain));
                specs.push(few_on_a_card(split.clone()));
                if quantizes_heads(query_heads, width) {
                    let quantizing =
                        split.clone().with_layout(|layout| AttentionLayout { quantizes: true, ..layout });
                    specs.push(few_on_a_card(quantizing));
                }
                if prologue_fits(query_heads, key_heads, width) {
                    let prologue = Some(prologue(&beside));
                    specs.push(few_on_a_card(split.clone().with_op(|op| Attend {
                        window,
                        ring,
                        softcap: Some(50.0),
                        sinks: true,
                        gates,
                        prologue,
                        ..op
                    })));
                }
                specs.push(Spec::AttendSplit(split));
                for tiled_on in [on_a_card, on_a_mac] {
                    specs.push(tiled_on(tiled.clone()));
                    specs.push(tiled_on(tiled.clone().with_op(|op| Attend {
                        window: Some(40),
                        softcap: Some(50.0),
                        sinks: true,
                        gates,
                        ..op
                    })));
                }
                specs.push(on_a_mac(tiled.clone().with_op(|op| Attend { window, ring, ..op })));
                specs.push(Spec::AttendTiled(tiled));
            }
        }
        for (heads, cache) in [(1, Format::F16), (7, Format::F32), (32, Format::F16)] {
            for pairing in [Pairing::Half, Pairing::Interleaved] {
                for pairs in [width / 2, width / 2 - 1] {
                    let RopeAppend { rope, .. } = rope_append(1, 1, width, cache, pairs, pairing);
                    specs.push(Spec::Rope(Rope { heads, width, rope }));
                }
            }
            for ring in [None, Some(320)] {
                specs.push(Spec::Append(Append { key_heads: heads, width, cache, ring }));
            }
            if width % 32 == 0 {
                let (cache, ring) = (Format::Q8_0, None);
                specs.push(Spec::Append(Append { key_heads: heads, width, cache, ring }));
            }
        }
        specs.push(Spec::AttendCombine(Kernel {
            op: AttendCombine { query_heads: 4, width, gates: None },
            layout: CombineLayout::default(),
        }));
    }
    for pairs in [10, 32] {
        for pairing in [Pairing::Half, Pairing::Interleaved] {
            let plain = rope_append(4, 2, 64, Format::F16, pairs, pairing);
            let with = |rope_append: &RopeAppend| {
                attend(4, 2, 64, rope_append.cache)
                    .with_op(|op| Attend { prologue: Some(prologue(rope_append)), ..op })
            };
            specs.push(Spec::AttendSplit(with(&plain)));
            specs.push(Spec::RopeAppend(RopeAppend { norm, ..plain.clone() }));
            specs.push(Spec::RopeAppend(plain));
            // QK norm after RoPE; and other RoPE frequencies for a long context.
            let norm_after_rope = rope_append(4, 2, 64, Format::F16, pairs, Pairing::Half);
            let norm_after_rope = RopeAppend {
                norm: norm.map(|norm| HeadNorm { after_rope: true, ..norm }),
                ..norm_after_rope
            };
            let mut long = rope_append(4, 2, 64, Format::F32, pairs, pairing);
            long.rope.long = Some(LongContext::LongRope {
                original_context: 4096,
                frequencies: long.rope.frequencies.clone(),
            });
            let mut stretched = long.clone();
            stretched.rope.long = Some(LongContext::DynamicNtk { original_context: 4096, factor: 4.0 });
            for rope_append in [norm_after_rope, long, stretched] {
                specs.push(Spec::AttendSplit(with(&rope_append)));
                let RopeAppend { width, ref rope, .. } = rope_append;
                specs.push(Spec::Rope(Rope { heads: 3, width, rope: rope.clone() }));
                specs.push(Spec::RopeAppend(rope_append));
            }
        }
    }
    // Values with a norm, or computed from the key heads; and queries only.
    for (cache, pairing) in [(Format::F16, Pairing::Half), (Format::Q8_0, Pairing::Interleaved)] {
        for after_rope in [None, Some(false), Some(true)] {
            let norm = after_rope.map(|after_rope| HeadNorm { epsilon: 1e-6, after_rope, values: true });
            for kv_source in [KvSource::KeysAndValues, KvSource::Keys, KvSource::Nothing] {
                let mut rope_append =
                    RopeAppend { kv_source, norm, ..rope_append(9, 3, 96, cache, 20, pairing) };
                rope_append.rope.magnitude = 1.0;
                let (window, ring) = (Some(40), Some(320));
                let attend = attend(9, 3, 96, cache).with_op(|op| Attend {
                    prologue: Some(prologue(&rope_append)),
                    window,
                    ring,
                    ..op
                });
                specs.push(Spec::AttendSplit(attend));
                if kv_source != KvSource::Nothing {
                    specs.push(Spec::RopeAppend(rope_append));
                }
            }
        }
    }
    specs
}

/// RoPE and append, with frequencies of base 10,000.
pub(crate) fn rope_append(
    query_heads: usize,
    key_heads: usize,
    width: usize,
    cache: Format,
    pairs: usize,
    pairing: Pairing,
) -> RopeAppend {
    let frequencies = (0..pairs).map(|k| 10_000_f32.powf(-(k as f32) / pairs as f32)).collect();
    let magnitude = if pairing == Pairing::Half { 1.0 } else { 1.25 };
    let rope = RopeParameters { frequencies, pairing, magnitude, long: None };
    RopeAppend {
        query_heads,
        key_heads,
        width,
        cache,
        ring: None,
        kv_source: KvSource::KeysAndValues,
        norm: None,
        rope,
    }
}
