//! The runtime features that a generated crate enables.

use crate::crate_files::CrateOptions;
use forge_ops::{Format, KernelOp, OpFamily};
use forge_planner::Plan;
use std::collections::BTreeSet;

/// Names of the enabled features.
pub(crate) fn features(plan: &Plan, options: &CrateOptions) -> BTreeSet<&'static str> {
    let ops = || plan.kernels.iter().map(|kernel| kernel.spec.op());
    let families = ops().filter_map(family);
    let formats = ops().filter_map(|op| op.weight_format()).map(Format::feature);
    let backend = [("cuda", options.cuda), ("tune", options.tunable)];
    let backend = backend.into_iter().filter_map(|(name, is_needed)| is_needed.then_some(name));
    families.chain(formats).chain(backend).collect()
}

/// The runtime feature of a kernel family; `None` for families that are always included.
fn family(op: KernelOp) -> Option<&'static str> {
    match op.family() {
        OpFamily::Attention => Some("attention"),
        OpFamily::Mla => Some("mla"),
        OpFamily::Moe => Some("moe"),
        OpFamily::Recurrent => Some("recurrent"),
        OpFamily::Elementwise | OpFamily::Head | OpFamily::Matmul | OpFamily::Norm => None,
    }
}
