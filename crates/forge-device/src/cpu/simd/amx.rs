//! AMX: tile registers and matrix multiply instructions.
//!
//! There are eight tiles of 16 rows of 64 bytes. An accumulator tile is `[16, 16]`. Each instruction adds the
//! product of a `[16, columns]` tile and a tile of 16 columns, whose rows hold pairs of bf16 or groups of
//! four bytes. Tiles are only loaded from and stored to memory.
//!
//! Rust has no stable intrinsics for these instructions, so they are inline assembly. A thread configures its
//! tiles when it begins and releases them at the end, because live tiles make context switches slower.
//!
//! SAFETY, for every block here: the instruction set was detected on this machine, and a thread uses only
//! tiles that it has configured.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Rows of a tile, and elements in a row of an accumulator tile.
pub(crate) const SIDE: usize = 16;
/// Bytes in a row of an accumulator tile.
pub(crate) const ROW: usize = 64;

/// An accumulator tile in memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Sums<T>(pub(crate) [[T; SIDE]; SIDE]);

/// Whether the CPU has int8 and bf16 tiles and the system lets this process use them.
pub(crate) fn is_here() -> bool {
    static IS_HERE: OnceLock<bool> = OnceLock::new();
    *IS_HERE.get_or_init(|| has_tiles() && is_granted())
}

fn has_tiles() -> bool {
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    let features = __cpuid_count(7, 0).edx;
    features & BF16_TILE_INT8 == BF16_TILE_INT8
}

/// Tiles add 8 KiB to a thread's saved state. Linux enables them only on request.
#[cfg(target_os = "linux")]
fn is_granted() -> bool {
    use std::ffi::c_long;
    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }
    const ARCH_PRCTL: c_long = 158;
    const REQUEST_PERMISSION: c_long = 0x1023;
    const TILE_DATA: c_long = 18;
    // SAFETY: the call accesses no memory of this process, and returns an error if unsupported.
    unsafe { syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_granted() -> bool {
    false
}

/// A thread's configured tiles; dropping it releases them.
pub(crate) struct Tiles;

/// Tile configuration, in the CPU's format.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Tiles {
    /// Configures tiles of the given rows and bytes per row, all zero.
    #[inline(always)]
    pub(crate) unsafe fn set_up(shapes: [(usize, usize); 8]) -> Tiles {
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        for (i, (count, bytes)) in shapes.into_iter().enumerate() {
            (rows[i], row_bytes[i]) = (count as u8, bytes as u16);
        }
        let shapes = Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows };
        unsafe { asm!("ldtilecfg [{}]", in(reg) &shapes, options(nostack, readonly)) };
        Tiles
    }

    /// Loads a tile whose rows have a stride of `stride` bytes.
    #[inline(always)]
    pub(crate) unsafe fn load<const TILE: usize, T>(&self, from: *const T, stride: usize) {
        unsafe {
            asm!("tileloadd tmm{tile}, [{from} + {stride}*1]", tile = const TILE, from = in(reg) from,
                stride = in(reg) stride, options(nostack, readonly));
        }
    }

    /// Zeroes a tile.
    #[inline(always)]
    pub(crate) unsafe fn clear<const TILE: usize>(&self) {
        unsafe { asm!("tilezero tmm{tile}", tile = const TILE, options(nostack, nomem)) };
    }

    /// Stores an accumulator tile.
    #[inline(always)]
    pub(crate) unsafe fn store<const TILE: usize, T>(&self, to: &mut Sums<T>) {
        unsafe {
            asm!("tilestored [{to} + {stride}*1], tmm{tile}", tile = const TILE, to = in(reg) to,
                stride = in(reg) ROW, options(nostack));
        }
    }

    /// Accumulates an int8 matrix product.
    #[inline(always)]
    pub(crate) unsafe fn add_bytes<const SUMS: usize, const LEFT: usize, const RIGHT: usize>(&self) {
        unsafe {
            asm!("tdpbssd tmm{sums}, tmm{left}, tmm{right}", sums = const SUMS, left = const LEFT,
                right = const RIGHT, options(nostack, nomem));
        }
    }

    /// Accumulates a bf16 matrix product.
    #[inline(always)]
    pub(crate) unsafe fn add_bf16<const SUMS: usize, const LEFT: usize, const RIGHT: usize>(&self) {
        unsafe {
            asm!("tdpbf16ps tmm{sums}, tmm{left}, tmm{right}", sums = const SUMS, left = const LEFT,
                right = const RIGHT, options(nostack, nomem));
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the instruction affects tiles only.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
