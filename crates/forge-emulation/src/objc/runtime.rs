//! The Objective-C runtime functions that `objc2` calls when built for GNUstep, and `MTLCreateSystemDefaultDevice`.

use crate::machine::has_message;
use crate::metal::device;
use crate::objc::object::{Class, Id, Method, Selector, close_pool, open_pool};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{LazyLock, Mutex};

/// Does nothing. Calling it links the functions of this module into the program.
pub fn emulate() {}

/// Interned selector names, which are never freed.
static SELECTORS: LazyLock<Mutex<HashMap<CString, &'static CStr>>> = LazyLock::new(Mutex::default);

/// # Safety
/// `name` must be a C string.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sel_registerName(name: *const c_char) -> Selector {
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) };
    let mut selectors = SELECTORS.lock().expect("the lock is never poisoned");
    let own = selectors.entry(name.to_owned()).or_insert_with(|| Box::leak(name.into()));
    Selector(own.as_ptr())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_isEqual(one: Selector, other: Selector) -> u8 {
    u8::from(one.0 == other.0)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_getName(selector: Selector) -> *const c_char {
    selector.0
}

/// Functions that `objc2` only uses to print objects and classes.
macro_rules! unused {
    ($($name:ident)*) => {
        $(#[unsafe(no_mangle)]
        extern "C-unwind" fn $name() {
            panic!("{} is not emulated", stringify!($name));
        })*
    };
}
unused!(class_getName class_isMetaClass object_getClass objc_getClass);

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup(receiver: Id, selector: Selector) -> Method {
    let (class, name) = (receiver.class(), selector.name());
    if name == "respondsToSelector:" {
        return responds as Method;
    }
    method(class, name).unwrap_or_else(|| panic!("[{} {name}] is not emulated", class.name))
}

fn method(class: &Class, name: &str) -> Option<Method> {
    has_message(class.name, name).then(|| (class.method)(name)).flatten()
}

extern "C-unwind" fn responds(receiver: Id, _: Selector, selector: Selector) -> u8 {
    u8::from(method(receiver.class(), selector.name()).is_some())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retain(object: Id) -> Id {
    object.retain()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retainAutoreleasedReturnValue(object: Id) -> Id {
    object.retain()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_release(object: Id) {
    object.release();
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autorelease(object: Id) -> Id {
    object.autorelease()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPush() -> *mut c_void {
    std::ptr::without_provenance_mut(open_pool())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPop(pool: *mut c_void) {
    close_pool(pool.addr());
}

#[unsafe(no_mangle)]
extern "C-unwind" fn MTLCreateSystemDefaultDevice() -> Id {
    device::create()
}
