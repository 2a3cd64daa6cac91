//! `generate`: continues a text.
//!
//! Text streams to standard output; what was done, and how fast, goes to standard error when it has ended.

use super::super::device::Device;
use super::super::engine::{Engine, Want};
use super::super::failure::Failure;
use super::super::model::Model;
use super::super::sampler::Sampler;
use super::super::text::{Stops, Text};
use super::Program;
use super::arguments::{Common, Generate};
use super::interrupt;
use super::load;
use super::output::{Ended, Outcome, print, print_json};
use serde_json::json;
use std::io::Read;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Continues the text.
pub(super) fn run<M: Model>(program: &Program, common: &Common, command: &Generate) -> Outcome {
    let sampling = command.sampling.sampling();
    sampling.check().map_err(Failure::Misuse)?;
    let (ids, text) = prompt(program, common, command)?;
    let needed = (ids.len() + command.count as usize).min(M::INFO.context as usize).max(ids.len() + 1);
    let mut engine = load::engine::<M>(program, common, Some(needed))?;
    let seed = command.sampling.seed.unwrap_or_else(new_seed);
    interrupt::watch();
    let mut writer = Writer {
        text: text.as_ref().map(Text::stream),
        stops: Stops::new(command.stop.clone()),
        all: String::new(),
        silent: command.json,
    };
    let generated = continue_text(&mut engine, command, &ids, Sampler::new(sampling, seed), &mut writer)?;
    let Generated { new, reason, prompt_time, time } = &generated;
    let has_text = writer.text.is_some();
    let whole = writer.finish(reason)?;
    let rate = |count: usize, time: Duration| count as f64 / time.as_secs_f64().max(1e-9);
    // The first new id comes of the prompt's pass; the others of a pass each.
    let steps = new.len().saturating_sub(1);
    if command.json {
        print_json(&json!({
            "ids": new,
            "text": has_text.then_some(whole),
            "end": reason,
            "seed": seed,
            "timings": {
                "prompt_tokens": ids.len(),
                "prompt_seconds": prompt_time.as_secs_f64(),
                "prompt_tokens_per_second": rate(ids.len(), *prompt_time),
                "tokens": new.len(),
                "seconds": time.as_secs_f64(),
                "tokens_per_second": rate(steps, *time),
            },
        }))?;
    } else {
        print("\n")?;
        let drawn = if sampling.is_greedy() { String::new() } else { format!(" · seed {seed}") };
        eprintln!(
            "prompt {} tokens, {:.1}/s · generated {} tokens, {:.1}/s · {reason}{drawn} · {}",
            ids.len(),
            rate(ids.len(), *prompt_time),
            new.len(),
            rate(steps, *time),
            engine.device().describe(),
        );
    }
    Ok(true)
}

/// The prompt's ids, and the tokenizer, which ids alone can do without.
fn prompt(
    program: &Program,
    common: &Common,
    command: &Generate,
) -> Result<(Vec<u32>, Option<Text>), Failure> {
    let Some(prompt) = &command.prompt else {
        let text = match load::text(program, common) {
            Ok(text) => Some(text),
            Err(failure) if !command.stop.is_empty() => return Err(failure),
            Err(_) => None,
        };
        return Ok((command.ids.clone(), text));
    };
    let text = load::text(program, common)?;
    let ids = if prompt == "-" {
        let mut read = String::new();
        std::io::stdin()
            .read_to_string(&mut read)
            .map_err(|error| Failure::misuse(format!("standard input: {error}")))?;
        text.encode(&read, true)?
    } else {
        text.encode(prompt, true)?
    };
    if ids.is_empty() {
        return Err(Failure::misuse("the prompt is empty, and the tokenizer adds nothing to it"));
    }
    Ok((ids, Some(text)))
}

/// What came of a run.
struct Generated {
    new: Vec<u32>,
    reason: &'static str,
    prompt_time: Duration,
    time: Duration,
}

/// The loop: feed, choose, show, until something ends it.
fn continue_text<M: Model, D: Device>(
    engine: &mut Engine<M, D>,
    command: &Generate,
    ids: &[u32],
    mut sampler: Sampler,
    writer: &mut Writer,
) -> Result<Generated, Ended> {
    let greedy = command.sampling.sampling().is_greedy();
    let want = if greedy { Want::Next } else { Want::Logits };
    let mut choose = |engine: &mut Engine<M, D>, ids: &[u32]| -> Result<u32, Failure> {
        let fed = engine.feed(0, ids, want)?;
        match (fed.next.last(), fed.logits.last()) {
            (Some(next), _) => Ok(*next),
            (None, Some(logits)) => Ok(sampler.draw(logits)),
            (None, None) => Err(Failure::wrong("the device gave no logits")),
        }
    };
    let start = Instant::now();
    let mut next = choose(engine, ids)?;
    let prompt_time = start.elapsed();
    let start = Instant::now();
    let mut new = Vec::new();
    let reason = loop {
        new.push(next);
        let ends = M::INFO.end.contains(&next) && !command.ignore_eos;
        if ends {
            break "end of text";
        }
        if writer.push(next)? {
            break "stop string";
        }
        if new.len() >= command.count as usize {
            break "length";
        }
        if engine.length(0) >= engine.context() {
            break "context full";
        }
        if interrupt::interrupted() {
            break "interrupted";
        }
        next = choose(engine, &[next])?;
    };
    Ok(Generated { new, reason, prompt_time, time: start.elapsed() })
}

/// Shows ids as they come: as text, or as numbers where there is no tokenizer.
struct Writer {
    text: Option<super::super::text::TextStream>,
    stops: Stops,
    all: String,
    silent: bool,
}

impl Writer {
    /// Shows an id; says whether a stop string has been met.
    fn push(&mut self, id: u32) -> Result<bool, Ended> {
        let Some(text) = &mut self.text else {
            self.show(&format!("{id} "))?;
            return Ok(false);
        };
        let piece = text.push(id)?;
        let (shown, met) = self.stops.push(&piece);
        self.show(&shown)?;
        Ok(met)
    }

    fn show(&mut self, text: &str) -> Result<(), Ended> {
        self.all.push_str(text);
        if self.silent || text.is_empty() { Ok(()) } else { print(text) }
    }

    /// Shows what was held back, and gives all that was shown.
    fn finish(mut self, reason: &str) -> Result<String, Ended> {
        if reason != "stop string" {
            let rest = self.text.take().map_or_else(|| Ok(String::new()), |text| text.finish())?;
            let (shown, met) = self.stops.push(&rest);
            self.show(&shown)?;
            if !met {
                let held = std::mem::replace(&mut self.stops, Stops::new(Vec::new())).finish();
                self.show(&held)?;
            }
        }
        Ok(self.all)
    }
}

/// A seed that nobody has used: the time, in nanoseconds.
fn new_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}
