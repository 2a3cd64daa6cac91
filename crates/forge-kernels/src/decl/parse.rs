//! Finds kernels in a source, with the grid and attributes directly above them. Other declarations are
//! skipped.

use crate::decl::cursor::{Cursor, Result};
use crate::decl::grid::Expr;
use crate::decl::grid::{grid_text, parse_grid};
use crate::decl::memory::threadgroup_bytes;
use crate::decl::signature::{Signature, signature};
use crate::decl::token::{Kind, Token, tokenize};
use crate::decl::{DeclError, DeclFault, KernelDecl};

const THREADS: &str = "max_total_threads_per_threadgroup";

/// Parses every kernel of a source.
pub(crate) fn kernels(text: &str) -> Result<Vec<KernelDecl>> {
    let tokens = tokenize(text)?;
    let mut cursor = Cursor { tokens: &tokens, at: 0 };
    let mut structs: Vec<Struct<'_>> = Vec::new();
    let mut kernels = Vec::new();
    // Grid and threads directly above the next declaration.
    let mut grid: Option<Token<'_>> = None;
    let mut threads: Option<(u32, u32)> = None;
    while let Some(token) = cursor.peek() {
        match (token.kind, token.text) {
            (Kind::Comment, text) => {
                if grid_text(text).is_some() {
                    grid = Some(token);
                }
                cursor.at += 1;
            }
            (Kind::Symbol, "[") if cursor.is_symbol(1, "[") => {
                if let Some(value) = cursor.function_attribute()? {
                    threads = Some((value, token.line));
                }
            }
            (Kind::Word, "kernel") => {
                kernels.push(cursor.kernel(&structs, grid.take(), threads.take())?);
            }
            (Kind::Word, "struct") => {
                structs.push(cursor.structure()?);
                (grid, threads) = (None, None);
            }
            (Kind::Directive, _) => cursor.at += 1,
            _ => {
                cursor.pass_over()?;
                (grid, threads) = (None, None);
            }
        }
    }
    Ok(kernels)
}

/// A struct that may contain a kernel's scalars.
pub(crate) struct Struct<'a> {
    pub(crate) name: &'a str,
    /// Type, name and line of each field.
    pub(crate) fields: Vec<(&'a str, &'a str, u32)>,
}

impl<'a> Cursor<'a> {
    /// Skips a declaration: moves behind its semicolon or its braces.
    fn pass_over(&mut self) -> Result<()> {
        while let Some(token) = self.peek() {
            match token.text {
                ";" => {
                    self.at += 1;
                    return Ok(());
                }
                "{" => {
                    self.bracketed()?;
                    if !self.is_symbol(0, ";") {
                        return Ok(());
                    }
                }
                "(" | "[" => {
                    self.bracketed()?;
                }
                _ => self.at += 1,
            }
        }
        Ok(())
    }

    /// Number of threads in a `[[...]]` attribute, if it is that attribute.
    fn function_attribute(&mut self) -> Result<Option<u32>> {
        let inside = self.bracketed()?;
        let mut inner = Cursor { tokens: inside, at: 1 };
        if !inner.accept(THREADS) {
            return Ok(None);
        }
        inner.expect("(")?;
        inner.number("a number of threads").map(Some)
    }

    fn structure(&mut self) -> Result<Struct<'a>> {
        self.expect("struct")?;
        let name = self.word("the name of a struct")?.text;
        if !self.is_symbol(0, "{") {
            return self.expected("`{`");
        }
        let mut fields = Vec::new();
        let mut inner = Cursor { tokens: self.bracketed()?, at: 0 };
        inner.skip_comments();
        while inner.peek().is_some() {
            let element = inner.word("the type of a field")?;
            let field = inner.word("the name of a field")?;
            inner.expect(";")?;
            inner.skip_comments();
            fields.push((element.text, field.text, element.line));
        }
        self.expect(";")?;
        Ok(Struct { name, fields })
    }

    fn kernel(
        &mut self,
        structs: &[Struct<'a>],
        grid: Option<Token<'a>>,
        threads: Option<(u32, u32)>,
    ) -> Result<KernelDecl> {
        self.expect("kernel")?;
        self.expect("void")?;
        let Token { text: name, line, .. } = self.word("the name of a kernel")?;
        let kernel = || name.to_owned();
        let fault = |line, fault| Err(DeclError { line, fault });

        let Some((threads, threads_line)) = threads else {
            return fault(line, DeclFault::NoThreads { kernel: kernel() });
        };
        if threads == 0 || !threads.is_multiple_of(32) || threads > KernelDecl::MOST_THREADS {
            return fault(threads_line, DeclFault::Threads { kernel: kernel(), threads });
        }

        if !self.is_symbol(0, "(") {
            return self.expected("`(`");
        }
        let Signature { buffers, scalars, scalars_type, builtins } =
            signature(self.bracketed()?, name, line, structs)?;
        if buffers.len() + 1 > KernelDecl::MOST_SLOTS {
            return fault(line, DeclFault::Slots { kernel: kernel(), slots: buffers.len() + 1 });
        }

        let Some(comment) = grid else {
            return fault(line, DeclFault::NoGrid { kernel: kernel() });
        };
        let grid = parse_grid(&comment)?;
        for unknown in grid.iter().flat_map(Expr::scalars) {
            if !scalars.iter().any(|scalar| scalar == unknown) {
                let unknown = DeclFault::GridScalar { kernel: kernel(), name: unknown.to_owned() };
                return fault(comment.line, unknown);
            }
        }

        if !self.is_symbol(0, "{") {
            return self.expected("`{`");
        }
        let bytes = threadgroup_bytes(self.bracketed()?)?;
        if bytes > u64::from(KernelDecl::MOST_THREADGROUP_BYTES) {
            return fault(line, DeclFault::ThreadgroupMemory { kernel: kernel(), bytes });
        }
        let threadgroup_bytes = bytes as u32;
        let name = kernel();
        Ok(KernelDecl {
            name,
            line,
            buffers,
            scalars,
            scalars_type,
            builtins,
            threads,
            threadgroup_bytes,
            grid,
        })
    }
}
