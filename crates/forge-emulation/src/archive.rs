//! Binary archives of pipelines: a set of kernels, in memory and as a file.

use crate::counters::complain;
use crate::foundation;
use crate::library::Function;
use crate::object::{Class, Id, Object, methods};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// The first line of an archive file.
const MAGIC: &str = "an emulated archive of pipelines";

/// The kernels in an archive, identified by [`Function::content`].
type Contents = RefCell<BTreeSet<String>>;

/// The path that an archive is read from.
type Place = RefCell<Option<String>>;

static ARCHIVE: Class = Class {
    name: "MTLBinaryArchive",
    method: methods! {
        "addComputePipelineFunctionsWithDescriptor:error:" => |archive, descriptor: Id, error: *mut Id| -> u8 {
            match descriptor.get::<Description>().function.borrow().as_ref() {
                Some(function) => {
                    archive.get::<Contents>().borrow_mut().insert(function.content());
                    1
                }
                None => {
                    foundation::fail(error, "the description of a pipeline has no function");
                    0
                }
            }
        }
        "serializeToURL:error:" => |archive, url: Id, error: *mut Id| -> u8 {
            let contents = archive.get::<Contents>();
            let lines: Vec<String> =
                std::iter::once(MAGIC.to_owned()).chain(contents.borrow().iter().cloned()).collect();
            match std::fs::write(foundation::read(url), lines.join("\n")) {
                Ok(()) => 1,
                Err(what) => {
                    foundation::fail(error, &format!("an archive cannot be written: {what}"));
                    0
                }
            }
        }
    },
};

static PLACE: Class = Class {
    name: "MTLBinaryArchiveDescriptor",
    method: methods! {
        "setUrl:" => |place, url: Id| {
            place.get::<Place>().replace((!url.is_none()).then(|| foundation::read(url)));
        }
    },
};

/// The class object of archive descriptors.
#[unsafe(export_name = "._OBJC_CLASS_MTLBinaryArchiveDescriptor")]
static PLACE_CLASS: Object = Object::of_class(&Class {
    name: "class MTLBinaryArchiveDescriptor",
    method: methods! {
        "new" => |_class| -> Id { Id::new(&PLACE, Place::default()) }
    },
});

/// A pipeline descriptor.
#[derive(Default)]
pub(crate) struct Description {
    function: RefCell<Option<Rc<Function>>>,
    archives: RefCell<Vec<Rc<Contents>>>,
}

static DESCRIPTION: Class = Class {
    name: "MTLComputePipelineDescriptor",
    method: methods! {
        "setComputeFunction:" => |description, function: Id| {
            let function = function.find::<Rc<Function>>().map(|function| function.as_ref().clone());
            description.get::<Description>().function.replace(function);
        }
        "setBinaryArchives:" => |description, archives: Id| {
            let archives = archives.find::<Elements>().map_or_else(Vec::new, |archives| archives.shared());
            description.get::<Description>().archives.replace(archives);
        }
    },
};

/// The class object of pipeline descriptors.
#[unsafe(export_name = "._OBJC_CLASS_MTLComputePipelineDescriptor")]
static DESCRIPTION_CLASS: Object = Object::of_class(&Class {
    name: "class MTLComputePipelineDescriptor",
    method: methods! {
        "new" => |_class| -> Id { Id::new(&DESCRIPTION, Description::default()) }
    },
});

/// An array of archives, the only arrays that hosts create.
#[derive(Default)]
struct Elements(RefCell<Vec<Id>>);

impl Elements {
    fn shared(&self) -> Vec<Rc<Contents>> {
        self.0.borrow().iter().map(|archive| archive.get::<Contents>()).collect()
    }
}

impl Drop for Elements {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Id::release);
    }
}

static ARRAY: Class = Class {
    name: "NSArray",
    method: methods! {
        "initWithObjects:count:" => |array, objects: *const Id, count: usize| -> Id {
            // SAFETY: the caller passes this many references.
            let objects = unsafe { std::slice::from_raw_parts(objects, count) };
            array.get::<Elements>().0.replace(objects.iter().map(|object| object.retain()).collect());
            array
        }
    },
};

/// The class object of arrays.
#[unsafe(export_name = "._OBJC_CLASS_NSArray")]
static ARRAY_CLASS: Object = Object::of_class(&Class {
    name: "class NSArray",
    method: methods! {
        "alloc" => |_class| -> Id { Id::new(&ARRAY, Elements::default()) }
    },
});

/// Creates an archive, from a file if the descriptor names one.
pub(crate) fn open(description: Id) -> Result<Id, String> {
    let place = description.get::<Place>();
    let mut kernels = BTreeSet::new();
    if let Some(path) = &*place.borrow() {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        let mut lines = text.lines();
        if lines.next() != Some(MAGIC) {
            return Err(format!("{path} is not a binary archive"));
        }
        kernels.extend(lines.map(str::to_owned));
    }
    Ok(Id::new(&ARCHIVE, RefCell::new(kernels)))
}

impl Description {
    /// The function of the pipeline. With `must`, it is an error if no archive contains it.
    pub(crate) fn function(&self, must: bool) -> Result<Rc<Function>, String> {
        let function = self.function.borrow().clone();
        let Some(function) = function else {
            complain("a pipeline descriptor has no function".to_owned());
            return Err("the descriptor has no function".to_owned());
        };
        let content = function.content();
        let is_there = self.archives.borrow().iter().any(|archive| archive.borrow().contains(&content));
        if must && !is_there {
            return Err(format!("no archive contains {}", function.name()));
        }
        Ok(function)
    }
}
