//! How fast the disk gives experts where nothing else is done: what `bench` holds what is reached against.
//!
//! Experts without seats are read, one after the other, into a few seats: so few that those who lose them are hardly missed.

use crate::offload::cache::ExpertCache;
use crate::offload::eviction::Expert;
use crate::offload::io_pool::{Priority, ReadId};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Experts that are read at once, at most.
const DEEP: usize = 12;
const LONG: Duration = Duration::from_millis(500);

impl ExpertCache {
    /// Bytes a second that are read where nothing else is done, for half a second. A few experts lose their seats to it.
    pub fn disk_speed(&mut self) -> Result<f64, String> {
        let before = self.counts;
        let speed = self.read_for_a_while().map_err(|what| self.fail(what));
        self.counts = before;
        speed
    }

    fn read_for_a_while(&mut self) -> Result<f64, String> {
        self.settle()?;
        let mut absent = VecDeque::new();
        for (layer, stacks) in self.layers.iter().enumerate() {
            let seats = &mut self.seats[self.room.class_of[layer]];
            for expert in (0..stacks.experts - stacks.shared).map(|expert| (layer, expert)) {
                if seats.of(expert).is_none() || absent.len() < 2 * DEEP {
                    seats.forget(expert);
                    absent.push_back(expert);
                }
            }
        }
        self.seats.iter_mut().for_each(|seats| seats.begin(1, 0));
        let (start, before) = (Instant::now(), self.counts.bytes);
        let mut reading: Vec<Expert> = Vec::new();
        while start.elapsed() < LONG {
            while reading.len() < DEEP
                && let Some(&expert) = absent.front()
                && let Some(seat) = self.seats[self.room.class_of[expert.0]].take(expert)
            {
                self.read(expert, seat, Priority::Now);
                reading.extend(absent.pop_front());
            }
            let tickets: Vec<ReadId> = self.coming.iter().map(|coming| coming.ticket).collect();
            self.readers.wait_for_any(&tickets)?;
            self.note_who_has_come();
            // They make room for the next.
            let (left, come): (Vec<_>, Vec<_>) =
                reading.into_iter().partition(|expert| self.ticket(*expert).is_some());
            reading = left;
            for expert in come {
                self.seats[self.room.class_of[expert.0]].forget(expert);
                absent.push_back(expert);
            }
        }
        self.settle()?;
        let seconds = start.elapsed().as_secs_f64();
        for expert in reading {
            self.seats[self.room.class_of[expert.0]].forget(expert);
        }
        Ok((self.counts.bytes - before) as f64 / seconds)
    }
}
