//! `bench`: how fast prompts are read (`ppN`) and ids generated (`tgN`).

use super::super::device::Device;
use super::super::engine::{Engine, Want};
use super::super::failure::Failure;
use super::super::model::Model;
use super::super::open::Program;
use super::arguments::{Bench, Common};
use super::output::{Outcome, print, print_json};
use serde_json::{Value, json};
use std::time::Instant;

/// Measures, after one run that is not counted.
pub(super) fn run<M: Model>(program: &Program, common: &Common, command: &Bench) -> Outcome {
    let prompts = command.prompt.iter().copied().filter(|&count| count > 0);
    let needed = prompts.clone().chain([command.count, 1]).max().unwrap_or(1);
    let mut engine = common.setup().engine::<M>(program, Some(needed as usize))?;
    let device = engine.device().describe();
    let mut results = Vec::new();
    let prompts = prompts.map(|count| ("pp", count));
    for (kind, count) in prompts.chain((command.count > 0).then_some(("tg", command.count))) {
        let mut samples = Vec::new();
        for repeat in 0..=command.repeat {
            let seconds = if kind == "pp" {
                read_prompt(&mut engine, count)?
            } else {
                generate(&mut engine, if repeat == 0 { count.min(8) } else { count })?
            };
            if repeat > 0 {
                samples.push(f64::from(count) / seconds);
            }
        }
        let result = Result { test: format!("{kind}{count}"), samples };
        if !command.json {
            print(&format!(
                "{:>8} {:>10.2} ± {:.2} tokens/s\n",
                result.test,
                result.mean(),
                result.deviation()
            ))?;
        }
        results.push(result);
    }
    if command.json {
        let threads = common.threads.map(usize::from);
        let threads = threads.or_else(|| std::thread::available_parallelism().ok().map(|count| count.get()));
        print_json(&json!({
            "device": device,
            "threads": threads,
            "results": results.iter().map(Result::json).collect::<Vec<_>>(),
        }))?;
    } else {
        eprintln!("{device}");
    }
    Ok(true)
}

/// Tokens per second of one test.
struct Result {
    test: String,
    samples: Vec<f64>,
}

impl Result {
    fn mean(&self) -> f64 {
        self.samples.iter().sum::<f64>() / self.samples.len() as f64
    }

    /// The standard deviation of the samples; 0 of one.
    fn deviation(&self) -> f64 {
        let (mean, count) = (self.mean(), self.samples.len());
        let squares: f64 = self.samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        (squares / count.saturating_sub(1).max(1) as f64).sqrt()
    }

    fn json(&self) -> Value {
        json!({
            "test": self.test,
            "tokens_per_second": self.mean(),
            "stddev": self.deviation(),
            "samples": self.samples,
        })
    }
}

/// Ids all over the vocabulary, the same every time.
fn some_ids<M: Model>(count: u32) -> Vec<u32> {
    (0..count).map(|i| (u64::from(i) * 2_654_435_761 % u64::from(M::INFO.vocabulary)) as u32).collect()
}

/// Seconds to read a prompt and know the next id.
fn read_prompt<M: Model, D: Device>(
    engine: &mut Engine<M, D>,
    count: u32,
) -> std::result::Result<f64, Failure> {
    engine.truncate(0, 0);
    let ids = some_ids::<M>(count);
    let start = Instant::now();
    engine.feed(0, &ids, Want::Next)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds to generate ids one by one, from an empty slot.
fn generate<M: Model, D: Device>(engine: &mut Engine<M, D>, count: u32) -> std::result::Result<f64, Failure> {
    engine.truncate(0, 0);
    let mut next = M::INFO.begin.unwrap_or(0);
    let start = Instant::now();
    for _ in 0..count {
        next = engine.feed(0, &[next], Want::Next)?.next.last().copied().unwrap_or(0);
    }
    Ok(start.elapsed().as_secs_f64())
}
