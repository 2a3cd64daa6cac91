//! Selection of token ids.

use crate::random::Random;

/// The order of logits as integer keys; NaN is last.
pub fn key(logit: f32) -> u32 {
    let bits = (logit + 0.0).to_bits();
    if logit.is_nan() {
        0
    } else if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}

/// The candidate of logits, the first of which has this id: the largest key and its lowest id.
pub fn best(logits: &[f32], first: usize) -> [u32; 2] {
    let best = logits.iter().map(|&logit| key(logit)).max().unwrap_or(0);
    let at = logits.iter().position(|&logit| key(logit) == best).unwrap_or(0);
    [best, (first + at) as u32]
}

/// The id of the best of candidates: the lowest of equal ones, and 0 if all are NaN.
pub fn argmax_combine(candidates: &[[u32; 2]]) -> u32 {
    let best = candidates.iter().map(|&[key, id]| (key, u32::MAX - id)).max();
    best.filter(|&(key, _)| key > 0).map_or(0, |(_, id)| u32::MAX - id)
}

/// Numbers of candidates.
pub const CANDIDATES: [usize; 7] = [1, 2, 3, 70, 100, 1500, 5000];

/// Two rows of candidates with few distinct keys; the second is all NaN.
pub fn candidates(random: &mut Random, count: usize) -> Vec<[u32; 2]> {
    let mut pairs: Vec<[u32; 2]> =
        (0..2 * count).map(|_| [random.below(9) as u32, random.below(1 << 24) as u32]).collect();
    pairs[count..].iter_mut().for_each(|pair| pair[0] = 0);
    pairs
}
