//! Errors of the parser.

pub(crate) type Result<T> = std::result::Result<T, DeclError>;

/// A rejected source, with the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct DeclError {
    /// Line of the source, from 1.
    pub line: usize,
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
    #[error("unsupported threadgroup memory in a macro: declare it outside macros")]
    ThreadgroupMacro,
    #[error("the size of threadgroup array `{name}` is not a number")]
    ArraySize { name: String },
    #[error("threadgroup array `{name}` has elements of `{element}`, whose size is unknown")]
    ArrayElement { name: String, element: String },
    #[error("kernel `{kernel}` has {bytes} bytes of threadgroup memory; the maximum is 32768")]
    ThreadgroupMemory { kernel: String, bytes: u64 },
}
