//! Test helpers: pseudorandom numbers, weight files, execution of one kernel, and expected results.

#![allow(dead_code, unreachable_pub)]

pub mod halving;
pub mod http;
pub mod reference;

use forge_runtime::cpu::format::repacked::RepackedMatrix;
use forge_runtime::cpu::simd::isa::Isa;
use forge_runtime::cpu::{CpuDevice, KernelArgs};
use forge_runtime::device::kernel_cost::KernelCost;
use forge_runtime::device::{Binding, Buffer, Device, Kernel, Schedule, Span};
use forge_runtime::model::state::StateLayout;
use forge_runtime::model::{Layout, TokenRing};
use forge_runtime::ops::{Affine, Format, Scales};
use forge_runtime::weights::WeightFile;
use half::{bf16, f16};
use std::path::Path;
use std::time::Duration;

/// A kernel is a function without surroundings, so the shape under test comes from a static.
#[allow(unused_macros)]
macro_rules! kernel_under_test {
    ($name:ident, $shape:ty, $function:path) => {
        static $name: std::sync::RwLock<Option<$shape>> = std::sync::RwLock::new(None);
        fn run(call: &cpu::KernelArgs<'_>) {
            let shape = $name.read().unwrap().clone().expect("a shape is set before each run");
            $function(call, &shape);
        }
    };
}

pub const NAN: [u8; 4] = [0xff; 4];

