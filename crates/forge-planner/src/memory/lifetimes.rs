//! Live ranges of scratch buffers, the input of [`crate::memory::arena`].

use crate::lower::section::{Draft, Place};
use crate::lower::select::Select;
use crate::plan::regime::Schedule;
use crate::plan::{LiveRange, Operand, Scratch, Section};

impl Select<'_> {
    /// Records live ranges. A write begins one, a read extends it, and an accumulating write extends it too.
    pub(crate) fn lifetimes(&mut self, draft: &Draft<'_>, section: usize) {
        let steps = draft.section.steps(draft.schedule);
        for (index, step) in steps.iter().enumerate() {
            for argument in &step.arguments {
                if let Operand::Scratch(scratch) = argument.operand {
                    let begins = self.plan.writes(step.function, &argument.parameter)
                        && !self.plan.adds_to(step.function, &argument.parameter);
                    // A buffer that a loop carries between its iterations is live during the whole loop.
                    let begin = match self.plan.continues_previous(step.function, &argument.parameter) {
                        true => steps.iter().position(|other| other.condition == step.condition),
                        false => None,
                    };
                    self.alive(scratch, (draft.schedule, section, begin.unwrap_or(index)), begins);
                    self.alive(scratch, (draft.schedule, section, index), false);
                }
            }
        }
        // The host reads logits after the pass.
        let logits = self.plan.scratch.iter().position(|scratch| scratch.name == "logits");
        if let (Place::Epilogue, Some(last), Some(logits)) = (draft.place, steps.len().checked_sub(1), logits)
        {
            self.alive(logits, (draft.schedule, section, last), false);
        }
    }

    fn alive(&mut self, scratch: usize, (schedule, section, step): (Schedule, usize, usize), written: bool) {
        let lifetimes = &mut self.plan.scratch[scratch].lifetimes;
        let here = |life: &&mut LiveRange| (life.schedule, life.section) == (schedule, section);
        match lifetimes.iter_mut().rev().find(here) {
            Some(life) if !written => life.last = step,
            _ => lifetimes.push(LiveRange { schedule, section, first: step, last: step }),
        }
    }

    /// Makes the buffers of deferred norms live throughout: one section writes them for the next.
    pub(crate) fn lives_from_section_to_section(&mut self) {
        let whole = |(section, data): (usize, &Section)| {
            let last = data.decode.len().saturating_sub(1);
            LiveRange { schedule: Schedule::Decode, section, first: 0, last }
        };
        let lives: Vec<LiveRange> = self.plan.sections.iter().enumerate().map(whole).collect();
        let handed_on = |scratch: &&mut Scratch| {
            ["gained", "squares", "quantized_gained", "quantized_stream"].contains(&scratch.name.as_str())
        };
        for scratch in self.plan.scratch.iter_mut().filter(handed_on) {
            scratch.lifetimes = lives.clone();
        }
    }
}
