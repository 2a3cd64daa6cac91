//! `profile`: measures the time of each step of a pass, and its share of the memory bandwidth. Decode is
//! measured at the end of a full context, prefill from its start.

use crate::cli::arguments::Profile as Arguments;
use crate::cli::command::{Command, Context};
use crate::cli::interrupt;
use crate::cli::output::{CommandExit, Outcome, log_info, print, print_json};
use crate::cli::progress::Progress;
use crate::load::{LoadOptions, finish_background_work};
use crate::measure::capture::CapturingDevice;
use crate::measure::profile::{PeakBandwidth, ProfiledPass, json as profile_json, table, trace};
use forge_device::atomic_write;
use forge_device::device::Device;
use forge_device::error::Error;
use forge_device::model::memory::format_bytes;
use forge_device::weights::WeightFile;
use serde_json::json;
use std::path::Path;

/// The default context length in tokens.
const ORDINARY_LENGTH: u32 = 512;

impl Command for Arguments {
    const NAME: &'static str = "profile";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let length = common.ctx_size.unwrap_or(ORDINARY_LENGTH.min(program.info.context));
        let setup = LoadOptions {
            context: Some(length.max(command.n_prompt)),
            slots: command.n_parallel,
            ..common.load_options()
        };
        // A trace path that cannot be written is an error before anything is measured.
        if let Some(path) = &command.trace {
            atomic_write::try_at(path).map_err(|error| unwritten(path, &error))?;
        }
        let mut engine = setup.engine(program, None)?;
        finish_background_work(engine.device())?;
        let weights = WeightFile::open(&setup.path(program, "weights.safetensors"))?;
        let mut engine = engine.map_device(CapturingDevice::new);
        let mut subjects = vec![ProfiledPass::decode(&mut engine, length)?];
        if command.n_parallel > 1 {
            subjects.push(ProfiledPass::decode_batch(&mut engine, length, command.n_parallel)?);
        }
        if command.n_prompt > 0 {
            subjects.push(ProfiledPass::prefill(&mut engine, command.n_prompt)?);
        }
        let rounds = command.repetitions as usize;
        let (mut progress, mut profiles) = (Progress::new("rounds"), Vec::new());
        let all = subjects.len() * (rounds + 1);
        interrupt::watch();
        for (index, subject) in subjects.iter().enumerate() {
            let mut goes_on = |round: usize| {
                progress.at(index * (rounds + 1) + round, all);
                !interrupt::interrupted()
            };
            let device: &mut dyn Device = engine.device().device();
            profiles.extend(subject.measure(device, &weights, rounds, &mut goes_on).map_err(Error::from)?);
        }
        progress.clear();
        let was_interrupted = interrupt::interrupted();
        interrupt::unwatch();
        if was_interrupted {
            log_info(&"interrupted: results are partial");
        }
        if profiles.is_empty() {
            return Err(CommandExit::Interrupted);
        }
        if let Some(path) = &command.trace {
            atomic_write::write(path, &format!("{}\n", trace(&profiles)))
                .map_err(|error| unwritten(path, &error))?;
        }
        let device: &mut dyn Device = engine.device().device();
        let measured = device.measure_read_bandwidth().map_err(Error::from)?;
        let best = match measured {
            Some(bytes) => Some(PeakBandwidth { bytes, is_measured: true }),
            None => device.published_bandwidth().map(|bytes| PeakBandwidth { bytes, is_measured: false }),
        };
        if command.json {
            print_json(&json!({
                "device": device.describe(),
                "memory_bandwidth": measured,
                "published_memory_bandwidth": best.filter(|best| !best.is_measured).map(|best| best.bytes),
                "profiles": profiles.iter().map(profile_json).collect::<Vec<_>>(),
            }))?;
            return if was_interrupted { Err(CommandExit::Interrupted) } else { Ok(true) };
        }
        for profile in &profiles {
            print(&format!("{}\n", table(profile, best)))?;
        }
        log_info(&device.describe());
        match best {
            Some(PeakBandwidth { bytes, is_measured: true }) => {
                log_info(&format!("memory bandwidth: {}/s, measured", format_bytes(bytes as u64)));
            }
            Some(PeakBandwidth { bytes, is_measured: false }) => {
                log_info(&format!(
                    "memory bandwidth: {}/s, published by the vendor",
                    format_bytes(bytes as u64)
                ));
            }
            None => {}
        }
        log_info(&"each dispatch is timed in isolation, so the sum may exceed the time of the whole pass");
        if was_interrupted { Err(CommandExit::Interrupted) } else { Ok(true) }
    }
}

fn unwritten(path: &Path, error: &std::io::Error) -> Error {
    Error::usage(format!("--trace {}: {error}", path.display()))
}
