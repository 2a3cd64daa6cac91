//! Sets of what is kept where the GPU finds it: whether hosts fill them, say so, and give them to a queue.

use crate::buffer::Held;
use crate::counters::complain;
use crate::object::{Class, Id, Object, methods};
use std::cell::Cell;

/// A set.
#[derive(Default)]
pub(crate) struct Set {
    /// Bytes in it.
    bytes: Cell<usize>,
    /// Bytes of it when it was committed last.
    committed: Cell<Option<usize>>,
}

static SET: Class = Class {
    name: "MTLResidencySet",
    method: methods! {
        "addAllocation:" => |set, allocation: Id| {
            set.get::<Set>().bytes.update(|bytes| bytes + allocation.get::<Held>().0.length);
        }
        "commit" => |set| {
            let set = set.get::<Set>();
            set.committed.set(Some(set.bytes.get()));
        }
        "requestResidency" => |set| { set.get::<Set>().check() }
    },
};

impl Set {
    /// Complains of what the system has not been told.
    pub(crate) fn check(&self) {
        if self.committed.get() != Some(self.bytes.get()) || self.bytes.get() == 0 {
            complain("a residency set is used of which not all is committed".to_owned());
        }
    }
}

static DESCRIPTION: Class = Class { name: "MTLResidencySetDescriptor", method: |_| None };

/// The class of descriptions of sets itself.
#[unsafe(export_name = "._OBJC_CLASS_MTLResidencySetDescriptor")]
static DESCRIPTION_CLASS: Object = Object::of_class(&Class {
    name: "class MTLResidencySetDescriptor",
    method: methods! {
        "new" => |_class| -> Id { Id::new(&DESCRIPTION, ()) }
    },
});

/// A new set, of nothing.
pub(crate) fn set() -> Id {
    Id::new(&SET, Set::default())
}
