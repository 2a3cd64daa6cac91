//! Converts a body to an operation list, before any rule.

use crate::fuse::list::attention::Attend;
use crate::fuse::list::experts;
use crate::fuse::list::experts::FusedRouting;
use crate::fuse::list::fused::{Fused, Operation};
use crate::fuse::list::kind::Kind;
use crate::fuse::list::linear::Linear;
use crate::fuse::list::mla::{MlaAppend, MlaAttention, PerHeadLinear};
use crate::fuse::list::recurrent::{Convolve, DeltaRule};
use crate::fuse::list::value::Value;
use forge_ir::{Body, BodyId, Op};
use forge_ops::{Format, Function, UnaryOp};

impl Kind {
    /// An elementwise unary function.
    fn of(each: UnaryOp) -> Kind {
        Kind::Elementwise(Function::Unary(each))
    }
}

impl Fused {
    /// Converts a body: one operation for each node, two for attention, MLA and experts.
    pub(crate) fn of(id: BodyId, body: &Body, widths: Vec<usize>, formats: Vec<Format>) -> Fused {
        let mut list = Fused { body: id, operations: Vec::new(), widths, formats };
        for (index, node) in body.nodes.iter().enumerate() {
            let mut inputs: Vec<Value> = node.inputs.iter().map(|value| Value(value.0)).collect();
            let kind = match &node.op {
                Op::Embed { table, scale } => Kind::Embed { table: *table, scale: *scale, next_norm: None },
                Op::RmsNorm { gain, parts, epsilon } => {
                    Kind::Norm { gain: *gain, parts: *parts, epsilon: *epsilon }
                }
                Op::PositionEmbedding { table } => Kind::PositionEmbedding { table: *table },
                Op::LayerNorm { gain, bias, epsilon } => {
                    Kind::LayerNorm { gain: *gain, bias: *bias, epsilon: *epsilon }
                }
                Op::Linear { weight, bias } => Kind::Linear(Linear::plain(*weight, *bias)),
                Op::Rope { heads, rope, .. } => Kind::Rope { heads: *heads, rope: rope.clone() },
                Op::Attention { query_heads, scale, cache, window, softcap, sinks } => {
                    // Attention with queries only reads a cache that an earlier layer appended to.
                    if inputs.len() > 1 {
                        list.first("append", Kind::Append { cache: *cache }, inputs.split_off(1), 0);
                    }
                    Kind::Attend(Attend {
                        query_heads: *query_heads,
                        scale: *scale,
                        window: *window,
                        softcap: *softcap,
                        sinks: *sinks,
                        gated: false,
                        cache: *cache,
                        prologue: None,
                    })
                }
                Op::Route(routing) if experts::only_experts_read(body, index) => {
                    list.widths[index + 1] = 2 * routing.chosen;
                    Kind::Route(FusedRouting { routing: routing.clone(), shared: 0, gated: false })
                }
                Op::Experts(experts) => match experts::parts(body, node, experts) {
                    Some((inner, sum)) => {
                        let (width, routes) = (inner.chosen * experts::rows_of(body, inner.gate), inputs[1]);
                        inputs = vec![
                            list.first("routed_inner", Kind::ExpertsInner(inner), inputs, width),
                            routes,
                        ];
                        Kind::ExpertsSum(sum)
                    }
                    None => Kind::Unplanned,
                },
                Op::Convolve { taps, conv_state } => {
                    Kind::Convolve(Convolve { parts: vec![(*taps, *conv_state)], activation: None })
                }
                Op::DeltaRule { a_log, dt_bias, scale, epsilon, recurrent_state } => {
                    Kind::DeltaRule(DeltaRule {
                        a_log: *a_log,
                        dt_bias: *dt_bias,
                        scale: *scale,
                        epsilon: *epsilon,
                        recurrent_state: *recurrent_state,
                        gated: None,
                        prologue: None,
                    })
                }
                Op::PerHeadLinear { weight, heads, transposed } => Kind::PerHeadLinear(PerHeadLinear {
                    weight: *weight,
                    heads: *heads,
                    transposed: *transposed,
                }),
                Op::LatentAttention { heads, scale, cache } => {
                    let kind = Kind::MlaAppend(MlaAppend { cache: *cache, prepare: None });
                    list.first("append", kind, inputs.split_off(2), 0);
                    Kind::MlaAttention(MlaAttention {
                        heads: *heads,
                        scale: *scale,
                        cache: *cache,
                        prologue: None,
                    })
                }
                Op::Route(_) => Kind::Unplanned,
                Op::ScaleBy { factor } => Kind::ScaleBy { factor: *factor },
                Op::StorePerLayerInputs => Kind::StorePerLayerInputs,
                Op::PerLayerInput { .. } => Kind::PerLayerInput,
                Op::Activate(activation) => Kind::of(UnaryOp::Activate(*activation)),
                Op::Softcap(cap) => Kind::of(UnaryOp::Softcap(*cap)),
                Op::Scale(factor) => Kind::of(UnaryOp::Scale(*factor)),
                Op::Multiply if list.widths[inputs[1].0] != list.widths[inputs[0].0] => {
                    Kind::Elementwise(Function::ScaleRows)
                }
                Op::Multiply => Kind::Elementwise(Function::Multiply),
                Op::Add => Kind::Elementwise(Function::Add),
            };
            list.operations.push(Operation {
                name: node.name.clone(),
                kind,
                inputs,
                output: Value(index + 1),
            });
        }
        list
    }

    /// Adds an operation before the one that a node converts to; returns its output.
    fn first(&mut self, name: &str, kind: Kind, inputs: Vec<Value>, width: usize) -> Value {
        let output = self.new_value(width);
        self.operations.push(Operation { name: name.to_owned(), kind, inputs, output });
        output
    }
}
