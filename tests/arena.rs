//! Every step reads data that an earlier step of the pass wrote. The test follows the passes of every model
//! through the arena. A buffer is overwritten when another one overwrites a byte of it.

use forge_planner::{Fusion, Operand, Options, Plan, Section, Step, Workload, plan};
use std::ops::Range;
use tests::{graph, models, rows_of};

/// Follows a pass and returns the reads of data that is missing or overwritten.
fn overwritten_buffers(plan: &Plan, load: Workload) -> Vec<String> {
    let bytes = |index: usize| -> Range<usize> {
        let scratch = &plan.scratch[index];
        scratch.offset..scratch.offset + 4 * scratch.width * rows_of(scratch, load)
    };
    let mut there = vec![false; plan.scratch.len()];
    let mut overwritten_buffers = Vec::new();
    let once: Vec<(&Section, &Step)> = plan.steps_of(load).collect();
    // Adjacent steps that run once per tile all run for one tile before the next one.
    let each_time = once.chunk_by(|one, next| one.1.condition == next.1.condition).flat_map(|neighbors| {
        let kv_ranges = plan.kv_ranges(neighbors[0].1, load);
        kv_ranges.flat_map(|kv_range| {
            neighbors.iter().map(move |(section, step)| (*section, *step, kv_range.start))
        })
    });
    for (section, step, begin) in each_time {
        let instance = plan.instance(section, step, load).expect("it runs");
        let goes_on = |name: &str| begin > 0 && instance.spec.continues_previous(name);
        let bound = |read: bool| {
            let buffers = instance.decl.buffers.iter().filter(move |buffer| match read {
                true => !buffer.written || instance.spec.adds_to(&buffer.name) || goes_on(&buffer.name),
                false => buffer.written,
            });
            buffers.filter_map(|buffer| {
                match step.arguments.iter().find(|argument| argument.parameter == buffer.name)?.operand {
                    Operand::Scratch(scratch) => Some(scratch),
                    _ => None,
                }
            })
        };
        for read in bound(true).filter(|read| !there[*read]) {
            overwritten_buffers.push(format!(
                "{} {load:?}: {}.{} reads `{}`",
                plan.model.name, section.name, step.name, plan.scratch[read].name
            ));
        }
        for written in bound(false) {
            let own = bytes(written);
            for (other, there) in there.iter_mut().enumerate() {
                let others = bytes(other);
                *there &= others.end <= own.start || own.end <= others.start;
            }
            there[written] = true;
        }
    }
    overwritten_buffers
}

#[test]
fn arena_buffers_are_not_overwritten_while_in_use() {
    let mut errors = Vec::new();
    for name in models() {
        let graph = graph(&name);
        for disabled in [&[][..], &Fusion::ALL] {
            let options =
                Options { chunk: 64, disabled: disabled.iter().copied().collect(), ..Options::default() };
            let mut plan = plan(&graph, &options).unwrap_or_else(|faults| panic!("{name}: {faults:?}"));
            // Several tiles, the last of which is shorter.
            plan.mla_expand.iter_mut().for_each(|mla_expand| mla_expand.tile = 24);
            for load in [
                Workload::decode(1),
                Workload { splits: 2, drawn: true, ..Workload::decode(70) },
                Workload { rows: 5, sequences: 1, wanted: 3, length: 9, splits: 1, drawn: true },
                Workload { rows: 3, sequences: 1, wanted: 1, length: 70, splits: 2, drawn: false },
                Workload { rows: 40, sequences: 1, wanted: 3, length: 64, splits: 1, drawn: false },
                Workload { rows: 64, sequences: 1, wanted: 3, length: 100, splits: 1, drawn: false },
            ] {
                errors.extend(overwritten_buffers(&plan, load));
            }
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}
