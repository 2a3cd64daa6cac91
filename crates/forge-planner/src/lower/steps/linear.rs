//! Steps of linear layers.

use crate::fuse::list::{Epilogue, Fused, Gain, InlineNorm, Kind, Linear, Operation, UnaryOp};
use crate::lower::section::Draft;
use crate::lower::select::Select;
use crate::lower::steps::quantize::{Quantized, with_quantized_output};
use crate::plan::regime::Regime;
use crate::plan::{Operand, RowsOf};
use forge_ir::{Layout, ParamId};
use forge_kernels::{Family, Spec, spec};
use forge_ops::Format;

impl Select<'_> {
    pub(crate) fn linear(
        &mut self,
        draft: &mut Draft<'_>,
        list: &Fused,
        operation: &Operation,
        linear: &Linear,
        from: usize,
    ) {
        let weights: Vec<ParamId> = linear.parts.iter().map(|part| part.0).collect();
        let biases: Vec<ParamId> = linear.parts.iter().filter_map(|part| part.1).collect();
        let name = if weights.len() > 1 { operation.name.clone() } else { draft.param_name(weights[0]) };
        let (field, format, outputs) = self.matrix(draft, &weights, linear.layout, linear.folded, &name);
        let inputs = list.widths[operation.inputs[0].0];
        let bias =
            (!biases.is_empty()).then(|| self.vector(draft, &biases, linear.layout, &format!("{name}_bias")));
        let x = self.normed_input(draft, list, operation, (linear.norm, linear.folded), from);
        let y = match linear.ending {
            Epilogue::Add | Epilogue::AddSquares(_) => self.in_place(draft, list, operation),
            Epilogue::Gate(_) => self.target(draft, list, operation, "inner"),
            Epilogue::Store | Epilogue::Best | Epilogue::MultiplyPerLayerInput => {
                self.target(draft, list, operation, &name)
            }
        };
        let per_layer_inputs = match linear.ending {
            Epilogue::MultiplyPerLayerInput => {
                self.read_per_layer_inputs(draft, operation, list.widths[operation.output.0])
            }
            _ => None,
        };
        let bounded = self.bounded(list, operation);
        let chooses = list.chooses(operation.output);
        let shape = (format, outputs, inputs);
        let one_row = self.knobs(spec::Rows::One, shape, linear.ending);
        let quantizes = self.quantizes_output(draft, list, operation, linear, one_row);
        let pitch =
            Some(self.columns(draft, list, operation.inputs[0]).pitch).filter(|pitch| *pitch != inputs);
        debug_assert!(pitch.is_none() || linear.own_norm.is_some(), "only decode kernels read columns");
        let rows_of = |regime: Regime| match regime {
            Regime::One => spec::Rows::One,
            Regime::Few => spec::Rows::Few,
            Regime::Many => spec::Rows::Many,
            // Registers hold the sums of eight rows of a kernel that quantizes a gated block of 32 values.
            Regime::Sixteen if quantizes && matches!(linear.ending, Epilogue::Gate(_)) => spec::Rows::Eight,
            Regime::Two | Regime::Four | Regime::Eight | Regime::Sixteen => {
                spec::Rows::for_decode_batch(regime.max_rows().unwrap_or(1), one_row.mma)
            }
        };
        let variants: Vec<(&[Regime], Spec)> = draft
            .regimes()
            .chunk_by(|one, next| rows_of(*one) == rows_of(*next))
            .map(|regimes| {
                let rows = rows_of(regimes[0]);
                let spec = self.linear_spec(rows, shape, linear, (bias.is_some(), bounded, chooses), pitch);
                (regimes, if quantizes { with_quantized_output(spec) } else { spec })
            })
            .collect();
        let own_gain = linear.own_norm.and_then(|norm| norm.gain);
        let own_gain = own_gain.map(|gain| self.vector(draft, &[gain], Layout::Rows, ""));
        let quantized = (draft.is_decode() && one_row.quantizes_x(format)).then(|| {
            let parts = if linear.own_norm.is_some() { one_row.split } else { 0 };
            self.quantized_input(
                draft,
                operation.inputs[0],
                x,
                Quantized { width: inputs, gain: own_gain, parts, pitch },
            )
        });
        let text = FormulaText::of(linear, bias.is_some());
        let function = self.function(&draft.function_name(&name), &text.general(), &variants);
        let y_name = self.scratch_name(y);
        let x_name =
            self.columns_name(draft, list, operation.inputs[0]).unwrap_or_else(|| self.scratch_name(x));
        let mut formula = text.formula(&name, &x_name, &y_name);
        let mut arguments =
            vec![("weight", Operand::Field(field)), ("x", Operand::Scratch(x)), ("y", Operand::Scratch(y))];
        arguments.extend(bias.map(|bias| ("bias", Operand::Field(bias))));
        if let Some(gain) = own_gain {
            formula += &format!(", x times {}", draft.section.fields[gain].name);
            arguments.push(("x_gain", Operand::Field(gain)));
        }
        arguments.extend(per_layer_inputs.map(|inputs| ("factors", Operand::Scratch(inputs))));
        arguments.extend(quantized.into_iter().flatten());
        if linear.norm.is_some() {
            let squares = self.scratch("squares", self.partials, RowsOf::DecodeRow);
            arguments.push(("squares", Operand::Scratch(squares)));
        }
        if let Epilogue::AddSquares(gain) = linear.ending {
            let width = list.widths[operation.output.0];
            let (left, more) = self.squares_outputs(draft, operation.output, width, gain, &y_name);
            formula += &left;
            arguments.extend(more);
        }
        if quantizes {
            let of = draft.gained.get(&operation.output).copied().unwrap_or(y);
            let width = list.widths[operation.output.0];
            arguments.push(("quantized_y", self.quantized_output(draft, operation.output, of, width)));
        }
        if linear.ending == Epilogue::Best {
            let pairs = outputs.div_ceil(one_row.outputs_of_group());
            let candidates = self.scratch("candidates", 2 * pairs, RowsOf::DecodeRow);
            formula += ";  candidates = each threadgroup's argmax";
            arguments.push(("candidates", Operand::Scratch(candidates)));
        }
        draft.step(&name, &formula, function, &arguments);
    }

    /// Whether the operation's input is bounded. Norms bound their output; gated activations and attention
    /// output do not.
    pub(crate) fn bounded(&self, list: &Fused, operation: &Operation) -> bool {
        list.definition(operation.inputs[0]).is_some_and(|place| {
            matches!(list.operations[place].kind, Kind::Norm { .. } | Kind::LayerNorm { .. })
        })
    }

    /// Operand type of a tile's products.
    pub(crate) fn operand(&self, format: Format, bounded: bool) -> spec::Operand {
        match format {
            Format::F32 => spec::Operand::F32,
            // An f32 KV cache requests exact results, so products must not round.
            _ if self.plan.cache == Format::F32 => spec::Operand::F32,
            // f16 does not cover the range of bf16.
            Format::Bf16 => spec::Operand::Ranged,
            _ if bounded => spec::Operand::F16,
            _ => spec::Operand::Ranged,
        }
    }

    fn linear_spec(
        &self,
        rows: spec::Rows,
        (format, outputs, inputs): (Format, usize, usize),
        linear: &Linear,
        (bias, bounded, chooses): (bool, bool, bool),
        pitch: Option<usize>,
    ) -> Spec {
        let knobs = self.knobs(rows, (format, outputs, inputs), linear.ending);
        let epilogue = match linear.ending {
            Epilogue::Store => forge_ops::Epilogue::Store,
            Epilogue::Add => forge_ops::Epilogue::Add,
            Epilogue::Gate(activation) => forge_ops::Epilogue::Gate(forge_ops::Gating::Plain(activation)),
            Epilogue::AddSquares(gain) => forge_ops::Epilogue::AddSquares(self.squares(gain)),
            Epilogue::Best => {
                forge_ops::Epilogue::Best { candidates: outputs.div_ceil(knobs.outputs_of_group()) }
            }
            Epilogue::MultiplyPerLayerInput => forge_ops::Epilogue::Multiply {
                of: self
                    .per_layer_inputs()
                    .map_or(0, |per_layer_inputs| self.plan.scratch[per_layer_inputs].width),
            },
        };
        let operand = match self.operand(format, bounded && rows == spec::Rows::Many) {
            // Apple GPUs have less threadgroup memory. Weights in bf16 stay as they are.
            spec::Operand::Ranged if rows == spec::Rows::Many && self.chip().family != Family::Nvidia => {
                if bounded {
                    spec::Operand::F16
                } else {
                    spec::Operand::F16Weights
                }
            }
            operand => operand,
        };
        Spec::Linear(spec::Kernel {
            op: forge_ops::Linear {
                format,
                outputs,
                inputs,
                norm: linear.norm.map(|epsilon| forge_ops::DeferredNorm { partials: self.partials, epsilon }),
                own_norm: linear.own_norm.map(|InlineNorm { gain, epsilon }| forge_ops::InlineNorm {
                    gain: gain.is_some(),
                    epsilon,
                    pitch,
                }),
                bias,
                unary: linear.unary,
                epilogue,
                chooses,
            },
            layout: spec::LinearLayout { rows, operand, knobs, quantizes: false },
        })
    }
}

