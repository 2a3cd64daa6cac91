//! Apple chips and NVIDIA GPUs as used by predictions: memory bandwidth, compute rates and launch cost.
//!
//! No figure for Apple chips was measured by this project. Sources:
//!
//! - GPU cores, bandwidth: Apple's technical specifications of the Macs with the chip. Bins that differ in
//!   bandwidth are separate chips. Of bins that differ in cores alone, the largest is listed.
//! - Clock: M1 and M2 as published by the `applegpuinfo` project and seen in `powermetrics` (1.278 to 1.398
//!   GHz). M3 and M4 as users report from `powermetrics` (1.38; 1.47 and 1.578). M5 is derived from its
//!   published rate, about 4 TFLOPS with 10 cores.
//! - System cache: `applegpuinfo` for M1 and M2, user reports for M3 and M4, assumed unchanged for M5.
//! - f32 rate: derived from 128 lanes per core and one multiply-add per cycle (`metal-benchmarks`).
//! - Matrix rate: derived from that project's measurement on M1 and M2, 102 multiply-adds per core and cycle
//!   with 8 by 8 matrices, equal for f16 and f32. These operations do not use M5's neural accelerators.
//! - Tensor rate: products of f16 tensors use the accelerators of M5. Derived from a published measurement on M5
//!   Max: with them, prefill of llama.cpp went from 877 to 1,833 tokens/s with tiles like these.
//! - On-core rate: 64 bytes per core and cycle, which `metal-benchmarks` lists for data on a core of M1 and M2.
//!   Threadgroup memory and loads from caches are assumed to share it, also on M3 to M5.
//! - Dispatch: the cost of a step that waits for its predecessor. Published measurements are 5.2 µs with the
//!   work of a small norm on M2 Pro, 2.4 µs on M3 Ultra, 1 to 2 µs on M5 Max; others are interpolated.
//! - Efficiency: the fraction of peak bandwidth that GEMV kernels reach. Published: 69 to 79% on M1 Max, 77
//!   to 86% of a measured peak on M5 Max, which is itself 94% of the specification. One conservative figure
//!   is used for all.
//!
//! Multiprocessors, bandwidth, boost clock and cache of NVIDIA GPUs are from their specifications. Two
//! figures were measured on an H200: 3 µs for a dependent dispatch in a CUDA graph, and 83 TFLOPS for matrix
//! multiplication. The other GPUs use the same dispatch cost and the same rate per core and clock.

use forge_kernels::Family;
use serde::Serialize;
use strsim::levenshtein;

/// A chip. The module documentation lists the sources of its figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Chip {
    /// Name on the command line, such as `m4-max`.
    pub name: &'static str,
    /// GPU generation.
    pub family: Family,
    /// GPU cores (NVIDIA: multiprocessors).
    pub cores: u32,
    /// Memory bandwidth in GB/s.
    pub bandwidth: f64,
    /// GPU clock in GHz.
    pub clock: f64,
    /// Last-level cache in MB (10^6 bytes).
    pub system_cache: f64,
    /// Cost in µs of a dispatch that waits for its predecessor.
    pub dispatch: f64,
    /// Fraction of peak bandwidth and compute rates that good kernels reach.
    pub efficiency: f64,
}

/// Default of [`Chip::efficiency`].
const EFFICIENCY: f64 = 0.75;

const fn chip(
    name: &'static str,
    family: Family,
    (cores, bandwidth, clock): (u32, f64, f64),
    (system_cache, dispatch): (f64, f64),
) -> Chip {
    Chip { name, family, cores, bandwidth, clock, system_cache, dispatch, efficiency: EFFICIENCY }
}

impl Chip {
    /// All Apple chips, oldest first.
    pub const ALL: [Chip; 21] = {
        use Family::{Apple7, Apple8, Apple9, Apple10};
        [
            //    name          family   cores, GB/s, GHz      cache, µs
            chip("m1", Apple7, (8, 68.0, 1.278), (8.0, 4.0)),
            chip("m1-pro", Apple7, (16, 200.0, 1.296), (24.0, 4.0)),
            chip("m1-max", Apple7, (32, 400.0, 1.296), (48.0, 4.0)),
            chip("m1-ultra", Apple7, (64, 800.0, 1.296), (96.0, 4.0)),
            chip("m2", Apple8, (10, 100.0, 1.398), (8.0, 3.5)),
            chip("m2-pro", Apple8, (19, 200.0, 1.398), (24.0, 3.5)),
            chip("m2-max", Apple8, (38, 400.0, 1.398), (48.0, 3.5)),
            chip("m2-ultra", Apple8, (76, 800.0, 1.398), (96.0, 3.5)),
            chip("m3", Apple9, (10, 100.0, 1.38), (8.0, 2.5)),
            chip("m3-pro", Apple9, (18, 150.0, 1.38), (12.0, 2.5)),
            chip("m3-max-30", Apple9, (30, 300.0, 1.38), (48.0, 2.5)),
            chip("m3-max", Apple9, (40, 400.0, 1.38), (48.0, 2.5)),
            chip("m3-ultra", Apple9, (80, 819.0, 1.38), (96.0, 2.5)),
            chip("m4", Apple9, (10, 120.0, 1.47), (8.0, 2.25)),
            chip("m4-pro", Apple9, (20, 273.0, 1.578), (24.0, 2.25)),
            chip("m4-max-32", Apple9, (32, 410.0, 1.578), (48.0, 2.25)),
            chip("m4-max", Apple9, (40, 546.0, 1.578), (48.0, 2.25)),
            chip("m5", Apple10, (10, 153.0, 1.578), (8.0, 1.5)),
            chip("m5-pro", Apple10, (20, 307.0, 1.578), (24.0, 1.5)),
            chip("m5-max-32", Apple10, (32, 460.0, 1.578), (48.0, 1.5)),
            chip("m5-max", Apple10, (40, 614.0, 1.578), (48.0, 1.5)),
        ]
    };

