//! AMX: a processor's units for products of whole matrices, and the tiles that they multiply.
//!
//! A tile is sixteen rows of 64 bytes; there are eight. One of sums is `[16, 16]`, and what is added to it is the product of one of
//! `[16, columns]` and one whose rows are pairs of bfloats, or fours of bytes, of 16 columns. They are read from memory and written
//! there, and can be used in no other way.
//!
//! Rust has no stable name for these instructions, so they are spelt here. A thread sets its tiles up when it begins and gives them
//! back: one that holds tiles is slow to be put aside.
//!
//! SAFETY, for every block here: the level has been found on this machine, and a thread uses tiles that it has set up.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Rows of a tile, and numbers in a row of sums.
pub(crate) const SIDE: usize = 16;
/// Bytes of a row of sums.
pub(crate) const ROW: usize = 64;

/// A tile of sums.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Sums<T>(pub(crate) [[T; SIDE]; SIDE]);

/// Whether the processor has tiles, of bytes and of bfloats, and the system lets this process use them.
pub(crate) fn is_here() -> bool {
    static IS_HERE: OnceLock<bool> = OnceLock::new();
    *IS_HERE.get_or_init(|| has_tiles() && is_granted())
}

fn has_tiles() -> bool {
    const BFLOATS_TILES_AND_BYTES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    let features = __cpuid_count(7, 0).edx;
    features & BFLOATS_TILES_AND_BYTES == BFLOATS_TILES_AND_BYTES
}

/// Tiles are 8 KiB more to save of a thread, which Linux does for those alone who ask.
#[cfg(target_os = "linux")]
fn is_granted() -> bool {
    use std::ffi::c_long;
    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }
    const ARCH_PRCTL: c_long = 158;
    const REQUEST_PERMISSION: c_long = 0x1023;
    const TILE_DATA: c_long = 18;
    // SAFETY: it reads and writes no memory of ours; where the system does not know it, it says so.
    unsafe { syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_granted() -> bool {
    false
}

/// A thread's tiles while it has them.
pub(crate) struct Tiles;

/// What tiles are, as the processor takes it.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    nothing: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Tiles {
    /// Makes tiles of so many rows and so many bytes a row, all of them zeros.
    #[inline(always)]
    pub(crate) unsafe fn set_up(shapes: [(usize, usize); 8]) -> Tiles {
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        for (i, (count, bytes)) in shapes.into_iter().enumerate() {
            (rows[i], row_bytes[i]) = (count as u8, bytes as u16);
        }
        let shapes = Shapes { palette: 1, start_row: 0, nothing: [0; 14], row_bytes, rows };
        unsafe { asm!("ldtilecfg [{}]", in(reg) &shapes, options(nostack, readonly)) };
        Tiles
    }

    /// Reads a tile of rows that lie so many bytes apart.
    #[inline(always)]
    pub(crate) unsafe fn load<const TILE: usize, T>(&self, from: *const T, apart: usize) {
        unsafe {
            asm!("tileloadd tmm{tile}, [{from} + {apart}*1]", tile = const TILE, from = in(reg) from,
                apart = in(reg) apart, options(nostack, readonly));
        }
    }

    /// Makes a tile of zeros.
    #[inline(always)]
    pub(crate) unsafe fn clear<const TILE: usize>(&self) {
        unsafe { asm!("tilezero tmm{tile}", tile = const TILE, options(nostack, nomem)) };
    }

    /// Writes a tile of sums.
    #[inline(always)]
    pub(crate) unsafe fn store<const TILE: usize, T>(&self, to: &mut Sums<T>) {
        unsafe {
            asm!("tilestored [{to} + {apart}*1], tmm{tile}", tile = const TILE, to = in(reg) to,
                apart = in(reg) ROW, options(nostack));
        }
    }

    /// Adds products of signed bytes.
    #[inline(always)]
    pub(crate) unsafe fn add_bytes<const SUMS: usize, const LEFT: usize, const RIGHT: usize>(&self) {
        unsafe {
            asm!("tdpbssd tmm{sums}, tmm{left}, tmm{right}", sums = const SUMS, left = const LEFT,
                right = const RIGHT, options(nostack, nomem));
        }
    }

    /// Adds products of bfloats.
    #[inline(always)]
    pub(crate) unsafe fn add_bfloats<const SUMS: usize, const LEFT: usize, const RIGHT: usize>(&self) {
        unsafe {
            asm!("tdpbf16ps tmm{sums}, tmm{left}, tmm{right}", sums = const SUMS, left = const LEFT,
                right = const RIGHT, options(nostack, nomem));
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: it touches nothing but tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
