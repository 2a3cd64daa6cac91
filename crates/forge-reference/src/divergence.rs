//! The KL divergence of logits.

use crate::parallel::parallel_ranges;

/// The mean KL divergence, in nats, of the token probabilities of `found` from those of `exact`: two lists of
/// logits of the same positions.
pub fn kl_divergence(exact: &[Vec<f32>], found: &[Vec<f32>]) -> f64 {
    let positions = exact.len().min(found.len());
    let operations = 64 * exact.first().map_or(0, Vec::len);
    let parts = parallel_ranges(positions, operations, |range| {
        range.map(|position| divergence(&exact[position], &found[position])).collect::<Vec<f64>>()
    });
    // Added in the order of positions, whatever the number of threads.
    parts.concat().iter().sum::<f64>() / positions.max(1) as f64
}

/// The divergence at one position.
fn divergence(exact: &[f32], found: &[f32]) -> f64 {
    let (of_exact, of_found) = (log_sum_exp(exact), log_sum_exp(found));
    let term = |(p, q): (&f32, &f32)| {
        let (p, q) = (f64::from(*p) - of_exact, f64::from(*q) - of_found);
        p.exp() * (p - q)
    };
    exact.iter().zip(found).map(term).sum()
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |largest, x| largest.max(*x));
    f64::from(largest) + logits.iter().map(|x| f64::from(x - largest).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_matches_its_definition() {
        // Probabilities 1/2 and 1/2 against 1/4 and 3/4; a constant added to logits has no effect.
        let (even, uneven) = (vec![7.0, 7.0], vec![0.0, 3_f32.ln()]);
        let expected = 0.5 * 2_f64.ln() + 0.5 * (2.0_f64 / 3.0).ln();
        let found = kl_divergence(&[even.clone(), even.clone()], &[uneven, even]);
        assert!((found - expected / 2.0).abs() < 1e-7, "{found} {expected}");
        assert_eq!(kl_divergence(&[], &[]), 0.0);
    }
}
