//! The weight file, mapped: names and shapes looked up once, bytes never copied.
//!
//! `weights.safetensors` is written by the compiler next to the program. Its data starts on a page and each tensor
//! on a multiple of 64 bytes, so the whole file serves as one device buffer and a weight is a [`Span`] of it. A
//! matrix is stored row by row, each row padded with zeros to a multiple of [`BLOCK`] columns, or of its format's group.
//!
//! A typed weight ([`Q4_0`], [`F16`], ...) is the spans of one matrix; that is what kernels are called with, so a
//! weight in the wrong format does not compile.

use crate::device::{Buffer, Span};
use crate::error::Error;
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
    pub fn open(path: &Path) -> Result<WeightFile, Error> {
        let trouble = |what: String| Error::runtime(format!("{}: {what}", path.display()));
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

    /// Where its tensors begin, in order.
    pub fn starts(&self) -> Vec<usize> {
        let mut starts: Vec<usize> = self.tensors.values().map(|tensor| tensor.offset).collect();
        starts.sort_unstable();
        starts
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
    pub fn vector(&self, name: &str, width: usize) -> Result<Span<f32>, Error> {
        self.find(name, Dtype::F32, &[width])
    }

    /// The matrix `name` of so many rows and columns.
    pub fn matrix<M: Matrix>(&self, name: &str, rows: usize, columns: usize) -> Result<M, Error> {
        M::find(&mut SingleTensor { file: self, name }, rows, columns)
    }

    /// The records `name` of so many experts.
    pub fn records(&self, name: &str, experts: usize) -> Result<Records<'_>, Error> {
        let [of, bytes] = self.tensor(name)?.shape[..] else {
            return Err(self.trouble(name, "is not of records"));
        };
        if of != experts || !bytes.is_multiple_of(Records::PAGE) {
            return Err(self.trouble(
                name,
                &format!("has {of} records of {bytes} bytes, not those of {experts} experts"),
            ));
        }
        let all = self.find(name, Dtype::U8, &[experts, bytes])?;
        Ok(Records { file: self, name: name.to_owned(), all, record: bytes, end: 0 })
    }

    fn find<T>(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Span<T>, Error> {
        let tensor = self.tensor(name)?;
        if tensor.dtype != dtype || tensor.shape != shape {
            let is = format!(
                "is {:?} {:?}, and the program expects {dtype:?} {shape:?}",
                tensor.dtype, tensor.shape
            );
            return Err(self.trouble(name, &is));
        }
        if !tensor.offset.is_multiple_of(ALIGNMENT) {
            let starts = format!("starts at byte {}, which is not a multiple of {ALIGNMENT}", tensor.offset);
            return Err(self.trouble(name, &starts));
        }
        Ok(Span::new(Buffer::Weights, tensor.offset, tensor.bytes))
    }

    fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        self.tensors.get(name).ok_or_else(|| self.trouble(name, "is missing"))
    }

    fn trouble(&self, name: &str, what: &str) -> Error {
        Error::runtime(format!(
            "{}: tensor `{name}` {what}; the program and its weights must come from one compilation",
            self.path.display()
        ))
    }
}

/// Where the planes of a matrix are found.
pub trait Planes {
    /// The plane of that name, of so many rows and elements of a row.
    fn plane<T>(&mut self, name: &str, dtype: Dtype, shape: [usize; 2]) -> Result<Span<T>, Error>;
}

/// A matrix whose planes are tensors.
struct SingleTensor<'a> {
    file: &'a WeightFile,
    name: &'a str,
}

impl Planes for SingleTensor<'_> {
    fn plane<T>(&mut self, name: &str, dtype: Dtype, shape: [usize; 2]) -> Result<Span<T>, Error> {
        match name {
            "values" => self.file.find(self.name, dtype, &shape),
            plane => self.file.find(&format!("{}.{plane}", self.name), dtype, &shape),
        }
    }
}

/// The records of a layer's experts: what each has of all their matrices, plane after plane, expert after expert. Matrices are asked
/// for in the order in which they lie there.
pub struct Records<'a> {
    file: &'a WeightFile,
    name: String,
    all: Span<u8>,
    /// Bytes of one.
    record: usize,
    /// Of it, those that have been asked for.
    end: usize,
}

