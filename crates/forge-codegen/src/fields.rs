//! Declarations of weights and scratch buffers: name, type, and shape as a comment.

use crate::kernels::matrix_type;
use crate::names;
use crate::shapes::{attention_shape, experts_shape, feed_forward, latent_shape};
use forge_ir::LatentCache;
use forge_planner::{FieldKind, Plan, RowsOf, Scratch, Section};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct FieldText {
    pub(crate) name: String,
    pub(crate) declaration: String,
    pub(crate) find: String,
}

#[derive(Serialize)]
pub(crate) struct ScratchText {
    pub(crate) name: String,
    pub(crate) declaration: String,
    pub(crate) offset: String,
    elements: String,
}

/// The fields of prologue and epilogue. A stored weight that both use appears once.
pub(crate) fn outer_fields(plan: &Plan) -> Vec<FieldText> {
    let mut texts: Vec<FieldText> = Vec::new();
    for application in [&plan.applications[0], &plan.applications[plan.applications.len() - 1]] {
        let section = &plan.sections[application.section];
        let stored = |field: usize| plan.weights[application.weights[field]].name.clone();
        for (index, text) in fields(section, |_| String::new(), Some(&stored)).into_iter().enumerate() {
            let shared = plan.applications[0].weights.contains(&application.weights[index]);
            if !(shared && texts.iter().any(|other| other.name == stored(index))) {
                texts.push(text);
            }
        }
    }
    align(&mut texts);
    texts
}

/// Declarations and look-ups of a section's weights. `stored` overrides a field's name in the weight file.
pub(crate) fn fields(
    section: &Section,
    name: impl Fn(&str) -> String,
    stored: Option<&dyn Fn(usize) -> String>,
) -> Vec<FieldText> {
    section
        .fields
        .iter()
        .enumerate()
        .map(|(index, field)| {
            let identifier = names::identifier(&field.name);
            let file_name = match stored {
                Some(stored) => format!("{:?}", stored(index)),
                None if field.of_next => "&next_gain(layer)".to_owned(),
                None => name(&field.name),
            };
            let (rust_type, shape, find) = match field.kind {
                FieldKind::Matrix { format, rows, columns } => {
                    let (r, c) = (names::number(rows as u64), names::number(columns as u64));
                    (
                        matrix_type(format),
                        format!("[{rows}, {columns}]"),
                        format!("file.matrix({file_name}, {r}, {c})?"),
                    )
                }
                FieldKind::Experts { experts, format, rows, columns } => {
                    let (r, c) = (names::number(rows as u64), names::number(columns as u64));
                    (
                        matrix_type(format),
                        format!("[{experts}, {rows}, {columns}]"),
                        format!("records.matrix({r}, {c})?"),
                    )
                }
                FieldKind::Vector { width } => {
                    let number = names::number(width as u64);
                    (
                        "Span<f32>".to_owned(),
                        format!("[{width}]"),
                        format!("file.vector({file_name}, {number})?"),
                    )
                }
            };
            let comment = format!("{shape}  {}", field.comment).trim_end().to_owned();
            FieldText {
                name: identifier.clone(),
                declaration: format!("{identifier}: {rust_type},\u{0}// {comment}"),
                find,
            }
        })
        .collect()
}

/// Aligns the comments of declarations in one column.
pub(crate) fn align(texts: &mut [FieldText]) {
    let column = texts.iter().filter_map(|text| text.declaration.find('\u{0}')).max().unwrap_or(0);
    for text in texts {
        if let Some((code, comment)) = text.declaration.split_once('\u{0}') {
            text.declaration = format!("{code:<column$} {comment}");
        }
    }
}

pub(crate) fn scratches(plan: &Plan) -> Vec<ScratchText> {
    let mut texts: Vec<FieldText> = plan
        .scratch
        .iter()
        .map(|scratch| {
            let words = ["candidates", "routes", "pairs", "tiles"];
            let is_words = words.contains(&base(&scratch.name)) || scratch.name.starts_with(QUANTIZED);
            let element = if is_words { "u32" } else { "f32" };
            let name = names::identifier(&scratch.name);
            let shape = match (rows(scratch), scratch.width) {
                (None, width) => format!("[{width}]"),
                (Some(rows), 1) => format!("[{rows}]"),
                (Some(rows), width) => format!("[{rows}, {width}]"),
            };
            let declaration = format!("{name}: Span<{element}>,\u{0}// {shape}  {}", about(&scratch.name))
                .trim_end()
                .to_owned();
            FieldText { name, declaration, find: String::new() }
        })
        .collect();
    align(&mut texts);
    plan.scratch
        .iter()
        .zip(texts)
        .map(|(scratch, text)| ScratchText {
            name: text.name,
            declaration: text.declaration,
            offset: names::number(scratch.offset as u64),
            elements: elements(plan, scratch),
        })
        .collect()
}

