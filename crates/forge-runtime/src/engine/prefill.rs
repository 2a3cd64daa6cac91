//! Prefill: tokens of one slot, in passes of at most `chunk` rows.
//!
//! The host encodes a pass while the one before it runs, if the device overlaps them. The two passes have their
//! inputs in different halves of the input spans.

use crate::engine::engine::Engine;
use crate::engine::output::{Output, OutputKind, Row, StepOutput};
use forge_device::device::Device;
use forge_device::error::Error;
use forge_device::model::Batch;

impl<D: Device> Engine<D> {
    /// Appends tokens to `slot`, in passes of at most `chunk` rows.
    pub fn run_tokens(&mut self, slot: u32, ids: &[u32], want: Output) -> Result<StepOutput, Error> {
        self.check(slot, ids)?;
        let before = self.length(slot);
        let outcome = self.run_chunks(slot, ids, want);
        // Passes in flight after an error may be unfinished.
        if outcome.is_err()
            && self.device.overlaps_prefill()
            && let Some(state) = self.slots.get_mut(slot as usize)
            && state.len > before
        {
            let _ = self.device.wait(0);
            (state.len, state.state_pos) = (before, 0);
        }
        outcome
    }

    fn run_chunks(&mut self, slot: u32, ids: &[u32], want: Output) -> Result<StepOutput, Error> {
        let mut fed = StepOutput::default();
        let chunks = ids.chunks(self.info().prefill_chunk as usize);
        let last = chunks.len().saturating_sub(1);
        let overlaps = self.device.overlaps_prefill();
        for (index, chunk) in chunks.enumerate() {
            let first = self.length(slot);
            let rows: Vec<Row> =
                (first..).zip(chunk).map(|(position, &id)| Row { id, slot, position }).collect();
            if overlaps && index < last && !matches!(want, Output::AllLogits) {
                self.begin_prefill(&rows, (last - index) % 2 == 1)?;
                continue;
            }
            let end = chunk.len() as u32;
            let wanted: Vec<u32> = match want {
                Output::AllLogits => (0..end).collect(),
                Output::Greedy | Output::Sampled(_) | Output::Logits if index == last => vec![end - 1],
                _ => Vec::new(),
            };
            let kind = match &want {
                Output::Nothing | Output::Greedy => OutputKind::Greedy,
                Output::Sampled(draw) if !wanted.is_empty() => {
                    OutputKind::Sampled(std::slice::from_ref(draw))
                }
                Output::Sampled(_) => OutputKind::Sampled(&[]),
                Output::Logits | Output::AllLogits => OutputKind::Logits,
            };
            // The pass before it has its inputs in the other half.
            self.device.wait(usize::from(overlaps)).map_err(Error::Runtime)?;
            let of_chunk = self.run_batch(&rows, &wanted, kind)?;
            fed.next_tokens.extend(of_chunk.next_tokens);
            fed.logits.extend(of_chunk.logits);
        }
        Ok(fed)
    }

    /// Submits a prefill pass without output, while the one before it is in flight. Its inputs are in a half of
    /// the input spans; the last pass of a prompt uses the first half.
    fn begin_prefill(&mut self, rows: &[Row], in_second_half: bool) -> Result<(), Error> {
        self.check_rows(rows, &[])?;
        self.device.wait(1).map_err(Error::Runtime)?;
        let schedule = self.schedule(rows.len());
        let max_length = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        rows.iter().for_each(|row| self.touch(row.slot, row.position));
        let layout = self.model.layout();
        let batch = Batch {
            is_single_slot: true,
            shares_slots: rows.len() > 1,
            ..layout.rows(schedule, rows.len() as u32, max_length)
        };
        let batch = if in_second_half { layout.in_second_half(batch) } else { batch };
        self.write(batch.ids, rows.iter().map(|row| row.id));
        self.write(batch.slots, rows.iter().map(|row| row.slot));
        self.write(batch.positions, rows.iter().map(|row| row.position));
        let model = &self.model;
        let submitted = self.device.begin(schedule, &mut |pass| {
            pass.set_max_length(max_length);
            model.forward(pass, &batch);
        });
        submitted.map_err(Error::Runtime)?;
        for row in rows {
            if let Some(slot) = self.slots.get_mut(row.slot as usize) {
                (slot.len, slot.state_pos) = (row.position + 1, row.position + 1);
            }
        }
        Ok(())
    }
}
