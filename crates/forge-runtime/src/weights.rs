//! The memory-mapped weight file. Names and shapes are looked up once; bytes are not copied.
//!
//! The compiler writes `weights.safetensors` next to the program. Its data starts on a page, and each tensor
//! on a multiple of 64 bytes. The whole file therefore serves as one device buffer, and a weight is a
//! [`Span`] of it. Matrices are stored row by row. Rows are padded with zeros to a multiple of [`BLOCK`]
//! columns, or of the format's group.
//!
//! A typed weight ([`Q4_0`], [`F16`], ...) holds the spans of one matrix. Kernels take typed weights, so a
//! weight in the wrong format does not compile.

use crate::device::{Buffer, Span};
use crate::error::Error;
use memmap2::{Advice, Mmap};
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows are padded to a multiple of this many columns. Also the columns per scale in q8_0, q4_0 and mxfp4.
pub const BLOCK: usize = 32;

/// Every tensor's offset in the file is a multiple of this many bytes.
const ALIGNMENT: usize = 64;

/// A memory-mapped weight file.
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
        let error_at = |what: String| Error::runtime(format!("{}: {what}", path.display()));
        let file = File::open(path).map_err(|error| error_at(format!("cannot be opened: {error}")))?;
        // SAFETY: the program never writes the file. If another process truncates it while it is mapped,
        // reads fault. This is inherent to mapping, and the reason why weight files are replaced by renaming.
        let map =
            unsafe { Mmap::map(&file) }.map_err(|error| error_at(format!("cannot be mapped: {error}")))?;
        let (header, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|error| error_at(format!("not a complete safetensors file: {error}")))?;
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

    /// Advises the OS to read the whole file ahead (`madvise`). Errors are ignored: they cost only time.
    pub fn advise_will_need(&self) {
        let _ = self.map.advise(Advice::WillNeed);
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The mapping, shared with the devices that read it.
    pub fn map(&self) -> Arc<Mmap> {
        self.map.clone()
    }

    /// File size in bytes.
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// Size of the longest tensor in bytes.
    pub fn largest_tensor_bytes(&self) -> usize {
        self.tensors.values().map(|tensor| tensor.bytes).max().unwrap_or(0)
    }

    /// Offsets of all tensors, ascending.
    pub fn tensor_offsets(&self) -> Vec<usize> {
        let mut starts: Vec<usize> = self.tensors.values().map(|tensor| tensor.offset).collect();
        starts.sort_unstable();
        starts
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The layer whose tensor starts at this byte, if it belongs to a layer.
    pub fn layer(&self, offset: usize) -> Option<u32> {
        let (name, _) = self.tensors.iter().find(|(_, tensor)| tensor.offset == offset)?;
        name.strip_prefix("layers.")?.split('.').next()?.parse().ok()
    }

    /// The f32 vector `name` of `width` elements.
    pub fn vector(&self, name: &str, width: usize) -> Result<Span<f32>, Error> {
        self.find(name, Dtype::F32, &[width])
    }

    /// The matrix `name` with this shape.
    pub fn matrix<M: Matrix>(&self, name: &str, rows: usize, columns: usize) -> Result<M, Error> {
        M::find(&mut SingleTensor { file: self, name }, rows, columns)
    }

    /// The expert records `name`.
    pub fn records(&self, name: &str, experts: usize) -> Result<Records<'_>, Error> {
        let [of, bytes] = self.tensor(name)?.shape[..] else {
            return Err(self.tensor_error(name, "is not a tensor of expert records"));
        };
        if of != experts || !bytes.is_multiple_of(Records::PAGE) {
            return Err(self.tensor_error(
                name,
                &format!("has {of} records of {bytes} bytes, but the program expects {experts} experts"),
            ));
        }
        let all = self.find(name, Dtype::U8, &[experts, bytes])?;
        Ok(Records { file: self, name: name.to_owned(), all, record: bytes, end: 0 })
    }

    fn find<T>(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Span<T>, Error> {
        let tensor = self.tensor(name)?;
        if tensor.dtype != dtype || tensor.shape != shape {
            let message = format!(
                "is {:?} {:?}, but the program expects {dtype:?} {shape:?}",
                tensor.dtype, tensor.shape
            );
            return Err(self.tensor_error(name, &message));
        }
        if !tensor.offset.is_multiple_of(ALIGNMENT) {
            let message = format!("starts at byte {}, which is not a multiple of {ALIGNMENT}", tensor.offset);
            return Err(self.tensor_error(name, &message));
        }
        Ok(Span::new(Buffer::Weights, tensor.offset, tensor.bytes))
    }

    fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        self.tensors.get(name).ok_or_else(|| self.tensor_error(name, "is missing"))
    }

    fn tensor_error(&self, name: &str, what: &str) -> Error {
        Error::runtime(format!(
            "{}: tensor `{name}` {what}; the program and its weights must come from one compilation",
            self.path.display()
        ))
    }
}

/// A source of a matrix's planes.
pub trait Planes {
    /// The plane `name`, of `shape` rows and elements a row.
    fn plane<T>(&mut self, name: &str, dtype: Dtype, shape: [usize; 2]) -> Result<Span<T>, Error>;
}

/// A matrix stored as one tensor per plane.
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

/// The expert records of a layer. A record has all planes of all matrices of one expert. Matrices have to be
/// requested in the order in which they are stored.
pub struct Records<'a> {
    file: &'a WeightFile,
    name: String,
    all: Span<u8>,
    /// Record size in bytes.
    record: usize,
    /// End of the planes requested so far, relative to the record.
    end: usize,
}

