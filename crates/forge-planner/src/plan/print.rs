//! The plan as text for snapshots and `inspect`. The output is deterministic.

use crate::lower::mla_expand::MlaExpand;
use crate::plan::model_plan::{Plan, packed_bytes};
use crate::plan::regime::Schedule;
use crate::plan::section::{FieldKind, Section};
use crate::plan::step::{Condition, Operand, Step};
use crate::plan::workload::Workload;
use crate::predict::cost::{pass_cost, step_cost};
use serde_json::{Value, json};
use std::fmt::{Display, Formatter, Result};

impl Plan {
    /// Workloads whose costs are printed: decode of one token, and one prefill pass.
    fn printed(&self, schedule: Schedule) -> Workload {
        match schedule {
            Schedule::Decode => Workload::decode(self.context.min(1024) as u64),
            Schedule::Batch => Workload::prefill(self.context.min(self.chunk) as u64),
        }
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let model = &self.model;
        writeln!(f, "plan {} · {}", model.name, model.architecture)?;
        writeln!(
            f,
            "  context {} · slots {} · chunk {} rows · cache {}",
            self.context, self.slots, self.chunk, self.cache
        )?;
        let formats = self.bytes_by_format().into_iter().map(|(format, bytes)| format!("{format} {bytes}"));
        writeln!(f, "  weights {} bytes: {}", self.weight_bytes(), formats.collect::<Vec<_>>().join(", "))?;
        writeln!(f, "  cache {} bytes per position and slot", self.cache_bytes_per_position())?;
        for (ring, bytes) in self.rings() {
            writeln!(
                f,
                "  of these {bytes} in layers with a sliding window of {} positions, in a ring of {}",
                ring.window, ring.positions
            )?;
        }
        if let Some(MlaExpand { min_rows, tile }) = self.mla_expand {
            writeln!(
                f,
                "  MLA is expanded from {min_rows} rows of one slot on, in tiles of {tile} positions"
            )?;
        }
        writeln!(f, "  arena {} bytes (lower bound {})", self.arena_bytes, self.arena_floor)?;
        self.print_pass(f, "decode", self.printed(Schedule::Decode))?;
        self.print_pass(f, "prefill", self.printed(Schedule::Batch))?;
        writeln!(f)?;
        for scratch in &self.scratch {
            let alive = scratch.lifetimes.iter().map(|life| {
                let section = &self.sections[life.section].name;
                format!("{} {section} {}..={}", life.schedule.name(), life.first, life.last)
            });
            let alive: Vec<String> = alive.collect();
            let alive = if alive.is_empty() { "always".to_owned() } else { alive.join(", ") };
            let range = format!("{}..{}", scratch.offset, scratch.offset + scratch.bytes);
            writeln!(
                f,
                "scratch {:<13} {range:<18} [{}, {}] f32, alive {alive}",
                scratch.name, scratch.rows, scratch.width
            )?;
        }
        let mut first = 0;
        while first < self.applications.len() {
            let section = self.applications[first].section;
            let same = self.applications[first..]
                .iter()
                .take_while(|application| application.section == section)
                .count();
            let name = &self.sections[section].name;
            let times = if same == 1 { String::new() } else { format!(" × {same}") };
            writeln!(f, "\nsection {name}{times}")?;
            self.print_section(f, &self.sections[section])?;
            first += same;
        }
        Ok(())
    }
}

impl Plan {
    fn print_pass(&self, f: &mut Formatter<'_>, what: &str, load: Workload) -> Result {
        let counts = self.counts(load);
        let cost = pass_cost(self, load);
        writeln!(
            f,
            "  {what} of {} at {} positions: {} dispatches, {} barriers, {} bytes, {} operations",
            load.rows,
            load.length,
            counts.dispatches,
            counts.barriers,
            cost.bytes(),
            cost.operations
        )
    }

    fn print_section(&self, f: &mut Formatter<'_>, section: &Section) -> Result {
        for field in &section.fields {
            let what = match field.kind {
                FieldKind::Matrix { format, rows, columns } => format!("{format} [{rows}, {columns}]"),
                FieldKind::Experts { experts, format, rows, columns } => {
                    format!("{format} [{experts}, {rows}, {columns}]")
                }
                FieldKind::Vector { width } => format!("f32 [{width}]"),
            };
            writeln!(
                f,
                "{}",
                format!("  weight {:<16} {what:<20} {}", field.name, field.comment).trim_end()
            )?;
        }
        if let Some(state) = section.state {
            match state.values {
                true => writeln!(
                    f,
                    "  cache  keys, values     {} [slot, {}, position, {}]",
                    self.cache, state.heads, state.width
                ),
                false => {
                    writeln!(f, "  cache  latents          {} [slot, position, {}]", self.cache, state.width)
                }
            }?;
        }
        for recurrent_state in &section.recurrent_states {
            let shape: Vec<String> = recurrent_state.shape.iter().map(usize::to_string).collect();
            writeln!(f, "  state {:<16} f32 [slot, {}]", recurrent_state.name, shape.join(", "))?;
        }
        for schedule in Schedule::ALL {
            writeln!(f, "  {}", schedule.name())?;
            for (index, step) in section.steps(schedule).iter().enumerate() {
                self.print_step(f, (section, schedule), index, step)?;
            }
        }
        Ok(())
    }

