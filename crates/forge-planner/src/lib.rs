//! Planner: turns a graph into a plan of kernels, buffers, dispatch order and barriers.
//!
//! # Contract
//!
//! [`plan()`] takes a validated [`forge_ir::Graph`] and returns a [`Plan`], or diagnostics that name what is
//! unsupported. It does no I/O and contains no Metal or code generation. `forge-kernels` renders the kernels,
//! and the planner reads their parsed signatures.
//!
//! The stages, each a module:
//!
//! 1. `formats`: the number format of each matrix. Layers that differ in a format get separate bodies.
//! 2. `fuse::list`: converts a body's nodes to a list of operations, each with its own kernel.
//! 3. `fuse::rules`: fusion rules. Each file rewrites one pattern into fewer operations, states its algebra
//!    as an equation, and leaves the list unchanged if its precondition fails. Decode (one row) gets its own
//!    list, because more rules apply.
//! 4. `lower`: converts every operation to a [`Step`]: kernel instances for one row, small batches and many
//!    rows, with the weights, scratch, state and batch columns bound to them.
//! 5. `memory::arena`: assigns scratch buffers offsets in one allocation, from their live ranges
//!    (`memory::lifetimes`).
//! 6. `memory::barriers`: places a barrier before a step that reads bytes written since the last barrier, or
//!    writes bytes read or written since then.
//! 7. `predict::cost`: bytes and operations of each step, as functions of batch size and KV length.
//!
//! Other modules:
//!
//! * `lower::requirements`: requirements on the plan as a whole
//! * `layout`: kernel layouts, that is, the distribution of work over threadgroups and threads
//! * `plan`: the plan's types; `plan::kv_cache`: KV cache and recurrent state of a slot, and their size in
//!   bytes
//! * `lower::mla_expand`: batch size from which MLA expands latents to keys and values
//! * `formats::budget`: chooses matrix formats for a budget of bits
//! * `predict`: predicted time of a pass on a chip; `predict::chips`: Apple chips and NVIDIA GPUs
//!
//! # Guarantees of a plan
//!
//! Bindings match kernel signatures by name. Scratch buffers that are live at the same time do not overlap.
//! Both schedules use the same weights, state and arena. Small batches (up to 16 rows) and larger ones run
//! the same steps, except for their kernels, grouped expert GEMMs, and expanded MLA ([`MlaExpand`]).

mod formats;
pub(crate) mod fuse;
pub(crate) mod layout;
pub(crate) mod lower;
pub(crate) mod memory;
mod options;
mod plan;
mod predict;

pub use crate::formats::budget::{FormatCandidate, choose_within_budget};
pub use crate::formats::{Override, untie};
pub use crate::fuse::rules::Fusion;
pub use crate::layout::tuned::Tuned;
pub use crate::layout::tuning_candidates::{Candidate, TuningProblem};
pub use crate::layout::tuning_key::{Attention, ExpertMatrix, ExpertsProduct, Layout, LinearKey, TuningKey};
pub use crate::lower::mla_expand::MlaExpand;
pub use crate::options::{Options, Quant};
pub use crate::plan::kv_cache::Ring;
pub use crate::plan::print::signature;
pub use crate::plan::regime::{
    DECODE_ROWS, INDEPENDENT_ROWS, MAX_KV_SPLITS, Regime, SMALL_BATCH_MAX, SPLIT_POSITIONS, Schedule,
};
pub use crate::plan::workload::Workload;
pub use crate::plan::{
    Application, Argument, BatchColumn, Condition, Counts, Field, FieldKind, Function, LiveRange, Operand,
    Plan, RecurrentState, RowsOf, Scratch, Section, Span, State, Step, Variant, packed_bytes,
};
pub use crate::predict::chips::Chip;
pub use crate::predict::cost::{Cost, pass_cost, step_cost};
pub use crate::predict::kernel_cost::{KernelCost, LinearCost};
pub use crate::predict::report::{Forecast, LENGTHS, PROMPTS, chip_table};
pub use crate::predict::{Limit, Prediction, StepTime, Time, predict, predict_prompt};

use crate::formats::Formats;
use forge_ir::{Diagnostic, Graph};

/// Plans the graph. If the head needs a format other than the embedding table's, apply [`untie`] first.
pub fn plan(graph: &Graph, options: &Options) -> Result<Plan, Vec<Diagnostic>> {
    let formats = Formats::new(graph, options)?.expect_untied()?;
    let graph = &formats.split_bodies(graph)?;
    let lists = crate::fuse::rules::apply(graph, &formats, options);
    let mut plan = crate::lower::select::select(graph, &formats, options, &lists)?;
    crate::memory::arena::assign(&mut plan);
    crate::memory::barriers::place_barriers(&mut plan);
    Ok(plan)
}
