//! `cargo xtask random-model`: writes a checkpoint with random weights, for benchmarks of real sizes without a download.
//!
//! Any supported architecture works: the frontend determines the tensors. Each tensor has its own random stream, seeded by its
//! name, so the values depend neither on the order of tensors nor on the number of shards. Values are bf16, scaled so that
//! activations neither vanish nor grow with depth.

mod tensors;
mod tokenizer;

use crate::random_model::tensors::{Tensor, tensors};
use crate::random_model::tokenizer::tokenizer;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_model::tensors::LAST_ROW_FACTOR;
    use forge_frontend::{Options, read_model};
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
