//! The header of a GGUF file: metadata, then tensors with shape, type and offset.
//!
//! Checks the magic, version and byte order, unique names, and counts against the bytes available. Tensors
//! must follow each other at multiples of the alignment, fill the rest of the file, and have the size of
//! their type and shape.

use crate::checkpoint::files::{Checkpoint, lfs_pointer};
use crate::gguf::format::reader::Cursor;
use crate::gguf::format::types::{Type, of_number};
use crate::gguf::format::value::Value;
use forge_ir::Diagnostic;
use std::collections::{BTreeMap, BTreeSet};

/// A file's header.
#[derive(Debug)]
pub(crate) struct Container {
    /// Metadata values by name.
    pub(crate) values: BTreeMap<String, Value>,
    /// Tensors in the order of their bytes.
    pub(crate) tensors: Vec<Entry>,
}

/// A tensor's entry in the header.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Dimensions, outermost first; the file has the reverse order.
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: &'static Type,
    /// Offset of its bytes in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

const MAGIC: [u8; 4] = *b"GGUF";
const ALIGNMENT: &str = "general.alignment";

/// Default alignment of tensors in bytes.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Minimum size of a value and of a tensor entry in bytes, which bounds their number.
const MIN_VALUE_BYTES: u64 = 8 + 4 + 1;
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// Reads a header.
pub(crate) fn read(checkpoint: &dyn Checkpoint, file: &str) -> Result<Container, Diagnostic> {
    let pointer = checkpoint.len(file).ok().and_then(|length| lfs_pointer(checkpoint, file, length));
    if let Some(fault) = pointer {
        return Err(fault);
    }
    let mut cursor = Cursor::new(checkpoint, file)?;
    let magic: [u8; 4] = cursor.array("the first word")?;
    if magic != MAGIC {
        return Err(cursor.fault("the magic is not GGUF"));
    }
    match cursor.u32("the version")? {
        2 | 3 => {}
        version if version.swap_bytes() <= 3 => {
            return Err(cursor.fault("big-endian files are unsupported").note("convert it to little-endian"));
        }
        version => {
            let fault = cursor.fault(&format!("unsupported version {version}; expected 2 or 3"));
            return Err(
                fault.note("convert the original model with llama.cpp's converter, which writes version 3")
            );
        }
    }
    let (tensors, values) = (cursor.u64("the number of tensors")?, cursor.u64("the number of values")?);
    cursor.expect(values.checked_mul(MIN_VALUE_BYTES), "the metadata")?;
    let values = read_values(&mut cursor, values)?;
    let alignment = match values.get(ALIGNMENT) {
        None => DEFAULT_ALIGNMENT,
        Some(Value::Unsigned(alignment)) if alignment.is_power_of_two() && *alignment <= 1 << 20 => {
            *alignment
        }
        Some(_) => return Err(cursor.fault(&format!("{ALIGNMENT} is not a power of two"))),
    };
    cursor.expect(tensors.checked_mul(MIN_TENSOR_BYTES), "the list of tensors")?;
    let tensors = read_tensors(&mut cursor, tensors)?;
    let tensors = place(&cursor, tensors, alignment)?;
    Ok(Container { values, tensors })
}

fn read_values(cursor: &mut Cursor<'_>, count: u64) -> Result<BTreeMap<String, Value>, Diagnostic> {
    let mut values = BTreeMap::new();
    // Shared by all lists of the file.
    let mut elements_left = Value::MAX_ELEMENTS;
    for _ in 0..count {
        let name = cursor.text("the name of a value")?;
        let kind = cursor.u32(&name)?;
        let value = Value::read(cursor, &name, kind, &mut elements_left)?;
        if values.insert(name.clone(), value).is_some() {
            return Err(cursor.fault(&format!("duplicate key {name}")));
        }
    }
    Ok(values)
}

fn read_tensors(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Entry>, Diagnostic> {
    let mut names = BTreeSet::new();
    let mut tensors = Vec::new();
    for _ in 0..count {
        let name = cursor.text("the name of a tensor")?;
        if !names.insert(name.clone()) {
            return Err(cursor.fault(&format!("duplicate tensor {name}")));
        }
        let dimensions = cursor.u32(&name)?;
        if !(1..=4).contains(&dimensions) {
            return Err(cursor.fault(&format!("tensor {name} has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(usize::try_from(cursor.u64(&name)?).unwrap_or(usize::MAX));
        }
        let number = cursor.u32(&name)?;
        let Some(kind) = of_number(number) else {
            let fault = cursor.fault(&format!("tensor {name} has the unknown type {number}"));
            return Err(fault.note("convert it to a known type, such as Q8_0"));
        };
        let offset = cursor.u64(&name)?;
        let Some(bytes) = kind.bytes(&shape) else {
            let message = format!("tensor {name} of shape {shape:?} cannot have type {}", kind.name);
            return Err(cursor.fault(&message));
        };
        shape.reverse();
        tensors.push(Entry { name, shape, kind, offset, bytes });
    }
    Ok(tensors)
}

/// Checks that each tensor begins where the previous one ends, rounded up to the alignment, and sets file
/// offsets.
fn place(cursor: &Cursor<'_>, mut tensors: Vec<Entry>, alignment: u64) -> Result<Vec<Entry>, Diagnostic> {
    tensors.sort_by(|a, b| (a.offset, a.bytes, &a.name).cmp(&(b.offset, b.bytes, &b.name)));
    // A header without tensors needs no padding.
    let start = if tensors.is_empty() { cursor.at } else { cursor.at.next_multiple_of(alignment) };
    let mut end = start;
    for tensor in &mut tensors {
        let name = &tensor.name;
        let expected = (end - start).next_multiple_of(alignment);
        if tensor.offset != expected {
            let what = format!("{name} begins at byte {} of the data, expected {expected}", tensor.offset);
            return Err(cursor.fault(&what));
        }
        tensor.offset = start + expected;
        end = tensor.offset.saturating_add(tensor.bytes);
        if end > cursor.length {
            let length = cursor.length;
            let message =
                format!("{} is truncated: it has {length} bytes, and {name} ends at byte {end}", cursor.file);
            let fault = Diagnostic::new("F0109", message);
            return Err(fault.note("the download may have been interrupted: download it again"));
        }
    }
    if cursor.length > end.next_multiple_of(alignment) {
        return Err(
            cursor.fault(&format!("its tensors end at byte {end}, but it has {} bytes", cursor.length))
        );
    }
    Ok(tensors)
}
