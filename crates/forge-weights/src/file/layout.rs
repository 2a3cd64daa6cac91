//! Layout of the weight file: the position of every tensor, computed from the plan alone.

use crate::file::gather::{PAIR, blocks, length};
use forge_ir::{Diagnostic, Format, Graph, Layout, Packed, Plane, PlaneElement, Record, Weight};
use std::collections::BTreeSet;

/// Alignment of the data: the largest page size of machines that memory-map the file.
pub const PAGE: u64 = 16384;

/// Alignment of every tensor.
pub const ALIGNMENT: u64 = 64;

/// Alignment of a tensor of this size: large tensors are aligned to disk blocks.
fn alignment(bytes: u64) -> u64 {
    let page = Record::PAGE as u64;
    if bytes >= 64 * page { page } else { ALIGNMENT }
}

/// Positions of all tensors.
#[derive(Debug)]
pub(crate) struct FileLayout {
    /// The file's bytes before the data.
    pub(crate) header: Vec<u8>,
    /// Positions of the packed weights, in plan order.
    pub(crate) weights: Vec<Place>,
    /// Indices of weights that are written together, in file order: those of the same expert records, or a
    /// single one.
    pub(crate) runs: Vec<Vec<usize>>,
    /// Length of the file.
    pub(crate) bytes: u64,
}

/// Position of a packed weight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// Offset and length of each plane; for an expert stack, in the first record. The second length is 0 for
    /// formats with one plane.
    pub(crate) planes: [(u64, u64); 2],
    /// Number of experts and stride between their records; 1 and 0 without experts.
    pub(crate) experts: usize,
    pub(crate) record: u64,
}

/// The file's bytes before the data.
///
/// # Errors
/// If the plan does not fit the graph.
pub fn header(graph: &Graph, plan: &[Packed]) -> Result<Vec<u8>, Diagnostic> {
    FileLayout::new(graph, plan).map(|layout| layout.header)
}

impl FileLayout {
    /// Lays out the weights in plan order. Fails if the plan does not fit the graph.
    pub(crate) fn new(graph: &Graph, plan: &[Packed]) -> Result<FileLayout, Diagnostic> {
        check(graph, plan)?;
        let mut file = Entries { texts: vec![metadata(graph, plan)], end: 0, paddings: 0 };
        let mut weights = vec![Place::default(); plan.len()];
        let runs = runs(plan);
        for run in &runs {
            match &plan[run[0]].records {
                Some(records) => {
                    let record = record(run.iter().map(|index| &plan[*index]));
                    let shape = [records.experts as u64, record.bytes as u64];
                    let start = file.tensor(&records.tensor, PlaneElement::U8, &shape, Record::PAGE as u64);
                    for (index, planes) in run.iter().zip(record.matrices) {
                        let planes = planes.map(|plane| (start + plane.start as u64, plane.len() as u64));
                        weights[*index] =
                            Place { planes, experts: records.experts, record: record.bytes as u64 };
                    }
                }
                None => {
                    let (packed, place) = (&plan[run[0]], &mut weights[run[0]]);
                    place.experts = 1;
                    for (own, plane) in place.planes.iter_mut().zip(packed.format.planes()) {
                        let shape = plane_shape(packed, plane);
                        let bytes = shape.iter().product::<u64>() * plane.element.bytes() as u64;
                        let name = plane_name(packed, plane);
                        *own = (file.tensor(&name, plane.element, &shape, alignment(bytes)), bytes);
                    }
                }
            }
        }
        let Entries { texts: entries, end, .. } = file;
        let json = format!("{{{}}}", entries.join(","));
        let start = (8 + json.len() as u64).next_multiple_of(PAGE);
        let mut header = (start - 8).to_le_bytes().to_vec();
        header.extend_from_slice(json.as_bytes());
        header.resize(start as usize, b' ');
        for plane in weights.iter_mut().flat_map(|place| &mut place.planes) {
            plane.0 += start;
        }
        Ok(FileLayout { header, weights, runs, bytes: start + end })
    }
}

/// Groups weights that are written together, in plan order: those of the same expert records, or a single
/// one.
fn runs(plan: &[Packed]) -> Vec<Vec<usize>> {
    let mut runs: Vec<Vec<usize>> = Vec::new();
    for (index, packed) in plan.iter().enumerate() {
        let same = |run: &&mut Vec<usize>| packed.records.is_some() && plan[run[0]].records == packed.records;
        match runs.iter_mut().find(same) {
            Some(run) => run.push(index),
            None => runs.push(vec![index]),
        }
    }
    runs
}

/// The expert record of these weights.
fn record<'a>(run: impl Iterator<Item = &'a Packed>) -> Record {
    let matrix = |packed: &Packed| {
        let experts = packed.records.as_ref().map_or(1, |records| records.experts);
        (packed.format, [packed.shape[0] / experts, packed.shape[1]])
    };
    Record::of(&run.map(matrix).collect::<Vec<_>>())
}

/// Header entries under construction.
struct Entries {
    texts: Vec<String>,
    end: u64,
    paddings: usize,
}

