//! Layout of the expert cache: number of slots and their offsets.
//!
//! Layers whose records have the same size form a class and share its slots. Models with mixed formats have
//! several classes. Memory is divided among classes in proportion to the bytes of all their experts.

use crate::error::Error;
use crate::offload::expert_weights::ExpertWeights;

/// The slots for experts of one size.
#[derive(Clone, Debug)]
pub(crate) struct SizeClass {
    /// Size of a record and of a slot in bytes.
    pub(crate) record_bytes: usize,
    /// Offset of the first slot in the cache.
    pub(crate) start: usize,
    /// Number of slots.
    pub(crate) slots: usize,
    /// Number of experts in all its layers.
    pub(crate) experts: usize,
    /// Number of shared experts, which are pinned.
    pub(crate) shared: usize,
    /// The largest number of routed experts per token in one layer.
    routed_per_token: usize,
}

impl SizeClass {
    /// Bytes of all experts.
    fn total_bytes(&self) -> u128 {
        self.record_bytes as u128 * self.experts as u128
    }

    /// The minimum number of slots. One routed slot would suffice, but then each row would read all its
    /// experts again.
    fn min_slots(&self) -> usize {
        (self.shared + self.routed_per_token + 1).min(self.experts)
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
    bytes_per_token: u64,
}

/// The expected cost of a token if all experts are equally likely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// The expected hit rate of routed experts.
    pub hit_rate: f64,
    /// Bytes read from disk per token.
    pub bytes_per_token: f64,
}

impl Forecast {
    /// The disk-bound speed in tok/s for a bandwidth in bytes/s; `None` if nothing is read.
    pub fn tokens_per_second(&self, disk: u64) -> Option<f64> {
        (self.bytes_per_token > 0.0).then(|| disk as f64 / self.bytes_per_token)
    }
}

impl CacheLayout {
    /// The layout with as many slots as fit in `memory` bytes.
    pub fn new(layers: &[ExpertWeights], memory: u64) -> Result<CacheLayout, Error> {
        let mut layout =
            CacheLayout { classes: Vec::new(), class_of: Vec::new(), bytes: 0, bytes_per_token: 0 };
        for stacks in layers {
            layout.add(stacks);
        }
        let all: u128 = layout.classes.iter().map(SizeClass::total_bytes).sum();
        // Memory is divided by class size, so the class with the largest relative minimum decides.
        let needed = |class: &SizeClass| {
            ((class.min_slots() * class.record_bytes) as u128 * all).div_ceil(class.total_bytes().max(1))
        };
        let enough = layout.classes.iter().map(needed).max().unwrap_or(0);
        for class in &mut layout.classes {
            let class_bytes = u128::from(memory) * class.total_bytes() / all.max(1);
            class.slots = class.experts.min((class_bytes / class.record_bytes.max(1) as u128) as usize);
            if class.slots < class.min_slots() {
                return Err(Error::usage(format!(
                    "--experts stream: {memory} bytes hold {} cache slots for experts of {} bytes, {} are needed: \
                     {enough} bytes are enough",
                    class.slots,
                    class.record_bytes,
                    class.min_slots(),
                )));
            }
            class.start = layout.bytes;
            layout.bytes += class.slots * class.record_bytes;
        }
        Ok(layout)
    }

    fn add(&mut self, stacks: &ExpertWeights) {
        let record = stacks.record_bytes();
        let existing = self.classes.iter().position(|class| class.record_bytes == record);
        let index = existing.unwrap_or(self.classes.len());
        if existing.is_none() {
            self.classes.push(SizeClass {
                record_bytes: record,
                start: 0,
                slots: 0,
                experts: 0,
                shared: 0,
                routed_per_token: 0,
            });
        }
        let class = &mut self.classes[index];
        class.experts += stacks.experts;
        class.shared += stacks.shared;
        class.routed_per_token = class.routed_per_token.max(stacks.routed_per_token());
        self.class_of.push(index);
        self.bytes_per_token += (stacks.routed_per_token() * stacks.record_bytes()) as u64;
    }

    /// Size of the cache in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of slots of all classes.
    pub fn slots(&self) -> usize {
        self.classes.iter().map(|class| class.slots).sum()
    }

    /// Number of experts of all layers.
    pub fn experts(&self) -> usize {
        self.classes.iter().map(|class| class.experts).sum()
    }

    /// The expected hit rate and reads of a token if all experts are equally likely. Real routing is skewed,
    /// so the actual hit rate is higher.
    pub fn forecast(&self) -> Forecast {
        let routed = |class: &SizeClass| (class.experts - class.shared) as f64;
        let slots: f64 = self.classes.iter().map(|class| (class.slots - class.shared) as f64).sum();
        let hits = slots / self.classes.iter().map(routed).sum::<f64>().max(1.0);
        Forecast { hit_rate: hits, bytes_per_token: (1.0 - hits) * self.bytes_per_token as f64 }
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
        ExpertWeights {
            experts,
            experts_per_token: 2 + shared,
            shared,
            records,
            gate_up: inner,
            down: sum,
            routes,
            router: Vec::new(),
        }
    }

    #[test]
    fn slots_fill_the_memory_and_never_exceed_the_experts() {
        let layers = [stacks(8, 0, 3000), stacks(8, 0, 3000)];
        let layout = CacheLayout::new(&layers, 5 * 3000 + 2999).unwrap();
        assert_eq!(
            (layout.slots(), layout.experts(), layout.class_of.as_slice()),
            (5, 16, [0, 0].as_slice())
        );
        assert_eq!(layout.bytes(), 5 * 3000);
        assert_eq!(CacheLayout::new(&layers, 1 << 30).unwrap().slots(), 16);
        let forecast = layout.forecast();
        assert_eq!((forecast.hit_rate, forecast.bytes_per_token), (5.0 / 16.0, 11.0 / 16.0 * 4.0 * 3000.0));
        assert_eq!(forecast.tokens_per_second(16_500), Some(2.0));
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
