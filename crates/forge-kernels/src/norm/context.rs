//! Template contexts of row-wise kernels: norms and elementwise functions.

use serde::Serialize;

use crate::context::{Base, literal};
use forge_ops::{Elementwise, Function, LayerNorm, NormAdd, RmsNorm, SliceColumns, UnaryOp};

#[derive(Serialize)]
pub(crate) struct RmsNormContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a RmsNorm,
    /// Type in which a part is read.
    vector: &'static str,
    /// Number of such vectors in a part.
    count: usize,
    /// Row stride of y, and of x, in elements.
    row_width: usize,
    from_row: usize,
    width_float: f32,
    threads: usize,
    simdgroups: usize,
}

impl<'a> RmsNormContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a RmsNorm) -> RmsNormContext<'a> {
        let row_width = spec.parts * spec.width;
        let from_row = spec.pitch.unwrap_or(row_width);
        let aligned = spec.width.is_multiple_of(4) && from_row.is_multiple_of(4);
        let (vector, count) = if aligned { ("float4", spec.width / 4) } else { ("float", spec.width) };
        let threads = count.next_multiple_of(32).min(256);
        RmsNormContext {
            base,
            spec,
            vector,
            count,
            row_width,
            from_row,
            width_float: spec.width as f32,
            threads,
            simdgroups: threads / 32,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct NormAddContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a NormAdd,
    /// Type in which a row is read.
    vector: &'static str,
    /// Number of such vectors in a row.
    count: usize,
    width_float: f32,
    threads: usize,
    simdgroups: usize,
}

impl<'a> NormAddContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a NormAdd) -> NormAddContext<'a> {
        let (vector, count) =
            if spec.width.is_multiple_of(4) { ("float4", spec.width / 4) } else { ("float", spec.width) };
        let threads = count.next_multiple_of(32).min(256);
        let (width_float, simdgroups) = (spec.width as f32, threads / 32);
        NormAddContext { base, spec, vector, count, width_float, threads, simdgroups }
    }
}

#[derive(Serialize)]
pub(crate) struct LayerNormContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a LayerNorm,
    /// Type in which a row is read.
    vector: &'static str,
    /// Number of such vectors in a row.
    count: usize,
    width_float: f32,
    threads: usize,
    simdgroups: usize,
}

impl<'a> LayerNormContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a LayerNorm) -> LayerNormContext<'a> {
        let (vector, count) =
            if spec.width.is_multiple_of(4) { ("float4", spec.width / 4) } else { ("float", spec.width) };
        let threads = count.next_multiple_of(32).min(256);
        let (width_float, simdgroups) = (spec.width as f32, threads / 32);
        LayerNormContext { base, spec, vector, count, width_float, threads, simdgroups }
    }
}

/// A unary function as text before and after its argument.
pub(crate) struct UnaryText {
    pub(crate) before: String,
    pub(crate) after: String,
}

impl UnaryText {
    pub(crate) fn of(each: UnaryOp) -> UnaryText {
        let (before, after) = match each {
            UnaryOp::Activate(activation) => (format!("{}(", activation.name()), ")".to_owned()),
            UnaryOp::Softcap(cap) => ("softcap(".to_owned(), format!(", {})", literal(cap))),
            UnaryOp::Scale(factor) => (format!("{} * (", literal(factor)), ")".to_owned()),
        };
        UnaryText { before, after }
    }
}

#[derive(Serialize)]
pub(crate) struct ElementwiseContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    width: usize,
    /// Whether there are two operands.
    binary: bool,
    /// Expression of the result in terms of `a` and `b`.
    formula: String,
    threads: usize,
}

impl<'a> ElementwiseContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a Elementwise) -> ElementwiseContext<'a> {
        let (binary, formula) = match spec.function {
            Function::Unary(each) => {
                let UnaryText { before, after } = UnaryText::of(each);
                (false, format!("{before}a[place]{after}"))
            }
            Function::Multiply => (true, "a[place] * b[place]".to_owned()),
            Function::ScaleRows => (true, "a[place] * b[group.y]".to_owned()),
            Function::ScaleBy => (true, "b[0] * a[place]".to_owned()),
            Function::Add => (true, "a[place] + b[place]".to_owned()),
        };
        ElementwiseContext { base, width: spec.width, binary, formula, threads: 256 }
    }
}

#[derive(Serialize)]
pub(crate) struct SliceContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a SliceColumns,
    threads: usize,
}

impl<'a> SliceContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a SliceColumns) -> SliceContext<'a> {
        SliceContext { base, spec, threads: 128 }
    }
}
