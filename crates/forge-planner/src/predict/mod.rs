//! How long a pass takes on a chip: a prediction, from the chip's specifications and the plan's bytes and operations.
//!
//! A step takes the longer of moving its bytes and doing its operations, at the share of the chip's peaks that good
//! kernels reach; then what is lost once too few of its threadgroups are left; then its launch:
//!
//! ```text
//! seconds = max(bytes / (efficiency · bandwidth), operations / (efficiency · rate)) + tail + start [+ barrier]
//! ```
//!
//! A pass is the sum of its steps and one submission. Steps that need not wait for each other may overlap on a GPU; here
//! they do not. What is taken from memory twice because the chip's caches are small is not seen, nor is the decoding of
//! weights.

pub(crate) mod chips;
pub(crate) mod cost;
pub(crate) mod kernel_cost;
pub(crate) mod report;

use crate::plan::workload::Workload;
use crate::plan::{Plan, Section, Step};
use crate::predict::chips::Chip;
use crate::predict::cost::{Cost, step_cost};
use forge_kernels::spec::Rows;
use forge_kernels::{Instance, Spec};
use serde::Serialize;
use std::ops::AddAssign;

/// Lanes of a simdgroup.
const LANES: u32 = 32;

/// Seconds, by what they go to. The shorter of memory and arithmetic hides behind the longer, and is 0 in a step's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Time {
    /// Moving bytes, where that takes longer than the arithmetic.
    pub memory: f64,
    /// Arithmetic, where that takes longer than moving the bytes.
    pub arithmetic: f64,
    /// Too few threadgroups to keep the chip busy, at the end of a step or throughout.
    pub tail: f64,
    /// Starting steps, waiting for those before, submitting passes.
    pub launches: f64,
}

impl Time {
    /// All of it.
    pub fn seconds(&self) -> f64 {
        self.memory + self.arithmetic + self.tail + self.launches
    }

    /// What most of it goes to.
    pub fn limit(&self) -> Limit {
        let overhead = self.tail + self.launches;
        if overhead > self.memory.max(self.arithmetic) {
            Limit::Launches
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
        self.tail += other.tail;
        self.launches += other.launches;
    }
}

/// What keeps a step or a pass from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Bytes.
    Bandwidth,
    /// Operations.
    Arithmetic,
    /// The number of steps, or too little work in them.
    Launches,
}

impl Limit {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Bandwidth => "bandwidth",
            Limit::Arithmetic => "arithmetic",
            Limit::Launches => "launches",
        }
    }
}

/// One step of a prediction: equal steps of equal layers are one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTime {
    /// The section's name.
    pub section: String,
    /// Its place among the section's steps.
    pub place: usize,
    /// The step's name.
    pub step: String,
    /// The kernel that runs.
    pub kernel: String,
    /// How often it runs in the pass.
    pub times: u64,
    /// Whether a barrier stands before it.
    pub waits: bool,
    /// Threadgroups of one run.
    pub groups: u64,
    /// Threads of a threadgroup.
    pub threads: u32,
    /// Times that all cores are filled with threadgroups, the last time perhaps not whole.
    pub waves: u64,
    /// Of one run.
    pub cost: Cost,
    /// Of one run.
    pub time: Time,
}

/// A pass on a chip.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// What the pass is given.
    pub load: Workload,
    /// Its steps in order.
    pub steps: Vec<StepTime>,
    /// Steps launched.
    pub dispatches: u64,
    /// Barriers between them.
    pub barriers: u64,
    /// Of the whole pass.
    pub cost: Cost,
    /// Of the whole pass.
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
        // Of one section's applications the steps are the same; within a section two may have one name.
        let place = section.steps(load.regime().schedule()).iter().position(|it| std::ptr::eq(it, step));
        let place = place.unwrap_or_default();
        let same = |other: &&mut StepTime| (&other.section, other.place) == (&section.name, place);
        match whole.steps.iter_mut().find(same) {
            Some(known) => known.times += 1,
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

/// Predicts the reading of a prompt: as many passes as its tokens need, the head at the end of the last. The steps are
/// those of the last pass.
pub fn predict_prompt(plan: &Plan, chip: &Chip, tokens: u64) -> Prediction {
    let chunk = plan.chunk as u64;
    let pass = |length: u64| {
        let rows = if length.is_multiple_of(chunk) { chunk } else { length % chunk };
        let load = Workload { rows, wanted: u64::from(length == tokens), length, splits: 1, drawn: false };
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
    let mut time = if arithmetic > memory {
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

/// Operations a second of the units that a kernel computes with.
fn rate(chip: &Chip, spec: &Spec) -> f64 {
    match spec {
        Spec::Project(project) if project.rows != Rows::One => chip.matrix_rate(),
        Spec::AttendTiled(_) | Spec::DeltaChunks(_) => chip.matrix_rate(),
        _ => chip.f32_rate(),
    }
}

/// How a kernel's threadgroups fill a chip.
struct Launch {
    groups: u64,
    simdgroups: u64,
    /// Threadgroups that the chip holds at once.
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

    /// What the last wave adds where arithmetic binds, as a share of the time that a filled chip would need: a wave takes
    /// as long as a full one, however few threadgroups it has.
    fn lost_to_waves(&self) -> f64 {
        let waves = self.groups.div_ceil(self.at_once);
        (waves * self.at_once) as f64 / self.groups as f64 - 1.0
    }

    /// What the end adds where memory binds, likewise. Fewer simdgroups than keep memory busy move bytes in proportion to
    /// their number: from the start, where there are no more, or once the others have finished. Those that are left
    /// then have on average half of their share of the way before them.
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
