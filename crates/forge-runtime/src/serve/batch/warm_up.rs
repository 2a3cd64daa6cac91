//! The first passes of a server, and how long mixed passes take.

use crate::engine::{Engine, Output, OutputKind, Row};
use crate::load::finish_background_work;
use crate::serve::batch::prefill_budget::PrefillBudget;
use forge_device::device::Device;
use forge_device::error::Error;
use std::time::{Duration, Instant};

/// Runs passes of all sizes once, and measures how much prefill a pass that decodes may have.
pub(super) fn warm_up<D: Device>(engine: &mut Engine<D>, slots: usize) -> Result<PrefillBudget, Error> {
    finish_background_work(engine.device())?;
    let context = engine.context() as usize;
    let id = engine.info().bos.unwrap_or(0).min(engine.info().vocabulary - 1);
    for rows in [engine.info().prefill_chunk as usize, engine.info().head_rows as usize, 2, 1] {
        engine.truncate(0, 0);
        engine.run_tokens(0, &vec![id; rows.min(context)], Output::Greedy)?;
    }
    engine.truncate(0, 0);
    measure_prefill(engine, slots, id)
}

/// Measures how long a pass of one decoded row takes, and with prompt rows of another slot.
fn measure_prefill<D: Device>(engine: &mut Engine<D>, slots: usize, id: u32) -> Result<PrefillBudget, Error> {
    let (gap, mut with_rows) = (time_of_mixed_pass(engine, 0, id)?, Vec::new());
    if slots > 1 {
        let most = engine.info().prefill_chunk.min(engine.context()) as usize;
        for rows in PrefillBudget::sizes().take_while(|rows| *rows < most) {
            let time = time_of_mixed_pass(engine, rows, id)?;
            with_rows.push((rows, time));
            if PrefillBudget::is_exceeded(gap, time) {
                break;
            }
        }
    }
    Ok(PrefillBudget::new(gap, &with_rows))
}

/// The time of the second of two equal passes: one row of slot 0, and `prompt` rows of slot 1.
fn time_of_mixed_pass<D: Device>(engine: &mut Engine<D>, prompt: usize, id: u32) -> Result<Duration, Error> {
    let of_prompt = (0..prompt as u32).map(|position| Row { id, slot: 1, position });
    let rows: Vec<Row> = std::iter::once(Row { id, slot: 0, position: 0 }).chain(of_prompt).collect();
    let mut time = Duration::ZERO;
    for _ in 0..2 {
        let start = Instant::now();
        engine.run_batch(&rows, &[0], OutputKind::Greedy)?;
        time = start.elapsed();
        engine.truncate(0, 0);
        engine.truncate(1, 0);
    }
    Ok(time)
}
