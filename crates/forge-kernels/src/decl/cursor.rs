//! Token cursor with the basic steps of all parsers.

use crate::decl::token::{Kind, Token};
use crate::decl::{DeclError, DeclFault};

pub(crate) type Result<T> = std::result::Result<T, DeclError>;

/// Reads tokens from first to last.
pub(crate) struct Cursor<'a> {
    pub(crate) tokens: &'a [Token<'a>],
    pub(crate) at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    pub(crate) fn is_symbol(&self, ahead: usize, symbol: &str) -> bool {
        let token = self.tokens.get(self.at + ahead);
        token.is_some_and(|token| token.kind == Kind::Symbol && token.text == symbol)
    }

    /// Line number for errors at this position.
    pub(crate) fn line(&self) -> u32 {
        self.peek().or(self.tokens.last().copied()).map_or(1, |token| token.line)
    }

    pub(crate) fn expected<T>(&self, expected: &str) -> Result<T> {
        let found = self.peek().map_or("the end of the text".to_owned(), |token| format!("`{}`", token.text));
        let expected = expected.to_owned();
        Err(DeclError { line: self.line(), fault: DeclFault::Syntax { expected, found } })
    }

    pub(crate) fn word(&mut self, expected: &'static str) -> Result<Token<'a>> {
        match self.peek() {
            Some(token) if token.kind == Kind::Word => {
                self.at += 1;
                Ok(token)
            }
            _ => self.expected(expected),
        }
    }

    pub(crate) fn accept(&mut self, text: &str) -> bool {
        let accepted = self.peek().is_some_and(|token| token.text == text);
        self.at += usize::from(accepted);
        accepted
    }

    pub(crate) fn expect(&mut self, text: &'static str) -> Result<()> {
        if self.accept(text) { Ok(()) } else { self.expected(&format!("`{text}`")) }
    }

    pub(crate) fn number(&mut self, expected: &'static str) -> Result<u32> {
        match self.peek().filter(|token| token.kind == Kind::Number).and_then(|token| integer(token.text)) {
            Some(value) => {
                self.at += 1;
                Ok(value)
            }
            None => self.expected(expected),
        }
    }

    /// The tokens inside the bracket that opens here. Moves behind the closing one.
    pub(crate) fn bracketed(&mut self) -> Result<&'a [Token<'a>]> {
        let opening = self.line();
        let start = self.at + 1;
        let mut depth = 0_usize;
        while let Some(token) = self.peek() {
            self.at += 1;
            if token.kind != Kind::Symbol {
                continue;
            }
            match token.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return Ok(&self.tokens[start..self.at - 1]);
            }
        }
        Err(DeclError { line: opening, fault: DeclFault::Unclosed })
    }

    pub(crate) fn skip_comments(&mut self) {
        while self.peek().is_some_and(|token| token.kind == Kind::Comment) {
            self.at += 1;
        }
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
