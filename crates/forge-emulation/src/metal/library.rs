//! Libraries, functions and pipelines: a compiled source and its kernels by name.

use crate::machine::{Matrices, machine};
use crate::metal::device::SharedGpu;
use crate::objc::foundation;
use crate::objc::object::{Class, Id, methods};
use forge_sim::{Kernel, Program};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

/// The line behind which kernels begin.
const NAMESPACE: &str = "using namespace metal;\n";

/// Multiplies the left factor of a matrix product by itself.
const WRONG_MATRICES: &str =
    "#define simdgroup_multiply_accumulate(d, a, b, c) simdgroup_multiply_accumulate(d, a, a, c)\n";

/// A compiled source and its hash.
struct Library {
    program: &'static Program,
    source: u64,
    uses_matrices: bool,
}

/// One kernel of a library, as a function and as a pipeline.
pub(crate) struct Function {
    source: u64,
    program: &'static Program,
    index: usize,
    /// Whether its library uses matrices of a simdgroup.
    uses_matrices: bool,
}

static LIBRARY: Class = Class {
    name: "MTLLibrary",
    method: methods! {
        "newFunctionWithName:" => |library, name: Id| -> Id {
            let (library, name) = (library.get::<Library>(), foundation::read(name));
            let Library { program, source, uses_matrices } = *library;
            let index = program.kernels().iter().position(|kernel| kernel.signature.name == name);
            index.map_or(Id::NIL, |index| Id::new(&FUNCTION, Rc::new(Function { source, program, index, uses_matrices })))
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

/// Compiles a library from source. Its code is never unloaded, because executed command buffers may refer to it. A device
/// has one library.
pub(crate) fn compile(shared: &SharedGpu, source: &str) -> Result<Id, String> {
    let uses_matrices = source.contains("simdgroup_multiply_accumulate");
    let text = match machine().matrices {
        Matrices::Wrong if uses_matrices => {
            source.replacen(NAMESPACE, &format!("{NAMESPACE}{WRONG_MATRICES}"), 1)
        }
        Matrices::Correct | Matrices::Missing | Matrices::Wrong => source.to_owned(),
    };
    let program: &'static Program =
        Box::leak(Box::new(Program::compile(&text).map_err(|error| error.to_string())?));
    shared.borrow_mut().load(program)?;
    let mut archive_key = DefaultHasher::new();
    source.hash(&mut archive_key);
    Ok(Id::new(&LIBRARY, Library { program, source: archive_key.finish(), uses_matrices }))
}

/// Creates a pipeline from a function.
pub(crate) fn pipeline(function: Rc<Function>) -> Result<Id, String> {
    if function.uses_matrices && machine().matrices == Matrices::Missing {
        return Err("Encountered unlowered function call to air.simdgroup_matrix".to_owned());
    }
    Ok(Id::new(&PIPELINE, function))
}

impl Function {
    pub(crate) fn kernel(&self) -> &'static Kernel {
        &self.program.kernels()[self.index]
    }

    /// Its identifier in archives, which includes the hash of the source.
    pub(crate) fn archive_key(&self) -> String {
        format!("{} of {:016x}", self.name(), self.source)
    }

    /// Name of the kernel.
    pub(crate) fn name(&self) -> &'static str {
        &self.kernel().signature.name
    }

    /// Its buffers: slot, name and required alignment of offsets.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = (usize, &'static str, usize)> {
        let buffers = self.kernel().signature.buffers.iter();
        buffers.map(|buffer| (buffer.slot as usize, buffer.name.as_str(), buffer.alignment() as usize))
    }

    /// Slot and size in bytes of its scalars, if any.
    pub(crate) fn scalars(&self) -> Option<(usize, usize)> {
        let kernel = self.kernel();
        kernel.signature.scalars.as_ref().map(|scalars| (scalars.slot as usize, kernel.scalar_bytes))
    }
}
