//! The error of int8 activations: the CPU's default logits compared with those of `--f32-activations`.
//!
//! Every position of every golden sequence is compared, in standard deviations of the f32 logits. Two bounds in
//! golden.json are on the root mean square of the logit differences at most positions: rounding errors of int8
//! activations are like noise, so the largest difference grows with the vocabulary, and the root mean square does not.
//! The third bound is on any logit at any position.

use crate::engine::golden::{ActivationBound, Golden};
use crate::engine::{Engine, Output};
use crate::session::generation::log_sum_exp;
use forge_device::device::Device;
use forge_device::error::Error;
use forge_device::sampling::argmax::argmax;
use serde_json::{Value, json};

/// The logits of every position of every golden sequence. Each sequence runs in its own chunks.
pub(crate) fn all_logits<D: Device>(golden: &Golden, engine: &mut Engine<D>) -> Result<Vec<Vec<f32>>, Error> {
    let mut logits = Vec::new();
    for sequence in &golden.sequences {
        engine.truncate(0, 0);
        let mut ids = &sequence.ids[..];
        for &count in &sequence.chunks {
            let (chunk, rest) = ids.split_at(count);
            logits.extend(engine.run_tokens(0, chunk, Output::AllLogits)?.logits);
            ids = rest;
        }
    }
    Ok(logits)
}

/// The difference between logits with int8 and with f32 activations.
pub(crate) struct Divergence {
    /// KL divergence of each position, in nats.
    kl: Vec<f64>,
    /// The root mean square of the logit differences of each position, in standard deviations of the f32 logits, ascending.
    distances: Vec<f64>,
    /// The largest difference of any logit, in the same unit.
    largest: f64,
    /// Number of positions with the same most probable token.
    same: usize,
}

impl Divergence {
    /// Compares the logits position by position.
    pub(crate) fn between(exact: &[Vec<f32>], rounded: &[Vec<f32>]) -> Divergence {
        let pairs = || exact.iter().zip(rounded);
        let mut distances: Vec<f64> = pairs().map(|(p, q)| distance(p, q)).collect();
        distances.sort_by(f64::total_cmp);
        Divergence {
            largest: pairs().map(|(p, q)| largest_difference(p, q)).fold(0.0, f64::max),
            kl: pairs().map(|(p, q)| kl_divergence(p, q)).collect(),
            distances,
            same: pairs().filter(|(p, q)| argmax(p) == argmax(q)).count(),
        }
    }

    /// The quantile of the distances: the smallest that at least this fraction of positions does not exceed.
    fn quantile(&self, fraction: f64) -> f64 {
        let rank = (fraction * self.distances.len() as f64).ceil() as usize;
        self.distances.get(rank.max(1) - 1).copied().unwrap_or(f64::INFINITY)
    }

    /// What a bound applies to: the root mean square at a share of the positions, or any logit.
    fn bounded(&self, share: f64) -> f64 {
        if share < 1.0 { self.quantile(share) } else { self.largest }
    }

    fn mean_kl(&self) -> f64 {
        self.kl.iter().sum::<f64>() / self.kl.len() as f64
    }

    fn largest_kl(&self) -> f64 {
        self.kl.iter().copied().fold(0.0, f64::max)
    }

    fn same_share(&self) -> f64 {
        self.same as f64 / self.distances.len() as f64
    }

    /// Whether every bound holds. A NaN logit counts as an infinite distance and violates any bound.
    pub(crate) fn is_within(&self, bounds: &[ActivationBound]) -> bool {
        let holds = |bound: &ActivationBound| self.bounded(bound.share) <= bound.bound;
        self.largest.is_finite() && bounds.iter().all(holds)
    }

    /// Two lines of text for the terminal.
    pub(crate) fn text(&self, bounds: &[ActivationBound]) -> String {
        let distances: Vec<String> = [(0.5, "median"), (0.9, "90th percentile"), (1.0, "any logit at most")]
            .into_iter()
            .map(|(share, name)| match bounds.iter().find(|bound| bound.share == share) {
                Some(bound) => format!("{name} {:.3} (bound {})", self.bounded(share), bound.bound),
                None => format!("{name} {:.3} (no bound)", self.bounded(share)),
            })
            .collect();
        format!(
            "  KL divergence {:.2e} nats on average, {:.2e} at most; argmax matches at {} of {} positions\n\
             \x20 logit differences of a position, root mean square in standard deviations: {}   {}\n",
            self.mean_kl(),
            self.largest_kl(),
            self.same,
            self.distances.len(),
            distances.join(", "),
            if self.is_within(bounds) { "ok" } else { "FAIL: error above tolerance" },
        )
    }

