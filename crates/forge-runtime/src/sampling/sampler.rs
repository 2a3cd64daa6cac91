//! From logits to an id.
//!
//! In this order. First logits are adjusted: `bias` is added; the logits of ids that the prompt or the answer has are
//! divided by `repetition_penalty` (multiplied where they are negative); those of ids that the answer has lose
//! `presence_penalty` once and `frequency_penalty` for each time. A constraint takes its ids out. Then ids are weighed and
//! left out: the `top_k` heaviest are kept; of these the ones whose surprise is nearest to the expected one, as many as have
//! `typical_p` of the weight; of these the fewest first that have `top_p` of the weight; of these the ones at least
//! `min_p` times as heavy as the heaviest. Shares are of what the step before has kept. One of what is left is drawn by its
//! weight. Heavier ids come before lighter ones, of equals the lower. Temperature 0 takes the first id of the largest
//! logit after the adjustments.
//!
//! Weights are whole numbers. With l the largest logit that is a number, an id whose logit is x weighs
//! `2^31 · 2^(-d)`, `d = (l - x) · s`, where `s` is log2(e) / temperature, rounded to f32 and kept within its normal numbers;
//! `d` is the difference rounded to f32, then the product rounded, cut off behind 26 binary places, and its power is
//! that of [`draw::power`](crate::sampling::device_sampling::power). Where d is 32 or more, an id weighs nothing and is never drawn; nor is what is not a
//! number, nor minus infinity; where logits are infinite these alone weigh anything. The shares are whole numbers, too:
//! `top_p` in parts of 2^32, rounded up, of which the product with the weight that is kept is rounded up again; `min_p` in
//! parts of 2^31, rounded up, and its product likewise. A draw is one of 64 random bits, b, numbered from 0 within a text: it
//! takes the lowest id so that it and those below it weigh more than the whole part of `b · total / 2^64`, or 0 if none
//! weighs anything.
//!
//! The same logits, settings and seed give the same ids, on every machine, whether host or device draws. `typical_p`
//! alone takes logarithms, and only the host knows it.

use crate::engine::golden::largest;
use crate::sampling::device_sampling::{DeviceSampling, HEAVIEST, TokenWeights, random};
use serde_json::Value;
use std::collections::BTreeMap;

/// The temperature of models that name none.
const ORDINARY_TEMPERATURE: f32 = 0.7;

/// How ids are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
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

