//! Tensor names of MLX converters: names, axes, stacked experts, and norm weights with 1 added.

use super::codes::f32_values;
use super::{Array, Tensors};
use safetensors::Dtype;
use serde_json::Value;

/// Families that store norm weights minus 1, to which converters add 1.
const GAINS_MINUS_ONE: [&str; 5] =
    ["qwen3_next", "qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe"];

/// The affected norm weights: not those of heads in DeltaNet layers.
const GAINS: [&str; 5] = [
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
];

/// Tensors that have another name in a stack.
const PROJECTIONS: [(&str, &str); 3] = [("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")];

/// All tensors as the converter names and stores them.
pub(super) fn converted(config: &Value, tensors: Tensors) -> Tensors {
    let family = config["model_type"].as_str().expect("a configuration has a type");
    let text = config.get("text_config").filter(|text| !text.is_null());
    let mut out = Tensors::new();
    // Experts stored one by one, by the name of their stack.
    let mut unstacked: std::collections::BTreeMap<String, Vec<(usize, Array)>> = Default::default();
    for (name, array) in tensors {
        let name = if text.is_some() { multimodal_name(&name) } else { name };
        if name.ends_with(".rotary_emb.inv_freq") || name.contains("mtp.") {
            continue;
        }
        if GAINS_MINUS_ONE.contains(&family) && name.ends_with(".conv1d.weight") {
            let [channels, one, taps] = array.shape[..] else { panic!("{name} is {:?}", array.shape) };
            assert_eq!(one, 1);
            out.insert(name, Array { shape: vec![channels, taps, 1], ..array });
        } else if GAINS_MINUS_ONE.contains(&family) && GAINS.iter().any(|end| name.ends_with(end)) {
            out.insert(name, add_one(&array));
        } else if let Some((stack, number)) = stack_of(&name) {
            unstacked.entry(stack).or_default().push((number, array));
        } else if name.contains(".experts.") {
            out.extend(split_gate_up(family, &name, &array));
        } else if family == "deepseek_v3" && name.ends_with(".kv_b_proj.weight") {
            out.extend(per_head(config, &name, &array));
        } else if family == "gpt2" {
            let name = format!("model.{}", name.strip_prefix("transformer.").unwrap_or(&name));
            let is_transposed =
                [".c_attn.weight", ".c_proj.weight", ".c_fc.weight"].iter().any(|end| name.ends_with(end));
            out.insert(name, if is_transposed { transposed(&array) } else { array });
        } else {
            out.insert(name, array);
        }
    }
    for (stack, mut members) in unstacked {
        members.sort_by_key(|(number, _)| *number);
        let first = members[0].1.clone();
        let bytes = members.iter().flat_map(|(_, array)| array.bytes.iter().copied()).collect();
        let shape = [&[members.len()], &first.shape[..]].concat();
        out.insert(stack, Array { shape, bytes, ..first });
    }
    out
}

/// The name in a multimodal checkpoint.
fn multimodal_name(name: &str) -> String {
    match (name.strip_prefix("model.language_model."), name.strip_prefix("model.visual.")) {
        (Some(rest), _) => format!("language_model.model.{rest}"),
        (_, Some(rest)) => format!("vision_tower.{rest}"),
        _ if name.starts_with("lm_head.") => format!("language_model.{name}"),
        _ => name.strip_prefix("model.").unwrap_or(name).to_owned(),
    }
}

/// The stack that an expert's matrix belongs to, and the expert's number.
fn stack_of(name: &str) -> Option<(String, usize)> {
    let (module, rest) = name.split_once(".experts.")?;
    let (number, projection) = rest.strip_suffix(".weight")?.split_once('.')?;
    let known = PROJECTIONS.iter().find(|(name, _)| *name == projection);
    let projection = known.map_or(projection, |(_, other)| other);
    Some((format!("{module}.switch_mlp.{projection}.weight"), number.parse().ok()?))
}

/// Splits a stack of all experts into gate and up.
fn split_gate_up(family: &str, name: &str, array: &Array) -> Vec<(String, Array)> {
    let (module, tensor) = name.split_once(".experts.").expect("it is one of experts");
    if family == "gpt_oss" {
        return interleaved(&format!("{module}.experts"), tensor, array);
    }
    let place = if family.starts_with("gemma4") { "experts.switch_glu" } else { "switch_mlp" };
    let to = |projection: &str| format!("{module}.{place}.{projection}.weight");
    match tensor {
        "gate_up_proj" => {
            let half = array.shape[1] / 2;
            let part = |first: usize| array.rows(half, |row| row / half * 2 * half + first + row % half);
            vec![(to("gate_proj"), part(0)), (to("up_proj"), part(half))]
        }
        "down_proj" => vec![(to("down_proj"), array.clone())],
        other => panic!("experts have {other}"),
    }
}

