//! The memory-mapped weight file. Names and shapes are looked up once; bytes are not copied.
//!
//! The compiler writes `weights.safetensors` next to the program. Its data starts on a page, and each tensor
//! on a multiple of 64 bytes. The whole file therefore serves as one device buffer, and a weight is a
//! [`Span`] of it. Matrices are stored row by row. Rows are padded with zeros to whole groups of
//! the format.
//!
//! A [`Matrix`] holds the spans of one matrix and has its format as a type. Kernels take typed matrices, so a
//! matrix in the wrong format does not compile.

use crate::cpu::WeightFormat;
use crate::device::{Buffer, Span};
use crate::error::Error;
use forge_ops::PlaneElement;
use memmap2::{Advice, Mmap};
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::fs::File;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    pub fn matrix<F: WeightFormat>(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Matrix<F>, Error> {
        Matrix::find(&mut SingleTensor { file: self, name }, rows, columns)
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
trait Planes {
    /// The plane `name`, of `shape` rows and elements a row.
    fn plane(&mut self, name: &str, dtype: Dtype, shape: [usize; 2]) -> Result<Span<u8>, Error>;
}

/// A matrix stored as one tensor per plane.
struct SingleTensor<'a> {
    file: &'a WeightFile,
    name: &'a str,
}

impl Planes for SingleTensor<'_> {
    fn plane(&mut self, name: &str, dtype: Dtype, shape: [usize; 2]) -> Result<Span<u8>, Error> {
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
    pub fn matrix<F: WeightFormat>(&mut self, rows: usize, columns: usize) -> Result<Matrix<F>, Error> {
        Matrix::find(self, rows, columns)
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
    fn plane(&mut self, _: &str, dtype: Dtype, [rows, width]: [usize; 2]) -> Result<Span<u8>, Error> {
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

/// A matrix in the format `F`, one of the format types of [`cpu`](crate::cpu).
#[derive(Debug)]
pub struct Matrix<F> {
    /// The planes of the format, in order. A format of one plane leaves the second empty.
    planes: [Span<u8>; 2],
    format: PhantomData<fn() -> F>,
}

impl<F> Clone for Matrix<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Matrix<F> {}

impl<F: WeightFormat> Matrix<F> {
    /// Finds the planes of a matrix with this shape.
    fn find(source: &mut impl Planes, rows: usize, columns: usize) -> Result<Self, Error> {
        let mut planes = [Span::new(Buffer::Weights, 0, 0); 2];
        for (found, plane) in planes.iter_mut().zip(F::FORMAT.planes()) {
            let width = columns.div_ceil(F::FORMAT.group()) * plane.per_group;
            *found = source.plane(plane.name, dtype(plane.element), [rows, width])?;
        }
        Ok(Matrix { planes, format: PhantomData })
    }

    /// The planes.
    pub fn planes(&self) -> Vec<Span<u8>> {
        self.planes[..F::FORMAT.planes().len()].to_vec()
    }

    /// The values of a format without scales.
    pub fn values(&self) -> Span<u8> {
        self.planes[0]
    }

    /// The quantized values.
    pub fn codes(&self) -> Span<u8> {
        self.planes[0]
    }

    /// The scales, with offsets if the format has them.
    pub fn scales(&self) -> Span<u8> {
        self.planes[1]
    }
}

/// The safetensors type of a plane.
fn dtype(element: PlaneElement) -> Dtype {
    match element {
        PlaneElement::F32 => Dtype::F32,
        PlaneElement::F16 => Dtype::F16,
        PlaneElement::Bf16 => Dtype::BF16,
        PlaneElement::I8 => Dtype::I8,
        PlaneElement::U8 => Dtype::U8,
    }
}
