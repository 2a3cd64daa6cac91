//! Mixture of experts by definition: routing, and the weighted sum of experts' outputs.

use crate::linear::{Precision, linear};
use crate::rows::Values;
use forge_ir::{Diagnostic, Groups, Routing, Scores, WeightId, WeightRows};
use std::cmp::Ordering;

/// Added to the sum of weights before dividing, so that all-zero weights stay zero.
const SUM_EPSILON: f64 = 1e-20;

/// The vectors of a routing.
#[derive(Clone, Copy, Default)]
pub(crate) struct Vectors<'a> {
    /// Correction bias, added to scores for the selection.
    pub(crate) correction: Option<&'a [f32]>,
    /// Multiplies each expert's weight.
    pub(crate) scale: Option<&'a [f32]>,
}

/// Every row's expert weights, 0 for experts that are not selected.
pub(crate) fn route(logits: &Values, routing: &Routing, vectors: Vectors<'_>) -> Values {
    let data = logits.rows().flat_map(|logits| weights(logits, routing, vectors)).collect();
    Values { width: logits.width, data }
}

fn weights(logits: &[f32], routing: &Routing, vectors: Vectors<'_>) -> Vec<f32> {
    let scores = scores(logits, routing.scores);
    let chosen = chosen(&ranks(logits, &scores, routing, vectors.correction), routing);
    let sum: f64 = chosen.iter().map(|expert| scores[*expert]).sum();
    let divisor = if routing.renormalize { sum + SUM_EPSILON } else { 1.0 };
    let mut weights = vec![0.0; logits.len()];
    for expert in chosen {
        let scale = vectors.scale.map_or(1.0, |scale| f64::from(scale[expert]));
        weights[expert] = (scores[expert] / divisor * f64::from(routing.factor) * scale) as f32;
    }
    weights
}

fn scores(logits: &[f32], scores: Scores) -> Vec<f64> {
    let wide = || logits.iter().map(|logit| f64::from(*logit));
    match scores {
        Scores::Sigmoid => wide().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
        Scores::Softmax => {
            let largest = wide().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = wide().map(|logit| (logit - largest).exp()).sum();
            wide().map(|logit| (logit - largest).exp() / total).collect()
        }
    }
}

/// The ranking of experts. Without a correction these are the logits, which have the same order as the scores
/// and do not underflow.
fn ranks(logits: &[f32], scores: &[f64], routing: &Routing, correction: Option<&[f32]>) -> Vec<f64> {
    match correction {
        None if routing.groups.is_none() => logits.iter().map(|logit| f64::from(*logit)).collect(),
        None => scores.to_vec(),
        Some(correction) => scores.iter().zip(correction).map(|(a, b)| a + f64::from(*b)).collect(),
    }
}

/// The experts of a row, best first.
fn chosen(ranks: &[f64], routing: &Routing) -> Vec<usize> {
    let Some(Groups { count, kept, best: worth }) = routing.groups else {
        return top_k(ranks, 0..ranks.len(), routing.chosen);
    };
    let size = ranks.len() / count;
    let group = |group: usize| group * size..(group + 1) * size;
    let worth =
        |index: usize| top_k(ranks, group(index), worth).into_iter().map(|expert| ranks[expert]).sum::<f64>();
    let worths: Vec<f64> = (0..count).map(worth).collect();
    let kept = top_k(&worths, 0..count, kept);
    top_k(ranks, kept.into_iter().flat_map(group), routing.chosen)
}

/// The `count` places with the largest ranks, in order. NaN counts as largest; ties go to the lower index.
fn top_k(ranks: &[f64], places: impl IntoIterator<Item = usize>, count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = places.into_iter().collect();
    places.sort_by(|a, b| descending(ranks[*a], ranks[*b]).then(a.cmp(b)));
    places.truncate(count);
    places
}

fn descending(a: f64, b: f64) -> Ordering {
    b.is_nan().cmp(&a.is_nan()).then(b.partial_cmp(&a).unwrap_or(Ordering::Equal))
}

/// The stacks of a layer's experts.
#[derive(Clone, Copy)]
pub(crate) struct Stacks<'a> {
    pub(crate) gate: WeightId,
    pub(crate) up: WeightId,
    pub(crate) down: WeightId,
    /// Biases of all experts, concatenated.
    pub(crate) biases: Option<&'a [Vec<f32>; 3]>,
    /// Rows of each expert's gate and up.
    pub(crate) inner: usize,
    /// Rows of each expert's down.
    pub(crate) width: usize,
}

