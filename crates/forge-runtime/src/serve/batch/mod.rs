//! Continuous batching: request queue, scheduler and slots.

pub(crate) mod job;
pub(crate) mod prefill_budget;
pub(crate) mod queue;
pub(crate) mod scheduled_batch;
pub(crate) mod scheduler;
pub(crate) mod slots;
mod warm_up;
pub(crate) mod watchdog;
