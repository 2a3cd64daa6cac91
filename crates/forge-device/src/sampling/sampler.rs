//! The host sampler: from logits to a token.
//!
//! The steps, in order:
//!
//! 1. Logit adjustments. `bias` is added. Logits of tokens in the prompt or the output are divided by
//!    `repetition_penalty` (multiplied if negative). Logits of tokens in the output lose `presence_penalty`
//!    once and `frequency_penalty` for each occurrence.
//! 2. The constraint masks tokens.
//! 3. `top_k`: the heaviest tokens are kept.
//! 4. `typical_p`: of these, the tokens whose surprise is nearest to the expected surprise, up to this
//!    fraction of the weight.
//! 5. `top_p`: of these, the fewest heaviest with this fraction of the weight.
//! 6. `min_p`: of these, the tokens at least `min_p` times as heavy as the heaviest.
//! 7. One token is drawn by weight.
//!
//! Shares refer to what the previous step kept. Heavier tokens come first, lower ids first among equals.
//! Temperature 0 takes the first token with the largest adjusted logit.
//!
//! Weights are integers. With l the largest logit that is not NaN, a token with logit x weighs
//! `2^31 · 2^(-d)`, where `d = (l - x) · s` and `s = log2(e) / temperature`. `s` is rounded to f32 and
//! clamped to its normal range. `d` is the f32 difference, then the f32 product, truncated after 26 binary
//! places; [`power`](crate::sampling::device_sampling::power) computes the weight. Tokens with d of 32 or
//! more, NaN or minus infinity weigh 0 and are never drawn. If some logits are plus infinity, only they have
//! weight.
//!
//! Shares are integers, too. `top_p` is in parts of 2^32, rounded up, and its product with the kept weight is
//! rounded up again. `min_p` is in parts of 2^31, rounded up, and so is its product. A draw takes 64 random
//! bits b, numbered from 0 within a sequence. It returns the lowest token whose cumulative weight exceeds the
//! integer part of `b · total / 2^64`, or 0 if all weights are 0.
//!
//! The same logits, parameters and seed give the same tokens on every machine, sampled on the host or on the
//! device. `typical_p` takes logarithms and runs on the host only.

use crate::sampling::argmax::argmax;
use crate::sampling::device_sampling::{DeviceSampling, MAX_WEIGHT, TokenWeights, random};
use serde_json::Value;
use std::collections::BTreeMap;

/// The default temperature of models that specify none.
const DEFAULT_TEMPERATURE: f32 = 0.7;

/// Sampling parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Temperature; 0 is greedy.
    pub temperature: f32,
    /// Top-k; 0 keeps all tokens.
    pub top_k: usize,
    /// Locally typical sampling: fraction of probability kept; 1 disables it.
    pub typical_p: f32,
    /// Nucleus sampling: fraction of probability kept; 1 disables it.
    pub top_p: f32,
    /// Minimum probability, relative to the most probable token; 0 disables it.
    pub min_p: f32,
    /// Repetition penalty over prompt and output; 1 disables it.
    pub repetition_penalty: f32,
    /// Presence penalty over the output; 0 disables it.
    pub presence_penalty: f32,
    /// Frequency penalty over the output; 0 disables it.
    pub frequency_penalty: f32,
    /// Values added to the logits of token ids.
    pub bias: Vec<(u32, f32)>,
}

impl Default for SamplingParams {
    /// The model's own distribution: temperature 1, no filters.
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
    /// Greedy sampling.
    pub fn greedy() -> SamplingParams {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// The defaults for a model without `generation_config.json`.
    pub fn ordinary() -> SamplingParams {
        SamplingParams { temperature: DEFAULT_TEMPERATURE, ..SamplingParams::default() }
    }

    /// The parameters in `generation_config.json`, or an error. A key that is null counts as absent.
    pub fn from_generation_config(bytes: &[u8]) -> Result<SamplingParams, String> {
        let config: Value =
            serde_json::from_slice(bytes).map_err(|error| format!("not valid JSON: {error}"))?;
        let config = config.as_object().ok_or("not a JSON object")?;
        let get = |key: &str| config.get(key).filter(|value| !value.is_null());
        let wrong = |key: &str, value: &Value, wanted: &str| format!("{key} must be {wanted}, not {value}");
        match get("do_sample") {
            Some(Value::Bool(false)) => return Ok(SamplingParams::greedy()),
            None | Some(Value::Bool(true)) => {}
            Some(value) => return Err(wrong("do_sample", value, "true or false")),
        }
        let defaults = SamplingParams::ordinary();
        let number = |key: &str, other: f32| match get(key) {
            None => Ok(other),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(number as f32),
                None => Err(wrong(key, value, "a number")),
            },
        };
        let top_k = match get("top_k") {
            None => defaults.top_k,
            // -1 disables top-k in some libraries; transformers uses 0.
            Some(value) if value.as_i64() == Some(-1) => 0,
            Some(value) => match value.as_u64() {
                Some(count) => usize::try_from(count).unwrap_or(usize::MAX),
                None => return Err(wrong("top_k", value, "an integer of at least 0")),
            },
        };
        let sampling = SamplingParams {
            temperature: number("temperature", defaults.temperature)?,
            top_k,
            typical_p: number("typical_p", defaults.typical_p)?,
            top_p: number("top_p", defaults.top_p)?,
            min_p: number("min_p", defaults.min_p)?,
            repetition_penalty: number("repetition_penalty", defaults.repetition_penalty)?,
            ..defaults
        };
        sampling.check()?;
        Ok(sampling)
    }

