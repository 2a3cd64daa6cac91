//! How weights come from memory fastest, where few rows meet them, or one.
//!
//! Every weight is read once, so it is memory that a token waits for, and what it gives depends on what the processor
//! foresees of it: of one kind several stretches that are read at once, of another one that is asked for long before.

use crate::cpu::simd::isa::Isa;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// How many stretches of a matrix are read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadPattern {
    /// One, and what lies far ahead is asked for.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "only AVX2 is known to want to be asked")
    )]
    InOrder,
    /// The same, and what is asked for is kept by the nearest cache alone, from where it goes nowhere: nobody reads it again before all
    /// else has been read. Codes of a byte are not: so asked for they come no faster.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only AMD's are known to gain by it"))]
    Once,
    /// Several; strips of bytes one after the other. Nothing is asked for.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only AMD's are known to foresee so"))]
    Foreseen,
    /// Several, and the next two blocks of a strip are asked for.
    Several,
}

impl ReadPattern {
    /// Whether there is one.
    pub(crate) fn is_one(self) -> bool {
        matches!(self, ReadPattern::InOrder | ReadPattern::Once)
    }

    /// How many blocks of a strip are asked for ahead, whose codes are bytes, or halves of them. Bytes are foreseen better: by twice as
    /// many blocks the 135M in q8_0 is slower by 2%, and by half as many of nibbles that in q4_0 by 7%, kept elsewhere or not.
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

/// How far ahead rows are asked for that lie as they are stored, in bytes: 0 where nothing is.
#[derive(Clone, Copy)]
pub(crate) struct PrefetchDistance {
    /// Where there are several at once, or several that they meet: no nearer than the second cache.
    pub(crate) far: usize,
    /// A row by itself, into the nearest cache: not as far, so that there is room for it beside x. Where x takes two thirds of that cache, a
    /// line that comes no nearer than the second waits there, and two threads of a Zen 5 read 86% of what they read of shorter rows, for
    /// 97%.
    pub(crate) near: usize,
    /// Whether nothing else keeps that, as for [`ReadPattern::Once`].
    pub(crate) once: bool,
}

impl Isa {
    /// What is fastest here. AVX2 has no registers for several strips or rows at once. AMD's processors with AVX-512 foresee strips by
    /// themselves, and up to Zen 4 are slower where they are asked as well: two threads of an EPYC of 2022 read the 1.1B in q8_0 with 52 GB
    /// a second for 40. From Zen 5 on they want to be asked, and long before: two threads of an EPYC of 2024 read the 1.1B in q4_0 with 68
    /// GB a second for 56, and by AVX2 with 72 for 27; in f16 with 67 for 63. Where their cores lie together, so that one way to memory is
    /// all they have, what is kept nowhere else takes less of it: q4_0 with 49 GB for 45. Intel's foresee too few.
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

    /// How rows are asked for that lie as they are stored. Machines with tiles foresee too few of them, too; on a Zen 4 asking made ids
    /// slower, and of others nobody has tried.
    pub(crate) fn asking(self) -> PrefetchDistance {
        match self.streams() {
            ReadPattern::Once => PrefetchDistance { far: 8 << 10, near: 6 << 10, once: true },
            streams if streams.is_one() || self.has_tiles() => {
                PrefetchDistance { far: 8 << 10, near: 4 << 10, once: false }
            }
            _ => PrefetchDistance { far: 0, near: 0, once: false },
        }
    }
}

/// The family of processors that are called Zen 5.
#[cfg(target_arch = "x86_64")]
const ZEN_5: u32 = 26;

/// The family of the processor, if AMD made it.
#[cfg(target_arch = "x86_64")]
fn amd_family() -> Option<u32> {
    use std::arch::x86_64::__cpuid;
    static FAMILY: OnceLock<Option<u32>> = OnceLock::new();
    *FAMILY.get_or_init(|| {
        let said = __cpuid(0);
        let is_of_amd =
            [said.ebx, said.edx, said.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD";
        // Families from 15 on are 15 and as many more as another field says.
        let said = __cpuid(1).eax;
        is_of_amd.then_some((said >> 8 & 15) + (said >> 20 & 255))
    })
}
