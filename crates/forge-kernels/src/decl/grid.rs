//! Launch geometry: expressions of integers and scalars, evaluated by planners and printed as Rust into programs.

use std::fmt;

/// Threadgroups along one axis, in terms of a kernel's scalars. Sums and products of literals are folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// A number.
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
    pub(super) fn add(left: Expr, right: Expr) -> Option<Expr> {
        Expr::Add(Box::new(left), Box::new(right)).folded()
    }

    pub(super) fn multiply(left: Expr, right: Expr) -> Option<Expr> {
        Expr::Multiply(Box::new(left), Box::new(right)).folded()
    }

    pub(super) fn ceil_divide(left: Expr, right: Expr) -> Option<Expr> {
        if right == Expr::Literal(0) {
            return None;
        }
        Expr::CeilDivide(Box::new(left), Box::new(right)).folded()
    }

    /// The literal that it is, if it names no scalar; `None` if that literal has no value.
    fn folded(self) -> Option<Expr> {
        if self.scalars().is_empty() { self.eval(&[]).map(Expr::Literal) } else { Some(self) }
    }

    /// Its value for scalars given by name; `None` if one is missing, a divisor is zero or 32 bits are too few.
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

    /// The scalars that it names, in order of appearance, repeated where they are.
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

    /// How tightly its parts hold together in Rust.
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

/// Rust, where scalars are variables of type `u32`.
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
                // A literal needs its type before a method can be called on it.
                match left.as_ref() {
                    Expr::Literal(value) => write!(f, "{value}_u32")?,
                    left => left.print(f, 2)?,
                }
                write!(f, ".div_ceil({right})")
            }
        }
    }
}