    /// Whether sampling is greedy.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether logits are used without adjustments.
    pub fn keeps_logits(&self) -> bool {
        self.bias.is_empty() && !self.has_penalties()
    }

    /// Whether the adjustments depend on the tokens so far.
    fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// The device parameters of draw `index` with this seed.
    pub fn device_sampling(&self, seed: u64, index: u32) -> DeviceSampling {
        let scale = (std::f64::consts::LOG2_E / f64::from(self.temperature)) as f32;
        let fixed_point = |fraction: f32, one: f64| (f64::from(fraction) * one).ceil() as u32;
        DeviceSampling {
            scale: if self.is_greedy() { 0.0 } else { scale.clamp(f32::MIN_POSITIVE, f32::MAX) },
            top_k: u32::try_from(self.top_k).unwrap_or(u32::MAX),
            // 1 does not fit in 32 bits.
            top_p: if self.top_p < 1.0 { fixed_point(self.top_p, 4_294_967_296.0) } else { 0 },
            min_p: fixed_point(self.min_p, f64::from(MAX_WEIGHT)),
            seed,
            index,
        }
    }

    /// Checks the ranges of all parameters.
    pub fn check(&self) -> Result<(), String> {
        let at_least_0 = |value: f32| value >= 0.0 && value.is_finite();
        let above_0_up_to_1 = |value: f32| value > 0.0 && value <= 1.0;
        let rules: [(&str, f32, bool, &str); 7] = [
            ("temperature", self.temperature, at_least_0(self.temperature), "at least 0"),
            ("typical-p", self.typical_p, above_0_up_to_1(self.typical_p), "above 0 and at most 1"),
            ("top-p", self.top_p, above_0_up_to_1(self.top_p), "above 0 and at most 1"),
            ("min-p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            (
                "repetition-penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite(),
                "above 0",
            ),
            ("presence-penalty", self.presence_penalty, self.presence_penalty.is_finite(), "finite"),
            ("frequency-penalty", self.frequency_penalty, self.frequency_penalty.is_finite(), "finite"),
        ];
        if let Some((name, value, _, range)) = rules.into_iter().find(|rule| !rule.2) {
            return Err(format!("{name} must be {range}, not {value}"));
        }
        match self.bias.iter().find(|(_, bias)| bias.is_nan()) {
            Some((id, _)) => Err(format!("the logit bias of token id {id} is NaN")),
            None => Ok(()),
        }
    }
}

/// The sampler of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: SamplingParams,
    seed: u64,
    /// Number of draws so far.
    drawn: u32,
    /// Occurrences of each token in the output; 0 for tokens only in the prompt.
    seen: BTreeMap<u32, u32>,
    weights: TokenWeights,
}

impl Sampler {
    /// A sampler with this seed, for output after `prompt`.
    pub fn new(sampling: SamplingParams, seed: u64, prompt: &[u32]) -> Sampler {
        let seen = if sampling.has_penalties() {
            prompt.iter().map(|&id| (id, 0)).collect()
        } else {
            BTreeMap::new()
        };
        Sampler { sampling, seed, drawn: 0, seen, weights: TokenWeights::default() }
    }

    /// The sampling parameters.
    pub fn sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// The device parameters of the next draw; `None` if logits are adjusted or `typical_p` is used.
    pub fn next_device_sampling(&self) -> Option<DeviceSampling> {
        let sampling = &self.sampling;
        let is_known = sampling.keeps_logits() && (sampling.is_greedy() || sampling.typical_p == 1.0);
        is_known.then(|| sampling.device_sampling(self.seed, self.drawn))
    }

    /// Counts a draw that the device made.
    pub fn advance(&mut self) {
        self.drawn = self.drawn.wrapping_add(u32::from(!self.sampling.is_greedy()));
    }

    /// Applies bias and penalties to the logits.
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

    /// Samples the next token from adjusted logits.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        let id = if self.sampling.is_greedy() { argmax(logits) as u32 } else { self.sample_once(logits) };
        if self.sampling.has_penalties() {
            *self.seen.entry(id).or_default() += 1;
        }
        id
    }

    fn sample_once(&mut self, logits: &[f32]) -> u32 {
        let draw = self.sampling.device_sampling(self.seed, self.drawn);
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

/// Locally typical sampling: keeps the fewest tokens whose surprise is nearest to the expected one, with this
/// fraction of the weight.
fn keep_typical(weights: &mut [u32], typical_p: f32) {
    let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
    let surprise = |weight: u32| -(f64::from(weight) / total as f64).ln();
    let mut ids: Vec<usize> = (0..weights.len()).filter(|id| weights[*id] > 0).collect();
    let expected: f64 =
        ids.iter().map(|&id| f64::from(weights[id]) / total as f64 * surprise(weights[id])).sum();
    let distance = |id: usize| (surprise(weights[id]) - expected).abs();
    ids.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)).then(weights[b].cmp(&weights[a])));
    let mut left = f64::from(typical_p) * total as f64;
    for (place, &id) in ids.iter().enumerate() {
        if left <= 0.0 && place > 0 {
            weights[id] = 0;
        } else {
            left -= f64::from(weights[id]);
        }
    }
}
