//! Binary archives of pipelines: a set of kernels, in memory and as a file.

use crate::counters::{labelled, report_violation};
use crate::metal::library::Function;
use crate::objc::foundation;
use crate::objc::object::{Class, Id, Object, methods};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// The first line of an archive file.
const MAGIC: &str = "an emulated archive of pipelines";

/// The kernels in an archive, identified by [`Function::archive_key`].
type Contents = RefCell<BTreeSet<String>>;

/// The path that an archive is read from.
type ArchivePath = RefCell<Option<String>>;

static ARCHIVE: Class = Class {
    name: "MTLBinaryArchive",
    method: methods! {
        "addComputePipelineFunctionsWithDescriptor:error:" => |archive, descriptor: Id, error: *mut Id| -> u8 {
            match descriptor.get::<PipelineDescriptor>().function.borrow().as_ref() {
                Some(function) => {
                    archive.get::<Contents>().borrow_mut().insert(function.archive_key());
                    1
                }
                None => {
                    foundation::fail(error, "the descriptor of a pipeline has no function");
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

static ARCHIVE_DESCRIPTOR: Class = Class {
    name: "MTLBinaryArchiveDescriptor",
    method: methods! {
        "setUrl:" => |descriptor, url: Id| {
            descriptor.get::<ArchivePath>().replace((!url.is_nil()).then(|| foundation::read(url)));
        }
    },
};

/// The class object of archive descriptors.
#[unsafe(export_name = "._OBJC_CLASS_MTLBinaryArchiveDescriptor")]
static ARCHIVE_DESCRIPTOR_CLASS: Object = Object::of_class(&Class {
    name: "class MTLBinaryArchiveDescriptor",
    method: methods! {
        "new" => |_class| -> Id { Id::new(&ARCHIVE_DESCRIPTOR, ArchivePath::default()) }
    },
});

/// A pipeline descriptor.
#[derive(Default)]
pub(crate) struct PipelineDescriptor {
    function: RefCell<Option<Rc<Function>>>,
    archives: RefCell<Vec<Rc<Contents>>>,
}

static PIPELINE_DESCRIPTOR: Class = Class {
    name: "MTLComputePipelineDescriptor",
    method: methods! {
        "setLabel:" => |object, label: Id| { labelled(object.class().name, &foundation::read(label)) }
        "setComputeFunction:" => |descriptor, function: Id| {
            let function = function.find::<Rc<Function>>().map(|function| function.as_ref().clone());
            descriptor.get::<PipelineDescriptor>().function.replace(function);
        }
        "setBinaryArchives:" => |descriptor, archives: Id| {
            let archives = archives.find::<ArrayElements>().map_or_else(Vec::new, |archives| archives.shared());
            descriptor.get::<PipelineDescriptor>().archives.replace(archives);
        }
    },
};

/// The class object of pipeline descriptors.
#[unsafe(export_name = "._OBJC_CLASS_MTLComputePipelineDescriptor")]
static PIPELINE_DESCRIPTOR_CLASS: Object = Object::of_class(&Class {
    name: "class MTLComputePipelineDescriptor",
    method: methods! {
        "new" => |_class| -> Id { Id::new(&PIPELINE_DESCRIPTOR, PipelineDescriptor::default()) }
    },
});

/// An array of archives, the only arrays that hosts create.
#[derive(Default)]
struct ArrayElements(RefCell<Vec<Id>>);

impl ArrayElements {
    fn shared(&self) -> Vec<Rc<Contents>> {
        self.0.borrow().iter().map(|archive| archive.get::<Contents>()).collect()
    }
}

impl Drop for ArrayElements {
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
            array.get::<ArrayElements>().0.replace(objects.iter().map(|object| object.retain()).collect());
            array
        }
    },
};

/// The class object of arrays.
#[unsafe(export_name = "._OBJC_CLASS_NSArray")]
static ARRAY_CLASS: Object = Object::of_class(&Class {
    name: "class NSArray",
    method: methods! {
        "alloc" => |_class| -> Id { Id::new(&ARRAY, ArrayElements::default()) }
    },
});

/// Creates an archive, from a file if the descriptor names one.
pub(crate) fn open(descriptor: Id) -> Result<Id, String> {
    let descriptor = descriptor.get::<ArchivePath>();
    let mut kernels = BTreeSet::new();
    if let Some(path) = &*descriptor.borrow() {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        let mut lines = text.lines();
        if lines.next() != Some(MAGIC) {
            return Err(format!("{path} is not a binary archive"));
        }
        kernels.extend(lines.map(str::to_owned));
    }
    Ok(Id::new(&ARCHIVE, RefCell::new(kernels)))
}

impl PipelineDescriptor {
    /// The function of the pipeline. With `fail_on_miss`, it is an error if no archive contains it.
    pub(crate) fn function(&self, fail_on_miss: bool) -> Result<Rc<Function>, String> {
        let function = self.function.borrow().clone();
        let Some(function) = function else {
            report_violation("a pipeline descriptor has no function".to_owned());
            return Err("the descriptor has no function".to_owned());
        };
        let archive_key = function.archive_key();
        let is_there = self.archives.borrow().iter().any(|archive| archive.borrow().contains(&archive_key));
        if fail_on_miss && !is_there {
            return Err(format!("no archive contains {}", function.name()));
        }
        Ok(function)
    }
}
