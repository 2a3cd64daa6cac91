//! Parser of kernel signatures in Metal source. The source is the only declaration of a kernel.

use crate::compile::lexer::{Sort, Token, closing, tokens};
use std::ops::Range;

/// The address space of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// A buffer; writable unless const.
    Device,
    /// A small read-only buffer: the scalars.
    Constant,
    /// Threadgroup memory.
    Threadgroup,
}

/// The source of a parameter's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `[[buffer(n)]]` or `[[threadgroup(n)]]`.
    Slot(Space, usize),
    /// A launch builtin such as `thread_position_in_grid`.
    Builtin(String),
}

/// One parameter of a kernel.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its type as written, without the `*` or `&` of a buffer.
    pub element: String,
    /// Whether it is a reference instead of a pointer.
    pub reference: bool,
    /// Whether the kernel may write through it.
    pub written: bool,
    /// Source of its value.
    pub source: Source,
}

/// The signature of one kernel.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Its name.
    pub name: String,
    /// Line of its name.
    pub line: usize,
    /// N of `[[max_total_threads_per_threadgroup(N)]]`.
    pub threads: Option<u32>,
    /// Parameters in source order.
    pub parameters: Vec<Parameter>,
    /// Byte range in the source, attributes included.
    pub range: Range<usize>,
    /// Byte range of the body, braces included.
    pub body: Range<usize>,
}

impl Signature {
    /// The buffer parameters in slot order, without the scalar struct.
    pub fn buffers(&self) -> Vec<(usize, &Parameter)> {
        let mut found: Vec<_> = self
            .parameters
            .iter()
            .filter_map(|parameter| match parameter.source {
                Source::Slot(Space::Device, slot) => Some((slot, parameter)),
                Source::Slot(Space::Constant, slot) if !parameter.reference => Some((slot, parameter)),
                _ => None,
            })
            .collect();
        found.sort_by_key(|(slot, _)| *slot);
        found
    }

    /// Slot and parameter of the scalar struct: the only reference to `constant`.
    pub fn scalars(&self) -> Option<(usize, &Parameter)> {
        self.parameters.iter().find_map(|parameter| match parameter.source {
            Source::Slot(Space::Constant, slot) if parameter.reference => Some((slot, parameter)),
            _ => None,
        })
    }
}

/// A syntax error in a signature.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernels.metal:{line}: {message}")]
pub struct Malformed {
    /// Line in the source.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

/// All kernels of `text`, in order.
pub fn kernels(text: &str) -> Result<Vec<Signature>, Malformed> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    let mut depth = 0usize;
    let mut index = 0;
    while index < tokens.len() {
        match tokens[index].text {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            "kernel" if depth == 0 => {
                let (signature, next) = kernel(&tokens, index)?;
                found.push(signature);
                index = next;
                continue;
            }
            _ => {}
        }
        index += 1;
    }
    Ok(found)
}

