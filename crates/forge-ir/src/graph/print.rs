//! Prints the graph as stable text, with shapes next to names. Consecutive equal layers are printed once.

use crate::graph::draft::{Body, Node, Op, ParamId, ParamKind};
use crate::graph::routing::{Experts, Routing};
use crate::graph::state::{Cache, ConvState, LatentCache, RecurrentState, State};
use crate::validate::graph::Graph;
use crate::weights::blocks::Blocks;
use crate::weights::weight::WeightSlice;
use forge_ops::{Gating, Groups, LongContext, Pairing};
use std::fmt::{Display, Formatter, Result};

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let model = &self.model;
        writeln!(f, "model {} · {}", model.name, model.architecture)?;
        writeln!(
            f,
            "  hidden {} · vocabulary {} · context {}",
            model.hidden, model.vocabulary, model.context
        )?;
        let bos = model.specials.begin.map_or_else(|| "none".to_owned(), |token| token.to_string());
        writeln!(f, "  bos {bos} · eos {:?}", model.specials.end)?;
        writeln!(f, "prologue {}", self.body(&self.prologue).name)?;
        let mut first = 0;
        while first < self.layers.len() {
            let (body, keeper) = (self.layers[first].body, self.keeper(first));
            let alike = |layer: &usize| self.layers[*layer].body == body && self.keeper(*layer) == keeper;
            let same = (first..self.layers.len()).take_while(alike).count();
            let keeper = keeper.map_or_else(String::new, |keeper| format!(", cache of layer {keeper}"));
            writeln!(f, "layers {first}..{} {}{keeper}", first + same, self.bodies[body.0].name)?;
            first += same;
        }
        writeln!(f, "epilogue {}", self.body(&self.epilogue).name)?;
        for (index, body) in self.bodies.iter().enumerate() {
            writeln!(f)?;
            self.print_body(f, index, body)?;
        }
        Ok(())
    }
}

impl Display for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            State::Cache(Cache { heads, width }) => write!(f, "{heads} heads of {width}"),
            State::Latents(LatentCache { width, rope_width }) => {
                write!(f, "latents of {width}, rope keys of {rope_width}")
            }
            State::Conv(ConvState { rows, width }) => write!(f, "{rows} rows of {width}"),
            State::Recurrent(RecurrentState { heads, keys, values }) => {
                write!(f, "{heads} heads of {keys} by {values}")
            }
        }
    }
}

impl Graph {
    /// The earlier layer whose state a layer reads.
    fn keeper(&self, layer: usize) -> Option<usize> {
        let reads = &self.layers[layer].states;
        self.layers[..layer]
            .iter()
            .position(|earlier| earlier.states.iter().any(|state| reads.contains(state)))
    }

