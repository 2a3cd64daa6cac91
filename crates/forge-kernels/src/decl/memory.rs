//! Computes the threadgroup memory of a kernel body.

use crate::decl::cursor::{Cursor, Result};
use crate::decl::token::{Kind, Token};
use crate::decl::{DeclError, DeclFault};

/// Total size in bytes of the threadgroup arrays in a kernel body, each rounded up to 16 bytes.
pub(crate) fn threadgroup_bytes(body: &[Token<'_>]) -> Result<u64> {
    let mut bytes = 0_u64;
    for (at, token) in body.iter().enumerate() {
        let [_, element, name, next, ..] = &body[at..] else { break };
        // A pointer type has an asterisk in place of an array's name.
        let declares = token.text == "threadgroup"
            && element.kind == Kind::Word
            && name.kind == Kind::Word
            && matches!(next.text, "[" | ";");
        if !declares {
            continue;
        }
        let fault = |fault| DeclError { line: token.line, fault };
        let name = name.text.to_owned();
        let Some(size) = element_bytes(element.text) else {
            return Err(fault(DeclFault::ArrayElement { name, element: element.text.to_owned() }));
        };
        let mut cursor = Cursor { tokens: body, at: at + 3 };
        let mut count = Some(1_u64);
        while cursor.is_symbol(0, "[") {
            let length = array_length(cursor.bracketed()?);
            count = count.and_then(|count| count.checked_mul(length?));
        }
        let Some(size) = count.and_then(|count| count.checked_mul(size)) else {
            return Err(fault(DeclFault::ArraySize { name }));
        };
        bytes = bytes.saturating_add(size.next_multiple_of(16));
    }
    Ok(bytes)
}

/// Value of an array length: integers, `+` and `*`.
fn array_length(tokens: &[Token<'_>]) -> Option<u64> {
    let mut cursor = Cursor { tokens, at: 0 };
    let length = cursor.sum().ok()?;
    if cursor.peek().is_some() {
        return None;
    }
    length.eval(&[]).map(u64::from)
}

/// Size in bytes of a scalar or vector type.
fn element_bytes(element: &str) -> Option<u64> {
    let digits = element.len() - element.trim_end_matches(['2', '3', '4']).len();
    let (scalar, lanes) = element.split_at(element.len() - digits);
    let bytes = match scalar {
        "bool" | "char" | "uchar" => 1,
        "short" | "ushort" | "half" | "bfloat" => 2,
        "int" | "uint" | "float" | "atomic_uint" => 4,
        "long" | "ulong" => 8,
        _ => return None,
    };
    match lanes {
        "" => Some(bytes),
        "2" => Some(bytes * 2),
        "3" | "4" => Some(bytes * 4),
        _ => None,
    }
}
