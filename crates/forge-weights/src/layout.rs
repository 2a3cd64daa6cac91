//! Where every tensor of a weight file lies: computed from the plan alone, before a number is read.

use crate::codec::plane_bytes;
use crate::gather::{PAIR, blocks, length};
use forge_ir::{Diagnostic, Format, Graph, Layout, Packed, Plane, PlaneElement, Weight};
use std::collections::BTreeSet;

/// The data begins at a multiple of this, the largest page of the machines that map the file.
pub const PAGE: u64 = 16384;

/// Every tensor begins at a multiple of this.
pub const ALIGNMENT: u64 = 64;

/// What disks read at once. Tensors of many of these begin at a multiple of it, so that rows of one that fill whole blocks are
/// read past the system's cache, straight to where they are wanted.
const BLOCK: u64 = 4096;

/// What a tensor of so many bytes begins at a multiple of.
fn alignment(bytes: u64) -> u64 {
    if bytes >= 64 * BLOCK { BLOCK } else { ALIGNMENT }
}

/// The places of all tensors.
#[derive(Debug)]
pub(crate) struct FileLayout {
    /// The first bytes of the file, up to the data.
    pub(crate) header: Vec<u8>,
    /// For every packed weight of the plan, in its order.
    pub(crate) weights: Vec<Place>,
    /// Length of the file.
    pub(crate) bytes: u64,
}

/// The place of one packed weight.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// Where each plane begins in the file, and how long it is. A second plane of length 0 is none.
    pub(crate) planes: [(u64, u64); 2],
    /// Bytes of padding before each plane.
    pub(crate) padding: [u64; 2],
}

/// The first bytes of the file of a plan, up to the data: all but the numbers.
///
/// # Errors
/// When the plan does not fit the graph.
pub fn header(graph: &Graph, plan: &[Packed]) -> Result<Vec<u8>, Diagnostic> {
    FileLayout::new(graph, plan).map(|layout| layout.header)
}

impl FileLayout {
    /// Lays out a plan's weights in its order; refuses a plan that does not fit the graph.
    pub(crate) fn new(graph: &Graph, plan: &[Packed]) -> Result<FileLayout, Diagnostic> {
        check(graph, plan)?;
        let mut entries: Vec<String> = vec![metadata(graph, plan)];
        let mut weights = Vec::new();
        let (mut end, mut paddings) = (0_u64, 0);
        for packed in plan {
            let mut place = Place::default();
            let rows = if packed.shape.len() == 2 { packed.shape[0] } else { 1 };
            for (index, plane) in packed.format.planes().iter().enumerate() {
                let shape = plane_shape(packed, plane);
                let bytes = shape.iter().product::<u64>() * plane.element.bytes() as u64;
                let start = end.next_multiple_of(alignment(bytes));
                if start > end {
                    entries.push(entry(&format!("_padding.{paddings}"), "U8", &[start - end], end, start));
                    paddings += 1;
                }
                debug_assert!(
                    packed.shape.len() == 1
                        || bytes == (rows * plane_bytes(packed.format, packed.shape[1])[index]) as u64
                );
                place.padding[index] = start - end;
                end = start + bytes;
                let name = plane_name(packed, plane);
                entries.push(entry(&name, element_name(plane.element), &shape, start, end));
                place.planes[index] = (start, bytes);
            }
            weights.push(place);
        }
        let json = format!("{{{}}}", entries.join(","));
        let start = (8 + json.len() as u64).next_multiple_of(PAGE);
        let mut header = (start - 8).to_le_bytes().to_vec();
        header.extend_from_slice(json.as_bytes());
        header.resize(start as usize, b' ');
        for plane in weights.iter_mut().flat_map(|place| &mut place.planes) {
            plane.0 += start;
        }
        Ok(FileLayout { header, weights, bytes: start + end })
    }
}

