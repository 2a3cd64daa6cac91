//! The time of each step and of a pass. The module documentation has the formula.

use crate::plan::workload::Workload;
use crate::plan::{Plan, Section, Step};
use crate::predict::chips::Chip;
use crate::predict::cost::{Cost, step_cost};
use forge_kernels::spec::Operand;
use forge_kernels::{Instance, Spec};
use serde::Serialize;
use std::ops::AddAssign;

/// Lanes of a simdgroup.
const LANES: u32 = 32;

/// Seconds by cause. In a step only the longest of memory, arithmetic and on-core traffic counts; the others
/// are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Time {
    /// Memory traffic, if it takes longest.
    pub memory: f64,
    /// Arithmetic, if it takes longest.
    pub arithmetic: f64,
    /// Loads and stores of threadgroup memory and caches, if they take longest.
    pub on_core: f64,
    /// Low occupancy: too few threadgroups to fill the chip, at the end of a step or throughout.
    pub tail: f64,
    /// Launches, barriers and submissions.
    pub launches: f64,
}

impl Time {
    /// Total.
    pub fn seconds(&self) -> f64 {
        self.memory + self.arithmetic + self.on_core + self.tail + self.launches
    }

    /// The largest contribution.
    pub fn limit(&self) -> Limit {
        let overhead = self.tail + self.launches;
        if overhead > self.memory.max(self.arithmetic).max(self.on_core) {
            Limit::Launches
        } else if self.on_core > self.memory.max(self.arithmetic) {
            Limit::OnCore
        } else if self.arithmetic > self.memory {
            Limit::Arithmetic
        } else {
            Limit::Bandwidth
        }
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Time) {
        self.memory += other.memory;
        self.arithmetic += other.arithmetic;
        self.on_core += other.on_core;
        self.tail += other.tail;
        self.launches += other.launches;
    }
}

/// What limits a step or a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Memory bandwidth.
    Bandwidth,
    /// Compute rate.
    Arithmetic,
    /// Rate of loads and stores on a core.
    OnCore,
    /// Launch overhead and low occupancy.
    Launches,
}

impl Limit {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Bandwidth => "bandwidth",
            Limit::Arithmetic => "arithmetic",
            Limit::OnCore => "on-core loads",
            Limit::Launches => "launches",
        }
    }
}

/// One step of a prediction. Equal steps of equal layers are merged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTime {
    /// Name of the section.
    pub section: String,
    /// Index among the section's steps.
    pub place: usize,
    /// Name of the step.
    pub step: String,
    /// Name of the kernel.
    pub kernel: String,
    /// Number of runs in the pass.
    pub times: u64,
    /// Whether a barrier precedes it.
    pub waits: bool,
    /// Threadgroups per run.
    pub groups: u64,
    /// Threads per threadgroup.
    pub threads: u32,
    /// Waves of threadgroups over all cores; the last may be partial.
    pub waves: u64,
    /// Cost of one run.
    pub cost: Cost,
    /// Time of one run.
    pub time: Time,
}

/// Predicted pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Workload.
    pub load: Workload,
    /// Steps in order.
    pub steps: Vec<StepTime>,
    /// Number of dispatches.
    pub dispatches: u64,
    /// Number of barriers.
    pub barriers: u64,
    /// Cost of the whole pass.
    pub cost: Cost,
    /// Time of the whole pass.
    pub time: Time,
}

/// Predicts a pass.
pub fn predict(plan: &Plan, chip: &Chip, load: Workload) -> Prediction {
    let load = load.on(plan, chip.cores);
    let submission = Time { launches: Chip::SUBMISSION, ..Time::default() };
    let (cost, steps) = (Cost::default(), Vec::new());
    let mut whole = Prediction { load, steps, dispatches: 0, barriers: 0, cost, time: submission };
    for (section, step) in plan.steps_of(load) {
        let Some(instance) = plan.instance(section, step, load) else { continue };
        // Steps are equal in all applications of a section; within a section two steps may share a name.
        let place = section.steps(load.regime().schedule()).iter().position(|it| std::ptr::eq(it, step));
        let place = place.unwrap_or_default();
        let same = |other: &&mut StepTime| (&other.section, other.place) == (&section.name, place);
        match whole.steps.iter_mut().find(same) {
            Some(step) => step.times += 1,
            None => {
                let new = step_time(plan, chip, (section, step, instance), load);
                whole.steps.push(StepTime { place, ..new });
            }
        }
    }
    for step in &whole.steps {
        whole.dispatches += step.times;
        whole.barriers += if step.waits { step.times } else { 0 };
        for _ in 0..step.times {
            whole.cost += step.cost;
            whole.time += step.time;
        }
    }
    whole
}

