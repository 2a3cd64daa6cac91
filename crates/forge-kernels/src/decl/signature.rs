//! Parses the parameter list of a kernel.

use crate::decl::cursor::{Cursor, Result};
use crate::decl::parse::Struct;
use crate::decl::token::Token;
use crate::decl::{Buffer, Builtin, DeclError, DeclFault};

/// Supported launch builtins, and whether they are positions, which may be vectors.
const BUILTINS: [(&str, bool); 4] = [
    ("threadgroup_position_in_grid", true),
    ("thread_index_in_threadgroup", false),
    ("simdgroup_index_in_threadgroup", false),
    ("thread_index_in_simdgroup", false),
];

/// The parameters of a kernel.
pub(crate) struct Signature {
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) scalars: Vec<String>,
    pub(crate) scalars_type: String,
    pub(crate) builtins: Vec<Builtin>,
}

/// Parses the parameter list of a kernel.
pub(crate) fn signature(
    tokens: &[Token<'_>],
    kernel: &str,
    line: u32,
    structs: &[Struct<'_>],
) -> Result<Signature> {
    let mut cursor = Cursor { tokens, at: 0 };
    let (mut buffers, mut builtins) = (Vec::new(), Vec::new());
    let mut scalars: Option<(String, Vec<String>)> = None;
    cursor.skip_comments();
    while cursor.peek().is_some() {
        let constant_first = cursor.accept("const");
        let line = cursor.line();
        let fault = |fault| Err(DeclError { line, fault });
        let next = buffers.len() as u32 + u32::from(scalars.is_some());
        match cursor.peek().map_or("", |token| token.text) {
            "device" => {
                let (element, constant) = cursor.pointee("*")?;
                let name = cursor.word("the name of a buffer")?.text.to_owned();
                let slot = cursor.slot(&name)?;
                if slot != next {
                    return fault(DeclFault::Slot { name, slot, expected: next });
                }
                if scalars.is_some() {
                    return fault(DeclFault::AfterScalars { name });
                }
                buffers.push(Buffer { name, element, written: !(constant || constant_first), slot });
            }
            "constant" => {
                let (element, _) = cursor.pointee("&")?;
                let name = cursor.word("the name of the scalars")?.text.to_owned();
                let slot = cursor.slot(&name)?;
                if slot != next {
                    return fault(DeclFault::Slot { name, slot, expected: next });
                }
                if scalars.is_some() {
                    return fault(DeclFault::AfterScalars { name });
                }
                let names = scalar_names(&element, kernel, line, structs)?;
                scalars = Some((element, names));
            }
            _ => builtins.push(cursor.builtin()?),
        }
        cursor.skip_comments();
        if cursor.peek().is_some() {
            cursor.expect(",")?;
        }
        cursor.skip_comments();
    }
    match scalars {
        Some((scalars_type, scalars)) => Ok(Signature { buffers, scalars, scalars_type, builtins }),
        None => Err(DeclError { line, fault: DeclFault::NoScalars { kernel: kernel.to_owned() } }),
    }
}

fn scalar_names(name: &str, kernel: &str, line: u32, structs: &[Struct<'_>]) -> Result<Vec<String>> {
    let Some(structure) = structs.iter().find(|structure| structure.name == name) else {
        let fault = DeclFault::NoStruct { kernel: kernel.to_owned(), name: name.to_owned() };
        return Err(DeclError { line, fault });
    };
    let scalar = |&(element, name, line): &(&str, &str, u32)| match element {
        "uint" => Ok(name.to_owned()),
        _ => Err(DeclError { line, fault: DeclFault::Scalar { name: name.into(), element: element.into() } }),
    };
    structure.fields.iter().map(scalar).collect()
}

impl Cursor<'_> {
    /// Parses `device const float*`; returns the element type and whether it is constant.
    fn pointee(&mut self, sign: &'static str) -> Result<(String, bool)> {
        self.at += 1;
        let constant = self.accept("const");
        let element = self.word("the type of a buffer's elements")?.text.to_owned();
        self.expect(sign)?;
        Ok((element, constant))
    }

    fn attribute(&mut self, name: &str) -> Result<()> {
        if !(self.is_symbol(0, "[") && self.is_symbol(1, "[")) {
            return Err(DeclError {
                line: self.line(),
                fault: DeclFault::NoAttribute { name: name.to_owned() },
            });
        }
        self.at += 2;
        Ok(())
    }

    fn slot(&mut self, name: &str) -> Result<u32> {
        self.attribute(name)?;
        self.expect("buffer")?;
        self.expect("(")?;
        let slot = self.number("the number of a slot")?;
        self.expect(")")?;
        self.expect("]")?;
        self.expect("]")?;
        Ok(slot)
    }

    fn builtin(&mut self) -> Result<Builtin> {
        let line = self.line();
        let element = self.word("a parameter's type")?.text.to_owned();
        let name = self.word("a parameter's name")?.text.to_owned();
        self.attribute(&name)?;
        let attribute = self.word("an attribute")?.text.to_owned();
        let Some(&(_, is_position)) = BUILTINS.iter().find(|(known, _)| *known == attribute) else {
            let known = BUILTINS.map(|(known, _)| known).join(", ");
            return Err(DeclError { line, fault: DeclFault::Builtin { attribute, known } });
        };
        let (fits, must) = if is_position {
            (matches!(element.as_str(), "uint" | "uint2" | "uint3"), "a uint, uint2 or uint3")
        } else {
            (element == "uint", "a uint")
        };
        if !fits {
            return Err(DeclError { line, fault: DeclFault::BuiltinType { name, element, attribute, must } });
        }
        self.expect("]")?;
        self.expect("]")?;
        Ok(Builtin { name, element, attribute })
    }
}
