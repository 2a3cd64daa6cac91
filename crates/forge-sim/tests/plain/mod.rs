//! Test helpers: pseudorandom numbers, stored matrices with known values, and execution of one kernel.

use forge_kernels::{Instance, Spec, assemble, render};
use forge_ops::{Bits, Format, SUPERBLOCK, Scales};

use forge_sim::{Bound, BufferId, Program, Sim};

/// Reproducible pseudorandom numbers.
pub(crate) struct Random(pub(crate) u32);

impl Random {
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    /// Between -1 and 1.
    pub(crate) fn number(&mut self) -> f32 {
        self.bits() as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }

    /// A scale or an offset, f16 or bf16.
    fn scale(&mut self, scales: Scales, low: i32, negative: bool) -> ([u8; 2], f32) {
        let (bytes, half) = self.half(low, negative);
        let bits = (half.to_bits() >> 16) as u16;
        match scales {
            Scales::F16 => (bytes, half),
            Scales::Bf16 => (bits.to_le_bytes(), f32::from_bits(u32::from(bits) << 16)),
        }
    }

    /// An f16 value between 2^low and 2^(low + 2), as bits and as f64.
    fn half(&mut self, low: i32, negative: bool) -> ([u8; 2], f32) {
        let (exponent, fraction) = (low + (self.bits() & 1) as i32, self.bits() & 0x3ff);
        let bits = u16::from(negative) << 15 | ((exponent + 15) as u16) << 10 | fraction as u16;
        let size = (1.0 + fraction as f32 / 1024.0) * 2f32.powi(exponent);
        (bits.to_le_bytes(), if negative { -size } else { size })
    }
}

/// A stored matrix: its planes, and its values `[rows, columns]`.
pub(crate) struct Stored {
    pub(crate) planes: Vec<Vec<u8>>,
    pub(crate) values: Vec<f32>,
}

/// Random weights of about 1 at most. The padding of rows is not zero, because kernels must not use it.
pub(crate) fn stored(random: &mut Random, format: Format, rows: usize, columns: usize) -> Stored {
    let group = format.group();
    let (mut first, mut scales, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let mut row = Vec::new();
        for _ in 0..columns.div_ceil(group) {
            if group == SUPERBLOCK {
                row.extend(superblock(random, format, &mut first, &mut scales));
                continue;
            }
            let (bits, scales_are) = match format {
                Format::Q8_0 => (8, Scales::F16),
                Format::Affine(affine) => (affine.bits.count() as i32, affine.scales),
                Format::Iq4Nl => (7, Scales::F16),
                _ => (4, Scales::F16),
            };
            let (scale_bytes, scale) = random.scale(scales_are, -bits, false);
            let (offset_bytes, offset) = random.scale(scales_are, -2, true);
            // The exponent is the scale's.
            let exponent = (scale.to_bits() >> 23) as u8;
            match format {
                Format::Mxfp4 => scales.push(exponent),
                Format::Fp8 | Format::Nvfp4 => {}
                _ if format.is_quantized() => scales.extend(scale_bytes),
                _ => {}
            }
            if matches!(format, Format::Affine(_)) {
                scales.extend(offset_bytes);
            }
            let codes: Vec<u8> = (0..group).map(|_| random.bits() as u8).collect();
            match format {
                Format::F32 => {
                    let numbers = random.floats(group);
                    first.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
                    row.extend(numbers);
                }
                Format::F16 => {
                    for code in codes {
                        let (bytes, value) = random.half(-(i32::from(code & 3)) - 2, code > 127);
                        first.extend(bytes);
                        row.push(value);
                    }
                }
                Format::Bf16 => {
                    for number in random.floats(group) {
                        let kept = number.to_bits() & 0xffff_0000;
                        first.extend(&kept.to_le_bytes()[2..]);
                        row.push(f32::from_bits(kept));
                    }
                }
                Format::Q8_0 => {
                    row.extend(codes.iter().map(|&code| f32::from(code as i8) * scale));
                    first.extend(codes);
                }
                Format::Fp8 => {
                    // Between 2^-7 and 2^-5; no NaN, and the floats are at most 15.
                    scales.extend(scale.to_le_bytes());
                    let codes: Vec<u8> = codes.iter().map(|code| code & 0xbf).collect();
                    row.extend(codes.iter().map(|&code| float8(code) * scale));
                    first.extend(codes);
                }
                Format::Q4_0 => {
                    first.extend((0..16).map(|j| codes[j] & 15 | codes[j + 16] << 4));
                    row.extend(codes.iter().map(|&code| (f32::from(code & 15) - 8.0) * scale));
                }
                Format::Iq4Nl => {
                    first.extend((0..16).map(|j| codes[j] & 15 | codes[j + 16] << 4));
                    row.extend(codes.iter().map(|&code| entry(code & 15) * scale));
                }
                Format::Q5_0 => {
                    first.extend(packed(Bits::Five, &codes));
                    row.extend(codes.iter().map(|&code| (f32::from(code & 31) - 16.0) * scale));
                }
                Format::Mxfp4 => {
                    let power = f32::from_bits(u32::from(exponent) << 23);
                    first.extend((0..16).map(|j| codes[j] & 15 | codes[j + 16] << 4));
                    row.extend(codes.iter().map(|&code| float4(code) * power));
                }
                Format::Nvfp4 => {
                    // Scales are at most 15.
                    let bytes: Vec<u8> = (0..8).map(|_| random.bits() as u8 & 0x3f).collect();
                    scales.extend(scale.to_le_bytes());
                    scales.extend(&bytes);
                    let of = |column: usize| float8(bytes[column / 16]) * scale;
                    row.extend(codes.iter().enumerate().map(|(column, &code)| float4(code) * of(column)));
                    first.extend(codes.chunks(32).flat_map(|block| packed(Bits::Four, block)));
                }
                Format::Affine(affine) => {
                    let most = ((1_u16 << affine.bits.count()) - 1) as u8;
                    first.extend(codes.chunks(32).flat_map(|block| packed(affine.bits, block)));
                    row.extend(codes.iter().map(|&code| f32::from(code & most) * scale + offset));
                }
                Format::Iq4Xs | Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K => {
                    unreachable!("these have superblocks")
                }
            }
        }
        values.extend(&row[..columns]);
    }
    let planes = if scales.is_empty() { vec![first] } else { vec![first, scales] };
    Stored { planes, values }
}

