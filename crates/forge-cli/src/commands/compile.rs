//! `forge compile`: compiles a checkpoint into a crate, and prints a summary.

use crate::arguments::CompileArguments;
use crate::compile::ignored_tensors;
use crate::compile::pipeline::compile;
use crate::compile::plan::{PlannedModel, parameters};
use crate::error::Error;
use crate::terminal;
use forge_planner::Workload;
use forge_weights::Summary;
use serde_json::json;
use std::path::Path;

/// `forge compile`.
pub(crate) fn command(
    arguments: &CompileArguments,
    out: &Path,
    force: bool,
    as_json: bool,
) -> Result<(), Error> {
    let (planned, written) = compile(arguments, out, force)?;
    if as_json {
        let summary = summary(&planned, &written, out);
        terminal::print(&format!("{summary:#}\n"))?;
    }
    Ok(())
}

/// The JSON summary.
fn summary(planned: &PlannedModel, written: &Summary, out: &Path) -> serde_json::Value {
    let plan = &planned.plan;
    let counts = plan.counts(Workload::decode(1));
    json!({
        "out": out.display().to_string(),
        "name": planned.name,
        "model": plan.model,
        "options": planned.options,
        "parameters": parameters(&planned.opened.graph),
        "formats": plan.bytes_by_format().into_iter().map(|(format, bytes)| (format.name(), bytes)).collect::<std::collections::BTreeMap<_, _>>(),
        "memory": {
            "weights_bytes": plan.weight_bytes(),
            "kv_bytes_per_position": plan.cache_bytes_per_position(),
            "kv_bytes": plan.state_bytes(plan.context, plan.slots),
            "arena_bytes": plan.arena_bytes,
            "context": plan.context,
            "slots": plan.slots,
        },
        "ignored_tensors": ignored_tensors::to_json(&planned.opened),
        "decode": counts,
        "weights": written.weights,
        "errors": {"all": written.error(), "layers": written.layers(), "outputs": written.output_error()},
        "kernels": plan.kernels.iter().map(|kernel| &kernel.name).collect::<Vec<_>>(),
    })
}
