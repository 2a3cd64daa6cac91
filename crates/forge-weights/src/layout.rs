//! Where every tensor of a weight file lies: computed from the plan alone, before a number is read.

use crate::gather::{PAIR, blocks, length};
use forge_ir::{Diagnostic, Format, Graph, Layout, Packed, Plane, PlaneElement, Record, Weight};
use std::collections::BTreeSet;

/// The data begins at a multiple of this, the largest page of the machines that map the file.
pub const PAGE: u64 = 16384;

/// Every tensor begins at a multiple of this.
pub const ALIGNMENT: u64 = 64;

/// What a tensor of so many bytes begins at a multiple of: large ones at one of what disks read at once.
fn alignment(bytes: u64) -> u64 {
    let page = Record::PAGE as u64;
    if bytes >= 64 * page { page } else { ALIGNMENT }
}

/// The places of all tensors.
#[derive(Debug)]
pub(crate) struct FileLayout {
    /// The first bytes of the file, up to the data.
    pub(crate) header: Vec<u8>,
    /// For every packed weight of the plan, in its order.
    pub(crate) weights: Vec<Place>,
    /// Weights of the plan whose rows come together, in the order of the file: those of the same records, or one.
    pub(crate) runs: Vec<Vec<usize>>,
    /// Length of the file.
    pub(crate) bytes: u64,
}

/// The place of one packed weight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// Where each plane begins in the file, and how long it is; of experts, the first one's. A second plane of length 0 is none.
    pub(crate) planes: [(u64, u64); 2],
    /// Experts whose matrices it is, and from one's record to the next; 1 and nothing of what is none.
    pub(crate) experts: usize,
    pub(crate) record: u64,
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

/// Weights whose rows come together, in the order of the plan: those of the same records, or one.
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

/// The record of an expert that is made of these weights.
fn record<'a>(run: impl Iterator<Item = &'a Packed>) -> Record {
    let matrix = |packed: &Packed| {
        let experts = packed.records.as_ref().map_or(1, |records| records.experts);
        (packed.format, [packed.shape[0] / experts, packed.shape[1]])
    };
    Record::of(&run.map(matrix).collect::<Vec<_>>())
}

/// The header's entries, as they come.
struct Entries {
    texts: Vec<String>,
    end: u64,
    paddings: usize,
}

impl Entries {
    /// Lays a tensor after all others, at a multiple of `alignment`; says where.
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

/// What a tool that opens the file cannot see in its tensors.
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
        if let Some(records) = &packed.records {
            let first = plan
                .iter()
                .find(|other| other.records.as_ref().is_some_and(|it| it.tensor == records.tensor));
            let is_same = first.is_some_and(|first| first.records == packed.records);
            let is_whole = records.experts > 0 && packed.shape[0].is_multiple_of(records.experts);
            if is_vector || !is_whole || !is_same {
                return fail("its rows are not those of as many experts");
            }
            if first == Some(packed) && !names.insert(records.tensor.clone()) {
                return fail("the name of its records is taken");
            }
        }
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