/// What a tool that opens the file cannot see in its tensors.
fn metadata(graph: &Graph, plan: &[Packed]) -> String {
    let mut entries = format!(r#""format":"forge","version":{:?}"#, env!("CARGO_PKG_VERSION"));
    for (packed, gain) in plan.iter().filter_map(|packed| Some((packed, packed.gain?))) {
        let name = serde_json::Value::from(format!("{}.gain", packed.name));
        let tensor = serde_json::Value::from(graph.weights[gain.0].tensor.as_str());
        entries.push_str(&format!(",{name}:{tensor}"));
    }
    format!(r#""__metadata__":{{{entries}}}"#)
}

fn entry(name: &str, element: &str, shape: &[u64], start: u64, end: u64) -> String {
    let name = serde_json::Value::from(name);
    format!(r#"{name}:{{"dtype":"{element}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#)
}

fn element_name(element: PlaneElement) -> &'static str {
    match element {
        PlaneElement::F32 => "F32",
        PlaneElement::F16 => "F16",
        PlaneElement::Bf16 => "BF16",
        PlaneElement::I8 => "I8",
        PlaneElement::U8 => "U8",
    }
}

/// The tensor of a plane: `layers.0.qkv`, `layers.0.qkv.codes`.
fn plane_name(packed: &Packed, plane: &Plane) -> String {
    match plane.name {
        "values" => packed.name.clone(),
        plane => format!("{}.{plane}", packed.name),
    }
}

fn plane_shape(packed: &Packed, plane: &Plane) -> Vec<u64> {
    match packed.shape[..] {
        [rows, columns] => {
            vec![rows as u64, (columns.div_ceil(packed.format.group()) * plane.per_group) as u64]
        }
        _ => packed.shape.iter().map(|width| *width as u64).collect(),
    }
}

/// Refuses a plan whose weights are not made of the graph's in the way it says.
fn check(graph: &Graph, plan: &[Packed]) -> Result<(), Diagnostic> {
    let mut names = BTreeSet::new();
    for packed in plan {
        let fail = |why: &str| {
            Err(Diagnostic::new("F0601", format!("the weight {} cannot be packed: {why}", packed.name)))
        };
        let parts: Option<Vec<_>> = packed.parts.iter().map(|id| graph.weights.get(id.0)).collect();
        let parts = match parts {
            Some(parts) if !parts.is_empty() => parts,
            _ => return fail("it has no parts, or one that does not exist"),
        };
        let is_vector = packed.shape.len() == 1;
        let columns = packed.shape.last().copied().unwrap_or(0);
        let along: usize = parts.iter().map(|part| length(part) * blocks(packed, part)).sum();
        let fits = |width: usize| match packed.layout {
            Layout::Blocks => width.is_multiple_of(columns),
            Layout::Rows | Layout::Alternate => width == columns,
        };
        if is_vector && packed.format != Format::F32 {
            return fail("vectors are stored as f32");
        }
        if parts.iter().any(|part| part.is_matrix() == is_vector)
            || packed.shape.first() != Some(&along)
            || columns == 0
            || !is_vector && parts.iter().any(|part| !fits(part.columns()))
        {
            return fail("its shape is not that of its parts");
        }
        let differ = |pair: &[&Weight]| pair.len() < PAIR || pair[0].shape != pair[1].shape;
        if packed.layout == Layout::Alternate && parts.chunks(PAIR).any(differ) {
            return fail("parts of different shapes cannot alternate");
        }
        let format = packed.format;
        let is_cut = parts.iter().any(|part| blocks(packed, part) > 1);
        if is_cut && (is_vector || format.is_quantised() && !columns.is_multiple_of(format.group())) {
            return fail("what shares a scale cannot be cut");
        }
        if is_cut && packed.gain.is_some() {
            return fail("a gain is folded into blocks");
        }
        if let Some(gain) = packed.gain {
            let width = graph.weights.get(gain.0).map(|gain| &gain.shape[..]);
            if is_vector {
                return fail("a gain is folded into a vector");
            }
            if width != Some(&[columns]) {
                return fail("the gain that is folded into it is not a vector of its width");
            }
            if plan.iter().any(|packed| packed.parts.contains(&gain)) {
                return fail("the gain that is folded into it is stored as well");
            }
            let is_shared = |other: &Packed| {
                other != packed && other.parts.iter().any(|part| packed.parts.contains(part))
            };
            if plan.iter().any(is_shared) {
                return fail("a gain is folded into it, and not all that has its parts is the same");
            }
        }
        for plane in packed.format.planes() {
            if !names.insert(plane_name(packed, plane)) || packed.name.starts_with('_') {
                return fail("its name is taken");
            }
        }
    }
    Ok(())
}
