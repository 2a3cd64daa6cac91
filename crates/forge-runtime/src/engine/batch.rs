//! Batches: rows of several slots, divided into passes of the decode and the batch schedule.
//!
//! A model has a decode schedule, optimized for one row per slot, and a batch schedule for any rows. They
//! round differently ([`Schedule`]). Which one computes a row depends only on the rows of its own slot, so that
//! a sequence's results do not depend on the other slots:
//! - With one slot, a pass of one row is decoded.
//! - With several slots, the only row of its slot in a pass is decoded, up to [`ModelInfo::decode_rows`] such
//!   rows in one pass, if the model and the device support it ([`Device::decodes_batches`]). Otherwise only the
//!   batch schedule is used.
//!
//! Results depend on the other slots if there are more than [`ModelInfo::independent_rows`] rows to decode: they
//! have fewer KV splits, and above [`ModelInfo::max_decoded_rows`] they use the batch schedule. A reproducible engine decodes passes of
//! at most `independent_rows` instead.
//!
//! [`ModelInfo::decode_rows`]: forge_device::model::ModelInfo::decode_rows
//! [`ModelInfo::independent_rows`]: forge_device::model::ModelInfo::independent_rows
//! [`ModelInfo::max_decoded_rows`]: forge_device::model::ModelInfo::max_decoded_rows

use crate::engine::engine::Engine;
use crate::engine::output::{OutputKind, Row, StepOutput};
use forge_device::device::{Device, Schedule};
use forge_device::error::Error;
use forge_device::model::{Batch, Layout};
use forge_device::sampling::device_sampling::DeviceSampling;
use std::collections::{BTreeMap, BTreeSet};

impl<D: Device> Engine<D> {
    /// Runs 1 to `chunk` rows whose positions continue their slots, then the head for the rows in `wanted`.
    /// Returns the logits or the next token of each wanted row. Up to `independent_rows` rows take one decode pass.
    /// Of more rows, those that are decoded and others take separate passes.
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
        let all = || (0..rows.len() as u32).collect();
        if self.slots.len() == 1 || !self.decodes_batches() {
            return vec![(self.schedule(rows.len()), all())];
        }
        // Weights are read once for decoded rows and short portions of prompts.
        if rows.len() <= self.info().independent_rows as usize {
            return vec![(Schedule::Decode, all())];
        }
        let (decode_rows, max_decoded) = match self.is_reproducible {
            true => (self.info().independent_rows, u32::MAX),
            false => (self.info().decode_rows, self.info().max_decoded_rows),
        };
        divide(rows, decode_rows as usize, max_decoded as usize)
    }

    /// Whether a decode pass may have rows of several slots.
    pub(super) fn decodes_batches(&self) -> bool {
        self.info().decode_rows > 1 && self.device.decodes_batches()
    }

    /// Runs one pass and the head for the rows in `wanted`. In a decode pass that is nothing, or all rows. In
    /// the batch schedule the first `head_rows` of them are in the same pass; the others take one pass each
    /// `head_rows`.
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
        let slots_of_rows: BTreeSet<u32> = rows.iter().map(|row| row.slot).collect();
        let all = Batch {
            is_single_slot: slots_of_rows.len() == 1,
            shares_slots: slots_of_rows.len() < rows.len(),
            ..layout.rows(schedule, rows.len() as u32, longest)
        };
        self.write(ids, rows.iter().map(|row| row.id));
        self.write(slots, rows.iter().map(|row| row.slot));
        self.write(positions, rows.iter().map(|row| row.position));
        let mut fed = StepOutput::default();
        let head_rows = match schedule {
            Schedule::Decode => self.info().decode_rows as usize,
            Schedule::Batch => self.info().head_rows as usize,
        };
        let (mut heads, mut draws) = (wanted.chunks(head_rows), draws.chunks(head_rows));
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

/// Divides rows of several slots into passes: the only row of its slot is decoded with up to `decode_rows` others, unless
/// there are more than `max_decoded` such rows.
fn divide(rows: &[Row], decode_rows: usize, max_decoded: usize) -> Vec<(Schedule, Vec<u32>)> {
    let mut rows_of_slot = BTreeMap::new();
    rows.iter().for_each(|row| *rows_of_slot.entry(row.slot).or_insert(0) += 1);
    let all = 0..rows.len() as u32;
    let (decoded, others): (Vec<u32>, Vec<u32>) =
        all.clone().partition(|index| rows_of_slot[&rows[*index as usize].slot] == 1);
    if decoded.len() > max_decoded {
        return vec![(Schedule::Batch, all.collect())];
    }
    let mut passes: Vec<_> =
        decoded.chunks(decode_rows).map(|rows| (Schedule::Decode, rows.to_vec())).collect();
    if !others.is_empty() {
        passes.push((Schedule::Batch, others));
    }
    passes
}

#[cfg(test)]
mod tests {
    use super::divide;
    use crate::engine::output::Row;
    use forge_device::device::Schedule;

    /// One row for each of these slots, in order.
    fn rows(slots: impl IntoIterator<Item = u32>) -> Vec<Row> {
        slots.into_iter().map(|slot| Row { id: 7, slot, position: 3 }).collect()
    }

    #[test]
    fn the_only_row_of_a_slot_is_decoded_and_prompts_are_not() {
        let passes = divide(&rows([4, 1, 2, 2, 2, 0]), 64, 256);
        assert_eq!(passes, [(Schedule::Decode, vec![0, 1, 5]), (Schedule::Batch, vec![2, 3, 4])]);
        assert_eq!(divide(&rows([3, 3]), 64, 256), [(Schedule::Batch, vec![0, 1])]);
    }

    #[test]
    fn many_decoded_rows_take_several_passes_or_one_of_the_batch_schedule() {
        let sizes = |count, decode_rows, max_decoded| -> Vec<(Schedule, usize)> {
            let passes = divide(&rows(0..count), decode_rows, max_decoded);
            passes.into_iter().map(|(schedule, rows)| (schedule, rows.len())).collect()
        };
        assert_eq!(sizes(100, 64, 256), [(Schedule::Decode, 64), (Schedule::Decode, 36)]);
        assert_eq!(sizes(257, 64, 256), [(Schedule::Batch, 257)]);
        assert_eq!(sizes(300, 16, usize::MAX).len(), 19);
    }
}