/// The entry of a nibble.
fn entry(code: u8) -> f32 {
    const ENTRIES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    f32::from(ENTRIES[usize::from(code)])
}

/// The value of the 4-bit float in the low bits: a sign, 2 bits of exponent and 1 of fraction.
fn float4(code: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// The value of an 8-bit float with a sign, 4 bits of exponent and 3 of fraction.
fn float8(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-9),
        _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
    };
    if code < 128 { magnitude } else { -magnitude }
}

/// Appends a superblock to its planes and returns its values.
fn superblock(random: &mut Random, format: Format, codes: &mut Vec<u8>, scales: &mut Vec<u8>) -> Vec<f32> {
    let bits = format.bits().unwrap_or_else(|| panic!("{format} has codes"));
    let all: Vec<u8> =
        (0..SUPERBLOCK).map(|_| random.bits() as u8 & ((1_u16 << bits.count()) - 1) as u8).collect();
    codes.extend(all.chunks(32).flat_map(|block| packed(bits, block)));
    let of = |column: usize| f32::from(all[column]);
    if matches!(format, Format::Q6K | Format::Q3K) {
        let middle = (1 << (bits.count() - 1)) as f32;
        let negative = random.bits().is_multiple_of(2);
        let (bytes, d) = random.half(-14, negative);
        let signed: Vec<u8> = (0..16).map(|_| random.bits() as u8).collect();
        scales.extend(bytes);
        scales.extend(&signed);
        let scale = |column: usize| d * f32::from(signed[column / 16] as i8);
        return (0..SUPERBLOCK).map(|column| (of(column) - middle) * scale(column)).collect();
    }
    if format == Format::Iq4Xs {
        let (bytes, d) = random.half(-14, false);
        let signed: Vec<u8> = (0..8).map(|_| random.bits() as u8).collect();
        scales.extend(bytes);
        scales.extend(&signed);
        let scale = |column: usize| d * f32::from(signed[column / 32] as i8);
        return (0..SUPERBLOCK).map(|column| entry(all[column]) * scale(column)).collect();
    }
    let (bytes, d) = random.half(-8 - bits.count() as i32, false);
    let (least_bytes, least) = random.half(-8, false);
    if format == Format::Q2K {
        let counts: Vec<u8> = (0..16).map(|_| random.bits() as u8).collect();
        scales.extend([bytes, least_bytes].concat());
        scales.extend(&counts);
        let pair = |column: usize| [counts[column / 16] & 15, counts[column / 16] >> 4].map(f32::from);
        let value = |column: usize| of(column) * (d * pair(column)[0]) - least * pair(column)[1];
        return (0..SUPERBLOCK).map(value).collect();
    }
    let pairs: Vec<[u8; 2]> = (0..8).map(|_| [random.bits() as u8 & 63, random.bits() as u8 & 63]).collect();
    scales.extend([bytes, least_bytes].concat());
    scales.extend(pairs.iter().flatten());
    let pair = |column: usize| pairs[column / 32].map(f32::from);
    let value = |column: usize| of(column) * (d * pair(column)[0]) - least * pair(column)[1];
    (0..SUPERBLOCK).map(value).collect()
}

