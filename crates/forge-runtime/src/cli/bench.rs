//! `bench`: how fast prompts are read (`ppN`) and ids generated (`tgN`), from nothing or behind a text that has been read
//! (`@ dN`), in the columns of llama-bench, so that what reads those reads these. An id that is generated needs all weights, so that its speed is told in bytes as well, beside what
//! the device reads at best.

use crate::cli::arguments::Bench;
use crate::cli::command::{Command, Context};
use crate::cli::output::{Outcome, print, print_json, remark};
use crate::device::{Device, PeakOps, RunAhead};
use crate::engine::{Engine, Output};
use crate::error::Error;
use crate::load::settle;
use crate::model::ModelInfo;
use crate::model::memory::human;
use crate::offload::CacheStats;
use serde_json::{Value, json};
use std::time::Instant;

impl Command for Bench {
    const NAME: &'static str = "bench";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let prompts = command.n_prompt.iter().copied().filter(|&count| count > 0);
        let deepest = command.n_depth.iter().copied().max().unwrap_or(0);
        let needed = prompts.clone().chain([command.n_gen, 1]).max().unwrap_or(1).saturating_add(deepest);
        let mut engine = common.setup().engine(program, Some(needed as usize))?;
        let device = engine.device().describe();
        let devices = engine.device().lead();
        let lead = RunAhead { ids: command.run_ahead.tokens_per_pass.unwrap_or(devices.ids), ..devices };
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
        settle(engine.device())?;
        let mut results = Vec::new();
        let of_depth = |depth: u32| {
            let prompts = prompts.clone().map(move |count| (depth, count, 0));
            prompts.chain((command.n_gen > 0).then_some((depth, 0, command.n_gen)))
        };
        for (depth, prompt, generated) in command.n_depth.iter().copied().flat_map(of_depth) {
            let mut samples = Vec::new();
            let mut streamed = None;
            // Neither a disk nor the memory of a machine that others have a part of is always as fast, so their speeds are measured
            // before and after each run that is counted.
            let (mut disk, mut reads) = (Vec::new(), Vec::new());
            for repeat in 0..=command.repetitions {
                if repeat > 0 {
                    disk.extend(engine.device().disk_speed().map_err(Error::from)?);
                    if generated > 0 {
                        reads.extend(engine.device().read_speed().map_err(Error::from)?);
                    }
                }
                if repeat == 1 {
                    streamed = engine.device().streamed();
                }
                stand_at(&mut engine, depth)?;
                let seconds = if prompt > 0 {
                    read_prompt(&mut engine, prompt)?
                } else if engine.device().streamed().is_some() {
                    let ids = program.info.some_ids((repeat + 1) * generated);
                    meet(&mut engine, &ids[(repeat * generated) as usize..])?
                } else {
                    // Some passes, so that a device has seen what it will be told.
                    let some = 8.max(4 * lead.ids * lead.passes as u32);
                    generate(&mut engine, if repeat == 0 { generated.min(some) } else { generated }, lead)?
                };
                if repeat > 0 {
                    samples.push(f64::from(prompt + generated) / seconds);
                }
            }
            let ids = command.repetitions * (prompt + generated);
            let streamed = streamed.zip(engine.device().streamed());
            disk.extend(engine.device().disk_speed().map_err(Error::from)?);
            reads.extend(engine.device().read_speed().map_err(Error::from)?);
            let streamed = streamed.map(|(before, after)| Streamed::of(after.since(&before), ids, &disk));
            let result = Result { depth, prompt, generated, samples, reads, streamed };
            if !command.json {
                print(&about.row(&result))?;
            }
            results.push(result);
        }
        let compute_speed = engine.device().compute_speed().map_err(Error::from)?;
        // Of a pass that takes as many rows as one can.
        let operations = program.info.prefill.operations / u64::from(program.info.chunk.max(1));
        if command.json {
            print_json(&json!({
                "model_type": about.model,
                "model_size": size(program.info),
                "model_n_params": program.info.parameters,
                "backends": about.backend(),
                "device": device,
                "n_threads": about.threads,
                "bytes_per_token": program.info.decode.bytes_read,
                "read_bytes_per_second": results.last().and_then(|last| mean(&last.reads)),
                "operations_per_prompt_token": operations,
                "operations_per_second": compute_speed.map(|PeakOps { codes, singles }| json!({"codes": codes, "singles": singles})),
                "results": results.iter().map(Result::json).collect::<Vec<_>>(),
            }))?;
        } else {
            remark(&device);
            let generated = results.iter().find(|result| result.generated > 0 && result.depth == 0);
            if let Some((generated, best)) =
                generated.and_then(|result| Some((result.mean(), mean(&result.reads)?)))
            {
                remark(&reading(program.info.decode.bytes_read, generated, best));
            }
            let prompt =
                results.iter().find(|result| result.prompt > 0 && result.depth == 0).map(Result::mean);
            if let (Some(best), Some(prompt)) = (compute_speed, prompt) {
                remark(&multiplying(operations, prompt, best));
            }
            for result in &results {
                if let Some(streamed) = &result.streamed {
                    remark(&format!("{}: {}", result.name(), streamed.told(result.mean())));
                }
            }
        }
        Ok(true)
    }
}

