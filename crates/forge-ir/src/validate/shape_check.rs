//! Checks an operation's inputs and computes the width of its result. Operations of `mla`, `recurrent` and
//! `routing` are checked there.

use crate::graph::draft::{Body, Op, ParamId, ParamKind};
use crate::validate::{mla, recurrent, routing};
use forge_ops::{LongContext, RopeParameters};

/// Widths of the values of a validated body.
pub(crate) fn widths(body: &Body) -> Vec<usize> {
    let mut widths = vec![body.input];
    for node in &body.nodes {
        let inputs: Vec<usize> = node.inputs.iter().map(|value| widths[value.0]).collect();
        widths.push(width_of(body, &node.op, &inputs).unwrap_or(0));
    }
    widths
}

/// The width of a node's result, or an error.
pub(crate) fn width_of(body: &Body, op: &Op, inputs: &[usize]) -> Result<usize, String> {
    let expected = match op {
        Op::DeltaRule { .. } => 5,
        Op::LatentAttention { .. } => 4,
        // With the queries alone, it reads another layer's cache.
        Op::Attention { .. } if inputs.len() != 1 => 3,
        Op::Multiply | Op::Add | Op::Experts(_) | Op::StorePerLayerInputs => 2,
        Op::PerLayerInput { .. } => 0,
        _ => 1,
    };
    if inputs.len() != expected {
        return Err(format!("expected {expected} inputs, found {}", inputs.len()));
    }
    let x = inputs.first().copied().unwrap_or(0);
    match op {
        Op::PerLayerInput { part } => match body.params.get(part.0).map(|param| &param.kind) {
            Some(ParamKind::Part(width)) => Ok(*width),
            _ => Err(format!("parameter {} is not a per-layer input parameter", part.0)),
        },
        Op::StorePerLayerInputs => Ok(x),
        Op::Embed { scale, .. } if *scale == 0.0 || !scale.is_finite() => {
            Err(format!("invalid scale {scale}"))
        }
        Op::Embed { table, .. } => match shape(body, *table)? {
            [_, width] => Ok(*width),
            other => Err(format!("expected a matrix as table, found {other:?}")),
        },
        Op::RmsNorm { parts, .. } if *parts == 0 || !x.is_multiple_of(*parts) => {
            Err(format!("width {x} is not a multiple of {parts} parts"))
        }
        Op::RmsNorm { gain: None, .. } => Ok(x),
        Op::RmsNorm { gain: Some(gain), parts, .. } => match shape(body, *gain)? {
            [width] if width * parts == x => Ok(x),
            other => Err(format!("gain {other:?} does not match width {}", x / parts)),
        },
        Op::PositionEmbedding { table } => match shape(body, *table)? {
            [_, width] if *width == x => Ok(x),
            other => Err(format!("table {other:?} does not match width {x}")),
        },
        Op::LayerNorm { gain, bias, .. } => {
            for vector in [Some(*gain), *bias].into_iter().flatten() {
                match shape(body, vector)? {
                    [width] if *width == x => {}
                    other => return Err(format!("gain or bias {other:?} does not match width {x}")),
                }
            }
            Ok(x)
        }
        Op::Linear { weight, bias } => {
            let out = match shape(body, *weight)? {
                [out, columns] if *columns == x => *out,
                other => return Err(format!("weight {other:?} does not match input width {x}")),
            };
            match bias.map(|bias| shape(body, bias)).transpose()? {
                None => Ok(out),
                Some([width]) if *width == out => Ok(out),
                Some(other) => Err(format!("bias {other:?} does not match output width {out}")),
            }
        }
        Op::Rope { heads, width, rope } => {
            if heads * width != x {
                Err(format!("{heads} heads of {width} do not match width {x}"))
            } else if rope.frequencies.len() * 2 > *width {
                Err(format!("{} RoPE pairs exceed a head of {width}", rope.frequencies.len()))
            } else {
                long_context(rope).map(|()| x)
            }
        }
        Op::Attention { window: Some(0), .. } => Err("the window is 0".to_owned()),
        Op::Attention { softcap: Some(cap), .. } | Op::Softcap(cap) if !(*cap > 0.0 && cap.is_finite()) => {
            Err(format!("invalid softcap {cap}"))
        }
        Op::Attention { query_heads, cache, sinks, .. } => {
            match sinks.map(|sinks| shape(body, sinks)).transpose()? {
                Some(other) if other != [*query_heads] => {
                    return Err(format!("sinks {other:?} do not match {query_heads} query heads"));
                }
                _ => {}
            }
            let Some(state) = body.cache(*cache) else {
                return Err("the cache parameter is not a KV cache".to_owned());
            };
            let keys = state.heads * state.width;
            if state.heads == 0 || query_heads % state.heads != 0 {
                Err(format!("{query_heads} query heads are not a multiple of {} key heads", state.heads))
            } else if x != query_heads * state.width || inputs[1..].iter().any(|width| *width != keys) {
                Err(format!(
                    "queries, keys and values of widths {inputs:?} do not match {query_heads} heads over {} of {}",
                    state.heads, state.width
                ))
            } else {
                Ok(x)
            }
        }
        Op::PerHeadLinear { weight, heads, transposed } => {
            mla::per_head_linear(shape(body, *weight)?, *heads, *transposed, x)
        }
        Op::LatentAttention { heads, scale, cache } => mla::attention(body, *heads, *scale, *cache, inputs),
        Op::Convolve { taps, conv_state } => recurrent::convolve(body, [*taps, *conv_state], x),
        Op::DeltaRule { a_log, dt_bias, scale, epsilon, recurrent_state } => {
            recurrent::delta_rule(body, [*a_log, *dt_bias], [*scale, *epsilon], *recurrent_state, inputs)
        }
        Op::Route(routing) => routing::route(body, routing, x),
        Op::Experts(experts) => routing::experts(body, experts, [x, inputs[1]]),
        Op::Scale(factor) if *factor == 0.0 || !factor.is_finite() => Err(format!("invalid factor {factor}")),
        Op::Activate(_) | Op::Softcap(_) | Op::Scale(_) => Ok(x),
        Op::ScaleBy { factor } => match shape(body, *factor)? {
            [1] => Ok(x),
            other => Err(format!("expected a factor of one element, found {other:?}")),
        },
        Op::Multiply if inputs[1] == 1 => Ok(x),
        Op::Multiply | Op::Add if inputs[0] == inputs[1] => Ok(x),
        Op::Multiply | Op::Add => Err(format!("input widths {} and {} differ", inputs[0], inputs[1])),
    }
}

/// The shape of a weight parameter.
pub(crate) fn shape(body: &Body, param: ParamId) -> Result<&[usize], String> {
    match body.params.get(param.0).map(|param| &param.kind) {
        Some(ParamKind::Weight(shape)) => Ok(shape),
        _ => Err(format!("parameter {} is not a weight", param.0)),
    }
}

/// Checks the long-context frequencies of RoPE.
fn long_context(rope: &RopeParameters) -> Result<(), String> {
    let pairs = rope.frequencies.len();
    match &rope.long {
        Some(LongContext::LongRope { frequencies, .. }) if frequencies.len() != pairs => {
            Err("the long-context frequencies have another number of pairs".to_owned())
        }
        Some(LongContext::DynamicNtk { original_context, factor })
            if *original_context == 0 || pairs < 2 || !(*factor >= 1.0 && factor.is_finite()) =>
        {
            Err(format!(
                "invalid dynamic scaling of {pairs} pairs by {factor} beyond {original_context} positions"
            ))
        }
        _ => Ok(()),
    }
}
