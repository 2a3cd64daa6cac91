//! Kernel declarations: signatures that obey the rules of the kernel templates.
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
//! The grid counts threadgroups, and each has exactly the number of threads of its attribute.

use crate::cursor::Cursor;
use crate::error::{DeclError, DeclFault, Result};
use crate::grid::{Expr, parse_grid};
use crate::language::for_language;
use crate::parse::{ParsedKernel, Source, Struct};
use crate::signature::{Buffer, Builtin, Scalars, Signature};
use crate::threadgroup::threadgroup_bytes;
use crate::token::tokenize;
use std::fmt;
use std::ops::Range;

/// Supported launch builtins, and whether they are positions, which may be vectors.
const BUILTINS: [(&str, bool); 4] = [
    ("threadgroup_position_in_grid", true),
    ("thread_index_in_threadgroup", false),
    ("simdgroup_index_in_threadgroup", false),
    ("thread_index_in_simdgroup", false),
];

/// A kernel as declared by its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelDecl {
    /// Name in the source.
    pub name: String,
    /// Line of the name, from 1.
    pub line: usize,
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
    /// Byte range of the body in the source, braces included.
    pub body: Range<usize>,
}

impl KernelDecl {
    /// Threadgroup memory in bytes above which some chips run fewer than two threadgroups per core.
    pub const DEFAULT_THREADGROUP_BYTES: u32 = 16 * 1024;
    /// Maximum threadgroup memory of any chip, in bytes.
    pub const MOST_THREADGROUP_BYTES: u32 = 32 * 1024;
    /// Maximum threads of a threadgroup.
    pub const MOST_THREADS: u32 = 1024;

    /// Whether it uses more than [`KernelDecl::DEFAULT_THREADGROUP_BYTES`], which is allowed but slow.
    pub fn is_crowded(&self) -> bool {
        self.threadgroup_bytes > KernelDecl::DEFAULT_THREADGROUP_BYTES
    }

    /// Parses a source that contains exactly one kernel.
    pub fn parse(text: &str) -> Result<KernelDecl> {
        let mut kernels = KernelDecl::parse_all(text)?.into_iter();
        match (kernels.next(), kernels.next()) {
            (Some(kernel), None) => Ok(kernel),
            (None, _) => Err(DeclError { line: 1, fault: DeclFault::NoKernel }),
            (Some(_), Some(second)) => {
                Err(DeclError { line: second.line, fault: DeclFault::SecondKernel { name: second.name } })
            }
        }
    }

    /// Parses every kernel of a file, as Metal 3 sees it.
    pub fn parse_all(text: &str) -> Result<Vec<KernelDecl>> {
        let text = &for_language(text, 300);
        let tokens = tokenize(text)?;
        let Source { kernels, structs } = Source::parse(&tokens)?;
        kernels.into_iter().map(|kernel| checked(text, kernel, &structs)).collect()
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

/// The declaration of a parsed kernel, if it obeys the rules.
fn checked(text: &str, kernel: ParsedKernel<'_>, structs: &[Struct<'_>]) -> Result<KernelDecl> {
    let ParsedKernel { signature, threads_line, grid, body: body_tokens } = kernel;
    let Signature { name, line, threads, buffers, scalars, builtins, body, .. } = signature;
    let kernel = || name.clone();
    let error = |line, fault| DeclError { line, fault };

    let threads = threads.ok_or_else(|| error(line, DeclFault::NoThreads { kernel: kernel() }))?;
    if threads == 0 || !threads.is_multiple_of(32) || threads > KernelDecl::MOST_THREADS {
        return Err(error(threads_line, DeclFault::Threads { kernel: kernel(), threads }));
    }
    let scalars = scalars.ok_or_else(|| error(line, DeclFault::NoScalars { kernel: kernel() }))?;
    let Scalars { element: scalars_type, line: scalars_line, .. } = scalars;
    let Some((_, fields)) = structs.iter().find(|(name, _)| *name == scalars_type) else {
        return Err(error(scalars_line, DeclFault::NoStruct { kernel: kernel(), name: scalars_type }));
    };
    let scalars = Cursor::new(fields).scalars()?;
    builtins.iter().try_for_each(check_builtin)?;

    let comment = grid.ok_or_else(|| error(line, DeclFault::NoGrid { kernel: kernel() }))?;
    let grid = parse_grid(&comment)?;
    let mut unknown = grid.iter().flat_map(Expr::scalars);
    if let Some(unknown) = unknown.find(|name| !scalars.iter().any(|scalar| scalar == name)) {
        let fault = DeclFault::GridScalar { kernel: kernel(), name: unknown.to_owned() };
        return Err(error(comment.line, fault));
    }

    let bytes = threadgroup_bytes(text, body_tokens)?;
    if bytes > u64::from(KernelDecl::MOST_THREADGROUP_BYTES) {
        return Err(error(line, DeclFault::ThreadgroupMemory { kernel: kernel(), bytes }));
    }
    let threadgroup_bytes = bytes as u32;
    Ok(KernelDecl {
        name,
        line,
        buffers,
        scalars,
        scalars_type,
        builtins,
        threads,
        threadgroup_bytes,
        grid,
        body,
    })
}

fn check_builtin(builtin: &Builtin) -> Result<()> {
    let Builtin { name, element, attribute, line } = builtin.clone();
    let Some((_, is_position)) = BUILTINS.iter().find(|(known, _)| *known == attribute) else {
        let known = BUILTINS.map(|(known, _)| known).join(", ");
        return Err(DeclError { line, fault: DeclFault::Builtin { attribute, known } });
    };
    let (fits, must) = if *is_position {
        (matches!(element.as_str(), "uint" | "uint2" | "uint3"), "a uint, uint2 or uint3")
    } else {
        (element == "uint", "a uint")
    };
    if fits {
        return Ok(());
    }
    Err(DeclError { line, fault: DeclFault::BuiltinType { name, element, attribute, must } })
}

impl Cursor<'_> {
    /// Parses the fields of the scalars' struct.
    fn scalars(&mut self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        while self.peek().is_some() {
            let element = self.word("the type of a field")?;
            let name = self.word("the name of a field")?.text.to_owned();
            self.expect(";")?;
            if element.text != "uint" {
                let fault = DeclFault::Scalar { name, element: element.text.to_owned() };
                return Err(DeclError { line: element.line, fault });
            }
            names.push(name);
        }
        Ok(names)
    }
}
