//! What a kernel's signature says. The text is the only declaration; everything that the host must know is read here.
//!
//! A kernel that can be read looks like this:
//!
//! ```metal
//! struct ScaleArgs {
//!     uint rows;
//! };
//!
//! // grid: ceil(rows * 64 / 256)
//! [[max_total_threads_per_threadgroup(256)]]
//! kernel void scale(
//!     device const float* x [[buffer(0)]],
//!     device float* y [[buffer(1)]],
//!     constant ScaleArgs& args [[buffer(2)]],
//!     uint group [[threadgroup_position_in_grid]],
//!     uint thread_id [[thread_index_in_threadgroup]]) { .. }
//! ```
//!
//! Buffers take slots 0, 1, 2 ... in order and the scalars the slot after them; `const` tells what is only read. The
//! grid counts threadgroups, and each has exactly the threads of its attribute.

pub(crate) mod cursor;
pub(crate) mod grid;
pub(crate) mod memory;
pub(crate) mod parse;
pub(crate) mod signature;
pub(crate) mod token;

use std::fmt;

pub use crate::decl::grid::Expr;
pub(crate) use crate::decl::token::{Kind, tokenize};

/// One kernel, as its signature declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelDecl {
    /// Its name in the file.
    pub name: String,
    /// The line of the text on which its name stands, from 1.
    pub line: u32,
    /// Its buffers, slot by slot.
    pub buffers: Vec<Buffer>,
    /// The fields of its struct of scalars, all `uint`, in order; the struct takes the slot after the buffers.
    pub scalars: Vec<String>,
    /// The name of that struct.
    pub scalars_type: String,
    /// What it asks of the launch, in order.
    pub builtins: Vec<Builtin>,
    /// Threads of a threadgroup.
    pub threads: u32,
    /// Bytes of threadgroup memory.
    pub threadgroup_bytes: u32,
    /// Threadgroups along x, y and z, in terms of scalars.
    pub grid: [Expr; 3],
}

impl KernelDecl {
    /// Threadgroup memory above which fewer than two threadgroups share a core of some chips.
    pub const DEFAULT_THREADGROUP_BYTES: u32 = 16 * 1024;
    /// Threadgroup memory that no chip exceeds.
    pub const MOST_THREADGROUP_BYTES: u32 = 32 * 1024;
    /// Slots of a kernel.
    pub const MOST_SLOTS: usize = 31;
    /// Threads of a threadgroup.
    pub const MOST_THREADS: u32 = 1024;

    /// Whether it has more threadgroup memory than [`KernelDecl::DEFAULT_THREADGROUP_BYTES`]: allowed, and slow.
    pub fn is_crowded(&self) -> bool {
        self.threadgroup_bytes > KernelDecl::DEFAULT_THREADGROUP_BYTES
    }

    /// Reads a text that holds one kernel.
    pub fn parse(text: &str) -> Result<KernelDecl, DeclError> {
        let mut kernels = KernelDecl::parse_all(text)?.into_iter();
        match (kernels.next(), kernels.next()) {
            (Some(kernel), None) => Ok(kernel),
            (None, _) => Err(DeclError { line: 1, fault: DeclFault::NoKernel }),
            (Some(_), Some(second)) => {
                Err(DeclError { line: second.line, fault: DeclFault::SecondKernel { name: second.name } })
            }
        }
    }

    /// Reads every kernel of a file.
    pub fn parse_all(text: &str) -> Result<Vec<KernelDecl>, DeclError> {
        crate::decl::parse::kernels(text)
    }
}

/// The declaration as people read it.
impl fmt::Display for KernelDecl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KernelDecl { name, threads, threadgroup_bytes, grid: [x, y, z], .. } = self;
        writeln!(f, "{name}: [{x}, {y}, {z}] groups of {threads} threads, {threadgroup_bytes} bytes each")?;
        for Buffer { name, element, written, slot } in &self.buffers {
            writeln!(f, "  {slot:2} {:7} {element} {name}", if *written { "written" } else { "read" })?;
        }
        write!(f, "  {:2} scalars {}", self.buffers.len(), self.scalars.join(", "))
    }
}

/// One buffer of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The parameter's name.
    pub name: String,
    /// The type of its elements as Metal spells it, `uint4`.
    pub element: String,
    /// Whether the kernel may write it.
    pub written: bool,
    /// Its place among the arguments.
    pub slot: u32,
}

/// A parameter that the launch fills in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// The parameter's name.
    pub name: String,
    /// Its type, `uint` or a vector of it.
    pub element: String,
    /// What it asks for, `thread_index_in_threadgroup`.
    pub attribute: String,
}

/// Why a text is refused, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct DeclError {
    /// The line of the text, from 1.
    pub line: u32,
    /// What is wrong there.
    pub fault: DeclFault,
}

/// What can be wrong with a signature.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each variant is its message")]
pub enum DeclFault {
    #[error("the text has no kernel")]
    NoKernel,
    #[error("`{name}` is a second kernel; a text has one")]
    SecondKernel { name: String },
    #[error("expected {expected}, found {found}")]
    Syntax { expected: String, found: String },
    #[error("the comment, the bracket or the parenthesis that opens here is not closed")]
    Unclosed,
    #[error("kernel `{kernel}` has no grid: put `// grid: <x>, <y>, <z>` directly above it")]
    NoGrid { kernel: String },
    #[error("the grid has {count} dimensions; it may have one to three")]
    GridDimensions { count: usize },
    #[error("the grid divides by zero, or exceeds 32 bits")]
    GridValue,
    #[error("the grid names `{name}`, which is not a scalar of kernel `{kernel}`")]
    GridScalar { kernel: String, name: String },
    #[error(
        "kernel `{kernel}` does not say its threads: put [[max_total_threads_per_threadgroup(N)]] before it"
    )]
    NoThreads { kernel: String },
    #[error("kernel `{kernel}` has {threads} threads; they must be a multiple of 32, and 1024 at most")]
    Threads { kernel: String, threads: u32 },
    #[error("parameter `{name}` has no attribute; say [[buffer(N)]] or what it asks of the launch")]
    NoAttribute { name: String },
    #[error("buffer `{name}` is in slot {slot}, and the next free slot is {expected}; slots have no gaps")]
    Slot { name: String, slot: u32, expected: u32 },
    #[error("kernel `{kernel}` has {slots} slots; 31 is the most")]
    Slots { kernel: String, slots: usize },
    #[error("buffer `{name}` comes after the scalars; the struct of scalars takes the last slot")]
    AfterScalars { name: String },
    #[error("kernel `{kernel}` has no struct of scalars; its last buffer is `constant Args& args`")]
    NoScalars { kernel: String },
    #[error("kernel `{kernel}` takes struct `{name}`, which is not declared above it")]
    NoStruct { kernel: String, name: String },
    #[error("scalar `{name}` is a `{element}`; scalars are `uint`")]
    Scalar { name: String, element: String },
    #[error("`{attribute}` is not a launch builtin that kernels may use; they are: {known}")]
    Builtin { attribute: String, known: String },
    #[error("builtin `{name}` is a `{element}`; `{attribute}` is {must}")]
    BuiltinType { name: String, element: String, attribute: String, must: &'static str },
    #[error("the size of threadgroup array `{name}` is not a number")]
    ArraySize { name: String },
    #[error("threadgroup array `{name}` has elements of `{element}`, whose size is unknown")]
    ArrayElement { name: String, element: String },
    #[error("kernel `{kernel}` has {bytes} bytes of threadgroup memory; 32768 is the most")]
    ThreadgroupMemory { kernel: String, bytes: u64 },
}