impl Records<'_> {
    /// What they begin at multiples of.
    const PAGE: usize = 4096;

    /// The next matrix that each expert has, of so many rows and columns. Its planes are those of the first expert, and reach to
    /// the last one's.
    pub fn matrix<M: Matrix>(&mut self, rows: usize, columns: usize) -> Result<M, Error> {
        M::find(self, rows, columns)
    }

    /// All of them, when every matrix has been asked for.
    pub fn all(self) -> Result<Span<u8>, Error> {
        if self.end.next_multiple_of(Records::PAGE) != self.record {
            let has = format!("has records of {} bytes, and the program expects {}", self.record, self.end);
            return Err(self.file.trouble(&self.name, &has));
        }
        Ok(self.all)
    }
}

impl Planes for Records<'_> {
    fn plane<T>(&mut self, _: &str, dtype: Dtype, [rows, width]: [usize; 2]) -> Result<Span<T>, Error> {
        let start = self.end.next_multiple_of(ALIGNMENT);
        self.end = start + rows * width * dtype.bitsize() / 8;
        if self.end > self.record {
            let has = format!("has records of {} bytes, and the program expects more", self.record);
            return Err(self.file.trouble(&self.name, &has));
        }
        let others = self.all.bytes - self.record;
        Ok(Span::new(Buffer::Weights, self.all.offset + start, others + self.end - start))
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

/// A matrix in one of these formats.
pub trait Matrix: Sized {
    /// The one whose planes are there, of so many rows and columns.
    fn find(planes: &mut impl Planes, rows: usize, columns: usize) -> Result<Self, Error>;

    /// What it consists of.
    fn planes(&self) -> Vec<Span<u8>>;
}

macro_rules! plain {
    ($name:ident, $dtype:ident) => {
        impl Matrix for $name {
            fn find(planes: &mut impl Planes, rows: usize, columns: usize) -> Result<$name, Error> {
                Ok($name { values: planes.plane("values", Dtype::$dtype, [rows, padded(columns)])? })
            }

            fn planes(&self) -> Vec<Span<u8>> {
                vec![self.values.plane()]
            }
        }
    };
}

plain!(F32, F32);
plain!(F16, F16);
plain!(Bf16, BF16);

/// Of codes and scales: their types, and how many a row of so many columns has of each.
macro_rules! coded {
    ([$($generics:tt)*] $name:ty, [$codes:ident, $scales:ident], $columns:ident => [$of_codes:expr, $of_scales:expr]) => {
        impl<$($generics)*> Matrix for $name {
            fn find(planes: &mut impl Planes, rows: usize, $columns: usize) -> Result<Self, Error> {
                Ok(Self {
                    codes: planes.plane("codes", Dtype::$codes, [rows, $of_codes])?,
                    scales: planes.plane("scales", Dtype::$scales, [rows, $of_scales])?,
                })
            }

            fn planes(&self) -> Vec<Span<u8>> {
                vec![self.codes.plane(), self.scales.plane()]
            }
        }
    };
}

coded!([] Q8_0, [I8, F16], columns => [padded(columns), padded(columns) / BLOCK]);
coded!([] Q4_0, [U8, F16], columns => [padded(columns) / 2, padded(columns) / BLOCK]);
coded!([] Mxfp4, [U8, U8], columns => [padded(columns) / 2, padded(columns) / BLOCK]);
coded!([const BITS: usize, const SCALES: usize] Superblocks<BITS, SCALES>, [U8, U8],
    columns => [columns.div_ceil(256) * 32 * BITS, columns.div_ceil(256) * SCALES]);
coded!([const BITS: usize, const GROUP: usize] Affine<BITS, GROUP>, [U8, F16],
    columns => [columns.div_ceil(GROUP) * GROUP * BITS / 8, columns.div_ceil(GROUP) * 2]);
coded!([const BITS: usize, const GROUP: usize] AffineBf16<BITS, GROUP>, [U8, BF16],
    columns => [columns.div_ceil(GROUP) * GROUP * BITS / 8, columns.div_ceil(GROUP) * 2]);
