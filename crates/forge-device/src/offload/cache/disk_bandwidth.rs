//! Measures the disk bandwidth for expert reads without other load.
//!
//! Uncached experts are read into a few slots, so few that the evicted experts hardly matter.

use crate::offload::cache::expert_cache::ExpertCache;
use crate::offload::eviction::Expert;
use crate::offload::io_pool::{Priority, ReadId};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Reads in flight.
const READS_IN_FLIGHT: usize = 12;
/// Duration of the measurement.
const DURATION: Duration = Duration::from_millis(500);

impl ExpertCache {
    /// Disk bandwidth in bytes/s, measured for half a second. A few experts are evicted.
    pub fn measure_disk_bandwidth(&mut self) -> Result<f64, String> {
        let before = self.stats;
        let speed = self.measure().map_err(|what| self.fail(what));
        self.stats = before;
        speed
    }

    fn measure(&mut self) -> Result<f64, String> {
        self.drain()?;
        let mut absent = VecDeque::new();
        for (layer, stacks) in self.layers.iter().enumerate() {
            let slots = &mut self.slot_tables[self.layout.class_of[layer]];
            for expert in (0..stacks.experts - stacks.shared).map(|expert| (layer, expert)) {
                if slots.slot_of(expert).is_none() || absent.len() < 2 * READS_IN_FLIGHT {
                    slots.remove(expert);
                    absent.push_back(expert);
                }
            }
        }
        self.slot_tables.iter_mut().for_each(|slots| slots.begin_request(1, 0));
        let (start, before) = (Instant::now(), self.stats.read_bytes);
        let mut reading: Vec<Expert> = Vec::new();
        while start.elapsed() < DURATION {
            while reading.len() < READS_IN_FLIGHT
                && let Some(&expert) = absent.front()
                && let Some(slot) = self.slot_tables[self.layout.class_of[expert.0]].allocate(expert)
            {
                self.read(expert, slot, Priority::Demand);
                reading.extend(absent.pop_front());
            }
            let tickets: Vec<ReadId> = self.pending.iter().map(|read| read.ticket).collect();
            self.io_pool.wait_for_any(&tickets)?;
            self.collect_completed();
            // Their slots are reused for the next reads.
            let (left, loaded): (Vec<_>, Vec<_>) =
                reading.into_iter().partition(|expert| self.ticket(*expert).is_some());
            reading = left;
            for expert in loaded {
                self.slot_tables[self.layout.class_of[expert.0]].remove(expert);
                absent.push_back(expert);
            }
        }
        self.drain()?;
        let seconds = start.elapsed().as_secs_f64();
        for expert in reading {
            self.slot_tables[self.layout.class_of[expert.0]].remove(expert);
        }
        Ok((self.stats.read_bytes - before) as f64 / seconds)
    }
}
