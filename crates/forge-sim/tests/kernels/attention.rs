//! Kernels of attention.

use crate::cases::{Case, Launch};
use forge_kernels::spec::{
    AttendKernel, AttentionKnobs, AttentionLayout, CombineLayout, Kernel, Rows, quantizes_heads,
};
use forge_kernels::{Family, Spec, prologue_fits};
use forge_ops::{
    Attend, AttendCombine, Format, Gates, HeadNorm, KvSource, Pairing, Prologue, RopeAppend, RopeParameters,
};

/// Rare options of attention.
#[derive(Clone, Copy, Default)]
pub(crate) struct AttentionVariant {
    pub(crate) norm: bool,
    pub(crate) window: Option<usize>,
    pub(crate) ring: Option<usize>,
    pub(crate) softcap: Option<f32>,
    pub(crate) sinks: bool,
    pub(crate) values: bool,
    pub(crate) keys_alone: bool,
    pub(crate) still: bool,
    pub(crate) gated: bool,
}

/// Partial RoPE that leaves two channels unrotated, if there are more.
pub(crate) fn rope_parameters(width: usize, pairing: Pairing) -> RopeParameters {
    let pairs = (width / 2 - 1).max(1);
    let frequencies = (0..pairs).map(|k| 10_000f32.powf(-(k as f32) / pairs as f32)).collect();
    RopeParameters { frequencies, pairing, magnitude: 1.0, long: None }
}

/// Every kernel of attention at one size.
pub(crate) fn attention(
    width: usize,
    query_heads: usize,
    key_heads: usize,
    cache: Format,
    extras: AttentionVariant,
) -> Vec<Case> {
    let AttentionVariant { norm, window, ring, softcap, sinks, values, keys_alone, still, gated } = extras;
    let scale = 1.0 / (width as f32).sqrt();
    let norm = norm.then_some(HeadNorm { epsilon: 1e-6, after_rope: false, values });
    let pairing = if query_heads.is_multiple_of(2) { Pairing::Half } else { Pairing::Interleaved };
    let rope = if still { RopeParameters::none() } else { rope_parameters(width, pairing) };
    let kv_source = match (keys_alone, gated) {
        (true, _) => KvSource::Keys,
        (false, true) => KvSource::KeysValuesAndGates,
        (false, false) => KvSource::KeysAndValues,
    };
    let pitch = kv_source.row_heads(query_heads, key_heads) * width;
    let gates = gated.then(|| Gates { pitch, first: pitch - query_heads * width });
    let prologue = Prologue { kv_source, norm, rope: rope.clone() };
    let rope_append = RopeAppend { query_heads, key_heads, width, cache, ring, kv_source, norm, rope };
    let attend = Kernel {
        op: Attend {
            query_heads,
            key_heads,
            width,
            cache,
            ring,
            scale,
            window,
            softcap,
            sinks,
            gates,
            prologue: None,
        },
        layout: AttentionLayout {
            knobs: AttentionKnobs::for_heads(query_heads, key_heads, width, cache),
            quantizes: false,
        },
    };
    let knobs = AttentionKnobs::for_chip(Family::Nvidia, Rows::Many, query_heads, key_heads, width, cache);
    let grouped = attend.clone().with_layout(|layout| AttentionLayout { knobs, ..layout });
    let queries = attend.clone().with_op(|op| Attend {
        prologue: Some(Prologue { kv_source: KvSource::Nothing, ..prologue.clone() }),
        ..op
    });
    let prepared = attend.clone().with_op(|op| Attend { prologue: Some(prologue), ..op });
    let knobs = AttentionKnobs::for_chip(Family::Nvidia, Rows::Few, query_heads, key_heads, width, cache);
    let nvidia = |attend: &AttendKernel| {
        Spec::AttendSplit(attend.clone().with_layout(|layout| AttentionLayout { knobs, ..layout }))
    };
    let few = vec![Launch::rows(1, 71), Launch::rows(3, 50).split(3), Launch::rows(4, 3).mixed(1).split(16)];
    let one = vec![
        Launch::rows(1, 71),
        Launch::rows(1, 0),
        Launch::rows(1, 40).split(3),
        Launch::rows(1, 2).split(5),
        Launch::rows(3, 50).appended(),
    ];
    let many = vec![Launch::rows(17, 16), Launch::rows(21, 60).mixed(10), Launch::rows(3, 71)];
    let mut cases = Vec::new();
    // Without MMA, the NVIDIA layout differs only in knobs of the same template body.
    if knobs.mma {
        cases.push(Case { spec: nvidia(&attend), launches: few.clone() });
        cases.push(Case { spec: nvidia(&prepared), launches: one.clone() });
    }
    cases.extend([
        Case { spec: Spec::RopeAppend(rope_append), launches: vec![Launch::rows(5, 40)] },
        Case { spec: Spec::AttendSplit(attend.clone()), launches: few },
        Case { spec: Spec::AttendTiled(attend.clone()), launches: many.clone() },
        Case { spec: Spec::AttendTiled(grouped), launches: many },
        Case {
            spec: Spec::AttendCombine(Kernel {
                op: AttendCombine { query_heads, width, gates },
                layout: CombineLayout::default(),
            }),
            launches: vec![Launch::rows(3, 50).split(3)],
        },
    ]);
    if quantizes_heads(query_heads, width) {
        let quantizing = attend.clone().with_layout(|layout| AttentionLayout { quantizes: true, ..layout });
        cases.push(Case { spec: Spec::AttendSplit(quantizing), launches: vec![Launch::rows(3, 50)] });
        let combine = Kernel {
            op: AttendCombine { query_heads, width, gates },
            layout: CombineLayout { quantizes: true },
        };
        let launches = vec![Launch::rows(3, 50).split(3)];
        cases.push(Case { spec: Spec::AttendCombine(combine), launches });
    }
    if prologue_fits(query_heads, key_heads, width) {
        // If values are normed, some layers have queries only.
        if values {
            cases.push(Case { spec: Spec::AttendSplit(queries), launches: one.clone() });
        }
        cases.push(Case { spec: Spec::AttendSplit(prepared), launches: one });
    }
    cases
}