impl Records<'_> {
    /// Records start at multiples of this many bytes.
    const PAGE: usize = 4096;

    /// The next matrix of each expert. Its spans begin at the first expert's plane and end at the last
    /// expert's.
    pub fn matrix<M: Matrix>(&mut self, rows: usize, columns: usize) -> Result<M, Error> {
        M::find(self, rows, columns)
    }

    /// The span of all records, after every matrix was requested.
    pub fn all(self) -> Result<Span<u8>, Error> {
        if self.end.next_multiple_of(Records::PAGE) != self.record {
            let message =
                format!("has records of {} bytes, but the program expects {}", self.record, self.end);
            return Err(self.file.tensor_error(&self.name, &message));
        }
        Ok(self.all)
    }
}

impl Planes for Records<'_> {
    fn plane<T>(&mut self, _: &str, dtype: Dtype, [rows, width]: [usize; 2]) -> Result<Span<T>, Error> {
        let start = self.end.next_multiple_of(ALIGNMENT);
        self.end = start + rows * width * dtype.bitsize() / 8;
        if self.end > self.record {
            let message = format!("has records of {} bytes, but the program expects more", self.record);
            return Err(self.file.tensor_error(&self.name, &message));
        }
        let others = self.all.bytes - self.record;
        Ok(Span::new(Buffer::Weights, self.all.offset + start, others + self.end - start))
    }
}

fn padded(columns: usize) -> usize {
    columns.next_multiple_of(BLOCK)
}

/// An f32 matrix, `[rows, padded columns]`.
#[derive(Clone, Copy, Debug)]
pub struct F32 {
    /// Row-major elements.
    pub values: Span<f32>,
}

/// An f16 matrix, `[rows, padded columns]`.
#[derive(Clone, Copy, Debug)]
pub struct F16 {
    /// Row-major elements.
    pub values: Span<half::f16>,
}

/// A bf16 matrix, `[rows, padded columns]`.
#[derive(Clone, Copy, Debug)]
pub struct Bf16 {
    /// Row-major elements.
    pub values: Span<half::bf16>,
}

/// An 8-bit matrix, 32 columns per scale: value = code * scale.
#[derive(Clone, Copy, Debug)]
pub struct Q8_0 {
    /// `[rows, padded columns]`
    pub codes: Span<i8>,
    /// `[rows, padded columns / 32]`
    pub scales: Span<half::f16>,
}

/// A 4-bit matrix, 32 columns per scale: value = (code - 8) * scale. Byte j of a 16-byte block holds columns
/// j and j + 16.
#[derive(Clone, Copy, Debug)]
pub struct Q4_0 {
    /// `[rows, padded columns / 2]`
    pub codes: Span<u8>,
    /// `[rows, padded columns / 32]`
    pub scales: Span<half::f16>,
}

/// A matrix of 4-bit floats, 32 columns per exponent: value = float * 2^(exponent - 127). Columns are stored
/// as in [`Q4_0`].
#[derive(Clone, Copy, Debug)]
pub struct Mxfp4 {
    /// `[rows, padded columns / 2]`
    pub codes: Span<u8>,
    /// `[rows, padded columns / 32]`
    pub scales: Span<u8>,
}

/// A K-quant matrix with `BITS`-bit codes: superblocks of 256 columns with `SCALES` bytes of scales each.
/// Codes are stored in groups of 32 columns, split into bit planes. The CPU device and the GPU kernels define
/// the decoding.
#[derive(Clone, Copy, Debug)]
pub struct Superblocks<const BITS: usize, const SCALES: usize> {
    /// `[rows, padded columns * BITS / 8]`
    pub codes: Span<u8>,
    /// `[rows, padded columns / 256 * SCALES]`
    pub scales: Span<u8>,
}

/// q6_k: 16 columns per scale, value = (code - 32) * scale.
pub type Q6K = Superblocks<6, 18>;
/// q5_k: 32 columns per scale and offset, value = code * scale - offset.
pub type Q5K = Superblocks<5, 20>;
/// q4_k: like q5_k with 4-bit codes.
pub type Q4K = Superblocks<4, 20>;

/// An affine matrix with `BITS`-bit codes, `GROUP` columns per scale and offset in `T`: value = code * scale
/// + offset. Codes are stored in groups of 32 columns, split into bit planes.
#[derive(Clone, Copy, Debug)]
pub struct AffineOf<const BITS: usize, const GROUP: usize, T> {
    /// `[rows, padded columns * BITS / 8]`
    pub codes: Span<u8>,
    /// Scale and offset of each group, `[rows, 2 * padded columns / GROUP]`.
    pub scales: Span<T>,
}

/// [`AffineOf`] with f16 scales and offsets.
pub type Affine<const BITS: usize, const GROUP: usize> = AffineOf<BITS, GROUP, half::f16>;
/// [`AffineOf`] with bf16 scales and offsets.
pub type AffineBf16<const BITS: usize, const GROUP: usize> = AffineOf<BITS, GROUP, half::bf16>;

/// A matrix in a weight format.
pub trait Matrix: Sized {
    /// Finds the planes of a matrix with this shape.
    fn find(planes: &mut impl Planes, rows: usize, columns: usize) -> Result<Self, Error>;

    /// The matrix's planes.
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

/// Implements [`Matrix`] for a format with codes and scales, given their types and elements per row.
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
