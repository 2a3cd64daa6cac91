//! Memory that a thread keeps from one dispatch to the next, so that kernels do not allocate.
//!
//! It is taken and given back rather than lent to a closure: a closure would be compiled outside the function that
//! has the vector instructions.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// A cache line, so that vectors never straddle two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; 16]);

thread_local! {
    static KEPT: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Numbers of this thread's scratch, 64-byte aligned; what they hold is left from before.
pub(crate) struct Scratch {
    lines: Vec<Line>,
    count: usize,
}

impl Scratch {
    /// `count` numbers.
    pub(crate) fn take(count: usize) -> Scratch {
        let mut lines = KEPT.take();
        let needed = count.div_ceil(16);
        if lines.len() < needed {
            lines.resize(needed, Line([0.0; 16]));
        }
        Scratch { lines, count }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        KEPT.set(std::mem::take(&mut self.lines));
    }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: lines are plain numbers without gaps, and there are at least `count` numbers of them.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.count) }
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.count) }
    }
}