/// What ids are generated from, and how fast.
fn reading(bytes: u64, per_second: f64, best: f64) -> String {
    let reached = bytes as f64 * per_second;
    format!(
        "decode: {} of weights a token × {per_second:.1} tok/s = {}/s, {:.0}% of the {}/s that memory gives",
        human(bytes),
        human(reached as u64),
        100.0 * reached / best,
        human(best as u64),
    )
}

/// What a prompt is read with, and how fast.
fn multiplying(operations: u64, per_second: f64, best: PeakOps) -> String {
    let billions = |operations: f64| operations / 1e9;
    format!(
        "prefill: {:.1} million operations a token × {per_second:.1} tok/s = {:.0} GOP/s; the device can do {:.0} GOP/s in int8 and {:.0} \
         GFLOP/s in f32",
        operations as f64 / 1e6,
        billions(operations as f64 * per_second),
        billions(best.codes),
        billions(best.singles),
    )
}

/// What all tests have in common.
struct BenchHeader<'a> {
    info: &'static ModelInfo,
    model: String,
    device: &'a str,
    threads: usize,
    /// Characters of the longest name of a test.
    widest: usize,
}

/// The model, and the format that most of its bytes are in.
fn described(info: &ModelInfo) -> String {
    let most = info.formats.iter().max_by_key(|(_, bytes)| *bytes);
    format!("{} {}", info.name, most.map_or("", |(format, _)| format))
}

/// Bytes of all weights.
fn size(info: &ModelInfo) -> u64 {
    info.formats.iter().map(|(_, bytes)| bytes).sum()
}

impl BenchHeader<'_> {
    /// What computes, in a word.
    fn backend(&self) -> &str {
        self.device.split([' ', ',']).next().unwrap_or_default()
    }

    /// The titles of the columns.
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

    /// A test.
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

/// Tokens per second of one test.
struct Result {
    /// Ids before it begins.
    depth: u32,
    /// Ids of the prompt, or of what was generated: one of them is 0.
    prompt: u32,
    generated: u32,
    samples: Vec<f64>,
    /// Bytes a second that memory gave, whenever it was measured.
    reads: Vec<f64>,
    /// Where experts are streamed.
    streamed: Option<Streamed>,
}

/// What an id took of the disk.
struct Streamed {
    hits: f64,
    /// The share of experts that had been foreseen.
    guesses: f64,
    /// Bytes of experts that were asked for and not found.
    wanted: f64,
    /// Those that were read, with what was foreseen in vain.
    bytes: f64,
    /// Seconds in which nothing was computed.
    stalled: f64,
    /// Bytes a second that the disk gives where nothing else is done.
    disk: f64,
    /// Ids a second that it permits.
    permitted: Option<f64>,
}

impl Streamed {
    /// `disk`: its speed whenever it was measured.
    fn of(counts: CacheStats, ids: u32, disk: &[f64]) -> Streamed {
        let each = 1.0 / f64::from(ids);
        let disk = mean(disk).unwrap_or(0.0);
        Streamed {
            hits: counts.hits(),
            guesses: counts.guesses(),
            wanted: counts.wanted as f64 * each,
            bytes: counts.bytes as f64 * each,
            stalled: counts.stalled.as_secs_f64() * each,
            disk,
            permitted: counts.permitted(disk, u64::from(ids)),
        }
    }