/// The sum over experts of weight · down(gated(gate(x), up(x))). Experts that no row selected are not read.
/// `record` is called with the inputs of each expert's matrices.
pub(crate) fn experts(
    source: (&dyn WeightRows, Precision),
    stacks: Stacks<'_>,
    gated: impl Fn(f64, f64) -> f64,
    record: impl Fn(WeightId, usize, &Values),
    [x, weights]: [&Values; 2],
) -> Result<Values, Diagnostic> {
    let Stacks { gate, up, down, biases, inner, width } = stacks;
    let count = x.rows().count();
    let mut sums = vec![0.0_f64; count * width];
    for expert in 0..weights.width {
        let rows: Vec<usize> = (0..count).filter(|row| weights.row(*row)[expert] != 0.0).collect();
        if rows.is_empty() {
            continue;
        }
        let own = rows.iter().flat_map(|row| x.row(*row)).copied().collect();
        let own = Values { width: x.width, data: own };
        let product = |index: usize, weight: WeightId, of: usize, x: &Values| {
            let part = expert * of..(expert + 1) * of;
            let bias = biases.map(|biases| &biases[index][part.clone()]);
            record(weight, expert, x);
            linear(source, weight, part, bias, x)
        };
        let (gate, up) = (product(0, gate, inner, &own)?, product(1, up, inner, &own)?);
        let inner = gate.zip(&up, |gate, up| gated(f64::from(gate), f64::from(up)) as f32);
        let result = product(2, down, width, &inner)?;
        for (row, result) in rows.into_iter().zip(result.rows()) {
            let weight = f64::from(weights.row(row)[expert]);
            let sums = &mut sums[row * width..(row + 1) * width];
            sums.iter_mut().zip(result).for_each(|(sum, x)| *sum += weight * f64::from(*x));
        }
    }
    Ok(Values { width, data: sums.into_iter().map(|sum| sum as f32).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Routing = Routing {
        scores: Scores::Softmax,
        chosen: 2,
        correction: None,
        groups: None,
        renormalize: false,
        factor: 1.0,
        scale: None,
    };

    fn routed(logits: &[f32], routing: &Routing, vectors: Vectors<'_>) -> Vec<f32> {
        weights(logits, routing, vectors)
    }

    /// The experts with a nonzero weight.
    fn selected(logits: &[f32], routing: &Routing, vectors: Vectors<'_>) -> Vec<usize> {
        let weights = routed(logits, routing, vectors);
        (0..weights.len()).filter(|expert| weights[*expert] != 0.0).collect()
    }

    #[test]
    fn routing_weights_are_scores_or_softmax_times_factor_and_scale() {
        let logits = [0.0, 2_f32.ln(), 5_f32.ln(), -1e9];
        assert_eq!(routed(&logits, &PLAIN, Vectors::default()), [0.0, 0.25, 0.625, 0.0]);
        let renormalize = Routing { renormalize: true, factor: 7.0, ..PLAIN };
        assert_eq!(routed(&logits, &renormalize, Vectors::default()), [0.0, 2.0, 5.0, 0.0]);
        let scale = Vectors { scale: Some(&[9.0, 2.0, 3.0, 9.0]), ..Vectors::default() };
        assert_eq!(routed(&logits, &renormalize, scale), [0.0, 4.0, 15.0, 0.0]);
        let sigmoid = Routing { scores: Scores::Sigmoid, ..PLAIN };
        assert_eq!(routed(&[0.0, 3_f32.ln(), -9.0], &sigmoid, Vectors::default()), [0.5, 0.75, 0.0]);
    }

    #[test]
    fn correction_bias_affects_selection_only() {
        let sigmoid = Routing { scores: Scores::Sigmoid, chosen: 1, ..PLAIN };
        let correction = Vectors { correction: Some(&[0.0, 0.0, 0.6]), ..Vectors::default() };
        assert_eq!(routed(&[0.0, 1.0, 0.0], &sigmoid, correction), [0.0, 0.0, 0.5]);
    }

    #[test]
    fn ties_select_the_lowest_expert() {
        let three = Routing { chosen: 3, ..PLAIN };
        assert_eq!(selected(&[1.0, 2.0, 1.0, 2.0, 1.0, 1.0], &three, Vectors::default()), [0, 1, 3]);
        assert_eq!(selected(&[0.0, -0.0, 0.0, -0.0], &three, Vectors::default()), [0, 1, 2]);
        // Scores that underflow to 0 are ordered by their logits.
        assert_eq!(selected(&[-3e4, 3e4, -2e4], &PLAIN, Vectors::default()), [1], "and their weight is 0");
    }

    #[test]
    fn can_select_all_experts() {
        let all = Routing { chosen: 4, renormalize: true, ..PLAIN };
        assert_eq!(routed(&[1.0; 4], &all, Vectors::default()), [0.25; 4]);
    }

    #[test]
    fn nan_scores_are_selected_and_propagate() {
        let nan = f32::NAN;
        let sigmoid = Routing { scores: Scores::Sigmoid, ..PLAIN };
        let weights = routed(&[1.0, nan, 2.0, 0.0], &sigmoid, Vectors::default());
        assert!(weights[1].is_nan() && weights[2] > 0.0, "{weights:?}");
        assert_eq!((weights[0], weights[3]), (0.0, 0.0));
        // Normalization spreads the NaN to all selected experts, each selected once.
        let weights = routed(&[nan; 5], &PLAIN, Vectors::default());
        assert_eq!(
            weights.iter().map(|weight| weight.is_nan()).collect::<Vec<_>>(),
            [true, true, false, false, false]
        );
        let renormalize = Routing { renormalize: true, ..sigmoid };
        assert!(routed(&[1.0, nan, 2.0], &renormalize, Vectors::default())[2].is_nan());
    }

    #[test]
    fn experts_outside_the_selected_groups_are_never_selected() {
        let groups = |kept, best| Routing {
            scores: Scores::Sigmoid,
            groups: Some(Groups { count: 3, kept, best }),
            ..PLAIN
        };
        // By two best experts the second group is best, by one the third.
        let logits = [0.0, 0.1, 1.0, 1.1, 1.2, -2.0];
        assert_eq!(selected(&logits, &groups(1, 2), Vectors::default()), [2, 3]);
        assert_eq!(selected(&logits, &groups(1, 1), Vectors::default()), [4, 5]);
        assert_eq!(selected(&logits, &groups(2, 1), Vectors::default()), [3, 4]);
        assert_eq!(
            selected(&[1.0; 6], &groups(1, 2), Vectors::default()),
            [0, 1],
            "of equal groups the lowest"
        );
    }

    #[test]
    fn weights_with_zero_sum_are_zero() {
        let sigmoid = Routing { scores: Scores::Sigmoid, renormalize: true, ..PLAIN };
        assert_eq!(routed(&[-1e4; 3], &sigmoid, Vectors::default()), [0.0; 3]);
    }
}
