//! Width checks of MLA in absorbed form.
//!
//! A head's key is its key matrix times the latent, and its value likewise. Neither is materialized: queries
//! are multiplied by the transposed key matrices first ([`crate::Op::PerHeadLinear`], `transposed`), and the
//! weighted sum of latents by the value matrices last. The cache holds latents and rope keys only.
//!
//! Each function returns the width of a node's result, or an error.

use crate::graph::draft::{Body, ParamId};
use crate::graph::state::LatentCache;

/// Width of a per-head linear layer: each head's matrix times its part of an input of width `x`.
pub(crate) fn per_head_linear(
    shape: &[usize],
    heads: usize,
    transposed: bool,
    x: usize,
) -> Result<usize, String> {
    let &[all, columns] = shape else { return Err(format!("expected a matrix, found weight {shape:?}")) };
    if heads == 0 || all == 0 || !all.is_multiple_of(heads) {
        return Err(format!("{all} rows are not a multiple of {heads} heads"));
    }
    let (takes, gives) = if transposed { (all, heads * columns) } else { (heads * columns, all) };
    if takes == x {
        Ok(gives)
    } else {
        Err(format!("weight {shape:?} of {heads} heads does not match input width {x}"))
    }
}

/// Width of attention over latents and rope keys.
pub(crate) fn attention(
    body: &Body,
    heads: usize,
    scale: f32,
    cache: ParamId,
    inputs: &[usize],
) -> Result<usize, String> {
    let Some(&LatentCache { width, rope_width }) = body.latents(cache) else {
        return Err("the cache parameter is not an MLA cache".to_owned());
    };
    if heads == 0 || width == 0 || scale == 0.0 || !scale.is_finite() {
        return Err(format!("invalid {heads} heads over latents of {width} with scale {scale}"));
    }
    if inputs != [heads * width, heads * rope_width, width, rope_width] {
        return Err(format!(
            "queries, rope queries, latents and rope keys of widths {inputs:?} do not match {heads} heads over {width} and {rope_width}"
        ));
    }
    Ok(heads * width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Param, ParamKind, State};

    #[test]
    fn computes_output_widths_and_rejects_mismatches() {
        assert_eq!(per_head_linear(&[12, 5], 3, false, 15), Ok(12));
        assert_eq!(per_head_linear(&[12, 5], 3, true, 12), Ok(15));
        let kind = ParamKind::State(State::Latents(LatentCache { width: 6, rope_width: 2 }));
        let params = vec![Param { name: "cache".to_owned(), kind }];
        let body = Body { name: "any".to_owned(), input: 1, params, nodes: Vec::new() };
        let attend =
            |heads, scale, cache, inputs: [usize; 4]| attention(&body, heads, scale, ParamId(cache), &inputs);
        assert_eq!(attend(3, 0.5, 0, [18, 6, 6, 2]), Ok(18));
        for (expected, result) in [
            ("is not an MLA cache", attend(3, 0.5, 1, [18, 6, 6, 2])),
            ("0 heads", attend(0, 0.5, 0, [0, 0, 6, 2])),
            ("with scale 0", attend(3, 0.0, 0, [18, 6, 6, 2])),
            ("of widths [18, 6, 6, 6]", attend(3, 0.5, 0, [18, 6, 6, 6])),
            ("expected a matrix", per_head_linear(&[12], 3, false, 12)),
            ("12 rows are not", per_head_linear(&[12, 5], 5, false, 25)),
            ("input width 12", per_head_linear(&[12, 5], 3, false, 12)),
            ("input width 15", per_head_linear(&[12, 5], 3, true, 15)),
        ] {
            let why = result.expect_err(expected);
            assert!(why.contains(expected), "expected {expected}: {why}");
        }
    }
}
