//! Selection of the instruction set: detected once, or forced by
//! `FORGE_ISA=portable|avx2|avx512|amx|neon|dot|i8mm`.

use crate::cpu::matmul::gemv::GEMV_MAX_ROWS;
use crate::cpu::simd::portable::Portable;
use crate::cpu::simd::vectors::Simd;

/// Whether kernels are compiled for [`Isa::Portable`]: not where every CPU has better vectors, because it is a fourth of
/// the compiled code, except for tests.
const HAS_PORTABLE: bool = cfg!(any(not(target_arch = "aarch64"), feature = "portable"));

/// A SIMD instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust, for any CPU; on 64-bit ARM with the feature `portable` only.
    Portable,
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with AMX int8 and bf16 tiles.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// The NEON baseline of 64-bit ARM.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// NEON with `sdot` (dotprod).
    #[cfg(target_arch = "aarch64")]
    Dot,
    /// NEON with `smmla` (i8mm).
    #[cfg(target_arch = "aarch64")]
    I8mm,
}

impl Isa {
    /// All instruction sets of this architecture, best first.
    const ALL: &[Isa] = &[
        #[cfg(target_arch = "x86_64")]
        Isa::Amx,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2,
        #[cfg(target_arch = "aarch64")]
        Isa::I8mm,
        #[cfg(target_arch = "aarch64")]
        Isa::Dot,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon,
        Isa::Portable,
    ];

    /// The instruction sets that this machine supports, best first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.iter().copied().filter(|level| level.is_here()).collect()
    }

    fn is_here(self) -> bool {
        match self {
            Isa::Portable => HAS_PORTABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                use std::arch::is_x86_feature_detected as has;
                has!("avx2") && has!("fma") && has!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                use std::arch::is_x86_feature_detected as has;
                Isa::Avx2.is_here()
                    && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512dq")
                    && has!("avx512vl")
                    && has!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512.is_here() && crate::cpu::simd::amx::is_here(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Isa::Dot => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => Isa::Dot.is_here() && std::arch::is_aarch64_feature_detected!("i8mm"),
        }
    }

    /// The best available instruction set, or the one named by `FORGE_ISA`.
    pub fn choose() -> Result<Isa, String> {
        let available = Isa::available();
        match std::env::var("FORGE_ISA") {
            Err(_) => Ok(available[0]),
            Ok(name) => available.iter().copied().find(|level| level.name() == name).ok_or_else(|| {
                let names: Vec<&str> = available.iter().map(|level| level.name()).collect();
                format!("FORGE_ISA={name} is not available: this machine supports {}", names.join(", "))
            }),
        }
    }

    /// The name in `FORGE_ISA`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Isa::Dot => "dot",
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => "i8mm",
        }
    }

    /// The display name.
    pub fn title(self) -> &'static str {
        match self {
            Isa::Portable => "portable vectors",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "AVX-512",
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => "AVX-512 with AMX",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "NEON",
            #[cfg(target_arch = "aarch64")]
            Isa::Dot => "NEON with dot products",
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => "NEON with int8 matrix products",
        }
    }

    /// Whether activations of quantized weights are quantized to int8. In portable code, int8 products are a fourth as fast
    /// as those of f32 vectors.
    pub fn has_int8(self) -> bool {
        self != Isa::Portable
    }

    /// Whether int8 GEMM uses AMX tiles.
    pub(crate) fn has_tiles(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self == Isa::Amx;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Maximum rows of x in int8 GEMV on repacked weights. With AVX-512, the sums of eight rows stay in registers, and
    /// up to four such groups are faster than packing panels, even with AMX.
    pub(crate) fn repacked_rows(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => 32,
            _ => GEMV_MAX_ROWS,
        }
    }

    /// Runs `task` compiled for this instruction set. Everything that `task` calls must be `inline(always)`.
    /// Otherwise it is compiled without the vector instructions, which is correct but far slower.
    pub(crate) fn run<T: Task>(self, task: T) {
        match self {
            Isa::Portable => task.run_portable(),
            // SAFETY: an `Isa` is only constructed after `available` has detected its features.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { task.run_avx2() },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => unsafe { task.run_avx512() },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => task.run::<crate::cpu::simd::neon::Neon<false, false>>(),
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Isa::Dot => unsafe { task.run_dot() },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => unsafe { task.run_i8mm() },
        }
    }
}

/// Runs `task` compiled for AMX machines, with AVX-512 vectors.
///
/// # Safety
/// The machine must support AMX.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn run_with_tiles<T: Task>(task: T) {
    // SAFETY: machines with AMX have AVX-512.
    unsafe { task.run_avx512() }
}

/// A computation that is generic over the instruction set.
///
/// Its versions for each instruction set are methods, so that they are compiled with the module of the type, and
/// modules in parallel. As functions of this module, all kernels would be one unit of compilation.
pub(crate) trait Task: Sized {
    /// Runs it. Implementations must be `inline(always)`.
    fn run<S: Simd>(self);

    /// Runs it on a machine with these features.
    ///
    /// # Safety
    /// The machine must have them.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn run_avx2(self) {
        self.run::<crate::cpu::simd::avx2::Avx2>();
    }

    /// Runs it on a machine with these features.
    ///
    /// # Safety
    /// The machine must have them.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn run_avx512(self) {
        self.run::<crate::cpu::simd::avx512::Avx512>();
    }

    /// Runs it on a machine with these features.
    ///
    /// # Safety
    /// The machine must have them.
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "dotprod")]
    unsafe fn run_dot(self) {
        self.run::<crate::cpu::simd::neon::Neon<true, false>>();
    }

    /// Runs it on a machine with these features.
    ///
    /// # Safety
    /// The machine must have them.
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "dotprod,i8mm")]
    unsafe fn run_i8mm(self) {
        self.run::<crate::cpu::simd::neon::Neon<true, true>>();
    }

    /// Runs it on any machine.
    fn run_portable(self) {
        if HAS_PORTABLE {
            self.run::<Portable>();
        } else {
            unreachable!("`Isa::available` has no portable vectors here");
        }
    }
}
