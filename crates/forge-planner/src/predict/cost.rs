//! Cost of a step: bytes moved and operations, for any number of rows and KV length.
//!
//! Bytes are the minimum that the step's kernels must move: each byte of memory once per step that reads or
//! writes it. Repeated loads, such as a row of x by every simdgroup, hit the chip's caches and are not
//! counted. The kernel checker counts actual loads, and a test checks that the distinct bytes match.

use crate::plan::workload::Workload;
use crate::plan::{BatchColumn, Field, FieldKind, Operand, Plan, Section, State, Step};
use forge_kernels::{Instance, Spec};
use forge_ops::{
    BLOCK, DeltaRule, ExpertsGroup, ExpertsTiles, Format, MlaAppend, MlaAttention, MlaPrepare, PlaneElement,
    Prologue,
};
use serde::Serialize;
use std::ops::{AddAssign, Range};

/// Bytes and operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Weight bytes read.
    pub weights_read: u64,
    /// Bytes read from slot state: KV cache and recurrent state.
    pub cache_read: u64,
    /// Bytes written to slot state.
    pub cache_written: u64,
    /// Scratch bytes read.
    pub scratch_read: u64,
    /// Scratch bytes written.
    pub scratch_written: u64,
    /// Bytes read from per-row inputs and the expert slot table.
    pub batch_read: u64,
    /// Bytes written to batch columns: the next tokens.
    pub batch_written: u64,
    /// Additions and multiplications.
    pub operations: u64,
}

impl Cost {
    /// Total bytes read.
    pub fn read(&self) -> u64 {
        self.weights_read + self.cache_read + self.scratch_read + self.batch_read
    }

    /// Total bytes written.
    pub fn written(&self) -> u64 {
        self.cache_written + self.scratch_written + self.batch_written
    }

    /// Total bytes.
    pub fn bytes(&self) -> u64 {
        self.read() + self.written()
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.weights_read += other.weights_read;
        self.cache_read += other.cache_read;
        self.cache_written += other.cache_written;
        self.scratch_read += other.scratch_read;
        self.scratch_written += other.scratch_written;
        self.batch_read += other.batch_read;
        self.batch_written += other.batch_written;
        self.operations += other.operations;
    }
}

/// Cost of one step under a workload; zero if the step does not run.
pub fn step_cost(plan: &Plan, section: &Section, step: &Step, load: Workload) -> Cost {
    let Some(instance) = plan.instance(section, step, load) else { return Cost::default() };
    let mut cost = Cost::default();
    for kv_range in plan.kv_ranges(step, load) {
        let rows = if step.of_tile { kv_range.end - kv_range.start } else { plan.rows_of(section, load) };
        cost += cost_of(plan, (section, step), instance, Amounts::of(&instance.spec, rows, load, kv_range));
    }
    cost
}

