//! A row in the file's format, and its errors.

use crate::codec::range_error::RangeError;
use crate::codec::row::{decode_row, encode_row, encode_row_weighted};
use crate::quantization_error::Sums;
use forge_ir::Format;

/// Largest finite f16.
const LARGEST_F16: f32 = 65504.0;

/// Encodes a row of values into planes, and decodes it again. Without values, the planes have a row already, whose
/// range is checked. The weights of the squared errors of columns come with their unit.
pub(crate) fn encode_row_with_sums(
    format: Format,
    row: Option<&[f32]>,
    weights: Option<(&[f32], f64)>,
    planes: [&mut [u8]; 2],
    decoded: &mut [f32],
) -> Result<Sums, RangeError> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { encode_with_avx2(format, row, weights, planes, decoded) };
    }
    encode(format, row, weights, planes, decoded)
}

/// [`encode`], compiled for vectors of 8 values. The results are the same.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn encode_with_avx2(
    format: Format,
    row: Option<&[f32]>,
    weights: Option<(&[f32], f64)>,
    planes: [&mut [u8]; 2],
    decoded: &mut [f32],
) -> Result<Sums, RangeError> {
    encode(format, row, weights, planes, decoded)
}

/// [`encode_row_with_sums`]. Simple formats are inlined, too.
#[inline(always)]
fn encode(
    format: Format,
    row: Option<&[f32]>,
    weights: Option<(&[f32], f64)>,
    [codes, scales]: [&mut [u8]; 2],
    decoded: &mut [f32],
) -> Result<Sums, RangeError> {
    match (row, weights) {
        (Some(row), Some((weights, _))) => {
            encode_row_weighted(format, row, weights, [&mut *codes, &mut *scales])?;
        }
        (Some(row), None) => encode_row(format, row, [&mut *codes, &mut *scales])?,
        (None, _) => {}
    }
    decode_row(format, [codes, scales], decoded);
    if row.is_none() {
        // Kernels multiply in f16, and stored scales may exceed its range.
        let is_f16 = |x: &f32| x.abs() <= LARGEST_F16;
        if !decoded.iter().fold(true, |all, x| all & is_f16(x)) {
            let column = decoded.iter().position(|x| !is_f16(x)).unwrap_or(0);
            return Err(match decoded[column] {
                value if value.is_finite() => RangeError::TooLarge { value },
                _ => RangeError::NotFinite { column },
            });
        }
    }
    Ok(Sums::of(row.unwrap_or(decoded), decoded, weights))
}
