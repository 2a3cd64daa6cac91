//! How much an error of each matrix changes the logits, for `--quant auto:BITS` with `--calibrate`.
//!
//! For small errors the KL divergence of the logits grows with the squared errors of the matrices' outputs,
//! and the divergences of independent errors add up. A matrix's *sensitivity* is the divergence for a squared
//! error of 1. It is measured: the reference evaluates the calibration text, or as much of it as
//! [`MULTIPLICATIONS`] and [`LOGITS`] allow, with some matrices rounded to [`PROBE`], and compares the logits.
//!
//! Measuring each matrix would take too long. The sensitivity of a matrix of a layer is taken to be the product
//! of a factor of its layer and a factor of its role. The factors are fitted to measurements of some adjacent
//! layers at a time, and of one role in all layers at a time. A matrix outside of layers is measured alone.

use forge_ir::{Diagnostic, Format, Graph, ImportanceMatrix, Packed, WeightId, WeightRows};
use forge_reference::{evaluate_f32, kl_divergence};
use forge_weights::Requantized;
use std::collections::BTreeMap;

/// Format of the errors that are measured.
pub(crate) const PROBE: &str = "affine4";

/// Maximum number of measurements of layers.
const LAYER_GROUPS: usize = 8;

/// With fewer tokens nothing is measured.
const MIN_TOKENS: usize = 64;

/// Maximum number of multiplications of all measurements: minutes.
const MULTIPLICATIONS: u64 = 4_000_000_000_000;

/// Maximum number of logits of one evaluation. Two are in memory.
const LOGITS: usize = 1 << 26;

/// What one measurement rounds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Probed {
    /// A group of adjacent layers.
    Layers(usize),
    /// A role in all layers, or a matrix outside of layers.
    Role(String),
}

/// Layer group and role of a matrix; no group outside of layers.
fn place(packed: &Packed, layers: usize) -> (Option<usize>, String) {
    let in_layer = packed.name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
    let layer = in_layer.and_then(|(layer, role)| Some((layer.parse::<usize>().ok()?, role)));
    match layer {
        Some((layer, role)) => {
            let groups = LAYER_GROUPS.min(layers).max(1);
            (Some(layer * groups / layers.max(1)), role.to_owned())
        }
        None => (None, packed.name.clone()),
    }
}

