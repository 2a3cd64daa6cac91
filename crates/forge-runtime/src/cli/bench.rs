//! `bench`: measures prefill (`ppN`) and decode (`tgN`) in tok/s, in the columns and JSON keys of
//! llama-bench.
//!
//! With `--n-depth` a test runs with tokens already in the context (`@ dN`). Decode is also compared with the
//! memory bandwidth, because every decoded token reads all weights, and prefill with the peak compute rate.

use crate::cli::arguments::Bench;
use crate::cli::batched_bench;
use crate::cli::command::{Command, Context};
use crate::cli::output::{Outcome, log_info, print, print_json};
use crate::cli::sustained_bench;
use crate::engine::{Engine, Output};
use crate::load::finish_background_work;
use forge_device::device::{Device, PeakOps, RunAhead};
use forge_device::error::Error;
use forge_device::model::ModelInfo;
use forge_device::model::memory::format_bytes;
use forge_device::offload::CacheStats;
use serde_json::{Value, json};
use std::time::Instant;

impl Command for Bench {
    const NAME: &'static str = "bench";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        if !command.n_parallel.is_empty() {
            return batched_bench::run(command, context);
        }
        if let Some(minutes) = command.minutes {
            return sustained_bench::run(command, context, minutes);
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

/// Compares decode with the memory bandwidth. `bytes`: weights read per token; `best`: bandwidth in bytes/s.
fn bandwidth_line(bytes: u64, per_second: f64, best: f64) -> String {
    let reached = bytes as f64 * per_second;
    format!(
        "decode: {} of weights per token × {per_second:.1} tok/s = {}/s, {:.0}% of the memory bandwidth of {}/s",
        format_bytes(bytes),
        format_bytes(reached as u64),
        100.0 * reached / best,
        format_bytes(best as u64),
    )
}

/// Compares prefill with the peak compute rate. `operations` are per token.
fn compute_line(operations: u64, per_second: f64, best: PeakOps) -> String {
    let giga = |operations: f64| operations / 1e9;
    format!(
        "prefill: {:.1}M operations per token × {per_second:.1} tok/s = {:.0} GOP/s; the device reaches {:.0} GOP/s in int8 and \
         {:.0} GFLOP/s in f32",
        operations as f64 / 1e6,
        giga(operations as f64 * per_second),
        giga(best.int8),
        giga(best.f32),
    )
}

/// The columns that all tests have in common.
struct BenchHeader<'a> {
    info: &'static ModelInfo,
    model: String,
    device: &'a str,
    threads: usize,
    /// Length of the longest test name in characters.
    widest: usize,
}

/// The model name and the weight format that most of its bytes are in.
fn described(info: &ModelInfo) -> String {
    let most = info.formats.iter().max_by_key(|(_, bytes)| *bytes);
    format!("{} {}", info.name, most.map_or("", |(format, _)| format))
}

/// Total weight size in bytes.
fn size(info: &ModelInfo) -> u64 {
    info.formats.iter().map(|(_, bytes)| bytes).sum()
}

impl BenchHeader<'_> {
    /// The backend column: the first word of the device description.
    fn backend(&self) -> &str {
        self.device.split([' ', ',']).next().unwrap_or_default()
    }

    /// The table header.
    fn heading(&self) -> String {
        let (width, widest) = (self.model.chars().count().max(5), self.widest);
        format!(
            "| {:<width$} | {:>10} | {:>10} | {:<7} | {:>7} | {:>widest$} | {:>18} |\n\
             | {:-<width$} | ---------: | ---------: | ------- | ------: | {:->less$}: | -----------------: |\n",
            "model",
            "size",
            "params",
            "backend",
            "threads",
            "test",
            "t/s",
            "",
            "",
            less = widest - 1,
        )
    }

    /// One table row.
    fn row(&self, result: &Result) -> String {
        let (width, widest) = (self.model.chars().count().max(5), self.widest);
        let (gibibytes, parameters) =
            (size(self.info) as f64 / (1_u64 << 30) as f64, self.info.parameters as f64);
        let size = if gibibytes >= 1.0 {
            format!("{gibibytes:.2} GiB")
        } else {
            format!("{:.2} MiB", gibibytes * 1024.0)
        };
        let parameters = if parameters >= 1e9 {
            format!("{:.2} B", parameters / 1e9)
        } else {
            format!("{:.2} M", parameters / 1e6)
        };
        let speed = format!("{:.2} ± {:.2}", result.mean(), result.deviation());
        format!(
            "| {:<width$} | {size:>10} | {parameters:>10} | {:<7} | {:>7} | {:>widest$} | {speed:>18} |\n",
            self.model,
            self.backend(),
            self.threads,
            result.name(),
        )
    }
}

/// Measurements of one test.
struct Result {
    /// Tokens in the context before the test.
    depth: u32,
    /// Prompt length in tokens; 0 in a decode test.
    prompt: u32,
    /// Generated tokens; 0 in a prefill test.
    generated: u32,
    /// Speed of each repetition in tok/s.
    samples: Vec<f64>,
    /// Memory bandwidth samples in bytes/s.
    reads: Vec<f64>,
    /// Expert cache statistics, if experts are streamed.
    streamed: Option<ExpertStats>,
}

