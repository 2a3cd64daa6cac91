//! Objects: a class, a count of references, and in Rust what the class is about.
//!
//! What an object is about is shared ([`Id::get`]), so that a command buffer keeps what it uses as Metal's do, while the
//! count of references is the host's alone. A freed object leaves its head behind, so that a message to it is told from
//! a message to another.

use crate::counters::{born, complain, died};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_void};
use std::rc::Rc;
use std::thread::{self, ThreadId};

/// A name of a method; equal names are equal pointers.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Selector(pub(crate) *const c_char);

/// A method's code: a function of receiver, selector and what the message carries.
pub(crate) type Method = *const c_void;

/// What objects of a kind do.
pub(crate) struct Class {
    pub(crate) name: &'static str,
    /// The method of a selector.
    pub(crate) method: fn(&str) -> Option<Method>,
}

/// An object.
#[repr(C)]
pub(crate) struct Object {
    class: Cell<&'static Class>,
    references: Cell<usize>,
    about: RefCell<Option<Rc<dyn Any>>>,
    /// The thread that made it; classes are everybody's.
    thread: Option<ThreadId>,
}

// SAFETY: what changes of an object is asked for after its thread has been compared, and nothing of a class changes.
unsafe impl Sync for Object {}

/// A reference to an object, or to none. Hosts hold and send it as a pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Id(*mut Object);

static FREED: Class = Class { name: "freed object", method: |_| None };

thread_local! {
    /// Autorelease pools, the innermost last.
    static POOLS: RefCell<Vec<Vec<Id>>> = const { RefCell::new(Vec::new()) };
}

impl Selector {
    pub(crate) fn name(self) -> &'static str {
        // SAFETY: selectors are made by `sel_registerName` alone, of names that live as long as the program.
        unsafe { CStr::from_ptr(self.0) }.to_str().expect("selectors are ASCII")
    }
}

impl Object {
    /// A class, as an object that takes messages.
    pub(crate) const fn of_class(class: &'static Class) -> Object {
        // It is never released: nobody has a reference to it but by name.
        Object { class: Cell::new(class), references: Cell::new(0), about: RefCell::new(None), thread: None }
    }
}

impl Id {
    /// No object.
    pub(crate) const NONE: Id = Id(std::ptr::null_mut());

    /// An object with one reference, the caller's.
    pub(crate) fn new(class: &'static Class, about: impl Any) -> Id {
        born(class.name);
        let thread = Some(thread::current().id());
        Id(Box::into_raw(Box::new(Object {
            class: Cell::new(class),
            references: Cell::new(1),
            about: RefCell::new(Some(Rc::new(about))),
            thread,
        })))
    }

    fn object<'o>(self) -> &'o Object {
        // SAFETY: objects are made above and as classes, and their heads are never given back.
        let object = unsafe { &*self.0 };
        let here = object.thread.is_none_or(|thread| thread == thread::current().id());
        assert!(
            here,
            "an object of class {} is used by a thread that did not make it",
            object.class.get().name
        );
        object
    }

    pub(crate) fn is_none(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn class(self) -> &'static Class {
        self.object().class.get()
    }

    /// What it is about; that of another class, or of a freed object, is a mistake that nothing can go on after.
    pub(crate) fn get<T: Any>(self) -> Rc<T> {
        assert!(!self.is_none(), "nil where an object is needed");
        let about = self.object().about.borrow().clone().and_then(|about| about.downcast().ok());
        about.unwrap_or_else(|| panic!("a message has a {} where it needs another", self.class().name))
    }

    /// As [`Id::get`], where there may be none.
    pub(crate) fn find<T: Any>(self) -> Option<Rc<T>> {
        (!self.is_none()).then(|| self.get())
    }

    pub(crate) fn retain(self) -> Id {
        if !self.is_none() {
            let object = self.object();
            assert!(object.references.get() > 0, "a {} is retained", object.class.get().name);
            object.references.update(|count| count + 1);
        }
        self
    }

    pub(crate) fn release(self) {
        if self.is_none() {
            return;
        }
        let object = self.object();
        match object.references.get() {
            0 => complain(format!("a {} is released", object.class.get().name)),
            1 => {
                object.references.set(0);
                died(object.class.replace(&FREED).name);
                let about = object.about.take();
                drop(about);
            }
            count => object.references.set(count - 1),
        }
    }

    /// Leaves the caller's reference to the innermost pool.
    pub(crate) fn autorelease(self) -> Id {
        let left = POOLS.with_borrow_mut(|pools| pools.last_mut().map(|pool| pool.push(self)).is_some());
        if !left && !self.is_none() {
            complain(format!(
                "a {} is autoreleased and there is no pool: it is never freed",
                self.class().name
            ));
        }
        self
    }
}

/// Opens a pool; gives how many there are.
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

/// The methods of a class, as [`Class::method`] looks them up: for each selector a function of the receiver and of what the
/// message carries.
macro_rules! methods {
    ($($name:literal => |$receiver:ident $(, $argument:ident: $type:ty)*| $(-> $result:ty)? $body:block)*) => {
        |selector| match selector {
            $($name => {
                extern "C-unwind" fn method(
                    $receiver: $crate::object::Id,
                    _: $crate::object::Selector
                    $(, $argument: $type)*
                ) $(-> $result)? $body
                Some(method as $crate::object::Method)
            })*
            _ => None,
        }
    };
}
pub(crate) use methods;