impl Default for SamplingParams {
    /// The model's own probabilities.
    fn default() -> SamplingParams {
        SamplingParams {
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

impl SamplingParams {
    /// The most probable id, always.
    pub fn greedy() -> SamplingParams {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// What is chosen by where a model's makers say nothing.
    pub fn ordinary() -> SamplingParams {
        SamplingParams { temperature: ORDINARY_TEMPERATURE, ..SamplingParams::default() }
    }

    /// How the makers of a model would have ids chosen, by the bytes of its `generation_config.json`, or what is wrong with
    /// them. A key that is null counts as absent.
    pub fn configured(bytes: &[u8]) -> Result<SamplingParams, String> {
        let config: Value = serde_json::from_slice(bytes).map_err(|error| format!("is not JSON: {error}"))?;
        let config = config.as_object().ok_or("is not an object")?;
        let get = |key: &str| config.get(key).filter(|value| !value.is_null());
        let wrong =
            |key: &str, value: &Value, wanted: &str| format!("{key} has to be {wanted}, and is {value}");
        match get("do_sample") {
            Some(Value::Bool(false)) => return Ok(SamplingParams::greedy()),
            None | Some(Value::Bool(true)) => {}
            Some(value) => return Err(wrong("do_sample", value, "true or false")),
        }
        let plain = SamplingParams::ordinary();
        let number = |key: &str, other: f32| match get(key) {
            None => Ok(other),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(number as f32),
                None => Err(wrong(key, value, "a number")),
            },
        };
        let top_k = match get("top_k") {
            None => plain.top_k,
            // Others than transformers write so that all are kept.
            Some(value) if value.as_i64() == Some(-1) => 0,
            Some(value) => match value.as_u64() {
                Some(count) => usize::try_from(count).unwrap_or(usize::MAX),
                None => return Err(wrong("top_k", value, "a whole number, 0 or more")),
            },
        };
        let sampling = SamplingParams {
            temperature: number("temperature", plain.temperature)?,
            top_k,
            typical_p: number("typical_p", plain.typical_p)?,
            top_p: number("top_p", plain.top_p)?,
            min_p: number("min_p", plain.min_p)?,
            repetition_penalty: number("repetition_penalty", plain.repetition_penalty)?,
            ..plain
        };
        sampling.check()?;
        Ok(sampling)
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

    /// What a device is told to draw an id: that of the number `index` among those of `seed`.
    pub fn draw(&self, seed: u64, index: u32) -> DeviceSampling {
        let scale = (std::f64::consts::LOG2_E / f64::from(self.temperature)) as f32;
        let parts = |share: f32, whole: f64| (f64::from(share) * whole).ceil() as u32;
        DeviceSampling {
            scale: if self.is_greedy() { 0.0 } else { scale.clamp(f32::MIN_POSITIVE, f32::MAX) },
            top_k: u32::try_from(self.top_k).unwrap_or(u32::MAX),
            // All is more than a word says.
            top_p: if self.top_p < 1.0 { parts(self.top_p, 4_294_967_296.0) } else { 0 },
            min_p: parts(self.min_p, f64::from(HEAVIEST)),
            seed,
            index,
        }
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
    sampling: SamplingParams,
    seed: u64,
    /// How many ids chance has chosen.
    drawn: u32,
    /// How often each id is in the answer; with none for ids that only the prompt has.
    seen: BTreeMap<u32, u32>,
    weights: TokenWeights,
}

impl Sampler {
    /// A sampler whose draws follow from `seed`, of an answer to `prompt`.
    pub fn new(sampling: SamplingParams, seed: u64, prompt: &[u32]) -> Sampler {
        let seen =
            if sampling.counts_ids() { prompt.iter().map(|&id| (id, 0)).collect() } else { BTreeMap::new() };
        Sampler { sampling, seed, drawn: 0, seen, weights: TokenWeights::default() }
    }

    /// How ids are chosen.
    pub fn sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// How a device draws the next id, if it can: of logits as the model gives them, and without `typical_p`.
    pub fn next_draw(&self) -> Option<DeviceSampling> {
        let sampling = &self.sampling;
        let is_known = sampling.leaves_logits() && (sampling.is_greedy() || sampling.typical_p == 1.0);
        is_known.then(|| sampling.draw(self.seed, self.drawn))
    }

    /// Takes note that a device has chosen an id so.
    pub fn note(&mut self) {
        self.drawn = self.drawn.wrapping_add(u32::from(!self.sampling.is_greedy()));
    }

    /// Makes logits those that ids are chosen by.
    pub fn adjust(&self, logits: &mut [f32]) {
        let SamplingParams { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.sampling;
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
        let draw = self.sampling.draw(self.seed, self.drawn);
        self.drawn = self.drawn.wrapping_add(1);
        if self.sampling.typical_p == 1.0 {
            return self.weights.draw(logits, &draw);
        }
        self.weights.weigh(logits, draw.scale);
        self.weights.keep_top_k(draw.top_k);
        keep_typical(self.weights.get_mut(), self.sampling.typical_p);
        self.weights.keep_top_p(draw.top_p);
        self.weights.keep_min_p(draw.min_p);
        self.weights.draw_one(random(draw.seed, draw.index))
    }
}

/// Keeps the fewest ids whose surprise is nearest to the expected one that have this share of all weight.
fn keep_typical(weights: &mut [u32], share: f32) {
    let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
    let surprise = |weight: u32| -(f64::from(weight) / total as f64).ln();
    let mut ids: Vec<usize> = (0..weights.len()).filter(|id| weights[*id] > 0).collect();
    let expected: f64 =
        ids.iter().map(|&id| f64::from(weights[id]) / total as f64 * surprise(weights[id])).sum();
    let distance = |id: usize| (surprise(weights[id]) - expected).abs();
    ids.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)).then(weights[b].cmp(&weights[a])));
    let mut left = f64::from(share) * total as f64;
    for (place, &id) in ids.iter().enumerate() {
        if left <= 0.0 && place > 0 {
            weights[id] = 0;
        } else {
            left -= f64::from(weights[id]);
        }
    }
}
