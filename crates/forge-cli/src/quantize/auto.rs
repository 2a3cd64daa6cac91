//! `--quant auto:BITS`: mixed-precision format selection.
//!
//! Before planning, every candidate format's quantization error is measured for every matrix. The bit budget
//! is then spent where it reduces the loss most.
//!
//! The loss of a matrix is its squared relative error times its element count. The error is relative because
//! absolute sizes mean little where a norm or another matrix follows.
//!
//! With activation statistics (`--calibrate`) the loss is an estimate of the KL divergence of the logits: the
//! expected squared error of the matrix's outputs times its measured [`sensitivity`]. Where the sensitivity is
//! not measured, the relative error of the outputs replaces that of the values.
//!
//! A matrix is what the plan packs: merged projections get one format. The result is a list of overrides by
//! exact tensor name, placed before the user's. Matrices that the user overrides keep that format, and their
//! bits count towards the budget. The choice depends only on the checkpoint and the options.

use crate::checkpoint::Directory;
use crate::error::Error;
use crate::quantize::calibration::Calibration;
use crate::quantize::sensitivity;
use crate::terminal;
use forge_frontend::LoadedCheckpoint;
use forge_ir::{Diagnostic, Format, Graph, Packed, WeightRows};
use forge_planner::{FormatCandidate, Options, Override, Quant, choose_within_budget};
use forge_weights::{CheckpointWeights, QuantizationError, measure};
use std::collections::BTreeMap;

/// Prefix of the `--quant` value.
pub(crate) const PREFIX: &str = "auto:";

/// Candidate formats.
const CHOICES: [&str; 16] = [
    "q8_0",
    "q6_k",
    "affine6",
    "q5_k",
    "affine5",
    "affine4_32",
    "q4_k",
    "affine4",
    "iq4_nl",
    "q4_0",
    "affine4_128",
    "iq4_xs",
    "q3_k",
    "affine3",
    "q2_k",
    "affine2",
];

