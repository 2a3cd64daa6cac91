//! Tokens of Metal source, with lines and offsets.

use crate::error::{DeclError, DeclFault, Result};
use std::ops::Range;

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A name or a keyword.
    Word,
    /// A number literal with its suffix.
    Number,
    /// A string or character literal.
    Quoted,
    /// One punctuation character.
    Symbol,
    /// `#...` to the end of the line, with continuations.
    Directive,
    /// `// grid: ...` to the end of the line: the only comment that is a token.
    Grid,
}

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// Its kind.
    pub kind: TokenKind,
    /// Its characters.
    pub text: &'a str,
    /// Line number, from 1.
    pub line: usize,
    /// Byte offset in the source.
    pub offset: usize,
}

impl Token<'_> {
    /// Byte offset of its end.
    pub fn end(&self) -> usize {
        self.offset + self.text.len()
    }

    /// Whether it has this text.
    pub fn is(&self, text: &str) -> bool {
        self.text == text
    }
}

/// Splits a source into tokens.
pub fn tokenize(text: &str) -> Result<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let (mut offset, mut line) = (0, 1);
    while let Some(first) = text[offset..].chars().next() {
        let rest = &text[offset..];
        let (kind, length) = match first {
            _ if first.is_whitespace() => (None, rest.len() - rest.trim_start().len()),
            '/' if rest.starts_with("//") => {
                let length = end_of_line(rest);
                (grid_text(&rest[..length]).map(|_| TokenKind::Grid), length)
            }
            '/' if rest.starts_with("/*") => match rest[2..].find("*/") {
                Some(length) => (None, length + 4),
                None => return Err(DeclError { line, fault: DeclFault::Unclosed }),
            },
            '#' => (Some(TokenKind::Directive), end_of_line(rest)),
            '"' | '\'' => (Some(TokenKind::Quoted), end_of_literal(rest, first)),
            '0'..='9' => (Some(TokenKind::Number), end_of_number(rest)),
            _ if is_word(first) => (Some(TokenKind::Word), rest.find(|c| !is_word(c)).unwrap_or(rest.len())),
            _ => (Some(TokenKind::Symbol), first.len_utf8()),
        };
        let text = &rest[..length];
        tokens.extend(kind.map(|kind| Token { kind, text, line, offset }));
        line += text.matches('\n').count();
        offset += length;
    }
    Ok(tokens)
}

/// The index of the bracket that closes the one at `open`.
pub fn closing(tokens: &[Token<'_>], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return Some(index);
        }
    }
    None
}

/// The ranges of `tokens[range]` between commas outside brackets.
pub fn split_list(tokens: &[Token<'_>], range: Range<usize>) -> Vec<Range<usize>> {
    let (mut ranges, mut start, mut depth) = (Vec::new(), range.start, 0);
    for at in range.clone() {
        match tokens[at].text {
            "(" | "[" | "{" | "<" => depth += 1,
            ")" | "]" | "}" | ">" => depth -= 1,
            "," if depth == 0 => {
                ranges.push(start..at);
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < range.end {
        ranges.push(start..range.end);
    }
    ranges
}

/// Text after `// grid:`.
pub(crate) fn grid_text(comment: &str) -> Option<&str> {
    comment.strip_prefix("//")?.trim_start().strip_prefix("grid:")
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The end of the line; a backslash continues it.
fn end_of_line(text: &str) -> usize {
    let mut ends = text.match_indices('\n').map(|(at, _)| at);
    ends.find(|at| !text[..*at].ends_with('\\')).unwrap_or(text.len())
}

fn end_of_literal(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let mut characters = text.char_indices().skip(1);
    let end = characters.find(|(_, c)| {
        let ends = !escaped && (*c == quote || *c == '\n');
        escaped = *c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(at, c)| at + c.len_utf8())
}

/// `12u`, `0x7fu`, `1.5f`, `1e-5f`: a sign is part of a number only after its exponent's `e`.
fn end_of_number(text: &str) -> usize {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let mut previous = ' ';
    let end = text.find(|c: char| {
        let signed_exponent = matches!(c, '+' | '-') && matches!(previous, 'e' | 'E') && !hexadecimal;
        previous = c;
        !(c.is_ascii_alphanumeric() || c == '.' || signed_exponent)
    });
    end.unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let show = |token: &Token<'_>| format!("{:?}:{}:{}", token.kind, token.line, token.text);
        tokenize(text).map_or_else(
            |error| error.to_string(),
            |tokens| tokens.iter().map(show).collect::<Vec<_>>().join(" "),
        )
    }

    #[test]
    fn splits_source_into_tokens() {
        let cases = [
            ("uint4 x[2];", "Word:1:uint4 Word:1:x Symbol:1:[ Number:1:2 Symbol:1:] Symbol:1:;"),
            ("a\n// b c\nd", "Word:1:a Word:3:d"),
            ("a\n//grid: b\nd", "Word:1:a Grid:2://grid: b Word:3:d"),
            ("/* a\nb */ c /*/ */", "Word:2:c"),
            ("#pragma unroll\nx", "Directive:1:#pragma unroll Word:2:x"),
            ("#define A \\\n 1\nx", "Directive:1:#define A \\\n 1 Word:3:x"),
            ("1e-5f-2", "Number:1:1e-5f Symbol:1:- Number:1:2"),
            ("0xeu+1", "Number:1:0xeu Symbol:1:+ Number:1:1"),
            ("'\\'' \"a(\\\\\"b", "Quoted:1:'\\'' Quoted:1:\"a(\\\\\" Word:1:b"),
            ("a /* b", "line 1: unclosed comment, bracket or parenthesis"),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected, "{text}");
        }
    }
}
