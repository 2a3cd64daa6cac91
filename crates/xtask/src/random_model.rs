//! `cargo xtask random-model`: writes a checkpoint with random weights, for benchmarks of real sizes without a download.
//!
//! Any supported architecture works: the frontend determines the tensors. Each tensor has its own random stream, seeded by its
//! name, so the values depend neither on the order of tensors nor on the number of shards. Values are bf16, scaled so that
//! activations neither vanish nor grow with depth.

use forge_frontend::{DummyWeights, Options, read_model};
use forge_ir::{Diagnostic, Experts, Op, ParamId, Weight};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Name, shape and value distribution of a tensor.
struct Tensor {
    name: String,
    shape: Vec<usize>,
    mean: f32,
    deviation: f32,
    /// Whether later rows have smaller values, so that experts are not equally likely.
    is_skewed: bool,
}

/// Factor of the last row of a skewed tensor; the factor of the first row is 1.
const LAST_ROW_FACTOR: f32 = 0.1;

impl Tensor {
    /// The standard deviation of a row.
    fn deviation_of(&self, row: usize) -> f32 {
        let last = (self.shape[0] - 1).max(1) as f32;
        if self.is_skewed {
            self.deviation * (1.0 - (1.0 - LAST_ROW_FACTOR) * row as f32 / last)
        } else {
            self.deviation
        }
    }
}

/// Writes a checkpoint for a configuration file, or for a Llama with 1.1B parameters. With `skewed`, routers select some
/// experts more often.
pub fn write_from(
    config: Option<&Path>,
    shard: Option<u64>,
    is_skewed: bool,
    out: &Path,
) -> Result<(), String> {
    let write = |config: &Value| write_tensors(config, tensors(config, is_skewed)?, shard, out);
    let Some(path) = config else { return write(&billion()) };
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let config = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    write(&config)
}

/// Writes a checkpoint for a configuration, with files of at most `shard` bytes of weights.
pub fn write(config: &Value, shard: Option<u64>, out: &Path) -> Result<(), String> {
    write_tensors(config, tensors(config, false)?, shard, out)
}

fn write_tensors(config: &Value, tensors: Vec<Tensor>, shard: Option<u64>, out: &Path) -> Result<(), String> {
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let files = shards(&tensors, shard.unwrap_or(u64::MAX));
    let mut index = BTreeMap::new();
    for (number, members) in files.iter().enumerate() {
        let name = match files.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        let path = out.join(&name);
        write_file(&path, members).map_err(|error| format!("{}: {error}", path.display()))?;
        index.extend(members.iter().map(|tensor| (tensor.name.clone(), Value::from(name.clone()))));
    }
    let mut texts = vec![("config.json", config.clone()), ("tokenizer.json", tokenizer(config))];
    if files.len() > 1 {
        let total: u64 = tensors.iter().map(bytes).sum();
        texts.push((
            "model.safetensors.index.json",
            json!({"metadata": {"total_size": total}, "weight_map": index}),
        ));
    }
    for (name, value) in texts {
        let path = out.join(name);
        let text = serde_json::to_string_pretty(&value).map_err(|error| error.to_string())?;
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Configuration of a Llama with 1,104,218,112 parameters.
fn billion() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 64, "intermediate_size": 8192, "vocab_size": 32000, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": null, "hidden_act": "silu",
        "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "bos_token_id": 256, "eos_token_id": 257,
    })
}

