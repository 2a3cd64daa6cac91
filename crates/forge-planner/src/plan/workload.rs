//! Workload of a pass, and which steps it runs: how often, with which kernels, over which positions.

use crate::plan::model_plan::{Counts, Plan, packed_bytes};
use crate::plan::regime::{
    INDEPENDENT_ROWS, MAX_KV_SPLITS, Regime, SMALL_BATCH_MAX, SPLIT_POSITIONS, Schedule,
};
use crate::plan::section::Section;
use crate::plan::step::{Condition, Step};
use forge_kernels::spec::AT_ONCE;
use forge_kernels::{Instance, Spec};
use forge_ops::Format;
use serde::Serialize;
use std::ops::Range;

/// Size of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// Rows of the pass, consecutive in one sequence, or one of each sequence.
    pub rows: u64,
    /// Number of sequences: 1 or the number of rows.
    pub sequences: u64,
    /// Rows that need logits. At 0 the head does not run.
    pub wanted: u64,
    /// Positions that the last row attends to, its own included. The row before it attends to one less, or if it
    /// belongs to another sequence, to as many.
    pub length: u64,
    /// KV splits per row.
    pub splits: u64,
    /// Whether tokens are sampled instead of chosen by argmax.
    pub drawn: bool,
}

impl Workload {
    /// Decode of one token at this length.
    pub const fn decode(length: u64) -> Workload {
        Workload::decode_batch(1, length)
    }

    /// Decode of one token of each of several sequences at this length.
    pub const fn decode_batch(sequences: u64, length: u64) -> Workload {
        Workload { rows: sequences, sequences, wanted: sequences, length, splits: 1, drawn: false }
    }

    /// Prefill from position 0, with logits for the last row.
    pub const fn prefill(rows: u64) -> Workload {
        Workload { rows, sequences: 1, wanted: 1, length: rows, splits: 1, drawn: false }
    }

    /// The same workload with the number of KV splits that a GPU with this many cores uses.
    pub fn on(self, plan: &Plan, cores: u32) -> Workload {
        Workload { splits: plan.splits(self, cores), ..self }
    }

    /// The kernels' regime.
    pub fn regime(self) -> Regime {
        if self.sequences > 1 { Regime::decoded(self.rows as usize) } else { Regime::of(self.rows as usize) }
    }

    /// Rows of each sequence.
    pub(crate) fn rows_per_sequence(self) -> u64 {
        self.rows / self.sequences
    }

    /// Positions of a KV range attended to, summed over all rows.
    pub(crate) fn attended(self, window: Option<usize>, kv_range: &Range<u64>) -> u64 {
        let in_range = |end: u64| end.clamp(kv_range.start, kv_range.end) - kv_range.start;
        let seen =
            |row: u64| in_range(self.length - row).min(window.map_or(u64::MAX, |window| window as u64));
        self.sequences * (0..self.rows_per_sequence().min(self.length)).map(seen).sum::<u64>()
    }

    /// Distinct positions of a KV range that the rows attend to.
    pub(crate) fn distinct_positions(self, window: Option<usize>, kv_range: &Range<u64>) -> u64 {
        let all = kv_range.end - kv_range.start;
        let seen = window.map_or(all, |window| all.min(window as u64 + self.rows_per_sequence() - 1));
        self.sequences * seen
    }
}

impl Plan {
    /// Dispatches and barriers of a pass, head included.
    pub fn counts(&self, load: Workload) -> Counts {
        let mut counts = Counts::default();
        let last = self.applications.len() - 1;
        for (index, application) in self.applications.iter().enumerate() {
            let section = &self.sections[application.section];
            let steps = section.steps(load.regime().schedule()).iter();
            let run: Vec<&Step> = steps.filter(|step| self.instance(section, step, load).is_some()).collect();
            let times = |step: &&Step| self.kv_ranges(step, load).count();
            let dispatches = run.iter().map(times).sum();
            counts.dispatches += dispatches;
            counts.barriers += run.iter().filter(|step| step.waits).map(times).sum::<usize>();
            if index > 0 && index < last {
                counts.dispatches_per_layer.push(dispatches);
            }
        }
        counts
    }

    /// Steps that a pass runs, in order, each with its section.
    pub fn steps_of(&self, load: Workload) -> impl Iterator<Item = (&Section, &Step)> {
        let sections = self.applications.iter().map(|application| &self.sections[application.section]);
        let steps = sections.flat_map(move |section| {
            section.steps(load.regime().schedule()).iter().map(move |step| (section, step))
        });
        steps.filter(move |(section, step)| self.instance(section, step, load).is_some())
    }