/// Text of a projection's formula.
struct FormulaText<'a> {
    linear: &'a Linear,
    bias: bool,
}

impl<'a> FormulaText<'a> {
    fn of(linear: &'a Linear, bias: bool) -> FormulaText<'a> {
        FormulaText { linear, bias }
    }

    /// The formula over `weight`, `x` and `y`.
    fn general(&self) -> String {
        let left = match self.linear.ending {
            Epilogue::AddSquares(Gain::Folded) => "; squares_out = Σ y²",
            Epilogue::AddSquares(_) => "; gained = gain · y; squares_out = Σ y²",
            Epilogue::Best => "; candidates = each threadgroup's argmax",
            _ => "",
        };
        let product = self.product("weight", "x", "bias");
        match self.linear.ending {
            Epilogue::Gate(activation) => {
                format!("gate, up = {product}; y = {}(gate) · up", activation.name())
            }
            Epilogue::Add | Epilogue::AddSquares(_) => format!("y += {product}{left}"),
            Epilogue::Store | Epilogue::Best => format!("y = {product}{left}"),
            Epilogue::MultiplyPerLayerInput => format!("y = ({product}) · factors, from column first on"),
        }
    }

    /// The formula with this model's names.
    fn formula(&self, name: &str, x: &str, y: &str) -> String {
        let product = self.product("W", x, &format!("{name}_bias"));
        match self.linear.ending {
            Epilogue::Store if name == "qkv" => format!("q, k, v = {product}"),
            Epilogue::Store if name == "qk" => format!("q, k = {product}"),
            Epilogue::Store | Epilogue::Best => format!("{y} = {product}"),
            Epilogue::MultiplyPerLayerInput => {
                format!("{y} = ({product}) · this layer's columns of the per-layer inputs")
            }
            Epilogue::Add | Epilogue::AddSquares(_) => format!("{y} += {product}"),
            Epilogue::Gate(activation) => {
                format!("gate, up = {product};  {y} = {}(gate) · up", activation.name())
            }
        }
    }

    fn product(&self, weight: &str, x: &str, bias: &str) -> String {
        let divided = match (self.linear.norm, self.linear.own_norm) {
            (Some(_), _) => " / rms".to_owned(),
            (None, Some(_)) => format!(" / rms({x})"),
            (None, None) => String::new(),
        };
        let plus = if self.bias { format!(" + {bias}") } else { String::new() };
        let sum = format!("{weight} · {x}{divided}{plus}");
        match self.linear.unary {
            None => sum,
            Some(UnaryOp::Scale(factor)) if self.bias => format!("{factor} · ({sum})"),
            Some(each) => unary_text(each, &sum),
        }
    }
}

/// Formula of a unary function.
pub(super) fn unary_text(each: UnaryOp, x: &str) -> String {
    match each {
        UnaryOp::Activate(activation) => format!("{}({x})", activation.name()),
        UnaryOp::Softcap(cap) => format!("cap({x}, {cap})"),
        UnaryOp::Scale(factor) => format!("{factor} · {x}"),
    }
}
