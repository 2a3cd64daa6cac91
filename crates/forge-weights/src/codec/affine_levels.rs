//! The levels of an affine group as stored: equally spaced values, the lowest being the offset.

use crate::codec::rounding::WHOLE;

/// Independent accumulators, for SIMD.
pub(crate) const LANES: usize = 8;

/// value = q * scale + offset
#[derive(Clone, Copy)]
pub(crate) struct AffineLevels {
    pub(crate) scale: f32,
    pub(crate) offset: f32,
    /// The highest q.
    pub(crate) levels: f32,
    /// 1 / scale; 0 if all levels equal the offset.
    inverse: f32,
}

impl AffineLevels {
    pub(crate) fn new(scale: f32, offset: f32, levels: f32) -> AffineLevels {
        AffineLevels { scale, offset, levels, inverse: if scale == 0.0 { 0.0 } else { 1.0 / scale } }
    }

    pub(crate) fn value(self, code: f32) -> f32 {
        code * self.scale + self.offset
    }

    /// The unrounded q of a value.
    fn place(self, x: f32) -> f32 {
        let place = (x - self.offset) * self.inverse;
        let place = if place > 0.0 { place } else { 0.0 };
        if place < self.levels { place } else { self.levels }
    }

    /// The nearest q, ties to even.
    pub(crate) fn code(self, x: f32) -> f32 {
        (self.place(x) + WHOLE) - WHOLE
    }

    /// The sum of squared errors.
    pub(crate) fn error(self, values: &[f32]) -> f32 {
        let square = |x: f32| {
            let error = self.value(self.code(x)) - x;
            error * error
        };
        let mut sums = [0.0; LANES];
        let (whole, rest) = values.as_chunks::<LANES>();
        for values in whole {
            sums.iter_mut().zip(values).for_each(|(sum, x)| *sum += square(*x));
        }
        sums.iter().sum::<f32>() + rest.iter().map(|x| square(*x)).sum::<f32>()
    }
}

/// Minimum and maximum of some values; zeros for none.
pub(crate) fn ends(values: &[f32]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let (whole, rest) = values.as_chunks::<LANES>();
    for (lane, x) in whole.iter().flatten().enumerate().map(|(index, x)| (index % LANES, *x)) {
        low[lane] = if x < low[lane] { x } else { low[lane] };
        high[lane] = if x > high[lane] { x } else { high[lane] };
    }
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let all = |lanes: [f32; LANES], pick: fn(f32, f32) -> f32| lanes.iter().chain(rest).copied().reduce(pick);
    (all(low, f32::min).unwrap_or(0.0), all(high, f32::max).unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ends_returns_minimum_and_maximum(values in prop::collection::vec(-1e9_f32..1e9, 1..130)) {
            let (low, high) = ends(&values);
            prop_assert!(values.contains(&low) && values.contains(&high));
            prop_assert!(values.iter().all(|x| (low..=high).contains(x)));
        }
    }
}
