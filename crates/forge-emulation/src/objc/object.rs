//! Objective-C objects: a class, a reference count, and a Rust payload.
//!
//! The payload is shared ([`Id::get`]), so that a command buffer retains its resources as in Metal. The reference count
//! belongs to the host. The header of a freed object stays allocated, so that messages to it are detected.

use crate::counters::{object_created, object_freed, report_violation};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_void};
use std::rc::Rc;
use std::thread::{self, ThreadId};

/// A selector. Equal names have equal pointers.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Selector(pub(crate) *const c_char);

/// The code of a method: a function of receiver, selector and arguments.
pub(crate) type Method = *const c_void;

/// A class.
pub(crate) struct Class {
    pub(crate) name: &'static str,
    /// Looks up the method of a selector.
    pub(crate) method: fn(&str) -> Option<Method>,
}

/// The header of an object.
#[repr(C)]
pub(crate) struct Object {
    class: Cell<&'static Class>,
    references: Cell<usize>,
    payload: RefCell<Option<Rc<dyn Any>>>,
    /// The thread that created it; `None` for class objects, which all threads may use.
    thread: Option<ThreadId>,
}

// SAFETY: mutable state is only accessed on the creating thread, and class objects are immutable.
unsafe impl Sync for Object {}

/// A reference to an object, or nil. Hosts use it as a pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Id(*mut Object);

static FREED: Class = Class { name: "freed object", method: |_| None };

thread_local! {
    /// The autorelease pools, innermost last.
    static POOLS: RefCell<Vec<Vec<Id>>> = const { RefCell::new(Vec::new()) };
}

impl Selector {
    pub(crate) fn name(self) -> &'static str {
        // SAFETY: only `sel_registerName` creates selectors, from names that are never freed.
        unsafe { CStr::from_ptr(self.0) }.to_str().expect("selectors are ASCII")
    }
}

impl Object {
    /// Creates a class object.
    pub(crate) const fn of_class(class: &'static Class) -> Object {
        // Class objects are never released: they are referred to by name.
        Object {
            class: Cell::new(class),
            references: Cell::new(0),
            payload: RefCell::new(None),
            thread: None,
        }
    }
}

impl Id {
    /// Nil.
    pub(crate) const NIL: Id = Id(std::ptr::null_mut());

    /// Creates an object with one reference, owned by the caller.
    pub(crate) fn new(class: &'static Class, payload: impl Any) -> Id {
        object_created(class.name);
        let thread = Some(thread::current().id());
        Id(Box::into_raw(Box::new(Object {
            class: Cell::new(class),
            references: Cell::new(1),
            payload: RefCell::new(Some(Rc::new(payload))),
            thread,
        })))
    }

    fn object<'o>(self) -> &'o Object {
        // SAFETY: object headers are never freed.
        let object = unsafe { &*self.0 };
        let here = object.thread.is_none_or(|thread| thread == thread::current().id());
        assert!(
            here,
            "an object of class {} is used by a thread that did not create it",
            object.class.get().name
        );
        object
    }

    pub(crate) fn is_nil(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn class(self) -> &'static Class {
        self.object().class.get()
    }

    /// The payload. Panics if the object has another class or is freed.
    pub(crate) fn get<T: Any>(self) -> Rc<T> {
        assert!(!self.is_nil(), "nil instead of an object");
        let payload = self.object().payload.borrow().clone().and_then(|payload| payload.downcast().ok());
        payload.unwrap_or_else(|| panic!("unexpected argument of class {}", self.class().name))
    }

    /// The payload, or `None` for nil or another class.
    pub(crate) fn find<T: Any>(self) -> Option<Rc<T>> {
        (!self.is_nil()).then(|| self.get())
    }

    pub(crate) fn retain(self) -> Id {
        if !self.is_nil() {
            let object = self.object();
            assert!(object.references.get() > 0, "a {} is retained", object.class.get().name);
            object.references.update(|count| count + 1);
        }
        self
    }

    pub(crate) fn release(self) {
        if self.is_nil() {
            return;
        }
        let object = self.object();
        match object.references.get() {
            0 => report_violation(format!("a {} is released", object.class.get().name)),
            1 => {
                object.references.set(0);
                object_freed(object.class.replace(&FREED).name);
                let payload = object.payload.take();
                drop(payload);
            }
            count => object.references.set(count - 1),
        }
    }

    /// Moves the caller's reference to the innermost autorelease pool.
    pub(crate) fn autorelease(self) -> Id {
        let left = POOLS.with_borrow_mut(|pools| pools.last_mut().map(|pool| pool.push(self)).is_some());
        if !left && !self.is_nil() {
            report_violation(format!(
                "a {} is autoreleased without an autorelease pool: it is never freed",
                self.class().name
            ));
        }
        self
    }
}

/// Opens a pool. Returns the number of pools.
pub(crate) fn open_pool() -> usize {
    POOLS.with_borrow_mut(|pools| {
        pools.push(Vec::new());
        pools.len()
    })
}

/// Closes a pool and those inside it.
pub(crate) fn close_pool(number: usize) {
    while let Some(left) =
        POOLS.with_borrow_mut(|pools| if pools.len() >= number { pools.pop() } else { None })
    {
        left.into_iter().for_each(Id::release);
    }
}

/// Defines the methods of a class for [`Class::method`]: for each selector, a function of the receiver and the arguments.
macro_rules! methods {
    ($($name:literal => |$receiver:ident $(, $argument:ident: $type:ty)*| $(-> $result:ty)? $body:block)*) => {
        |selector| match selector {
            $($name => {
                extern "C-unwind" fn method(
                    $receiver: $crate::objc::object::Id,
                    _: $crate::objc::object::Selector
                    $(, $argument: $type)*
                ) $(-> $result)? $body
                Some(method as $crate::objc::object::Method)
            })*
            _ => None,
        }
    };
}
pub(crate) use methods;