/// The number of elements of a scratch buffer, as an expression in the model's constants where its width is one of them.
fn elements(plan: &Plan, scratch: &Scratch) -> String {
    let width = scratch.width;
    let times = match (rows(scratch), width) {
        (Some(rows), 1) => return rows.to_owned(),
        (Some(rows), _) => format!("{rows} * "),
        (None, _) => String::new(),
    };
    let (heads, key_heads, head) = attention_shape(plan).unwrap_or_default();
    let (latent_heads, latents) = latent_shape(plan).unwrap_or((0, LatentCache { width: 0, rope_width: 0 }));
    let (chosen, expert) = experts_shape(plan).unwrap_or_default();
    let known = [
        ("stream", plan.model.hidden, "HIDDEN_SIZE"),
        ("normed", plan.model.hidden, "HIDDEN_SIZE"),
        ("final_normed", plan.model.hidden, "HIDDEN_SIZE"),
        ("logits", plan.model.vocabulary, "VOCAB_SIZE"),
        ("inner", feed_forward(plan).unwrap_or(0), "INTERMEDIATE_SIZE"),
        ("routes", 2 * chosen, "2 * NUM_EXPERTS_PER_TOKEN"),
        ("routed_inner", chosen * expert, "NUM_EXPERTS_PER_TOKEN * MOE_INTERMEDIATE_SIZE"),
        ("pairs", chosen, "NUM_EXPERTS_PER_TOKEN"),
        ("routed_each", chosen * plan.model.hidden, "NUM_EXPERTS_PER_TOKEN * HIDDEN_SIZE"),
        ("qkv", (heads + 2 * key_heads) * head, "(NUM_ATTENTION_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM"),
        ("q", heads * head, "NUM_ATTENTION_HEADS * HEAD_DIM"),
        ("heads", heads * head, "NUM_ATTENTION_HEADS * HEAD_DIM"),
        ("gained", plan.model.hidden, "HIDDEN_SIZE"),
        ("partials", heads * (head + 2), "NUM_ATTENTION_HEADS * (HEAD_DIM + 2)"),
        ("latent_query", latent_heads * latents.width, "NUM_ATTENTION_HEADS * KV_LORA_RANK"),
        ("latent_heads", latent_heads * latents.width, "NUM_ATTENTION_HEADS * KV_LORA_RANK"),
        ("latent_tile", latents.width, "KV_LORA_RANK"),
        ("k_rope", latents.rope_width, "QK_ROPE_HEAD_DIM"),
        ("carried", 2 * latent_heads, "2 * NUM_ATTENTION_HEADS"),
        ("partials", latent_heads * (latents.width + 2), "NUM_ATTENTION_HEADS * (KV_LORA_RANK + 2)"),
    ];
    let named = known.into_iter().find(|(name, of, _)| *name == scratch.name && *of == width);
    format!("{times}{}", named.map_or_else(|| names::number(width as u64), |(.., text)| text.to_owned()))
}

/// The row count of a scratch buffer, as an expression of `Scratch::new`. A pass may use fewer KV splits than the plan reserves.
/// Prefix of the names of quantized rows.
const QUANTIZED: &str = "quantized_";

fn rows(scratch: &Scratch) -> Option<&'static str> {
    match scratch.per {
        RowsOf::Pass => None,
        RowsOf::DecodeRow => Some("decode_rows"),
        RowsOf::Row => Some("rows"),
        RowsOf::Wanted => Some("logit_rows"),
        RowsOf::Position => Some("MLA_EXPAND_TILE"),
        RowsOf::Split => Some("kv_splits"),
    }
}

/// The name without the numeric suffix that distinguishes buffers of one name.
fn base(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_')
}

/// A comment on the use of a scratch buffer; empty if its name is enough.
fn about(name: &str) -> &'static str {
    match name {
        "stream" => "residual stream",
        "per_layer_inputs" => "per-layer inputs, all layers",
        "normed" => "normalized residual stream",
        "q" => "queries after RoPE",
        "gained" => "residual stream, times the weight of the norm that reads it",
        "squares" => "partial sums of squares of the residual stream",
        quantized if quantized.starts_with(QUANTIZED) => "16-bit codes and scales, for integer MMA",
        "candidates" => "best logit of each threadgroup of the head, and its token",
        "partials" => "partial attention output of each KV split",
        "heads" => "attention output",
        "latent_query" => "queries in latent space (absorbed MLA)",
        "latent_heads" => "attention output in latent space",
        "latent_tile" => "latents of one tile of positions",
        "k_rope" => "RoPE part of the tile's keys",
        "expanded_keys" => "expanded keys of the tile, all heads",
        "expanded_values" => "expanded values of the tile, all heads",
        "carried" => "softmax maximum and sum of each head, carried from tile to tile",
        "rotated_query" => "RoPE part of the queries",
        "routes" => "experts of each row in descending order of weight, and the bits of their weights",
        "routed_inner" => "silu(gate) · up of each expert of a row",
        "pairs" => "(row, rank of the expert) pairs, grouped by expert",
        "tiles" => "groups of pairs: expert, first pair, number of pairs",
        "routed_each" => "output of each expert of a row",
        "inner" => "silu(gate) · up",
        "final_normed" => "normalized residual stream of the rows that get logits",
        _ => "",
    }
}
