//! `bench -b`: decode of several sequences in parallel, in the columns and JSON keys of llama-batched-bench.
//!
//! Each sequence has its own slot and prompt. Its greedy tokens must be the same for every number of parallel
//! sequences that the device decodes with unchanged results, so they are compared.

use crate::cli::arguments::Bench;
use crate::cli::command::Context;
use crate::cli::output::{Outcome, log_info, print, print_json};
use crate::engine::{Engine, Output, OutputKind, Row};
use crate::load::finish_background_work;
use forge_device::device::Device;
use forge_device::error::Error;
use serde_json::{Value, json};
use std::time::Instant;

/// Numbers of sequences for which [`decode_speeds`] measures decode.
#[cfg(feature = "tune")]
const SEQUENCES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The measurement of one number of parallel sequences.
struct Measurement {
    parallel: u32,
    prompt: u32,
    generated: u32,
    /// Seconds of all prompts.
    prompt_seconds: f64,
    /// Seconds of decode.
    decode_seconds: f64,
    /// The generated tokens of each sequence.
    tokens: Vec<Vec<u32>>,
}

pub(crate) fn run(command: &Bench, context: &Context<'_>) -> Outcome {
    let prompt = command.n_prompt.first().copied().unwrap_or(1).max(1);
    let generated = command.n_gen.max(1);
    let mut options = context.common.load_options();
    options.slots = command.n_parallel.iter().copied().max().unwrap_or(1);
    let mut engine = options.engine(context.program, Some((prompt + generated) as usize))?;
    finish_background_work(engine.device())?;
    if !command.json {
        print(HEADING)?;
    }
    let mut measured: Vec<Measurement> = Vec::new();
    for &parallel in &command.n_parallel {
        // Enough passes for the device to have seen every kernel.
        measure(&mut engine, parallel, prompt, generated.min(8))?;
        let mut runs = Vec::new();
        for _ in 0..command.repetitions {
            runs.push(measure(&mut engine, parallel, prompt, generated)?);
        }
        runs.sort_by(|a, b| a.decode_seconds.total_cmp(&b.decode_seconds));
        let median = runs.swap_remove(runs.len() / 2);
        if !command.json {
            print(&median.row())?;
        }
        measured.push(median);
    }
    let differing = measured.iter().filter(|run| !run.agrees(&measured[0])).map(|run| run.parallel);
    let differing: Vec<u32> = differing.collect();
    if command.json {
        let results: Vec<Value> = measured.iter().map(Measurement::json).collect();
        print_json(&json!({
            "device": engine.device().describe(),
            "n_kv_max": engine.context(),
            "results": results,
            "differing_from_first": differing,
        }))?;
    } else {
        log_info(&engine.device().describe());
        if !differing.is_empty() {
            log_info(&format!(
                "the greedy tokens of a sequence differ between {} and {differing:?} sequences in parallel",
                measured[0].parallel
            ));
        }
    }
    Ok(true)
}

/// Tokens per second of decode, of all sequences together, by their number.
#[cfg(feature = "tune")]
pub(crate) fn decode_speeds(context: &Context<'_>) -> Result<Vec<(u32, f64)>, Error> {
    let (prompt, generated) = (64, 32);
    let mut options = context.common.load_options();
    options.slots = SEQUENCES.into_iter().max().unwrap_or(1);
    let mut engine = options.engine(context.program, Some((prompt + generated) as usize))?;
    finish_background_work(engine.device())?;
    let speed = |parallel| {
        measure(&mut engine, parallel, prompt, 8)?;
        Ok((parallel, measure(&mut engine, parallel, prompt, generated)?.speeds()[1]))
    };
    SEQUENCES.into_iter().map(speed).collect()
}