    fn print_step(
        &self,
        f: &mut Formatter<'_>,
        (section, schedule): (&Section, Schedule),
        index: usize,
        step: &Step,
    ) -> Result {
        let function = &self.functions[step.function];
        let condition = match step.condition {
            Condition::Always => "",
            Condition::Split => " (if KV is split)",
            Condition::SeveralRows => " (if several rows)",
            Condition::SharedSlots => " (if rows share a slot)",
            Condition::SeparateSlots => " (unless rows share a slot)",
            Condition::Many => " (if many rows)",
            Condition::Absorbed => " (if MLA is absorbed)",
            Condition::Expanded => " (if MLA is expanded, for each KV tile)",
            Condition::Greedy => " (if greedy)",
            Condition::Drawn => " (if sampling)",
        };
        if step.waits {
            let name = |step: &Option<usize>| {
                step.map_or("earlier sections", |step| section.steps(schedule)[step].name.as_str())
            };
            let for_what: Vec<&str> = step.waits_for.iter().map(name).collect();
            writeln!(f, "    barrier for {}", for_what.join(", "))?;
        }
        writeln!(f, "  {index} {:<14} {}{condition}", step.name, step.formula)?;
        if let Some(reason) = &step.reason {
            writeln!(f, "           because      {reason}")?;
        }
        for variant in &function.variants {
            let kernel = &self.kernels[variant.kernel];
            let regimes: Vec<&str> = variant.regimes.iter().map(|regime| regime.name()).collect();
            let grid: Vec<String> = kernel.decl.grid.iter().map(ToString::to_string).collect();
            writeln!(
                f,
                "           {:<12} {} <- {} threads over {}",
                regimes.join(", "),
                kernel.name,
                kernel.decl.threads,
                grid.join(" x ")
            )?;
        }
        for argument in &step.arguments {
            let what = match argument.operand {
                Operand::Field(field) => format!("weight {}", section.fields[field].name),
                Operand::Scratch(scratch) => {
                    let scratch = &self.scratch[scratch];
                    format!("{} {}..{}", scratch.name, scratch.offset, scratch.offset + scratch.bytes)
                }
                Operand::Keys => "cache keys".to_owned(),
                Operand::Values => "cache values".to_owned(),
                Operand::Latents => "cache latents".to_owned(),
                Operand::RecurrentState(recurrent_state) => {
                    format!("state {}", section.recurrent_states[recurrent_state].name)
                }
                Operand::Batch(column) => format!("batch {}", column.name()),
                Operand::ExpertSlots => "expert slot table".to_owned(),
            };
            writeln!(f, "           {:<12} {what}", argument.parameter)?;
        }
        let mut load = self.printed(schedule);
        match step.condition {
            Condition::Split => load.splits = 2,
            Condition::Drawn => load.drawn = true,
            // The printed workload already determines the other conditions.
            _ => {}
        }
        if self.instance(section, step, load).is_none() {
            return Ok(());
        }
        let cost = step_cost(self, section, step, load);
        writeln!(
            f,
            "           {} bytes read, {} written, {} operations",
            cost.read(),
            cost.written(),
            cost.operations
        )
    }
}

impl Plan {
    /// The plan as JSON.
    pub fn to_json(&self) -> Value {
        let kernel = |kernel: &forge_kernels::Instance| json!({"name": kernel.name, "spec": kernel.spec, "signature": signature(&kernel.decl)});
        let weight = |packed: &forge_ir::Packed| json!({"packed": packed, "bytes": packed_bytes(packed)});
        let costs = |section: &Section| {
            let steps = section.decode.iter();
            steps
                .map(|step| step_cost(self, section, step, self.printed(Schedule::Decode)))
                .collect::<Vec<_>>()
        };
        json!({
            "model": self.model,
            "context": self.context,
            "slots": self.slots,
            "chunk": self.chunk,
            "cache": self.cache,
            "mla_expand": self.mla_expand,
            "cache_bytes_per_position": self.cache_bytes_per_position(),
            "state_bytes": self.state_bytes(self.context, self.slots),
            "weight_bytes": self.weight_bytes(),
            "arena": {"bytes": self.arena_bytes, "floor": self.arena_floor, "buffers": self.scratch},
            "decode": self.counts(Workload::decode(1)),
            "weights": self.weights.iter().map(weight).collect::<Vec<_>>(),
            "kernels": self.kernels.iter().map(kernel).collect::<Vec<_>>(),
            "functions": self.functions,
            "sections": self.sections,
            "decode_cost": self.sections.iter().map(costs).collect::<Vec<_>>(),
            "applications": self.applications,
        })
    }
}

/// A kernel's signature as JSON.
pub fn signature(decl: &forge_kernels::KernelDecl) -> Value {
    let buffer = |buffer: &forge_kernels::Buffer| json!({"name": buffer.name, "element": buffer.element, "written": buffer.written, "slot": buffer.slot});
    json!({
        "buffers": decl.buffers.iter().map(buffer).collect::<Vec<_>>(),
        "scalars": decl.scalars,
        "threads": decl.threads,
        "threadgroup_bytes": decl.threadgroup_bytes,
        "grid": decl.grid.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