impl Entries {
    /// Appends a tensor at a multiple of `alignment` and returns its offset.
    fn tensor(&mut self, name: &str, element: PlaneElement, shape: &[u64], alignment: u64) -> u64 {
        let start = self.end.next_multiple_of(alignment);
        if start > self.end {
            let name = format!("_padding.{}", self.paddings);
            self.texts.push(entry(
                &name,
                element_name(PlaneElement::U8),
                &[start - self.end],
                self.end,
                start,
            ));
            self.paddings += 1;
        }
        self.end = start + shape.iter().product::<u64>() * element.bytes() as u64;
        self.texts.push(entry(name, element_name(element), shape, start, self.end));
        start
    }
}

/// Metadata that the tensors do not contain.
fn metadata(graph: &Graph, plan: &[Packed]) -> String {
    let mut entries = format!(r#""format":"forge","version":{:?}"#, env!("CARGO_PKG_VERSION"));
    for (packed, gain) in plan.iter().filter_map(|packed| Some((packed, packed.gain?))) {
        let name = serde_json::Value::from(format!("{}.gain", packed.name));
        let tensor = serde_json::Value::from(graph.weights[gain.0].tensor.as_str());
        entries.push_str(&format!(",{name}:{tensor}"));
    }
    for run in runs(plan).iter().filter(|run| plan[run[0]].records.is_some()) {
        let members = || run.iter().map(|index| &plan[*index]);
        for (packed, places) in members().zip(record(members()).matrices) {
            for (plane, place) in packed.format.planes().iter().zip(places) {
                let shape = plane_shape(packed, plane);
                let experts = packed.records.as_ref().map_or(1, |records| records.experts as u64);
                let shape = [shape[0] / experts, shape[1]];
                let name = serde_json::Value::from(plane_name(packed, plane));
                let element = element_name(plane.element);
                entries
                    .push_str(&format!(r#",{name}:"{element} {shape:?} at {} of each record""#, place.start));
            }
        }
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

/// Name of a plane's tensor, such as `layers.0.qkv` or `layers.0.qkv.codes`.
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

/// Checks that the plan's weights can be made of the graph's.
fn check(graph: &Graph, plan: &[Packed]) -> Result<(), Diagnostic> {
    let mut names = BTreeSet::new();
    for packed in plan {
        let fail =
            |why: &str| Err(Diagnostic::new("F0601", format!("cannot pack weight {}: {why}", packed.name)));
        let parts: Option<Vec<_>> = packed.parts.iter().map(|id| graph.weights.get(id.0)).collect();
        let parts = match parts {
            Some(parts) if !parts.is_empty() => parts,
            _ => return fail("it has no parts, or a part does not exist"),
        };
        let is_vector = packed.shape.len() == 1;
        if let Some(records) = &packed.records {
            let first = plan
                .iter()
                .find(|other| other.records.as_ref().is_some_and(|it| it.tensor == records.tensor));
            let is_same = first.is_some_and(|first| first.records == packed.records);
            let is_whole = records.experts > 0 && packed.shape[0].is_multiple_of(records.experts);
            if is_vector || !is_whole || !is_same {
                return fail("its rows do not match the number of experts");
            }
            if first == Some(packed) && !names.insert(records.tensor.clone()) {
                return fail("duplicate name of its records");
            }
        }
        let columns = packed.shape.last().copied().unwrap_or(0);
        let along: usize = parts.iter().map(|part| length(part) * blocks(packed, part)).sum();
        let fits = |width: usize| match packed.layout {
            Layout::Blocks => width.is_multiple_of(columns),
            Layout::Rows | Layout::Alternate => width == columns,
        };
        if is_vector && packed.format != Format::F32 {
            return fail("vectors must be f32");
        }
        if parts.iter().any(|part| part.is_matrix() == is_vector)
            || packed.shape.first() != Some(&along)
            || columns == 0
            || !is_vector && parts.iter().any(|part| !fits(part.columns()))
        {
            return fail("its shape does not match its parts");
        }
        let differ = |pair: &[&Weight]| pair.len() < PAIR || pair[0].shape != pair[1].shape;
        if packed.layout == Layout::Alternate && parts.chunks(PAIR).any(differ) {
            return fail("interleaved parts differ in shape");
        }
        let format = packed.format;
        let is_cut = parts.iter().any(|part| blocks(packed, part) > 1);
        if is_cut && (is_vector || format.is_quantized() && !columns.is_multiple_of(format.group())) {
            return fail("a column block splits a quantization group");
        }
        if is_cut && packed.gain.is_some() {
            return fail("a gain cannot be folded into column blocks");
        }
        if let Some(gain) = packed.gain {
            let width = graph.weights.get(gain.0).map(|gain| &gain.shape[..]);
            if is_vector {
                return fail("a gain cannot be folded into a vector");
            }
            if width != Some(&[columns]) {
                return fail("its folded gain is not a vector of its width");
            }
            if plan.iter().any(|packed| packed.parts.contains(&gain)) {
                return fail("its folded gain is also stored");
            }
            let is_shared = |other: &Packed| {
                other != packed && other.parts.iter().any(|part| packed.parts.contains(part))
            };
            if plan.iter().any(is_shared) {
                return fail("it has a folded gain, but its parts are also packed elsewhere");
            }
        }
        for plane in packed.format.planes() {
            if !names.insert(plane_name(packed, plane)) || packed.name.starts_with('_') {
                return fail("duplicate name");
            }
        }
    }
    Ok(())
}
