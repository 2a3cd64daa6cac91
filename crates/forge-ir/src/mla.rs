//! Widths of attention over latents, of which every head makes a key and a value of its own.
//!
//! A head's key is its matrix times the latent, and so is its value. Neither is made here: what is to be multiplied with a key
//! is multiplied with the matrix first ([`crate::Op::EachHead`], turned), and the sum of latents with the matrix of values
//! last. So a cache holds latents alone, with the part of a key that tells of its position, which is not made of one.
//!
//! Each function gives the width of a node's result from those of its inputs, or says why it has none.

use crate::graph::{Body, ParamId};
use crate::state::LatentCache;

/// Every head's matrix, of a weight of this shape, times its part of what is `x` wide.
pub(crate) fn each_head(shape: &[usize], heads: usize, turned: bool, x: usize) -> Result<usize, String> {
    let &[all, columns] = shape else { return Err(format!("the weight is {shape:?}, and no matrix")) };
    if heads == 0 || all == 0 || !all.is_multiple_of(heads) {
        return Err(format!("{all} rows are not matrices of {heads} heads"));
    }
    let (takes, gives) = if turned { (all, heads * columns) } else { (heads * columns, all) };
    if takes == x {
        Ok(gives)
    } else {
        Err(format!("the weight is {shape:?} for {heads} heads, and its input {x} wide"))
    }
}

/// Attention of queries and turned queries over latents and turned keys.
pub(crate) fn attention(
    body: &Body,
    heads: usize,
    scale: f32,
    cache: ParamId,
    inputs: &[usize],
) -> Result<usize, String> {
    let Some(&LatentCache { width, turned }) = body.latents(cache) else {
        return Err("its cache is not one of latents".to_owned());
    };
    if heads == 0 || width == 0 || scale == 0.0 || !scale.is_finite() {
        return Err(format!("{heads} heads over latents of {width}, scaled by {scale}, say nothing"));
    }
    if inputs != [heads * width, heads * turned, width, turned] {
        return Err(format!(
            "queries, turned queries, latents and turned keys are {inputs:?} wide, for {heads} heads over {width} and {turned}"
        ));
    }
    Ok(heads * width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Param, ParamKind, State};

    #[test]
    fn what_fits_has_a_width() {
        assert_eq!(each_head(&[12, 5], 3, false, 15), Ok(12));
        assert_eq!(each_head(&[12, 5], 3, true, 12), Ok(15));
        let kind = ParamKind::State(State::Latents(LatentCache { width: 6, turned: 2 }));
        let params = vec![Param { name: "cache".to_owned(), kind }];
        let body = Body { name: "any".to_owned(), input: 1, params, nodes: Vec::new() };
        let attend =
            |heads, scale, cache, inputs: [usize; 4]| attention(&body, heads, scale, ParamId(cache), &inputs);
        assert_eq!(attend(3, 0.5, 0, [18, 6, 6, 2]), Ok(18));
        for (told, result) in [
            ("not one of latents", attend(3, 0.5, 1, [18, 6, 6, 2])),
            ("0 heads", attend(0, 0.5, 0, [0, 0, 6, 2])),
            ("scaled by 0", attend(3, 0.0, 0, [18, 6, 6, 2])),
            ("are [18, 6, 6, 6] wide", attend(3, 0.5, 0, [18, 6, 6, 6])),
            ("no matrix", each_head(&[12], 3, false, 12)),
            ("12 rows are not", each_head(&[12, 5], 5, false, 25)),
            ("its input 12 wide", each_head(&[12, 5], 3, false, 12)),
            ("its input 15 wide", each_head(&[12, 5], 3, true, 15)),
        ] {
            let why = result.expect_err(told);
            assert!(why.contains(told), "should say {told}: {why}");
        }
    }
}
