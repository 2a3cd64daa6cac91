//! Writes reference logits of the packed weights.

use crate::arguments::Certify;
use crate::checkpoint::Directory;
use crate::compile::output::Staging;
use crate::compile::pack::WEIGHTS;
use crate::compile::plan::{PlannedModel, parameters};
use crate::error::Error;
use crate::terminal;
use forge_frontend::Checkpoint;
use forge_ir::{Op, int8_tolerances};
use forge_weights::PackedFile;
use serde_json::json;
use std::time::Instant;

/// Writes golden.json: reference logits of the packed weights. Returns the number of sequences and of tokens.
pub(super) fn write_reference_logits(
    planned: &PlannedModel,
    effort: Certify,
    staging: &Staging,
) -> Result<(usize, usize), Error> {
    let PlannedModel { opened, plan, .. } = planned;
    let written = Directory::at(staging.path().to_owned());
    let failed = |fault: forge_ir::Diagnostic| Error::other(format!("golden.json: {fault}"));
    let started = Instant::now();
    let packed =
        PackedFile::open(&opened.graph, &plan.weights, |offset, out| written.read(WEIGHTS, offset, out));
    let packed = packed.map_err(failed)?;
    let (vocabulary, parameters) = (plan.model.vocabulary, parameters(&opened.graph));
    let sequences = match effort {
        Certify::Quick => forge_reference::quick_sequences(vocabulary, plan.context),
        _ => forge_reference::sequences(vocabulary, plan.context, parameters),
    };
    let rows: usize = sequences.iter().map(|sequence| sequence.ids.len()).sum();
    let spinner = terminal::spinner(
        "Certifying",
        &format!("reference logits of {} sequences, {rows} tokens", sequences.len()),
    );
    let golden = forge_reference::golden(&opened.graph, &packed, plan.cache, &sequences);
    spinner.finish_and_clear();
    let golden = golden.map_err(failed)?;
    let tolerance = forge_ir::tolerance(plan.cache);
    let text = json!({
        "model": plan.model.name,
        "tolerance": {"bound": tolerance.bound, "reason": tolerance.reason},
        "int8_activations": int8_bounds(planned),
        "sequences": golden,
    });
    staging.write("golden.json", format!("{text}\n").as_bytes())?;
    let seconds = started.elapsed().as_secs_f64();
    terminal::stage(
        "Certifying",
        &format!("reference logits of {} sequences, {rows} tokens   {seconds:.1} s", golden.len()),
    );
    Ok((golden.len(), rows))
}

/// Tolerances for int8 activations, the CPU device's default for quantized weights. Each bounds the logit
/// error of a share of the positions.
fn int8_bounds(planned: &PlannedModel) -> Vec<serde_json::Value> {
    let PlannedModel { opened, plan, .. } = planned;
    if !plan.weights.iter().any(|packed| packed.format.is_quantized()) {
        return Vec::new();
    }
    let has_router =
        |apply| opened.graph.body(apply).nodes.iter().any(|node| matches!(node.op, Op::Route(_)));
    let tolerances = int8_tolerances(opened.graph.layers.iter().any(has_router));
    let bounds =
        [0.5, 0.9, 1.0].into_iter().zip(tolerances).filter(|(_, tolerance)| tolerance.bound.is_finite());
    bounds
        .map(|(share, tolerance)| json!({"share": share, "bound": tolerance.bound, "reason": tolerance.reason}))
        .collect()
}
