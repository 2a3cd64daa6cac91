//! The region in which experts have seats: how many there are, and where they lie.
//!
//! Layers whose records are of equal size are a class and share its seats; other layers, as where a model mixes
//! formats, are others. Memory is divided among classes by the bytes of all their experts.

use crate::error::Error;
use crate::offload::ExpertWeights;

/// Seats for experts of one size.
#[derive(Clone, Debug)]
pub(crate) struct SizeClass {
    /// Bytes of a record, and of a seat.
    pub(crate) record: usize,
    /// Where in the region the seats begin.
    pub(crate) start: usize,
    /// How many seats there are.
    pub(crate) seats: usize,
    /// Experts of all its layers.
    pub(crate) experts: usize,
    /// Those that every row has, which keep their seats.
    pub(crate) kept: usize,
    /// The most that a row chooses in one layer.
    picked: usize,
}

impl SizeClass {
    /// Bytes of all experts.
    fn all(&self) -> u128 {
        self.record as u128 * self.experts as u128
    }

    /// The fewest seats that a pass can go on with: an expert at a time would do, but each row would read all of its own again.
    fn least(&self) -> usize {
        (self.kept + self.picked + 1).min(self.experts)
    }
}

/// The region, laid out.
#[derive(Clone, Debug)]
pub struct CacheLayout {
    pub(crate) classes: Vec<SizeClass>,
    /// The class of each layer that has experts.
    pub(crate) class_of: Vec<usize>,
    bytes: usize,
    /// Bytes of experts that a row reads, wherever they are; those that keep their seats left out.
    of_row: u64,
}

/// What is to be expected of a row, if all experts are equally likely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// The share of the experts chosen that has a seat.
    pub hits: f64,
    /// Bytes that are read from disk.
    pub bytes: f64,
}

impl Forecast {
    /// Tokens a second that a disk of so many bytes a second permits; none if nothing is read.
    pub fn per_second(&self, disk: u64) -> Option<f64> {
        (self.bytes > 0.0).then(|| disk as f64 / self.bytes)
    }
}

impl CacheLayout {
    /// As many seats for the experts of all layers as `memory` bytes have room for.
    pub fn new(layers: &[ExpertWeights], memory: u64) -> Result<CacheLayout, Error> {
        let mut room = CacheLayout { classes: Vec::new(), class_of: Vec::new(), bytes: 0, of_row: 0 };
        for stacks in layers {
            room.add(stacks);
        }
        let all: u128 = room.classes.iter().map(SizeClass::all).sum();
        // What a class needs is what its share of the memory must hold.
        let needed =
            |class: &SizeClass| ((class.least() * class.record) as u128 * all).div_ceil(class.all().max(1));
        let enough = room.classes.iter().map(needed).max().unwrap_or(0);
        for class in &mut room.classes {
            let share = u128::from(memory) * class.all() / all.max(1);
            class.seats = class.experts.min((share / class.record.max(1) as u128) as usize);
            if class.seats < class.least() {
                return Err(Error::usage(format!(
                    "--experts stream: experts of {} bytes have {} seats in {memory} bytes, and {} are needed: \
                     {enough} bytes are enough",
                    class.record,
                    class.seats,
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

    /// Bytes of the region.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Seats of all classes.
    pub fn seats(&self) -> usize {
        self.classes.iter().map(|class| class.seats).sum()
    }

    /// Experts of all layers.
    pub fn experts(&self) -> usize {
        self.classes.iter().map(|class| class.experts).sum()
    }

    /// What is to be expected of a row, if all experts are equally likely: then those that have a seat are chosen as often as
    /// others. Texts choose some experts more often, so that more is found in memory than is said here.
    pub fn forecast(&self) -> Forecast {
        let chosen = |class: &SizeClass| (class.experts - class.kept) as f64;
        let seated: f64 = self.classes.iter().map(|class| (class.seats - class.kept) as f64).sum();
        let hits = seated / self.classes.iter().map(chosen).sum::<f64>().max(1.0);
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
    fn as_many_seats_as_memory_has_room_for_and_never_more_than_experts() {
        let layers = [stacks(8, 0, 3000), stacks(8, 0, 3000)];
        let room = CacheLayout::new(&layers, 5 * 3000 + 2999).unwrap();
        assert_eq!((room.seats(), room.experts(), room.class_of.as_slice()), (5, 16, [0, 0].as_slice()));
        assert_eq!(room.bytes(), 5 * 3000);
        assert_eq!(CacheLayout::new(&layers, 1 << 30).unwrap().seats(), 16);
        let told = room.forecast();
        assert_eq!((told.hits, told.bytes), (5.0 / 16.0, 11.0 / 16.0 * 4.0 * 3000.0));
        assert_eq!(told.per_second(16_500), Some(2.0));
        let of_two_sizes = CacheLayout::new(&[stacks(8, 0, 3000), stacks(4, 1, 1000)], 28_000).unwrap();
        let starts: Vec<usize> = of_two_sizes.classes.iter().map(|class| class.start).collect();
        assert_eq!((starts, of_two_sizes.bytes()), (vec![0, 24_000], 28_000));
    }

    #[test]
    fn memory_for_too_few_seats_is_refused_with_what_is_enough() {
        for layers in [vec![stacks(8, 1, 3000)], vec![stacks(8, 0, 3000), stacks(4, 1, 192)]] {
            let message = CacheLayout::new(&layers, 5000).unwrap_err().to_string();
            let enough = message.split_whitespace().rev().nth(3).unwrap().parse().unwrap();
            assert!(CacheLayout::new(&layers, enough).is_ok(), "{message}");
            assert!(CacheLayout::new(&layers, enough - 1).is_err(), "{message}");
        }
    }
}