/// The measured sensitivities of matrices, whose expected squared errors in [`PROBE`] are `errors`. `None` if
/// measuring would take too long. `progress` is called after each measurement, with the number of all.
pub(crate) fn measure(
    graph: &Graph,
    weights: &dyn WeightRows,
    (statistics, sequences): (&ImportanceMatrix, &[Vec<u32>]),
    matrices: &[(&Packed, f64)],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<Vec<f64>>, Diagnostic> {
    let Some(probe) = Format::from_name(PROBE) else { return Ok(None) };
    let layers = graph.layers.len();
    let mut rounded: BTreeMap<Probed, Vec<WeightId>> = BTreeMap::new();
    for (packed, _) in matrices {
        let (group, role) = place(packed, layers);
        let probes = group.map(Probed::Layers).into_iter().chain([Probed::Role(role)]);
        probes.for_each(|probed| rounded.entry(probed).or_default().extend(&packed.parts));
    }
    let parameters: u64 =
        graph.weights.iter().map(|weight| (weight.rows() * weight.columns()) as u64).sum::<u64>().max(1);
    let affordable = MULTIPLICATIONS / parameters / (1 + rounded.len() as u64);
    let most = usize::try_from(affordable).unwrap_or(usize::MAX).min(LOGITS / graph.model.vocabulary.max(1));
    let sequences = first_tokens(sequences, most);
    if most < MIN_TOKENS || sequences.is_empty() {
        return Ok(None);
    }
    let logits = |weights: &dyn WeightRows| -> Result<Vec<Vec<f32>>, Diagnostic> {
        let each = sequences.iter().map(|ids| evaluate_f32(graph, weights, ids));
        each.collect::<Result<Vec<_>, _>>().map(|all| all.concat())
    };
    let exact = logits(weights)?;
    let mut divergences = BTreeMap::new();
    let count = rounded.len();
    for (done, (probed, ids)) in rounded.into_iter().enumerate() {
        let changed = Requantized::new(graph, weights, statistics, probe, ids);
        divergences.insert(probed, kl_divergence(&exact, &logits(&changed)?).max(0.0));
        progress(done + 1, count);
    }
    let places: Vec<_> = matrices.iter().map(|(packed, error)| (place(packed, layers), *error)).collect();
    Ok(Some(fit(&places, &divergences)))
}

/// The first tokens of some sequences.
fn first_tokens(sequences: &[Vec<u32>], mut left: usize) -> Vec<Vec<u32>> {
    let mut taken = Vec::new();
    for sequence in sequences {
        let count = sequence.len().min(left);
        if count > 1 {
            taken.push(sequence[..count].to_vec());
        }
        left -= count;
    }
    taken
}

/// Factors of layers and roles such that the sums of sensitivity times error match the divergences, by
/// iterative proportional fitting.
fn fit(places: &[((Option<usize>, String), f64)], divergences: &BTreeMap<Probed, f64>) -> Vec<f64> {
    const ROUNDS: usize = 50;
    let mut factors: BTreeMap<Probed, f64> = divergences.keys().map(|probed| (probed.clone(), 1.0)).collect();
    let probes = |(group, role): &(Option<usize>, String)| {
        [group.map(Probed::Layers), Some(Probed::Role(role.clone()))]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
    };
    let probes: Vec<Vec<Probed>> = places.iter().map(|(place, _)| probes(place)).collect();
    let sensitivity = |factors: &BTreeMap<Probed, f64>, matrix: usize| -> f64 {
        probes[matrix].iter().map(|probed| factors[probed]).product()
    };
    for _ in 0..ROUNDS {
        for (probed, divergence) in divergences {
            let own = (0..places.len()).filter(|matrix| probes[*matrix].contains(probed));
            let sum: f64 = own.map(|matrix| sensitivity(&factors, matrix) * places[matrix].1).sum();
            if let Some(factor) = factors.get_mut(probed).filter(|_| sum > 0.0) {
                *factor *= divergence / sum;
            }
        }
    }
    (0..places.len()).map(|matrix| sensitivity(&factors, matrix)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fit_recovers_products_of_layer_and_role() {
        let (layers, roles) = ([1.0, 3.0, 0.5], [("down", 2.0), ("qkv", 0.25)]);
        let error = |layer: usize, role: usize| 0.1 + 0.3 * layer as f64 + 0.7 * role as f64;
        let mut places = vec![((None, "head".to_owned()), 0.2)];
        let mut divergences = BTreeMap::from([(Probed::Role("head".to_owned()), 0.01)]);
        let mut expected = vec![0.05];
        for (layer, of_layer) in layers.iter().enumerate() {
            for (role, (name, of_role)) in roles.iter().enumerate() {
                places.push(((Some(layer), (*name).to_owned()), error(layer, role)));
                expected.push(of_layer * of_role);
                let divergence = of_layer * of_role * error(layer, role);
                *divergences.entry(Probed::Layers(layer)).or_default() += divergence;
                *divergences.entry(Probed::Role((*name).to_owned())).or_default() += divergence;
            }
        }
        for (found, expected) in fit(&places, &divergences).iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn takes_the_first_tokens() {
        let sequences = [vec![1, 2, 3], vec![4, 5, 6]];
        assert_eq!(first_tokens(&sequences, 5), [vec![1, 2, 3], vec![4, 5]]);
        assert_eq!(first_tokens(&sequences, 4), [vec![1, 2, 3]], "one token has nothing before it");
    }
}
