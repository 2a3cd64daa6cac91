//! The plan's data types: sections of steps, kernels, weights, scratch and state.

pub(crate) mod kv_cache;
mod model_plan;
pub(crate) mod print;
pub(crate) mod regime;
mod scratch;
mod section;
mod step;
pub(crate) mod workload;

pub use crate::plan::model_plan::{Counts, Plan, packed_bytes};
pub use crate::plan::scratch::{LiveRange, RowsOf, Scratch, Span};
pub use crate::plan::section::{Application, Field, FieldKind, RecurrentState, Section, State};
pub use crate::plan::step::{Argument, BatchColumn, Condition, Function, Operand, Step, Variant};
