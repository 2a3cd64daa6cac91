//! Fits levels to a group of values whose squared errors have different weights.
//!
//! A fit alternates two steps, as Lloyd's algorithm does: round the values to the nearest levels, then move
//! the levels to the weighted least squares solution for these. It starts from several ranges, because either
//! step only finds a local optimum, and the best storable levels on the way are the result. With few levels
//! the best range is much narrower than the values'.

use crate::codec::affine_levels::{AffineLevels, LANES, ends};

/// Shares of a group's range that fits start from.
const RANGES: [f32; 8] = [1.0, 0.95, 0.9, 0.84, 0.77, 0.7, 0.62, 0.54];

/// Maximum number of least squares steps from each start.
const STEPS: usize = 4;

/// Values of a group, and the weights of their squared errors.
#[derive(Clone, Copy)]
pub(crate) struct WeightedGroup<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) weights: &'a [f32],
}

/// Floats in whole lanes, and the rest.
type Chunks<'a> = (&'a [[f32; LANES]], &'a [f32]);

/// Weighted sums over a group: of 1, the codes q and the values x, and of products of these.
#[derive(Clone, Copy, Default)]
pub(crate) struct Moments {
    one: f32,
    q: f32,
    qq: f32,
    x: f32,
    qx: f32,
}

impl<'a> WeightedGroup<'a> {
    /// The part of a row and of its weights that a range of columns has, as far as the row has values.
    pub(crate) fn part(self, columns: std::ops::Range<usize>) -> WeightedGroup<'a> {
        let length = self.values.len();
        let columns = columns.start.min(length)..columns.end.min(length);
        WeightedGroup { values: &self.values[columns.clone()], weights: &self.weights[columns] }
    }

    /// The weighted sum of squared errors.
    pub(crate) fn error(self, line: AffineLevels) -> f32 {
        let square = |x: f32, weight: f32| {
            let error = line.value(line.code(x)) - x;
            weight * error * error
        };
        let mut sums = [0.0_f32; LANES];
        let ((values, rest), (weights, rest_weights)) = self.chunks();
        for (values, weights) in values.iter().zip(weights) {
            for lane in 0..LANES {
                sums[lane] += square(values[lane], weights[lane]);
            }
        }
        let rest = rest.iter().zip(rest_weights).map(|(x, weight)| square(*x, *weight));
        sums.iter().sum::<f32>() + rest.sum::<f32>()
    }

    /// Sums for codes of these levels, counted from `zero`.
    pub(crate) fn moments(self, line: AffineLevels, zero: f32) -> Moments {
        let (mut ones, mut qs, mut qqs) = ([0.0_f32; LANES], [0.0_f32; LANES], [0.0_f32; LANES]);
        let (mut xs, mut qxs) = ([0.0_f32; LANES], [0.0_f32; LANES]);
        let mut add = |lane: usize, x: f32, weight: f32| {
            let q = line.code(x) - zero;
            ones[lane] += weight;
            qs[lane] += weight * q;
            qqs[lane] += weight * q * q;
            xs[lane] += weight * x;
            qxs[lane] += weight * q * x;
        };
        let ((values, rest), (weights, rest_weights)) = self.chunks();
        for (values, weights) in values.iter().zip(weights) {
            for lane in 0..LANES {
                add(lane, values[lane], weights[lane]);
            }
        }
        rest.iter().zip(rest_weights).enumerate().for_each(|(lane, (x, weight))| add(lane, *x, *weight));
        let sum = |lanes: [f32; LANES]| lanes.iter().sum();
        Moments { one: sum(ones), q: sum(qs), qq: sum(qqs), x: sum(xs), qx: sum(qxs) }
    }

    /// Values and weights in whole lanes, and the rest.
    fn chunks(self) -> (Chunks<'a>, Chunks<'a>) {
        (self.values.as_chunks::<LANES>(), self.weights.as_chunks::<LANES>())
    }
}

impl Moments {
    /// Scale and offset of the least squares fit x = scale · q + offset with an offset of at most
    /// `most_offset`. `None` if all codes are equal.
    fn line(self, most_offset: f32) -> Option<[f32; 2]> {
        let Moments { one, q, qq, x, qx } = self;
        let determinant = one * qq - q * q;
        let (scale, offset) = ((one * qx - q * x) / determinant, (qq * x - q * qx) / determinant);
        let is_valid = determinant > 0.0 && scale > 0.0 && scale.is_finite() && offset.is_finite();
        if is_valid && offset <= most_offset {
            return Some([scale, offset]);
        }
        let scale = (qx - most_offset * q) / qq;
        (most_offset.is_finite() && scale > 0.0 && scale.is_finite()).then_some([scale, most_offset])
    }

