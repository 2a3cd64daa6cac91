//! Integer sampling: draws one token of a row of logits, the same one on every device. It implements the
//! steps that [`crate::sampling::sampler`] defines, except those that run on the host only.
//!
//! The host sampler and the CPU kernel call this module; `sample.metal` implements the same arithmetic. Float
//! operations round alike on every device: one difference, two products, and a truncation. Subnormal numbers
//! count as 0, because some GPUs flush them. The rest is integer arithmetic: weights are 32-bit, their sums
//! are exact in 64 bits, and thresholds are found by a radix search over keys, so the order of summation does
//! not matter.

/// The weight of the most probable token.
pub const MAX_WEIGHT: u32 = 1 << 31;

/// Sampling parameters in the form that devices read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceSampling {
    /// log2(e) / temperature: converts a logit difference to powers of two. 0 is greedy; the other fields are
    /// then ignored.
    pub scale: f32,
    /// Top-k; 0 keeps all.
    pub top_k: u32,
    /// Top-p in parts of 2^32; 0 keeps all.
    pub top_p: u32,
    /// Min-p as a weight, relative to [`MAX_WEIGHT`].
    pub min_p: u32,
    /// The random seed.
    pub seed: u64,
    /// The index of this draw.
    pub index: u32,
}

impl DeviceSampling {
    /// 32-bit words of the device representation.
    pub const WORDS: usize = 8;

    /// Whether sampling is greedy.
    pub fn is_greedy(&self) -> bool {
        self.scale == 0.0
    }

    /// Returns the parameters of this draw and advances to the next index.
    pub fn advance(&mut self) -> DeviceSampling {
        let draw = *self;
        self.index = self.index.wrapping_add(1);
        draw
    }

    /// The device representation.
    pub fn words(&self) -> [u32; DeviceSampling::WORDS] {
        let DeviceSampling { scale, top_k, top_p, min_p, seed, index } = *self;
        [scale.to_bits(), top_k, top_p, min_p, seed as u32, (seed >> 32) as u32, index, 0]
    }

    /// Parses the device representation.
    pub fn of(words: [u32; DeviceSampling::WORDS]) -> DeviceSampling {
        let [scale, top_k, top_p, min_p, low, high, index, _] = words;
        let seed = u64::from(high) << 32 | u64::from(low);
        DeviceSampling { scale: f32::from_bits(scale), top_k, top_p, min_p, seed, index }
    }
}

