//! Residency sets: checks that hosts commit the allocations that they add.

use crate::buffer::Held;
use crate::counters::complain;
use crate::object::{Class, Id, Object, methods};
use std::cell::Cell;

/// A residency set.
#[derive(Default)]
pub(crate) struct Set {
    /// Total bytes of its allocations.
    bytes: Cell<usize>,
    /// Total bytes at the last commit.
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
    /// Reports uncommitted allocations as an error.
    pub(crate) fn check(&self) {
        if self.committed.get() != Some(self.bytes.get()) || self.bytes.get() == 0 {
            complain("a residency set is used with uncommitted allocations".to_owned());
        }
    }
}

static DESCRIPTION: Class = Class { name: "MTLResidencySetDescriptor", method: |_| None };

/// The class object of residency set descriptors.
#[unsafe(export_name = "._OBJC_CLASS_MTLResidencySetDescriptor")]
static DESCRIPTION_CLASS: Object = Object::of_class(&Class {
    name: "class MTLResidencySetDescriptor",
    method: methods! {
        "new" => |_class| -> Id { Id::new(&DESCRIPTION, ()) }
    },
});

/// Creates an empty residency set.
pub(crate) fn set() -> Id {
    Id::new(&SET, Set::default())
}
