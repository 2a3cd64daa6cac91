//! Mutation of files: text and bytes by cutting and pasting, JSON also by its structure.

#[path = "json.rs"]
pub(crate) mod json;

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// A pseudorandom generator, seeded by a name and an index.
pub(crate) struct Random(TestRng);

impl Random {
    pub(crate) fn new(name: &str, number: u64) -> Random {
        let name = name.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        // The seed of this generator must not be 0.
        let seed = [(name | 1).to_le_bytes(), number.to_le_bytes()].concat();
        let mut random = Random(TestRng::from_seed(RngAlgorithm::XorShift, &seed));
        // Similar seeds give similar first outputs, which are therefore discarded.
        for _ in 0..16 {
            random.0.next_u64();
        }
        random
    }

    /// A number below `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end as u64) as usize
    }

    /// A number of fewer bits than this. Small and large numbers are equally likely.
    pub(crate) fn up_to_bits(&mut self, bits: usize) -> usize {
        let bits = self.below(bits);
        self.below(1 << bits)
    }

    /// True once in this many calls, on average.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A random item. There must be at least one.
    pub(crate) fn one<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// A JSON file of the corpus with a few mutations of its structure, and sometimes of its text.
pub(crate) fn mutated_json(
    random: &mut Random,
    corpus: &[Vec<u8>],
    dictionary: &json::Dictionary,
) -> Vec<u8> {
    let base = random.one(corpus);
    let mutated = json::mutated(random, base, dictionary);
    match mutated {
        Some(bytes) if !random.once_in(5) => bytes,
        Some(bytes) => mutate_once(random, &bytes, corpus, JSON_FRAGMENTS),
        None => mutated_bytes(random, corpus, JSON_FRAGMENTS),
    }
}

/// A file of the corpus with a few mutations of its bytes, independent of their meaning.
pub(crate) fn mutated_bytes(random: &mut Random, corpus: &[Vec<u8>], pieces: &[&str]) -> Vec<u8> {
    let base = random.one(corpus).clone();
    mutate_once(random, &base, corpus, pieces)
}

/// Fragments of valid and of invalid JSON.
const JSON_FRAGMENTS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "null",
    "true",
    "-",
    "1e999",
    "-1",
    "0",
    "18446744073709551616",
    "1e-400",
    "\\ud800",
    "\\u0000",
    "\u{feff}",
    "\u{0}",
    "\"a\":",
    "[[[[[[[[[[[[[[[[",
    "{\"a\":{\"a\":{\"a\":",
    "//",
    "NaN",
];

fn mutate_once(random: &mut Random, base: &[u8], corpus: &[Vec<u8>], pieces: &[&str]) -> Vec<u8> {
    let mut bytes = base.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let until = (at + random.up_to_bits(8)).min(bytes.len());
        match random.below(9) {
            0 => drop(bytes.drain(at..until)),
            1 => bytes.truncate(at),
            2 => drop(bytes.splice(at..at, random.one(pieces).bytes())),
            3 => drop(bytes.splice(at..until, random.one(pieces).bytes())),
            4 => {
                let copy = bytes[at..until].to_vec();
                let times = 1 + random.up_to_bits(10);
                drop(bytes.splice(at..at, copy.repeat(times.min(100_000 / copy.len().max(1)))));
            }
            5 => {
                let other = random.one(corpus);
                let from = random.below(other.len() + 1);
                let to = (from + random.below(64)).min(other.len());
                drop(bytes.splice(at..until, other[from..to].iter().copied()));
            }
            6 => drop(bytes.splice(at..at, [random.below(256) as u8])),
            7 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ if at < bytes.len() => bytes[at] = *random.one(&[0, b'0', b'9', b'-', b'"', 0x7f, 0x80, 0xff]),
            _ => {}
        }
    }
    bytes
}
