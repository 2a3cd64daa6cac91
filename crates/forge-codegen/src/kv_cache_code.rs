//! What `model.rs` says of what slots keep: keys and values, or latents, of which layers and for how many positions.

use crate::model::{latent_attend, of_layers};
use crate::names;
use forge_ir::Format;
use forge_planner::{Application, Plan, Ring};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct CacheText {
    #[serde(rename = "type")]
    element: &'static str,
    /// The format, for people.
    format: &'static str,
    /// Elements that a head of a position has, in constants of the model.
    record: &'static str,
    /// Of one position of a slot, in layers that keep every position.
    bytes_per_position: String,
    /// What layers that do not keep instead, as an array.
    rings: String,
    /// Positions that each layer keeps at most, if there are rings.
    kept: Option<String>,
    /// What each layer remembers, as an array, where they do not all keep the same numbers.
    memory: Option<String>,
    /// Whether some layers remember what an earlier one does.
    shared: bool,
    /// Of a slot, however long its text is.
    memory_bytes: String,
    /// Whether it is of latents.
    latents: bool,
    /// Threadgroups of a row for each share of its cache, as a constant of the model.
    sharers: &'static str,
    /// Threadgroups that a core is given.
    at_once: u64,
}

pub(crate) fn cache_text(plan: &Plan) -> CacheText {
    let number = |value: usize| names::number(value as u64);
    let ring = |(ring, bytes): &(Ring, usize)| {
        let (window, positions) = (number(ring.window), number(ring.positions));
        format!("Ring {{ window: {window}, positions: {positions}, bytes_per_position: {} }}", number(*bytes))
    };
    let rings: Vec<String> = plan.rings().iter().map(ring).collect();
    let kept: Vec<String> = plan
        .states()
        .map(|state| state.ring.map_or_else(|| "MAX_CONTEXT".to_owned(), |ring| number(ring.positions)))
        .collect();
    let (element, record) = match plan.cache {
        Format::F32 => ("f32", "HEAD_DIM"),
        // Codes, and a half for each 32 of them.
        Format::Q8_0 => ("u8", "(HEAD_DIM + HEAD_DIM / 16)"),
        _ => ("f16", "HEAD_DIM"),
    };
    CacheText {
        element,
        format: plan.cache.name(),
        record,
        bytes_per_position: number(plan.kept_bytes_per_position()),
        kept: (!rings.is_empty()).then(|| of_layers(&kept)),
        memory: memory(plan),
        shared: plan.applications.iter().filter(|application| application.cache.is_some()).count()
            > kept.len(),
        rings: format!("[{}]", rings.join(", ")),
        memory_bytes: number(plan.memory_bytes()),
        latents: latent_attend(plan).is_some(),
        at_once: plan.shares_at_once(),
        sharers: if latent_attend(plan).is_some() { "HEAD_GROUPS" } else { "NUM_KV_HEADS" },
    }
}

/// What each layer remembers, where keys of layers are not all as long as the first's or some layers keep none.
fn memory(plan: &Plan) -> Option<String> {
    let number = |value: usize| names::number(value as u64);
    let layers = &plan.applications[1..plan.applications.len() - 1];
    let shapes: Vec<(usize, usize)> = plan.states().map(|state| (state.heads, state.width)).collect();
    let is_alike = shapes.iter().all(|shape| *shape == shapes[0]) && shapes.len() == layers.len();
    if is_alike {
        return None;
    }
    let has_rings = !plan.rings().is_empty();
    let of = |(index, layer): (usize, &Application)| {
        let keeper = layers.iter().position(|other| other.cache == layer.cache).unwrap_or(index);
        let Some(state) = plan.sections[layer.section].state.filter(|_| keeper == index) else {
            return format!("Memory::Of({keeper})");
        };
        let (heads, record) = (number(state.heads), number(record(plan, state.width)));
        let kept = state.ring.map_or_else(|| "MAX_CONTEXT".to_owned(), |ring| number(ring.positions));
        let kept = if has_rings { format!(", kept: {kept}") } else { String::new() };
        format!("Memory::Own {{ heads: {heads}, record: {record}{kept} }}")
    };
    let layers: Vec<String> = layers.iter().enumerate().map(of).collect();
    Some(format!("[\n    {},\n]", layers.join(",\n    ")))
}

/// Elements of the cache that a head of so many channels has.
pub(crate) fn record(plan: &Plan, width: usize) -> usize {
    // Codes, and a half for each 32 of them.
    if plan.cache == Format::Q8_0 { width + width / 16 } else { width }
}
