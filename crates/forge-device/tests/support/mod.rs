//! Test helpers: pseudorandom numbers, weight files, execution of one kernel, and expected results.

#![allow(dead_code, unused_imports, unreachable_pub)]

pub mod halving;
pub mod reference;
mod tensors;

pub use forge_oracle::compare::{Expected, absolute, relative, to_f64, values_of};
pub use forge_oracle::{Batch, Matrix, Random};
pub use tensors::*;

use forge_device::cpu::format::repacked::RepackedMatrix;
use forge_device::cpu::simd::isa::Isa;
use forge_device::cpu::{CpuDevice, KernelArgs};
use forge_device::device::kernel_cost::KernelCost;
use forge_device::device::{Binding, Buffer, Device, Kernel, Schedule, Span};
use forge_device::model::state::StateLayout;
use forge_device::model::{Layout, TokenRing};
use forge_device::weights::WeightFile;
use std::path::Path;
use std::time::Duration;

/// A kernel is a plain function without captures, so the shape under test is in a static.
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

/// The same for a repacked matrix.
pub fn kernel_repacked(
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

/// A kernel with its arguments.
pub struct Call {
    pub kernel: &'static Kernel,
    pub arguments: Vec<Argument>,
}

impl Call {
    /// A kernel with arguments by name.
    pub fn new(
        name: &'static str,
        cpu: fn(&KernelArgs<'_>),
        arguments: impl IntoIterator<Item = (&'static str, Argument)>,
    ) -> Call {
        let (buffers, arguments) = arguments.into_iter().unzip();
        Call { kernel: kernel(name, buffers, cpu), arguments }
    }

    /// Runs it as [`run_kernel`] does.
    pub fn run(&self, scalars: &[usize], level: Isa, threads: usize) -> Vec<Vec<u8>> {
        let scalars: Vec<u32> = scalars.iter().map(|scalar| *scalar as u32).collect();
        run_kernel(self.kernel, &self.arguments, &scalars, level, threads)
    }
}

/// The slots and positions of rows.
pub fn slots_and_positions(batch: &Batch) -> [(&'static str, Argument); 2] {
    let Batch { slots, positions } = batch.clone();
    [("slots", Argument::U32(slots)), ("positions", Argument::U32(positions))]
}

/// The tolerance of values of about 1: four ULP of f32, for terms that cancel.
pub fn near(numbers: impl IntoIterator<Item = f64>) -> Vec<Expected> {
    relative(numbers, 4.0)
}

/// A buffer for this many floats, which is written.
pub fn output(floats: usize) -> Argument {
    Argument::Output(NAN.repeat(floats))
}

/// Compares values: each may be off by a millionth of the magnitude of its terms.
pub fn compare(what: &str, got: &[f32], wanted: &[Expected]) {
    forge_oracle::compare(what, got, wanted, 1e-6);
}

/// Runs a check on every instruction set, with one to three threads.
pub fn each_level(mut check: impl FnMut(Isa, usize)) {
    for (index, level) in Isa::available().into_iter().enumerate() {
        check(level, index % 3 + 1);
    }
}

/// Like [`each_level`], for instruction sets with int8 products. The others do not quantize activations.
#[allow(dead_code)]
pub fn each_int8_level(mut check: impl FnMut(Isa, usize)) {
    each_level(|level, threads| {
        if level.has_int8() {
            check(level, threads);
        }
    });
}

/// The least capable instruction set of this machine with int8 products, if any. The others are compared with it.
#[allow(dead_code)]
pub fn baseline_int8() -> Option<Isa> {
    Isa::available().into_iter().rfind(|level| level.has_int8())
}

/// A row after q8_0 quantization: each value is the nearest of 255 steps between plus and minus the largest
/// magnitude of its 32.
#[allow(dead_code)]
pub fn as_encoded(row: &[f32]) -> Vec<f64> {
    let blocks = row.chunks(32).flat_map(|block| {
        let largest = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let factor = if largest > 1e-30 { 127.0 / largest } else { 0.0 };
        block.iter().map(move |x| f64::from((x * factor).round_ties_even()) * f64::from(largest / 127.0))
    });
    blocks.collect()
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
    /// A plane of the kernel's matrix in the weight file, repacked if the kernel supports it.
    Weights(Vec<u8>),
    /// The same for several matrices: their number, and their stride in bytes.
    Stack(Vec<u8>, [usize; 2]),
    U32(Vec<u32>),
    F32(Vec<f32>),
    /// A written buffer of this size, with these initial bytes.
    Output(Vec<u8>),
}

/// Runs one kernel without activation quantization, in the decode schedule for one row and in the batch
/// schedule otherwise. Returns the bytes of its outputs, in order.
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

/// Like [`run_kernel`], with a given schedule, and with or without f32 activations.
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
    // Each argument ends with a page of distinct garbage, which reveals reads past its end.
    let bytes: Vec<Vec<u8>> = arguments
        .iter()
        .map(|argument| match argument {
            Argument::Bytes(bytes)
            | Argument::Weights(bytes)
            | Argument::Stack(bytes, _)
            | Argument::Output(bytes) => bytes.clone(),
            Argument::U32(words) => words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
            Argument::F32(numbers) => bytes_of(numbers),
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
            _ => RepackedMatrix::SINGLE,
        };
        // Byte scales are moved in pairs: without a pair per two blocks, rows stay as they are.
        let matrix = RepackedMatrix::new(shape, &bindings[0], &bindings[1], apart);
        let scales = bindings[1].bytes - (apart[0] - 1) * apart[1];
        assert!(matrix.is_some() || scales % (2 * shape[0]) != 0, "{shape:?} is not repacked");
        device = device.with_copied_weights(&file, matrix.into_iter().collect());
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

pub fn to_f32(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().unwrap())).collect()
}

pub fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}