/// The kernel whose keyword `kernel` is at `index`, and the index after its body.
fn kernel(tokens: &[Token<'_>], index: usize) -> Result<(Signature, usize), Malformed> {
    let line = tokens[index].line;
    let missing = |what: &str| Malformed { line, message: format!("a kernel without {what}") };
    let open = (index..tokens.len())
        .find(|at| tokens[*at].is("(") && tokens[at - 1].sort == Sort::Word && tokens[at - 2].is("void"))
        .ok_or_else(|| missing("`void name(`"))?;
    let close = closing(tokens, open).ok_or_else(|| missing("a closing parenthesis"))?;
    let brace = (close..tokens.len()).find(|at| tokens[*at].is("{")).ok_or_else(|| missing("a body"))?;
    let end = closing(tokens, brace).ok_or_else(|| missing("an end"))?;
    let mut first = index;
    if first >= 2 && tokens[first - 1].is("[") && tokens[first - 2].is("[") {
        first -= 2;
    }
    while first >= 2 && tokens[first - 1].is("]") && tokens[first - 2].is("]") {
        let Some(start) = (0..first).rev().find(|at| closing(tokens, *at) == Some(first - 1)) else { break };
        first = start;
    }
    let attributes: Vec<_> = tokens[first..open].iter().chain(&tokens[close..brace]).copied().collect();
    let threads = attributes
        .windows(3)
        .find(|window| window[0].is("max_total_threads_per_threadgroup") && window[1].is("("))
        .and_then(|window| window[2].text.trim_end_matches(['u', 'U']).parse().ok());
    let mut parameters = Vec::new();
    for range in split(tokens, open + 1, close) {
        parameters.push(parameter(&tokens[range])?);
    }
    let signature = Signature {
        name: tokens[open - 1].text.to_owned(),
        line: tokens[open - 1].line,
        threads,
        parameters,
        range: tokens[first].start..tokens[end].end(),
        body: tokens[brace].start..tokens[end].end(),
    };
    Ok((signature, end + 1))
}

/// The ranges of `tokens[from..to]` separated by commas outside brackets.
pub(crate) fn split(tokens: &[Token<'_>], from: usize, to: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut depth) = (from, 0i32);
    for (at, token) in tokens.iter().enumerate().take(to).skip(from) {
        match token.text {
            "(" | "[" | "{" | "<" => depth += 1,
            ")" | "]" | "}" | ">" => depth -= 1,
            "," if depth == 0 => {
                ranges.push(start..at);
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < to {
        ranges.push(start..to);
    }
    ranges
}

fn parameter(tokens: &[Token<'_>]) -> Result<Parameter, Malformed> {
    let line = tokens.first().map_or(0, |token| token.line);
    let written = tokens.iter().map(|token| token.text).collect::<Vec<_>>().join(" ");
    let malformed = |what: &str| Malformed { line, message: format!("the parameter `{written}` {what}") };
    let attribute = (1..tokens.len())
        .find(|at| tokens[*at].is("[") && tokens[at - 1].is("["))
        .ok_or_else(|| malformed("has no attribute such as [[buffer(0)]]"))?;
    let [declaration @ .., name] = &tokens[..attribute - 1] else { return Err(malformed("has no name")) };
    if name.sort != Sort::Word {
        return Err(malformed("has no name"));
    }
    let inside = &tokens[attribute + 1..];
    let what = inside.first().ok_or_else(|| malformed("has an empty attribute"))?.text;
    let space = match what {
        "threadgroup" => Some(Space::Threadgroup),
        "buffer" if declaration.iter().any(|token| token.is("constant")) => Some(Space::Constant),
        "buffer" => Some(Space::Device),
        _ => None,
    };
    let source = match space {
        None => Source::Builtin(what.to_owned()),
        Some(space) => Source::Slot(
            space,
            inside
                .get(2)
                .and_then(|token| token.text.parse().ok())
                .ok_or_else(|| malformed("has a slot that is not a number"))?,
        ),
    };
    let indirect = declaration.last().filter(|token| token.is("*") || token.is("&"));
    if space.is_some() && indirect.is_none() {
        return Err(malformed("is neither a pointer nor a reference"));
    }
    let element = &declaration[..declaration.len() - usize::from(indirect.is_some())];
    Ok(Parameter {
        name: name.text.to_owned(),
        element: element.iter().map(|token| token.text).collect::<Vec<_>>().join(" "),
        reference: indirect.is_some_and(|token| token.is("&")),
        written: space.is_some_and(|space| space != Space::Constant)
            && !element.iter().any(|token| token.is("const")),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature() {
        let text = "struct A { uint n; };\n[[max_total_threads_per_threadgroup(64)]]\nkernel void go(\n  device const uint4* codes [[buffer(0)]],\n  device float* y [[buffer(1)]], constant A& args [[buffer(2)]], threadgroup float* t [[threadgroup(0)]],\n  uint3 group [[threadgroup_position_in_grid]]) { y[0] = 1; }\nfloat rest;";
        let found = kernels(text).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(found.len(), 1);
        let kernel = &found[0];
        assert_eq!((kernel.name.as_str(), kernel.line, kernel.threads), ("go", 3, Some(64)));
        assert!(
            text[kernel.range.clone()].starts_with("[[max") && text[kernel.range.clone()].ends_with("= 1; }")
        );
        let shown: Vec<_> = kernel
            .parameters
            .iter()
            .map(|p| (p.element.as_str(), p.name.as_str(), p.reference, p.written, p.source.clone()))
            .collect();
        let slot = |space, n| Source::Slot(space, n);
        let expected = [
            ("device const uint4", "codes", false, false, slot(Space::Device, 0)),
            ("device float", "y", false, true, slot(Space::Device, 1)),
            ("constant A", "args", true, false, slot(Space::Constant, 2)),
            ("threadgroup float", "t", false, true, slot(Space::Threadgroup, 0)),
            ("uint3", "group", false, false, Source::Builtin("threadgroup_position_in_grid".to_owned())),
        ];
        assert_eq!(shown, expected);
    }
}
