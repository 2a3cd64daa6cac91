//! Assigns scratch buffers offsets in one arena. Buffers that are live at the same step never overlap.
//!
//! In the batch schedule, buffers with the same kind of rows but different widths do not overlap either. On a
//! CPU each thread owns the same rows in every step. If row 3 of one buffer overlapped row 2 of another,
//! cores would write lines that are in other cores' caches.
//!
//! A decode pass uses only the first rows of every buffer. Two buffers that are live together only in decode
//! therefore need only these rows apart. The allocator is greedy: each buffer takes the lowest offset
//! that its conflicts allow. It tries several orders and keeps the best. The result is not optimal in
//! general; the plan reports the lower bound (the maximum bytes live at one step) next to it.

use crate::plan::regime::{DECODE_ROWS, Schedule};
use crate::plan::{LiveRange, Plan, RowsOf, Scratch};
use std::cmp::Reverse;

/// Alignment of every buffer in bytes: valid as a Metal buffer offset for any element type, and two cache
/// lines.
const ALIGNMENT: usize = 256;

/// Sets all offsets and the arena's size.
pub(crate) fn assign(plan: &mut Plan) {
    plan.arena_bytes = place(&mut plan.scratch);
    plan.arena_floor = floor(plan);
}

impl Scratch {
    /// Maximum bytes that a pass of this schedule uses.
    pub(crate) fn extent(&self, schedule: Schedule) -> usize {
        let rows = match (schedule, self.per) {
            (Schedule::Batch, _) | (_, RowsOf::Split) => self.rows,
            (Schedule::Decode, _) => self.rows.min(DECODE_ROWS),
        };
        (self.width * rows * 4).next_multiple_of(ALIGNMENT)
    }
}

/// Sets the size and offset of every buffer; returns the arena's size.
///
/// It tries two orders, by size and by first use. It then moves each buffer to the front of the better order,
/// as long as that reduces the size.
fn place(buffers: &mut [Scratch]) -> usize {
    for buffer in &mut *buffers {
        buffer.bytes = buffer.extent(Schedule::Batch);
    }
    let mut by_size: Vec<usize> = (0..buffers.len()).collect();
    by_size.sort_by_key(|index| Reverse(buffers[*index].bytes));
    let mut by_birth: Vec<usize> = (0..buffers.len()).collect();
    by_birth.sort_by_key(|index| buffers[*index].lifetimes.first().copied());
    let sizes = [place_in(buffers, &by_size), place_in(buffers, &by_birth)];
    let (mut best, mut order) = if sizes[0] <= sizes[1] { (sizes[0], by_size) } else { (sizes[1], by_birth) };
    let mut next = 0;
    while next < order.len() {
        let mut moved = order.clone();
        let first = moved.remove(next);
        moved.insert(0, first);
        let size = place_in(buffers, &moved);
        next += 1;
        if size < best {
            (best, order, next) = (size, moved, 0);
        }
    }
    place_in(buffers, &order)
}

/// Places buffers in this order, each at the lowest offset without a conflict.
fn place_in(buffers: &mut [Scratch], order: &[usize]) -> usize {
    let mut size = 0;
    for (placed, &index) in order.iter().enumerate() {
        // Conflicts: the buffer's own extent in a schedule, and the range of the other buffer.
        let mut taken: Vec<(usize, usize, usize)> = Vec::new();
        for other in order[..placed].iter().map(|other| &buffers[*other]) {
            for schedule in Schedule::ALL {
                if together(other, &buffers[index], schedule)
                    || schedule == Schedule::Batch && rows_misalign(other, &buffers[index])
                {
                    let end = other.offset + other.extent(schedule);
                    taken.push((buffers[index].extent(schedule), other.offset, end));
                }
            }
        }
        let fits = |offset: &usize| {
            taken.iter().all(|(extent, start, end)| offset + extent <= *start || *end <= *offset)
        };
        let mut offsets: Vec<usize> = taken.iter().map(|(_, _, end)| *end).chain([0]).collect();
        offsets.sort_unstable();
        buffers[index].offset = offsets.into_iter().find(fits).unwrap_or(0);
        size = size.max(buffers[index].offset + buffers[index].bytes);
    }
    size
}

/// Whether a thread that owns the same rows of both buffers would own different bytes.
fn rows_misalign(a: &Scratch, b: &Scratch) -> bool {
    a.per == b.per && a.width != b.width && !matches!(a.per, RowsOf::Pass | RowsOf::DecodeRow | RowsOf::Split)
}

/// Whether two buffers are live at the same step of a schedule.
fn together(a: &Scratch, b: &Scratch, schedule: Schedule) -> bool {
    let overlap = |a: &LiveRange, b: &LiveRange| {
        a.schedule == schedule
            && (a.schedule, a.section) == (b.schedule, b.section)
            && a.first <= b.last
            && b.first <= a.last
    };
    a.lifetimes.is_empty()
        || b.lifetimes.is_empty()
        || a.lifetimes.iter().any(|a| b.lifetimes.iter().any(|b| overlap(a, b)))
}