/// Splits stacks with interleaved gate and up: matrices with one column per output, quantized
/// matrices with one row per output, and biases.
fn interleaved(module: &str, tensor: &str, array: &Array) -> Vec<(String, Array)> {
    let (projection, kind) = ["_blocks", "_scales", "_bias"]
        .iter()
        .find_map(|end| Some((tensor.strip_suffix(end)?, *end)))
        .unwrap_or((tensor, ""));
    let (end, array) = match kind {
        "_blocks" => {
            let [experts, rows, blocks, 16] = array.shape[..] else { panic!("blocks are {:?}", array.shape) };
            let shape = vec![experts, rows, blocks * 4];
            ("weight", Array { dtype: Dtype::U32, shape, bytes: array.bytes.clone() })
        }
        "_scales" => ("scales", array.clone()),
        // Each element is a row.
        "_bias" => ("bias", Array { shape: [&array.shape[..], &[1]].concat(), ..array.clone() }),
        _ => ("weight", transposed(array)),
    };
    let finish = |mut array: Array| {
        array.shape.truncate(if kind == "_bias" { 2 } else { 3 });
        array
    };
    if projection == "down_proj" {
        return vec![(format!("{module}.down_proj.{end}"), finish(array))];
    }
    let half = array.shape[1] / 2;
    let part = |first: usize| finish(array.rows(half, |row| 2 * row + first));
    [("gate_proj", 0), ("up_proj", 1)]
        .map(|(name, first)| (format!("{module}.{name}.{end}"), part(first)))
        .into()
}

/// The per-head key matrices, transposed, and value matrices.
fn per_head(config: &Value, name: &str, array: &Array) -> Vec<(String, Array)> {
    let module = name.strip_suffix(".kv_b_proj.weight").expect("it is that one");
    let count = |key: &str| config[key].as_u64().expect("the configuration says it") as usize;
    let (heads, nope_width, value_width) =
        (count("num_attention_heads"), count("qk_nope_head_dim"), count("v_head_dim"));
    let matrices = Array { shape: vec![heads, nope_width + value_width, array.shape[1]], ..array.clone() };
    let part = |first: usize, rows: usize| {
        matrices.rows(rows, |row| row / rows * (nope_width + value_width) + first + row % rows)
    };
    vec![
        (format!("{module}.embed_q.weight"), transposed(&part(0, nope_width))),
        (format!("{module}.unembed_out.weight"), part(nope_width, value_width)),
    ]
}

/// Adds 1 to all values.
fn add_one(array: &Array) -> Array {
    let bytes = f32_values(array).iter().flat_map(|x| (x + 1.0).to_le_bytes()).collect();
    Array { dtype: Dtype::F32, shape: array.shape.clone(), bytes }
}

/// Swaps the last two axes.
fn transposed(array: &Array) -> Array {
    let (before, matrix) = array.shape.split_at(array.shape.len() - 2);
    let [rows, columns] = matrix[..] else { panic!("not a matrix") };
    let size = array.bytes.len() / array.shape.iter().product::<usize>();
    let mut bytes = Vec::with_capacity(array.bytes.len());
    for matrix in array.bytes.chunks_exact(rows * columns * size) {
        for column in 0..columns {
            (0..rows).for_each(|row| bytes.extend(&matrix[(row * columns + column) * size..][..size]));
        }
    }
    Array { dtype: array.dtype, shape: [before, &[columns, rows]].concat(), bytes }
}

impl Array {
    /// `each` rows of every matrix of a stack. `from` is the first row in the whole stack, by matrix.
    fn rows(&self, each: usize, from: impl Fn(usize) -> usize) -> Array {
        let [matrices, _, ref rest @ ..] = self.shape[..] else { panic!("not a stack") };
        let size = self.bytes.len() / (matrices * self.shape[1]);
        let bytes =
            (0..matrices * each).flat_map(|row| self.bytes[from(row) * size..][..size].iter().copied());
        Array { dtype: self.dtype, shape: [&[matrices, each], rest].concat(), bytes: bytes.collect() }
    }
}
