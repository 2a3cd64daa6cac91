//! Metal lexer. Tokens have line numbers. Comments are tokens, since `// grid:` is part of a declaration.

use crate::decl::{DeclError, DeclFault};

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name or a keyword.
    Word,
    /// A number literal with its suffix.
    Number,
    /// One punctuation character.
    Symbol,
    /// `// ...` to the end of the line, or `/* ... */`.
    Comment,
    /// `#...` to the end of the line.
    Directive,
}

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    /// Line number, from 1.
    pub(crate) line: u32,
    /// Byte offset in the source.
    pub(crate) offset: usize,
}

/// Splits a source into tokens.
pub(crate) fn tokenize(text: &str) -> Result<Vec<Token<'_>>, DeclError> {
    let mut tokens = Vec::new();
    let mut offset = 0;
    let mut line = 1;
    while let Some(first) = text[offset..].chars().next() {
        let rest = &text[offset..];
        let line_end = rest.find('\n').unwrap_or(rest.len());
        let (kind, length) = if first.is_whitespace() {
            line += u32::from(first == '\n');
            offset += first.len_utf8();
            continue;
        } else if rest.starts_with("//") {
            (Kind::Comment, line_end)
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").ok_or(DeclError { line, fault: DeclFault::Unclosed })?;
            (Kind::Comment, end + 2)
        } else if first == '#' {
            (Kind::Directive, line_end)
        } else if first.is_alphabetic() || first == '_' {
            (Kind::Word, end_of(rest, |c| c.is_alphanumeric() || c == '_'))
        } else if first.is_ascii_digit() {
            (Kind::Number, end_of_number(rest))
        } else {
            (Kind::Symbol, first.len_utf8())
        };
        let token = Token { kind, text: &rest[..length], line, offset };
        line += token.text.matches('\n').count() as u32;
        offset += length;
        tokens.push(token);
    }
    Ok(tokens)
}

fn end_of(text: &str, within: impl Fn(char) -> bool) -> usize {
    text.find(|c| !within(c)).unwrap_or(text.len())
}

/// `12u`, `0x7fu`, `1.5f`, `1e-5f`: a sign is part of a number only after its exponent's `e`.
fn end_of_number(text: &str) -> usize {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let mut end = 0;
    let mut previous = ' ';
    for c in text.chars() {
        let signed_exponent = matches!(c, '+' | '-') && matches!(previous, 'e' | 'E') && !hexadecimal;
        if !(c.is_ascii_alphanumeric() || c == '.' || signed_exponent) {
            break;
        }
        end += c.len_utf8();
        previous = c;
    }
    end
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
            ("a\n// b c\nd", "Word:1:a Comment:2:// b c Word:3:d"),
            ("/* a\nb */ c", "Comment:1:/* a\nb */ Word:2:c"),
            ("#pragma unroll\nx", "Directive:1:#pragma unroll Word:2:x"),
            ("1e-5f-2", "Number:1:1e-5f Symbol:1:- Number:1:2"),
            ("0xeu+1", "Number:1:0xeu Symbol:1:+ Number:1:1"),
            ("a /* b", "line 1: unclosed comment, bracket or parenthesis"),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected, "{text}");
        }
    }
}