/// Maximum bytes live at one step.
fn floor(plan: &Plan) -> usize {
    let alive = |scratch: &Scratch, (schedule, section, step): (Schedule, usize, usize)| {
        let covers = |life: &LiveRange| {
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
            alive.map(|scratch| scratch.extent(moment.0)).sum()
        })
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PER: [RowsOf; 6] =
        [RowsOf::Pass, RowsOf::DecodeRow, RowsOf::Row, RowsOf::Wanted, RowsOf::Position, RowsOf::Split];

    fn life(schedule: Schedule, (section, first, last): (usize, usize, usize)) -> LiveRange {
        LiveRange { schedule, section, first, last }
    }

    fn scratch(name: &str, (width, per): (usize, RowsOf), lifetimes: &[LiveRange]) -> Scratch {
        let (name, lifetimes) = (name.to_owned(), lifetimes.to_vec());
        let rows = match per {
            RowsOf::Pass => 1,
            RowsOf::DecodeRow => 8,
            RowsOf::Row | RowsOf::Position => 10,
            RowsOf::Wanted => 4,
            RowsOf::Split => 3,
        };
        Scratch { name, width, per, rows, offset: 0, bytes: 0, lifetimes }
    }

    #[test]
    fn simultaneously_live_buffers_do_not_overlap() {
        let batch = |name, lifetime| scratch(name, (64, RowsOf::Pass), &[life(Schedule::Batch, lifetime)]);
        let together = |a: &Scratch, b: &Scratch| together(a, b, Schedule::Batch);
        let always = scratch("stream", (64, RowsOf::Pass), &[]);
        let early = batch("normed", (1, 0, 1));
        let late = batch("heads", (1, 2, 3));
        assert!(together(&always, &early));
        assert!(!together(&early, &late));
        assert!(!together(&late, &batch("logits", (2, 0, 9))));
        assert!(together(&early, &batch("qkv", (1, 1, 2))));
        let decode = scratch("normed", (64, RowsOf::Pass), &[life(Schedule::Decode, (1, 0, 1))]);
        assert!(!together(&early, &decode), "a pass is of one schedule");
    }

    #[test]
    fn overlap_in_decode_separates_the_first_rows_only() {
        let lives = |decode, batch| [life(Schedule::Decode, decode), life(Schedule::Batch, batch)];
        let mut buffers = [
            scratch("qkv", (64, RowsOf::Row), &lives((1, 0, 1), (1, 0, 1))),
            scratch("heads", (64, RowsOf::Row), &lives((1, 1, 2), (1, 2, 3))),
        ];
        buffers.iter_mut().for_each(|buffer| buffer.rows = 100);
        let rows = DECODE_ROWS + 100;
        assert_eq!(place(&mut buffers), rows * 256, "the rows of a decode pass, and all of the other");
    }

    #[test]
    fn rows_of_a_batch_overlap_rows_of_equal_width_only() {
        let batch = |name, size, first| scratch(name, size, &[life(Schedule::Batch, (1, first, first))]);
        let size_with = |second| place(&mut [batch("normed", (64, RowsOf::Row), 0), second]);
        assert_eq!(size_with(batch("heads", (64, RowsOf::Row), 1)), 2560);
        assert_eq!(size_with(batch("inner", (128, RowsOf::Row), 1)), 2560 + 5120);
        for per in [RowsOf::Pass, RowsOf::Wanted, RowsOf::Position, RowsOf::Split] {
            assert_eq!(size_with(batch("others", (32, per), 1)), 2560, "threads have other {per:?}s");
        }
    }

    #[test]
    fn decode_allocates_all_kv_splits() {
        let partials = scratch("partials", (64, RowsOf::Split), &[]);
        assert_eq!(partials.extent(Schedule::Decode), 3 * 256);
    }

    proptest::proptest! {
        #[test]
        fn live_buffers_never_overlap(
            lives in proptest::collection::vec(
                (1usize..500, 0..PER.len(), proptest::bool::ANY, 0usize..3, 0usize..8, 0usize..4),
                1..14,
            )
        ) {
            let mut buffers: Vec<Scratch> = lives.iter().map(|(width, per, decode, section, first, length)| {
                let schedule = if *decode { Schedule::Decode } else { Schedule::Batch };
                // Every other buffer is live in both schedules.
                let other = life(Schedule::Batch, (*section, first + 1, first + 1 + length));
                let own = life(schedule, (*section, *first, first + length));
                let lives = [own, other];
                scratch("any", (*width, PER[*per]), &lives[..2 - width % 2])
            }).collect();
            let size = place(&mut buffers);
            for (index, a) in buffers.iter().enumerate() {
                proptest::prop_assert!(a.offset.is_multiple_of(ALIGNMENT) && a.offset + a.bytes <= size);
                for b in &buffers[..index] {
                    for schedule in Schedule::ALL {
                        let apart = a.offset + a.extent(schedule) <= b.offset
                            || b.offset + b.extent(schedule) <= a.offset;
                        proptest::prop_assert!(apart || !together(a, b, schedule), "{a:?} {b:?}");
                        let stays = schedule == Schedule::Decode || !rows_misalign(a, b);
                        proptest::prop_assert!(apart || stays, "{a:?} {b:?}");
                    }
                }
            }
        }
    }
}
