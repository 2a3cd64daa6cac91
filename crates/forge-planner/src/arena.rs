//! Places scratch buffers in one arena: buffers alive at the same step never share a byte.
//!
//! Greedy: each buffer goes to the lowest offset free of all neighbours in time. That is not optimal in general; the
//! plan states the floor (the most bytes alive at one step) beside the result, so a gap is seen.

use crate::plan::{Life, Plan, Schedule, Scratch};

/// Every buffer starts at a multiple of this: a Metal buffer offset that suits any element type, and a cache line pair.
const ALIGNMENT: usize = 256;

/// Sets every offset and the arena's size.
pub(crate) fn assign(plan: &mut Plan) {
    plan.arena_bytes = place(&mut plan.scratch);
    plan.arena_floor = floor(plan);
}

/// Sets every buffer's bytes and offset; gives the arena's size.
///
/// Two orders of placing are tried, since neither is best for every plan: the largest first, and in order of birth.
fn place(buffers: &mut [Scratch]) -> usize {
    for buffer in &mut *buffers {
        buffer.bytes = (buffer.width * buffer.rows * 4).next_multiple_of(ALIGNMENT);
    }
    let mut by_size: Vec<usize> = (0..buffers.len()).collect();
    by_size.sort_by_key(|index| std::cmp::Reverse(buffers[*index].bytes));
    let mut by_birth: Vec<usize> = (0..buffers.len()).collect();
    by_birth.sort_by_key(|index| buffers[*index].lifetimes.first().copied());
    let best = [by_size, by_birth].into_iter().min_by_key(|order| place_in(buffers, order));
    best.map_or(0, |order| place_in(buffers, &order))
}

/// Places buffers in this order, each at the lowest offset free of all neighbours in time.
fn place_in(buffers: &mut [Scratch], order: &[usize]) -> usize {
    let mut placed: Vec<usize> = Vec::new();
    let mut size = 0;
    for &index in order {
        let mut neighbours: Vec<(usize, usize)> = placed
            .iter()
            .map(|other| &buffers[*other])
            .filter(|other| together(other, &buffers[index]))
            .map(|other| (other.offset, other.offset + other.bytes))
            .collect();
        neighbours.sort_unstable();
        let mut offset = 0;
        for (start, end) in neighbours {
            if offset + buffers[index].bytes <= start {
                break;
            }
            offset = offset.max(end);
        }
        buffers[index].offset = offset;
        size = size.max(offset + buffers[index].bytes);
        placed.push(index);
    }
    size
}

/// Whether two buffers are ever alive at one step.
fn together(a: &Scratch, b: &Scratch) -> bool {
    let overlap = |a: &Life, b: &Life| {
        (a.schedule, a.section) == (b.schedule, b.section) && a.first <= b.last && b.first <= a.last
    };
    a.lifetimes.is_empty()
        || b.lifetimes.is_empty()
        || a.lifetimes.iter().any(|a| b.lifetimes.iter().any(|b| overlap(a, b)))
}

/// The most bytes alive at one step.
fn floor(plan: &Plan) -> usize {
    let alive = |scratch: &Scratch, (schedule, section, step): (Schedule, usize, usize)| {
        let covers = |life: &Life| {
            (life.schedule, life.section) == (schedule, section) && (life.first..=life.last).contains(&step)
        };
        scratch.lifetimes.is_empty() || scratch.lifetimes.iter().any(covers)
    };
    let moments = plan.sections.iter().enumerate().flat_map(|(section, data)| {
        let of = move |schedule| (0..data.steps(schedule).len()).map(move |step| (schedule, section, step));
        Schedule::ALL.into_iter().flat_map(of)
    });
    moments
        .map(|moment| {
            let alive = plan.scratch.iter().filter(|scratch| alive(scratch, moment));
            alive.map(|scratch| scratch.bytes).sum()
        })
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str, bytes: usize, lifetimes: &[(usize, usize, usize)]) -> Scratch {
        let (width, rows) = (bytes / 4, 1);
        let life = |(section, first, last): &(usize, usize, usize)| Life {
            schedule: Schedule::Batch,
            section: *section,
            first: *first,
            last: *last,
        };
        let lifetimes = lifetimes.iter().map(life).collect();
        Scratch { name: name.to_owned(), width, rows, offset: 0, bytes: 0, lifetimes }
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
        let mut decode = early.clone();
        decode.lifetimes[0].schedule = Schedule::Decode;
        assert!(!together(&early, &decode), "a pass is of one schedule");
    }

    proptest::proptest! {
        #[test]
        fn buffers_alive_together_never_share_a_byte(lives in proptest::collection::vec((1usize..5000, 0usize..3, 0usize..8, 0usize..4), 1..14)) {
            let buffer = |(bytes, section, first, length): &(usize, usize, usize, usize)| {
                scratch("any", bytes * 4, &[(*section, *first, first + length)])
            };
            let mut buffers: Vec<Scratch> = lives.iter().map(buffer).collect();
            let size = place(&mut buffers);
            for (index, a) in buffers.iter().enumerate() {
                proptest::prop_assert!(a.offset.is_multiple_of(ALIGNMENT) && a.offset + a.bytes <= size);
                for b in &buffers[..index] {
                    let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                    proptest::prop_assert!(apart || !together(a, b), "{a:?} {b:?}");
                }
            }
        }
    }
}
