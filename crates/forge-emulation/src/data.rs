//! Bytes as `libdispatch` hands them around. What Metal's compiler would have made of a text is, here, that text.

use std::cell::Cell;
use std::ffi::c_void;

/// Bytes, and how many hold them.
struct Data {
    bytes: Vec<u8>,
    references: Cell<usize>,
}

/// What they say.
pub(crate) fn read(data: *const c_void) -> String {
    // SAFETY: it was made below and somebody holds it.
    let data = unsafe { &*data.cast::<Data>() };
    String::from_utf8_lossy(&data.bytes).into_owned()
}

/// # Safety
/// There are so many bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn dispatch_data_create(
    bytes: *const u8,
    length: usize,
    _queue: *const c_void,
    destructor: *const c_void,
) -> *const c_void {
    assert!(destructor.is_null(), "only bytes that are copied are emulated");
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, length) }.to_vec();
    Box::into_raw(Box::new(Data { bytes, references: Cell::new(1) })).cast_const().cast()
}

/// # Safety
/// It was made above.
#[unsafe(no_mangle)]
unsafe extern "C" fn dispatch_retain(data: *const c_void) {
    // SAFETY: as above.
    unsafe { &*data.cast::<Data>() }.references.update(|count| count + 1);
}

/// # Safety
/// It was made above, and whoever calls holds it.
#[unsafe(no_mangle)]
unsafe extern "C" fn dispatch_release(data: *const c_void) {
    let data = data.cast::<Data>().cast_mut();
    // SAFETY: as above.
    let references = unsafe { &(*data).references };
    references.update(|count| count - 1);
    if references.get() == 0 {
        // SAFETY: nobody holds it any more.
        drop(unsafe { Box::from_raw(data) });
    }
}
