//! The stages that write nothing: open, read, plan.

use crate::arguments::CompileArguments;
use crate::checkpoint::Directory;
use crate::compile::options::{Choice, name, options};
use crate::compile::{ignored_tensors, messages};
use crate::error::Error;
use crate::quantize::auto;
use crate::quantize::calibration::{self, Calibration};
use forge_frontend::LoadedCheckpoint;
use forge_ir::Graph;
use forge_planner::{Chip, Options, Plan};

/// A checkpoint that has been opened, read and planned.
pub(crate) struct PlannedModel {
    pub(crate) checkpoint: Directory,
    pub(crate) opened: LoadedCheckpoint,
    pub(crate) options: Options,
    pub(crate) plan: Plan,
    pub(crate) name: String,
    /// Activation statistics, if formats have been chosen with them.
    pub(super) calibration: Option<Calibration>,
}

impl PlannedModel {
    /// The chip that predictions are for: `--chip`, or the default.
    pub(crate) fn chip(&self) -> &'static Chip {
        self.options.chip.unwrap_or_else(Chip::common)
    }
}

/// Opens, reads and plans a model.
pub(crate) fn plan(arguments: &CompileArguments) -> Result<PlannedModel, Error> {
    let (mut options, choice) = options(arguments)?;
    let checkpoint = Directory::find(&arguments.model)?;
    let name = name(arguments, &checkpoint)?;
    let root = checkpoint.root().to_owned();
    let faults = |faults| Error::Faults { faults, root: root.clone() };
    let frontend =
        forge_frontend::Options { name: name.clone(), allow_unknown: arguments.ignore_config_key.clone() };
    let mut opened = forge_frontend::read_model(&checkpoint, &frontend).map_err(faults)?;
    messages::print_model(&opened);
    ignored_tensors::print(&opened, arguments.verbose);
    let mut calibration = None;
    options = match choice {
        Some(Choice::Bits(bits)) => {
            calibration = calibration::collect(arguments, &opened, &checkpoint)?;
            auto::choose(&mut opened, &checkpoint, calibration.as_ref(), options, bits)?
        }
        Some(Choice::Mix(mix)) => mix.choose(&mut opened, &checkpoint, options)?,
        None => options,
    };
    opened.graph = forge_planner::untie(opened.graph, &options).map_err(faults)?;
    let plan = forge_planner::plan(&opened.graph, &options).map_err(faults)?;
    Ok(PlannedModel { checkpoint, opened, options, plan, name, calibration })
}

/// Number of parameters of the model.
pub(crate) fn parameters(graph: &Graph) -> u64 {
    graph.weights.iter().map(|weight| weight.shape.iter().map(|size| *size as u64).product::<u64>()).sum()
}