/// The tensors that the frontend requests, with distributions that depend on their use in the graph.
fn tensors(config: &Value, is_skewed: bool) -> Result<Vec<Tensor>, String> {
    let to_message = |faults: Vec<Diagnostic>| {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        faults.join("\n")
    };
    let options = Options::default();
    let shapes = DummyWeights::new(&config.to_string(), &options).map_err(to_message)?;
    let graph = read_model(&shapes, &options).map_err(to_message)?.graph;
    let mut spreads = vec![None; graph.weights.len()];
    let mut routers = BTreeSet::new();
    for apply in graph.applications() {
        let body = graph.body(apply);
        for route in body.nodes.iter().filter(|node| is_skewed && matches!(node.op, Op::Route(_))) {
            // Inputs precede node outputs.
            let logits = route.inputs[0].0.checked_sub(1).map(|node| &body.nodes[node].op);
            if let Some(Op::Linear { weight, .. }) = logits {
                routers.extend(apply.weight(body, *weight).map(|id| id.0));
            }
        }
        for node in &body.nodes {
            let used = match &node.op {
                Op::Embed { table, .. } => vec![(*table, (0.0, 1.0))],
                Op::PositionEmbedding { table } => vec![(*table, (0.0, 0.1))],
                Op::LayerNorm { gain, bias, .. } => {
                    [(*gain, (1.0, 0.1))].into_iter().chain(bias.map(|bias| (bias, (0.0, 0.1)))).collect()
                }
                Op::RmsNorm { gain, .. } => gain.map(|gain| (gain, (1.0, 0.1))).into_iter().collect(),
                Op::ScaleBy { factor } => vec![(*factor, (1.0, 0.1))],
                Op::Linear { weight, bias } => {
                    let columns = apply.weight(body, *weight).map_or(1, |id| graph.weights[id.0].columns());
                    let bias = bias.map(|bias| (bias, (0.0, 0.1)));
                    [(*weight, (0.0, 1.0 / (columns as f32).sqrt()))].into_iter().chain(bias).collect()
                }
                Op::PerHeadLinear { weight, .. } => {
                    let columns = apply.weight(body, *weight).map_or(1, |id| graph.weights[id.0].columns());
                    vec![(*weight, (0.0, 1.0 / (columns as f32).sqrt()))]
                }
                Op::Convolve { taps, conv_state } => {
                    let count = body.conv_state(*conv_state).map_or(1, |state| state.rows + 1);
                    vec![(*taps, (0.0, 1.0 / (count as f32).sqrt()))]
                }
                Op::DeltaRule { a_log, dt_bias, .. } => vec![(*a_log, (-1.0, 0.5)), (*dt_bias, (0.0, 0.5))],
                Op::Route(routing) => {
                    let correction = routing.correction.map(|correction| (correction, (0.0, 0.1)));
                    correction.into_iter().chain(routing.scale.map(|scale| (scale, (1.0, 0.1)))).collect()
                }
                Op::Attention { sinks, .. } => sinks.map(|sinks| (sinks, (0.0, 1.0))).into_iter().collect(),
                Op::Experts(Experts { gate, up, down, biases, .. }) => {
                    let of = |param: &ParamId| {
                        let columns =
                            apply.weight(body, *param).map_or(1, |id| graph.weights[id.0].columns());
                        (*param, (0.0, 1.0 / (columns as f32).sqrt()))
                    };
                    let biases = biases.iter().flatten().map(|bias| (*bias, (0.0, 0.1)));
                    [gate, up, down].map(of).into_iter().chain(biases).collect()
                }
                _ => Vec::new(),
            };
            for (param, spread) in used {
                if let Some(id) = apply.weight(body, param) {
                    // The first use counts: a tied head is an embedding.
                    spreads[id.0].get_or_insert(spread);
                }
            }
        }
    }
    let tensors = |(index, weight): (usize, &Weight)| -> Vec<Tensor> {
        let (mean, deviation) = spreads[index].unwrap_or((0.0, 1.0));
        let mean = if weight.plus_one { mean - 1.0 } else { mean };
        let is_skewed = routers.contains(&index);
        let tensor = |name| Tensor { name, shape: weight.tensor_shape(), mean, deviation, is_skewed };
        weight.tensors().map(tensor).collect()
    };
    // The first weight of a fused tensor determines its distribution.
    let mut seen = BTreeSet::new();
    let weights = graph.weights.iter().enumerate();
    Ok(weights.flat_map(tensors).filter(|tensor| seen.insert(tensor.name.clone())).collect())
}

fn bytes(tensor: &Tensor) -> u64 {
    tensor.shape.iter().product::<usize>() as u64 * 2
}

