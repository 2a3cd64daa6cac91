//! The composition of a pass from the running sequences.

use crate::engine::{OutputKind, Row};
use crate::serve::batch::job::RunningRequest;
use crate::serve::batch::slots::Slot;
use forge_device::model::ModelInfo;
use forge_device::sampling::device_sampling::DeviceSampling;
use std::collections::VecDeque;

/// A pass to be submitted.
pub(crate) struct ScheduledBatch {
    pub(crate) rows: Vec<Row>,
    pub(crate) wanted: Vec<u32>,
    /// How many of the rows are decoded; the others are of prompts.
    pub(crate) decoded: usize,
    /// Sampling parameters of each output row; `None` if some sequence needs logits.
    draws: Option<Vec<DeviceSampling>>,
}

impl ScheduledBatch {
    /// Composes a pass: one row for every running sequence, and portions of prompts, of at most `mixed_prefill` rows if
    /// sequences are running.
    pub(crate) fn compose(
        slots: &[Slot<RunningRequest>],
        prefilling: &VecDeque<usize>,
        mixed_prefill: usize,
        info: &ModelInfo,
    ) -> ScheduledBatch {
        let mut pass =
            ScheduledBatch { rows: Vec::new(), wanted: Vec::new(), decoded: 0, draws: Some(Vec::new()) };
        for (index, slot) in slots.iter().enumerate() {
            let Some((running, id)) =
                slot.request.as_ref().and_then(|running| Some((running, running.next?)))
            else {
                continue;
            };
            pass.request_output(running);
            pass.rows.push(Row { id, slot: index as u32, position: slot.tokens.len() as u32 });
        }
        pass.decoded = pass.rows.len();
        let most = info.prefill_chunk as usize;
        let mut budget = most - pass.decoded.min(most);
        if pass.decoded > 0 {
            budget = budget.min(mixed_prefill);
        }
        for &index in prefilling {
            let Some(running) = slots[index].request.as_ref().filter(|running| !running.waits_for_prefix)
            else {
                continue;
            };
            let portion = &running.request.prompt[running.position..];
            // With prompt log probabilities, each row needs logits.
            let most = if running.request.echoes_logprobs() { info.head_rows as usize } else { budget };
            let mut portion = &portion[..portion.len().min(budget).min(most)];
            // The snapshot of the recurrent state is taken before the last token.
            if info.recurrent_state_bytes > 0
                && portion.len() > 1
                && running.position + portion.len() == running.request.prompt.len()
            {
                portion = &portion[..portion.len() - 1];
            }
            budget -= portion.len();
            for (position, &id) in (running.position..).zip(portion) {
                if running.request.echoes_logprobs() || position + 1 == running.request.prompt.len() {
                    pass.request_output(running);
                }
                pass.rows.push(Row { id, slot: index as u32, position: position as u32 });
            }
        }
        pass
    }

    /// Requests output for the next row, which belongs to `running`.
    fn request_output(&mut self, running: &RunningRequest) {
        self.wanted.push(self.rows.len() as u32);
        let draw =
            running.request.generation.device_sampling().filter(|_| !running.request.echoes_logprobs());
        self.draws = self.draws.take().zip(draw).map(|(mut draws, draw)| {
            draws.push(draw);
            draws
        });
    }

    /// The output of the pass: logits if some sequence needs them, else sampled or greedy tokens.
    pub(crate) fn output_kind(&self) -> OutputKind<'_> {
        match &self.draws {
            None => OutputKind::Logits,
            Some(draws) if draws.iter().all(DeviceSampling::is_greedy) => OutputKind::Greedy,
            Some(draws) => OutputKind::Sampled(draws),
        }
    }
}
