//! Batches: rows of several slots, divided into passes of the decode and the batch schedule.
//!
//! A model has a decode schedule, optimized for one row per slot, and a batch schedule for any rows. They
//! round differently ([`Schedule`]). Which one computes a row depends only on the rows of its own slot, so that
//! a sequence's results do not depend on the other slots:
//! - With one slot, a pass of one row is decoded.
//! - With several slots, the only row of its slot in a pass is decoded, up to [`ModelInfo::decode_rows`] such
//!   rows in one pass, if the model and the device support it ([`Device::decodes_batches`]). Otherwise, and with
//!   more than [`MAX_DECODED_ROWS`] such rows, only the batch schedule is used.
//!
//! [`ModelInfo::decode_rows`]: crate::model::ModelInfo::decode_rows

use crate::device::{Device, Schedule};
use crate::engine::engine::Engine;
use crate::engine::output::{OutputKind, Row, StepOutput};
use crate::error::Error;
use crate::model::{Batch, Layout};
use crate::sampling::device_sampling::DeviceSampling;

/// Maximum rows of a batch that are decoded. With more, one batch pass is faster, and results depend on the
/// number of rows.
const MAX_DECODED_ROWS: usize = 64;

impl<D: Device> Engine<D> {
    /// Runs 1 to `chunk` rows whose positions continue their slots, then the head for the rows in `wanted`.
    /// Returns the logits or the next token of each wanted row. Rows that are decoded and other rows take
    /// separate passes.
    pub fn run_batch(
        &mut self,
        rows: &[Row],
        wanted: &[u32],
        kind: OutputKind<'_>,
    ) -> Result<StepOutput, Error> {
        self.check_rows(rows, wanted)?;
        let draws = match kind {
            OutputKind::Sampled(draws) if draws.len() != wanted.len() => {
                return Err(Error::usage(format!(
                    "{} sampling parameters for {} rows",
                    draws.len(),
                    wanted.len()
                )));
            }
            OutputKind::Sampled(draws) => draws,
            OutputKind::Greedy | OutputKind::Logits => &[],
        };
        let passes = self.passes(rows);
        if let [(schedule, all)] = &passes[..]
            && (*schedule == Schedule::Batch || all.len() == 1)
        {
            return self.run_pass(*schedule, rows, (wanted, draws), kind);
        }
        let mut output = StepOutput::default();
        match kind {
            OutputKind::Logits => output.logits = vec![Vec::new(); wanted.len()],
            OutputKind::Greedy | OutputKind::Sampled(_) => output.next_tokens = vec![0; wanted.len()],
        }
        for (schedule, indices) in passes {
            let of_pass: Vec<Row> = indices.iter().map(|&index| rows[index as usize]).collect();
            // Place in `wanted`, and row of the pass.
            let found = wanted.iter().enumerate().filter_map(|(place, row)| {
                let of_pass = indices.iter().position(|index| index == row)?;
                Some((place, of_pass))
            });
            let found: Vec<(usize, usize)> = found.collect();
            // The head of a decode pass computes all of its rows.
            let heads: Vec<(usize, usize)> = match (schedule, found.first()) {
                (Schedule::Decode, Some(&(first, _))) => (0..of_pass.len())
                    .map(|row| {
                        found.iter().find(|(_, of_pass)| *of_pass == row).copied().unwrap_or((first, row))
                    })
                    .collect(),
                _ => found.clone(),
            };
            let of_heads: Vec<u32> = heads.iter().map(|(_, row)| *row as u32).collect();
            let of_draws: Vec<DeviceSampling> =
                heads.iter().filter_map(|(place, _)| draws.get(*place).cloned()).collect();
            let mut computed = self.run_pass(schedule, &of_pass, (&of_heads, &of_draws), kind)?;
            for (place, row) in found {
                let head = heads.iter().position(|head| *head == (place, row)).unwrap_or(row);
                match kind {
                    OutputKind::Logits => output.logits[place] = std::mem::take(&mut computed.logits[head]),
                    OutputKind::Greedy | OutputKind::Sampled(_) => {
                        output.next_tokens[place] = computed.next_tokens[head];
                    }
                }
            }
        }
        Ok(output)
    }

