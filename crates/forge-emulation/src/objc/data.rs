//! `dispatch_data` objects of libdispatch. A compiled Metal library is represented by its source.

use std::cell::Cell;
use std::ffi::c_void;

/// Reference-counted bytes.
struct Data {
    bytes: Vec<u8>,
    references: Cell<usize>,
}

/// The bytes as text.
pub(crate) fn read(data: *const c_void) -> String {
    // SAFETY: created by `dispatch_data_create`, and the caller holds a reference.
    let data = unsafe { &*data.cast::<Data>() };
    String::from_utf8_lossy(&data.bytes).into_owned()
}

/// # Safety
/// `bytes` points to `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn dispatch_data_create(
    bytes: *const u8,
    length: usize,
    _queue: *const c_void,
    destructor: *const c_void,
) -> *const c_void {
    assert!(destructor.is_null(), "only copied bytes are emulated");
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, length) }.to_vec();
    Box::into_raw(Box::new(Data { bytes, references: Cell::new(1) })).cast_const().cast()
}

/// # Safety
/// `data` was created by `dispatch_data_create`.
#[unsafe(no_mangle)]
unsafe extern "C" fn dispatch_retain(data: *const c_void) {
    // SAFETY: as above.
    unsafe { &*data.cast::<Data>() }.references.update(|count| count + 1);
}

/// # Safety
/// `data` was created by `dispatch_data_create`, and the caller holds a reference.
#[unsafe(no_mangle)]
unsafe extern "C" fn dispatch_release(data: *const c_void) {
    let data = data.cast::<Data>().cast_mut();
    // SAFETY: as above.
    let references = unsafe { &(*data).references };
    references.update(|count| count - 1);
    if references.get() == 0 {
        // SAFETY: no references are left.
        drop(unsafe { Box::from_raw(data) });
    }
}
