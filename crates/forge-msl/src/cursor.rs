//! Token cursor with the basic steps of all parsers.

use crate::error::{DeclError, DeclFault, Result};
use crate::token::{Token, TokenKind, closing};

/// Reads tokens from first to last.
pub(crate) struct Cursor<'a> {
    pub(crate) tokens: &'a [Token<'a>],
    pub(crate) at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(tokens: &'a [Token<'a>]) -> Cursor<'a> {
        Cursor { tokens, at: 0 }
    }

    pub(crate) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    /// Whether the token that is `ahead` tokens from here has this text.
    pub(crate) fn is(&self, ahead: usize, text: &str) -> bool {
        self.tokens.get(self.at + ahead).is_some_and(|token| token.is(text))
    }

    /// Line number for errors at this position.
    pub(crate) fn line(&self) -> usize {
        self.peek().or(self.tokens.last().copied()).map_or(1, |token| token.line)
    }

    pub(crate) fn expected<T>(&self, expected: &str) -> Result<T> {
        let found = self.peek().map_or("the end of the text".to_owned(), |token| format!("`{}`", token.text));
        let expected = expected.to_owned();
        Err(DeclError { line: self.line(), fault: DeclFault::Syntax { expected, found } })
    }

    pub(crate) fn word(&mut self, expected: &'static str) -> Result<Token<'a>> {
        match self.peek() {
            Some(token) if token.kind == TokenKind::Word => {
                self.at += 1;
                Ok(token)
            }
            _ => self.expected(expected),
        }
    }

    pub(crate) fn accept(&mut self, text: &str) -> bool {
        let accepted = self.is(0, text);
        self.at += usize::from(accepted);
        accepted
    }

    pub(crate) fn expect(&mut self, text: &'static str) -> Result<()> {
        if self.accept(text) { Ok(()) } else { self.expected(&format!("`{text}`")) }
    }

    pub(crate) fn number(&mut self, expected: &'static str) -> Result<u32> {
        match self
            .peek()
            .filter(|token| token.kind == TokenKind::Number)
            .and_then(|token| integer(token.text))
        {
            Some(value) => {
                self.at += 1;
                Ok(value)
            }
            None => self.expected(expected),
        }
    }

    /// The tokens inside the bracket that opens here. Moves behind the closing one.
    pub(crate) fn bracketed(&mut self, open: &str) -> Result<&'a [Token<'a>]> {
        if !self.is(0, open) {
            return self.expected(&format!("`{open}`"));
        }
        let unclosed = DeclError { line: self.line(), fault: DeclFault::Unclosed };
        let end = closing(self.tokens, self.at).ok_or(unclosed)?;
        let inside = &self.tokens[self.at + 1..end];
        self.at = end + 1;
        Ok(inside)
    }
}

/// Value of an integer literal, with any suffix.
fn integer(text: &str) -> Option<u32> {
    let text = text.trim_end_matches(['u', 'U', 'l', 'L']);
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
