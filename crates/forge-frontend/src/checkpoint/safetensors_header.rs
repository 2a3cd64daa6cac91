//! The header of a safetensors file: eight bytes of length, then JSON with each tensor's type, shape and byte
//! range.
//!
//! Checks that the header fits the file, tensor ranges fill the rest without gaps or overlaps, each range
//! matches its shape, and names are unique.

use crate::checkpoint::files::{Checkpoint, lfs_pointer, unreadable};
use forge_ir::{Blocks, Diagnostic, Encoding, Format};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// A tensor of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Tensor {
    /// Name.
    pub name: String,
    /// File that contains it.
    pub file: String,
    /// Element type as spelled in the file, such as `BF16`.
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Offset of its bytes in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// GGUF block format of its rows. `None`: plain values, or quantized values with scales in other tensors.
    #[serde(skip)]
    pub blocks: Option<Blocks>,
    /// The tensors that contain it, if it is a matrix stored as several of them. Type, offset and length are then
    /// those of its storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoded: Option<EncodedAs>,
}

/// Storage of a quantized matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct EncodedAs {
    /// How it is stored.
    pub encoding: Encoding,
    /// The format that its values are repacked or dequantized to.
    pub format: Format,
}

/// Maximum header length that the format allows, in bytes.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Element types of the format and their sizes in bits.
const ELEMENTS: &[(&str, u64)] = &[
    ("BOOL", 8),
    ("U8", 8),
    ("I8", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

/// The tensors of a file in the order of their bytes, or all problems of its header.
pub(crate) fn read(checkpoint: &dyn Checkpoint, file: &str) -> Result<Vec<Tensor>, Vec<Diagnostic>> {
    let fail = |message: String| vec![Diagnostic::new("F0103", message)];
    let length = checkpoint.len(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let fault = Diagnostic::new("F0102", format!("weight file {file} not found"));
            vec![fault.note("an interrupted download omits files: download it again")]
        }
        _ => vec![unreadable(file, &error)],
    })?;
    if let Some(fault) = lfs_pointer(checkpoint, file, length) {
        return Err(vec![fault]);
    }
    if length < 8 {
        return Err(fail(format!("{file} is not a safetensors file: it is {length} bytes long")));
    }
    let mut prefix = [0; 8];
    checkpoint.read(file, 0, &mut prefix).map_err(|error| vec![unreadable(file, &error)])?;
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER_BYTES {
        return Err(fail(format!(
            "{file} is not a safetensors file: its header length is {header}; the maximum is {MAX_HEADER_BYTES}"
        )));
    }
    if header > length - 8 {
        return Err(fail(format!("{file} is truncated: its header ends at byte {} of {length}", 8 + header)));
    }
    let mut json = vec![0; header as usize];
    checkpoint.read(file, 8, &mut json).map_err(|error| vec![unreadable(file, &error)])?;
    let entries: Entries = serde_json::from_slice(&json).map_err(|error| {
        vec![Diagnostic::new("F0104", format!("{file}: cannot parse the header: {error}"))]
    })?;
    tensors(file, entries, 8 + header, length)
}

fn tensors(file: &str, entries: Entries, start: u64, length: u64) -> Result<Vec<Tensor>, Vec<Diagnostic>> {
    let mut faults = Vec::new();
    let mut tensors = Vec::new();
    for (name, entry) in entries.0 {
        let [begin, end] = entry.data_offsets;
        let bytes = entry.bytes();
        if end < begin || bytes.is_some_and(|bytes| bytes != end - begin) {
            faults.push(Diagnostic::new(
                "F0105",
                format!(
                    "{name} in {file}: bytes {begin}..{end} do not match the size of {:?} {}",
                    entry.shape, entry.dtype
                ),
            ));
        } else {
            let (dtype, shape) = (entry.dtype, entry.shape);
            let offset = start.saturating_add(begin);
            let (file, bytes) = (file.to_owned(), end - begin);
            tensors.push(Tensor { name, file, dtype, shape, offset, bytes, blocks: None, encoded: None });
        }
    }
    for pair in sorted_names(&tensors).windows(2).filter(|pair| pair[0] == pair[1]) {
        faults.push(Diagnostic::new("F0106", format!("{file} contains the tensor {} twice", pair[0])));
    }
    tensors.sort_by(|a, b| (a.offset, a.bytes, &a.name).cmp(&(b.offset, b.bytes, &b.name)));
    if faults.is_empty() {
        faults.extend(layout(file, &tensors, start, length));
    }
    if faults.is_empty() { Ok(tensors) } else { Err(faults) }
}

fn sorted_names(tensors: &[Tensor]) -> Vec<&str> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// Checks that each tensor begins where the previous one ends.
fn layout(file: &str, tensors: &[Tensor], start: u64, length: u64) -> Option<Diagnostic> {
    let mut expected = start;
    for tensor in tensors {
        let name = &tensor.name;
        let end = tensor.offset.saturating_add(tensor.bytes);
        if end > length {
            let message =
                format!("{file} is truncated: it has {length} bytes, and {name} ends at byte {end}");
            return Some(
                Diagnostic::new("F0103", message)
                    .note("the download may have been interrupted: download it again"),
            );
        }
        if tensor.offset != expected {
            let what =
                if tensor.offset < expected { "overlaps the previous tensor" } else { "follows a gap" };
            return Some(Diagnostic::new("F0105", format!("{name} in {file} {what}")));
        }
        expected = end;
    }
    (expected != length).then(|| {
        let message = format!("{file} has {length} bytes, but its tensors end at byte {expected}");
        Diagnostic::new("F0105", message)
    })
}

/// A tensor's entry in the header.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

impl Entry {
    /// Size in bytes from type and shape, if the type is known and the size is a whole number of bytes.
    fn bytes(&self) -> Option<u64> {
        let (_, bits) = ELEMENTS.iter().find(|(name, _)| *name == self.dtype)?;
        let elements = self.shape.iter().try_fold(1_u64, |product, size| product.checked_mul(*size as u64));
        let bits = elements.and_then(|elements| elements.checked_mul(*bits));
        // A size beyond 64 bits matches no range.
        Some(bits.map_or(u64::MAX, |bits| bits.div_ceil(8)))
    }
}

/// Entries of a header in file order, including duplicates.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        deserializer.deserialize_map(Collect)
    }
}

struct Collect;

impl<'de> Visitor<'de> for Collect {
    type Value = Entries;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                entries.push((name, map.next_value()?));
            }
        }
        Ok(Entries(entries))
    }
}
