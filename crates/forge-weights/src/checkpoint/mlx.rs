//! Reads matrices in MLX's affine quantization. `X.weight` is a bit stream of quantized values, lowest bits
//! first; `X.scales` and `X.biases` have one value per group. The values equal those of forge's affine
//! formats, so only the order of bits changes.

use crate::codec::codes::{block_bytes, pack};
use forge_ir::{Affine, BLOCK, Format};
use std::io;
use std::ops::Range;

/// Fills `out` with rows of such a matrix, each quantized values first and then scales. `read` fills its last
/// argument with bytes of a tensor from an offset on. Rows are whole groups.
pub(crate) fn rows(
    read: impl Fn(&str, u64, &mut [u8]) -> io::Result<()>,
    tensor: &str,
    (affine, columns): (Affine, usize),
    rows: Range<usize>,
    out: &mut [u8],
) -> io::Result<()> {
    let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
    let groups = columns / affine.group.columns();
    let part = |name: &str, of_row: usize| {
        let mut bytes = vec![0; rows.len() * of_row];
        read(name, (rows.start * of_row) as u64, &mut bytes).map(|()| bytes)
    };
    let stream = part(tensor, groups * affine.code_bytes())?;
    let scales = part(&format!("{module}.scales"), groups * 2)?;
    let biases = part(&format!("{module}.biases"), groups * 2)?;
    let [codes, pairs] = Format::Affine(affine).plane_bytes(columns);
    for (row, out) in out.chunks_exact_mut(codes + pairs).enumerate() {
        let (first, second) = out.split_at_mut(codes);
        let per_block = block_bytes(affine.bits);
        let blocks = stream[row * codes..(row + 1) * codes].chunks_exact(per_block);
        for (bytes, block) in blocks.zip(first.chunks_exact_mut(per_block)) {
            pack(affine.bits, &streamed(affine.bits.count(), bytes), block);
        }
        let of_row = row * groups * 2..(row + 1) * groups * 2;
        let both = scales[of_row.clone()].as_chunks::<2>().0.iter().zip(biases[of_row].as_chunks::<2>().0);
        for (([a, b], [c, d]), pair) in both.zip(second.as_chunks_mut::<4>().0) {
            *pair = [*a, *b, *c, *d];
        }
    }
    Ok(())
}

/// Unpacks a block of the bit stream.
fn streamed(bits: usize, bytes: &[u8]) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    // Bits read and not yet used, the next one lowest.
    let (mut waiting, mut count) = (0_u16, 0);
    let mut bytes = bytes.iter();
    for code in &mut codes {
        if count < bits {
            waiting |= u16::from(bytes.next().copied().unwrap_or(0)) << count;
            count += 8;
        }
        *code = (waiting & ((1 << bits) - 1)) as u8;
        waiting >>= bits;
        count -= bits;
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::row::decode_row;
    use forge_ir::{Bits, Group, Scales};
    use half::{bf16, f16};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn repacked_mlx_rows_dequantize_to_the_same_values(bytes in prop::collection::vec(any::<u8>(), 3 * 384)) {
            for bits in [Bits::Two, Bits::Three, Bits::Four, Bits::Five, Bits::Six, Bits::Eight] {
                for group in [Group::Of32, Group::Of64, Group::Of128] {
                    for scales in [Scales::F16, Scales::Bf16] {
                        check(Affine { bits, group, scales }, &bytes);
                    }
                }
            }
        }
    }

    /// Compares the second and third of three rows of 384 columns with the definition.
    fn check(affine: Affine, bytes: &[u8]) {
        const COLUMNS: usize = 384;
        let groups = COLUMNS / affine.group.columns();
        let half = |x: f32| match affine.scales {
            Scales::F16 => (f16::from_f32(x).to_le_bytes(), f16::from_f32(x).to_f32()),
            Scales::Bf16 => (bf16::from_f32(x).to_le_bytes(), bf16::from_f32(x).to_f32()),
        };
        let scale = |group: usize| half(0.01 * group as f32 - 0.05);
        let bias = |group: usize| half(0.7 - 0.13 * group as f32);
        let read = |name: &str, offset: u64, out: &mut [u8]| {
            let all: Vec<u8> = match name {
                "a.weight" => bytes[..3 * COLUMNS * affine.bits.count() / 8].to_vec(),
                "a.scales" => (0..3 * groups).flat_map(|group| scale(group).0).collect(),
                "a.biases" => (0..3 * groups).flat_map(|group| bias(group).0).collect(),
                _ => return Err(io::ErrorKind::NotFound.into()),
            };
            out.copy_from_slice(&all[offset as usize..][..out.len()]);
            Ok(())
        };
        let [codes, pairs] = Format::Affine(affine).plane_bytes(COLUMNS);
        let mut out = vec![0; 2 * (codes + pairs)];
        rows(read, "a.weight", (affine, COLUMNS), 1..3, &mut out).unwrap();
        for (row, stored) in out.chunks(codes + pairs).enumerate() {
            let mut values = vec![0.0; COLUMNS];
            decode_row(Format::Affine(affine), stored.split_at(codes).into(), &mut values);
            for (column, x) in values.iter().enumerate() {
                let bit = |place: usize| {
                    let at = ((row + 1) * COLUMNS + column) * affine.bits.count() + place;
                    u32::from(bytes[at / 8] >> (at % 8) & 1) << place
                };
                let code: u32 = (0..affine.bits.count()).map(bit).sum();
                let group = (row + 1) * groups + column / affine.group.columns();
                assert_eq!(*x, code as f32 * scale(group).1 + bias(group).1, "{affine:?} {row} {column}");
            }
        }
    }
}
