//! One id of a row of logits by chance, in whole numbers, so that every device draws the same one: the steps that
//! [`crate::sampling::sampler`] defines, but for those that only the host knows.
//!
//! The host's sampler and the CPU's kernel call what is here; `sample.metal` says the same in its own words. What floats do is
//! rounded alike everywhere: a difference, two products, and what is cut off of the last; numbers smaller than the
//! smallest normal one count as 0, as some devices know none. All after that is whole numbers: weights are words, their sums
//! are exact in 64 bits, and thresholds are found digit by digit of the ids' keys, whatever order they are added up in.

/// The weight of the most probable id.
pub const HEAVIEST: u32 = 1 << 31;

/// Settings of a draw as a device is told them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceSampling {
    /// What makes a distance from the largest logit one in powers of two, the logarithm of e divided by the temperature; 0 takes
    /// the largest logit, and nothing else is looked at.
    pub scale: f32,
    /// How many ids are kept; 0 keeps all.
    pub top_k: u32,
    /// The share of all weight that is kept, in parts of 2^32; 0 keeps all.
    pub top_p: u32,
    /// The least weight that is kept, where the heaviest weighs [`HEAVIEST`].
    pub min_p: u32,
    /// Where random numbers come from.
    pub seed: u64,
    /// Which of them is this draw's.
    pub index: u32,
}

impl DeviceSampling {
    /// Words of a draw.
    pub const WORDS: usize = 8;

    /// Whether chance plays no part.
    pub fn is_greedy(&self) -> bool {
        self.scale == 0.0
    }

    /// This one, after which it is that of the next number.
    pub fn take(&mut self) -> DeviceSampling {
        let draw = *self;
        self.index = self.index.wrapping_add(1);
        draw
    }

    /// As words, which a device reads.
    pub fn words(&self) -> [u32; DeviceSampling::WORDS] {
        let DeviceSampling { scale, top_k, top_p, min_p, seed, index } = *self;
        [scale.to_bits(), top_k, top_p, min_p, seed as u32, (seed >> 32) as u32, index, 0]
    }

    /// What words say.
    pub fn of(words: [u32; DeviceSampling::WORDS]) -> DeviceSampling {
        let [scale, top_k, top_p, min_p, low, high, index, _] = words;
        let seed = u64::from(high) << 32 | u64::from(low);
        DeviceSampling { scale: f32::from_bits(scale), top_k, top_p, min_p, seed, index }
    }
}