/// Predicts prefill of a prompt: as many passes as its tokens need, with the head at the end of the last. The
/// listed steps are those of the last pass.
pub fn predict_prompt(plan: &Plan, chip: &Chip, tokens: u64) -> Prediction {
    let chunk = plan.chunk as u64;
    let pass = |length: u64| {
        let rows = if length.is_multiple_of(chunk) { chunk } else { length % chunk };
        let wanted = u64::from(length == tokens);
        let load = Workload { rows, sequences: 1, wanted, length, splits: 1, drawn: false };
        predict(plan, chip, load)
    };
    let mut whole = pass(tokens);
    for end in (chunk..tokens).step_by(plan.chunk) {
        let Prediction { dispatches, barriers, cost, time, .. } = pass(end);
        whole.dispatches += dispatches;
        whole.barriers += barriers;
        whole.cost += cost;
        whole.time += time;
    }
    Prediction { load: Workload { rows: tokens, ..whole.load }, ..whole }
}

fn step_time(
    plan: &Plan,
    chip: &Chip,
    (section, step, instance): (&Section, &Step, &Instance),
    load: Workload,
) -> StepTime {
    let cost = step_cost(plan, section, step, load);
    let rows = plan.rows_of(section, load) as u32;
    let scalars = [("rows", rows), ("context", plan.context as u32), ("splits", load.splits as u32)];
    let sides = instance.decl.grid.iter().map(|side| u64::from(side.eval(&scalars).unwrap_or(1)));
    let groups = sides.product::<u64>().max(1);
    let launch = Launch::of(chip, instance, groups);
    let memory = cost.bytes() as f64 / chip.attained_bandwidth();
    let arithmetic = cost.operations as f64 / (chip.efficiency * rate(chip, &instance.spec));
    let on_core = chip.on_core_rate().map_or(0.0, |rate| cost.on_core as f64 / (chip.efficiency * rate));
    let mut time = if on_core > arithmetic.max(memory) {
        Time { on_core, tail: on_core * launch.lost_to_waves(), ..Time::default() }
    } else if arithmetic > memory {
        Time { arithmetic, tail: arithmetic * launch.lost_to_waves(), ..Time::default() }
    } else {
        Time { memory, tail: memory * launch.lost_to_draining(chip), ..Time::default() }
    };
    time.launches = chip.start_seconds() + if step.waits { chip.wait_seconds() } else { 0.0 };
    StepTime {
        section: section.name.clone(),
        place: 0,
        step: step.name.clone(),
        kernel: instance.name.clone(),
        times: 1,
        waits: step.waits,
        groups,
        threads: instance.decl.threads,
        waves: groups.div_ceil(launch.at_once),
        cost,
        time,
    }
}

/// Operations per second of the execution units that a kernel uses.
fn rate(chip: &Chip, spec: &Spec) -> f64 {
    match spec {
        _ if spec.tensor_operand() == Some(Operand::F16) => chip.tensor_rate(),
        Spec::Linear(linear) if !linear.layout.rows.is_decode() || linear.layout.knobs.mma => {
            chip.matrix_rate()
        }
        Spec::AttendTiled(_) | Spec::DeltaChunks(_) | Spec::ExpertsTiles(_) => chip.matrix_rate(),
        _ => chip.f32_rate(),
    }
}

/// How a kernel's threadgroups fill a chip.
struct Launch {
    groups: u64,
    simdgroups: u64,
    /// Threadgroups resident on the chip at once.
    at_once: u64,
}

impl Launch {
    fn of(chip: &Chip, instance: &Instance, groups: u64) -> Launch {
        let simdgroups = instance.decl.threads.div_ceil(LANES);
        let fit = Chip::RESIDENT / simdgroups;
        let memory = Chip::THREADGROUP_MEMORY.checked_div(instance.decl.threadgroup_bytes);
        let resident = fit.min(memory.unwrap_or(fit)).max(1);
        Launch { groups, simdgroups: u64::from(simdgroups), at_once: u64::from(chip.cores * resident) }
    }

    /// Cost of the last wave when compute-bound, as a fraction of the time on a full chip. A partial wave
    /// takes as long as a full one.
    fn lost_to_waves(&self) -> f64 {
        let waves = self.groups.div_ceil(self.at_once);
        (waves * self.at_once) as f64 / self.groups as f64 - 1.0
    }

    /// Cost of the tail when memory-bound, as a fraction of the time on a full chip. Fewer simdgroups than
    /// saturate memory move bytes in proportion to their number. This lasts from the start if there are no
    /// more, otherwise from when the others have finished; the remaining ones then have half of their work
    /// left on average.
    fn lost_to_draining(&self, chip: &Chip) -> f64 {
        let held = self.at_once * self.simdgroups;
        let busy = u64::from(chip.cores * Chip::STREAMING).min(held) as f64;
        let all = (self.groups * self.simdgroups) as f64;
        if self.groups <= self.at_once {
            (busy / all - 1.0).max(0.0)
        } else {
            busy * busy / (2.0 * held as f64 * all)
        }
    }
}