    /// The same values as JSON.
    pub(crate) fn json(&self, bounds: &[ActivationBound]) -> Value {
        let finite = |number: f64| number.min(f64::MAX);
        json!({
            "ok": self.is_within(bounds),
            "positions": self.distances.len(),
            "kl_mean": finite(self.mean_kl()),
            "kl_max": finite(self.largest_kl()),
            "same_top_token": self.same_share(),
            "distance": {
                "median": finite(self.quantile(0.5)),
                "p90": finite(self.quantile(0.9)),
                "max": finite(self.largest),
            },
            "bounds": bounds.iter().map(|bound| json!({"share": bound.share, "bound": bound.bound})).collect::<Vec<_>>(),
        })
    }
}

/// The largest logit difference, in standard deviations of `exact`; infinite if a logit is NaN.
fn largest_difference(exact: &[f32], rounded: &[f32]) -> f64 {
    let differences = exact.iter().zip(rounded).map(|(p, q)| f64::from(p - q).abs());
    let worst =
        differences.fold(0.0, |worst: f64, next| if next.is_nan() { f64::INFINITY } else { worst.max(next) });
    let exact: Vec<f64> = exact.iter().copied().map(f64::from).collect();
    if worst == 0.0 { 0.0 } else { worst / variance(&exact).sqrt() }
}

/// The root mean square of the logit differences, in standard deviations of `exact`; infinite if a logit is NaN. Their
/// mean is subtracted first, because it changes no probability.
fn distance(exact: &[f32], rounded: &[f32]) -> f64 {
    let differences: Vec<f64> = exact.iter().zip(rounded).map(|(p, q)| f64::from(p - q)).collect();
    let exact: Vec<f64> = exact.iter().copied().map(f64::from).collect();
    let [variance, of_differences] = [&exact, &differences].map(|numbers| variance(numbers));
    match of_differences {
        0.0 => 0.0,
        nan if nan.is_nan() => f64::INFINITY,
        _ => (of_differences / variance).sqrt(),
    }
}

/// The mean squared deviation from the mean.
fn variance(numbers: &[f64]) -> f64 {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count
}

/// The KL divergence of `rounded` from `exact`, in nats; infinite if it is NaN.
fn kl_divergence(exact: &[f32], rounded: &[f32]) -> f64 {
    let (p_sum, q_sum) = (log_sum_exp(exact), log_sum_exp(rounded));
    let terms = exact.iter().zip(rounded).map(|(&p, &q)| {
        let (p, q) = (f64::from(p) - p_sum, f64::from(q) - q_sum);
        p.exp() * (p - q)
    });
    let sum: f64 = terms.sum();
    // Rounding can make a divergence of zero slightly negative.
    if sum.is_nan() { f64::INFINITY } else { sum.max(0.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(share: f64, bound: f64) -> ActivationBound {
        ActivationBound { share, bound, reason: String::new() }
    }

    #[test]
    fn divergence_of_two_distributions() {
        // p = (1/2, 1/2), q = (3/4, 1/4): KL(p, q) = ln 2 - ln 3 / 2.
        let kl = kl_divergence(&[0.0, 0.0], &[3.0_f32.ln(), 0.0]);
        assert!((kl - (2.0_f64.ln() - 3.0_f64.ln() / 2.0)).abs() < 1e-6, "{kl}");
        assert_eq!(kl_divergence(&[1.0, 2.0], &[f32::NAN, 2.0]), f64::INFINITY);
        // A standard deviation of 2, and differences of 1 and 0.
        assert_eq!(distance(&[-2.0, 2.0], &[-1.0, 2.0]), 0.25);
        assert_eq!(distance(&[-2.0, 2.0], &[-1.0, 3.0]), 0.0, "all logits are larger by 1");
        assert_eq!(distance(&[3.0, 3.0], &[3.0, 3.0]), 0.0);
        assert_eq!(largest_difference(&[-2.0, 2.0], &[-1.0, 2.0]), 0.5);
        assert_eq!(largest_difference(&[-2.0, 2.0], &[f32::NAN, 2.0]), f64::INFINITY);
    }

    #[test]
    fn bounds_apply_to_their_fraction_of_positions() {
        let exact = vec![vec![-1.0, 1.0]; 10];
        let rounded: Vec<Vec<f32>> = (0..10).map(|index| vec![-1.0, 1.0 + index as f32]).collect();
        let found = Divergence::between(&exact, &rounded);
        assert_eq!([0.5, 0.9, 1.0].map(|share| found.bounded(share)), [2.0, 4.0, 9.0]);
        assert!(found.is_within(&[bound(0.5, 2.0), bound(0.9, 4.0), bound(1.0, 9.0)]));
        for (share, limit) in [(0.5, 1.9), (0.9, 3.9), (1.0, 8.9)] {
            assert!(!found.is_within(&[bound(share, limit)]));
        }
        let nan = Divergence::between(&exact[..1], &[vec![f32::NAN, 1.0]]);
        assert!(!nan.is_within(&[]), "NaN violates any bound");
    }
}
