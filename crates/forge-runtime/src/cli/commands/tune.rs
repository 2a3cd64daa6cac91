//! `tune`: measures which kernel layouts are fastest on this GPU, and writes the table for `forge compile
//! --tuned`.

use crate::cli::arguments::Tune;
use crate::cli::command::{Command, Context};
use crate::cli::commands::bench::batched::decode_speeds;
use crate::cli::interrupt;
use crate::cli::output::{CommandExit, Outcome, log_info, print, print_error, print_json};
use crate::cli::progress::Progress;
use crate::load::DeviceKind;
use crate::measure::capture::CapturingDevice;
use crate::measure::tune::{Tuner, TuningResult, line, table};
use forge_device::atomic_write;
use forge_device::device::Device;
use forge_device::error::Error;
use serde_json::json;

impl Command for Tune {
    const NAME: &'static str = "tune";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let setup = common.load_options();
        if setup.device_kind(program) == DeviceKind::Cpu {
            return Err(Error::usage("tune needs a GPU: CPU kernels have a single layout").into());
        }
        let tunable = program.tunable.ok_or_else(|| {
            Error::usage(
                "this program has no candidate layouts: compile it with `forge compile --with-tuning`",
            )
        })?;
        let program = tunable.program(program);
        let engine = setup.engine(&program, Some(Tuner::context_needed(program.info) as usize))?;
        let mut engine = engine.map_device(CapturingDevice::new);
        let path = command.output.clone().unwrap_or_else(|| setup.path(&program, "tuned.json"));
        let unwritten = |error| Error::usage(format!("{}: {error}; choose another --output", path.display()));
        // An output path that cannot be written is an error before anything is measured.
        atomic_write::try_at(&path).map_err(unwritten)?;
        let tuning = Tuner::new(&mut engine, command.repetitions as usize)?;
        let device: &mut dyn Device = engine.device().device();
        let described = device.describe();
        let mut all: Vec<TuningResult> = Vec::new();
        let mut progress = Progress::new("tuning, layouts");
        interrupt::watch();
        for (index, choice) in tunable.choices.iter().enumerate() {
            progress.at(index, tunable.choices.len());
            let mut goes_on = || !interrupt::interrupted();
            if let Some(chosen) = tuning.measure_layouts(choice, device, &mut goes_on).map_err(Error::from)? {
                progress.clear();
                if !command.json {
                    print(&line(&chosen))?;
                }
                for wrong in &chosen.wrong {
                    let difference = &wrong.difference;
                    print_error(&format!(
                        "{}: output `{}` differs from the default kernel by {:.1e} relative error, above {:.1e}; layout rejected",
                        wrong.kernel, difference.buffer, difference.distance, difference.bound
                    ));
                }
                all.push(chosen);
            }
        }
        progress.clear();
        let was_interrupted = interrupt::interrupted();
        interrupt::unwatch();
        if all.is_empty() && was_interrupted {
            log_info(&"interrupted before the first measurement: nothing was written");
            return Err(CommandExit::Interrupted);
        }
        if all.is_empty() {
            return Err(Error::runtime("no kernel of this model has candidate layouts").into());
        }
        // The tuned engine's memory is needed.
        drop(engine);
        let mut written = table(program.info.name, &described, &all);
        if !was_interrupted {
            let speeds = decode_speeds(context)?;
            if !command.json {
                let speeds: Vec<String> =
                    speeds.iter().map(|(sequences, speed)| format!("{sequences}: {speed:.0}")).collect();
                print(&format!(
                    "decode with unchanged layouts, tok/s by sequences: {}\n",
                    speeds.join(", ")
                ))?;
            }
            let speed = |&(sequences, speed)| json!({ "sequences": sequences, "tokens_per_second": speed });
            written["decode"] = speeds.iter().map(speed).collect();
        }
        atomic_write::write(&path, &format!("{written:#}\n")).map_err(unwritten)?;
        if command.json {
            print_json(&written)?;
        }
        let faster = all.iter().filter(|chosen| chosen.has_faster_layout()).count();
        log_info(&format!(
            "{described}: {faster} of {} kernels have a faster layout; use forge compile ... --tuned {}",
            all.len(),
            path.display()
        ));
        if was_interrupted {
            log_info(&format!("interrupted: {} of {} measured", all.len(), tunable.choices.len()));
            return Err(CommandExit::Interrupted);
        }
        Ok(all.iter().all(|chosen| chosen.wrong.is_empty()))
    }
}
