//! `tune`: which layouts of the model's products and of its attention this GPU is fastest with, as a table for `forge compile --tuned`.

use crate::atomic_write;
use crate::cli::arguments::Tune;
use crate::cli::command::{Command, Context};
use crate::cli::interrupt;
use crate::cli::output::{CommandExit, Outcome, complain, print, print_json, remark};
use crate::cli::progress::Progress;
use crate::device::Device;
use crate::error::Error;
use crate::load::DeviceKind;
use crate::measure::capture::CapturingDevice;
use crate::measure::tune::{Tuner, TuningResult, line, table};

impl Command for Tune {
    const NAME: &'static str = "tune";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let setup = common.setup();
        if setup.kind(program) == DeviceKind::Cpu {
            return Err(Error::usage(
                "a CPU has one layout of each kernel and nothing to choose from: tune is for GPUs",
            )
            .into());
        }
        let tunable = program.tunable.ok_or_else(|| {
            Error::usage(
                "this program has no layouts to choose from: compile it with forge compile --with-tuning",
            )
        })?;
        let program = tunable.program(program);
        let engine = setup.engine(&program, Some(Tuner::positions(&program.info) as usize))?;
        let mut engine = engine.on(CapturingDevice::new);
        let path = command.output.clone().unwrap_or_else(|| setup.path(&program, "tuned.json"));
        let unwritten = |error| Error::usage(format!("{}: {error}; choose another --output", path.display()));
        // What cannot be written is told before anything is measured.
        atomic_write::try_at(&path).map_err(unwritten)?;
        let tuning = Tuner::new(&mut engine, command.repetitions as usize)?;
        let device: &mut dyn Device = engine.device().device();
        let described = device.describe();
        let mut all: Vec<TuningResult> = Vec::new();
        let mut progress = Progress::new("layouts of kernels");
        interrupt::watch();
        for (index, choice) in tunable.choices.iter().enumerate() {
            progress.at(index, tunable.choices.len());
            let mut goes_on = || !interrupt::interrupted();
            if let Some(chosen) = tuning.choose(choice, device, &mut goes_on).map_err(Error::from)? {
                progress.clear();
                if !command.json {
                    print(&line(&chosen))?;
                }
                for wrong in &chosen.wrong {
                    let it = &wrong.difference;
                    complain(&format!(
                        "{}: what it writes to {} differs by {:.1e} of its size, and may by {:.1e}; it is not chosen",
                        wrong.kernel, it.buffer, it.distance, it.bound
                    ));
                }
                all.push(chosen);
            }
        }
        progress.clear();
        let was_interrupted = interrupt::interrupted();
        interrupt::leave();
        if all.is_empty() && was_interrupted {
            remark(&"interrupted before anything was measured: nothing is written");
            return Err(CommandExit::Interrupted);
        }
        if all.is_empty() {
            return Err(Error::runtime("no pass of the model has a kernel that there is a choice for").into());
        }
        let told = table(program.info.name, &described, &all);
        atomic_write::write(&path, &format!("{told:#}\n")).map_err(unwritten)?;
        if command.json {
            print_json(&told)?;
        }
        let faster = all.iter().filter(|chosen| chosen.changes()).count();
        remark(&format!(
            "{described}: {faster} of {} are faster otherwise; forge compile ... --tuned {}",
            all.len(),
            path.display()
        ));
        if was_interrupted {
            remark(&format!("interrupted: {} of {} were measured", all.len(), tunable.choices.len()));
            return Err(CommandExit::Interrupted);
        }
        Ok(all.iter().all(|chosen| chosen.wrong.is_empty()))
    }
}