    /// The kernel that a step runs under a workload, if it runs.
    pub fn instance(&self, section: &Section, step: &Step, load: Workload) -> Option<&Instance> {
        let in_head = self.is_head(section);
        let wanted = match step.condition {
            Condition::Always => true,
            Condition::Split => load.splits > 1,
            Condition::SeveralRows => load.rows > 1,
            // Rows of the decode schedule belong to different slots here.
            Condition::SharedSlots => false,
            Condition::SeparateSlots => true,
            Condition::Many => load.regime() == Regime::Many,
            Condition::Absorbed => !self.expands_mla(load),
            Condition::Expanded => self.expands_mla(load),
            Condition::Greedy => !load.drawn,
            Condition::Drawn => load.drawn,
        };
        // The head processes a small batch, however many rows the pass has.
        let regime = match load.regime() {
            Regime::Many if in_head => Regime::Few,
            regime => regime,
        };
        let kernel = self.functions[step.function].kernel(regime).filter(|_| wanted);
        kernel.filter(|_| !in_head || load.wanted > 0).map(|kernel| &self.kernels[kernel])
    }

    /// Whether MLA runs in expanded form.
    fn expands_mla(&self, load: Workload) -> bool {
        self.mla_expand.is_some_and(|mla_expand| load.rows_per_sequence() >= mla_expand.min_rows as u64)
    }

    /// KV ranges that a step runs over, one per repetition: all positions, or one KV tile.
    pub fn kv_ranges(&self, step: &Step, load: Workload) -> impl Iterator<Item = Range<u64>> {
        let tile = match (step.condition, self.mla_expand) {
            (Condition::Expanded, Some(mla_expand)) => mla_expand.tile as u64,
            _ => load.length.max(1),
        };
        (0..load.length.max(1)).step_by(tile as usize).map(move |begin| begin..load.length.min(begin + tile))
    }

    /// Rows of a section's steps.
    pub(crate) fn rows_of(&self, section: &Section, load: Workload) -> u64 {
        if self.is_head(section) { load.wanted } else { load.rows }
    }

    fn is_head(&self, section: &Section) -> bool {
        self.sections.last().is_some_and(|last| last.name == section.name)
    }

    /// KV splits per row. Generated programs compute the same.
    pub fn splits(&self, load: Workload, cores: u32) -> u64 {
        // MLA: threadgroups that share the heads of a row.
        let groups = self.kernels.iter().find_map(|kernel| match &kernel.spec {
            Spec::MlaAttention(attend) => Some(forge_kernels::spec::mla_attention_heads(attend)[2]),
            _ => None,
        });
        let heads = self.sections.iter().find_map(|section| section.state).map_or(1, |state| state.heads);
        let heads = groups.unwrap_or(heads) as u64;
        let (rows, most_rows) = match load.regime().schedule() {
            Schedule::Batch if load.rows > SMALL_BATCH_MAX as u64 => return 1,
            Schedule::Batch => (load.rows, load.rows),
            // They depend on one row only, so that other rows do not change its results.
            Schedule::Decode => (1, load.rows.max(INDEPENDENT_ROWS as u64)),
        };
        let wanted = self.attention_groups_per_core() * u64::from(cores) / (heads * rows);
        wanted.min(load.length.div_ceil(SPLIT_POSITIONS as u64)).clamp(1, MAX_KV_SPLITS as u64 / most_rows)
    }

    /// Threadgroups of small-batch attention per core in one wave. One more would start only when these end.
    pub fn attention_groups_per_core(&self) -> u64 {
        let of_kernel = self.kernels.iter().filter_map(|kernel| match &kernel.spec {
            Spec::AttendSplit(attend) => Some(attend.layout.knobs.at_once(attend.op.width)),
            Spec::MlaAttention(_) => Some(AT_ONCE),
            _ => None,
        });
        of_kernel.min().unwrap_or(AT_ONCE) as u64
    }

    /// Weight file bytes by format, widest format first.
    pub fn bytes_by_format(&self) -> Vec<(Format, u64)> {
        let of =
            |format| self.weights.iter().filter(|packed| packed.format == format).map(packed_bytes).sum();
        Format::ALL.into_iter().map(|format| (format, of(format))).filter(|(_, bytes)| *bytes > 0).collect()
    }
}
