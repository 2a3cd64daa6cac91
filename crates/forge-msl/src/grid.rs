//! Launch geometry: integer expressions of scalars. The planner evaluates them, and the code generator prints
//! them as Rust.

use std::fmt;

use crate::cursor::Cursor;
use crate::error::{DeclError, DeclFault, Result};
use crate::token::{Token, TokenKind, grid_text, tokenize};

/// Threadgroups along one axis, in terms of a kernel's scalars. Constant subexpressions are folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// An integer.
    Literal(u32),
    /// A scalar of the kernel.
    Scalar(String),
    /// A sum.
    Add(Box<Expr>, Box<Expr>),
    /// A product.
    Multiply(Box<Expr>, Box<Expr>),
    /// A quotient, rounded up.
    CeilDivide(Box<Expr>, Box<Expr>),
}

impl Expr {
    fn add(left: Expr, right: Expr) -> Option<Expr> {
        Expr::Add(Box::new(left), Box::new(right)).folded()
    }

    fn multiply(left: Expr, right: Expr) -> Option<Expr> {
        Expr::Multiply(Box::new(left), Box::new(right)).folded()
    }

    fn ceil_divide(left: Expr, right: Expr) -> Option<Expr> {
        if right == Expr::Literal(0) {
            return None;
        }
        Expr::CeilDivide(Box::new(left), Box::new(right)).folded()
    }

    /// The literal value if it contains no scalar; `None` if evaluation fails.
    fn folded(self) -> Option<Expr> {
        if self.scalars().is_empty() { self.eval(&[]).map(Expr::Literal) } else { Some(self) }
    }

    /// Value for named scalars. `None` if a scalar is missing, a divisor is zero or the result exceeds 32
    /// bits.
    pub fn eval(&self, scalars: &[(&str, u32)]) -> Option<u32> {
        match self {
            Expr::Literal(value) => Some(*value),
            Expr::Scalar(name) => scalars.iter().find(|(given, _)| given == name).map(|&(_, value)| value),
            Expr::Add(left, right) => left.eval(scalars)?.checked_add(right.eval(scalars)?),
            Expr::Multiply(left, right) => left.eval(scalars)?.checked_mul(right.eval(scalars)?),
            Expr::CeilDivide(left, right) => {
                let (left, right) = (left.eval(scalars)?, right.eval(scalars)?);
                (right != 0).then(|| left.div_ceil(right))
            }
        }
    }

    /// Scalars in order of appearance, with repetitions.
    pub fn scalars(&self) -> Vec<&str> {
        match self {
            Expr::Literal(_) => Vec::new(),
            Expr::Scalar(name) => vec![name],
            Expr::Add(left, right) | Expr::Multiply(left, right) | Expr::CeilDivide(left, right) => {
                let mut names = left.scalars();
                names.extend(right.scalars());
                names
            }
        }
    }

    /// Operator precedence in Rust.
    fn precedence(&self) -> u8 {
        match self {
            Expr::Add(..) => 0,
            Expr::Multiply(..) => 1,
            Expr::Literal(_) | Expr::Scalar(_) | Expr::CeilDivide(..) => 2,
        }
    }

    fn print(&self, f: &mut fmt::Formatter<'_>, at_least: u8) -> fmt::Result {
        if self.precedence() < at_least {
            return write!(f, "({self})");
        }
        write!(f, "{self}")
    }
}

/// Rust source; scalars are variables of type `u32`.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Literal(value) => write!(f, "{value}"),
            Expr::Scalar(name) => f.write_str(name),
            Expr::Add(left, right) => {
                left.print(f, 0)?;
                f.write_str(" + ")?;
                right.print(f, 1)
            }
            Expr::Multiply(left, right) => {
                left.print(f, 1)?;
                f.write_str(" * ")?;
                right.print(f, 2)
            }
            Expr::CeilDivide(left, right) => {
                // A method call on a literal needs its type.
                match left.as_ref() {
                    Expr::Literal(value) => write!(f, "{value}_u32")?,
                    left => left.print(f, 2)?,
                }
                write!(f, ".div_ceil({right})")
            }
        }
    }
}

/// Parses `// grid: x, y, z`. Missing dimensions are 1.
pub(crate) fn parse_grid(comment: &Token<'_>) -> Result<[Expr; 3]> {
    let moved = |error: DeclError| DeclError { line: comment.line, ..error };
    let tokens = tokenize(grid_text(comment.text).unwrap_or_default()).map_err(moved)?;
    let mut cursor = Cursor::new(&tokens);
    let mut dimensions = vec![cursor.sum().map_err(moved)?];
    while cursor.accept(",") {
        dimensions.push(cursor.sum().map_err(moved)?);
    }
    if cursor.peek().is_some() {
        return cursor.expected("`+`, `*` or `,`").map_err(moved);
    }
    let count = dimensions.len();
    dimensions.resize(count.max(3), Expr::Literal(1));
    <[Expr; 3]>::try_from(dimensions)
        .map_err(|_| DeclError { line: comment.line, fault: DeclFault::GridDimensions { count } })
}

impl Cursor<'_> {
    pub(crate) fn sum(&mut self) -> Result<Expr> {
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
        if self.is(1, "(") && self.accept("ceil") {
            self.expect("(")?;
            let left = self.sum()?;
            self.expect("/")?;
            let right = self.sum()?;
            self.expect(")")?;
            return self.value(Expr::ceil_divide(left, right));
        }
        if self.peek().is_some_and(|token| token.kind == TokenKind::Number) {
            return self.number("an integer").map(Expr::Literal);
        }
        let scalar = self.word("a number, a scalar, `ceil(a / b)` or parentheses")?;
        Ok(Expr::Scalar(scalar.text.to_owned()))
    }

    fn value(&self, folded: Option<Expr>) -> Result<Expr> {
        folded.ok_or(DeclError { line: self.line(), fault: DeclFault::GridValue })
    }
}
