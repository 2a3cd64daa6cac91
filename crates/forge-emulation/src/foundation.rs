//! What of Foundation the host needs, strings, places of files and errors, and the options that a library is compiled with.

use crate::object::{Class, Id, Object, methods};
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::ops::Deref;

/// A string, the path of a file, or an error with what it says.
struct Text(RefCell<CString>);

static STRING: Class = Class {
    name: "NSString",
    method: methods! {
        "initWithBytes:length:encoding:" => |string, bytes: *const u8, length: usize, encoding: i32| -> Id {
            assert_eq!(encoding, 4, "strings are made of UTF-8");
            // SAFETY: the sender has so many bytes there.
            let bytes = unsafe { std::slice::from_raw_parts(bytes, length) };
            string.get::<Text>().0.replace(CString::new(bytes).expect("no text of the host has a zero in it"));
            string
        }
        "UTF8String" => |string| -> *const c_char { string.get::<Text>().0.borrow().as_ptr() }
        "lengthOfBytesUsingEncoding:" => |string, _encoding: i32| -> usize {
            string.get::<Text>().0.borrow().as_bytes().len()
        }
    },
};

/// The class of strings itself, by the name that programs are linked with.
#[unsafe(export_name = "._OBJC_CLASS_NSString")]
static STRING_CLASS: Object = Object::of_class(&Class {
    name: "class NSString",
    method: methods! {
        "alloc" => |_class| -> Id { Id::new(&STRING, Text(RefCell::default())) }
    },
});

static URL: Class = Class { name: "NSURL", method: |_| None };

/// The class of URLs itself; of files, by their paths.
#[unsafe(export_name = "._OBJC_CLASS_NSURL")]
static URL_CLASS: Object = Object::of_class(&Class {
    name: "class NSURL",
    method: methods! {
        "fileURLWithPath:" => |_class, path: Id| -> Id { made(&URL, &read(path)).autorelease() }
    },
});

static ERROR: Class = Class {
    name: "NSError",
    method: methods! {
        "localizedDescription" => |error| -> Id { string(&read(error)).autorelease() }
    },
};

/// How a library is to be compiled.
#[derive(Default)]
pub(crate) struct Options {
    /// The number of `MTLMathMode`, whether set as such or as `fastMathEnabled`.
    math: Cell<Option<isize>>,
    language: Cell<Option<usize>>,
}

impl Options {
    /// What of them lets Metal compute otherwise than the text says.
    pub(crate) fn complaint(&self) -> Option<String> {
        match (self.math.get(), self.language.get()) {
            (Some(0), Some(_)) => None,
            (Some(0), None) => Some("the library is compiled as whatever language is newest".to_owned()),
            _ => Some("the library is compiled with fast mathematics".to_owned()),
        }
    }
}

static OPTIONS: Class = Class {
    name: "MTLCompileOptions",
    method: methods! {
        "setMathMode:" => |options, mode: isize| { options.get::<Options>().math.set(Some(mode)) }
        "setFastMathEnabled:" => |options, fast: u8| {
            options.get::<Options>().math.set(Some(if fast == 0 { 0 } else { 2 }));
        }
        "setLanguageVersion:" => |options, version: usize| {
            options.get::<Options>().language.set(Some(version));
        }
    },
};

/// The class of options itself.
#[unsafe(export_name = "._OBJC_CLASS_MTLCompileOptions")]
static OPTIONS_CLASS: Object = Object::of_class(&Class {
    name: "class MTLCompileOptions",
    method: methods! {
        "new" => |_class| -> Id { Id::new(&OPTIONS, Options::default()) }
    },
});

fn made(class: &'static Class, text: &str) -> Id {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    Id::new(class, Text(RefCell::new(text)))
}

/// A new string.
pub(crate) fn string(text: &str) -> Id {
    made(&STRING, text)
}

/// A new error that says this.
pub(crate) fn error(text: &str) -> Id {
    made(&ERROR, text)
}

/// What a string or an error says.
pub(crate) fn read(id: Id) -> String {
    id.get::<Text>().0.borrow().deref().to_string_lossy().into_owned()
}

/// Leaves an error where the sender of a message wants one; gives no object.
pub(crate) fn fail(place: *mut Id, what: &str) -> Id {
    if !place.is_null() {
        // SAFETY: the sender has room for a reference there.
        unsafe { place.write(error(what).autorelease()) };
    }
    Id::NONE
}
