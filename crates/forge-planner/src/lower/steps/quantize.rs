//! Quantized activations of decode batches.
//!
//! Linear layers with integer MMA read quantized rows of x. The kernel that produces x writes them as well if it
//! has whole blocks of 32 values; otherwise a step of its own does.

use crate::fuse::list::{Epilogue, Fused, Kind, Linear, Operation, Value};
use crate::lower::section::{Draft, Place};
use crate::lower::select::{Select, places};
use crate::plan::{Condition, Operand, RowsOf};
use forge_ir::{Apply, Body};
use forge_kernels::Spec;
use forge_kernels::spec::{self, Knobs, LinearKernel};

/// Quantized rows of a buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quantized {
    /// Columns of x.
    pub(crate) width: usize,
    /// Field of the gain that x is multiplied by first.
    pub(crate) gain: Option<usize>,
    /// Parts of the columns whose squares are summed, for an inline norm.
    pub(crate) parts: usize,
    /// Row stride of x, if x is the first columns of wider rows.
    pub(crate) pitch: Option<usize>,
}

impl Select<'_> {
    /// Operands of linear layers that read quantized rows of `x`, which holds `value`. Adds a step that quantizes
    /// them, unless they exist already.
    pub(crate) fn quantized_input(
        &mut self,
        draft: &mut Draft<'_>,
        value: Value,
        x: usize,
        quantized: Quantized,
    ) -> Vec<(&'static str, Operand)> {
        let Quantized { width, gain, parts, pitch } = quantized;
        let mut results = vec![("quantized_x", self.quantized_rows(x, width))];
        if parts > 0 {
            let squares = self.scratch("squares_of_x", parts, RowsOf::DecodeRow);
            results.push(("squares_of_x", Operand::Scratch(squares)));
        }
        let comes_quantized =
            value == Value::INPUT && gain.is_none() && parts == 0 && self.stream_is_quantized;
        if comes_quantized || draft.quantized.insert(x, (value, quantized)) == Some((value, quantized)) {
            return results;
        }
        let op = forge_ops::Quantize { width, gain: gain.is_some(), parts, pitch };
        let variants = [(&draft.regimes()[1..], Spec::Quantize(op))];
        let function = self.function("quantize", "quantized_x = 16-bit codes of x", &variants);
        let mut arguments = vec![("x", Operand::Scratch(x))];
        arguments.extend(gain.map(|gain| ("x_gain", Operand::Field(gain))));
        arguments.extend(results.iter().copied());
        let formula = format!("16-bit codes of {}", self.scratch_name(x));
        draft.step("quantize", &formula, function, &arguments);
        draft.set_last_condition(Condition::SeveralRows);
        results
    }

    /// The operand of quantized rows of `y`, which holds `value`, for the kernel that writes both.
    pub(crate) fn quantized_output(
        &mut self,
        draft: &mut Draft<'_>,
        value: Value,
        y: usize,
        width: usize,
    ) -> Operand {
        draft.quantized.insert(y, (value, Quantized { width, gain: None, parts: 0, pitch: None }));
        self.quantized_rows(y, width)
    }

    /// Quantizes the residual stream at the end of the prologue, if layers expect that.
    pub(crate) fn quantize_stream(&mut self, draft: &mut Draft<'_>, list: &Fused) {
        let Some(last) = list.operations.last().filter(|_| draft.is_decode() && self.stream_is_quantized)
        else {
            return;
        };
        let (value, width) = (last.output, list.widths[last.output.0]);
        let x = draft.gained.get(&value).copied().unwrap_or(self.stream);
        // Within the prologue the value is not yet the input of a section.
        self.stream_is_quantized = false;
        self.quantized_input(draft, value, x, Quantized { width, gain: None, parts: 0, pitch: None });
        self.stream_is_quantized = true;
    }

    fn quantized_rows(&mut self, of: usize, width: usize) -> Operand {
        let name = format!("quantized_{}", self.scratch_name(of));
        let words = forge_ops::Quantize::row_words(width);
        Operand::Scratch(self.scratch(&name, words, RowsOf::DecodeRow))
    }

    /// Whether a linear layer's kernels also write quantized rows of its output.
    pub(crate) fn quantizes_output(
        &self,
        draft: &Draft<'_>,
        list: &Fused,
        operation: &Operation,
        linear: &Linear,
        knobs: Knobs,
    ) -> bool {
        let is_read = self.is_read_quantized(draft, list, operation.output);
        let flows_out = draft.place != Place::Epilogue
            && list.operations.last().is_some_and(|last| last.output == operation.output)
            && self.stream_is_quantized;
        draft.is_decode()
            && can_quantize(linear, list.widths[operation.output.0], knobs)
            && (is_read || flows_out)
    }

    /// Whether a linear layer reads quantized rows of a value as it is.
    pub(crate) fn is_read_quantized(&self, draft: &Draft<'_>, list: &Fused, value: Value) -> bool {
        list.operations.iter().any(|reader| {
            reader.inputs.first() == Some(&value) && self.reads_codes(draft.body, draft.apply, reader)
        })
    }

    /// Whether an operation is a linear layer that reads quantized rows of its first input as it is.
    fn reads_codes(&self, body: &Body, apply: &Apply, operation: &Operation) -> bool {
        let Kind::Linear(linear) = &operation.kind else { return false };
        let shape = self.matrix_shape(body, apply, linear);
        linear.own_norm.is_none() && self.knobs(spec::Rows::One, shape, linear.ending).quantizes_x(shape.0)
    }

    /// Whether the residual stream between sections is also quantized: all layers can write it, and the first
    /// linear layer of each reads it.
    pub(crate) fn quantizes_stream(&self) -> bool {
        let mut layers = places(self.graph).filter(|(place, _)| matches!(place, Place::Layer(_))).peekable();
        layers.peek().is_some()
            && layers.all(|(_, apply)| {
                let (body, list) = (self.graph.body(apply), &self.lists.decode[apply.body.0]);
                let writes = list.operations.last().is_some_and(|last| {
                    let Kind::Linear(linear) = &last.kind else { return false };
                    let shape = self.matrix_shape(body, apply, linear);
                    let knobs = self.knobs(spec::Rows::One, shape, linear.ending);
                    matches!(linear.ending, Epilogue::AddSquares(_))
                        && can_quantize(linear, list.widths[last.output.0], knobs)
                });
                let reads = list.operations.iter().any(|reader| {
                    reader.inputs.first() == Some(&Value::INPUT) && self.reads_codes(body, apply, reader)
                });
                writes && reads
            })
    }
}

/// Whether a linear layer's kernels have whole blocks of its output.
fn can_quantize(linear: &Linear, width: usize, knobs: Knobs) -> bool {
    let fits = match linear.ending {
        Epilogue::AddSquares(_) => knobs.outputs_of_group() == forge_ops::BLOCK,
        Epilogue::Gate(_) => true,
        _ => false,
    };
    knobs.mma && fits && width.is_multiple_of(spec::STRETCH)
}

/// The kernel with quantized output, if it is for a decode batch.
pub(crate) fn with_quantized_output(spec: Spec) -> Spec {
    match spec {
        Spec::Linear(linear) => Spec::Linear(LinearKernel::with_quantized_output(linear)),
        other => other,
    }
}
