//! Parses kernel signatures. The Metal source is the only declaration of a kernel; all host-side information
//! is read from it.
//!
//! An example of a kernel:
//!
//! ```metal
//! struct ScaleArgs {
//!     uint rows;
//! };
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
//! Buffers use slots 0, 1, 2 and so on, and the scalars use the next slot. `const` marks read-only buffers.
//! The grid counts threadgroups, and each has exactly the number of threads of its attribute.

pub(crate) mod cursor;
pub(crate) mod grid;
pub(crate) mod memory;
pub(crate) mod parse;
pub(crate) mod signature;
pub(crate) mod token;

use std::fmt;

pub use crate::decl::grid::Expr;
pub(crate) use crate::decl::token::{Kind, tokenize};

/// A kernel as declared by its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelDecl {
    /// Name in the source.
    pub name: String,
    /// Line of the name, from 1.
    pub line: u32,
    /// Buffers in slot order.
    pub buffers: Vec<Buffer>,
    /// Fields of the scalars' struct in order, all `uint`. The struct uses the slot after the buffers.
    pub scalars: Vec<String>,
    /// Name of the scalars' struct.
    pub scalars_type: String,
    /// Launch builtins, in order.
    pub builtins: Vec<Builtin>,
    /// Threads per threadgroup.
    pub threads: u32,
    /// Threadgroup memory in bytes.
    pub threadgroup_bytes: u32,
    /// Threadgroups along x, y and z, in terms of scalars.
    pub grid: [Expr; 3],
}

impl KernelDecl {
    /// Threadgroup memory in bytes above which some chips run fewer than two threadgroups per core.
    pub const DEFAULT_THREADGROUP_BYTES: u32 = 16 * 1024;
    /// Maximum threadgroup memory of any chip, in bytes.
    pub const MOST_THREADGROUP_BYTES: u32 = 32 * 1024;
    /// Maximum slots of a kernel.
    pub const MOST_SLOTS: usize = 31;
    /// Maximum threads of a threadgroup.
    pub const MOST_THREADS: u32 = 1024;

    /// Whether it uses more than [`KernelDecl::DEFAULT_THREADGROUP_BYTES`], which is allowed but slow.
    pub fn is_crowded(&self) -> bool {
        self.threadgroup_bytes > KernelDecl::DEFAULT_THREADGROUP_BYTES
    }

    /// Parses a source that contains exactly one kernel.
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

    /// Parses every kernel of a file.
    pub fn parse_all(text: &str) -> Result<Vec<KernelDecl>, DeclError> {
        crate::decl::parse::kernels(text)
    }
}

/// Human-readable declaration.
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

/// A buffer of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Parameter name.
    pub name: String,
    /// Element type in Metal, such as `uint4`.
    pub element: String,
    /// Whether the kernel may write it.
    pub written: bool,
    /// Slot number.
    pub slot: u32,
}

/// A parameter with a launch builtin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Parameter name.
    pub name: String,
    /// Type: `uint` or a vector of it.
    pub element: String,
    /// Attribute, such as `thread_index_in_threadgroup`.
    pub attribute: String,
}

/// A rejected source, with the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct DeclError {
    /// Line of the source, from 1.
    pub line: u32,
    /// The error.
    pub fault: DeclFault,
}

/// Errors of a signature.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each variant is its message")]
pub enum DeclFault {
    #[error("no kernel found")]
    NoKernel,
    #[error("`{name}` is a second kernel: expected one")]
    SecondKernel { name: String },
    #[error("expected {expected}, found {found}")]
    Syntax { expected: String, found: String },
    #[error("unclosed comment, bracket or parenthesis")]
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
        "kernel `{kernel}` has no number of threads: put [[max_total_threads_per_threadgroup(N)]] before it"
    )]
    NoThreads { kernel: String },
    #[error("kernel `{kernel}` has {threads} threads; it must be a multiple of 32, at most 1024")]
    Threads { kernel: String, threads: u32 },
    #[error("parameter `{name}` has no attribute: add [[buffer(N)]] or a launch builtin")]
    NoAttribute { name: String },
    #[error("buffer `{name}` is in slot {slot}, but the next slot is {expected}")]
    Slot { name: String, slot: u32, expected: u32 },
    #[error("kernel `{kernel}` has {slots} slots; the maximum is 31")]
    Slots { kernel: String, slots: usize },
    #[error("buffer `{name}` comes after the scalars: the scalars' struct uses the last slot")]
    AfterScalars { name: String },
    #[error("kernel `{kernel}` has no scalars: add a last parameter `constant Args& args`")]
    NoScalars { kernel: String },
    #[error("kernel `{kernel}` uses struct `{name}`, which is not declared above it")]
    NoStruct { kernel: String, name: String },
    #[error("scalar `{name}` has type `{element}`: expected `uint`")]
    Scalar { name: String, element: String },
    #[error("unsupported launch builtin `{attribute}`: expected one of {known}")]
    Builtin { attribute: String, known: String },
    #[error("builtin `{name}` has type `{element}`: `{attribute}` is {must}")]
    BuiltinType { name: String, element: String, attribute: String, must: &'static str },
    #[error("the size of threadgroup array `{name}` is not a number")]
    ArraySize { name: String },
    #[error("threadgroup array `{name}` has elements of `{element}`, whose size is unknown")]
    ArrayElement { name: String, element: String },
    #[error("kernel `{kernel}` has {bytes} bytes of threadgroup memory; the maximum is 32768")]
    ThreadgroupMemory { kernel: String, bytes: u64 },
}