    fn print_body(&self, f: &mut Formatter<'_>, index: usize, body: &Body) -> Result {
        writeln!(f, "body {}", body.name)?;
        let example = self.applications().find(|apply| apply.body.0 == index);
        for (param_index, param) in body.params.iter().enumerate() {
            let id = ParamId(param_index);
            match &param.kind {
                ParamKind::Weight(shape) => {
                    let weight =
                        example.and_then(|apply| apply.weight(body, id)).map(|id| &self.weights[id.0]);
                    let bound = weight
                        .map(|weight| {
                            let plus = if weight.plus_one { "1 + " } else { "" };
                            let changed = weight.blocks.filter(|blocks| !blocks.has_same_codes());
                            let name = weight.encoding.map(|it| it.name).or(changed.map(Blocks::name));
                            let stored = name.map_or_else(String::new, |name| format!(" from {name}"));
                            let part = weight.part();
                            let cut = match weight.cut {
                                None => String::new(),
                                Some(WeightSlice::Rows { .. }) => format!(" rows {part:?}"),
                                Some(WeightSlice::Repeated { .. }) => format!(" rows {part:?} repeated"),
                                Some(WeightSlice::Columns { .. }) => format!(" columns {part:?}"),
                                Some(WeightSlice::Groups { of, .. }) => {
                                    format!(" rows {part:?} of every {of}")
                                }
                                Some(WeightSlice::ColumnGroups { of, .. }) => {
                                    format!(" columns {part:?} of every {of}")
                                }
                            };
                            format!("{}{stored} {plus}{}{cut}", weight.format, weight.tensor)
                        })
                        .unwrap_or_default();
                    writeln!(f, "  weight {:<16} {:<14} {bound}", param.name, format!("{shape:?}"))?;
                }
                ParamKind::State(state) => {
                    writeln!(f, "  state  {:<16} {state}", param.name)?;
                }
                ParamKind::Part(width) => {
                    let first = example.and_then(|apply| apply.part(body, id)).unwrap_or(0);
                    let columns = format!("{first}..{}", first + width);
                    writeln!(f, "  part   {:<16} columns {columns} of the per-layer inputs", param.name)?;
                }
            }
        }
        let widths = self.widths(body);
        let input = if body.input == 0 { "ids".to_owned() } else { format!("stream [{}]", body.input) };
        writeln!(f, "  %0 = {input}")?;
        for (node_index, node) in body.nodes.iter().enumerate() {
            let value = node_index + 1;
            writeln!(f, "  %{value} {:<10} = {} [{}]", node.name, expression(body, node), widths[value])?;
        }
        Ok(())
    }
}

