//! Tokenizer of Metal source, for the signature parser, the rewriter and the mutation tests. Comments are skipped; a
//! preprocessor directive is one token.

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// A name or a keyword.
    Word,
    /// A number.
    Number,
    /// Any other single character.
    Symbol,
    /// A string or character literal.
    Quoted,
    /// `#` and the rest of its line, with continuations.
    Directive,
}

/// One token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'t> {
    /// Kind of the token.
    pub sort: Sort,
    /// Its characters.
    pub text: &'t str,
    /// Offset of the first byte.
    pub start: usize,
    /// Line, from 1.
    pub line: usize,
}

impl Token<'_> {
    /// Offset after the last byte.
    pub(crate) fn end(&self) -> usize {
        self.start + self.text.len()
    }

    /// Whether the token is this text.
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text
    }
}

/// All tokens of `text`, in order.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let start = at;
        let first = bytes[at];
        let sort = match first {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            _ if first.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = end_of_line(bytes, at);
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = text[at + 2..].find("*/").map_or(bytes.len(), |length| at + 2 + length + 2);
                line += count_lines(&bytes[at..end]);
                at = end;
                continue;
            }
            b'#' => {
                at = end_of_line(bytes, at);
                Sort::Directive
            }
            b'"' | b'\'' => {
                at += 1;
                while at < bytes.len() && bytes[at] != first && bytes[at] != b'\n' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(bytes.len());
                Sort::Quoted
            }
            _ if is_word(first) && !first.is_ascii_digit() => {
                at = skip(bytes, at, is_word);
                Sort::Word
            }
            _ if first.is_ascii_digit() => {
                at = end_of_number(bytes, at);
                Sort::Number
            }
            _ => {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
                Sort::Symbol
            }
        };
        found.push(Token { sort, text: &text[start..at], start, line });
        line += count_lines(&bytes[start..at]);
    }
    found
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn skip(bytes: &[u8], from: usize, wanted: impl Fn(u8) -> bool) -> usize {
    from + bytes[from..].iter().take_while(|byte| wanted(**byte)).count()
}

fn count_lines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// The end of a line; a backslash continues it.
fn end_of_line(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while at < bytes.len() && (bytes[at] != b'\n' || bytes[at - 1] == b'\\') {
        at += 1;
    }
    at
}

fn end_of_number(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    let hexadecimal = bytes[from] == b'0' && matches!(bytes.get(from + 1), Some(b'x' | b'X'));
    while at < bytes.len() {
        let sign_of_exponent =
            !hexadecimal && matches!(bytes[at], b'+' | b'-') && matches!(bytes[at - 1], b'e' | b'E');
        if !is_word(bytes[at]) && bytes[at] != b'.' && !sign_of_exponent {
            break;
        }
        at += 1;
    }
    at
}

/// The index of the bracket that closes the one at `open`.
pub(crate) fn closing(tokens: &[Token<'_>], open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(index);
                }
            }
            _ => {}
        }
    }
    None
}

/// Replaces ranges of `text`. The ranges are sorted and disjoint.
pub(crate) fn edit(text: &str, edits: &[(std::ops::Range<usize>, String)]) -> String {
    let mut edited = String::with_capacity(text.len());
    let mut at = 0;
    for (range, replacement) in edits {
        edited.push_str(&text[at..range.start]);
        edited.push_str(replacement);
        at = range.end;
    }
    edited.push_str(&text[at..]);
    edited
}

/// The line breaks of `text`, as a replacement of it that preserves line numbers.
pub(crate) fn blank(text: &str) -> String {
    "\n".repeat(count_lines(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_carry_their_line() {
        let text = "#define A \\\n 1\nfloat x = 1.5e-3f; // no\n/* a\nb */ y[0x1e+2];";
        let found: Vec<(&str, usize)> = tokens(text).iter().map(|token| (token.text, token.line)).collect();
        let expected = [
            ("#define A \\\n 1", 1),
            ("float", 3),
            ("x", 3),
            ("=", 3),
            ("1.5e-3f", 3),
            (";", 3),
            ("y", 5),
            ("[", 5),
            ("0x1e", 5),
            ("+", 5),
            ("2", 5),
            ("]", 5),
            (";", 5),
        ];
        assert_eq!(found, expected);
    }
}