/// Prefills a prompt in each slot, one after another, and decodes all sequences together, as far as a pass has rows for
/// them.
fn measure<D: Device>(
    engine: &mut Engine<D>,
    parallel: u32,
    prompt: u32,
    generated: u32,
) -> Result<Measurement, Error> {
    for slot in 0..parallel {
        engine.truncate(slot, 0);
    }
    let ids = engine.info().test_tokens(prompt + parallel);
    let start = Instant::now();
    let mut next = Vec::new();
    for slot in 0..parallel {
        let prompt = &ids[slot as usize..][..prompt as usize];
        next.extend(engine.run_tokens(slot, prompt, Output::Greedy)?.next_tokens);
    }
    let prompt_seconds = start.elapsed().as_secs_f64();
    let most = engine.info().prefill_chunk as usize;
    let mut tokens: Vec<Vec<u32>> = next.iter().map(|id| vec![*id]).collect();
    let start = Instant::now();
    for position in prompt..prompt + generated {
        let rows: Vec<Row> = (0..).zip(&next).map(|(slot, &id)| Row { id, slot, position }).collect();
        next.clear();
        for rows in rows.chunks(most) {
            let wanted: Vec<u32> = (0..rows.len() as u32).collect();
            next.extend(engine.run_batch(rows, &wanted, OutputKind::Greedy)?.next_tokens);
        }
        tokens.iter_mut().zip(&next).for_each(|(tokens, id)| tokens.push(*id));
    }
    let decode_seconds = start.elapsed().as_secs_f64();
    Ok(Measurement { parallel, prompt, generated, prompt_seconds, decode_seconds, tokens })
}

const HEADING: &str = "\
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
";

impl Measurement {
    /// Tokens in the context at the end, of all sequences.
    fn cached(&self) -> u32 {
        self.parallel * (self.prompt + self.generated)
    }

    /// Tokens per second: prompt, decode, and both together.
    fn speeds(&self) -> [f64; 3] {
        let (prompt, generated) = (self.parallel * self.prompt, self.parallel * self.generated);
        [
            f64::from(prompt) / self.prompt_seconds,
            f64::from(generated) / self.decode_seconds,
            f64::from(prompt + generated) / (self.prompt_seconds + self.decode_seconds),
        ]
    }

    /// Whether the sequences that both have are equal.
    fn agrees(&self, other: &Measurement) -> bool {
        self.tokens.iter().zip(&other.tokens).all(|(a, b)| a == b)
    }

    fn row(&self) -> String {
        let Measurement { parallel, prompt, generated, prompt_seconds, decode_seconds, .. } = self;
        let [of_prompt, of_decode, of_both] = self.speeds();
        format!(
            "| {prompt:>5} | {generated:>6} | {parallel:>4} | {:>6} | {prompt_seconds:>8.3} | {of_prompt:>8.2} | \
             {decode_seconds:>8.3} | {of_decode:>8.2} | {:>8.3} | {of_both:>8.2} |\n",
            self.cached(),
            prompt_seconds + decode_seconds,
        )
    }

    fn json(&self) -> Value {
        let [of_prompt, of_decode, of_both] = self.speeds();
        json!({
            "pp": self.prompt,
            "tg": self.generated,
            "pl": self.parallel,
            "n_kv": self.cached(),
            "t_pp": self.prompt_seconds,
            "speed_pp": of_prompt,
            "t_tg": self.decode_seconds,
            "speed_tg": of_decode,
            "t": self.prompt_seconds + self.decode_seconds,
            "speed": of_both,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_columns_of_llama_batched_bench() {
        let tokens = vec![vec![1, 2]; 4];
        let run = Measurement {
            parallel: 4,
            prompt: 512,
            generated: 128,
            prompt_seconds: 2.0,
            decode_seconds: 0.5,
            tokens,
        };
        assert_eq!(
            run.row(),
            "|   512 |    128 |    4 |   2560 |    2.000 |  1024.00 |    0.500 |  1024.00 |    2.500 |  1024.00 |\n"
        );
        assert_eq!(run.row().len(), HEADING.lines().next().unwrap().len() + 1);
    }

    #[test]
    fn sequences_are_compared_as_far_as_both_have_them() {
        let run = |tokens: Vec<Vec<u32>>| Measurement {
            parallel: tokens.len() as u32,
            prompt: 1,
            generated: 1,
            prompt_seconds: 1.0,
            decode_seconds: 1.0,
            tokens,
        };
        let first = run(vec![vec![1, 2]]);
        assert!(run(vec![vec![1, 2], vec![3, 4]]).agrees(&first));
        assert!(!run(vec![vec![1, 3], vec![3, 4]]).agrees(&first));
    }
}