/// Splits tensors into groups of at most `most` bytes, in order.
fn shards(tensors: &[Tensor], most: u64) -> Vec<&[Tensor]> {
    let mut groups = Vec::new();
    let (mut first, mut size) = (0, 0);
    for (index, tensor) in tensors.iter().enumerate() {
        if size > 0 && size + bytes(tensor) > most {
            groups.push(&tensors[first..index]);
            (first, size) = (index, 0);
        }
        size += bytes(tensor);
    }
    groups.push(&tensors[first..]);
    groups
}

fn write_file(path: &Path, tensors: &[Tensor]) -> std::io::Result<()> {
    let mut header = Map::new();
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + bytes(tensor);
        header.insert(
            tensor.name.clone(),
            json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for tensor in tensors {
        let mut random = Random::named(&tensor.name);
        let rows = tensor.shape.first().copied().unwrap_or(1);
        for row in 0..rows {
            let deviation = tensor.deviation_of(row);
            for _ in 0..tensor.shape.iter().skip(1).product() {
                let value = half::bf16::from_f32(tensor.mean + deviation * random.normal());
                file.write_all(&value.to_le_bytes())?;
            }
        }
    }
    file.flush()
}

/// A SplitMix64 random number generator.
struct Random(u64);

impl Random {
    /// Creates a generator, seeded by the FNV-1a hash of a name.
    fn named(name: &str) -> Random {
        Random(
            name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            }),
        )
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// An approximately normal number, mean 0 and standard deviation 1: the sum of four uniform numbers.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: u32 = (0..4).map(|part| ((bits >> (16 * part)) & 0xffff) as u32).sum();
        (sum as f32 / 65536.0 - 2.0) * 3.0f32.sqrt()
    }
}