/// A node as a formula, such as `linear(%1, query) + query_bias`.
fn expression(body: &Body, node: &Node) -> String {
    let name = |param: ParamId| body.params[param.0].name.as_str();
    let values: Vec<String> = node.inputs.iter().map(|value| format!("%{}", value.0)).collect();
    let x = values.join(", ");
    match &node.op {
        Op::Embed { table, scale: 1.0 } => format!("embed({x}, {})", name(*table)),
        Op::Embed { table, scale } => format!("embed({x}, {}) * {scale}", name(*table)),
        Op::RmsNorm { gain, parts, epsilon } => {
            let parts = if *parts == 1 { String::new() } else { format!(" in {parts} parts") };
            let gain = gain.map_or_else(String::new, |gain| format!(", {}", name(gain)));
            format!("rms_norm({x}{parts}{gain}, epsilon {epsilon:e})")
        }
        Op::PositionEmbedding { table } => format!("{x} + {}[positions]", name(*table)),
        Op::LayerNorm { gain, bias, epsilon } => {
            let plus = bias.map_or_else(String::new, |bias| format!(" + {}", name(bias)));
            format!("layer_norm({x}, {}, epsilon {epsilon:e}){plus}", name(*gain))
        }
        Op::Linear { weight, bias: None } => format!("linear({x}, {})", name(*weight)),
        Op::Linear { weight, bias: Some(bias) } => {
            format!("linear({x}, {}) + {}", name(*weight), name(*bias))
        }
        Op::Rope { heads, width, rope } => {
            let pairing = match rope.pairing {
                Pairing::Half => "half",
                Pairing::Interleaved => "interleaved",
            };
            let pairs = rope.frequencies.len();
            let (first, last) = (rope.frequencies.first(), rope.frequencies.last());
            let long = rope.long.as_ref().map_or_else(String::new, |long| match long {
                LongContext::LongRope { original_context, frequencies } => {
                    let (first, last) = (frequencies.first(), frequencies.last());
                    let (first, last) = (first.unwrap_or(&0.0), last.unwrap_or(&0.0));
                    format!(", longrope beyond {original_context} positions {first:e}..{last:e}")
                }
                LongContext::DynamicNtk { original_context, factor } => {
                    format!(", dynamic NTK beyond {original_context} positions, factor {factor}")
                }
            });
            format!(
                "rope({x}, {heads} heads of {width}, {pairs} {pairing} pairs {:e}..{:e}, magnitude {}{long})",
                first.unwrap_or(&0.0),
                last.unwrap_or(&0.0),
                rope.magnitude
            )
        }
        Op::Attention { query_heads, scale, cache, window, softcap, sinks } => {
            let window = window.map_or_else(String::new, |window| format!(", window {window}"));
            let softcap = softcap.map_or_else(String::new, |cap| format!(", softcap {cap}"));
            let sinks = sinks.map_or_else(String::new, |sinks| format!(", {}", name(sinks)));
            let cache = name(*cache);
            format!("attention({x}, {query_heads} heads, scale {scale}{window}{softcap}{sinks}, {cache})")
        }
        Op::PerHeadLinear { weight, heads, transposed } => {
            let transposed = if *transposed { "transposed " } else { "" };
            format!("{transposed}{} of each of {heads} heads {x}", name(*weight))
        }
        Op::LatentAttention { heads, scale, cache } => {
            format!("latent_attention({x}, {heads} heads, scale {scale}, {})", name(*cache))
        }
        Op::Convolve { taps, conv_state } => format!("convolve({x}, {}, {})", name(*taps), name(*conv_state)),
        Op::DeltaRule { a_log, dt_bias, scale, epsilon, recurrent_state } => {
            let (a_log, dt_bias, recurrent_state) = (name(*a_log), name(*dt_bias), name(*recurrent_state));
            format!(
                "delta_rule({x}, {a_log}, {dt_bias}, scale {scale}, epsilon {epsilon:e}, {recurrent_state})"
            )
        }
        Op::Route(routing) => route(&x, routing, name),
        Op::Experts(Experts { gate, up, down, biases, gating }) => {
            let x = &values[0];
            let product = |param: &ParamId, x: &str, bias: usize| {
                let plus = biases.map_or_else(String::new, |biases| format!(" + {}", name(biases[bias])));
                (format!("{} {x}", name(*param)), plus)
            };
            let sum = |(product, plus): (String, String)| format!("{product}{plus}");
            let (gate, up) = (product(gate, x, 0), product(up, x, 1));
            let inner = match gating {
                Gating::Plain(activation) if biases.is_none() => {
                    format!("{}({}) * {}", activation.name(), sum(gate), sum(up))
                }
                Gating::Plain(activation) => format!("{}({}) * ({})", activation.name(), sum(gate), sum(up)),
                Gating::Clamped { limit, sharpness } => {
                    format!("clamped({}, {}, limit {limit}, sharpness {sharpness})", sum(gate), sum(up))
                }
            };
            let (down, plus) = product(down, &format!("({inner})"), 2);
            match biases {
                None => format!("sum over experts of {} * {down}", values[1]),
                Some(_) => format!("sum over experts of {} * ({down}{plus})", values[1]),
            }
        }
        Op::Activate(activation) => format!("{}({x})", activation.name()),
        Op::Softcap(cap) => format!("softcap({x}, {cap})"),
        Op::Scale(factor) => format!("{x} * {factor}"),
        Op::ScaleBy { factor } => format!("{x} * {}", name(*factor)),
        Op::StorePerLayerInputs => format!("{}, per-layer inputs = {}", values[0], values[1]),
        Op::PerLayerInput { part } => format!("per_layer_input({})", name(*part)),
        Op::Multiply => format!("{} * {}", values[0], values[1]),
        Op::Add => format!("{} + {}", values[0], values[1]),
    }
}

/// Routing weights as a formula.
fn route<'a>(logits: &str, routing: &Routing, name: impl Fn(ParamId) -> &'a str) -> String {
    let Routing { scores, chosen, correction, groups, renormalize, factor, scale } = routing;
    let mut text = format!("route({logits}, {} of {}", chosen, scores.name());
    if let Some(correction) = correction {
        text += &format!(" + {}", name(*correction));
    }
    if let Some(Groups { count, kept, best }) = groups {
        text += &format!(", {kept} of {count} groups by their {best} best");
    }
    text += if *renormalize { ", renormalize)" } else { ")" };
    if *factor != 1.0 {
        text += &format!(" * {factor}");
    }
    if let Some(scale) = scale {
        text += &format!(" * {}", name(*scale));
    }
    text
}
