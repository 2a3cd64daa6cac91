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

mod arena;
mod asked;
mod binding;
mod budget;
mod cache;
mod chips;
mod choices;
mod cost;
mod formats;
mod fused;
mod hazards;
mod layouts;
mod lives;
mod load;
mod options;
mod plan;
mod predict;
mod predict_text;
mod print;
mod reasons;
mod regime;
mod rules;
mod section;
mod select;
mod steps;
mod subject;
mod tuned;
mod unfold;
mod work;

pub use budget::{Offer, spend};
pub use cache::Ring;
pub use chips::Chip;
pub use choices::{Candidate, TuningProblem};
pub use cost::{Cost, pass_cost, step_cost};
pub use formats::{Override, untie};
pub use load::Workload;
pub use options::{Options, Quant};
pub use plan::{
    Application, Argument, BatchColumn, Condition, Counts, Field, FieldKind, Function, LiveRange, Operand,
    Plan, RecurrentState, RowsOf, Scratch, Section, Span, State, Step, Variant, packed_bytes,
};
pub use predict::{Limit, Prediction, StepTime, Time, predict, predict_prompt};
pub use predict_text::{Forecast, LENGTHS, PROMPTS, chip_table};
pub use print::signature;
pub use regime::{FEW, MAX_SHARES, Regime, SPLIT_POSITIONS, Schedule};
pub use rules::Fusion;
pub use subject::{Attention, ExpertMatrix, ExpertsProduct, Layout, LinearKey, TuningKey};
pub use tuned::Tuned;
pub use unfold::MlaExpand;
pub use work::{KernelCost, LinearCost};

use forge_ir::{Diagnostic, Graph};
use formats::Formats;

/// Plans the graph, which [`untie`] has been applied to if its head is to have a format of its own.
pub fn plan(graph: &Graph, options: &Options) -> Result<Plan, Vec<Diagnostic>> {
    let formats = Formats::new(graph, options)?.expect_untied()?;
    let graph = &formats.bodies_of_their_own(graph)?;
    let lists = rules::apply(graph, &formats, options);
    let mut plan = select::select(graph, &formats, options, &lists)?;
    arena::assign(&mut plan);
    hazards::place_barriers(&mut plan);
    Ok(plan)
}