/// 64 random bits of a seed, those of draw `index`: what SplitMix64 gives after as many others.
pub fn random(seed: u64, index: u32) -> u64 {
    let mut z = seed.wrapping_add((u64::from(index) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What ids of a row weigh; 0 for those that cannot be drawn.
#[derive(Clone, Debug, Default)]
pub struct TokenWeights(Vec<u32>);

impl TokenWeights {
    /// The id that `draw` gives of these logits.
    pub fn draw(&mut self, logits: &[f32], draw: &DeviceSampling) -> u32 {
        self.weigh(logits, draw.scale);
        self.draw_weighed(draw)
    }

    /// The id that `draw` gives of ids that have been weighed.
    pub fn draw_weighed(&mut self, draw: &DeviceSampling) -> u32 {
        self.keep_top_k(draw.top_k);
        self.keep_top_p(draw.top_p);
        self.keep_min_p(draw.min_p);
        self.draw_one(random(draw.seed, draw.index))
    }

    /// What each id weighs, to be set to 0.
    pub fn get_mut(&mut self) -> &mut [u32] {
        &mut self.0
    }

    /// Weighs the ids of a row.
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

    /// Keeps the `count` heaviest, of equals those of the lowest ids; 0 keeps all.
    pub fn keep_top_k(&mut self, count: u32) {
        if count > 0 && (count as usize) < self.0.len() {
            self.keep_first(u64::from(count), |_| 1);
        }
    }

    /// Keeps the fewest of the heaviest that have this share of all weight, in parts of 2^32; 0 keeps all.
    pub fn keep_top_p(&mut self, share: u32) {
        if share > 0 {
            let needed = (u128::from(share) * u128::from(self.total())).div_ceil(1 << 32);
            self.keep_first(needed as u64, u64::from);
        }
    }

    /// Keeps those that weigh at least as much to the heaviest as `least` is of [`HEAVIEST`].
    pub fn keep_min_p(&mut self, least: u32) {
        let heaviest = self.0.iter().copied().max().unwrap_or(0);
        let least = (u64::from(least) * u64::from(heaviest)).div_ceil(u64::from(HEAVIEST)) as u32;
        for weight in &mut self.0 {
            *weight = if *weight >= least { *weight } else { 0 };
        }
    }

    /// The first id up to which ids weigh more than `bits` are of 2^64, of all weight; 0 if none weighs anything.
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

    /// All weight.
    fn total(&self) -> u64 {
        self.0.iter().map(|&weight| u64::from(weight)).sum()
    }

    /// Keeps the fewest first ids, in the order of their keys from the largest down, whose values sum to `needed`.
    fn keep_first(&mut self, needed: u64, value: impl Fn(u32) -> u64) {
        let least = self.least_key(needed, value);
        for (id, weight) in (0..).zip(&mut self.0) {
            *weight = if key(id, *weight) >= least { *weight } else { 0 };
        }
    }

    /// A key so that those which are not smaller are the fewest first ones whose values sum to `needed`; none smaller if all
    /// do not. Its digits of 8 bits are found one after the other, by what ids with each digit have together.
    fn least_key(&self, mut needed: u64, value: impl Fn(u32) -> u64) -> u64 {
        let mut least = 0;
        for shift in (0..u64::BITS).step_by(8).rev() {
            let mut values = [0; 256];
            // Most have digit 0, and need not be added up: it is they if none of the others. Whole blocks of such are passed over.
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

/// The digit at which the values of all from the largest down come to what is needed; what comes before is taken from this.
fn reaches(values: &[u64; 256], needed: &mut u64) -> usize {
    for (digit, &value) in values.iter().enumerate().skip(1).rev() {
        if value >= *needed {
            return digit;
        }
        *needed -= value;
    }
    0
}

/// What ids are ordered by, the largest first: heavier before lighter, and of equals the lower id.
fn key(id: u32, weight: u32) -> u64 {
    u64::from(weight) << 32 | u64::from(!id)
}

/// The largest number of a row, in sixteen parts that a machine may look at together.
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

/// 2^31 · 2^(-scale · (top - logit)), as a whole number: what an id weighs. What is not a number weighs nothing, nor does what
/// is 32 powers of two below the largest logit. `top` is no less than `logit`.
#[inline(always)]
pub fn weight(logit: f32, top: f32, scale: f32) -> u32 {
    let (logit, top) = (normal(logit), normal(top));
    // Of two infinities there is no difference.
    let powers = if logit == top { 0.0 } else { normal(top - logit) * scale };
    // Not so of what is not a number.
    let is_near = powers < 32.0;
    let steps = if is_near { powers * 67_108_864.0 } else { 0.0 };
    // SAFETY: it is at least 0 and less than 2^31.
    let weight = power(unsafe { steps.to_int_unchecked::<i32>() } as u32);
    if is_near { weight } else { 0 }
}

/// 0 in the place of numbers that devices may not know.
#[inline(always)]
fn normal(number: f32) -> f32 {
    if number.abs() < f32::MIN_POSITIVE { 0.0 } else { number }
}

/// 2^31 · 2^-(steps / 2^26): what is left of the exponent is a polynomial, 1 - f · (c1 - f · (c2 - ...)), which is within
/// 5e-9 of the power and never grows with f; whole powers are a shift that rounds.
#[inline(always)]
pub fn power(steps: u32) -> u32 {
    const COEFFICIENTS: [u32; 6] =
        [639_488, 5_712_048, 41_304_489, 238_387_495, 1_031_764_939, 2_977_044_471];
    let fraction = steps << 6;
    let mut sum = 48_550;
    for coefficient in COEFFICIENTS {
        sum = coefficient - high_half(sum, fraction);
    }
    let weight = HEAVIEST - (high_half(sum, fraction) >> 1);
    let powers = steps >> 26;
    (weight + ((1 << powers) >> 1)) >> powers
}

#[inline(always)]
fn high_half(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}
