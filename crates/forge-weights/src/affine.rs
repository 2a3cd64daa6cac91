//! Groups of unsigned codes with a scale and an offset of their own: value = code * scale + offset.
//!
//! Scales and offsets are halves, or bfloats where they are a checkpoint's own; both are called halves here. The offset is
//! the largest half that is not above the group's smallest number, and the scale the half nearest to what
//! takes the highest code from there to the largest. A number's code is the nearest to it of what the two mean as they
//! are stored, so their rounding costs no accuracy beyond a slightly wider step, and a number is off by half a step at
//! most. A group of one number repeated is exact where a half holds that number.
//!
//! With few codes the numbers at both ends of a group can make the step coarse for all others. In four bits or fewer the
//! ends are moved in as long as the squares of all errors shrink; numbers beyond them take the outermost codes. The error
//! of numbers of a normal distribution is a fifteenth less for it in four bits.

use crate::codec::{Unfit, WHOLE, code_of};
use crate::codes::{block_bytes, pack, unpack};
use forge_ir::{Affine, BLOCK, Scales};
use half::{bf16, f16};

/// Bytes of a scale and an offset.
const PAIR: usize = 4;

/// Decodes the first `out.len()` numbers of a row, as far as there are codes and scales.
pub(crate) fn decode(format: Affine, codes: &[u8], scales: &[u8], out: &mut [f32]) {
    let groups = out.chunks_mut(format.group.columns()).zip(scales.as_chunks::<PAIR>().0);
    for ((out, stored), codes) in groups.zip(codes.chunks_exact(format.code_bytes())) {
        let line = Line::read(format.scales, *stored);
        let blocks = out.chunks_mut(BLOCK).zip(codes.chunks_exact(block_bytes(format.bits)));
        for (out, bytes) in blocks {
            let codes = unpack(format.bits, bytes);
            out.iter_mut().zip(codes).for_each(|(out, code)| *out = line.value(f32::from(code)));
        }
    }
}

