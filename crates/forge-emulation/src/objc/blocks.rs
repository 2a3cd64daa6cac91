//! The runtime of blocks, Objective-C's closures: copies with a reference count.

use crate::counters::{object_created, object_freed};
use crate::objc::object::Id;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;

/// The header of a block, as compilers write it.
#[repr(C)]
struct Block {
    class: *const c_void,
    flags: u32,
    reserved: u32,
    invoke: *const c_void,
    descriptor: *const Descriptor,
}

#[repr(C)]
struct Descriptor {
    reserved: usize,
    size: usize,
    /// Present if the flags have `HAS_HELPERS`.
    copy: unsafe extern "C-unwind" fn(*mut c_void, *const c_void),
    dispose: unsafe extern "C-unwind" fn(*mut c_void),
}

/// The bits of the flags that count references.
const REFERENCES: u32 = 0x00ff_ffff;
/// The block is a copy on the heap.
const IS_COPY: u32 = 1 << 24;
/// The descriptor has functions that copy and dispose.
const HAS_HELPERS: u32 = 1 << 25;
/// The block has no state and is never freed.
const IS_GLOBAL: u32 = 1 << 28;

/// The class of blocks on the stack. Blocks here differ by their flags.
#[unsafe(no_mangle)]
static _NSConcreteStackBlock: [usize; 32] = [0; 32];

/// The class of blocks without state.
#[unsafe(no_mangle)]
static _NSConcreteGlobalBlock: [usize; 32] = [0; 32];

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).expect("a block has a small size")
}

/// # Safety
/// `block` is a block or null.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Block_copy(block: *const c_void) -> *mut c_void {
    let source = block.cast::<Block>().cast_mut();
    if source.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller passes a block, whose descriptor has its size.
    unsafe {
        let flags = (*source).flags;
        if flags & IS_GLOBAL != 0 {
            return source.cast();
        }
        if flags & IS_COPY != 0 {
            (*source).flags += 1;
            return source.cast();
        }
        let descriptor = &*(*source).descriptor;
        let copy = alloc(layout(descriptor.size));
        std::ptr::copy_nonoverlapping(source.cast::<u8>(), copy, descriptor.size);
        (*copy.cast::<Block>()).flags = flags & !REFERENCES | IS_COPY | 1;
        if flags & HAS_HELPERS != 0 {
            (descriptor.copy)(copy.cast(), block);
        }
        object_created("block");
        copy.cast()
    }
}

/// # Safety
/// `block` is a block or null.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Block_release(block: *const c_void) {
    let block = block.cast::<Block>().cast_mut();
    // SAFETY: the caller passes a block. A copy was allocated with the size in its descriptor.
    unsafe {
        if block.is_null() || (*block).flags & IS_COPY == 0 {
            return;
        }
        (*block).flags -= 1;
        if (*block).flags & REFERENCES == 0 {
            let descriptor = &*(*block).descriptor;
            if (*block).flags & HAS_HELPERS != 0 {
                (descriptor.dispose)(block.cast());
            }
            dealloc(block.cast(), layout(descriptor.size));
            object_freed("block");
        }
    }
}

/// Calls a handler of pipelines as Metal does: with a pipeline or an error, on a copy of the block.
pub(crate) fn call_pipeline_handler(handler: *const c_void, pipeline: Id, error: Id) {
    type Invoke = unsafe extern "C-unwind" fn(*mut c_void, Id, Id, Id);
    // SAFETY: the host passes a block with this signature.
    unsafe {
        let block = _Block_copy(handler);
        let invoke: Invoke = std::mem::transmute((*block.cast::<Block>()).invoke);
        invoke(block, pipeline, Id::NIL, error);
        _Block_release(block);
    }
}
