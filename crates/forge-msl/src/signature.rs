//! Kernel signatures as written.

use crate::cursor::Cursor;
use crate::error::{DeclError, DeclFault, Result};
use crate::parse::Source;
use crate::threadgroup::type_bytes;
use crate::token::tokenize;
use std::ops::Range;

/// The signature of a kernel. Buffers use slots 0, 1, 2 and so on, and the scalars use the next slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Name of the kernel.
    pub name: String,
    /// Line of the name, from 1.
    pub line: usize,
    /// N of `[[max_total_threads_per_threadgroup(N)]]`.
    pub threads: Option<u32>,
    /// Buffers in slot order.
    pub buffers: Vec<Buffer>,
    /// The scalars, if any.
    pub scalars: Option<Scalars>,
    /// Launch builtins, in order.
    pub builtins: Vec<Builtin>,
    /// Byte range in the source, attributes included.
    pub range: Range<usize>,
    /// Byte range of the body, braces included.
    pub body: Range<usize>,
}

/// A buffer of a kernel: a `device` pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Parameter name.
    pub name: String,
    /// Element type in Metal, such as `uint4`.
    pub element: String,
    /// Whether the kernel may write it: it is not `const`.
    pub written: bool,
    /// Slot number.
    pub slot: u32,
}

/// The scalars of a kernel: a reference to a `constant` struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalars {
    /// Parameter name.
    pub name: String,
    /// Name of the struct.
    pub element: String,
    /// Slot number.
    pub slot: u32,
    /// Line of the parameter, from 1.
    pub line: usize,
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
    /// Line of the parameter, from 1.
    pub line: usize,
}

impl Signature {
    /// Maximum slots of a kernel.
    pub const MOST_SLOTS: usize = 31;

    /// Parses the signature of every kernel of a source.
    pub fn parse_all(text: &str) -> Result<Vec<Signature>> {
        let tokens = tokenize(text)?;
        Ok(Source::parse(&tokens)?.kernels.into_iter().map(|kernel| kernel.signature).collect())
    }
}

impl Buffer {
    /// Alignment of its elements in bytes.
    pub fn alignment(&self) -> u64 {
        type_bytes(&self.element).unwrap_or(4)
    }
}

impl Cursor<'_> {
    /// Parses one parameter of a kernel.
    pub(crate) fn parameter(&mut self, signature: &mut Signature) -> Result<()> {
        let line = self.line();
        let constant_first = self.accept("const");
        if self.is(0, "threadgroup") {
            return self.expected("`device`, `constant` or a launch builtin");
        }
        let is_buffer = self.is(0, "device");
        if !is_buffer && !self.is(0, "constant") {
            let element = self.word("a parameter's type")?.text.to_owned();
            let name = self.word("a parameter's name")?.text.to_owned();
            self.open_attribute(&name)?;
            let attribute = self.word("an attribute")?.text.to_owned();
            self.close_attribute()?;
            signature.builtins.push(Builtin { name, element, attribute, line });
            return Ok(());
        }
        self.at += 1;
        let constant = self.accept("const") || constant_first;
        let element = self.word("the type of a buffer's elements")?.text.to_owned();
        self.expect(if is_buffer { "*" } else { "&" })?;
        let name = self.word("the name of a buffer")?.text.to_owned();
        self.open_attribute(&name)?;
        self.expect("buffer")?;
        self.expect("(")?;
        let slot = self.number("the number of a slot")?;
        self.expect(")")?;
        self.close_attribute()?;
        let expected = signature.buffers.len() as u32 + u32::from(signature.scalars.is_some());
        if slot != expected {
            return Err(DeclError { line, fault: DeclFault::Slot { name, slot, expected } });
        }
        if signature.scalars.is_some() {
            return Err(DeclError { line, fault: DeclFault::AfterScalars { name } });
        }
        if is_buffer {
            signature.buffers.push(Buffer { name, element, written: !constant, slot });
        } else {
            signature.scalars = Some(Scalars { name, element, slot, line });
        }
        Ok(())
    }

    fn open_attribute(&mut self, name: &str) -> Result<()> {
        if self.is(0, "[") && self.is(1, "[") {
            self.at += 2;
            return Ok(());
        }
        let fault = DeclFault::NoAttribute { name: name.to_owned() };
        Err(DeclError { line: self.line(), fault })
    }

    fn close_attribute(&mut self) -> Result<()> {
        self.expect("]")?;
        self.expect("]")
    }
}