    /// Scale of the least squares fit x = scale · q. `None` if all codes are zero.
    pub(crate) fn scale(self) -> Option<f32> {
        Some(self.qx / self.qq).filter(|scale| scale.is_finite() && *scale != 0.0)
    }

    /// Sums of d and m of the least squares fit x = d · scale · q - m · offset over several groups, each with
    /// its integer scale and offset.
    pub(crate) fn shared(groups: impl Iterator<Item = (Moments, [f32; 2])>) -> Option<[f32; 2]> {
        let (mut aa, mut ab, mut bb, mut ax, mut bx) = (0.0_f32, 0.0, 0.0, 0.0, 0.0);
        for (of, [scale, offset]) in groups {
            aa += scale * scale * of.qq;
            ab -= scale * offset * of.q;
            bb += offset * offset * of.one;
            ax += scale * of.qx;
            bx -= offset * of.x;
        }
        let determinant = aa * bb - ab * ab;
        let found = if bb > 0.0 && determinant > 1e-6 * aa * bb {
            [(bb * ax - ab * bx) / determinant, (aa * bx - ab * ax) / determinant]
        } else {
            [ax / aa, 0.0]
        };
        found.iter().all(|x| x.is_finite() && *x >= 0.0).then_some(found)
    }

    /// The scale that several groups share: of the fit x = d · scale · q.
    pub(crate) fn shared_scale(groups: impl Iterator<Item = (Moments, f32)>) -> Option<f32> {
        let sums = groups.fold((0.0_f32, 0.0_f32), |(qq, qx), (of, scale)| {
            (qq + scale * scale * of.qq, qx + scale * of.qx)
        });
        Some(sums.1 / sums.0).filter(|scale| scale.is_finite() && *scale > 0.0)
    }
}

/// The best levels with offsets up to `most_offset`, among those that `store` can store for a scale and an
/// offset. `base` is the result if there are none better.
pub(crate) fn fit_affine(
    group: WeightedGroup<'_>,
    base: AffineLevels,
    most_offset: f32,
    store: impl Fn([f32; 2]) -> Option<AffineLevels>,
) -> AffineLevels {
    let (low, high) = ends(group.values);
    let low = low.min(most_offset);
    let (mut best, mut least) = (base, group.error(base));
    if high <= low || least == 0.0 {
        return best;
    }
    for share in RANGES {
        let margin = (high - low) * (1.0 - share) / 2.0;
        let mut pair = [(high - low) * share / base.levels, (low + margin).min(most_offset)];
        let mut error = f32::INFINITY;
        for _ in 0..STEPS {
            let Some(line) = store(pair) else { break };
            let found = group.error(line);
            if found < least {
                (best, least) = (line, found);
            }
            if found >= error {
                break;
            }
            error = found;
            let Some(next) = group.moments(line, 0.0).line(most_offset) else { break };
            pair = next;
        }
    }
    best
}

/// The best levels (q - zero) · scale for q of 0 to `levels`, among those that `store` can store for a scale.
pub(crate) fn fit_symmetric(
    group: WeightedGroup<'_>,
    (zero, levels): (f32, f32),
    store: impl Fn(f32) -> Option<AffineLevels>,
) -> Option<AffineLevels> {
    let (low, high) = ends(group.values);
    let largest = if high > -low { high } else { low };
    let mut best = None;
    let mut least = f32::INFINITY;
    // The largest value gets the lowest code, which is further from zero, or the highest.
    for end in [-zero, levels - zero] {
        for share in RANGES {
            let mut scale = share * largest / end;
            let mut error = f32::INFINITY;
            for _ in 0..STEPS {
                let Some(line) = store(scale) else { break };
                let found = group.error(line);
                if found < least {
                    (best, least) = (Some(line), found);
                }
                if found >= error {
                    break;
                }
                error = found;
                let Some(next) = group.moments(line, zero).scale() else { break };
                scale = next;
            }
        }
    }
    best
}
