//! `bench --minutes`: decode without a pause, with the speed of each minute. A machine that gets hot slows down.

use crate::cli::arguments::Bench;
use crate::cli::command::Context;
use crate::cli::output::{CommandExit, Outcome, print, print_json};
use crate::engine::Engine;
use crate::load::finish_background_work;
use forge_device::device::{Device, RunAhead};
use serde_json::json;
use std::time::{Duration, Instant};

/// Decodes for that many minutes and prints the speed of each.
pub(crate) fn run(command: &Bench, context: &Context<'_>, minutes: u32) -> Outcome {
    let generated = command.n_gen.max(1);
    let mut engine = context.common.load_options().engine(context.program, Some(generated as usize))?;
    let devices = engine.device().run_ahead();
    let tokens_per_pass = command.run_ahead.tokens_per_pass.unwrap_or(devices.tokens_per_pass);
    let run_ahead = RunAhead { tokens_per_pass, ..devices };
    finish_background_work(engine.device())?;
    // A short run, so that the device has seen every kernel.
    let mut clock = Minutes::new(Duration::ZERO, 1);
    decode(&mut engine, 8, run_ahead, &mut clock, &mut |_, _| Ok(()))?;
    let mut clock = Minutes::new(Duration::from_secs(command.interval.into()), minutes);
    let mut speeds = Vec::new();
    let mut report = |minute: usize, speed: f64| {
        speeds.push(speed);
        if command.json { Ok(()) } else { print(&format!("minute {minute:>3}: {speed:.2} tok/s\n")) }
    };
    decode(&mut engine, generated, run_ahead, &mut clock, &mut report)?;
    let device = engine.device().describe();
    let last_to_first = match (speeds.first(), speeds.last()) {
        (Some(first), Some(last)) => last / first,
        _ => f64::NAN,
    };
    match command.json {
        true => print_json(&json!({
            "device": device, "n_gen": generated, "interval_seconds": command.interval, "minutes_ts": speeds,
        }))?,
        false => {
            print(&format!("{device}: the last minute is at {:.0}% of the first\n", 100.0 * last_to_first))?
        }
    }
    Ok(true)
}

/// Counts the tokens of each minute.
struct Minutes {
    length: Duration,
    left: u32,
    start: Instant,
    tokens: u32,
    done: usize,
}

impl Minutes {
    fn new(length: Duration, left: u32) -> Minutes {
        Minutes { length, left, start: Instant::now(), tokens: 0, done: 0 }
    }

    /// Counts a token. At the end of a minute returns its number and its tok/s.
    fn count(&mut self, now: Instant) -> Option<(usize, f64)> {
        self.tokens += 1;
        let elapsed = now.duration_since(self.start);
        if elapsed < self.length {
            return None;
        }
        let speed = f64::from(self.tokens) / elapsed.as_secs_f64();
        (self.start, self.tokens, self.left, self.done) =
            (now, 0, self.left.saturating_sub(1), self.done + 1);
        Some((self.done, speed))
    }
}

/// Decodes sequences of `count` tokens until the last minute has ended.
fn decode<D: Device>(
    engine: &mut Engine<D>,
    count: u32,
    run_ahead: RunAhead,
    clock: &mut Minutes,
    report: &mut dyn FnMut(usize, f64) -> Result<(), CommandExit>,
) -> Result<(), CommandExit> {
    while clock.left > 0 {
        engine.truncate(0, 0);
        let first = engine.info().bos.unwrap_or(0);
        let mut decoder = engine.decode_multi_step(0, first, run_ahead)?;
        for left in (1..=count as usize).rev() {
            decoder.next(left)?;
            if let Some((minute, speed)) = clock.count(Instant::now()) {
                report(minute, speed)?;
                if clock.left == 0 {
                    break;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_minute_has_its_own_speed() {
        let mut minutes = Minutes::new(Duration::from_secs(60), 2);
        let start = minutes.start;
        let mut at = |seconds: u64| minutes.count(start + Duration::from_secs(seconds));
        let found = [20, 40, 60, 90, 130].map(&mut at);
        assert_eq!(found, [None, None, Some((1, 0.05)), None, Some((2, 2.0 / 70.0))]);
        assert_eq!(minutes.left, 0);
    }
}
