//! Divergence checks: all threads of a threadgroup or simdgroup must reach the same barriers and simdgroup operations.

use crate::check::checker::Checker;
use crate::check::fault::FaultKind;
use crate::execute::engine::{Engine, LANES, State};
use std::ops::Range;

impl Engine {
    /// Whether these waiting threads are at the same location and have passed the same locations.
    #[inline(always)]
    pub(crate) fn is_uniform(&mut self, threads: Range<usize>) -> bool {
        let all = &self.threads[threads.clone()];
        let first = all[0];
        let same = all.iter().all(|thread| thread.site == first.site && thread.state == first.state);
        // Trails are only compared within a simdgroup.
        let same_trail =
            all.chunks(LANES).all(|lanes| lanes.iter().all(|lane| lane.path_hash == lanes[0].path_hash));
        (same && same_trail) || self.is_uniform_by_line(threads)
    }

    /// Compares by source line, because the compiler may have duplicated code. Reports a divergence.
    #[cold]
    fn is_uniform_by_line(&mut self, threads: Range<usize>) -> bool {
        let line = |watch: &Checker, site| program(watch).line(site);
        let first = self.threads[threads.start];
        let home = line(&self.watch, first.site);
        let other = threads.clone().find(|index| {
            let thread = &self.threads[*index];
            thread.state != first.state || line(&self.watch, thread.site) != home
        });
        if let Some(other) = other {
            let (here, there) = (self.place(threads.start), self.place(other));
            self.watch.fault(FaultKind::Divergence, first.site, |watch| {
                let group = watch.groups.len() - 1;
                format!(
                    "in threadgroup {group}, thread {} waits at {here} while thread {other} waits at {there}",
                    threads.start
                )
            });
            return false;
        }
        self.paths_are_uniform(threads)
    }

    /// Whether all lanes of each simdgroup have passed the same matrix loads and stores.
    fn paths_are_uniform(&mut self, threads: Range<usize>) -> bool {
        for first in threads.clone().step_by(LANES) {
            let lanes = first..(first + LANES).min(threads.end);
            let Some(other) =
                lanes.clone().find(|lane| self.threads[*lane].path_hash != self.threads[first].path_hash)
            else {
                continue;
            };
            let (a, b) = (self.threads[first].passed, self.threads[other].passed);
            let site = if self.threads[other].path_hash != 0 && self.threads[first].path_hash == 0 {
                b
            } else {
                a.max(b)
            };
            self.watch.fault(FaultKind::Divergence, site, |watch| {
                let group = watch.groups.len() - 1;
                format!(
                    "in threadgroup {group}, not every lane of a simdgroup reaches this: threads {first} and {other} differ"
                )
            });
            return false;
        }
        true
    }

    /// At the end of a threadgroup: all finished threads must have passed the same locations.
    pub(crate) fn check_uniform_paths(&mut self) {
        let threads = 0..self.threads.len();
        let same = self
            .threads
            .chunks(LANES)
            .all(|lanes| lanes.iter().all(|lane| lane.path_hash == lanes[0].path_hash));
        if !same && !self.paths_are_uniform(threads) {
            self.stopped = true;
        }
    }

    /// Reports a deadlock: no thread can run.
    #[cold]
    pub(crate) fn divergence(&mut self) {
        self.stopped = true;
        let Some(waiting) = (0..self.threads.len()).find(|index| self.threads[*index].state != State::Done)
        else {
            return;
        };
        let thread = self.threads[waiting];
        let lanes = waiting / LANES * LANES..(waiting / LANES * LANES + LANES).min(self.threads.len());
        let range = if thread.state == State::Barrier { 0..self.threads.len() } else { lanes };
        let other = range.clone().find(|index| {
            self.threads[*index].state != thread.state || self.threads[*index].site != thread.site
        });
        let alike = self.threads[range.clone()]
            .iter()
            .filter(|other| other.state == thread.state && other.site == thread.site)
            .count();
        let (here, total) = (self.place(waiting), range.len());
        let other = other.map(|index| (index, self.place(index)));
        self.watch.fault(FaultKind::Divergence, thread.site, |watch| {
            let group = watch.groups.len() - 1;
            let rest = other.map_or_else(String::new, |(index, place)| format!("; thread {index} {}", verb(&place)));
            format!("in threadgroup {group}, {alike} of {total} threads reach {here}, thread {waiting} among them{rest}")
        });
    }

    /// The location of a thread, for messages.
    fn place(&self, index: usize) -> String {
        let thread = &self.threads[index];
        let line = program(&self.watch).line(thread.site);
        match thread.state {
            State::Barrier => format!("the threadgroup barrier of line {line}"),
            State::SimdgroupBarrier => format!("the simdgroup barrier of line {line}"),
            State::Meeting => format!("the simdgroup operation of line {line}"),
            State::Done => "its end".to_owned(),
            State::Ready => "no barrier".to_owned(),
        }
    }
}

fn verb(place: &str) -> String {
    if place == "its end" { "has returned".to_owned() } else { format!("waits at {place}") }
}

fn program(watch: &Checker) -> &crate::compile::program::Program {
    // SAFETY: the program outlives every dispatch of its kernels.
    unsafe { &*watch.program }
}
