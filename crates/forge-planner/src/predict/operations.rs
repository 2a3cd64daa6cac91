//! The arithmetic operations of a kernel.

use crate::predict::memory_traffic::Counted;
use forge_kernels::Spec;
use forge_ops::DeltaRule;

impl Counted<'_> {
    /// Arithmetic operations.
    pub(super) fn operations(&self) -> u64 {
        let attention = |heads: usize, width: usize| 4 * self.amounts.attended * (heads * width) as u64;
        let of_rows = |operations: usize| self.amounts.rows * operations as u64;
        let learning = |rule: &DeltaRule| 8 * rule.heads * rule.keys * rule.values;
        match &self.instance.spec {
            Spec::Linear(linear) => of_rows(2 * linear.op.outputs * linear.op.inputs),
            Spec::Quantize(quantize) => of_rows(2 * quantize.width),
            Spec::AttendSplit(attend) | Spec::AttendTiled(attend) => {
                attention(attend.op.query_heads, attend.op.width)
            }
            Spec::PerHeadLinear(each) => of_rows(2 * each.op.heads * each.op.rows * each.op.columns),
            Spec::MlaAppend(append) => {
                let heads = append.prepare.as_ref().map_or(0, |prepare| prepare.heads + 1);
                of_rows(4 * append.width + 3 * heads * append.rope_width)
            }
            Spec::MlaAttention(attend) => {
                let line = 2 * attend.width + attend.rope_width;
                2 * self.amounts.attended * (attend.heads * line) as u64
            }
            Spec::MlaAttentionExpanded(attend) => {
                let widths = attend.op.keys + attend.op.rope_width + attend.op.values;
                2 * self.amounts.attended * (attend.op.heads * widths) as u64
            }
            Spec::AttendCombine(combine) => {
                2 * self.amounts.splits * of_rows(combine.op.query_heads * combine.op.width)
            }
            Spec::LayerNorm(norm) => of_rows(6 * norm.width),
            Spec::NormAdd(norm) => of_rows(5 * norm.width),
            Spec::RmsNorm(norm) => of_rows(4 * norm.width * norm.parts),
            Spec::Rope(rope) => of_rows(3 * rope.heads * rope.width),
            Spec::RopeAppend(rope) => of_rows(3 * (rope.query_heads + rope.key_heads) * rope.width),
            Spec::Route(route) => of_rows(2 * route.logits()),
            Spec::ExpertsInner(inner) => of_rows(2 * inner.op.chosen * inner.op.outputs * inner.op.inputs),
            Spec::ExpertsSum(sum) => of_rows(2 * sum.op.chosen * sum.op.outputs * sum.op.inputs),
            Spec::ExpertsGroup(group) => of_rows(group.chosen),
            Spec::ExpertsTiles(tiles) => of_rows(2 * tiles.op.chosen * tiles.op.outputs * tiles.op.inputs),
            Spec::ExpertsCombine(combine) => of_rows(2 * combine.chosen * combine.width),
            Spec::Elementwise(elementwise) => of_rows(elementwise.width),
            Spec::Convolve(convolve) => of_rows(2 * convolve.taps * convolve.width),
            Spec::DeltaRule(rule) => of_rows(learning(rule)),
            // Three products with the state, and products with the earlier rows of the chunk: half of them on
            // average, and half of the row's own 8 by 8 matrix.
            Spec::DeltaChunks(chunks) => {
                let (DeltaRule { heads, keys, values, .. }, rows) = (chunks.op.rule, chunks.layout.rows);
                of_rows(heads * (6 * keys * values + (rows + 8) * (2 * keys + 2 * values)))
            }
            Spec::GatedRmsNorm(through) => of_rows(6 * through.heads * through.values),
            Spec::DeltaStep(step) => of_rows(2 * step.taps * step.rule.channels() + learning(&step.rule)),
            // A sampling weight for each logit.
            Spec::Sample(sample) => of_rows(8 * sample.vocabulary),
            Spec::Embed(_)
            | Spec::Append(_)
            | Spec::MlaLoadLatents(_)
            | Spec::SliceColumns(_)
            | Spec::Argmax(_)
            | Spec::ArgmaxCombine(_) => 0,
        }
    }
}
