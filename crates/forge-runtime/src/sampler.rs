//! From logits to an id.
//!
//! In this order: logits are divided by the temperature and made probabilities; the `top_k` most probable ids are
//! kept; of these the fewest whose probabilities (of what top-k kept) sum to `top_p`; of these the ones at least
//! `min_p` times as probable as the most probable; one of what is left is drawn by its probability. Of equally
//! probable ids the lower comes first. Temperature 0 takes the first id outright.
//!
//! The same logits, settings and seed give the same ids, on every machine.

use super::golden::largest;

/// How ids are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most probable id always; 1 leaves the model's probabilities as they are.
    pub temperature: f32,
    /// How many ids are kept; 0 keeps all.
    pub top_k: usize,
    /// The share of probability that is kept; 1 keeps all.
    pub top_p: f32,
    /// The smallest probability that is kept, as a part of the largest; 0 keeps all.
    pub min_p: f32,
}

impl Sampling {
    /// Whether chance plays no part.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// What is wrong with the settings.
    pub fn check(&self) -> Result<(), String> {
        let Sampling { temperature, top_p, min_p, .. } = *self;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(format!("a temperature is 0 or more, not {temperature}"));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(format!("top-p is more than 0 and at most 1, not {top_p}"));
        }
        if !(0.0..=1.0).contains(&min_p) {
            return Err(format!("min-p is 0 to 1, not {min_p}"));
        }
        Ok(())
    }
}

/// Draws ids.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: Random,
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    /// A logit first, then a probability that is not normalised.
    weight: f64,
}

impl Sampler {
    /// A sampler whose draws follow from `seed`.
    pub fn new(sampling: Sampling, seed: u64) -> Sampler {
        Sampler { sampling, random: Random(seed), candidates: Vec::new() }
    }

    /// The next id.
    pub fn draw(&mut self, logits: &[f32]) -> u32 {
        if self.sampling.is_greedy() {
            return largest(logits) as u32;
        }
        self.keep(logits);
        let total: f64 = self.candidates.iter().map(|candidate| candidate.weight).sum();
        let mut left = self.random.next() * total;
        for candidate in &self.candidates {
            left -= candidate.weight;
            if left < 0.0 {
                return candidate.id;
            }
        }
        self.candidates.last().map_or(0, |candidate| candidate.id)
    }

    /// Fills `candidates` with the ids that may be drawn, the most probable first where the order matters.
    fn keep(&mut self, logits: &[f32]) {
        let Sampling { temperature, top_k, top_p, min_p } = self.sampling;
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.extend(
            (0..)
                .zip(logits)
                .map(|(id, &logit)| Candidate { id, weight: f64::from(logit) / f64::from(temperature) }),
        );
        let top = candidates.iter().map(|candidate| candidate.weight).fold(f64::NEG_INFINITY, f64::max);
        for candidate in &mut *candidates {
            candidate.weight = (candidate.weight - top).exp();
        }
        // What is not a number must not be drawn.
        candidates.retain(|candidate| candidate.weight > 0.0);
        let order = |a: &Candidate, b: &Candidate| b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id));
        if top_k > 0 && top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k - 1, order);
            candidates.truncate(top_k);
            candidates.sort_unstable_by(order);
        }
        if top_p < 1.0 {
            candidates.sort_unstable_by(order);
            let mut left =
                f64::from(top_p) * candidates.iter().map(|candidate| candidate.weight).sum::<f64>();
            let mut kept = 0;
            while kept < candidates.len() && (left > 0.0 || kept == 0) {
                left -= candidates[kept].weight;
                kept += 1;
            }
            candidates.truncate(kept);
        }
        // The most probable weighs exp(0) = 1.
        candidates.retain(|candidate| candidate.weight >= f64::from(min_p));
    }
}

/// SplitMix64: small, fast, and good enough to draw words with.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    /// A number of [0, 1).
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 11) as f64 / (1_u64 << 53) as f64
    }
}
