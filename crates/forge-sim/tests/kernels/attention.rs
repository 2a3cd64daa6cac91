//! Kernels of attention.

use crate::cases::{Case, Launch};
use forge_kernels::spec::{
    AttendKernel, AttentionKnobs, AttentionLayout, CombineLayout, Kernel, Rows, quantizes_heads,
};
use forge_kernels::{Family, Spec, prologue_fits};
use forge_ops::{Attend, Format, HeadNorm, KvSource, Pairing, Prologue, RopeParameters};
use forge_oracle::attention_layers::AttentionLayer;
use forge_oracle::rope::rope_parameters;

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
pub(crate) fn partial_rope(width: usize, pairing: Pairing) -> RopeParameters {
    rope_parameters((width / 2 - 1).max(1), pairing, 1.0)
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
    let pairing = if query_heads.is_multiple_of(2) { Pairing::Half } else { Pairing::Interleaved };
    let layer = AttentionLayer {
        ring,
        scale: 1.0 / (width as f32).sqrt(),
        window,
        softcap,
        sinks,
        gated,
        kv_source: match (keys_alone, gated) {
            (true, _) => KvSource::Keys,
            (false, true) => KvSource::KeysValuesAndGates,
            (false, false) => KvSource::KeysAndValues,
        },
        norm: norm.then_some(HeadNorm { epsilon: 1e-6, after_rope: false, values }),
        rope: if still { RopeParameters::none() } else { partial_rope(width, pairing) },
        ..AttentionLayer::plain(query_heads, key_heads, width, cache)
    };
    let knobs = AttentionKnobs::for_heads(query_heads, key_heads, width, cache);
    let attend = Kernel { op: layer.attend(), layout: AttentionLayout { knobs, quantizes: false } };
    let [grouped, direct] = [Family::Nvidia, Family::Apple9].map(|family| {
        let knobs = AttentionKnobs::for_chip(family, Rows::Many, query_heads, key_heads, width, cache);
        attend.clone().with_layout(|layout| AttentionLayout { knobs, ..layout })
    });
    let prepared = attend.clone().with_op(|_| layer.attend_with_prologue());
    let queries = prepared.clone().with_op(|op| {
        let prologue = op.prologue.map(|prologue| Prologue { kv_source: KvSource::Nothing, ..prologue });
        Attend { prologue, ..op }
    });
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
        Case { spec: Spec::RopeAppend(layer.rope_append()), launches: vec![Launch::rows(5, 40)] },
        Case { spec: Spec::AttendSplit(attend.clone()), launches: few },
        Case { spec: Spec::AttendTiled(attend.clone()), launches: many.clone() },
        Case { spec: Spec::AttendTiled(grouped), launches: many.clone() },
        Case { spec: Spec::AttendTiled(direct), launches: many },
        Case {
            spec: Spec::AttendCombine(Kernel { op: layer.combine(), layout: CombineLayout::default() }),
            launches: vec![Launch::rows(3, 50).split(3)],
        },
    ]);
    if quantizes_heads(query_heads, width) {
        let quantizing = attend.clone().with_layout(|layout| AttentionLayout { quantizes: true, ..layout });
        cases.push(Case { spec: Spec::AttendSplit(quantizing), launches: vec![Launch::rows(3, 50)] });
        let combine = Kernel { op: layer.combine(), layout: CombineLayout { quantizes: true } };
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
