//! `forge inspect`: prints the result of one compiler stage as text or JSON.

use crate::arguments::{CompileArguments, Stage};
use crate::checkpoint::Directory;
use crate::compile::ignored_tensors;
use crate::compile::plan::plan;
use crate::error::Error;
use crate::terminal;
use forge_frontend::{Checkpoint, StoredMatrices, Tensors};
use forge_ir::units::{grouped, size};
use forge_planner::{Chip, Forecast, chip_table};
use serde_json::{Value, json};

/// Value of `--chip` that selects all chips.
const EVERY_CHIP: &str = "all";

/// `forge inspect`.
pub(crate) fn command(arguments: &CompileArguments, stage: Stage, as_json: bool) -> Result<(), Error> {
    let text = match stage {
        Stage::Checkpoint => checkpoint(arguments, as_json)?,
        Stage::Graph => {
            let planned = plan(arguments)?;
            let graph = &planned.opened.graph;
            if as_json { format!("{:#}\n", json!(**graph)) } else { graph.to_string() }
        }
        Stage::Plan if arguments.chip.as_deref() == Some(EVERY_CHIP) => {
            let plan = plan(&CompileArguments { chip: None, ..arguments.clone() })?.plan;
            let forecasts = || Chip::ALL.iter().map(|chip| Forecast::of(&plan, chip).to_json());
            if as_json { format!("{:#}\n", forecasts().collect::<Value>()) } else { chip_table(&plan) }
        }
        Stage::Plan if arguments.chip.is_some() => {
            let planned = plan(arguments)?;
            let forecast = Forecast::of(&planned.plan, planned.chip());
            if as_json { format!("{:#}\n", forecast.to_json()) } else { forecast.to_string() }
        }
        Stage::Plan => {
            let plan = plan(arguments)?.plan;
            if as_json { format!("{:#}\n", plan.to_json()) } else { plan.to_string() }
        }
        Stage::Kernels => {
            let plan = plan(arguments)?.plan;
            let header = format!("{}: every kernel that this model uses, and no other.", plan.model.name);
            match as_json {
                true => format!("{:#}\n", json!(plan.kernels.iter().map(|kernel| json!({"name": kernel.name, "spec": kernel.spec, "signature": forge_planner::signature(&kernel.decl), "text": kernel.text})).collect::<Vec<_>>())),
                false => forge_kernels::assemble(&plan.kernels, &header),
            }
        }
    };
    terminal::print(&text)
}

/// Files and tensors, printed even if the model is unsupported; unused tensors are included if it is
/// supported.
fn checkpoint(arguments: &CompileArguments, as_json: bool) -> Result<String, Error> {
    let checkpoint = Directory::find(&arguments.model)?;
    let root = checkpoint.root().to_owned();
    let tensors =
        Tensors::open(&checkpoint).map_err(|faults| Error::Faults { faults, root: root.clone() })?;
    let reading =
        forge_frontend::Options { name: String::new(), allow_unknown: arguments.ignore_config_key.clone() };
    let opened = forge_frontend::read_model(&checkpoint, &reading).ok();
    let files: Vec<(String, u64)> = checkpoint
        .files()
        .into_iter()
        .map(|file| {
            let bytes = checkpoint.len(&file).unwrap_or(0);
            (file, bytes)
        })
        .collect();
    if as_json {
        let files: std::collections::BTreeMap<_, _> = files.into_iter().collect();
        let mut all = json!({"root": root.display().to_string(), "files": files, "tensors": tensors});
        if let Some(opened) = &opened {
            all["ignored_tensors"] = ignored_tensors::to_json(opened);
            all["quantized_matrices"] = json!(opened.matrices);
        }
        return Ok(format!("{all:#}\n"));
    }
    let mut text = format!("checkpoint {}\n", root.display());
    for (file, bytes) in files {
        text.push_str(&format!("  {file:<32} {:>10}\n", size(bytes)));
    }
    text.push_str("tensors\n");
    let mut numbers = 0;
    for tensor in tensors.iter() {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        numbers += tensor.shape.iter().map(|size| *size as u64).product::<u64>();
        text.push_str(&format!(
            "  {:<5} {:<14} {}  ({})\n",
            tensor.dtype,
            format!("[{}]", shape.join(", ")),
            tensor.name,
            tensor.file
        ));
    }
    text.push_str(&format!("{} parameters\n", grouped(numbers)));
    if let Some(opened) = &opened {
        text.push_str(&quantized_matrices(&opened.matrices));
        text.push_str(&ignored_tensors::listed(opened));
    }
    Ok(text)
}

/// Quantized matrices that are stored as several tensors: their storage, and the format that they are repacked
/// or dequantized to.
fn quantized_matrices(matrices: &[StoredMatrices]) -> String {
    let mut text = String::new();
    for StoredMatrices { stored, format, exact, matrices, bytes, format_bytes } in matrices {
        let values = if *exact { "same values" } else { "rounded" };
        text.push_str(&format!(
            "  {matrices} in {stored} ({}) → {format} ({}), {values}\n",
            size(*bytes),
            size(*format_bytes)
        ));
    }
    if text.is_empty() { text } else { format!("quantized matrices\n{text}") }
}
