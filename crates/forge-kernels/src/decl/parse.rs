//! Reads declarations out of tokens. Bodies of functions are passed over, but for the threadgroup arrays of kernels.

use super::token::{Kind, Token, tokenize};
use super::{Buffer, Builtin, DeclError, DeclFault, Expr, KernelDecl};

/// The launch builtins that kernels may use, and whether they are positions, which may be vectors.
const BUILTINS: [(&str, bool); 4] = [
    ("threadgroup_position_in_grid", true),
    ("thread_index_in_threadgroup", false),
    ("simdgroup_index_in_threadgroup", false),
    ("thread_index_in_simdgroup", false),
];

const THREADS: &str = "max_total_threads_per_threadgroup";

type Result<T> = std::result::Result<T, DeclError>;

/// Reads every kernel of a text.
pub(super) fn kernels(text: &str) -> Result<Vec<KernelDecl>> {
    let tokens = tokenize(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0 };
    let mut structs: Vec<Struct<'_>> = Vec::new();
    let mut kernels = Vec::new();
    // What stands directly above the next declaration.
    let mut grid: Option<Token<'_>> = None;
    let mut threads: Option<(u32, u32)> = None;
    while let Some(token) = parser.peek() {
        match (token.kind, token.text) {
            (Kind::Comment, text) => {
                if grid_text(text).is_some() {
                    grid = Some(token);
                }
                parser.at += 1;
            }
            (Kind::Symbol, "[") if parser.is_symbol(1, "[") => {
                if let Some(value) = parser.function_attribute()? {
                    threads = Some((value, token.line));
                }
            }
            (Kind::Word, "kernel") => {
                kernels.push(parser.kernel(&structs, grid.take(), threads.take())?);
            }
            (Kind::Word, "struct") => {
                structs.push(parser.structure()?);
                (grid, threads) = (None, None);
            }
            (Kind::Directive, _) => parser.at += 1,
            _ => {
                parser.pass_over()?;
                (grid, threads) = (None, None);
            }
        }
    }
    Ok(kernels)
}

/// What follows `// grid:`.
fn grid_text(comment: &str) -> Option<&str> {
    comment.strip_prefix("//")?.trim_start().strip_prefix("grid:")
}

struct Struct<'a> {
    name: &'a str,
    /// Type, name and line.
    fields: Vec<(&'a str, &'a str, u32)>,
}

