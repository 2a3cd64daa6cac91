//! Steps: what they call, with which arguments, and when.

use crate::plan::regime::Regime;
use serde::Serialize;

/// What a step calls: a kernel for each regime.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// What the function computes, as a formula over its parameters.
    pub formula: String,
    /// The kernels, one of which is selected by regime.
    pub variants: Vec<Variant>,
}

/// A kernel and the regimes that use it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Variant {
    /// The regimes.
    pub regimes: Vec<Regime>,
    /// Index into the plan's kernels.
    pub kernel: usize,
}

impl Function {
    /// The kernel for a regime, if the function runs in it.
    pub fn kernel(&self, regime: Regime) -> Option<usize> {
        self.variants.iter().find(|variant| variant.regimes.contains(&regime)).map(|variant| variant.kernel)
    }
}

/// One dispatch. It is skipped if its condition is false.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Name of the step.
    pub name: String,
    /// What the step computes, as a formula over this model's values.
    pub formula: String,
    /// Index into the plan's functions.
    pub function: usize,
    /// Why the step is a separate dispatch, in decode, if it could have been fused.
    pub reason: Option<String>,
    /// One argument for each parameter of the function.
    pub arguments: Vec<Argument>,
    /// When the step runs.
    pub condition: Condition,
    /// Whether its rows are positions of an expanded KV tile instead of rows of the pass.
    pub of_tile: bool,
    /// Whether a barrier precedes the step.
    pub waits: bool,
    /// Steps that the barrier waits for: indices in this section, `None` for steps of earlier sections.
    pub waits_for: Vec<Option<usize>>,
}

/// When a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// Always.
    Always,
    /// If attention is split over KV (split-KV).
    Split,
    /// In passes of several rows.
    SeveralRows,
    /// In passes with several rows of one slot.
    SharedSlots,
    /// In all other passes.
    SeparateSlots,
    /// In passes of many rows (prefill).
    Many,
    /// If MLA runs in absorbed form.
    Absorbed,
    /// If MLA runs in expanded form; once for each KV tile.
    Expanded,
    /// If argmax tokens are requested.
    Greedy,
    /// If tokens are sampled on the device, instead of [`Condition::Greedy`].
    Drawn,
}

/// A parameter and its operand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Argument {
    /// Parameter name in the kernels' signatures. For a matrix, the common name of its planes.
    pub parameter: String,
    /// Operand bound to the parameter.
    pub operand: Operand,
}

/// A buffer that kernels read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    /// Field of the section, by index.
    Field(usize),
    /// Scratch buffer, by index.
    Scratch(usize),
    /// Key cache of this layer.
    Keys,
    /// Value cache of this layer.
    Values,
    /// MLA cache of this layer: latents and RoPE keys.
    Latents,
    /// Recurrent state of this layer, by index.
    RecurrentState(usize),
    /// A per-row input from the host.
    Batch(BatchColumn),
    /// Slot table of the expert cache: where the matrices of each expert are, filled in by the host.
    ExpertSlots,
}

/// A per-row input or output of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchColumn {
    /// Token id of the row.
    Ids,
    /// Slot (sequence) of the row.
    Slots,
    /// Position of the row in its sequence.
    Positions,
    /// Indices of the rows whose logits are requested.
    Wanted,
    /// Sampling parameters for each requested row.
    Draws,
    /// Next token of each requested row, by argmax or sampling. A pass writes it, and the next pass may read
    /// it as input.
    Next,
}

impl BatchColumn {
    /// Name in generated code.
    pub fn name(self) -> &'static str {
        match self {
            BatchColumn::Ids => "ids",
            BatchColumn::Slots => "slots",
            BatchColumn::Positions => "positions",
            BatchColumn::Wanted => "wanted",
            BatchColumn::Draws => "draws",
            BatchColumn::Next => "next",
        }
    }
}
