//! Declarations of threadgroup variables, and their sizes.

use crate::cursor::Cursor;
use crate::error::{DeclError, DeclFault, Result};
use crate::token::{Token, TokenKind, split_list};
use std::ops::Range;

/// A declaration of threadgroup variables, such as `threadgroup float tile[8][4], sum;`.
pub struct ThreadgroupDecl<'a> {
    /// Line number, from 1.
    pub line: usize,
    /// Byte range in the source, from the keyword to the semicolon.
    pub range: Range<usize>,
    /// The type before the names, as written.
    pub element: &'a str,
    /// The variables, in order.
    pub variables: Vec<ThreadgroupVariable<'a>>,
}

/// A threadgroup variable.
pub struct ThreadgroupVariable<'a> {
    /// Token of its name.
    pub name: Token<'a>,
    /// Tokens of its dimensions, brackets included; none if it is not an array.
    pub dimensions: &'a [Token<'a>],
}

/// The declarations of threadgroup variables among the tokens of `text`. Pointers are left out.
pub fn threadgroup_decls<'a>(text: &'a str, tokens: &'a [Token<'a>]) -> Result<Vec<ThreadgroupDecl<'a>>> {
    let mut found = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        if token.kind == TokenKind::Directive
            && token.text.starts_with("#define")
            && token.text.contains("threadgroup ")
        {
            return Err(DeclError { line: token.line, fault: DeclFault::ThreadgroupMacro });
        }
        let before = index.checked_sub(1).map(|before| tokens[before]);
        let begins = before.is_none_or(|before| {
            before.kind == TokenKind::Directive || matches!(before.text, ";" | "{" | "}")
        });
        if token.is("threadgroup") && begins {
            found.extend(declaration(text, tokens, index));
        }
    }
    Ok(found)
}

/// The declaration whose keyword is at `index`; `None` if it declares pointers.
fn declaration<'a>(text: &'a str, tokens: &'a [Token<'a>], index: usize) -> Option<ThreadgroupDecl<'a>> {
    let end = (index..tokens.len()).find(|at| tokens[*at].is(";"))?;
    let parts = split_list(tokens, index + 1..end);
    // The first part has the type, the name and its dimensions.
    let first = parts.first()?.clone();
    let bracket = first.clone().find(|at| tokens[*at].is("[")).unwrap_or(first.end);
    let name = bracket.checked_sub(1).filter(|at| *at > first.start)?;
    if tokens[first.start..bracket].iter().any(|token| matches!(token.text, "*" | "&" | "=")) {
        return None;
    }
    let is_named = |part: &Range<usize>| tokens[part.start].kind == TokenKind::Word;
    if !parts.iter().all(is_named) {
        return None;
    }
    let starts = [name].into_iter().chain(parts.iter().skip(1).map(|part| part.start));
    let variable = |(start, part): (usize, &Range<usize>)| ThreadgroupVariable {
        name: tokens[start],
        dimensions: &tokens[start + 1..part.end],
    };
    Some(ThreadgroupDecl {
        line: tokens[index].line,
        range: tokens[index].offset..tokens[end].end(),
        element: &text[tokens[first.start].offset..tokens[name - 1].end()],
        variables: starts.zip(&parts).map(variable).collect(),
    })
}

/// Total size in bytes of the threadgroup variables in a kernel body, each rounded up to 16 bytes.
pub(crate) fn threadgroup_bytes(text: &str, body: &[Token<'_>]) -> Result<u64> {
    let mut bytes = 0_u64;
    for ThreadgroupDecl { line, element, variables, .. } in threadgroup_decls(text, body)? {
        for ThreadgroupVariable { name, dimensions } in variables {
            let name = name.text.to_owned();
            let Some(size) = type_bytes(element) else {
                let fault = DeclFault::ArrayElement { name, element: element.to_owned() };
                return Err(DeclError { line, fault });
            };
            let size = elements(dimensions).and_then(|count| count.checked_mul(size));
            let size = size.ok_or(DeclError { line, fault: DeclFault::ArraySize { name } })?;
            bytes = bytes.saturating_add(size.next_multiple_of(16));
        }
    }
    Ok(bytes)
}

/// Number of elements of a variable. Lengths are integers with `+` and `*`.
fn elements(dimensions: &[Token<'_>]) -> Option<u64> {
    let mut cursor = Cursor::new(dimensions);
    let mut count = 1_u64;
    while cursor.peek().is_some() {
        let mut inner = Cursor::new(cursor.bracketed("[").ok()?);
        let length = inner.sum().ok()?.eval(&[]).filter(|_| inner.peek().is_none())?;
        count = count.checked_mul(u64::from(length))?;
    }
    Some(count)
}

/// Size in bytes of a scalar or vector type, which is also its alignment.
pub(crate) fn type_bytes(element: &str) -> Option<u64> {
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
