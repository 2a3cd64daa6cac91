//! Width checks of operations with a state of fixed size: convolution and delta rule.
//!
//! Each function returns the width of a node's result, or an error.

use crate::graph::draft::{Body, ParamId};
use crate::graph::state::RecurrentState;
use crate::validate::shape_check::shape;

/// Width of a convolution over `x` channels.
pub(crate) fn convolve(body: &Body, [taps, conv_state]: [ParamId; 2], x: usize) -> Result<usize, String> {
    let Some(conv_state) = body.conv_state(conv_state) else {
        return Err("the state parameter is not a conv state".to_owned());
    };
    match shape(body, taps)? {
        _ if conv_state.width != x => {
            Err(format!("conv state of width {} does not match input width {x}", conv_state.width))
        }
        _ if conv_state.rows == 0 => Err("the conv state has no rows".to_owned()),
        [all] if *all == x * (conv_state.rows + 1) => Ok(x),
        other => Err(format!("taps {other:?} do not match {} rows of {x} channels", conv_state.rows + 1)),
    }
}

/// Width of a delta rule over queries, keys, values, dt and beta.
pub(crate) fn delta_rule(
    body: &Body,
    vectors: [ParamId; 2],
    [scale, epsilon]: [f32; 2],
    recurrent_state: ParamId,
    inputs: &[usize],
) -> Result<usize, String> {
    let Some(recurrent_state) = body.recurrent_state(recurrent_state) else {
        return Err("the state parameter is not a recurrent state".to_owned());
    };
    let RecurrentState { heads, keys, values } = *recurrent_state;
    if scale == 0.0 || !scale.is_finite() || !(epsilon > 0.0 && epsilon.is_finite()) {
        return Err(format!("invalid scale {scale} or epsilon {epsilon}"));
    }
    let key_heads = inputs[1].checked_div(keys).unwrap_or(0);
    if key_heads == 0 || heads == 0 || heads % key_heads != 0 || key_heads * keys != inputs[1] {
        return Err(format!(
            "{heads} value heads do not match keys of width {} with {keys} channels per head",
            inputs[1]
        ));
    }
    if inputs != [inputs[1], inputs[1], heads * values, heads, heads] {
        return Err(format!(
            "queries, keys, values, dt and beta of widths {inputs:?} do not match {heads} recurrent states of {keys} by {values}"
        ));
    }
    for vector in vectors {
        match shape(body, vector)? {
            [width] if *width == heads => {}
            other => return Err(format!("a_log or dt_bias {other:?} does not match {heads} heads")),
        }
    }
    Ok(heads * values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConvState, Param, ParamKind, State};

    /// A body with taps, a conv state, a_log, a recurrent state and a matrix as parameters.
    fn body() -> Body {
        let param = |kind| Param { name: "any".to_owned(), kind };
        let kinds = [
            ParamKind::Weight(vec![24]),
            ParamKind::State(State::Conv(ConvState { rows: 3, width: 6 })),
            ParamKind::Weight(vec![4]),
            ParamKind::State(State::Recurrent(RecurrentState { heads: 4, keys: 3, values: 5 })),
            ParamKind::Weight(vec![6, 4]),
            ParamKind::State(State::Conv(ConvState { rows: 0, width: 24 })),
        ];
        let params = kinds.into_iter().map(param).collect();
        Body { name: "any".to_owned(), input: 1, params, nodes: Vec::new() }
    }

    #[test]
    fn computes_output_widths_and_rejects_mismatches() {
        let body = &body();
        assert_eq!(convolve(body, [0, 1].map(ParamId), 6), Ok(6));
        for keys in [3, 6, 12] {
            assert_eq!(
                delta_rule(body, [2, 2].map(ParamId), [0.5, 1e-6], ParamId(3), &[keys, keys, 20, 4, 4]),
                Ok(20)
            );
        }
    }

    #[test]
    fn rejects_shapes_that_do_not_match() {
        let body = &body();
        let convolved = |params: [usize; 2], x| convolve(body, params.map(ParamId), x);
        let timed = |vectors: [usize; 2], by, recurrent_state, inputs: [usize; 5]| {
            delta_rule(body, vectors.map(ParamId), by, ParamId(recurrent_state), &inputs)
        };
        let ruled = |by, recurrent_state, inputs| timed([2, 2], by, recurrent_state, inputs);
        let fit = [6, 6, 20, 4, 4];
        for (expected, result) in [
            ("is not a conv state", convolved([0, 3], 6)),
            ("width 6 does not match input width 7", convolved([0, 1], 7)),
            ("has no rows", convolved([0, 5], 24)),
            ("taps [6, 4]", convolved([4, 1], 6)),
            ("is not a weight", convolved([1, 1], 6)),
            ("a_log or dt_bias [24] does not match 4 heads", timed([2, 0], [1.0, 1e-6], 3, fit)),
            ("a_log or dt_bias [24] does not match 4 heads", timed([0, 2], [1.0, 1e-6], 3, fit)),
            ("is not a recurrent state", ruled([1.0, 1e-6], 1, fit)),
            ("invalid scale 0", ruled([0.0, 1e-6], 3, fit)),
            ("or epsilon 0", ruled([1.0, 0.0], 3, fit)),
            ("or epsilon NaN", ruled([1.0, f32::NAN], 3, fit)),
            ("4 value heads do not match keys of width 9", ruled([1.0, 1e-6], 3, [9, 9, 20, 4, 4])),
            ("4 value heads do not match keys of width 7", ruled([1.0, 1e-6], 3, [7, 7, 20, 4, 4])),
            ("of widths [3, 6, 20, 4, 4]", ruled([1.0, 1e-6], 3, [3, 6, 20, 4, 4])),
            ("of widths [6, 6, 20, 4, 1]", ruled([1.0, 1e-6], 3, [6, 6, 20, 4, 1])),
        ] {
            let why = result.expect_err(expected);
            assert!(why.contains(expected), "expected {expected}: {why}");
        }
    }
}
