//! The header of a safetensors file: eight bytes of length, then JSON that says which tensor lies where.
//!
//! Checked as the format demands: the header fits the file, the tensors' ranges fill the rest of it without overlap
//! or hole, every range has the size of its shape, and no tensor is told of twice.

use crate::checkpoint::{Checkpoint, lfs_pointer, unreadable};
use forge_ir::{Blocks, Diagnostic};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// A tensor of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The file that holds it.
    pub file: String,
    /// Its element type, as the file spells it: `BF16`.
    pub dtype: String,
    /// Its dimensions, the outermost first.
    pub shape: Vec<usize>,
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// How many they are.
    pub bytes: u64,
    /// The blocks that its rows are made of; none: plain numbers, or codes with scales in other tensors.
    #[serde(skip)]
    pub blocks: Option<Blocks>,
}

/// The longest header that the format allows.
const LONGEST: u64 = 100_000_000;

/// The element types of the format, and their sizes in bits.
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

/// The tensors of one file, in the order of their bytes; or every fault of its header.
pub(crate) fn read(checkpoint: &dyn Checkpoint, file: &str) -> Result<Vec<Tensor>, Vec<Diagnostic>> {
    let fail = |message: String| vec![Diagnostic::new("F0103", message)];
    let length = checkpoint.len(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let fault = Diagnostic::new("F0102", format!("there is no {file}, which is to hold weights"));
            vec![fault.note("an interrupted download leaves files out: fetch it again")]
        }
        _ => vec![unreadable(file, &error)],
    })?;
    if let Some(fault) = lfs_pointer(checkpoint, file, length) {
        return Err(vec![fault]);
    }
    if length < 8 {
        return Err(fail(format!("{file} is no safetensors file: it is {length} bytes long")));
    }
    let mut prefix = [0; 8];
    checkpoint.read(file, 0, &mut prefix).map_err(|error| vec![unreadable(file, &error)])?;
    let header = u64::from_le_bytes(prefix);
    if header > LONGEST {
        return Err(fail(format!(
            "{file} is no safetensors file: its header would be {header} bytes long, and {LONGEST} are allowed"
        )));
    }
    if header > length - 8 {
        return Err(fail(format!("{file} is cut short: its header ends at byte {} of {length}", 8 + header)));
    }
    let mut json = vec![0; header as usize];
    checkpoint.read(file, 8, &mut json).map_err(|error| vec![unreadable(file, &error)])?;
    let entries: Entries = serde_json::from_slice(&json).map_err(|error| {
        vec![Diagnostic::new("F0104", format!("the header of {file} cannot be understood: {error}"))]
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
                    "{name} in {file} has bytes {begin}..{end}, which is not the size of {:?} {}",
                    entry.shape, entry.dtype
                ),
            ));
        } else {
            let (dtype, shape) = (entry.dtype, entry.shape);
            let offset = start.saturating_add(begin);
            let (file, bytes) = (file.to_owned(), end - begin);
            tensors.push(Tensor { name, file, dtype, shape, offset, bytes, blocks: None });
        }
    }
    for pair in sorted_names(&tensors).windows(2).filter(|pair| pair[0] == pair[1]) {
        faults.push(Diagnostic::new("F0106", format!("{file} tells of the tensor {} twice", pair[0])));
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

/// Walks over the tensors in the order of their bytes: each begins where the one before it ends.
fn layout(file: &str, tensors: &[Tensor], start: u64, length: u64) -> Option<Diagnostic> {
    let mut expected = start;
    for tensor in tensors {
        let name = &tensor.name;
        let end = tensor.offset.saturating_add(tensor.bytes);
        if end > length {
            let message =
                format!("{file} is cut short: it has {length} bytes, and {name} ends at byte {end}");
            return Some(
                Diagnostic::new("F0103", message)
                    .note("an interrupted download leaves such files: fetch it again"),
            );
        }
        if tensor.offset != expected {
            let what =
                if tensor.offset < expected { "overlaps the tensor before it" } else { "follows a hole" };
            return Some(Diagnostic::new("F0105", format!("{name} in {file} {what}")));
        }
        expected = end;
    }
    (expected != length).then(|| {
        let message = format!("{file} has {length} bytes, and its tensors end at byte {expected}");
        Diagnostic::new("F0105", message)
    })
}

/// What the header says of one tensor.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

impl Entry {
    /// The size that follows from type and shape, where the type is known and the size is a number of bytes.
    fn bytes(&self) -> Option<u64> {
        let (_, bits) = ELEMENTS.iter().find(|(name, _)| *name == self.dtype)?;
        let elements = self.shape.iter().try_fold(1_u64, |product, size| product.checked_mul(*size as u64));
        let bits = elements.and_then(|elements| elements.checked_mul(*bits));
        // A size beyond 64 bits is the size of no range.
        Some(bits.map_or(u64::MAX, |bits| bits.div_ceil(8)))
    }
}

/// The entries of a header in their order, a name given twice standing there twice.
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
        f.write_str("an object of tensors")
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