/// Encodes a row of finite numbers. Padding columns have code 0: the group's offset, a number like any other.
pub(crate) fn encode(format: Affine, row: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Result<(), Unfit> {
    codes.fill(0);
    let groups = codes.chunks_exact_mut(format.code_bytes()).zip(scales.as_chunks_mut::<PAIR>().0);
    let levels = ((1_u16 << format.bits.count()) - 1).into();
    for (numbers, (codes, stored)) in row.chunks(format.group.columns()).zip(groups) {
        let (low, high) = ends(numbers);
        let line = Line::through(format.scales, low, high, levels)?;
        let line = if levels <= FEW { line.narrowed(numbers, low, high) } else { line };
        *stored = line.stored();
        for (numbers, bytes) in numbers.chunks(BLOCK).zip(codes.chunks_exact_mut(block_bytes(format.bits))) {
            let mut codes = [0; BLOCK];
            codes.iter_mut().zip(numbers).for_each(|(code, x)| *code = code_of(line.code(*x)));
            pack(format.bits, &codes, bytes);
        }
    }
    Ok(())
}

/// Where no code is higher, the ends are moved in.
const FEW: f32 = 15.0;

/// The smallest and the largest of some numbers.
fn ends(numbers: &[f32]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let (whole, rest) = numbers.as_chunks::<LANES>();
    for (lane, x) in whole.iter().flatten().enumerate().map(|(index, x)| (index % LANES, *x)) {
        low[lane] = if x < low[lane] { x } else { low[lane] };
        high[lane] = if x > high[lane] { x } else { high[lane] };
    }
    let all = |lanes: [f32; LANES], pick: fn(f32, f32) -> f32| lanes.iter().chain(rest).copied().reduce(pick);
    (all(low, f32::min).unwrap_or(0.0), all(high, f32::max).unwrap_or(0.0))
}

/// Sums and extremes carried side by side.
const LANES: usize = 8;

/// What the codes of a group mean, exactly as it is stored.
#[derive(Clone, Copy)]
struct Line {
    scales: Scales,
    scale: f32,
    offset: f32,
    /// The highest code.
    levels: f32,
    /// 1 / scale; 0 where all codes mean the offset.
    inverse: f32,
}

impl Line {
    fn new(scales: Scales, scale: u16, offset: u16, levels: f32) -> Line {
        let (scale, offset) = (widened(scales, scale), widened(scales, offset));
        Line { scales, scale, offset, levels, inverse: if scale > 0.0 { 1.0 / scale } else { 0.0 } }
    }

    /// From the bytes of the two; only good for decoding.
    fn read(scales: Scales, [a, b, c, d]: [u8; PAIR]) -> Line {
        Line::new(scales, u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]), 0.0)
    }

    fn stored(self) -> [u8; PAIR] {
        let [a, b] = nearest(self.scales, self.scale).to_le_bytes();
        let [c, d] = nearest(self.scales, self.offset).to_le_bytes();
        [a, b, c, d]
    }

    /// The line whose codes 0 and `levels` mean `low` and `high`, or the next numbers outside them.
    fn through(scales: Scales, low: f32, high: f32, levels: f32) -> Result<Line, Unfit> {
        let offset = below(scales, low);
        if widened(scales, offset).is_infinite() {
            return Err(Unfit::TooLarge { value: low });
        }
        let reach = high - widened(scales, offset);
        let mut scale = nearest(scales, reach / levels);
        // Small scales are so few that the nearest can be short of the end by many steps.
        if reach > (levels + 0.5) * widened(scales, scale) {
            scale += 1;
        }
        // Scales of the smallest bfloats have no inverse among singles.
        if scales == Scales::Bf16 && scale > 0 {
            scale = scale.max(bf16::MIN_POSITIVE.to_bits());
        }
        let line = Line::new(scales, scale, offset, levels);
        if line.value(levels).is_finite() { Ok(line) } else { Err(Unfit::TooLarge { value: high }) }
    }

    /// Moves the ends in by half a step at a time, as long as that brings the numbers closer to what is stored.
    fn narrowed(self, numbers: &[f32], mut low: f32, mut high: f32) -> Line {
        let (mut best, mut error) = (self, self.error(numbers));
        let step = (high - low) / self.levels / 2.0;
        let mut is_better = true;
        while is_better && error > 0.0 && high - low > 4.0 * step {
            is_better = false;
            for (from, to) in [(step, 0.0), (0.0, step)] {
                let Ok(line) = Line::through(self.scales, low + from, high - to, self.levels) else {
                    continue;
                };
                let closer = line.error(numbers);
                if closer < error {
                    (best, error, is_better) = (line, closer, true);
                    (low, high) = (low + from, high - to);
                }
            }
        }
        best
    }

    fn value(self, code: f32) -> f32 {
        code * self.scale + self.offset
    }

    /// A number's code, not rounded.
    fn place(self, x: f32) -> f32 {
        let place = (x - self.offset) * self.inverse;
        let place = if place > 0.0 { place } else { 0.0 };
        if place < self.levels { place } else { self.levels }
    }

    /// The nearest code, of two equally near the even one.
    fn code(self, x: f32) -> f32 {
        (self.place(x) + WHOLE) - WHOLE
    }

    /// The sum of the squares of what storing changes.
    fn error(self, numbers: &[f32]) -> f32 {
        let square = |x: f32| {
            let error = self.value(self.code(x)) - x;
            error * error
        };
        let mut sums = [0.0; LANES];
        let (whole, rest) = numbers.as_chunks::<LANES>();
        for numbers in whole {
            sums.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += square(*x));
        }
        sums.iter().sum::<f32>() + rest.iter().map(|x| square(*x)).sum::<f32>()
    }
}

/// The number of a half's bits.
fn widened(scales: Scales, bits: u16) -> f32 {
    match scales {
        Scales::F16 => f16::from_bits(bits).to_f32(),
        Scales::Bf16 => bf16::from_bits(bits).to_f32(),
    }
}

/// The bits of the half nearest to a number.
fn nearest(scales: Scales, x: f32) -> u16 {
    match scales {
        Scales::F16 => f16::from_f32(x).to_bits(),
        Scales::Bf16 => bf16::from_f32(x).to_bits(),
    }
}

/// The bits of the largest half that is not above a number; of minus infinity where there is none.
fn below(scales: Scales, x: f32) -> u16 {
    let bits = nearest(scales, x);
    if widened(scales, bits) <= x {
        return bits;
    }
    // One towards minus infinity: halves order as their bits do, negative ones the other way around.
    match bits {
        0 | 0x8000 => 0x8001,
        _ if bits < 0x8000 => bits - 1,
        _ => bits + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_half_below_is_the_next_one(x in any::<f32>().prop_filter("a number", |x| !x.is_nan())) {
            for scales in [Scales::F16, Scales::Bf16] {
                let half = widened(scales, below(scales, x));
                prop_assert!(half <= x);
                let mut all = (0..=u16::MAX).map(|bits| widened(scales, bits)).filter(|half| !half.is_nan());
                prop_assert!(all.all(|other| other > x || other <= half));
            }
        }

        #[test]
        fn ends_are_ends(numbers in prop::collection::vec(-1e9_f32..1e9, 1..130)) {
            let (low, high) = ends(&numbers);
            prop_assert!(numbers.contains(&low) && numbers.contains(&high));
            prop_assert!(numbers.iter().all(|x| (low..=high).contains(x)));
        }
    }
}
