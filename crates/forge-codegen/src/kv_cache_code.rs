//! Template context of the KV cache in `model.rs`: element type, capacity and sharing of each layer's cache.

use crate::model::of_layers;
use crate::names;
use crate::shapes::mla_attention;
use forge_ops::Format;
use forge_planner::{Application, Plan, Ring};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct CacheText {
    #[serde(rename = "type")]
    element: &'static str,
    /// Format name.
    format: &'static str,
    /// Elements per head and position, as an expression in the model's constants.
    kv_stride: &'static str,
    /// Bytes per position of a slot, in layers that cache the whole context.
    bytes_per_position: String,
    /// Ring buffers of sliding-window layers, as a Rust array.
    rings: String,
    /// Capacity of each layer in positions, as a Rust array; `None` without ring buffers.
    capacities: Option<String>,
    /// Cache source of each layer, as a Rust array; `None` if the caches of all layers have one shape.
    sources: Option<String>,
    /// Whether some layers read the KV cache of an earlier layer.
    shared: bool,
    /// Bytes of recurrent state per slot.
    recurrent_state_bytes: String,
    /// Whether the cache holds latents (MLA).
    latents: bool,
    /// Threadgroups of a row per KV split, as a constant of the model.
    groups_per_split: &'static str,
    /// Maximum attention threadgroups per GPU core.
    groups_per_core: u64,
}

pub(crate) fn cache_text(plan: &Plan) -> CacheText {
    let number = |value: usize| names::number(value as u64);
    let ring = |(ring, bytes): &(Ring, usize)| {
        let (window, positions) = (number(ring.window), number(ring.positions));
        format!(
            "SlidingCache {{ window: {window}, positions: {positions}, bytes_per_position: {} }}",
            number(*bytes)
        )
    };
    let rings: Vec<String> = plan.rings().iter().map(ring).collect();
    let capacities: Vec<String> = plan
        .states()
        .map(|state| state.ring.map_or_else(|| "MAX_CONTEXT".to_owned(), |ring| number(ring.positions)))
        .collect();
    let (element, kv_stride) = match plan.cache {
        Format::F32 => ("f32", "HEAD_DIM"),
        // q8_0: one f16 scale per 32 int8 values.
        Format::Q8_0 => ("u8", "HEAD_DIM + HEAD_DIM / 16"),
        _ => ("f16", "HEAD_DIM"),
    };
    CacheText {
        element,
        format: plan.cache.name(),
        kv_stride,
        bytes_per_position: number(plan.kept_bytes_per_position()),
        capacities: (!rings.is_empty()).then(|| of_layers(&capacities)),
        sources: sources(plan),
        shared: plan.applications.iter().filter(|application| application.cache.is_some()).count()
            > capacities.len(),
        rings: format!("[{}]", rings.join(", ")),
        recurrent_state_bytes: number(plan.recurrent_state_bytes()),
        latents: mla_attention(plan).is_some(),
        groups_per_core: plan.attention_groups_per_core(),
        groups_per_split: if mla_attention(plan).is_some() { "HEAD_GROUPS" } else { "NUM_KV_HEADS" },
    }
}

/// The cache source of each layer, as a Rust array; `None` if every layer has its own cache of the same shape.
fn sources(plan: &Plan) -> Option<String> {
    let number = |value: usize| names::number(value as u64);
    let layers = &plan.applications[1..plan.applications.len() - 1];
    let shapes: Vec<(usize, usize)> = plan.states().map(|state| (state.heads, state.width)).collect();
    let is_alike = shapes.iter().all(|shape| *shape == shapes[0]) && shapes.len() == layers.len();
    if is_alike {
        return None;
    }
    let has_rings = !plan.rings().is_empty();
    let of = |(index, layer): (usize, &Application)| {
        let owner = layers.iter().position(|other| other.cache == layer.cache).unwrap_or(index);
        let Some(state) = plan.sections[layer.section].state.filter(|_| owner == index) else {
            return format!("CacheSource::Layer({owner})");
        };
        let (heads, kv_stride) = (number(state.heads), number(kv_stride(plan, state.width)));
        let positions = state.ring.map_or_else(|| "MAX_CONTEXT".to_owned(), |ring| number(ring.positions));
        let capacity = if has_rings { format!(", capacity: {positions}") } else { String::new() };
        format!("CacheSource::Own {{ heads: {heads}, elements: {kv_stride}{capacity} }}")
    };
    let layers: Vec<String> = layers.iter().enumerate().map(of).collect();
    Some(format!("[\n    {},\n]", layers.join(",\n    ")))
}

/// Elements of the KV cache per head and position, for heads of this width.
pub(crate) fn kv_stride(plan: &Plan, width: usize) -> usize {
    // q8_0: one f16 scale per 32 int8 values.
    if plan.cache == Format::Q8_0 { width + width / 16 } else { width }
}