/// Expert cache statistics of one test, per token.
struct ExpertStats {
    /// Share of requested experts found in the cache.
    hit_rate: f64,
    /// Share of requested experts that had been prefetched.
    prefetch_hit_rate: f64,
    /// Bytes of requested experts not found.
    miss_bytes: f64,
    /// Bytes read from disk, wasted prefetches included.
    read_bytes: f64,
    /// Seconds in which the pass waited for the disk.
    stall_seconds: f64,
    /// Disk bandwidth in bytes/s.
    disk_bandwidth: f64,
    /// Speed in tok/s if the disk read the missed bytes and nothing else took time; `None` without misses.
    disk_bound: Option<f64>,
}

impl ExpertStats {
    /// Divides the counts by `tokens`. `disk_samples` are bandwidths in bytes/s.
    fn new(counts: CacheStats, tokens: u32, disk_samples: &[f64]) -> ExpertStats {
        let per_token = 1.0 / f64::from(tokens);
        let disk_bandwidth = mean(disk_samples).unwrap_or(0.0);
        ExpertStats {
            hit_rate: counts.hit_rate(),
            prefetch_hit_rate: counts.prefetch_hit_rate(),
            miss_bytes: counts.miss_bytes as f64 * per_token,
            read_bytes: counts.read_bytes as f64 * per_token,
            stall_seconds: counts.stall_time.as_secs_f64() * per_token,
            disk_bandwidth,
            disk_bound: counts.disk_bound(disk_bandwidth, u64::from(tokens)),
        }
    }

    fn summary(&self, per_second: f64) -> String {
        let mut text = format!("expert cache: {:.1}% hits", 100.0 * self.hit_rate);
        if let Some(bound) = self.disk_bound {
            text += &format!(
                ", {:.1}% prefetch hits; per token {} missed, {} read, {:.2} ms stalled; disk {}/s, disk bound {bound:.2} tok/s, \
                 {:.0}% of it reached",
                100.0 * self.prefetch_hit_rate,
                format_bytes(self.miss_bytes as u64),
                format_bytes(self.read_bytes as u64),
                1000.0 * self.stall_seconds,
                format_bytes(self.disk_bandwidth as u64),
                100.0 * per_second / bound,
            );
        }
        text
    }
}

impl Result {
    fn name(&self) -> String {
        let test =
            if self.prompt > 0 { format!("pp{}", self.prompt) } else { format!("tg{}", self.generated) };
        if self.depth > 0 { format!("{test} @ d{}", self.depth) } else { test }
    }

    fn mean(&self) -> f64 {
        mean(&self.samples).unwrap_or(f64::NAN)
    }

    /// The sample standard deviation; 0 for a single sample.
    fn deviation(&self) -> f64 {
        let (mean, count) = (self.mean(), self.samples.len());
        let squares: f64 = self.samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        (squares / count.saturating_sub(1).max(1) as f64).sqrt()
    }

    fn json(&self) -> Value {
        let mut value = json!({
            "test": self.name(),
            "n_prompt": self.prompt,
            "n_gen": self.generated,
            "n_depth": self.depth,
            "avg_ts": self.mean(),
            "stddev_ts": self.deviation(),
            "samples_ts": self.samples,
            "memory_bandwidth_samples": self.reads,
        });
        if let Some(streamed) = &self.streamed {
            value["expert_hit_rate"] = json!(streamed.hit_rate);
            value["expert_prefetch_hit_rate"] = json!(streamed.prefetch_hit_rate);
            value["expert_miss_bytes_per_token"] = json!(streamed.miss_bytes);
            value["expert_read_bytes_per_token"] = json!(streamed.read_bytes);
            value["expert_stall_seconds_per_token"] = json!(streamed.stall_seconds);
            value["disk_bytes_per_second"] = json!(streamed.disk_bandwidth);
            value["disk_bound_ts"] = json!(streamed.disk_bound);
        }
        value
    }
}

fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_bound_is_stated_with_the_share_reached() {
        let stalled = std::time::Duration::from_millis(500);
        let (wanted, bytes) = (1_000_000_000, 1_200_000_000);
        let counts = CacheStats {
            requests: 100,
            hits: 75,
            prefetch_hits: 5,
            miss_bytes: wanted,
            read_bytes: bytes,
            stall_time: stalled,
        };
        let line = ExpertStats::new(counts, 10, &[1.5e9, 2.5e9, 2e9]).summary(18.0);
        assert_eq!(
            line,
            "expert cache: 75.0% hits, 5.0% prefetch hits; per token 100 MB missed, 120 MB read, 50.00 ms stalled; disk 2.00 GB/s, \
             disk bound 20.00 tok/s, 90% of it reached"
        );
    }

    #[test]
    fn decode_is_compared_with_the_memory_bandwidth() {
        let line = bandwidth_line(1_170_000_000, 37.0, 52e9);
        assert_eq!(
            line,
            "decode: 1.17 GB of weights per token × 37.0 tok/s = 43.29 GB/s, 83% of the memory bandwidth of 52.00 GB/s"
        );
    }

    #[test]
    fn prefill_is_compared_with_the_peak_compute_rate() {
        let line = compute_line(221_600_000, 388.0, PeakOps { int8: 339e9, f32: 120e9 });
        assert_eq!(
            line,
            "prefill: 221.6M operations per token × 388.0 tok/s = 86 GOP/s; the device reaches 339 GOP/s in int8 and 120 GFLOP/s in f32"
        );
    }
}
