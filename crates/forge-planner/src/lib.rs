//! From a graph to a plan: which kernels run, on which bytes, in which order, and what may not overlap.
//!
//! # Contract
//!
//! [`plan()`] takes a [`forge_ir::Graph`], which is proof that the graph is sound, and returns a [`Plan`] or
//! diagnostics that name what cannot be done. It knows nothing of files, of the text of generated code, or of how
//! Metal is spelled; it asks `forge-kernels` for rendered instances and reads their parsed signatures.
//!
//! The stages, each a module:
//! 1. `formats`: what each matrix is stored as; layers that come to differ in it get bodies of their own.
//! 2. `fused`: a body's nodes become a list of operations, each with a kernel of its own.
//! 3. `rules`: each file rewrites a pattern of those into fewer. A rule states its algebra as an equation, and
//!    leaves the list alone where its precondition fails. From here on there are two programs: a pass of one row has a
//!    list of its own, since it can be fused further.
//! 4. `select`: every fused operation becomes a [`Step`]: kernel instances for one row, a few and many, with the
//!    weights, scratch, state and batch columns that they are launched on.
//! 5. `arena`: scratch buffers get offsets from their lifetimes (`lives`), in one allocation.
//! 6. `hazards`: a step waits where bytes it touches were touched since the last barrier, and nowhere else.
//! 7. `cost`: bytes and operations of each step, for any number of rows and any length of cache.
//!
//! `asked` says what a plan as a whole refuses; `layouts`, how kernels are laid over threads; `cache`, what slots remember and in how many bytes; `unfold`,
//! from how many rows on keys and values are made of latents; `budget` chooses formats for matrices under a budget of bits; `chips`
//! lists Apple's chips and NVIDIA's cards, and `predict` says how long a pass would take on one.
//!
//! # What a plan promises
//!
//! Every step's bindings match its kernels' signatures by name. No two live scratch buffers overlap. Both schedules use
//! the same weights, state and arena; passes of up to 16 rows and of more are the same steps, and differ in kernels, in what takes
//! experts' rows expert by expert, and in how latents are met ([`MlaExpand`]).

mod formats;
pub(crate) mod fuse;
pub(crate) mod layout;
pub(crate) mod lower;
pub(crate) mod memory;
mod options;
mod plan;
mod predict;

pub use crate::formats::budget::{Offer, spend};
pub use crate::formats::{Override, untie};
pub use crate::fuse::rules::Fusion;
pub use crate::layout::tuned::Tuned;
pub use crate::layout::tuning_candidates::{Candidate, TuningProblem};
pub use crate::layout::tuning_key::{Attention, ExpertMatrix, ExpertsProduct, Layout, LinearKey, TuningKey};
pub use crate::lower::mla_expand::MlaExpand;
pub use crate::options::{Options, Quant};
pub use crate::plan::kv_cache::Ring;
pub use crate::plan::print::signature;
pub use crate::plan::regime::{FEW, MAX_SHARES, Regime, SPLIT_POSITIONS, Schedule};
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

/// Plans the graph, which [`untie`] has been applied to if its head is to have a format of its own.
pub fn plan(graph: &Graph, options: &Options) -> Result<Plan, Vec<Diagnostic>> {
    let formats = Formats::new(graph, options)?.expect_untied()?;
    let graph = &formats.bodies_of_their_own(graph)?;
    let lists = crate::fuse::rules::apply(graph, &formats, options);
    let mut plan = crate::lower::select::select(graph, &formats, options, &lists)?;
    crate::memory::arena::assign(&mut plan);
    crate::memory::barriers::place_barriers(&mut plan);
    Ok(plan)
}
