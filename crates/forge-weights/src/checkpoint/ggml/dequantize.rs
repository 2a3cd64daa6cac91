//! The values of ggml blocks that no format of forge represents.
//!
//! The operations and their order are ggml's, so values are bitwise identical.

use crate::checkpoint::ggml::grid::point;
use forge_ir::{Blocks, from_f16};

/// Fills `out` with the values of a row. Rows are whole blocks, of formats that are not quantized in forge.
pub(crate) fn values(blocks: Blocks, row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(blocks.bytes()).zip(out.chunks_exact_mut(blocks.columns())) {
        match blocks {
            Blocks::IQ2_XXS => iq2_xxs(block, out),
            Blocks::IQ2_XS => iq2_xs(block, out),
            Blocks::IQ2_S => iq2_s(block, out),
            Blocks::IQ3_XXS => iq3_xxs(block, out),
            Blocks::IQ1_S => iq1_s(block, out),
            Blocks::IQ1_M => iq1_m(block, out),
            // These have planes.
            _ => {}
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]])
}

fn half(bytes: &[u8]) -> f32 {
    from_f16(word(bytes, 0))
}

/// The 4-bit code at an index; the low nibble of a byte comes first.
fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (at % 2 * 4) & 15
}

/// Fills 8 columns of points with signs.
fn signed(out: &mut [f32], scale: f32, magnitudes: [u8; 8], signs: u8) {
    for (place, (out, magnitude)) in out.iter_mut().zip(magnitudes).enumerate() {
        let value = scale * f32::from(magnitude);
        *out = if signs >> place & 1 == 1 { -value } else { value };
    }
}

/// Signs of 8 columns from 7 bits: the number of negative columns is even.
fn even_signs(bits: u32) -> u8 {
    let seven = (bits & 127) as u8;
    seven | ((seven.count_ones() % 2) as u8) << 7
}

/// d, then per 32 columns: 4 codes, and a word of 4 times 7 signs and a scale of 4 bits.
fn iq2_xxs(block: &[u8], out: &mut [f32]) {
    let d = half(block);
    for (part, out) in block[2..].as_chunks::<8>().0.iter().zip(out.chunks_mut(32)) {
        let packed = u32::from_le_bytes([part[4], part[5], part[6], part[7]]);
        let scale = d * (0.5 + (packed >> 28) as f32) * 0.25;
        for (place, out) in out.chunks_mut(8).enumerate() {
            let signs = even_signs(packed >> (7 * place));
            signed(out, scale, point::iq2_xxs(usize::from(part[place])), signs);
        }
    }
}

/// d, then per 8 columns a word of 9 bits of code and 7 signs, then scales of 4 bits per 16 columns.
fn iq2_xs(block: &[u8], out: &mut [f32]) {
    let d = half(block);
    for (at, out) in out.chunks_mut(8).enumerate() {
        let packed = word(&block[2..66], at);
        let scale = d * (0.5 + f32::from(nibble(&block[66..], at / 2))) * 0.25;
        let code = usize::from(packed & 511);
        signed(out, scale, point::iq2_xs(code), even_signs(u32::from(packed >> 9)));
    }
}

/// d, 32 low bytes of codes, 32 bytes of signs, high bit pairs of codes, scales of 4 bits per 16 columns.
fn iq2_s(block: &[u8], out: &mut [f32]) {
    let d = half(block);
    for (at, out) in out.chunks_mut(8).enumerate() {
        let high = block[66 + at / 4] >> (at % 4 * 2) & 3;
        let scale = d * (0.5 + f32::from(nibble(&block[74..], at / 2))) * 0.25;
        let code = usize::from(block[2 + at]) | usize::from(high) << 8;
        signed(out, scale, point::iq2_s(code), block[34 + at]);
    }
}

/// d, 64 codes of 4 columns, then per 32 columns a word of 4 times 7 signs and a scale of 4 bits.
fn iq3_xxs(block: &[u8], out: &mut [f32]) {
    let d = half(block);
    for (at, out) in out.chunks_mut(8).enumerate() {
        let part = &block[66 + at / 4 * 4..];
        let packed = u32::from_le_bytes([part[0], part[1], part[2], part[3]]);
        let scale = d * (0.5 + (packed >> 28) as f32) * 0.5;
        let [first, second] = [0, 1].map(|next| point::iq3_xxs(usize::from(block[2 + 2 * at + next])));
        let magnitudes =
            std::array::from_fn(|column| if column < 4 { first[column] } else { second[column - 4] });
        signed(out, scale, magnitudes, even_signs(packed >> (at % 4 * 7)));
    }
}

/// Fills 8 columns of a ternary point that is shifted by an eighth.
fn shifted(out: &mut [f32], scale: f32, code: usize, is_down: bool) {
    let shift = if is_down { -0.125 } else { 0.125 };
    for (out, plus_one) in out.iter_mut().zip(point::iq1_s(code)) {
        *out = scale * (f32::from(plus_one) - 1.0 + shift);
    }
}

/// d, 32 low bytes of codes, then per 32 columns a word: 4 times 3 high bits of codes, a scale of 3 bits, and
/// the sign of the shift.
fn iq1_s(block: &[u8], out: &mut [f32]) {
    let d = half(block);
    for (at, out) in out.chunks_mut(8).enumerate() {
        let packed = word(&block[34..], at / 4);
        let scale = d * f32::from(2 * (packed >> 12 & 7) + 1);
        let high = usize::from(packed >> (at % 4 * 3) & 7);
        shifted(out, scale, usize::from(block[2 + at]) | high << 8, packed & 0x8000 != 0);
    }
}

/// 32 low bytes of codes; nibbles of 3 high bits and the sign of the shift; 4 words, of which the high nibbles
/// are d and the others scales of 3 bits per 16 columns.
fn iq1_m(block: &[u8], out: &mut [f32]) {
    let scales = &block[48..];
    let d = (0..4).fold(0, |d, at| d | (word(scales, at) >> 12) << (4 * at));
    let d = from_f16(d);
    for (at, out) in out.chunks_mut(8).enumerate() {
        let scale = d * f32::from(2 * (word(scales, at / 8) >> (at / 2 % 4 * 3) & 7) + 1);
        let packed = nibble(&block[32..48], at);
        shifted(out, scale, usize::from(block[at]) | usize::from(packed & 7) << 8, packed & 8 != 0);
    }
}
