//! Attention layers with the layout of their kernels.

use crate::rope_error;
use forge_kernels::spec::{AttentionKnobs, AttentionLayout, CombineLayout, Kernel, Rows};
use forge_kernels::{Family, Spec};
use forge_ops::{Attend, Format};
use forge_oracle::attention_layers::AttentionLayer;
use forge_oracle::{Batch, attention_layers};
use forge_sim::Precision;

/// A layer of [`attention_layers::samples`] and a layout.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) layer: AttentionLayer,
    /// Layout of the attention kernels; `None`: by the rule.
    pub(crate) knobs: Option<AttentionKnobs>,
}

impl Shape {
    /// The same layer with the layout of prefill for Apple GPUs.
    pub(crate) fn for_apple_gpus(&self) -> Shape {
        let AttentionLayer { query_heads, key_heads, width, cache, .. } = self.layer;
        let knobs =
            AttentionKnobs::for_chip(Family::Apple9, Rows::Many, query_heads, key_heads, width, cache);
        Shape { knobs: Some(knobs), ..self.clone() }
    }

    pub(crate) fn split(&self, prologue: bool) -> Spec {
        let layer = &self.layer;
        self.kernel(if prologue { layer.attend_with_prologue() } else { layer.attend() }, Spec::AttendSplit)
    }

    pub(crate) fn tiled(&self) -> Spec {
        self.kernel(self.layer.attend(), Spec::AttendTiled)
    }

    fn kernel(&self, op: Attend, spec: fn(Kernel<Attend, AttentionLayout>) -> Spec) -> Spec {
        let by_rule = || AttentionKnobs::for_heads(op.query_heads, op.key_heads, op.width, op.cache);
        let knobs = self.knobs.unwrap_or_else(by_rule);
        spec(Kernel { op, layout: AttentionLayout { knobs, quantizes: false } })
    }

    pub(crate) fn join(&self) -> Spec {
        Spec::AttendCombine(Kernel { op: self.layer.combine(), layout: CombineLayout::default() })
    }

    /// The error of a cached value, for values up to about 3.
    pub(crate) fn cache_error(&self) -> f64 {
        let error = match self.layer.cache {
            Format::F32 => 3e-6,
            // Half a step of 127.
            Format::Q8_0 => 1.5e-2,
            _ => 1e-3,
        };
        error + self.rope_error()
    }

    pub(crate) fn rope_error(&self) -> f64 {
        rope_error(&self.layer.rope)
    }

    /// The tolerance of attention, for values up to 1. With an f16 or q8_0 KV cache, products may have
    /// reduced precision.
    pub(crate) fn attention_error(&self) -> f64 {
        let reduced = Precision::own().reduced_precision_error().filter(|_| self.layer.cache != Format::F32);
        reduced.unwrap_or(3e-6)
    }

    /// Scalars of a dispatch.
    pub(crate) fn scalars(&self, rows: usize, splits: usize) -> [(&'static str, usize); 6] {
        [
            ("rows", rows),
            ("context", self.layer.context),
            ("capacity", self.layer.kv_cache().capacity()),
            ("splits", splits),
            ("split_positions", 4),
            ("appends", 1),
        ]
    }

    /// Bytes of heads, and of the partial results of their splits, that attention writes.
    pub(crate) fn written(&self, rows: usize, splits: usize) -> [usize; 2] {
        let AttentionLayer { query_heads, width, .. } = self.layer;
        let heads = rows * query_heads * width * 4;
        if splits == 1 { [heads, 0] } else { [0, rows * query_heads * splits * (width + 2) * 4] }
    }

    /// Those of these batches whose positions the layer has.
    pub(crate) fn within(&self, batches: impl IntoIterator<Item = (Batch, usize)>) -> Vec<(Batch, usize)> {
        let fits = |batch: &Batch| batch.positions.iter().all(|p| (*p as usize) < self.layer.context);
        batches.into_iter().filter(|(batch, _)| fits(batch)).collect()
    }
}

/// All samples, in the layout by the rule.
pub(crate) fn shapes() -> Vec<Shape> {
    attention_layers::samples().into_iter().map(|layer| Shape { layer, knobs: None }).collect()
}