/// The 64 random bits of draw `index` with this seed: the output of SplitMix64 after `index` others.
pub fn random(seed: u64, index: u32) -> u64 {
    let mut z = seed.wrapping_add((u64::from(index) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The sampling weight of each token of a row; 0 if it cannot be drawn.
#[derive(Clone, Debug, Default)]
pub struct TokenWeights(Vec<u32>);

impl TokenWeights {
    /// Computes weights from logits and draws a token.
    pub fn draw(&mut self, logits: &[f32], draw: &DeviceSampling) -> u32 {
        self.weigh(logits, draw.scale);
        self.draw_weighed(draw)
    }

    /// Draws a token from the current weights.
    pub fn draw_weighed(&mut self, draw: &DeviceSampling) -> u32 {
        self.keep_top_k(draw.top_k);
        self.keep_top_p(draw.top_p);
        self.keep_min_p(draw.min_p);
        self.draw_one(random(draw.seed, draw.index))
    }

    /// The weights, for filters that set some to 0.
    pub fn get_mut(&mut self) -> &mut [u32] {
        &mut self.0
    }

    /// Computes the weights from logits.
    #[inline(always)]
    pub fn weigh(&mut self, logits: &[f32], scale: f32) {
        let top = largest(logits);
        self.0.clear();
        self.0.resize(logits.len(), 0);
        if top > f32::NEG_INFINITY {
            for (target, &logit) in self.0.iter_mut().zip(logits) {
                *target = weight(logit, top, scale);
            }
        }
    }

    /// Keeps the `count` heaviest tokens, the lowest ids among equals; 0 keeps all.
    pub fn keep_top_k(&mut self, count: u32) {
        if count > 0 && (count as usize) < self.0.len() {
            self.keep_first(u64::from(count), |_| 1);
        }
    }

    /// Top-p: keeps the fewest heaviest tokens whose sum reaches this fraction of the total, in units
    /// of 2^-32; 0 keeps all.
    pub fn keep_top_p(&mut self, top_p: u32) {
        if top_p > 0 {
            let needed = (u128::from(top_p) * u128::from(self.total())).div_ceil(1 << 32);
            self.keep_first(needed as u64, u64::from);
        }
    }

    /// Min-p: keeps tokens whose weight relative to the heaviest is at least `least` / [`MAX_WEIGHT`].
    pub fn keep_min_p(&mut self, least: u32) {
        let heaviest = self.0.iter().copied().max().unwrap_or(0);
        let least = (u64::from(least) * u64::from(heaviest)).div_ceil(u64::from(MAX_WEIGHT)) as u32;
        for weight in &mut self.0 {
            *weight = if *weight >= least { *weight } else { 0 };
        }
    }

    /// Draws a token: the first id whose cumulative weight exceeds `bits` / 2^64 of the total; 0 if all
    /// weights are 0.
    pub fn draw_one(&self, bits: u64) -> u32 {
        let mut left = ((u128::from(bits) * u128::from(self.total())) >> 64) as u64;
        for (id, &weight) in (0..).zip(&self.0) {
            let weight = u64::from(weight);
            if weight > left {
                return id;
            }
            left -= weight;
        }
        0
    }

    /// The sum of all weights.
    fn total(&self) -> u64 {
        self.0.iter().map(|&weight| u64::from(weight)).sum()
    }

    /// Keeps the fewest tokens, in descending order of keys, whose values sum to at least `needed`.
    fn keep_first(&mut self, needed: u64, value: impl Fn(u32) -> u64) {
        let least = self.least_key(needed, value);
        for (id, weight) in (0..).zip(&mut self.0) {
            *weight = if key(id, *weight) >= least { *weight } else { 0 };
        }
    }

    /// The smallest key kept by [`Self::keep_first`]; 0 if all values together are less than `needed`. A
    /// radix search finds it in digits of 8 bits, from the sum of values for each digit.
    fn least_key(&self, mut needed: u64, value: impl Fn(u32) -> u64) -> u64 {
        let mut least = 0;
        for shift in (0..u64::BITS).step_by(8).rev() {
            let mut values = [0; 256];
            // Most tokens have digit 0 and need not be added: it is the answer if no other digit is. Blocks
            // with only such tokens are skipped.
            let (heaviest, low, least_digit) =
                ((least >> 32) as u32, shift.saturating_sub(32), u32::from(shift >= 32));
            let may_add = |weight: u32| ((weight ^ heaviest) >> low).wrapping_sub(least_digit) < 255;
            for (first, block) in (0..).step_by(16).zip(self.0.chunks(16)) {
                if !block.iter().fold(false, |any, &weight| any | may_add(weight)) {
                    continue;
                }
                for (id, &weight) in (first..).zip(block) {
                    let digit = (key(id, weight) ^ least) >> shift;
                    if digit > 0 && digit < 256 {
                        values[digit as usize] += value(weight);
                    }
                }
            }
            let digit = reaches(&values, &mut needed);
            least |= (digit as u64) << shift;
            if digit > 0 && values[digit] == needed {
                break;
            }
        }
        least
    }
}

/// The digit at which the sum from the largest digit down reaches `needed`; the sum of the digits above is
/// subtracted.
fn reaches(values: &[u64; 256], needed: &mut u64) -> usize {
    for (digit, &value) in values.iter().enumerate().skip(1).rev() {
        if value >= *needed {
            return digit;
        }
        *needed -= value;
    }
    0
}

/// Sort key, largest first: heavier tokens first, lower ids first among equals.
fn key(id: u32, weight: u32) -> u64 {
    u64::from(weight) << 32 | u64::from(!id)
}

/// The largest logit; sixteen partial maxima allow vectorization.
#[inline(always)]
fn largest(logits: &[f32]) -> f32 {
    let (blocks, rest) = logits.as_chunks::<16>();
    let mut parts = [f32::NEG_INFINITY; 16];
    for block in blocks {
        for (part, &logit) in parts.iter_mut().zip(block) {
            *part = if logit > *part { logit } else { *part };
        }
    }
    parts.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// The weight of a token: 2^31 · 2^(-scale · (top - logit)), as an integer. It is 0 for NaN, and if the
/// exponent is -32 or less. `top` is at least `logit`.
#[inline(always)]
pub fn weight(logit: f32, top: f32, scale: f32) -> u32 {
    let (logit, top) = (normal(logit), normal(top));
    // The difference of equal infinities is 0.
    let powers = if logit == top { 0.0 } else { normal(top - logit) * scale };
    // False for NaN.
    let is_near = powers < 32.0;
    let steps = if is_near { powers * 67_108_864.0 } else { 0.0 };
    // SAFETY: `steps` is at least 0 and less than 2^31.
    let weight = power(unsafe { steps.to_int_unchecked::<i32>() } as u32);
    if is_near { weight } else { 0 }
}

/// Replaces subnormal numbers by 0.
#[inline(always)]
fn normal(number: f32) -> f32 {
    if number.abs() < f32::MIN_POSITIVE { 0.0 } else { number }
}

/// 2^31 · 2^-(steps / 2^26). The fraction of the exponent is a polynomial, 1 - f · (c1 - f · (c2 - ...)),
/// within 5e-9 of the power and monotonic in f. The integer part is a rounding shift.
#[inline(always)]
pub fn power(steps: u32) -> u32 {
    const COEFFICIENTS: [u32; 6] =
        [639_488, 5_712_048, 41_304_489, 238_387_495, 1_031_764_939, 2_977_044_471];
    let fraction = steps << 6;
    let mut sum = 48_550;
    for coefficient in COEFFICIENTS {
        sum = coefficient - high_half(sum, fraction);
    }
    let weight = MAX_WEIGHT - (high_half(sum, fraction) >> 1);
    let powers = steps >> 26;
    (weight + ((1 << powers) >> 1)) >> powers
}

#[inline(always)]
fn high_half(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}
