//! Scratch memory that a thread keeps between dispatches, so that kernels do not allocate.
//!
//! It is taken and returned rather than passed to a closure. A closure would be compiled outside the function
//! that enables the vector instructions.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// One cache line, so that aligned vectors never straddle two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; 16]);

thread_local! {
    static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// This thread's scratch: 64-byte aligned f32 elements with unspecified contents.
pub(crate) struct Scratch {
    lines: Vec<Line>,
    count: usize,
}

impl Scratch {
    /// Takes `count` elements.
    pub(crate) fn take(count: usize) -> Scratch {
        let mut lines = SCRATCH.take();
        let needed = count.div_ceil(16);
        if lines.len() < needed {
            lines.resize(needed, Line([0.0; 16]));
        }
        Scratch { lines, count }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        SCRATCH.set(std::mem::take(&mut self.lines));
    }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: lines are plain f32 arrays without padding, and hold at least `count` elements.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.count) }
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.count) }
    }
}