struct Parser<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn is_symbol(&self, ahead: usize, symbol: &str) -> bool {
        let token = self.tokens.get(self.at + ahead);
        token.is_some_and(|token| token.kind == Kind::Symbol && token.text == symbol)
    }

    /// The line that a fault at this place is told to be on.
    fn line(&self) -> u32 {
        self.peek().or(self.tokens.last().copied()).map_or(1, |token| token.line)
    }

    fn expected<T>(&self, expected: &str) -> Result<T> {
        let found = self.peek().map_or("the end of the text".to_owned(), |token| format!("`{}`", token.text));
        let expected = expected.to_owned();
        Err(DeclError { line: self.line(), fault: DeclFault::Syntax { expected, found } })
    }

    fn word(&mut self, expected: &'static str) -> Result<Token<'a>> {
        match self.peek() {
            Some(token) if token.kind == Kind::Word => {
                self.at += 1;
                Ok(token)
            }
            _ => self.expected(expected),
        }
    }

    fn accept(&mut self, text: &str) -> bool {
        let accepted = self.peek().is_some_and(|token| token.text == text);
        self.at += usize::from(accepted);
        accepted
    }

    fn expect(&mut self, text: &'static str) -> Result<()> {
        if self.accept(text) { Ok(()) } else { self.expected(&format!("`{text}`")) }
    }

    fn number(&mut self, expected: &'static str) -> Result<u32> {
        match self.peek().filter(|token| token.kind == Kind::Number).and_then(|token| integer(token.text)) {
            Some(value) => {
                self.at += 1;
                Ok(value)
            }
            None => self.expected(expected),
        }
    }

    /// The tokens inside the brackets that open here; goes behind them.
    fn bracketed(&mut self) -> Result<&'a [Token<'a>]> {
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

    /// Goes behind a declaration that is of no interest: to its semicolon, or behind its braces.
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

    /// The threads that `[[...]]` states, if it does.
    fn function_attribute(&mut self) -> Result<Option<u32>> {
        let inside = self.bracketed()?;
        let mut inner = Parser { tokens: inside, at: 1 };
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
        let mut inner = Parser { tokens: self.bracketed()?, at: 0 };
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

    fn skip_comments(&mut self) {
        while self.peek().is_some_and(|token| token.kind == Kind::Comment) {
            self.at += 1;
        }
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
        let Signature { buffers, scalars, builtins } = signature(self.bracketed()?, name, line, structs)?;
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
        Ok(KernelDecl { name: kernel(), line, buffers, scalars, builtins, threads, threadgroup_bytes, grid })
    }
}

/// A literal integer, whatever its suffix.
fn integer(text: &str) -> Option<u32> {
    let text = text.trim_end_matches(['u', 'U', 'l', 'L']);
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

struct Signature {
    buffers: Vec<Buffer>,
    scalars: Vec<String>,
    builtins: Vec<Builtin>,
}

/// Reads what is between the parentheses of a kernel.
fn signature(tokens: &[Token<'_>], kernel: &str, line: u32, structs: &[Struct<'_>]) -> Result<Signature> {
    let mut parser = Parser { tokens, at: 0 };
    let (mut buffers, mut builtins) = (Vec::new(), Vec::new());
    let mut scalars: Option<Vec<String>> = None;
    parser.skip_comments();
    while parser.peek().is_some() {
        let constant_first = parser.accept("const");
        let line = parser.line();
        let fault = |fault| Err(DeclError { line, fault });
        let next = buffers.len() as u32 + u32::from(scalars.is_some());
        match parser.peek().map_or("", |token| token.text) {
            "device" => {
                let (element, constant) = parser.pointee("*")?;
                let name = parser.word("the name of a buffer")?.text.to_owned();
                let slot = parser.slot(&name)?;
                if slot != next {
                    return fault(DeclFault::Slot { name, slot, expected: next });
                }
                if scalars.is_some() {
                    return fault(DeclFault::AfterScalars { name });
                }
                buffers.push(Buffer { name, element, written: !(constant || constant_first), slot });
            }
            "constant" => {
                let (element, _) = parser.pointee("&")?;
                let name = parser.word("the name of the scalars")?.text.to_owned();
                let slot = parser.slot(&name)?;
                if slot != next {
                    return fault(DeclFault::Slot { name, slot, expected: next });
                }
                if scalars.is_some() {
                    return fault(DeclFault::AfterScalars { name });
                }
                scalars = Some(scalar_names(&element, kernel, line, structs)?);
            }
            _ => builtins.push(parser.builtin()?),
        }
        parser.skip_comments();
        if parser.peek().is_some() {
            parser.expect(",")?;
        }
        parser.skip_comments();
    }
    match scalars {
        Some(scalars) => Ok(Signature { buffers, scalars, builtins }),
        None => Err(DeclError { line, fault: DeclFault::NoScalars { kernel: kernel.to_owned() } }),
    }
}

fn scalar_names(name: &str, kernel: &str, line: u32, structs: &[Struct<'_>]) -> Result<Vec<String>> {
    let Some(structure) = structs.iter().find(|structure| structure.name == name) else {
        let fault = DeclFault::NoStruct { kernel: kernel.to_owned(), name: name.to_owned() };
        return Err(DeclError { line, fault });
    };
    let scalar = |&(element, name, line): &(&str, &str, u32)| match element {
        "uint" => Ok(name.to_owned()),
        _ => Err(DeclError { line, fault: DeclFault::Scalar { name: name.into(), element: element.into() } }),
    };
    structure.fields.iter().map(scalar).collect()
}

impl Parser<'_> {
    /// `device const float*`: the element, and whether it is constant.
    fn pointee(&mut self, sign: &'static str) -> Result<(String, bool)> {
        self.at += 1;
        let constant = self.accept("const");
        let element = self.word("the type of a buffer's elements")?.text.to_owned();
        self.expect(sign)?;
        Ok((element, constant))
    }

    fn attribute(&mut self, name: &str) -> Result<()> {
        if !(self.is_symbol(0, "[") && self.is_symbol(1, "[")) {
            return Err(DeclError {
                line: self.line(),
                fault: DeclFault::NoAttribute { name: name.to_owned() },
            });
        }
        self.at += 2;
        Ok(())
    }

    fn slot(&mut self, name: &str) -> Result<u32> {
        self.attribute(name)?;
        self.expect("buffer")?;
        self.expect("(")?;
        let slot = self.number("the number of a slot")?;
        self.expect(")")?;
        self.expect("]")?;
        self.expect("]")?;
        Ok(slot)
    }

    fn builtin(&mut self) -> Result<Builtin> {
        let line = self.line();
        let element = self.word("a parameter's type")?.text.to_owned();
        let name = self.word("a parameter's name")?.text.to_owned();
        self.attribute(&name)?;
        let attribute = self.word("an attribute")?.text.to_owned();
        let Some(&(_, is_position)) = BUILTINS.iter().find(|(known, _)| *known == attribute) else {
            let known = BUILTINS.map(|(known, _)| known).join(", ");
            return Err(DeclError { line, fault: DeclFault::Builtin { attribute, known } });
        };
        let (fits, must) = if is_position {
            (matches!(element.as_str(), "uint" | "uint2" | "uint3"), "a uint, uint2 or uint3")
        } else {
            (element == "uint", "a uint")
        };
        if !fits {
            return Err(DeclError { line, fault: DeclFault::BuiltinType { name, element, attribute, must } });
        }
        self.expect("]")?;
        self.expect("]")?;
        Ok(Builtin { name, element, attribute })
    }
}

/// Reads `// grid: x, y, z`; what is left out is 1.
fn parse_grid(comment: &Token<'_>) -> Result<[Expr; 3]> {
    let moved = |error: DeclError| DeclError { line: comment.line, ..error };
    let tokens = tokenize(grid_text(comment.text).unwrap_or_default()).map_err(moved)?;
    let mut parser = Parser { tokens: &tokens, at: 0 };
    let mut dimensions = vec![parser.sum().map_err(moved)?];
    while parser.accept(",") {
        dimensions.push(parser.sum().map_err(moved)?);
    }
    if parser.peek().is_some() {
        return parser.expected("`+`, `*` or `,`").map_err(moved);
    }
    let count = dimensions.len();
    dimensions.resize(count.max(3), Expr::Literal(1));
    <[Expr; 3]>::try_from(dimensions)
        .map_err(|_| DeclError { line: comment.line, fault: DeclFault::GridDimensions { count } })
}

impl Parser<'_> {
    fn sum(&mut self) -> Result<Expr> {
        let mut sum = self.product()?;
        while self.accept("+") {
            let right = self.product()?;
            sum = self.value(Expr::add(sum, right))?;
        }
        Ok(sum)
    }

    fn product(&mut self) -> Result<Expr> {
        let mut product = self.factor()?;
        while self.accept("*") {
            let right = self.factor()?;
            product = self.value(Expr::multiply(product, right))?;
        }
        Ok(product)
    }

    fn factor(&mut self) -> Result<Expr> {
        if self.accept("(") {
            let inside = self.sum()?;
            self.expect(")")?;
            return Ok(inside);
        }
        if self.is_symbol(1, "(") && self.accept("ceil") {
            self.expect("(")?;
            let left = self.sum()?;
            self.expect("/")?;
            let right = self.sum()?;
            self.expect(")")?;
            return self.value(Expr::ceil_divide(left, right));
        }
        if self.peek().is_some_and(|token| token.kind == Kind::Number) {
            return self.number("an integer").map(Expr::Literal);
        }
        let scalar = self.word("a number, a scalar, `ceil(a / b)` or parentheses")?;
        Ok(Expr::Scalar(scalar.text.to_owned()))
    }

    fn value(&self, folded: Option<Expr>) -> Result<Expr> {
        folded.ok_or(DeclError { line: self.line(), fault: DeclFault::GridValue })
    }
}

/// Adds up the threadgroup arrays that a kernel's body declares, each rounded up to 16 bytes.
fn threadgroup_bytes(body: &[Token<'_>]) -> Result<u64> {
    let mut bytes = 0_u64;
    for (at, token) in body.iter().enumerate() {
        let [_, element, name, next, ..] = &body[at..] else { break };
        // A pointer's type has an asterisk where an array has its name.
        let declares = token.text == "threadgroup"
            && element.kind == Kind::Word
            && name.kind == Kind::Word
            && matches!(next.text, "[" | ";");
        if !declares {
            continue;
        }
        let fault = |fault| DeclError { line: token.line, fault };
        let name = name.text.to_owned();
        let Some(size) = element_bytes(element.text) else {
            return Err(fault(DeclFault::ArrayElement { name, element: element.text.to_owned() }));
        };
        let mut parser = Parser { tokens: body, at: at + 3 };
        let mut count = Some(1_u64);
        while parser.is_symbol(0, "[") {
            let length = array_length(parser.bracketed()?);
            count = count.and_then(|count| count.checked_mul(length?));
        }
        let Some(size) = count.and_then(|count| count.checked_mul(size)) else {
            return Err(fault(DeclFault::ArraySize { name }));
        };
        bytes = bytes.saturating_add(size.next_multiple_of(16));
    }
    Ok(bytes)
}

/// The value of an array's length: integers, `+` and `*`.
fn array_length(tokens: &[Token<'_>]) -> Option<u64> {
    let mut parser = Parser { tokens, at: 0 };
    let length = parser.sum().ok()?;
    if parser.peek().is_some() {
        return None;
    }
    length.eval(&[]).map(u64::from)
}

/// Bytes of a scalar or vector type.
fn element_bytes(element: &str) -> Option<u64> {
    let digits = element.len() - element.trim_end_matches(['2', '3', '4']).len();
    let (scalar, lanes) = element.split_at(element.len() - digits);
    let bytes = match scalar {
        "bool" | "char" | "uchar" => 1,
        "short" | "ushort" | "half" | "bfloat" => 2,
        "int" | "uint" | "float" => 4,
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