    /// NVIDIA GPUs, oldest first.
    pub const CARDS: [Chip; 4] = [
        chip("rtx-3090", Family::Nvidia, (82, 936.0, 1.695), (6.0, 3.0)),
        chip("rtx-4090", Family::Nvidia, (128, 1008.0, 2.52), (72.0, 3.0)),
        chip("h100", Family::Nvidia, (132, 3350.0, 1.98), (50.0, 3.0)),
        chip("h200", Family::Nvidia, (132, 4800.0, 1.98), (50.0, 3.0)),
    ];

    /// Multiply-adds per core and cycle.
    const LANES: f64 = 128.0;
    /// Bytes per core and cycle between registers and threadgroup memory or caches.
    const ON_CORE: f64 = 64.0;
    /// Fraction of [`Chip::dispatch`] that is due to the barrier: memory drains before the next step starts.
    /// Derived from reports that running independent steps concurrently gains a few percent of decode time,
    /// not half of its launches.
    const WAITING: f64 = 0.6;
    /// Seconds between two command buffers, one per pass; reported as about 20 µs.
    pub const SUBMISSION: f64 = 20e-6;
    /// Maximum resident simdgroups per core. Published: 24 saturate a core, and 24 fit with 64 registers per
    /// thread.
    pub const RESIDENT: u32 = 24;
    /// Simdgroups per core that saturate its share of memory bandwidth. Derived: 4 simdgroups with 16 bytes
    /// per lane from each of 4 rows in flight for about 500 ns reach a core's 14 GB/s. Doubled, because
    /// simdgroups also compute.
    pub const STREAMING: u32 = 8;
    /// Threadgroup memory per core in bytes; published as about 60 KiB.
    pub const THREADGROUP_MEMORY: u32 = 60 * 1024;