/// Packs the low bits of 32 quants in the documented order of affine formats: column by column, and part by
/// part.
fn packed(bits: Bits, codes: &[u8]) -> Vec<u8> {
    let bits = bits.count();
    let mut bytes = vec![0; 4 * bits];
    for (column, code) in codes.iter().enumerate() {
        let (half, word, byte) = (column / 16, column % 16 / 4, column % 4);
        let (mut first, mut taken) = (0, 0);
        let mut put = |part: usize, at: usize, place: usize| {
            bytes[first + at] |= (code >> taken & ((1_u16 << part) - 1) as u8) << place;
            (first, taken) = (first + 4 * part, taken + part);
        };
        if bits == 8 {
            put(8, column, 0);
        }
        if bits & 4 != 0 {
            put(4, 4 * word + byte, 4 * half);
        }
        if bits & 2 != 0 {
            put(2, word / 2 * 4 + byte, 4 * (word % 2) + 2 * half);
        }
        if bits & 1 != 0 {
            put(1, byte, 2 * word + half);
        }
    }
    bytes
}

/// An expected value, and the magnitude of the summed terms.
pub(crate) type Expected = (f64, f64);

/// Kernels of one program.
pub(crate) struct Bench {
    program: Program,
    instances: Vec<Instance>,
}

/// The contents of a kernel's buffer.
pub(crate) enum Input {
    Bytes(Vec<u8>),
    F32(Vec<f32>),
    U32(Vec<u32>),
    /// A number of uninitialized words.
    Uninitialized(usize),
}

/// The first column read from rows that are longer than a result.
pub(crate) const FIRST: u32 = 5;

impl Bench {
    pub(crate) fn new(specs: &[Spec]) -> Bench {
        let instance = |(index, spec)| {
            render(&format!("kernel_{index}"), spec).unwrap_or_else(|error| panic!("{error}: {spec:?}"))
        };
        let instances: Vec<Instance> = specs.iter().enumerate().map(instance).collect();
        let program = Program::compile(&assemble(&instances, "")).unwrap_or_else(|error| panic!("{error}"));
        Bench { program, instances }
    }

    /// Names of the buffers that a kernel writes, in the order of its results.
    pub(crate) fn written(&self, index: usize) -> Vec<String> {
        let buffers = &self.instances[index].decl.buffers;
        buffers.iter().filter(|buffer| buffer.written).map(|buffer| buffer.name.clone()).collect()
    }

    /// Runs kernel `index` and returns the contents of its writable buffers as words.
    pub(crate) fn run(
        &self,
        index: usize,
        rows: usize,
        mut input_of: impl FnMut(&str) -> Input,
    ) -> Vec<Vec<u32>> {
        let Instance { name, spec, decl, .. } = &self.instances[index];
        let mut sim = Sim::new(&self.program).unwrap_or_else(|error| panic!("{error}"));
        let mut bound: Vec<(BufferId, Bound)> = Vec::new();
        for buffer in &decl.buffers {
            let id = match input_of(&buffer.name) {
                Input::Bytes(bytes) => sim.memory.bytes(&bytes),
                Input::F32(numbers) => sim.memory.floats(&numbers),
                Input::U32(words) => sim.memory.words(&words),
                Input::Uninitialized(words) => sim.memory.unwritten(words * 4),
            }
            .unwrap_or_else(|error| panic!("{error}"));
            bound.push((id, if buffer.written { id.write() } else { id.read() }));
        }
        let scalars = [("rows", rows as u32), ("first", FIRST)];
        let groups = decl.grid.each_ref().map(|axis| axis.eval(&scalars).unwrap_or(0));
        let bindings: Vec<Bound> = bound.iter().map(|(_, bound)| *bound).collect();
        let value = |name: &String| scalars.iter().find(|(known, _)| known == name).map_or(0, |it| it.1);
        let values: Vec<u32> = decl.scalars.iter().map(value).collect();
        sim.dispatch(name, &bindings, &values, groups);
        assert!(sim.faults().is_empty(), "{rows} rows of {spec:?}: {:?}", sim.faults());
        let written = decl.buffers.iter().zip(&bound).filter(|(buffer, _)| buffer.written);
        written.map(|(_, (id, _))| sim.memory.read_words(*id)).collect()
    }
}

pub(crate) fn to_f32(words: &[u32]) -> Vec<f32> {
    words.iter().map(|&word| f32::from_bits(word)).collect()
}

/// Compares values, with a tolerance relative to the magnitude of their terms.
pub(crate) fn compare(what: &str, got: &[f32], expected: &[Expected], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (index, (&got, &(expected, size))) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        assert!(
            error <= tolerance * size,
            "{what}: number {index} is {got}, not {expected} ({error:e} of {size})"
        );
    }
}
