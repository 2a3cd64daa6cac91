//! From logits to an id.
//!
//! In this order. First logits are adjusted: `bias` is added; the logits of ids that the prompt or the answer has are
//! divided by `repetition_penalty` (multiplied where they are negative); those of ids that the answer has lose
//! `presence_penalty` once and `frequency_penalty` for each time. A constraint takes its ids out. Then ids are left out:
//! logits are divided by the temperature and made probabilities; the `top_k` most probable ids are kept; of these the
//! ones whose surprise is nearest to the expected one, as many as have `typical_p` of the probability; of these the
//! fewest whose probabilities sum to `top_p`; of these the ones at least `min_p` times as probable as the most probable.
//! Shares are of what the step before has kept. One of what is left is drawn by its probability. Of equally probable ids
//! the lower comes first. Temperature 0 takes the first id after the adjustments.
//!
//! The same logits, settings and seed give the same ids, on every machine.

use super::golden::largest;
use std::collections::BTreeMap;

/// How ids are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most probable id always; 1 leaves the model's probabilities as they are.
    pub temperature: f32,
    /// How many ids are kept; 0 keeps all.
    pub top_k: usize,
    /// The share of probability that is kept of ids as surprising as is to be expected; 1 keeps all.
    pub typical_p: f32,
    /// The share of probability that is kept; 1 keeps all.
    pub top_p: f32,
    /// The smallest probability that is kept, as a part of the largest; 0 keeps all.
    pub min_p: f32,
    /// What makes ids of the prompt and the answer less probable; 1 leaves them.
    pub repetition_penalty: f32,
    /// What ids of the answer lose; 0 leaves them.
    pub presence_penalty: f32,
    /// What ids of the answer lose for each time that they are in it; 0 leaves them.
    pub frequency_penalty: f32,
    /// What is added to the logits of ids.
    pub bias: Vec<(u32, f32)>,
}

impl Default for Sampling {
    /// The model's own probabilities.
    fn default() -> Sampling {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            bias: Vec::new(),
        }
    }
}

impl Sampling {
    /// The most probable id, always.
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// Whether chance plays no part.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether logits are used as the model gives them.
    pub fn leaves_logits(&self) -> bool {
        self.bias.is_empty() && !self.counts_ids()
    }

    /// Whether what has been written matters.
    fn counts_ids(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// What is wrong with the settings.
    pub fn check(&self) -> Result<(), String> {
        let at_least_0 = |value: f32| value >= 0.0 && value.is_finite();
        let share = |value: f32| value > 0.0 && value <= 1.0;
        let rules: [(&str, f32, bool, &str); 7] = [
            ("a temperature", self.temperature, at_least_0(self.temperature), "0 or more"),
            ("typical-p", self.typical_p, share(self.typical_p), "more than 0 and at most 1"),
            ("top-p", self.top_p, share(self.top_p), "more than 0 and at most 1"),
            ("min-p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1"),
            (
                "a repetition penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite(),
                "more than 0",
            ),
            ("a presence penalty", self.presence_penalty, self.presence_penalty.is_finite(), "a number"),
            ("a frequency penalty", self.frequency_penalty, self.frequency_penalty.is_finite(), "a number"),
        ];
        if let Some((name, value, _, range)) = rules.into_iter().find(|rule| !rule.2) {
            return Err(format!("{name} is {range}, not {value}"));
        }
        match self.bias.iter().find(|(_, bias)| bias.is_nan()) {
            Some((id, _)) => Err(format!("the bias of id {id} is not a number")),
            None => Ok(()),
        }
    }
}

/// Draws ids.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: Random,
    /// How often each id is in the answer; with none for ids that only the prompt has.
    seen: BTreeMap<u32, u32>,
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    /// A logit first, then a probability that is not normalised.
    weight: f64,
}

impl Sampler {
    /// A sampler whose draws follow from `seed`, of an answer to `prompt`.
    pub fn new(sampling: Sampling, seed: u64, prompt: &[u32]) -> Sampler {
        let seen =
            if sampling.counts_ids() { prompt.iter().map(|&id| (id, 0)).collect() } else { BTreeMap::new() };
        Sampler { sampling, random: Random(seed), seen, candidates: Vec::new() }
    }

    /// How ids are chosen.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Makes logits those that ids are chosen by.
    pub fn adjust(&self, logits: &mut [f32]) {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.sampling;
        for &(id, bias) in &self.sampling.bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        for (&id, &times) in &self.seen {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
                if times > 0 {
                    *logit -= presence_penalty + frequency_penalty * times as f32;
                }
            }
        }
    }

    /// The next id, of logits that have been adjusted.
    pub fn draw(&mut self, logits: &[f32]) -> u32 {
        let id = if self.sampling.is_greedy() { largest(logits) as u32 } else { self.draw_one(logits) };
        if self.sampling.counts_ids() {
            *self.seen.entry(id).or_default() += 1;
        }
        id
    }

    fn draw_one(&mut self, logits: &[f32]) -> u32 {
        self.keep(logits);
        let total = sum(&self.candidates);
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
        let Sampling { temperature, top_k, typical_p, top_p, min_p, .. } = self.sampling;
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
        if typical_p < 1.0 {
            let total = sum(candidates);
            let surprise = |candidate: &Candidate| -(candidate.weight / total).ln();
            let expected: f64 = candidates.iter().map(|c| c.weight / total * surprise(c)).sum();
            let distance = |candidate: &Candidate| (surprise(candidate) - expected).abs();
            candidates.sort_unstable_by(|a, b| distance(a).total_cmp(&distance(b)).then(order(a, b)));
            keep_share(candidates, typical_p);
            candidates.sort_unstable_by(order);
        }
        if top_p < 1.0 {
            candidates.sort_unstable_by(order);
            keep_share(candidates, top_p);
        }
        let most = candidates.iter().map(|candidate| candidate.weight).fold(0.0, f64::max);
        candidates.retain(|candidate| candidate.weight >= f64::from(min_p) * most);
    }
}

fn sum(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| candidate.weight).sum()
}

/// Keeps the fewest of the first candidates that have this share of all their probability.
fn keep_share(candidates: &mut Vec<Candidate>, share: f32) {
    let mut left = f64::from(share) * sum(candidates);
    let mut kept = 0;
    while kept < candidates.len() && (left > 0.0 || kept == 0) {
        left -= candidates[kept].weight;
        kept += 1;
    }
    candidates.truncate(kept);
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