    fn told(&self, per_second: f64) -> String {
        let mut text = format!("{:.1}% of experts found in memory", 100.0 * self.hits);
        if let Some(permitted) = self.permitted {
            text += &format!(
                " and {:.1}% foreseen, {} of others wanted, {} read and {:.2} ms waited an id; the disk gives {} a second, enough for \
                 {permitted:.2} ids, of which {:.0}% are reached",
                100.0 * self.guesses,
                human(self.wanted as u64),
                human(self.bytes as u64),
                1000.0 * self.stalled,
                human(self.disk as u64),
                100.0 * per_second / permitted,
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

    /// The standard deviation of the samples; 0 of one.
    fn deviation(&self) -> f64 {
        let (mean, count) = (self.mean(), self.samples.len());
        let squares: f64 = self.samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        (squares / count.saturating_sub(1).max(1) as f64).sqrt()
    }

    fn json(&self) -> Value {
        let mut told = json!({
            "test": self.name(),
            "n_prompt": self.prompt,
            "n_gen": self.generated,
            "n_depth": self.depth,
            "avg_ts": self.mean(),
            "stddev_ts": self.deviation(),
            "samples_ts": self.samples,
            "samples_read_bytes_per_second": self.reads,
        });
        if let Some(streamed) = &self.streamed {
            told["hit_rate"] = json!(streamed.hits);
            told["foreseen_rate"] = json!(streamed.guesses);
            told["wanted_bytes_per_token"] = json!(streamed.wanted);
            told["disk_bytes_per_token"] = json!(streamed.bytes);
            told["disk_bytes_per_second"] = json!(streamed.disk);
            told["stalled_seconds_per_token"] = json!(streamed.stalled);
            told["permitted_ts"] = json!(streamed.permitted);
        }
        told
    }
}

fn mean(of: &[f64]) -> Option<f64> {
    (!of.is_empty()).then(|| of.iter().sum::<f64>() / of.len() as f64)
}

/// Has the slot hold a text of so many ids, and nothing after them.
fn stand_at<D: Device>(engine: &mut Engine<D>, depth: u32) -> std::result::Result<(), Error> {
    let kept = engine.truncate(0, depth);
    if kept < depth {
        engine.feed(0, &engine.info().some_ids(depth)[kept as usize..], Output::Nothing)?;
        engine.remember(0);
    }
    Ok(())
}

/// Seconds to read a prompt and know the next id.
fn read_prompt<D: Device>(engine: &mut Engine<D>, count: u32) -> std::result::Result<f64, Error> {
    let ids = engine.info().some_ids(count);
    let start = Instant::now();
    engine.feed(0, &ids, Output::Next)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds to generate ids, each of the one before.
fn generate<D: Device>(
    engine: &mut Engine<D>,
    count: u32,
    lead: RunAhead,
) -> std::result::Result<f64, Error> {
    let start = Instant::now();
    let mut chain = engine.chain(0, engine.info().begin.unwrap_or(0), lead)?;
    for left in (1..=count as usize).rev() {
        chain.next(left)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds to meet ids one after the other, each with the next one chosen. What a model writes when it always takes the likeliest
/// soon repeats itself, and so asks for the same experts: where these are streamed, texts are told to it.
fn meet<D: Device>(engine: &mut Engine<D>, ids: &[u32]) -> std::result::Result<f64, Error> {
    let start = Instant::now();
    for id in ids {
        engine.feed(0, &[*id], Output::Next)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_disk_permits_is_told_beside_what_is_reached() {
        let stalled = std::time::Duration::from_millis(500);
        let (wanted, bytes) = (1_000_000_000, 1_200_000_000);
        let counts = CacheStats { asked: 100, found: 75, foreseen: 5, wanted, bytes, stalled };
        let said = Streamed::of(counts, 10, &[1.5e9, 2.5e9, 2e9]).told(18.0);
        assert_eq!(
            said,
            "75.0% of experts found in memory and 5.0% foreseen, 100 MB of others wanted, 120 MB read and 50.00 ms waited an id; the disk gives \
             2.00 GB a second, enough for 20.00 ids, of which 90% are reached"
        );
    }

    #[test]
    fn bytes_are_told_beside_what_can_be_read() {
        let said = reading(1_170_000_000, 37.0, 52e9);
        assert_eq!(
            said,
            "decode: 1.17 GB of weights a token × 37.0 tok/s = 43.29 GB/s, 83% of the 52.00 GB/s that memory gives"
        );
    }

    #[test]
    fn operations_have_units_and_the_device_s_best_beside_them() {
        let said = multiplying(221_600_000, 388.0, PeakOps { codes: 339e9, singles: 120e9 });
        assert_eq!(
            said,
            "prefill: 221.6 million operations a token × 388.0 tok/s = 86 GOP/s; the device can do 339 GOP/s in int8 and 120 GFLOP/s in f32"
        );
    }
}