/// Chooses a format for each matrix, at `bits` per weight on average. Returns the options and updates the
/// graph.
pub(crate) fn choose(
    opened: &mut LoadedCheckpoint,
    checkpoint: &Directory,
    calibration: Option<&Calibration>,
    options: Options,
    bits: f64,
) -> Result<Options, Error> {
    let faults = |faults| Error::Faults { faults, root: checkpoint.root().to_owned() };
    let fault = |fault: Diagnostic| faults(vec![fault]);
    let choices: Vec<Format> = CHOICES.into_iter().filter_map(Format::from_name).collect();
    // Plan with a placeholder format that no override names: weights planned in it are free to choose.
    let is_free = |format: &&Format| !options.overrides.iter().any(|it| it.to() == Quant::To(**format));
    let placeholder = *choices.iter().find(is_free).ok_or_else(|| {
        Error::usage(format!(
            "--quant {PREFIX}{bits}: every candidate format is used by an override; remove one"
        ))
    })?;
    let planned = Options { quant: Quant::To(placeholder), ..options.clone() };
    opened.graph = forge_planner::untie(opened.graph.clone(), &planned).map_err(faults)?;
    let graph = &opened.graph;
    let plan = forge_planner::plan(graph, &planned).map_err(faults)?;
    let matrices: Vec<&Packed> = plan.weights.iter().filter(|packed| packed.shape.len() == 2).collect();
    let source = CheckpointWeights::new(graph, |tensor, offset, out| {
        opened.tensors.read(checkpoint, tensor, offset, out)
    });

    let bar = terminal::steps_bar("Measuring", matrices.len() as u64);
    let statistics = calibration.map(|calibration| &calibration.statistics);
    let mut errors = Vec::new();
    for packed in &matrices {
        bar.set_message(packed.name.clone());
        let formats =
            if packed.format == placeholder { choices.clone() } else { vec![packed.format; choices.len()] };
        errors.push(measure(graph, packed, &source, statistics, &formats).map_err(fault)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let free: Vec<bool> = matrices.iter().map(|packed| packed.format == placeholder).collect();
    let sensitivities = match calibration {
        Some(calibration) => {
            sensitivities(graph, &source, calibration, &matrices, &errors, &free).map_err(fault)?
        }
        None => None,
    };
    let mut candidates = Vec::new();
    for (index, (packed, errors)) in matrices.iter().zip(&errors).enumerate() {
        let loss = |error: &QuantizationError| match &sensitivities {
            Some(sensitivities) => sensitivities[index] * output_error(packed, error),
            None => error.relative_output.unwrap_or(error.relative).powi(2) * elements(packed),
        };
        let candidate = |(choice, error): (&Format, &Option<QuantizationError>)| {
            let format = if free[index] { *choice } else { packed.format };
            FormatCandidate {
                bits: 8 * format.matrix_bytes(packed.shape[0], packed.shape[1]),
                loss: error.as_ref().filter(|_| format.takes(packed.shape[1])).map(loss),
            }
        };
        candidates.push(choices.iter().zip(errors).map(candidate).collect::<Vec<_>>());
    }

    let weights: u64 = matrices.iter().map(|packed| (packed.shape[0] * packed.shape[1]) as u64).sum();
    let choice = choose_within_budget(&candidates, (bits * weights as f64) as u64).ok_or_else(|| {
        let least: u64 = candidates
            .iter()
            .filter_map(|candidates| candidates.iter().map(|candidate| candidate.bits).min())
            .sum();
        let least = least as f64 / weights as f64;
        fault(Diagnostic::new("F0506", format!("{bits} bits per weight are too few for this model")).note(
            format!("the minimum of --quant {PREFIX}BITS for this model is {least:.3}, including scales"),
        ))
    })?;
    let spent: u64 = candidates.iter().zip(&choice).map(|(candidates, place)| candidates[*place].bits).sum();
    let formats: Vec<Format> = matrices
        .iter()
        .zip(&choice)
        .map(|(packed, place)| if packed.format == placeholder { choices[*place] } else { packed.format })
        .collect();
    print_choice(&matrices, &formats, spent as f64 / weights as f64, bits);
    if sensitivities.is_some() {
        let losses = candidates.iter().zip(&choice).filter_map(|(candidates, place)| candidates[*place].loss);
        let estimate: f64 = losses.sum();
        terminal::more(&format!("estimated KL divergence of the logits: {estimate:.4} nats per token"));
    }
    let (spent, largest) = (spent as f64 / weights as f64, choices[0]);
    let is_largest =
        |(packed, format): (&&Packed, &Format)| packed.format != placeholder || *format == largest;
    if bits > spent && matrices.iter().zip(&formats).all(is_largest) {
        terminal::warning(&format!(
            "--quant {PREFIX}{bits}: the largest candidate is {largest}, {spent:.3} bits per weight for this model; use f16 for 16 bits"
        ));
    }
    let mut overrides = by_name(graph, &matrices, &formats, placeholder);
    overrides.extend(options.overrides);
    Ok(Options { quant: Quant::To(placeholder), overrides, ..options })
}

/// Number of elements of a matrix.
fn elements(packed: &Packed) -> f64 {
    (packed.shape[0] * packed.shape[1]) as f64
}

/// The expected squared error of a matrix's outputs; of its values if it has no activation statistics.
fn output_error(packed: &Packed, error: &QuantizationError) -> f64 {
    error.output.unwrap_or_else(|| error.relative.powi(2) * elements(packed))
}

/// The sensitivity of each matrix, 0 for those whose format is not free; `None` without a calibration text, and
/// for models that take too long.
fn sensitivities(
    graph: &Graph,
    weights: &dyn WeightRows,
    calibration: &Calibration,
    matrices: &[&Packed],
    errors: &[Vec<Option<QuantizationError>>],
    free: &[bool],
) -> Result<Option<Vec<f64>>, Diagnostic> {
    if calibration.sequences.is_empty() {
        return Ok(None);
    }
    let probe = CHOICES.iter().position(|name| *name == sensitivity::PROBE).unwrap_or(0);
    let error = |index: usize| errors[index].get(probe).copied().flatten();
    let probed: Vec<usize> =
        (0..matrices.len()).filter(|index| free[*index] && error(*index).is_some()).collect();
    let pairs: Vec<(&Packed, f64)> = probed
        .iter()
        .filter_map(|index| Some((matrices[*index], output_error(matrices[*index], &error(*index)?))))
        .collect();
    let data = (&calibration.statistics, &calibration.sequences[..]);
    let bar = terminal::steps_bar("Measuring", 1);
    let found = sensitivity::measure(graph, weights, data, &pairs, &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    let Some(found) = found else {
        terminal::more("the model is too large to measure how sensitive its logits are to each matrix");
        return Ok(None);
    };
    let mut all = vec![0.0; matrices.len()];
    probed.into_iter().zip(found).for_each(|(index, sensitivity)| all[index] = sensitivity);
    Ok(Some(all))
}

/// Overrides by exact tensor name, without those of the user.
fn by_name(graph: &Graph, matrices: &[&Packed], formats: &[Format], free: Format) -> Vec<Override> {
    let own =
        matrices.iter().zip(formats).filter(|(packed, format)| packed.format == free && **format != free);
    own.flat_map(|(packed, format)| {
        packed.parts.iter().map(|part| Override::exactly(&graph.weights[part.0].tensor, Quant::To(*format)))
    })
    .collect()
}

/// Prints the chosen formats, one line per role.
fn print_choice(matrices: &[&Packed], formats: &[Format], spent: f64, requested: f64) {
    terminal::stage("Choosing", &format!("{spent:.3} bits per weight, of {requested} requested"));
    let mut roles: Vec<&str> = Vec::new();
    let mut taken: BTreeMap<(&str, Format), usize> = BTreeMap::new();
    for (packed, format) in matrices.iter().zip(formats) {
        let in_layer = packed.name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        let role = in_layer.map_or(packed.name.as_str(), |(_, role)| role);
        if !roles.contains(&role) {
            roles.push(role);
        }
        *taken.entry((role, *format)).or_default() += 1;
    }
    for role in roles {
        let of_role = taken.iter().filter(|((other, _), _)| *other == role);
        let text = |((_, format), count): (&(&str, Format), &usize)| match count {
            1 => format.to_string(),
            _ => format!("{format} × {count}"),
        };
        let texts: Vec<String> = of_role.map(text).collect();
        terminal::more(&format!("{role:<10} {}", texts.join(", ")));
    }
}
