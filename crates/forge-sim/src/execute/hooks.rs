//! Callbacks of instrumented code. At most one executor runs on a system thread; a thread-local pointer refers to it.

use crate::execute::engine::Engine;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

/// The functions that `hooks.cpp` calls, in its order.
#[repr(C)]
pub(crate) struct Table {
    access: unsafe extern "C" fn(*mut c_void, u32, *const c_void),
    range: unsafe extern "C" fn(*mut c_void, u64, u32, *const c_void),
    barrier: unsafe extern "C" fn(u32, u32, *const c_void),
    sync_lanes: unsafe extern "C" fn(*const c_void, u32, *const c_void) -> *mut c_void,
    pass: unsafe extern "C" fn(*const c_void) -> u32,
    threadgroup: unsafe extern "C" fn(u32, u64, u32, *const c_char) -> *mut c_void,
    atomic: unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void),
    trap: unsafe extern "C" fn(u32, u64, *const c_void),
}

pub(crate) static TABLE: Table =
    Table { access, range, barrier, sync_lanes, pass, threadgroup, atomic, trap };

thread_local! {
    static ENGINE: Cell<*mut Engine> = const { Cell::new(null_mut()) };
}

/// The executor of this system thread.
#[inline(always)]
pub(crate) fn engine() -> *mut Engine {
    ENGINE.get()
}

/// Sets the executor of this system thread and returns the previous one.
pub(crate) fn set_engine(engine: *mut Engine) -> *mut Engine {
    ENGINE.replace(engine)
}

// SAFETY, for all functions below: kernels run only while `engine()` is set, on fibers of that engine. References into
// the engine end before a fiber is suspended, because other fibers use the engine meanwhile.

unsafe extern "C" fn access(at: *mut c_void, code: u32, place: *const c_void) {
    let engine = engine();
    unsafe {
        if !(*engine).watch.access(at as usize, code, place) {
            Engine::abort_dispatch(engine);
        }
        let watch = &mut (*engine).watch;
        if watch.counters.accesses > watch.budget {
            Engine::exceed_access_limit(engine, place);
        }
    }
}

unsafe extern "C" fn range(at: *mut c_void, size: u64, write: u32, place: *const c_void) {
    let engine = engine();
    unsafe {
        if !(*engine).watch.range(at as usize, size as usize, write != 0, place) {
            Engine::abort_dispatch(engine);
        }
    }
}

unsafe extern "C" fn barrier(simdgroup: u32, flags: u32, place: *const c_void) {
    let engine = engine();
    unsafe {
        if simdgroup != 0 {
            Engine::simdgroup_barrier(engine, flags, place);
        } else {
            Engine::threadgroup_barrier(engine, flags, place);
        }
    }
}

unsafe extern "C" fn sync_lanes(value: *const c_void, size: u32, place: *const c_void) -> *mut c_void {
    unsafe { Engine::sync_lanes(engine(), value.cast(), size as usize, place).cast() }
}

unsafe extern "C" fn pass(place: *const c_void) -> u32 {
    unsafe { Engine::pass(engine(), place) }
}

unsafe extern "C" fn threadgroup(id: u32, size: u64, _alignment: u32, name: *const c_char) -> *mut c_void {
    unsafe {
        let name = CStr::from_ptr(name);
        Engine::array(engine(), id, size as usize, name) as *mut c_void
    }
}

unsafe extern "C" fn atomic(at: *mut c_void, size: u32, kind: u32, place: *const c_void) {
    let engine = engine();
    unsafe {
        if !(*engine).watch.atomic(at as usize, size as usize, kind, place) {
            Engine::abort_dispatch(engine);
        }
    }
}

unsafe extern "C" fn trap(kind: u32, value: u64, place: *const c_void) {
    unsafe { Engine::trap(engine(), kind, value, place) }
}