/// Cost of a step that runs this kernel.
pub(crate) fn cost_of(
    plan: &Plan,
    (section, step): (&Section, &Step),
    instance: &Instance,
    amounts: Amounts,
) -> Cost {
    let step_of = Counted { plan, instance, amounts };
    let mut cost = Cost { operations: step_of.operations(), ..Cost::default() };
    for argument in &step.arguments {
        // A kernel has buffers for some of its step's arguments only.
        if !step_of.takes(&argument.parameter) {
            continue;
        }
        match argument.operand {
            Operand::Field(field) => {
                cost.weights_read += step_of.field(&argument.parameter, &section.fields[field]);
            }
            Operand::Keys | Operand::Values => {
                let (read, written) = step_of.positions();
                let bytes = |state: State| state.heads * plan.head_bytes(state.width);
                let bytes = section.state.map_or(0, bytes) as u64;
                cost.cache_read += read * bytes;
                cost.cache_written += written * bytes;
            }
            Operand::Latents => {
                let (read, written) = step_of.positions();
                let bytes = section.state.map_or(0, |state| plan.head_bytes(state.width)) as u64;
                cost.cache_read += read * bytes;
                cost.cache_written += written * bytes;
            }
            Operand::RecurrentState(recurrent_state) => {
                let elements = section.recurrent_states[recurrent_state].elements() as u64;
                let (read, written) = step_of.recurrent_state(&argument.parameter, elements);
                cost.cache_read += read * 4;
                cost.cache_written += written * 4;
            }
            Operand::Scratch(scratch) => {
                let (read, written) = step_of.scratch(&argument.parameter, scratch);
                cost.scratch_read += read;
                cost.scratch_written += written;
            }
            Operand::Batch(BatchColumn::Next) => cost.batch_written += amounts.rows * 4,
            // All words of a row's sampling parameters except the padding word.
            Operand::Batch(BatchColumn::Draws) => cost.batch_read += amounts.rows * 7 * 4,
            // All rows belong to one slot.
            Operand::Batch(BatchColumn::Slots) if matches!(instance.spec, Spec::MlaLoadLatents(_)) => {
                cost.batch_read += 4;
            }
            Operand::Batch(_) => cost.batch_read += amounts.rows * 4,
            Operand::ExpertSlots => {
                cost.batch_read += step_of.experts_read(&instance.spec).map_or(0, |(read, _)| read * 4);
            }
        }
    }
    cost
}

/// Suffixes of a matrix's planes.
const PLANES: [&str; 3] = ["_values", "_codes", "_scales"];

/// The quantities of a workload that a kernel's cost depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amounts {
    /// Rows.
    pub(crate) rows: u64,
    /// Distinct positions that the rows attend to.
    pub(crate) distinct_positions: u64,
    /// Positions attended to, summed over the rows.
    pub(crate) attended: u64,
    /// Distinct routed experts of all rows, at most.
    pub(crate) chosen: u64,
    /// Positions before the first row.
    pub(crate) before: u64,
    /// Positions before the current KV tile, in expanded MLA.
    pub(crate) positions_before_tile: u64,
    /// KV splits per row.
    pub(crate) splits: u64,
}

impl Amounts {
    fn of(spec: &Spec, rows: u64, load: Workload, kv_range: Range<u64>) -> Amounts {
        let window = window(spec);
        let chosen = experts(spec).map_or(0, |Experts { free, chosen, .. }| free.min(rows as usize * chosen));
        Amounts {
            rows,
            distinct_positions: load.distinct_positions(window, &kv_range),
            attended: load.attended(window, &kv_range),
            chosen: chosen as u64,
            before: load.length.saturating_sub(load.rows_per_sequence()),
            positions_before_tile: kv_range.start,
            splits: load.splits,
        }
    }
}

/// Sliding window of an attention kernel; `None`: all positions so far.
pub(crate) fn window(spec: &Spec) -> Option<usize> {
    match spec {
        Spec::AttendSplit(attend) | Spec::AttendTiled(attend) => attend.op.window,
        _ => None,
    }
}

/// Experts of a kernel: number of routed experts (`free`), routed experts per row (`chosen`), and shared
/// experts.
pub(crate) struct Experts {
    pub(crate) free: usize,
    pub(crate) chosen: usize,
    shared: usize,
}

/// The experts of a kernel that reads any.
pub(crate) fn experts(spec: &Spec) -> Option<Experts> {
    let (experts, chosen, shared) = match spec {
        Spec::ExpertsInner(inner) => (inner.op.experts, inner.op.chosen, inner.op.shared),
        Spec::ExpertsSum(sum) => (sum.op.experts, sum.op.chosen, sum.op.shared),
        Spec::ExpertsTiles(tiles) => (tiles.op.experts, tiles.op.chosen, tiles.op.shared),
        _ => return None,
    };
    Some(Experts { free: experts - shared, chosen: chosen - shared, shared })
}

