//! Foundation classes that hosts use (strings, file URLs, errors), and the compile options of libraries.

use crate::objc::object::{Class, Id, Object, methods};
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::ops::Deref;

/// The text of a string, a file URL or an error.
struct Text(RefCell<CString>);

static STRING: Class = Class {
    name: "NSString",
    method: methods! {
        "initWithBytes:length:encoding:" => |string, bytes: *const u8, length: usize, encoding: i32| -> Id {
            assert_eq!(encoding, 4, "strings are UTF-8");
            // SAFETY: the caller passes this many bytes.
            let bytes = unsafe { std::slice::from_raw_parts(bytes, length) };
            string.get::<Text>().0.replace(CString::new(bytes).expect("strings of the host contain no NUL"));
            string
        }
        "UTF8String" => |string| -> *const c_char { string.get::<Text>().0.borrow().as_ptr() }
        "lengthOfBytesUsingEncoding:" => |string, _encoding: i32| -> usize {
            string.get::<Text>().0.borrow().as_bytes().len()
        }
    },
};

/// The class object of strings, under its link name.
#[unsafe(export_name = "._OBJC_CLASS_NSString")]
static STRING_CLASS: Object = Object::of_class(&Class {
    name: "class NSString",
    method: methods! {
        "alloc" => |_class| -> Id { Id::new(&STRING, Text(RefCell::default())) }
    },
});

static URL: Class = Class { name: "NSURL", method: |_| None };

/// The class object of file URLs.
#[unsafe(export_name = "._OBJC_CLASS_NSURL")]
static URL_CLASS: Object = Object::of_class(&Class {
    name: "class NSURL",
    method: methods! {
        "fileURLWithPath:" => |_class, path: Id| -> Id { new_text(&URL, &read(path)).autorelease() }
    },
});

static ERROR: Class = Class {
    name: "NSError",
    method: methods! {
        "localizedDescription" => |error| -> Id { string(&read(error)).autorelease() }
    },
};

/// Compile options of a library.
#[derive(Default)]
pub(crate) struct Options {
    /// The value of `MTLMathMode`, set directly or by `fastMathEnabled`.
    math: Cell<Option<isize>>,
    /// The value of `MTLMathFloatingPointFunctions`: fast, unless it is set directly or by `fastMathEnabled`.
    functions: Cell<isize>,
    language: Cell<Option<usize>>,
}

impl Options {
    /// The language version as `__METAL_VERSION__` has it, 300 by default.
    pub(crate) fn version(&self) -> u32 {
        let [major, minor] = self.language.get().map_or([3, 0], |version| [version >> 16, version & 0xffff]);
        (major * 100 + minor * 10) as u32
    }

    /// A violation if the options permit results that deviate from the source.
    pub(crate) fn violation(&self) -> Option<String> {
        match (self.math.get(), self.functions.get(), self.language.get()) {
            (Some(0), 1, Some(_)) => None,
            (Some(0), 1, None) => {
                Some("the library is compiled with the newest language version: set one".to_owned())
            }
            (Some(0), ..) => Some("the library is compiled with fast math functions".to_owned()),
            _ => Some("the library is compiled with fast math".to_owned()),
        }
    }
}

static OPTIONS: Class = Class {
    name: "MTLCompileOptions",
    method: methods! {
        "setMathMode:" => |options, mode: isize| { options.get::<Options>().math.set(Some(mode)) }
        "setMathFloatingPointFunctions:" => |options, functions: isize| {
            options.get::<Options>().functions.set(functions);
        }
        "setFastMathEnabled:" => |options, fast: u8| {
            let options = options.get::<Options>();
            options.math.set(Some(if fast == 0 { 0 } else { 2 }));
            options.functions.set(isize::from(fast == 0));
        }
        "setLanguageVersion:" => |options, version: usize| {
            options.get::<Options>().language.set(Some(version));
        }
    },
};

/// The class object of compile options.
#[unsafe(export_name = "._OBJC_CLASS_MTLCompileOptions")]
static OPTIONS_CLASS: Object = Object::of_class(&Class {
    name: "class MTLCompileOptions",
    method: methods! {
        "new" => |_class| -> Id { Id::new(&OPTIONS, Options::default()) }
    },
});

fn new_text(class: &'static Class, text: &str) -> Id {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    Id::new(class, Text(RefCell::new(text)))
}

/// Creates a string.
pub(crate) fn string(text: &str) -> Id {
    new_text(&STRING, text)
}

/// Creates an error with this description.
pub(crate) fn error(text: &str) -> Id {
    new_text(&ERROR, text)
}

/// The text of a string or an error.
pub(crate) fn read(id: Id) -> String {
    id.get::<Text>().0.borrow().deref().to_string_lossy().into_owned()
}

/// Stores an error for the caller and returns nil.
pub(crate) fn fail(place: *mut Id, what: &str) -> Id {
    if !place.is_null() {
        // SAFETY: the caller passes space for a reference.
        unsafe { place.write(error(what).autorelease()) };
    }
    Id::NIL
}
