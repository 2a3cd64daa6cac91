//! Functions of a source, and the names that a source calls.

use crate::token::{Token, TokenKind, closing};
use std::collections::BTreeSet;
use std::ops::Range;

/// A function with a body.
pub struct Function<'a> {
    /// Its name.
    pub name: &'a str,
    /// Byte range of its body, braces included.
    pub body: Range<usize>,
}

/// The functions that a source defines, kernels included.
pub fn functions<'a>(tokens: &[Token<'a>]) -> Vec<Function<'a>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        // A word, parentheses and a brace, outside all other brackets.
        let end = match tokens[at].text {
            "(" | "[" | "{" => closing(tokens, at).unwrap_or(at),
            _ => at,
        };
        let name = at.checked_sub(1).map(|before| tokens[before]).filter(|_| tokens[at].is("("));
        let body = end + 1;
        if let Some(name) = name.filter(|name| name.kind == TokenKind::Word)
            && tokens.get(body).is_some_and(|token| token.is("{"))
            && let Some(close) = closing(tokens, body)
        {
            found.push(Function { name: name.text, body: tokens[body].offset..tokens[close].end() });
        }
        at = end + 1;
    }
    found
}

/// The words before an opening parenthesis: names of called functions, and of those that the source defines.
pub fn called_names<'a>(tokens: &[Token<'a>]) -> BTreeSet<&'a str> {
    let calls = tokens.windows(2).filter(|pair| pair[0].kind == TokenKind::Word && pair[1].is("("));
    calls.map(|pair| pair[0].text).collect()
}
