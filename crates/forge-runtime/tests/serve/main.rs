//! The server over sockets, with the tiny model at full speed or slowed down.

#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../../tiny/kernels.rs"]
mod kernels;
#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../../tiny/model.rs"]
mod model;
#[path = "../support/mod.rs"]
mod support;

mod answers;
mod company;
mod constrained;
mod fuzz;
mod hostile;
mod probabilities;
mod rejections;
mod responses;
mod served;

use forge_runtime as runtime;
