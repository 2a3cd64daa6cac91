//! `bench`: measures prefill (`ppN`) and decode (`tgN`) in tok/s, in the columns and JSON keys of
//! llama-bench.
//!
//! With `--n-depth` a test runs with tokens already in the context (`@ dN`). Decode is also compared with the
//! memory bandwidth, because every decoded token reads all weights, and prefill with the peak compute rate.

pub(crate) mod batched;
mod result;
mod sustained;
mod table;

use crate::cli::arguments::Bench;
use crate::cli::command::{Command, Context};
use crate::cli::commands::bench::result::{ExpertStats, Result, mean};
use crate::cli::commands::bench::table::{BenchHeader, bandwidth_line, compute_line, described, size};
use crate::cli::output::{Outcome, log_info, print, print_json};
use crate::engine::{Engine, Output};
use crate::load::finish_background_work;
use forge_device::device::{Device, PeakOps, RunAhead};
use forge_device::error::Error;
use serde_json::json;
use std::time::Instant;

impl Command for Bench {
    const NAME: &'static str = "bench";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        if !command.n_parallel.is_empty() {
            return batched::run(command, context);
        }
        if let Some(minutes) = command.minutes {
            return sustained::run(command, context, minutes);
        }
        let prompts = command.n_prompt.iter().copied().filter(|&count| count > 0);
        let deepest = command.n_depth.iter().copied().max().unwrap_or(0);
        let needed = prompts.clone().chain([command.n_gen, 1]).max().unwrap_or(1).saturating_add(deepest);
        let mut engine = common.load_options().engine(program, Some(needed as usize))?;
        let device = engine.device().describe();
        let devices = engine.device().run_ahead();
        let run_ahead = RunAhead {
            tokens_per_pass: command.run_ahead.tokens_per_pass.unwrap_or(devices.tokens_per_pass),
            ..devices
        };
        let threads = common.threads.map(usize::from);
        let threads = threads.or_else(|| std::thread::available_parallelism().ok().map(|count| count.get()));
        let widest =
            8.max(if deepest > 0 { format!("pp{} @ d{deepest}", needed - deepest).len() } else { 0 });
        let about = BenchHeader {
            info: program.info,
            model: described(program.info),
            device: &device,
            threads: threads.unwrap_or(1),
            widest,
        };
        if !command.json {
            print(&about.heading())?;
        }
        finish_background_work(engine.device())?;
        let mut results = Vec::new();
        let of_depth = |depth: u32| {
            let prompts = prompts.clone().map(move |count| (depth, count, 0));
            prompts.chain((command.n_gen > 0).then_some((depth, 0, command.n_gen)))
        };
        for (depth, prompt, generated) in command.n_depth.iter().copied().flat_map(of_depth) {
            let mut samples = Vec::new();
            let mut streamed = None;
            // Disk and memory bandwidth vary on a shared machine: both are measured before and after each
            // counted run.
            let (mut disk, mut reads) = (Vec::new(), Vec::new());
            for repeat in 0..=command.repetitions {
                if repeat > 0 {
                    disk.extend(engine.device().measure_disk_bandwidth().map_err(Error::from)?);
                    if generated > 0 {
                        reads.extend(engine.device().measure_read_bandwidth().map_err(Error::from)?);
                    }
                }
                if repeat == 1 {
                    streamed = engine.device().expert_cache_stats();
                }
                fill_context(&mut engine, depth)?;
                let seconds = if prompt > 0 {
                    read_prompt(&mut engine, prompt)?
                } else if engine.device().expert_cache_stats().is_some() {
                    let ids = program.info.test_tokens((repeat + 1) * generated);
                    decode_given(&mut engine, &ids[(repeat * generated) as usize..])?
                } else {
                    // The warm-up run is short: enough passes for the device to have seen every kernel.
                    let warm_up = 8.max(4 * run_ahead.tokens_per_pass * run_ahead.passes as u32);
                    generate(
                        &mut engine,
                        if repeat == 0 { generated.min(warm_up) } else { generated },
                        run_ahead,
                    )?
                };
                if repeat > 0 {
                    samples.push(f64::from(prompt + generated) / seconds);
                }
            }
            let ids = command.repetitions * (prompt + generated);
            let streamed = streamed.zip(engine.device().expert_cache_stats());
            disk.extend(engine.device().measure_disk_bandwidth().map_err(Error::from)?);
            reads.extend(engine.device().measure_read_bandwidth().map_err(Error::from)?);
            let streamed = streamed.map(|(before, after)| ExpertStats::new(after.since(&before), ids, &disk));
            let result = Result { depth, prompt, generated, samples, reads, streamed };
            if !command.json {
                print(&about.row(&result))?;
            }
            results.push(result);
        }
        let compute_speed = engine.device().measure_peak_ops().map_err(Error::from)?;
        // The cost is of a pass of `chunk` rows.
        let operations = program.info.prefill.operations / u64::from(program.info.prefill_chunk.max(1));
        if command.json {
            print_json(&json!({
                "model_type": about.model,
                "model_size": size(program.info),
                "model_n_params": program.info.parameters,
                "backends": about.backend(),
                "device": device,
                "n_threads": about.threads,
                "bytes_per_token": program.info.decode.bytes_read,
                "memory_bandwidth": results.last().and_then(|last| mean(&last.reads)),
                "flops_per_prompt_token": operations,
                "peak_ops": compute_speed.map(|PeakOps { int8, f32 }| json!({"int8": int8, "f32": f32})),
                "results": results.iter().map(Result::json).collect::<Vec<_>>(),
            }))?;
        } else {
            log_info(&device);
            let generated = results.iter().find(|result| result.generated > 0 && result.depth == 0);
            if let Some((generated, best)) =
                generated.and_then(|result| Some((result.mean(), mean(&result.reads)?)))
            {
                log_info(&bandwidth_line(program.info.decode.bytes_read, generated, best));
            }
            let prompt =
                results.iter().find(|result| result.prompt > 0 && result.depth == 0).map(Result::mean);
            if let (Some(best), Some(prompt)) = (compute_speed, prompt) {
                log_info(&compute_line(operations, prompt, best));
            }
            for result in &results {
                if let Some(streamed) = &result.streamed {
                    log_info(&format!("{}: {}", result.name(), streamed.summary(result.mean())));
                }
            }
        }
        Ok(true)
    }
}

