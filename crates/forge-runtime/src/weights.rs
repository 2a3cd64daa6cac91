//! The weight file, mapped: names and shapes looked up once, bytes never copied.
//!
//! `weights.safetensors` is written by the compiler next to the program. Its data starts on a page and each tensor
//! on a multiple of 64 bytes, so the whole file serves as one device buffer and a weight is a [`Span`] of it. A
//! matrix is stored row by row, each row padded with zeros to a multiple of [`BLOCK`] columns, or of its format's group.
//!
//! A typed weight ([`Q4_0`], [`F16`], ...) is the spans of one matrix; that is what kernels are called with, so a
//! weight in the wrong format does not compile.

use super::device::{Buffer, Span};
use super::failure::Failure;
use memmap2::{Advice, Mmap};
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Columns that a row of a matrix is padded to, and that share one scale in quantised formats.
pub const BLOCK: usize = 32;

/// What every tensor's offset in the file is a multiple of.
const ALIGNMENT: usize = 64;

/// A mapped weight file.
pub struct WeightFile {
    path: PathBuf,
    file: File,
    map: Arc<Mmap>,
    tensors: HashMap<String, Tensor>,
}

struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    offset: usize,
    bytes: usize,
}

impl WeightFile {
    /// Maps the file at `path` and reads its header.
    pub fn open(path: &Path) -> Result<WeightFile, Failure> {
        let trouble = |what: String| Failure::wrong(format!("{}: {what}", path.display()));
        let file = File::open(path).map_err(|error| trouble(format!("cannot be opened: {error}")))?;
        // SAFETY: the program never writes the file. If another process cuts it short while it is mapped, reads
        // fault; that is the known price of mapping, and the reason why weights are replaced by renaming.
        let map =
            unsafe { Mmap::map(&file) }.map_err(|error| trouble(format!("cannot be mapped: {error}")))?;
        let (header, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|error| trouble(format!("is not a whole safetensors file: {error}")))?;
        let start = 8 + header;
        let tensors = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| {
                let (first, end) = info.data_offsets;
                let tensor = Tensor {
                    dtype: info.dtype,
                    shape: info.shape.clone(),
                    offset: start + first,
                    bytes: end - first,
                };
                (name, tensor)
            })
            .collect();
        Ok(WeightFile { path: path.to_path_buf(), file, map: Arc::new(map), tensors })
    }

    /// Asks the system for all of its pages early: a courtesy, and a system that refuses loses nothing but time.
    pub fn will_be_read(&self) {
        let _ = self.map.advise(Advice::WillNeed);
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file's bytes, shared with the devices that read them.
    pub fn map(&self) -> Arc<Mmap> {
        self.map.clone()
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// Bytes of its longest tensor.
    pub fn longest(&self) -> usize {
        self.tensors.values().map(|tensor| tensor.bytes).max().unwrap_or(0)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The layer whose tensor begins at that byte, if there is one of a layer.
    pub fn layer(&self, offset: usize) -> Option<u32> {
        let (name, _) = self.tensors.iter().find(|(_, tensor)| tensor.offset == offset)?;
        name.strip_prefix("layers.")?.split('.').next()?.parse().ok()
    }

    /// The vector `name` of `width` numbers.
    pub fn vector(&self, name: &str, width: usize) -> Result<Span<f32>, Failure> {
        self.find(name, Dtype::F32, &[width])
    }

    fn find<T>(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Span<T>, Failure> {
        let trouble = |what: String| {
            Failure::wrong(format!(
                "{}: tensor `{name}` {what}; the program and its weights must come from one compilation",
                self.path.display()
            ))
        };
        let tensor = self.tensors.get(name).ok_or_else(|| trouble("is missing".to_owned()))?;
        if tensor.dtype != dtype || tensor.shape != shape {
            return Err(trouble(format!(
                "is {:?} {:?}, and the program expects {dtype:?} {shape:?}",
                tensor.dtype, tensor.shape
            )));
        }
        if !tensor.offset.is_multiple_of(ALIGNMENT) {
            return Err(trouble(format!(
                "starts at byte {}, which is not a multiple of {ALIGNMENT}",
                tensor.offset
            )));
        }
        Ok(Span::new(Buffer::Weights, tensor.offset, tensor.bytes))
    }
}

fn padded(columns: usize) -> usize {
    columns.next_multiple_of(BLOCK)
}

/// A matrix of singles, `[rows, padded columns]`.
#[derive(Clone, Copy, Debug)]
pub struct F32 {
    /// Row by row.
    pub values: Span<f32>,
}

/// A matrix of halves, `[rows, padded columns]`.
#[derive(Clone, Copy, Debug)]
pub struct F16 {
    /// Row by row.
    pub values: Span<half::f16>,
}

/// A matrix of bfloats, `[rows, padded columns]`.
#[derive(Clone, Copy, Debug)]
pub struct Bf16 {
    /// Row by row.
    pub values: Span<half::bf16>,
}

/// A matrix of signed bytes, 32 to a scale: value = code * scale.
#[derive(Clone, Copy, Debug)]
pub struct Q8_0 {
    /// `[rows, padded columns]`
    pub codes: Span<i8>,
    /// `[rows, padded columns / 32]`
    pub scales: Span<half::f16>,
}

/// A matrix of nibbles, 32 to a scale: value = (code - 8) * scale. Byte j of a block's 16 holds columns j and j + 16.
#[derive(Clone, Copy, Debug)]
pub struct Q4_0 {
    /// `[rows, padded columns / 2]`
    pub codes: Span<u8>,
    /// `[rows, padded columns / 32]`
    pub scales: Span<half::f16>,
}

/// A matrix of floats of 4 bits, 32 to an exponent: value = float * 2^(exponent - 127). Bytes hold columns as those of [`Q4_0`] do.
#[derive(Clone, Copy, Debug)]
pub struct Mxfp4 {
    /// `[rows, padded columns / 2]`
    pub codes: Span<u8>,
    /// `[rows, padded columns / 32]`
    pub scales: Span<u8>,
}

/// A matrix of codes of `BITS` bits in superblocks of 256 columns, whose scales are `SCALES` bytes: see the CPU device and the
/// kernels, which decode them. Of 32 columns codes lie together, in parts of bits.
#[derive(Clone, Copy, Debug)]
pub struct Superblocks<const BITS: usize, const SCALES: usize> {
    /// `[rows, padded columns * BITS / 8]`
    pub codes: Span<u8>,
    /// `[rows, padded columns / 256 * SCALES]`
    pub scales: Span<u8>,
}

/// 16 columns to a scale: value = (code - 32) * scale.
pub type Q6K = Superblocks<6, 18>;
/// 32 columns to a scale and an offset: value = code * scale - offset.
pub type Q5K = Superblocks<5, 20>;
/// The same with codes of 4 bits.
pub type Q4K = Superblocks<4, 20>;

/// A matrix of codes of `BITS` bits, `GROUP` columns to a scale and an offset in `T`: value = code * scale + offset. Of 32
/// columns codes lie together, in parts of bits as the CPU device and the kernels decode them.
#[derive(Clone, Copy, Debug)]
pub struct AffineOf<const BITS: usize, const GROUP: usize, T> {
    /// `[rows, padded columns * BITS / 8]`
    pub codes: Span<u8>,
    /// Scale and offset of each group, `[rows, 2 * padded columns / GROUP]`.
    pub scales: Span<T>,
}

/// Scales and offsets are halves.
pub type Affine<const BITS: usize, const GROUP: usize> = AffineOf<BITS, GROUP, half::f16>;
/// Scales and offsets are bfloats.
pub type AffineBf16<const BITS: usize, const GROUP: usize> = AffineOf<BITS, GROUP, half::bf16>;

impl F32 {
    /// What it consists of.
    pub fn planes(&self) -> Vec<Span<u8>> {
        vec![self.values.plane()]
    }

    /// The matrix `name` of the file.
    pub fn find(file: &WeightFile, name: &str, rows: usize, columns: usize) -> Result<F32, Failure> {
        Ok(F32 { values: file.find(name, Dtype::F32, &[rows, padded(columns)])? })
    }
}

impl F16 {
    /// What it consists of.
    pub fn planes(&self) -> Vec<Span<u8>> {
        vec![self.values.plane()]
    }

    /// The matrix `name` of the file.
    pub fn find(file: &WeightFile, name: &str, rows: usize, columns: usize) -> Result<F16, Failure> {
        Ok(F16 { values: file.find(name, Dtype::F16, &[rows, padded(columns)])? })
    }
}

impl Bf16 {
    /// What it consists of.
    pub fn planes(&self) -> Vec<Span<u8>> {
        vec![self.values.plane()]
    }

    /// The matrix `name` of the file.
    pub fn find(file: &WeightFile, name: &str, rows: usize, columns: usize) -> Result<Bf16, Failure> {
        Ok(Bf16 { values: file.find(name, Dtype::BF16, &[rows, padded(columns)])? })
    }
}

impl Q8_0 {
    /// What it consists of.
    pub fn planes(&self) -> Vec<Span<u8>> {
        vec![self.codes.plane(), self.scales.plane()]
    }

    /// The matrix `name` of the file.
    pub fn find(file: &WeightFile, name: &str, rows: usize, columns: usize) -> Result<Q8_0, Failure> {
        Ok(Q8_0 {
            codes: file.find(&format!("{name}.codes"), Dtype::I8, &[rows, padded(columns)])?,
            scales: file.find(&format!("{name}.scales"), Dtype::F16, &[rows, padded(columns) / BLOCK])?,
        })
    }
}

impl Q4_0 {
    /// What it consists of.
    pub fn planes(&self) -> Vec<Span<u8>> {
        vec![self.codes.plane(), self.scales.plane()]
    }

    /// The matrix `name` of the file.
    pub fn find(file: &WeightFile, name: &str, rows: usize, columns: usize) -> Result<Q4_0, Failure> {
        Ok(Q4_0 {
            codes: file.find(&format!("{name}.codes"), Dtype::U8, &[rows, padded(columns) / 2])?,
            scales: file.find(&format!("{name}.scales"), Dtype::F16, &[rows, padded(columns) / BLOCK])?,
        })
    }
}

impl Mxfp4 {
    /// What it consists of.
    pub fn planes(&self) -> Vec<Span<u8>> {
        vec![self.codes.plane(), self.scales.plane()]
    }

    /// The matrix `name` of the file.
    pub fn find(file: &WeightFile, name: &str, rows: usize, columns: usize) -> Result<Mxfp4, Failure> {
        Ok(Mxfp4 {
            codes: file.find(&format!("{name}.codes"), Dtype::U8, &[rows, padded(columns) / 2])?,
            scales: file.find(&format!("{name}.scales"), Dtype::U8, &[rows, padded(columns) / BLOCK])?,
        })
    }
}

impl<const BITS: usize, const SCALES: usize> Superblocks<BITS, SCALES> {
    /// What it consists of.
    pub fn planes(&self) -> Vec<Span<u8>> {
        vec![self.codes.plane(), self.scales.plane()]
    }

    /// The matrix `name` of the file.
    pub fn find(file: &WeightFile, name: &str, rows: usize, columns: usize) -> Result<Self, Failure> {
        let superblocks = columns.div_ceil(256);
        Ok(Superblocks {
            codes: file.find(&format!("{name}.codes"), Dtype::U8, &[rows, superblocks * 32 * BITS])?,
            scales: file.find(&format!("{name}.scales"), Dtype::U8, &[rows, superblocks * SCALES])?,
        })
    }
}

impl<const BITS: usize, const GROUP: usize, T> AffineOf<BITS, GROUP, T> {
    /// What it consists of.
    pub fn planes(&self) -> Vec<Span<u8>> {
        vec![self.codes.plane(), self.scales.plane()]
    }
}

impl<const BITS: usize, const GROUP: usize> Affine<BITS, GROUP> {
    /// The matrix `name` of the file.
    pub fn find(file: &WeightFile, name: &str, rows: usize, columns: usize) -> Result<Self, Failure> {
        find_affine(file, name, [rows, columns], Dtype::F16)
    }
}

impl<const BITS: usize, const GROUP: usize> AffineBf16<BITS, GROUP> {
    /// The matrix `name` of the file.
    pub fn find(file: &WeightFile, name: &str, rows: usize, columns: usize) -> Result<Self, Failure> {
        find_affine(file, name, [rows, columns], Dtype::BF16)
    }
}

fn find_affine<const BITS: usize, const GROUP: usize, T>(
    file: &WeightFile,
    name: &str,
    [rows, columns]: [usize; 2],
    scales: Dtype,
) -> Result<AffineOf<BITS, GROUP, T>, Failure> {
    let groups = columns.div_ceil(GROUP);
    Ok(AffineOf {
        codes: file.find(&format!("{name}.codes"), Dtype::U8, &[rows, groups * GROUP * BITS / 8])?,
        scales: file.find(&format!("{name}.scales"), scales, &[rows, groups * 2])?,
    })
}
