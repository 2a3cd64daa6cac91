//! The maximum error of each format.

use forge_ir::{Affine, Format, Scales};
use half::{bf16, f16};

/// The maximum error of storing `x` in a group.
pub(crate) fn bound(format: Format, x: f32, group: &[f32]) -> f64 {
    let x = f64::from(x.abs());
    let largest = f64::from(group.iter().fold(0.0_f32, |top, x| top.max(x.abs())));
    // The rounding error of an f16 scale: 2^-11 relative, or half of the smallest f16 value.
    let scale =
        |levels: f64| (largest / levels, levels * (largest / levels * 2_f64.powi(-11)).max(2_f64.powi(-25)));
    match format {
        Format::F32 => 0.0,
        Format::F16 => (x * 2_f64.powi(-11)).max(2_f64.powi(-25)),
        Format::Bf16 => (x * 2_f64.powi(-8)).max(2_f64.powi(-134)),
        Format::Q8_0 => {
            let (step, off) = scale(127.0);
            0.5001 * step + off
        }
        // The negated largest value has no quant: its error is a whole step.
        Format::Q4_0 => {
            let (step, off) = scale(8.0);
            1.0001 * step + off
        }
        Format::Q5_0 => {
            let (step, off) = scale(16.0);
            1.0001 * step + off
        }
        // A scale may be a sixteenth too small, or half of the smallest scale, and 4 and 6 are far apart.
        Format::Nvfp4 => largest / 5.5 + 3000.0 * 2_f64.powi(-149),
        // The largest floats are 32 apart, the smallest 2^-9. Scales are normal f32 values.
        Format::Fp8 => {
            let scale = (largest / 448.0).max(2_f64.powi(-126));
            (x / 16.0).max(scale * 2_f64.powi(-10)) * 1.0001
        }
        // A value of nearly 8 scales becomes 6; below the smallest scale, 2^-127, values have a spacing of
        // half the scale.
        Format::Mxfp4 => (largest / 4.0).max(2_f64.powi(-129)),
        Format::Q4K => pairs_bound(15.0, 63.0, largest) * 32_f64.sqrt(),
        Format::Q5K => pairs_bound(31.0, 63.0, largest) * 32_f64.sqrt(),
        // One step for the negated largest value, and half a unit of the scale's quantization. The search may
        // increase one value's error to reduce those of all 16.
        Format::Q6K => {
            let (step, off) = scale(32.0);
            (1.01 * (step + 32.0 * largest / 32.0 / 127.0 / 2.0) + off) * 16_f64.sqrt()
        }
        Format::Q3K => {
            let (step, off) = scale(4.0);
            (1.01 * (step + 4.0 * largest / 4.0 / 127.0 / 2.0) + off) * 16_f64.sqrt()
        }
        Format::Q2K => pairs_bound(3.0, 15.0, largest) * 16_f64.sqrt(),
        // Entries are at most 24 apart, and the search may increase one value's error.
        Format::Iq4Nl | Format::Iq4Xs => {
            let (step, off) = scale(113.0);
            let count: f64 = 32.0;
            (13.0 * step + step + off) * count.sqrt()
        }
        Format::Affine(affine) if levels(affine) > 15 => affine_bound(affine, group),
        // The search narrows the range while that reduces the sum of squares, at the expense of single
        // values.
        Format::Affine(affine) => affine_bound(affine, group) * (group.len() as f64).sqrt(),
    }
}

/// Half a step of quants that span a group, from up to one ULP below its minimum, with the scale rounded to
/// f16 or bf16.
fn affine_bound(affine: Affine, group: &[f32]) -> f64 {
    // The rounding error of f16 and bf16, relative and absolute. Scales are normal bf16 values.
    let (off, least) = match affine.scales {
        Scales::F16 => (2_f64.powi(-11), 2_f64.powi(-24)),
        Scales::Bf16 => (2_f64.powi(-8), 2_f64.powi(-126)),
    };
    let ends = group
        .iter()
        .fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(f64::from(*x)), high.max(f64::from(*x))));
    let below = (ends.0.abs() * 2.0 * off).max(least);
    let levels = f64::from(levels(affine));
    let step = (ends.1 - ends.0 + below) / levels;
    // A scale that rounding would leave half a step short of the maximum is the next larger one.
    let up = off.max(2.0 * off - 0.5 / levels);
    // Sums of the size of the offset are rounded to 24 bits.
    0.5001 * (step * (1.0 + up)).max(step + least) + ends.0.abs() * 2_f64.powi(-23)
}

/// The error bound of a superblock value before the search, which starts at the nearest units of scale and
/// offset: half a step, and half a unit of each.
fn pairs_bound(levels: f64, units: f64, largest: f64) -> f64 {
    let units = |reach: f64| reach / units * 1.01 + 2_f64.powi(-24);
    let (scale, offset) = (units(2.0 * largest / levels), units(largest));
    1.01 * (largest / levels) + (levels + 1.0) * scale / 2.0 + offset / 2.0
}

/// The largest quant.
pub(crate) fn levels(affine: Affine) -> u8 {
    ((1_u16 << affine.bits.count()) - 1) as u8
}

/// A value rounded to the format of scales and offsets.
pub(crate) fn rounded(affine: Affine, x: f32) -> f32 {
    match affine.scales {
        Scales::F16 => f16::from_f32(x).to_f32(),
        Scales::Bf16 => bf16::from_f32(x).to_f32(),
    }
}
