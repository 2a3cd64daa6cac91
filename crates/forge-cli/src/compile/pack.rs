//! Writes the weight file.

use crate::compile::messages;
use crate::compile::output::Staging;
use crate::compile::plan::PlannedModel;
use crate::error::Error;
use crate::terminal;
use forge_ir::units::size;
use forge_weights::{CheckpointWeights, Summary};
use std::collections::BTreeSet;
use std::time::Instant;

/// File name of the packed weights.
pub(super) const WEIGHTS: &str = "weights.safetensors";

/// Writes weights.safetensors into the staging directory.
pub(super) fn pack(planned: &PlannedModel, staging: &Staging) -> Result<Summary, Error> {
    let PlannedModel { checkpoint, opened, plan, calibration, .. } = planned;
    let (graph, started) = (&opened.graph, Instant::now());
    let bytes = |weight: &forge_ir::Weight| match weight.format.is_quantized() {
        true => weight.format.matrix_bytes(weight.rows(), weight.columns()),
        false => {
            let element = weight.format.planes()[0].element.bytes() as u64;
            element * weight.shape.iter().product::<usize>() as u64
        }
    };
    let (encoded, others): (Vec<_>, Vec<_>) =
        graph.weights.iter().partition(|weight| weight.encoding.is_some() || weight.blocks.is_some());
    // Several weights may be slices of one tensor.
    let encoded: BTreeSet<String> = encoded.iter().flat_map(|weight| weight.tensors()).collect();
    let encoded = encoded.iter().filter_map(|name| opened.tensors.get(name)).map(|tensor| tensor.bytes);
    let before = others.into_iter().map(bytes).sum::<u64>() + encoded.sum::<u64>();
    let mut file = staging.create(WEIGHTS)?;
    let bar = terminal::bytes_bar("Packing", plan.weight_bytes());
    let source = CheckpointWeights::new(graph, |tensor, offset, out| {
        opened.tensors.read(checkpoint, tensor, offset, out)
    });
    let mut progress = |progress: forge_weights::Progress<'_>| {
        bar.set_length(progress.total);
        bar.set_position(progress.written);
    };
    let summary = forge_weights::write_calibrated(
        graph,
        &plan.weights,
        &source,
        calibration.as_ref().map(|calibration| &calibration.statistics),
        &mut file,
        &mut progress,
    );
    bar.finish_and_clear();
    let summary =
        summary.map_err(|fault| Error::Faults { faults: vec![fault], root: checkpoint.root().to_owned() })?;
    let seconds = started.elapsed().as_secs_f64();
    terminal::stage("Packing", &format!("{} → {}   {seconds:.1} s", size(before), size(summary.bytes)));
    messages::print_errors(&summary);
    Ok(summary)
}
