//! Read patterns and prefetch distances of weights in GEMV, by CPU microarchitecture.
//!
//! Decode reads every weight once per token, so memory bandwidth bounds it. The reachable bandwidth depends
//! on the hardware prefetcher. Some CPUs are fastest with several concurrent streams, others with one stream
//! and long-distance software prefetch.

use crate::cpu::simd::isa::Isa;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// How many concurrent streams of a matrix are read, and with which software prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadPattern {
    /// One sequential stream with long-distance prefetch.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only needed on AVX2"))]
    InOrder,
    /// One sequential stream, prefetched with `prefetchnta`: lines go to L1 and are not kept in L2 or L3,
    /// because each weight is read once per token. 8-bit quants use `prefetcht0`; `prefetchnta` did not make
    /// them faster.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only measured faster on AMD CPUs"))]
    Once,
    /// Several streams, but 8-bit strips one after another. The hardware prefetcher suffices.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "only AMD CPUs prefetch strips in hardware")
    )]
    Foreseen,
    /// Several streams, with the next two blocks of each strip prefetched.
    Several,
}

impl ReadPattern {
    /// Whether there is one stream.
    pub(crate) fn is_one(self) -> bool {
        matches!(self, ReadPattern::InOrder | ReadPattern::Once)
    }

    /// Prefetch distance in blocks of a strip; `of_bytes` selects 8-bit quants, otherwise nibbles. Hardware
    /// prefetch is better for 8-bit quants. Twice this distance for q8_0 is 2% slower, and half of it for
    /// q4_0 is 7% slower (135M models).
    #[inline(always)]
    pub(crate) fn blocks_ahead(self, of_bytes: bool) -> usize {
        match self {
            ReadPattern::InOrder | ReadPattern::Once if of_bytes => 8,
            ReadPattern::InOrder | ReadPattern::Once => 32,
            ReadPattern::Foreseen => 0,
            ReadPattern::Several => 2,
        }
    }
}

/// Prefetch distances in bytes for row-major weights; 0 disables prefetch.
#[derive(Clone, Copy)]
pub(crate) struct PrefetchDistance {
    /// Distance for several rows of weights or of x at a time, prefetched to L2.
    pub(crate) far: usize,
    /// Distance for a single row, prefetched to L1. It is shorter, so that lines fit in L1 next to x. If x
    /// fills two thirds of L1, prefetch to L2 reaches 86% of the bandwidth of shorter rows, and prefetch to
    /// L1 97% (Zen 5, 2 threads).
    pub(crate) near: usize,
    /// Whether `near` uses `prefetchnta`, as [`ReadPattern::Once`] does.
    pub(crate) once: bool,
}

impl Isa {
    /// The fastest read pattern on this CPU.
    ///
    /// - AVX2 has too few registers for several strips or rows at once.
    /// - AMD CPUs with AVX-512 up to Zen 4 prefetch strips in hardware, and software prefetch slows them
    ///   down: 52 → 40 GB/s (EPYC of 2022, 2 threads, 1.1B q8_0).
    /// - From Zen 5 on, long-distance software prefetch is faster: 56 → 68 GB/s with AVX-512 and 27 → 72 GB/s
    ///   with AVX2 in q4_0, 63 → 67 GB/s in f16. The machine is an EPYC of 2024, 2 threads, 1.1B model. With
    ///   both cores on one CCX, `prefetchnta` saves memory bandwidth: 45 → 49 GB/s in q4_0.
    /// - Intel CPUs prefetch too few strips in hardware.
    pub(crate) fn streams(self) -> ReadPattern {
        #[cfg(target_arch = "x86_64")]
        return match (self, amd_family()) {
            (Isa::Avx2 | Isa::Avx512, Some(family)) if family >= ZEN_5 => ReadPattern::Once,
            (Isa::Avx2, _) => ReadPattern::InOrder,
            (Isa::Avx512, Some(_)) => ReadPattern::Foreseen,
            _ => ReadPattern::Several,
        };
        #[cfg(not(target_arch = "x86_64"))]
        ReadPattern::Several
    }

    /// The prefetch distances of row-major weights on this CPU. CPUs with AMX also need software prefetch of
    /// rows. On Zen 4 it made decode slower; other CPUs are not measured.
    pub(crate) fn prefetch_distance(self) -> PrefetchDistance {
        match self.streams() {
            ReadPattern::Once => PrefetchDistance { far: 8 << 10, near: 6 << 10, once: true },
            streams if streams.is_one() || self.has_tiles() => {
                PrefetchDistance { far: 8 << 10, near: 4 << 10, once: false }
            }
            _ => PrefetchDistance { far: 0, near: 0, once: false },
        }
    }
}

/// The CPUID family of Zen 5.
#[cfg(target_arch = "x86_64")]
const ZEN_5: u32 = 26;

/// The CPUID family of an AMD CPU; none for other vendors.
#[cfg(target_arch = "x86_64")]
fn amd_family() -> Option<u32> {
    use std::arch::x86_64::__cpuid;
    static FAMILY: OnceLock<Option<u32>> = OnceLock::new();
    *FAMILY.get_or_init(|| {
        let registers = __cpuid(0);
        let is_amd = [registers.ebx, registers.edx, registers.ecx].map(u32::to_le_bytes).as_flattened()
            == b"AuthenticAMD";
        // Families of 15 and above add the extended family field.
        let registers = __cpuid(1).eax;
        is_amd.then_some((registers >> 8 & 15) + (registers >> 20 & 255))
    })
}
