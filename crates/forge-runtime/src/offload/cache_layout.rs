//! Layout of the expert cache: number of slots and their offsets.
//!
//! Layers whose records have the same size form a class and share its slots. Models with mixed formats have
//! several classes. Memory is divided among classes in proportion to the bytes of all their experts.

use crate::error::Error;
use crate::offload::ExpertWeights;

/// The slots for experts of one size.
#[derive(Clone, Debug)]
pub(crate) struct SizeClass {
    /// Size of a record and of a slot in bytes.
    pub(crate) record: usize,
    /// Offset of the first slot in the cache.
    pub(crate) start: usize,
    /// Number of slots.
    pub(crate) seats: usize,
    /// Number of experts in all its layers.
    pub(crate) experts: usize,
    /// Number of shared experts, which are pinned.
    pub(crate) kept: usize,
    /// The largest number of routed experts per token in one layer.
    picked: usize,
}

impl SizeClass {
    /// Bytes of all experts.
    fn all(&self) -> u128 {
        self.record as u128 * self.experts as u128
    }

    /// The minimum number of slots. One routed slot would suffice, but then each row would read all its
    /// experts again.
    fn least(&self) -> usize {
        (self.kept + self.picked + 1).min(self.experts)
    }
}

/// The layout of the expert cache.
#[derive(Clone, Debug)]
pub struct CacheLayout {
    pub(crate) classes: Vec<SizeClass>,
    /// The class of each MoE layer.
    pub(crate) class_of: Vec<usize>,
    bytes: usize,
    /// Bytes of routed experts per token.
    of_row: u64,
}

/// The expected cost of a token if all experts are equally likely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// The expected hit rate of routed experts.
    pub hits: f64,
    /// Bytes read from disk per token.
    pub bytes: f64,
}

impl Forecast {
    /// The disk-bound speed in tok/s for a bandwidth in bytes/s; `None` if nothing is read.
    pub fn per_second(&self, disk: u64) -> Option<f64> {
        (self.bytes > 0.0).then(|| disk as f64 / self.bytes)
    }
}

impl CacheLayout {
    /// The layout with as many slots as fit in `memory` bytes.
    pub fn new(layers: &[ExpertWeights], memory: u64) -> Result<CacheLayout, Error> {
        let mut room = CacheLayout { classes: Vec::new(), class_of: Vec::new(), bytes: 0, of_row: 0 };
        for stacks in layers {
            room.add(stacks);
        }
        let all: u128 = room.classes.iter().map(SizeClass::all).sum();
        // Memory is divided by class size, so the class with the largest relative minimum decides.
        let needed =
            |class: &SizeClass| ((class.least() * class.record) as u128 * all).div_ceil(class.all().max(1));
        let enough = room.classes.iter().map(needed).max().unwrap_or(0);
        for class in &mut room.classes {
            let share = u128::from(memory) * class.all() / all.max(1);
            class.seats = class.experts.min((share / class.record.max(1) as u128) as usize);
            if class.seats < class.least() {
                return Err(Error::usage(format!(
                    "--experts stream: {memory} bytes hold {} cache slots for experts of {} bytes, {} are needed: \
                     {enough} bytes are enough",
                    class.seats,
                    class.record,
                    class.least(),
                )));
            }
            class.start = room.bytes;
            room.bytes += class.seats * class.record;
        }
        Ok(room)
    }

    fn add(&mut self, stacks: &ExpertWeights) {
        let record = stacks.record();
        let known = self.classes.iter().position(|class| class.record == record);
        let index = known.unwrap_or(self.classes.len());
        if known.is_none() {
            self.classes.push(SizeClass { record, start: 0, seats: 0, experts: 0, kept: 0, picked: 0 });
        }
        let class = &mut self.classes[index];
        class.experts += stacks.experts;
        class.kept += stacks.shared;
        class.picked = class.picked.max(stacks.picked());
        self.class_of.push(index);
        self.of_row += (stacks.picked() * stacks.record()) as u64;
    }

    /// Size of the cache in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of slots of all classes.
    pub fn seats(&self) -> usize {
        self.classes.iter().map(|class| class.seats).sum()
    }

    /// Number of experts of all layers.
    pub fn experts(&self) -> usize {
        self.classes.iter().map(|class| class.experts).sum()
    }

    /// The expected hit rate and reads of a token if all experts are equally likely. Real routing is skewed,
    /// so the actual hit rate is higher.
    pub fn forecast(&self) -> Forecast {
        let routed = |class: &SizeClass| (class.experts - class.kept) as f64;
        let slots: f64 = self.classes.iter().map(|class| (class.seats - class.kept) as f64).sum();
        let hits = slots / self.classes.iter().map(routed).sum::<f64>().max(1.0);
        Forecast { hits, bytes: (1.0 - hits) * self.of_row as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Buffer, Span};

    fn stacks(experts: usize, shared: usize, record: usize) -> ExpertWeights {
        let records = Span::new(Buffer::Weights, 0, record * experts);
        let routes = Span::new(Buffer::Scratch, 0, 0);
        let (inner, sum) = (vec![records], Vec::new());
        ExpertWeights { experts, chosen: 2 + shared, shared, records, inner, sum, routes, router: Vec::new() }
    }

    #[test]
    fn slots_fill_the_memory_and_never_exceed_the_experts() {
        let layers = [stacks(8, 0, 3000), stacks(8, 0, 3000)];
        let room = CacheLayout::new(&layers, 5 * 3000 + 2999).unwrap();
        assert_eq!((room.seats(), room.experts(), room.class_of.as_slice()), (5, 16, [0, 0].as_slice()));
        assert_eq!(room.bytes(), 5 * 3000);
        assert_eq!(CacheLayout::new(&layers, 1 << 30).unwrap().seats(), 16);
        let forecast = room.forecast();
        assert_eq!((forecast.hits, forecast.bytes), (5.0 / 16.0, 11.0 / 16.0 * 4.0 * 3000.0));
        assert_eq!(forecast.per_second(16_500), Some(2.0));
        let of_two_sizes = CacheLayout::new(&[stacks(8, 0, 3000), stacks(4, 1, 1000)], 28_000).unwrap();
        let starts: Vec<usize> = of_two_sizes.classes.iter().map(|class| class.start).collect();
        assert_eq!((starts, of_two_sizes.bytes()), (vec![0, 24_000], 28_000));
    }

    #[test]
    fn too_little_memory_is_an_error_that_states_the_minimum() {
        for layers in [vec![stacks(8, 1, 3000)], vec![stacks(8, 0, 3000), stacks(4, 1, 192)]] {
            let message = CacheLayout::new(&layers, 5000).unwrap_err().to_string();
            let enough = message.split_whitespace().rev().nth(3).unwrap().parse().unwrap();
            assert!(CacheLayout::new(&layers, enough).is_ok(), "{message}");
            assert!(CacheLayout::new(&layers, enough - 1).is_err(), "{message}");
        }
    }
}