/// A step whose bytes are counted.
struct Counted<'a> {
    plan: &'a Plan,
    instance: &'a Instance,
    amounts: Amounts,
}

impl Counted<'_> {
    /// Whether the kernel has a buffer of this name, or planes with this prefix.
    fn takes(&self, parameter: &str) -> bool {
        let planes = |name: &str| name.strip_prefix(parameter).is_some_and(|rest| PLANES.contains(&rest));
        self.instance.decl.buffers.iter().any(|buffer| buffer.name == parameter || planes(&buffer.name))
    }

    /// Weight bytes read: for an embedding table the looked-up rows, otherwise the whole weight once.
    fn field(&self, parameter: &str, field: &Field) -> u64 {
        match (field.kind, &self.instance.spec) {
            (FieldKind::Matrix { format, columns, .. }, Spec::Embed(_)) => {
                self.amounts.rows * row_bytes(format, columns)
            }
            // GEMM kernels read whole blocks, including the padding of the last.
            (FieldKind::Matrix { format, rows, columns }, Spec::Linear(linear))
                if !linear.layout.rows.is_decode() =>
            {
                rows as u64 * row_bytes(format, columns.next_multiple_of(BLOCK))
            }
            (FieldKind::Matrix { format, rows, columns }, _) => rows as u64 * row_bytes(format, columns),
            // Only experts that a row uses are read.
            (FieldKind::Experts { format, rows, columns, .. }, spec) => {
                let (read, _) = self.experts_read(spec).unwrap_or((1, 1));
                let of_tiles = matches!(spec, Spec::ExpertsTiles(_));
                let columns = if of_tiles { columns.next_multiple_of(BLOCK) } else { columns };
                rows as u64 * read * row_bytes(format, columns)
            }
            (FieldKind::Vector { width }, spec) => {
                let (read, all) = self.experts_read(spec).filter(|_| parameter == "bias").unwrap_or((1, 1));
                width as u64 / all * read * 4
            }
        }
    }

    /// Number of experts that are read, and of all experts. Assumes that rows choose different experts, the
    /// maximum.
    fn experts_read(&self, spec: &Spec) -> Option<(u64, u64)> {
        let Experts { free, shared, .. } = experts(spec)?;
        Some((self.amounts.chosen + shared as u64, (free + shared) as u64))
    }

    /// Positions of keys, or of values, that are read and written.
    fn positions(&self) -> (u64, u64) {
        match &self.instance.spec {
            Spec::RopeAppend(_) | Spec::Append(_) | Spec::MlaAppend(_) => (0, self.amounts.rows),
            // A row's own key and value are written to the cache and used without being read back.
            Spec::AttendSplit(attend) if attend.op.appends() => {
                (self.amounts.distinct_positions.saturating_sub(self.amounts.rows), self.amounts.rows)
            }
            Spec::MlaAttention(attend) if attend.prologue.is_some() => {
                (self.amounts.distinct_positions.saturating_sub(self.amounts.rows), self.amounts.rows)
            }
            Spec::AttendSplit(_) | Spec::AttendTiled(_) | Spec::MlaAttention(_) => {
                (self.amounts.distinct_positions, 0)
            }
            // Its rows are positions.
            Spec::MlaLoadLatents(_) => (self.amounts.rows, 0),
            _ => (0, 0),
        }
    }

    /// Elements of a recurrent state that are read and written. At position 0 nothing is read.
    fn recurrent_state(&self, parameter: &str, elements: u64) -> (u64, u64) {
        let before = self.amounts.before;
        // Conv state is a ring: the row's own entry is written, the others are read.
        let conv_state = |taps: usize, written_rows: u64| {
            let (taps, width) = (taps as u64, elements / taps as u64);
            (before.min(taps - 1) * width, written_rows.min(taps) * width)
        };
        let of_slot = match (&self.instance.spec, parameter) {
            (Spec::Convolve(convolve), _) => conv_state(convolve.taps, self.amounts.rows),
            (Spec::DeltaStep(step), "conv_state") => conv_state(step.taps, 1),
            (Spec::DeltaRule(_) | Spec::DeltaChunks(_) | Spec::DeltaStep(_), _) => {
                (if before > 0 { elements } else { 0 }, elements)
            }
            _ => (0, 0),
        };
        // Its rows belong to different slots.
        let slots = if matches!(self.instance.spec, Spec::DeltaStep(_)) { self.amounts.rows } else { 1 };
        (slots * of_slot.0, slots * of_slot.1)
    }

    /// Scratch bytes that are read and written.
    fn scratch(&self, parameter: &str, scratch: usize) -> (u64, u64) {
        let all = self.amounts.rows * self.plan.scratch[scratch].width as u64 * 4;
        let of_rows = |numbers: usize| self.amounts.rows * numbers as u64 * 4;
        match (&self.instance.spec, parameter) {
            (spec, _) if spec.adds_to(parameter) => (all, all),
            // If routing is a separate step, only the expert indices of the routes are read here.
            (Spec::ExpertsInner(inner), "routes") if inner.op.route.is_none() => (all / 2, 0),
            (Spec::ExpertsGroup(_), "routes") => (all / 2, 0),
            // All possible tiles; their number depends on the rows.
            (Spec::ExpertsGroup(group), "tiles") => (0, group.tiles(self.amounts.rows as usize) as u64 * 12),
            (Spec::ExpertsTiles(tiles), "tiles") => {
                let ExpertsTiles { experts, chosen, shared, tile_rows, .. } = tiles.op;
                // An empty tile is read only up to its pair count. Assumes that rows choose different
                // experts.
                let (pairs, free) = (self.amounts.rows as usize * (chosen - shared), experts - shared);
                let (each, more) = (pairs / free, pairs % free);
                let filled = more * (each + 1).div_ceil(tile_rows)
                    + (free - more) * each.div_ceil(tile_rows)
                    + shared * (self.amounts.rows as usize).div_ceil(tile_rows);
                let all = ExpertsGroup { experts, chosen, tile_rows }.tiles(self.amounts.rows as usize);
                (4 * all as u64 + 8 * filled as u64, 0)
            }
            // The combine step reads the weights of the routes, not the expert indices.
            (Spec::ExpertsCombine(_), "routes") => (all / 2, 0),
            (spec, _) if spec.continues_previous(parameter) => {
                (if self.amounts.positions_before_tile > 0 { all } else { 0 }, all)
            }
            (Spec::MlaAttentionExpanded(attend), "q") => (of_rows(attend.op.heads * attend.op.keys), 0),
            (Spec::MlaAttentionExpanded(_), "keys" | "k_rope" | "values") => {
                (self.amounts.distinct_positions * self.plan.scratch[scratch].width as u64 * 4, 0)
            }
            // One split writes the result; several write partial results for the combine step.
            (Spec::AttendSplit(attend), "partials") if self.amounts.splits > 1 => {
                (0, self.partial_bytes(attend.op.query_heads, attend.op.width))
            }
            (Spec::MlaAttention(attend), "partials") if self.amounts.splits > 1 => {
                (0, self.partial_bytes(attend.heads, attend.width))
            }
            (Spec::AttendSplit(_) | Spec::MlaAttention(_), "partials") => (0, 0),
            (Spec::AttendSplit(_) | Spec::MlaAttention(_), "heads" | "quantized_heads")
                if self.amounts.splits > 1 =>
            {
                (0, 0)
            }
            // The step that writes the final result reads the gates.
            (Spec::AttendSplit(_), "gates") if self.amounts.splits > 1 => (0, 0),
            (Spec::AttendSplit(attend) | Spec::AttendTiled(attend), "gates") => {
                (of_rows(attend.op.query_heads * attend.op.width), 0)
            }
            (Spec::AttendCombine(combine), "gates") => {
                (of_rows(combine.op.query_heads * combine.op.width), 0)
            }
            (Spec::RopeAppend(rope), "qkv") => {
                let heads = rope.query_heads + rope.kv_source.cached_heads(rope.key_heads);
                (of_rows(heads * rope.width), 0)
            }
            (Spec::AttendSplit(attend), "qkv") => {
                let cached = |prologue: &Prologue| prologue.kv_source.cached_heads(attend.op.key_heads);
                let heads = attend.op.query_heads + attend.op.prologue.as_ref().map_or(0, cached);
                (of_rows(heads * attend.op.width), 0)
            }
            // A column range of wider rows.
            (Spec::Linear(linear), "x") => (of_rows(linear.op.inputs), 0),
            (Spec::Quantize(quantize), "x") => (of_rows(quantize.width), 0),
            (Spec::Linear(linear), "factors") => (of_rows(linear.op.outputs), 0),
            (Spec::RmsNorm(norm), "x") => (of_rows(norm.parts * norm.width), 0),
            (Spec::PerHeadLinear(each), "x") => {
                (of_rows(each.op.heads * if each.op.transposed { each.op.rows } else { each.op.columns }), 0)
            }
            (
                Spec::MlaAppend(MlaAppend {
                    width, rope_width, prepare: Some(MlaPrepare { heads, .. }), ..
                })
                | Spec::MlaAttention(MlaAttention { heads, width, rope_width, prologue: Some(_), .. }),
                "queries" | "latent" | "key",
            ) => match parameter {
                "queries" => (of_rows(heads * rope_width), 0),
                "latent" => (of_rows(*width), 0),
                _ => (of_rows(*rope_width), 0),
            },
            (Spec::SliceColumns(take), "x") => (self.amounts.rows * take.width as u64 * 4, 0),
            (Spec::Convolve(convolve), "x") => (self.amounts.rows * convolve.width as u64 * 4, 0),
            (Spec::DeltaRule(rule), "inputs") => (of_rows(rule.inputs() - rule.channels()), 0),
            // Gates are read by the step that normalizes the heads.
            (Spec::DeltaChunks(chunks), "inputs") => (of_rows(2 * chunks.op.rule.heads), 0),
            (Spec::GatedRmsNorm(through), "inputs") => (of_rows(through.heads * through.values), 0),
            (Spec::AttendCombine(combine), "partials") => {
                (self.partial_bytes(combine.op.query_heads, combine.op.width), 0)
            }
            _ if self
                .instance
                .decl
                .buffers
                .iter()
                .any(|buffer| buffer.name == parameter && buffer.written) =>
            {
                (0, all)
            }
            _ => (all, 0),
        }
    }

    /// Output sums, a maximum and a denominator for every split of every head.
    fn partial_bytes(&self, heads: usize, width: usize) -> u64 {
        self.amounts.rows * self.amounts.splits * (heads * (width + 2)) as u64 * 4
    }

    fn operations(&self) -> u64 {
        let attention = |heads: usize, width: usize| 4 * self.amounts.attended * (heads * width) as u64;
        let of_rows = |operations: usize| self.amounts.rows * operations as u64;
        let learning = |rule: &DeltaRule| 8 * rule.heads * rule.keys * rule.values;
        match &self.instance.spec {
            Spec::Linear(linear) => of_rows(2 * linear.op.outputs * linear.op.inputs),
            Spec::Quantize(quantize) => of_rows(2 * quantize.width),
            Spec::AttendSplit(attend) | Spec::AttendTiled(attend) => {
                attention(attend.op.query_heads, attend.op.width)
            }
            Spec::PerHeadLinear(each) => of_rows(2 * each.op.heads * each.op.rows * each.op.columns),
            Spec::MlaAppend(append) => {
                let heads = append.prepare.as_ref().map_or(0, |prepare| prepare.heads + 1);
                of_rows(4 * append.width + 3 * heads * append.rope_width)
            }
            Spec::MlaAttention(attend) => {
                let line = 2 * attend.width + attend.rope_width;
                2 * self.amounts.attended * (attend.heads * line) as u64
            }
            Spec::MlaAttentionExpanded(attend) => {
                let widths = attend.op.keys + attend.op.rope_width + attend.op.values;
                2 * self.amounts.attended * (attend.op.heads * widths) as u64
            }
            Spec::AttendCombine(combine) => {
                2 * self.amounts.splits * of_rows(combine.op.query_heads * combine.op.width)
            }
            Spec::LayerNorm(norm) => of_rows(6 * norm.width),
            Spec::NormAdd(norm) => of_rows(5 * norm.width),
            Spec::RmsNorm(norm) => of_rows(4 * norm.width * norm.parts),
            Spec::Rope(rope) => of_rows(3 * rope.heads * rope.width),
            Spec::RopeAppend(rope) => of_rows(3 * (rope.query_heads + rope.key_heads) * rope.width),
            Spec::Route(route) => of_rows(2 * route.logits()),
            Spec::ExpertsInner(inner) => of_rows(2 * inner.op.chosen * inner.op.outputs * inner.op.inputs),
            Spec::ExpertsSum(sum) => of_rows(2 * sum.op.chosen * sum.op.outputs * sum.op.inputs),
            Spec::ExpertsGroup(group) => of_rows(group.chosen),
            Spec::ExpertsTiles(tiles) => of_rows(2 * tiles.op.chosen * tiles.op.outputs * tiles.op.inputs),
            Spec::ExpertsCombine(combine) => of_rows(2 * combine.chosen * combine.width),
            Spec::Elementwise(elementwise) => of_rows(elementwise.width),
            Spec::Convolve(convolve) => of_rows(2 * convolve.taps * convolve.width),
            Spec::DeltaRule(rule) => of_rows(learning(rule)),
            // Three products with the state, and products with the earlier rows of the chunk: half of them on
            // average, and half of the row's own 8 by 8 matrix.
            Spec::DeltaChunks(chunks) => {
                let (DeltaRule { heads, keys, values, .. }, rows) = (chunks.op.rule, chunks.layout.rows);
                of_rows(heads * (6 * keys * values + (rows + 8) * (2 * keys + 2 * values)))
            }
            Spec::GatedRmsNorm(through) => of_rows(6 * through.heads * through.values),
            Spec::DeltaStep(step) => of_rows(2 * step.taps * step.rule.channels() + learning(&step.rule)),
            // A sampling weight for each logit.
            Spec::Sample(sample) => of_rows(8 * sample.vocabulary),
            Spec::Embed(_)
            | Spec::Append(_)
            | Spec::MlaLoadLatents(_)
            | Spec::SliceColumns(_)
            | Spec::Argmax(_)
            | Spec::ArgmaxCombine(_) => 0,
        }
    }
}

/// Bytes of a stored row that a kernel reads: 16-byte packets up to the row's columns, and the scales of
/// their groups. Padding beyond them is not read.
fn row_bytes(format: Format, columns: usize) -> u64 {
    let plane = |plane: &forge_ir::Plane| {
        let group = plane.per_group * plane.element.bytes();
        match plane.element {
            PlaneElement::F16 if plane.name == "scales" => columns.div_ceil(format.group()) * group,
            PlaneElement::U8 if plane.name == "scales" && format.group() == BLOCK => {
                columns.div_ceil(BLOCK) * group
            }
            _ => (columns * group).div_ceil(format.group()).next_multiple_of(16),
        }
    };
    format.planes().iter().map(plane).sum::<usize>() as u64
}

/// Cost of a whole pass, head included.
pub fn pass_cost(plan: &Plan, load: Workload) -> Cost {
    let mut cost = Cost::default();
    for (section, step) in plan.steps_of(load) {
        cost += step_cost(plan, section, step, load);
    }
    cost
}