/// A tokenizer of any vocabulary size: one token per byte, two special tokens, and filler words.
fn tokenizer(config: &Value) -> Value {
    let size = config["vocab_size"].as_u64().unwrap_or(512) as usize;
    // Byte-level tokenizers represent each byte as a printable character.
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut spare = 256;
    let mut vocabulary = Map::new();
    for byte in 0..256u32 {
        let code = if printable(byte) { byte } else { spare };
        spare += u32::from(!printable(byte));
        vocabulary.insert(char::from_u32(code).unwrap_or(' ').to_string(), Value::from(byte));
    }
    for id in 258..size {
        vocabulary.insert(format!("Ġword{id}"), Value::from(id));
    }
    let special = |id: usize, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [special(256, "<|begin|>"), special(257, "<|end|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [256], "tokens": ["<|begin|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary, "merges": []},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// All configurations of the repository: of test models and of real shapes.
    fn configurations() -> Vec<(String, Value)> {
        let tests = format!("{}/../../tests", env!("CARGO_MANIFEST_DIR"));
        let folder =
            |name: &str| fs::read_dir(format!("{tests}/{name}")).unwrap().map(|entry| entry.unwrap().path());
        let models = folder("models").map(|path| path.join("config.json"));
        let read = |path: std::path::PathBuf| {
            let name = path.strip_prefix(&tests).unwrap().display().to_string();
            (name, serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
        };
        models.chain(folder("shapes")).map(read).collect()
    }

    #[test]
    fn every_architecture_can_be_written() {
        for (path, config) in configurations() {
            // GPT-2 has its own tensor names and transposed matrices.
            let is_gpt2 = path.contains("gpt2");
            let tensors = tensors(&config, false).unwrap_or_else(|faults| panic!("{path}: {faults}"));
            let names: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            assert_eq!(names.len(), tensors.len(), "{path}");
            for tensor in &tensors {
                // Gemma 2 and 3 store norm weights minus 1. So do Qwen 3.5 and Qwen3-Next, except in DeltaNet layers.
                let less_one =
                    ["gemma2", "gemma3", "qwen3_5", "qwen3_next"].iter().any(|name| path.contains(name))
                        && !tensor.name.ends_with(".linear_attn.norm.weight");
                let is_gain = [
                    "norm.weight",
                    "layernorm_1.weight",
                    "layernorm_2.weight",
                    ".ln_1.weight",
                    ".ln_2.weight",
                    ".ln_f.weight",
                    ".layer_scalar",
                    ".router.scale",
                    ".per_expert_scale",
                ]
                .iter()
                .any(|gain| tensor.name.ends_with(gain));
                let mean = match is_gain && !less_one {
                    _ if tensor.name.ends_with(".A_log") => -1.0,
                    is_one => f32::from(u8::from(is_one)),
                };
                assert_eq!(tensor.mean, mean, "{path}: {}", tensor.name);
                let expected = match tensor.shape[..] {
                    _ if tensor.name.contains(".linear_attn.") && tensor.shape.len() == 1 && !is_gain => 0.5,
                    _ if tensor.name.ends_with(".sinks") => 1.0,
                    [_, 1, taps] => 1.0 / (taps as f32).sqrt(),
                    _ if tensor.name.starts_with("model.embed_tokens") => 1.0,
                    _ if tensor.name == "transformer.wte.weight" => 1.0,
                    _ if tensor.name == "transformer.wpe.weight" => 0.1,
                    _ if tensor.name.ends_with("_bias") => 0.1,
                    // Expert matrices; those of gpt-oss are transposed too.
                    [_, rows, _] if path.contains("gpt_oss") => 1.0 / (rows as f32).sqrt(),
                    [_, _, columns] => 1.0 / (columns as f32).sqrt(),
                    [rows, _] if is_gpt2 => 1.0 / (rows as f32).sqrt(),
                    [_, columns] => 1.0 / (columns as f32).sqrt(),
                    _ => 0.1,
                };
                assert_eq!(tensor.deviation, expected, "{path}: {}", tensor.name);
            }
        }
    }

    #[test]
    fn skewed_routers_prefer_some_experts() {
        for (path, config) in configurations() {
            let names = |is_skewed: bool| -> Vec<String> {
                let skewed = tensors(&config, is_skewed).unwrap().into_iter().filter(|it| it.is_skewed);
                skewed.map(|tensor| tensor.name).collect()
            };
            assert!(names(false).is_empty(), "{path}");
            let has_experts = config.to_string().contains("num_experts_per_tok");
            for name in names(true) {
                assert!(
                    has_experts && [".gate.weight", "router"].iter().any(|it| name.contains(it)),
                    "{path}: {name}"
                );
            }
            assert!(!path.starts_with("shapes/Qwen3-30B") || names(true).len() == 48, "{path}");
        }
        let (name, shape) = ("mlp.gate.weight".to_owned(), vec![5, 8]);
        let router = Tensor { name, shape, mean: 0.0, deviation: 2.0, is_skewed: true };
        let deviations: Vec<f32> = (0..5).map(|row| router.deviation_of(row)).collect();
        assert_eq!((deviations[0], deviations[2]), (2.0, 1.1));
        assert!(
            (deviations[4] - 2.0 * LAST_ROW_FACTOR).abs() < 1e-6 && deviations.is_sorted_by(|a, b| a > b)
        );
    }

    #[test]
    fn written_models_can_be_read() {
        for (path, config) in configurations().into_iter().filter(|(path, _)| path.ends_with("config.json")) {
            let folder = tempfile::tempdir().unwrap();
            write(&config, Some(60_000), folder.path()).unwrap();
            let files = fs::read_dir(folder.path()).unwrap().map(|entry| {
                let entry = entry.unwrap();
                (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
            });
            let files = forge_frontend::MemoryCheckpoint(files.collect());
            let opened = read_model(&files, &Options::default())
                .unwrap_or_else(|faults| panic!("{path}: {faults:#?}"));
            assert!(opened.tensors.files().len() > 1, "{path}");
        }
    }

    #[test]
    fn rejects_configs_that_cannot_be_compiled() {
        let fault =
            tensors(&json!({"model_type": "mystery"}), false).map(|tensors| tensors.len()).unwrap_err();
        assert!(fault.contains("unsupported architecture mystery"), "{fault}");
    }
}