    /// Default chip for predictions: m4-max.
    pub fn common() -> &'static Chip {
        let all: &'static [Chip] = &Chip::ALL;
        &all[16]
    }

    /// Default GPU for NVIDIA programs: h200, where the kernel layouts were measured. Its large number of
    /// multiprocessors is what matters for layouts.
    pub fn common_card() -> &'static Chip {
        let cards: &'static [Chip] = &Chip::CARDS;
        &cards[3]
    }

    /// All chips and GPUs.
    pub fn known() -> impl Iterator<Item = &'static Chip> {
        let (chips, cards): (&'static [Chip], &'static [Chip]) = (&Chip::ALL, &Chip::CARDS);
        chips.iter().chain(cards)
    }

    /// The chip or GPU with this name.
    pub fn from_name(name: &str) -> Option<&'static Chip> {
        Chip::known().find(|chip| chip.name == name)
    }

    /// Names with the smallest edit distance to an unknown name.
    pub fn like(name: &str) -> Vec<&'static str> {
        // `M4 Max`, `m4max` and `apple-m4-max` all mean m4-max.
        let plain = |name: &str| -> String {
            let letters = name.chars().filter(char::is_ascii_alphanumeric);
            letters.map(|letter| letter.to_ascii_lowercase()).collect()
        };
        let wanted = plain(name);
        let wanted = wanted.strip_prefix("apple").unwrap_or(&wanted);
        let mut near: Vec<(usize, &str)> =
            Chip::known().map(|chip| (levenshtein(wanted, &plain(chip.name)), chip.name)).collect();
        near.sort_by_key(|(distance, _)| *distance);
        let best = near.first().map_or(0, |(distance, _)| *distance);
        near.retain(|(distance, _)| *distance == best && *distance <= 2);
        near.into_iter().map(|(_, name)| name).collect()
    }

    /// Maximum rows of a pass. GPUs with many cores need larger passes to be fully used. Predicted for Apple
    /// chips: with 256 rows, 13% of the time of a 512-token prompt is in partly filled last waves.
    pub fn chunk(&self) -> usize {
        /// Cores from which 512 rows are predicted to be faster.
        const MANY_CORES: u32 = 30;
        if self.family == Family::Nvidia || self.cores >= MANY_CORES { 512 } else { 256 }
    }

    /// Peak f32 operations per second; a multiply-add counts as two.
    pub fn f32_rate(&self) -> f64 {
        2.0 * Chip::LANES * f64::from(self.cores) * self.clock * 1e9
    }

    /// Multiply-adds per core and cycle with matrix operations.
    const fn matrix_lanes(&self) -> f64 {
        match self.family {
            Family::Nvidia => 212.0,
            _ => 102.0,
        }
    }

    /// Peak matrix operations per second; a multiply-add counts as two.
    pub fn matrix_rate(&self) -> f64 {
        2.0 * self.matrix_lanes() * f64::from(self.cores) * self.clock * 1e9
    }

    /// Peak operations per second with products of f16 tensors; a multiply-add counts as two.
    pub fn tensor_rate(&self) -> f64 {
        /// Relative to products of matrices.
        const ACCELERATED: f64 = 2.0;
        self.matrix_rate() * if self.family == Family::Apple10 { ACCELERATED } else { 1.0 }
    }

    /// Peak operations per second of the fastest execution units.
    pub fn peak_rate(&self) -> f64 {
        self.f32_rate().max(self.tensor_rate())
    }

    /// Peak bytes per second between registers and threadgroup memory or caches, of all cores; `None` if not
    /// known.
    pub fn on_core_rate(&self) -> Option<f64> {
        let known = self.family != Family::Nvidia;
        known.then(|| Chip::ON_CORE * f64::from(self.cores) * self.clock * 1e9)
    }

    /// Bandwidth in bytes per second that good kernels reach.
    pub fn attained_bandwidth(&self) -> f64 {
        self.efficiency * self.bandwidth * 1e9
    }

    /// Seconds per dispatch, without a barrier.
    pub fn start_seconds(&self) -> f64 {
        self.dispatch * 1e-6 * (1.0 - Chip::WAITING)
    }

    /// Additional seconds per barrier.
    pub fn wait_seconds(&self) -> f64 {
        self.dispatch * 1e-6 * Chip::WAITING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chip_names_are_unique_and_found() {
        for chip in Chip::known() {
            assert_eq!(Chip::from_name(chip.name).map(|found| found.name), Some(chip.name));
        }
        assert_eq!([Chip::common(), Chip::common_card()].map(|chip| chip.name), ["m4-max", "h200"]);
        let names: std::collections::BTreeSet<&str> = Chip::known().map(|chip| chip.name).collect();
        assert_eq!(names.len(), Chip::ALL.len() + Chip::CARDS.len());
    }

    #[test]
    fn similar_chip_names_are_suggested() {
        let cases: [(&str, &[&str]); 9] = [
            ("M4 Max", &["m4-max"]),
            ("apple-m4-max", &["m4-max"]),
            ("m4max", &["m4-max"]),
            ("m4-mx", &["m4-max"]),
            ("m3-max32", &["m3-max-30", "m4-max-32", "m5-max-32"]),
            ("m6", &["m1", "m2", "m3", "m4", "m5"]),
            ("H200", &["h200"]),
            ("rtx4090", &["rtx-4090"]),
            ("gtx-1080", &[]),
        ];
        for (name, expected) in cases {
            assert_eq!(Chip::like(name), expected, "{name}");
        }
    }

    #[test]
    fn chips_with_many_cores_have_larger_passes() {
        for (name, chunk) in [
            ("m1", 256),
            ("m4-pro", 256),
            ("m3-max-30", 512),
            ("m1-max", 512),
            ("m2-ultra", 512),
            ("h200", 512),
        ] {
            assert_eq!(Chip::from_name(name).map(Chip::chunk), Some(chunk), "{name}");
        }
    }

    #[test]
    fn rates_match_published_figures() {
        let published =
            [("m1", 2.6), ("m1-max", 10.6), ("m2-ultra", 27.2), ("m3-max", 14.1), ("m4-max", 16.2)];
        for (name, teraflops) in published {
            let chip = Chip::from_name(name).expect("it is listed");
            assert!((chip.f32_rate() / 1e12 - teraflops).abs() < 0.1, "{name}: {}", chip.f32_rate());
            assert!(chip.matrix_rate() < chip.f32_rate());
        }
    }

    #[test]
    fn larger_chips_are_faster_and_newer_ones_launch_cheaper() {
        for pair in Chip::ALL.windows(2) {
            let [older, newer] = pair else { continue };
            if older.name[..2] == newer.name[..2] {
                assert!(older.cores < newer.cores && older.bandwidth < newer.bandwidth, "{}", newer.name);
                assert!(older.system_cache <= newer.system_cache, "{}", newer.name);
            }
            assert!(older.family <= newer.family && older.dispatch >= newer.dispatch, "{}", newer.name);
        }
    }
}