/// A kernel with these buffers.
pub fn kernel(name: &'static str, buffers: Vec<&'static str>, cpu: fn(&KernelArgs<'_>)) -> &'static Kernel {
    Box::leak(Box::new(Kernel {
        name,
        buffers: Box::leak(buffers.into_boxed_slice()),
        threads: 32,
        strips: None,
        cost: KernelCost::NONE,
        cpu,
    }))
}

/// The same, of a matrix in strips.
pub fn kernel_in_strips(
    name: &'static str,
    buffers: Vec<&'static str>,
    shape: [usize; 2],
    cpu: fn(&KernelArgs<'_>),
) -> &'static Kernel {
    let buffers = Box::leak(buffers.into_boxed_slice());
    Box::leak(Box::new(Kernel {
        name,
        buffers,
        threads: 32,
        strips: Some(shape),
        cost: KernelCost::NONE,
        cpu,
    }))
}

/// Compares values: `wanted` has each expected value with the magnitude of its terms.
pub fn compare(what: &str, got: &[f32], wanted: &[(f64, f64)]) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (index, (got, (wanted, size))) in got.iter().zip(wanted).enumerate() {
        let error = (f64::from(*got) - wanted).abs();
        assert!(
            error <= 1e-6 * size + 1e-30,
            "{what}: number {index} is {got}, not {wanted} ({error:e} of {size})"
        );
    }
}

/// Runs a check with every set of instructions, on one thread or a few.
pub fn each_level(mut check: impl FnMut(Isa, usize)) {
    for (index, level) in Isa::available().into_iter().enumerate() {
        check(level, index % 3 + 1);
    }
}

/// A row as its codes have it: each number is the nearest of 255 between the largest of its 32 and its opposite.
#[allow(dead_code)]
pub fn as_encoded(row: &[f32]) -> Vec<f64> {
    let blocks = row.chunks(32).flat_map(|block| {
        let largest = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let factor = if largest > 1e-30 { 127.0 / largest } else { 0.0 };
        block.iter().map(move |x| f64::from((x * factor).round_ties_even()) * f64::from(largest / 127.0))
    });
    blocks.collect()
}

/// Reproducible pseudorandom numbers.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 16
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Between -1 and 1.
    pub fn number(&mut self) -> f32 {
        (self.bits() & 0xff_ffff) as f32 / 8_388_608.0 - 1.0
    }

    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// A stored matrix: its planes as bytes, and its values `[rows, columns]`.
#[derive(Clone)]
pub struct Matrix {
    pub format: Format,
    pub rows: usize,
    pub columns: usize,
    pub planes: Vec<Vec<u8>>,
    pub values: Vec<f32>,
}

pub fn padded(columns: usize) -> usize {
    columns.next_multiple_of(32)
}

/// An affine format.
pub const fn affine(bits: usize, group: usize, scales: Scales) -> Format {
    Format::Affine(Affine::of(bits, group, scales).unwrap())
}

/// Formats that can be repacked into strips.
#[allow(dead_code)]
pub const IN_STRIPS: [Format; 6] = [
    Format::Q8_0,
    Format::Q4_0,
    Format::Q4K,
    affine(4, 32, Scales::F16),
    affine(4, 64, Scales::Bf16),
    affine(4, 128, Scales::F16),
];

/// Rows and stored columns of a matrix of one of these.
#[allow(dead_code)]
pub fn laid_out(matrix: &Matrix) -> [usize; 2] {
    let of_byte = if matrix.format == Format::Q8_0 { 1 } else { 2 };
    [matrix.rows, matrix.planes[0].len() / matrix.rows * of_byte]
}

/// A matrix of random codes, padded as the compiler pads. Values are at most about `size`.
pub fn matrix(random: &mut Random, format: Format, rows: usize, columns: usize, size: f32) -> Matrix {
    if let Format::Affine { .. } = format {
        return affine_matrix(random, format, rows, columns, size);
    }
    if let Format::Q6K | Format::Q5K | Format::Q4K = format {
        return superblocks(random, format, rows, columns, size);
    }
    let width = padded(columns);
    let mut values = Vec::with_capacity(rows * columns);
    let (mut first, mut scales) = (Vec::new(), Vec::new());
    for _ in 0..rows {
        for block in 0..width / 32 {
            let scale = f16::from_f32(size * (0.25 + 0.75 * random.number().abs()) / 127.0 * 16.0);
            let wide = f16::from_f32(scale.to_f32() / 16.0);
            // As a power of two.
            let exponent = (scale.to_f32().to_bits() >> 23) as u8;
            let power = f32::from_bits(u32::from(exponent) << 23);
            let mut nibbles = [0_u8; 16];
            for i in 0..32 {
                let inside = block * 32 + i < columns;
                let x = if inside { random.number() * size } else { 0.0 };
                let value = match format {
                    Format::F32 => {
                        first.extend(x.to_ne_bytes());
                        x
                    }
                    Format::F16 => {
                        first.extend(f16::from_f32(x).to_ne_bytes());
                        f16::from_f32(x).to_f32()
                    }
                    Format::Bf16 => {
                        first.extend(bf16::from_f32(x).to_ne_bytes());
                        bf16::from_f32(x).to_f32()
                    }
                    Format::Q8_0 => {
                        let code = if inside { random.below(255) as i32 - 127 } else { 0 };
                        first.push(code as i8 as u8);
                        code as f32 * wide.to_f32()
                    }
                    Format::Mxfp4 => {
                        let code = if inside { random.below(16) as u8 } else { 0 };
                        nibbles[i % 16] |= code << (i / 16 * 4);
                        let float = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
                        if code < 8 { float * power } else { -float * power }
                    }
                    Format::Q4_0 => {
                        let code = if inside { random.below(16) as u8 } else { 8 };
                        nibbles[i % 16] |= code << (i / 16 * 4);
                        (f32::from(code) - 8.0) * scale.to_f32()
                    }
                    _ => unreachable!(),
                };
                if inside {
                    values.push(value);
                }
            }
            match format {
                Format::Q4_0 => {
                    first.extend(nibbles);
                    scales.extend(scale.to_ne_bytes());
                }
                Format::Mxfp4 => {
                    first.extend(nibbles);
                    scales.push(exponent);
                }
                Format::Q8_0 => scales.extend(wide.to_ne_bytes()),
                _ => {}
            }
        }
    }
    let planes = if scales.is_empty() { vec![first] } else { vec![first, scales] };
    Matrix { format, rows, columns, planes, values }
}

/// A random quantized matrix with offsets. The padding of rows is arbitrary, because kernels must not use it.
fn affine_matrix(random: &mut Random, format: Format, rows: usize, columns: usize, size: f32) -> Matrix {
    let Format::Affine(parameters) = format else { panic!("{format:?} has no offsets") };
    let (bits, group) = (parameters.bits.count(), parameters.group.columns());
    let bf16 = parameters.scales == Scales::Bf16;
    let rounded = |x: f32| if bf16 { bf16::from_f32(x).to_f32() } else { f16::from_f32(x).to_f32() };
    let bytes = |x: f32| if bf16 { bf16::from_f32(x).to_ne_bytes() } else { f16::from_f32(x).to_ne_bytes() };
    let most = ((1 << bits) - 1) as f32;
    let (mut codes, mut scales, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let mut row = Vec::new();
        for _ in 0..columns.div_ceil(group) {
            let scale = rounded(size * (0.5 + random.number().abs()) / most);
            let offset = rounded(-size * random.number().abs());
            scales.extend([scale, offset].into_iter().flat_map(bytes));
            let of_group: Vec<u8> = (0..group).map(|_| random.below(1 << bits) as u8).collect();
            row.extend(of_group.iter().map(|&code| f32::from(code) * scale + offset));
            codes.extend(of_group.chunks(32).flat_map(|block| packed(bits, block)));
        }
        values.extend(&row[..columns]);
    }
    Matrix { format, rows, columns, planes: vec![codes, scales], values }
}

/// A matrix of random superblocks, padded with whatever it is.
fn superblocks(random: &mut Random, format: Format, rows: usize, columns: usize, size: f32) -> Matrix {
    let bits = match format {
        Format::Q6K => 6,
        Format::Q5K => 5,
        _ => 4,
    };
    let (mut codes, mut scales, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let mut row = Vec::new();
        for _ in 0..columns.div_ceil(256) {
            let some: Vec<u8> = (0..256).map(|_| random.below(1 << bits) as u8).collect();
            codes.extend(some.chunks(32).flat_map(|block| packed(bits, block)));
            let bytes: Vec<u8> = (0..16).map(|_| random.bits() as u8).collect();
            let mut unit = |most: f32| f16::from_f32(size * (0.5 + random.number().abs()) / most);
            if format == Format::Q6K {
                let d = unit(128.0 * 32.0);
                scales.extend(d.to_ne_bytes());
                scales.extend(&bytes);
                let scale = |column: usize| d.to_f32() * f32::from(bytes[column / 16] as i8);
                row.extend(some.iter().enumerate().map(|(c, code)| (f32::from(*code) - 32.0) * scale(c)));
            } else {
                let [d, least] = [unit(63.0 * ((1 << bits) - 1) as f32), unit(63.0)];
                scales.extend([d, least].into_iter().flat_map(f16::to_ne_bytes));
                let bytes: Vec<u8> = bytes.iter().map(|byte| byte & 63).collect();
                scales.extend(&bytes);
                let of = |unit: f16, at: usize| unit.to_f32() * f32::from(bytes[at]);
                let value = |(c, code): (usize, &u8)| {
                    f32::from(*code) * of(d, c / 32 * 2) - of(least, c / 32 * 2 + 1)
                };
                row.extend(some.iter().enumerate().map(value));
            }
        }
        values.extend(&row[..columns]);
    }
    Matrix { format, rows, columns, planes: vec![codes, scales], values }
}

/// 32 codes as an affine format has them: column by column, and part by part, as it is documented.
fn packed(bits: usize, codes: &[u8]) -> Vec<u8> {
    if bits == 8 {
        return codes.to_vec();
    }
    let mut bytes = vec![0; 4 * bits];
    for (column, code) in codes.iter().enumerate() {
        let (half, word, byte) = (column / 16, column % 16 / 4, column % 4);
        let nibble = (4, 4 * word + byte, 4 * half);
        let pair = (2, word / 2 * 4 + byte, 4 * (word % 2) + 2 * half);
        let single = (1, byte, 2 * word + half);
        let (mut first, mut taken) = (0, 0);
        for (part, at, place) in [nibble, pair, single].into_iter().filter(|(part, ..)| bits & part != 0) {
            bytes[first + at] |= (code >> taken & ((1 << part) - 1)) << place;
            (first, taken) = (first + 4 * part, taken + part);
        }
    }
    bytes
}

/// Tensors for a weight file: name, safetensors' element type, shape, bytes.
pub type Tensor = (String, &'static str, Vec<usize>, Vec<u8>);

/// The tensors of a matrix.
pub fn tensors(name: &str, matrix: &Matrix) -> Vec<Tensor> {
    let (rows, width) = (matrix.rows, padded(matrix.columns));
    let planes: Vec<(String, &'static str, Vec<usize>)> = match matrix.format {
        Format::F32 => vec![(name.into(), "F32", vec![rows, width])],
        Format::F16 => vec![(name.into(), "F16", vec![rows, width])],
        Format::Bf16 => vec![(name.into(), "BF16", vec![rows, width])],
        Format::Q8_0 => vec![
            (format!("{name}.codes"), "I8", vec![rows, width]),
            (format!("{name}.scales"), "F16", vec![rows, width / 32]),
        ],
        Format::Q4_0 => vec![
            (format!("{name}.codes"), "U8", vec![rows, width / 2]),
            (format!("{name}.scales"), "F16", vec![rows, width / 32]),
        ],
        Format::Q6K | Format::Q5K | Format::Q4K | Format::Mxfp4 => {
            let of_row = |plane: usize| matrix.planes[plane].len() / rows;
            vec![
                (format!("{name}.codes"), "U8", vec![rows, of_row(0)]),
                (format!("{name}.scales"), "U8", vec![rows, of_row(1)]),
            ]
        }
        Format::Affine(parameters) => {
            let (bits, group) = (parameters.bits.count(), parameters.group.columns());
            let bf16 = parameters.scales == Scales::Bf16;
            let groups = matrix.columns.div_ceil(group);
            vec![
                (format!("{name}.codes"), "U8", vec![rows, groups * group * bits / 8]),
                (format!("{name}.scales"), if bf16 { "BF16" } else { "F16" }, vec![rows, groups * 2]),
            ]
        }
    };
    planes.into_iter().zip(&matrix.planes).map(|((n, d, s), bytes)| (n, d, s, bytes.clone())).collect()
}

pub fn vector(name: &str, values: &[f32]) -> Tensor {
    (name.into(), "F32", vec![values.len()], bytes_of(values))
}

pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Writes a weight file like the compiler: data aligned to 16384, tensors aligned to 64.
pub fn write_weights(path: &Path, tensors: &[Tensor]) {
    let mut entries = Vec::new();
    let mut data: Vec<u8> = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend(bytes);
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{}]}}"#,
            data.len()
        ));
        let gap = data.len().next_multiple_of(64) - data.len();
        if gap > 0 {
            let (start, number) = (data.len(), entries.len());
            data.resize(start + gap, 0);
            entries.push(format!(
                r#""_padding.{number}":{{"dtype":"U8","shape":[{gap}],"data_offsets":[{start},{}]}}"#,
                data.len()
            ));
        }
    }
    let mut header = format!("{{{}}}", entries.join(","));
    while !(header.len() + 8).is_multiple_of(16384) {
        header.push(' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::write(path, file).unwrap();
}

/// The contents of a kernel's buffer.
#[derive(Clone)]
pub enum Argument {
    Bytes(Vec<u8>),
    /// A plane of the kernel's matrix, in the weight file: in strips if the kernel takes them.
    Weights(Vec<u8>),
    /// The same of several matrices: how many, and bytes from one to the next.
    Stack(Vec<u8>, [usize; 2]),
    Words(Vec<u32>),
    Numbers(Vec<f32>),
    /// A written buffer of this size, with these initial bytes.
    Output(Vec<u8>),
}

/// Runs one kernel by itself, exactly, as a row alone or as a batch; gives the bytes of its outputs, in order.
pub fn run_kernel(
    kernel: &'static Kernel,
    arguments: &[Argument],
    scalars: &[u32],
    level: Isa,
    threads: usize,
) -> Vec<Vec<u8>> {
    let program = if scalars[0] == 1 { Schedule::Decode } else { Schedule::Batch };
    run_kernel_as(kernel, arguments, scalars, program, level, threads, true)
}

/// The same in a program, on a device that is exact, or is not.
pub fn run_kernel_as(
    kernel: &'static Kernel,
    arguments: &[Argument],
    scalars: &[u32],
    program: Schedule,
    level: Isa,
    threads: usize,
    exact: bool,
) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let mut tensors = vec![vector("none", &[0.0; 16])];
    for argument in arguments {
        if let Argument::Weights(bytes) | Argument::Stack(bytes, _) = argument {
            tensors.push((format!("plane {}", tensors.len()), "U8", vec![bytes.len()], bytes.clone()));
        }
    }
    write_weights(&path, &tensors);
    let file = WeightFile::open(&path).unwrap();
    // Each argument ends with a page of its own kind of garbage, so that reading past it shows.
    let bytes: Vec<Vec<u8>> = arguments
        .iter()
        .map(|argument| match argument {
            Argument::Bytes(bytes)
            | Argument::Weights(bytes)
            | Argument::Stack(bytes, _)
            | Argument::Output(bytes) => bytes.clone(),
            Argument::Words(words) => words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
            Argument::Numbers(numbers) => bytes_of(numbers),
        })
        .collect();
    let offsets: Vec<usize> = bytes
        .iter()
        .scan(0, |end, bytes| {
            let offset = *end;
            *end = (offset + bytes.len() + 256).next_multiple_of(64);
            Some(offset)
        })
        .collect();
    let size = offsets.last().unwrap() + bytes.last().unwrap().len();
    let nothing = Span::new(Buffer::Rows, 0, 0);
    let layout = Layout {
        state: StateLayout::new(1),
        scratch_bytes: size,
        rows_bytes: 0,
        ids: nothing,
        slots: nothing,
        positions: nothing,
        row_indices: nothing,
        logits: Span::new(Buffer::Scratch, 0, 0),
        sampling: nothing,
        next_tokens: nothing,
        experts: Vec::new(),
        expert_slots: nothing,
        token_ring: TokenRing { ids: nothing, positions: nothing, sampling: nothing },
    };
    let (mut bindings, mut in_file) = (Vec::new(), 16384 + 64);
    for ((argument, bytes), &offset) in arguments.iter().zip(&bytes).zip(&offsets) {
        let (bytes, written) = (bytes.len(), matches!(argument, Argument::Output(_)));
        if let Argument::Weights(_) | Argument::Stack(..) = argument {
            bindings.push(Binding { buffer: Buffer::Weights, offset: in_file, bytes, written });
            in_file = (in_file + bytes).next_multiple_of(64);
        } else {
            bindings.push(Binding { buffer: Buffer::Scratch, offset, bytes, written });
        }
    }
    let device = CpuDevice::new(&file, &layout, Some(threads)).unwrap();
    let mut device = device.with_level(level).exact(exact);
    if let Some(shape) = kernel.strips {
        let apart = match arguments[0] {
            Argument::Stack(_, apart) => apart,
            _ => RepackedMatrix::ALONE,
        };
        let matrix = RepackedMatrix::new(shape, &bindings[0], &bindings[1], apart).expect("whole strips");
        device = device.with_copied_weights(&file, vec![matrix]);
        while device.finish_background_work(Duration::MAX).unwrap().is_some() {}
    }
    device.write(Buffer::Scratch, 0, &vec![0xff; size]);
    for (binding, bytes) in
        bindings.iter().zip(&bytes).filter(|(binding, _)| binding.buffer == Buffer::Scratch)
    {
        device.write(Buffer::Scratch, binding.offset, bytes);
    }
    device.run(program, &mut |pass| pass.dispatch(kernel, &bindings, scalars, [1, 1, 1])).unwrap();
    let mut outputs = Vec::new();
    for binding in bindings.iter().filter(|binding| binding.written) {
        let mut read = vec![0; binding.bytes];
        device.read(Buffer::Scratch, binding.offset, &mut read);
        outputs.push(read);
    }
    outputs
}

pub fn numbers_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().unwrap())).collect()
}

pub fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}