/// Fills slot 0 with exactly `depth` tokens.
fn fill_context<D: Device>(engine: &mut Engine<D>, depth: u32) -> std::result::Result<(), Error> {
    let kept = engine.truncate(0, depth);
    if kept < depth {
        engine.run_tokens(0, &engine.info().test_tokens(depth)[kept as usize..], Output::Nothing)?;
        engine.snapshot_state(0);
    }
    Ok(())
}

/// Seconds to prefill a prompt and choose the next token.
fn read_prompt<D: Device>(engine: &mut Engine<D>, count: u32) -> std::result::Result<f64, Error> {
    let ids = engine.info().test_tokens(count);
    let start = Instant::now();
    engine.run_tokens(0, &ids, Output::Greedy)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds to decode `count` tokens, each from the one before.
fn generate<D: Device>(
    engine: &mut Engine<D>,
    count: u32,
    run_ahead: RunAhead,
) -> std::result::Result<f64, Error> {
    let start = Instant::now();
    let mut decoder = engine.decode_multi_step(0, engine.info().bos.unwrap_or(0), run_ahead)?;
    for left in (1..=count as usize).rev() {
        decoder.next(left)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds to decode the given tokens one at a time. Greedy output soon repeats itself and requests the same
/// experts, so with streamed experts the input is fixed.
fn decode_given<D: Device>(engine: &mut Engine<D>, ids: &[u32]) -> std::result::Result<f64, Error> {
    let start = Instant::now();
    for id in ids {
        engine.run_tokens(0, &[*id], Output::Greedy)?;
    }
    Ok(start.elapsed().as_secs_f64())
}
