//! Libraries, their functions and pipelines: a text as clang has compiled it, and kernels by name.

use crate::device::Shared;
use crate::foundation;
use crate::object::{Class, Id, methods};
use forge_sim::{Kernel, Program};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

/// A compiled text, and what names it.
struct Library {
    program: &'static Program,
    text: u64,
}

/// One kernel of it, as a function and as a pipeline.
pub(crate) struct Function {
    text: u64,
    program: &'static Program,
    index: usize,
}

static LIBRARY: Class = Class {
    name: "MTLLibrary",
    method: methods! {
        "newFunctionWithName:" => |library, name: Id| -> Id {
            let (library, name) = (library.get::<Library>(), foundation::read(name));
            let Library { program, text } = *library;
            let index = program.kernels().iter().position(|kernel| kernel.signature.name == name);
            index.map_or(Id::NONE, |index| Id::new(&FUNCTION, Rc::new(Function { text, program, index })))
        }
    },
};

static FUNCTION: Class = Class { name: "MTLFunction", method: |_| None };

static PIPELINE: Class = Class {
    name: "MTLComputePipelineState",
    method: methods! {
        "maxTotalThreadsPerThreadgroup" => |pipeline| -> usize {
            pipeline.get::<Rc<Function>>().kernel().signature.threads.unwrap_or(1024) as usize
        }
        "threadExecutionWidth" => |_pipeline| -> usize { 32 }
    },
};

/// A library of this text. Its code stays for as long as the program runs, since whatever was executed may refer to it; a
/// device has one library, whose kernels its machine executes.
pub(crate) fn compile(shared: &Shared, text: &str) -> Result<Id, String> {
    let program: &'static Program =
        Box::leak(Box::new(Program::compile(text).map_err(|error| error.to_string())?));
    shared.borrow_mut().load(program)?;
    let mut content = DefaultHasher::new();
    text.hash(&mut content);
    Ok(Id::new(&LIBRARY, Library { program, text: content.finish() }))
}

/// A pipeline of a function.
pub(crate) fn pipeline(function: Rc<Function>) -> Id {
    Id::new(&PIPELINE, function)
}

impl Function {
    pub(crate) fn kernel(&self) -> &'static Kernel {
        &self.program.kernels()[self.index]
    }

    /// What names it in an archive, where it is of no other text than this.
    pub(crate) fn content(&self) -> String {
        format!("{} of {:016x}", self.name(), self.text)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        &self.kernel().signature.name
    }

    /// Its buffers: slot, name, and what offsets of them have to be a multiple of.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = (usize, &'static str, usize)> {
        let buffers = self.kernel().signature.buffers().into_iter();
        buffers.map(|(slot, parameter)| (slot, parameter.name.as_str(), alignment(&parameter.element)))
    }

    /// The slot of its scalars and their bytes, if it has any.
    pub(crate) fn scalars(&self) -> Option<(usize, usize)> {
        let kernel = self.kernel();
        kernel.signature.scalars().map(|(slot, _)| (slot, kernel.scalar_bytes))
    }
}

/// What a pointer to `element`, as a kernel's parameter is written, is a multiple of.
fn alignment(element: &str) -> usize {
    let name = element.split_whitespace().last().unwrap_or_default();
    let (scalar, lanes) = match name.find(|letter: char| letter.is_ascii_digit()) {
        Some(at) => (&name[..at], name[at..].parse().unwrap_or(1)),
        None => (name, 1),
    };
    let bytes = match scalar {
        "char" | "uchar" | "bool" => 1,
        "half" | "short" | "ushort" => 2,
        _ => 4,
    };
    bytes * usize::next_power_of_two(lanes)
}

#[cfg(test)]
mod tests {
    use super::alignment;

    #[test]
    fn what_offsets_are_multiples_of() {
        let cases = [
            ("device const uchar", 1),
            ("device half", 2),
            ("device const float4", 16),
            ("device half4", 8),
            ("device uint", 4),
        ];
        for (element, bytes) in cases {
            assert_eq!(alignment(element), bytes, "{element}");
        }
    }
}
