//! Libraries, functions and pipelines: a compiled source and its kernels by name.

use crate::machine::{Matrices, machine};
use crate::metal::device::SharedGpu;
use crate::objc::foundation;
use crate::objc::object::{Class, Id, methods};
use forge_msl::for_language;
use forge_sim::{Kernel, Program};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

/// The line behind which kernels begin.
const NAMESPACE: &str = "using namespace metal;\n";

/// Multiplies the left factor of a matrix product by itself.
const WRONG_MATRICES: &str =
    "#define simdgroup_multiply_accumulate(d, a, b, c) simdgroup_multiply_accumulate(d, a, a, c)\n";

/// A product of tensors, and a wrong one.
const TENSORS: [&str; 2] = ["products.run(left, right, sums)", "products.run(left, left, sums)"];

/// Products that a source contains.
#[derive(Clone, Copy)]
struct Products {
    of_matrices: bool,
    of_tensors: bool,
}

/// A compiled source and its hash.
struct Library {
    program: &'static Program,
    source: u64,
    products: Products,
}

/// One kernel of a library, as a function and as a pipeline.
pub(crate) struct Function {
    source: u64,
    program: &'static Program,
    index: usize,
    /// The products of its library.
    products: Products,
}

static LIBRARY: Class = Class {
    name: "MTLLibrary",
    method: methods! {
        "newFunctionWithName:" => |library, name: Id| -> Id {
            let (library, name) = (library.get::<Library>(), foundation::read(name));
            let Library { program, source, products } = *library;
            let index = program.kernels().iter().position(|kernel| kernel.signature.name == name);
            index.map_or(Id::NIL, |index| Id::new(&FUNCTION, Rc::new(Function { source, program, index, products })))
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

/// Compiles a library from source as a version of the language, 300 for 3.0. Its code is never unloaded, because executed
/// command buffers may refer to it. A device has one library.
pub(crate) fn compile(shared: &SharedGpu, source: &str, version: u32) -> Result<Id, String> {
    if version >= 400 && machine().macos < 26 {
        return Err(format!("invalid language version {version}"));
    }
    let mut text = for_language(source, version);
    let products = Products {
        of_matrices: text.contains("simdgroup_multiply_accumulate"),
        of_tensors: text.contains("mpp::tensor_ops"),
    };
    if products.of_matrices && machine().matrices == Matrices::Wrong {
        text = text.replacen(NAMESPACE, &format!("{NAMESPACE}{WRONG_MATRICES}"), 1);
    }
    if products.of_tensors && machine().tensors == Matrices::Wrong {
        text = text.replace(TENSORS[0], TENSORS[1]);
    }
    let program: &'static Program =
        Box::leak(Box::new(Program::compile(&text).map_err(|error| error.to_string())?));
    shared.borrow_mut().load(program)?;
    let mut archive_key = DefaultHasher::new();
    (source, version).hash(&mut archive_key);
    Ok(Id::new(&LIBRARY, Library { program, source: archive_key.finish(), products }))
}

/// What a compiler makes of a source when a program is built, as a version of the language: here, the branches for it.
pub fn metallib(source: &str, version: u32) -> Vec<u8> {
    for_language(source, version).into_bytes()
}

/// Creates a pipeline from a function.
pub(crate) fn pipeline(function: Rc<Function>) -> Result<Id, String> {
    if function.products.of_matrices && machine().matrices == Matrices::Missing {
        return Err("Encountered unlowered function call to air.simdgroup_matrix".to_owned());
    }
    if function.products.of_tensors && machine().tensors == Matrices::Missing {
        return Err("Encountered unlowered function call to __tensorops_impl_matmul2d_op_run".to_owned());
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
