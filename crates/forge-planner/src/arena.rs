//! Places scratch buffers in one arena: buffers alive at the same step never share a byte.
//!
//! Greedy by size, largest first, each at the lowest offset free of all neighbours in time. That is not optimal in
//! general; the plan states the floor (the most bytes alive at one step) beside the result, so a gap is seen.

use crate::plan::{Plan, Scratch};

/// Every buffer starts at a multiple of this: a Metal buffer offset that suits any element type, and a cache line pair.
const ALIGNMENT: usize = 256;

/// Sets every offset and the arena's size.
pub(crate) fn assign(plan: &mut Plan) {
    for scratch in &mut plan.scratch {
        scratch.bytes = (scratch.width * scratch.rows * 4).next_multiple_of(ALIGNMENT);
    }
    let mut order: Vec<usize> = (0..plan.scratch.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(plan.scratch[*index].bytes));
    let mut placed: Vec<usize> = Vec::new();
    for index in order {
        let mut neighbours: Vec<(usize, usize)> = placed
            .iter()
            .map(|other| &plan.scratch[*other])
            .filter(|other| together(other, &plan.scratch[index]))
            .map(|other| (other.offset, other.offset + other.bytes))
            .collect();
        neighbours.sort_unstable();
        let mut offset = 0;
        for (start, end) in neighbours {
            if offset + plan.scratch[index].bytes <= start {
                break;
            }
            offset = offset.max(end);
        }
        plan.scratch[index].offset = offset;
        placed.push(index);
    }
    plan.arena_bytes = plan.scratch.iter().map(|scratch| scratch.offset + scratch.bytes).max().unwrap_or(0);
    plan.arena_floor = floor(plan);
}

/// Whether two buffers are ever alive at one step.
fn together(a: &Scratch, b: &Scratch) -> bool {
    let overlap =
        |a: &(usize, usize, usize), b: &(usize, usize, usize)| a.0 == b.0 && a.1 <= b.2 && b.1 <= a.2;
    a.lifetimes.is_empty()
        || b.lifetimes.is_empty()
        || a.lifetimes.iter().any(|a| b.lifetimes.iter().any(|b| overlap(a, b)))
}

/// The most bytes alive at one step.
fn floor(plan: &Plan) -> usize {
    let alive = |scratch: &Scratch, section, step| {
        scratch.lifetimes.is_empty()
            || scratch
                .lifetimes
                .iter()
                .any(|(s, first, last)| *s == section && (*first..=*last).contains(&step))
    };
    let steps = plan
        .sections
        .iter()
        .enumerate()
        .flat_map(|(section, data)| (0..data.steps.len()).map(move |step| (section, step)));
    steps
        .map(|(section, step)| {
            plan.scratch
                .iter()
                .filter(|scratch| alive(scratch, section, step))
                .map(|scratch| scratch.bytes)
                .sum()
        })
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str, bytes: usize, lifetimes: &[(usize, usize, usize)]) -> Scratch {
        let (width, rows) = (bytes / 4, 1);
        Scratch { name: name.to_owned(), width, rows, offset: 0, bytes: 0, lifetimes: lifetimes.to_vec() }
    }

    #[test]
    fn lifetimes_decide_who_shares() {
        let always = scratch("stream", 256, &[]);
        let early = scratch("normed", 256, &[(1, 0, 1)]);
        let late = scratch("heads", 256, &[(1, 2, 3)]);
        let elsewhere = scratch("logits", 256, &[(2, 0, 9)]);
        assert!(together(&always, &early));
        assert!(!together(&early, &late));
        assert!(!together(&late, &elsewhere));
        assert!(together(&early, &scratch("qkv", 256, &[(1, 1, 2)])));
    }
}
