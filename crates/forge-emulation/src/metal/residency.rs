//! Residency sets: checks that hosts commit the allocations that they add.

use crate::counters::{count, report_violation};
use crate::machine::machine;
use crate::metal::buffer::RetainedBuffer;
use crate::objc::object::{Class, Id, Object, methods};
use std::cell::Cell;

/// A residency set.
#[derive(Default)]
pub(crate) struct ResidencySet {
    /// Total bytes of its allocations.
    bytes: Cell<usize>,
    /// Total bytes at the last commit.
    committed: Cell<Option<usize>>,
}

static RESIDENCY_SET: Class = Class {
    name: "MTLResidencySet",
    method: methods! {
        "addAllocation:" => |set, allocation: Id| {
            set.get::<ResidencySet>().bytes.update(|bytes| bytes + allocation.get::<RetainedBuffer>().0.length);
        }
        "commit" => |set| {
            let set = set.get::<ResidencySet>();
            set.committed.set(Some(set.bytes.get()));
        }
        "requestResidency" => |set| {
            set.get::<ResidencySet>().check();
            count(|counts| counts.residency_requests += 1);
        }
    },
};

impl ResidencySet {
    /// Reports uncommitted allocations as an error.
    pub(crate) fn check(&self) {
        if self.committed.get() != Some(self.bytes.get()) || self.bytes.get() == 0 {
            report_violation("a residency set is used with uncommitted allocations".to_owned());
        }
    }
}

static DESCRIPTOR: Class = Class { name: "MTLResidencySetDescriptor", method: |_| None };

/// The class object of residency set descriptors.
#[unsafe(export_name = "._OBJC_CLASS_MTLResidencySetDescriptor")]
static DESCRIPTOR_CLASS: Object = Object::of_class(&Class {
    name: "class MTLResidencySetDescriptor",
    method: methods! {
        "new" => |_class| -> Id { Id::new(&DESCRIPTOR, ()) }
    },
});

/// Creates an empty residency set, if the machine supports them.
pub(crate) fn set() -> Result<Id, String> {
    if !machine().has_residency_sets {
        return Err("residency sets are not supported".to_owned());
    }
    Ok(Id::new(&RESIDENCY_SET, ResidencySet::default()))
}