    /// The passes that compute these rows: the schedule and the indices of each.
    fn passes(&self, rows: &[Row]) -> Vec<(Schedule, Vec<u32>)> {
        let all = 0..rows.len() as u32;
        if self.slots.len() == 1 || !self.decodes_batches() {
            let schedule = self.schedule(rows.len());
            return vec![(schedule, all.collect())];
        }
        let mut rows_of_slot = vec![0_u32; self.slots.len()];
        rows.iter().for_each(|row| rows_of_slot[row.slot as usize] += 1);
        let (decoded, others): (Vec<u32>, Vec<u32>) =
            all.partition(|index| rows_of_slot[rows[*index as usize].slot as usize] == 1);
        let decode_rows = self.info().decode_rows as usize;
        if decoded.len() > MAX_DECODED_ROWS {
            return vec![(Schedule::Batch, (0..rows.len() as u32).collect())];
        }
        let mut passes: Vec<_> =
            decoded.chunks(decode_rows).map(|rows| (Schedule::Decode, rows.to_vec())).collect();
        if !others.is_empty() {
            passes.push((Schedule::Batch, others));
        }
        passes
    }

    /// Whether a decode pass may have rows of several slots.
    pub(super) fn decodes_batches(&self) -> bool {
        self.info().decode_rows > 1 && self.device.decodes_batches()
    }

    /// Runs one pass and the head for the rows in `wanted`. The first `head_rows` of these are in the same
    /// pass; the others take one pass each `head_rows`. In a decode pass `wanted` is nothing, or all rows.
    fn run_pass(
        &mut self,
        schedule: Schedule,
        rows: &[Row],
        (wanted, draws): (&[u32], &[DeviceSampling]),
        kind: OutputKind<'_>,
    ) -> Result<StepOutput, Error> {
        rows.iter().for_each(|row| self.touch(row.slot, row.position));
        let layout = self.model.layout();
        let &Layout {
            ids,
            slots,
            positions,
            row_indices: places,
            sampling: drawn,
            logits,
            next_tokens: next,
            ..
        } = layout;
        let longest = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        let of_one_slot = rows.iter().all(|row| row.slot == rows[0].slot);
        let all = Batch { is_single_slot: of_one_slot, ..layout.rows(schedule, rows.len() as u32, longest) };
        self.write(ids, rows.iter().map(|row| row.id));
        self.write(slots, rows.iter().map(|row| row.slot));
        self.write(positions, rows.iter().map(|row| row.position));
        let mut fed = StepOutput::default();
        let mut heads = wanted.chunks(self.info().head_rows as usize);
        let mut draws = draws.chunks(self.info().head_rows as usize);
        let mut head = heads.next().unwrap_or(&[]);
        let mut first = true;
        loop {
            if !head.is_empty() {
                self.write(places, head.iter().copied());
            }
            let of_head = draws.next();
            if let Some(draws) = of_head {
                self.write(drawn, draws.iter().flat_map(DeviceSampling::words));
            }
            let model = &self.model;
            self.device
                .run(schedule, &mut |pass| {
                    pass.set_max_length(longest);
                    if first {
                        model.forward(pass, &all);
                    }
                    if !head.is_empty() {
                        model.head(
                            pass,
                            schedule,
                            &model.layout().logit_rows(head.len() as u32, of_head.is_some()),
                        );
                    }
                })
                .map_err(Error::Runtime)?;
            if matches!(kind, OutputKind::Logits) && !head.is_empty() {
                let width = self.info().vocabulary as usize;
                let all = self.read(logits.first(head.len() * width));
                fed.logits.extend(
                    all.chunks_exact(width).map(|row| row.iter().copied().map(f32::from_bits).collect()),
                );
            } else if !head.is_empty() {
                fed.next_tokens.extend(self.read(next.first(head.len())));
            }
            first = false;
            match heads.next() {
                Some(rows) => head = rows,
                None => break,
            }
        }
        for row in rows {
            if let Some(slot) = self.slots.get_mut(row.slot as usize) {
                (slot.len, slot.state_pos) = (row.position + 1, row.position + 1);
            }
        }
        Ok(fed)
    }
}
