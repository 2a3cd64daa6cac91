//! Finds kernels in a source, with the grid and attributes directly above them. Other declarations are
//! skipped.

use crate::cursor::Cursor;
use crate::error::{DeclError, DeclFault, Result};
use crate::signature::Signature;
use crate::token::{Token, TokenKind};

const THREADS: &str = "max_total_threads_per_threadgroup";

/// Name of a struct, and the tokens inside its braces.
pub(crate) type Struct<'a> = (&'a str, &'a [Token<'a>]);

/// The kernels and structs of a source.
#[derive(Default)]
pub(crate) struct Source<'a> {
    pub(crate) kernels: Vec<ParsedKernel<'a>>,
    pub(crate) structs: Vec<Struct<'a>>,
}

/// A kernel with the parts that only its declaration uses.
pub(crate) struct ParsedKernel<'a> {
    pub(crate) signature: Signature,
    /// Line of the attribute with the number of threads.
    pub(crate) threads_line: usize,
    /// The comment `// grid:`.
    pub(crate) grid: Option<Token<'a>>,
    /// Tokens inside the braces of the body.
    pub(crate) body: &'a [Token<'a>],
}

/// The comment and the attributes directly above a declaration.
#[derive(Default)]
struct Annotations<'a> {
    grid: Option<Token<'a>>,
    /// Number of threads, and the line of its attribute.
    threads: Option<(u32, usize)>,
    /// Offset of the first attribute.
    start: Option<usize>,
}

impl<'a> Source<'a> {
    /// Parses the kernels of a source.
    pub(crate) fn parse(tokens: &'a [Token<'a>]) -> Result<Source<'a>> {
        let mut cursor = Cursor::new(tokens);
        let mut source = Source::default();
        let mut above = Annotations::default();
        while let Some(token) = cursor.peek() {
            match (token.kind, token.text) {
                (TokenKind::Grid, _) => {
                    above.grid = Some(token);
                    cursor.at += 1;
                }
                (TokenKind::Directive, _) => cursor.at += 1,
                (_, "[") if cursor.is(1, "[") => {
                    above.start.get_or_insert(token.offset);
                    let threads = cursor.threads()?.map(|threads| (threads, token.line));
                    above.threads = threads.or(above.threads);
                }
                (_, "kernel") => source.kernels.push(cursor.kernel(std::mem::take(&mut above))?),
                (_, "struct") if cursor.is(2, "{") => {
                    let name = tokens[cursor.at + 1].text;
                    cursor.at += 2;
                    source.structs.push((name, cursor.bracketed("{")?));
                }
                _ => {
                    cursor.skip_declaration()?;
                    above = Annotations::default();
                }
            }
        }
        Ok(source)
    }
}

impl<'a> Cursor<'a> {
    /// Skips a declaration: moves behind its semicolon or its braces.
    fn skip_declaration(&mut self) -> Result<()> {
        while let Some(token) = self.peek() {
            match token.text {
                "{" => {
                    self.bracketed("{")?;
                    if !self.is(0, ";") {
                        return Ok(());
                    }
                }
                "(" | "[" => _ = self.bracketed(token.text)?,
                _ => {
                    self.at += 1;
                    if token.is(";") {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Number of threads in a `[[...]]` attribute, if it is that attribute.
    fn threads(&mut self) -> Result<Option<u32>> {
        let mut inner = Cursor::new(self.bracketed("[")?);
        inner.at = 1;
        if !inner.accept(THREADS) {
            return Ok(None);
        }
        inner.expect("(")?;
        inner.number("a number of threads").map(Some)
    }

    fn kernel(&mut self, above: Annotations<'a>) -> Result<ParsedKernel<'a>> {
        let start = above.start.unwrap_or(self.tokens[self.at].offset);
        self.expect("kernel")?;
        self.expect("void")?;
        let Token { text: name, line, .. } = self.word("the name of a kernel")?;
        let mut signature = Signature {
            name: name.to_owned(),
            line,
            threads: above.threads.map(|(threads, _)| threads),
            buffers: Vec::new(),
            scalars: None,
            builtins: Vec::new(),
            range: 0..0,
            body: 0..0,
        };
        let mut parameters = Cursor::new(self.bracketed("(")?);
        while parameters.peek().is_some() {
            parameters.parameter(&mut signature)?;
            if parameters.peek().is_some() {
                parameters.expect(",")?;
            }
        }
        let slots = signature.buffers.len() + usize::from(signature.scalars.is_some());
        if slots > Signature::MOST_SLOTS {
            let fault = DeclFault::Slots { kernel: name.to_owned(), slots };
            return Err(DeclError { line, fault });
        }
        let open = self.peek().map_or(0, |token| token.offset);
        let body = self.bracketed("{")?;
        let end = self.tokens[self.at - 1].end();
        (signature.range, signature.body) = (start..end, open..end);
        let threads_line = above.threads.map_or(line, |(_, line)| line);
        Ok(ParsedKernel { signature, threads_line, grid: above.grid, body })
    }
}
