//! The header of a GGUF file: metadata, a list of named values; then tensors, each with a shape, a type and a place.
//!
//! Checked as the format demands: the magic, the version, little ends, no name twice, every count within the bytes that are
//! there; the tensors lie one after the other at multiples of the alignment, fill the rest of the file, and each is as long
//! as its type and shape make it.

use crate::checkpoint::{Checkpoint, lfs_pointer};
use crate::gguf::reader::Cursor;
use crate::gguf::types::{Type, of_number};
use crate::gguf::value::Value;
use forge_ir::Diagnostic;
use std::collections::{BTreeMap, BTreeSet};

/// A file's header.
#[derive(Debug)]
pub(crate) struct Container {
    /// Values by name.
    pub(crate) values: BTreeMap<String, Value>,
    /// Tensors in the order of their bytes.
    pub(crate) tensors: Vec<Entry>,
}

/// What a header says of a tensor.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The outermost first: the file has them the other way round.
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: &'static Type,
    /// Where its bytes begin in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

const MAGIC: [u8; 4] = *b"GGUF";
const ALIGNMENT: &str = "general.alignment";

/// What tensors begin at multiples of unless the metadata says otherwise.
const USUAL_ALIGNMENT: u64 = 32;

/// The least bytes that a value and a tensor take: so many of them there may be.
const LEAST_VALUE: u64 = 8 + 4 + 1;
const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;

/// Reads a header.
pub(crate) fn read(checkpoint: &dyn Checkpoint, file: &str) -> Result<Container, Diagnostic> {
    let pointer = checkpoint.len(file).ok().and_then(|length| lfs_pointer(checkpoint, file, length));
    if let Some(fault) = pointer {
        return Err(fault);
    }
    let mut cursor = Cursor::new(checkpoint, file)?;
    let magic: [u8; 4] = cursor.array("the first word")?;
    if magic != MAGIC {
        return Err(cursor.fault("it does not begin with GGUF"));
    }
    match cursor.u32("the version")? {
        2 | 3 => {}
        version if version.swap_bytes() <= 3 => {
            return Err(cursor
                .fault("its numbers have the big end first")
                .note("convert it on another machine"));
        }
        version => {
            let fault = cursor.fault(&format!("it is of version {version}, and forge reads 2 and 3"));
            return Err(fault.note("llama.cpp's converter makes a file of version 3 from the original model"));
        }
    }
    let (tensors, values) = (cursor.u64("the number of tensors")?, cursor.u64("the number of values")?);
    cursor.expect(values.checked_mul(LEAST_VALUE), "the metadata")?;
    let values = read_values(&mut cursor, values)?;
    let alignment = match values.get(ALIGNMENT) {
        None => USUAL_ALIGNMENT,
        Some(Value::Unsigned(alignment)) if alignment.is_power_of_two() && *alignment <= 1 << 20 => {
            *alignment
        }
        Some(_) => return Err(cursor.fault(&format!("{ALIGNMENT} is no power of two"))),
    };
    cursor.expect(tensors.checked_mul(LEAST_TENSOR), "the list of tensors")?;
    let tensors = read_tensors(&mut cursor, tensors)?;
    let tensors = place(&cursor, tensors, alignment)?;
    Ok(Container { values, tensors })
}

fn read_values(cursor: &mut Cursor<'_>, count: u64) -> Result<BTreeMap<String, Value>, Diagnostic> {
    let mut values = BTreeMap::new();
    // All lists together.
    let mut room = Value::MOST;
    for _ in 0..count {
        let name = cursor.text("the name of a value")?;
        let kind = cursor.u32(&name)?;
        let value = Value::read(cursor, &name, kind, &mut room)?;
        if values.insert(name.clone(), value).is_some() {
            return Err(cursor.fault(&format!("it has {name} twice")));
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
            return Err(cursor.fault(&format!("it has the tensor {name} twice")));
        }
        let dimensions = cursor.u32(&name)?;
        if !(1..=4).contains(&dimensions) {
            return Err(cursor.fault(&format!("the tensor {name} has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(usize::try_from(cursor.u64(&name)?).unwrap_or(usize::MAX));
        }
        let number = cursor.u32(&name)?;
        let Some(kind) = of_number(number) else {
            let fault =
                cursor.fault(&format!("the tensor {name} is of type {number}, which forge does not know"));
            return Err(fault.note("a newer program made it: make one of an older type, such as Q8_0"));
        };
        let offset = cursor.u64(&name)?;
        let Some(bytes) = kind.bytes(&shape) else {
            let message = format!("the tensor {name} of {shape:?} numbers cannot be of type {}", kind.name);
            return Err(cursor.fault(&message));
        };
        shape.reverse();
        tensors.push(Entry { name, shape, kind, offset, bytes });
    }
    Ok(tensors)
}

/// Puts tensors where they are in the file: each begins where the one before it ends, at the next multiple of the alignment.
fn place(cursor: &Cursor<'_>, mut tensors: Vec<Entry>, alignment: u64) -> Result<Vec<Entry>, Diagnostic> {
    tensors.sort_by(|a, b| (a.offset, a.bytes, &a.name).cmp(&(b.offset, b.bytes, &b.name)));
    // A header of nothing but metadata has no data to pad for.
    let start = if tensors.is_empty() { cursor.at } else { cursor.at.next_multiple_of(alignment) };
    let mut end = start;
    for tensor in &mut tensors {
        let name = &tensor.name;
        let expected = (end - start).next_multiple_of(alignment);
        if tensor.offset != expected {
            let what = format!("{name} begins at byte {} of the data, and {expected} is next", tensor.offset);
            return Err(cursor.fault(&what));
        }
        tensor.offset = start + expected;
        end = tensor.offset.saturating_add(tensor.bytes);
        if end > cursor.length {
            let length = cursor.length;
            let message =
                format!("{} is cut short: it has {length} bytes, and {name} ends at byte {end}", cursor.file);
            let fault = Diagnostic::new("F0109", message);
            return Err(fault.note("an interrupted download leaves such files: fetch it again"));
        }
    }
    if cursor.length > end.next_multiple_of(alignment) {
        return Err(cursor.fault(&format!("its tensors end at byte {end}, and it has {}", cursor.length)));
    }
    Ok(tensors)
}
