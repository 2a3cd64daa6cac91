//! Checkpoints in the format of MLX converters, created from those of tests/models and tests/odd and from
//! random ones. `names` has the tensor names, `codes` the quantized values. The code follows the converters
//! and the definition of the format, independently of forge's reader.

mod codes;
mod names;

use codes::Codes;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize_to_file};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Tensors by name.
type Tensors = BTreeMap<String, Array>;

/// The elements of a stored tensor.
#[derive(Clone, Debug)]
struct Array {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// Bits and group size of modules of the first layer and outside the layers. All others have 4 and 64, except
/// one that is not quantized.
const MODULES: [(&str, usize, usize); 9] = [
    ("model.embed_tokens", 6, 64),
    ("model.layers.0.self_attn.q_proj", 2, 32),
    ("model.layers.0.self_attn.k_proj", 2, 32),
    ("model.layers.0.self_attn.v_proj", 3, 64),
    ("model.layers.0.self_attn.o_proj", 5, 128),
    ("model.layers.0.mlp.gate_proj", 3, 32),
    ("model.layers.0.mlp.up_proj", 3, 32),
    ("model.layers.0.mlp.down_proj", 8, 128),
    ("lm_head", 4, 128),
];

/// Marks a module that is not quantized.
const UNQUANTIZED_MODULE: &str = "model.layers.1.self_attn.k_proj";

/// Writes a checkpoint with every number of bits and group size, module by module, and its dequantized copy.
/// Returns both paths.
pub(crate) fn mixed(scratch: &Path) -> [PathBuf; 2] {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16",
        "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 256, "vocab_size": 301, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": false,
        "mlp_bias": false, "bos_token_id": 256, "eos_token_id": 257,
    });
    let codes = |module: &str| {
        let special = MODULES.iter().find(|(known, ..)| *known == module);
        let (bits, group) = special.map_or((4, 64), |(_, bits, group)| (*bits, *group));
        (module != UNQUANTIZED_MODULE).then_some(Codes::Affine { bits, group })
    };
    quantized(scratch, "mlx", &config, Codes::Affine { bits: 4, group: 64 }, codes)
}

/// A random quantized model in the format of a converter, with the `usual` parameters unless another rule
/// applies, and its dequantized copy. Returns both paths.
fn quantized(
    scratch: &Path,
    name: &str,
    config: &Value,
    usual: Codes,
    codes: impl Fn(&str) -> Option<Codes>,
) -> [PathBuf; 2] {
    let [source, stored, means] =
        ["source", "mixed", "plain"].map(|part| scratch.join(format!("{name}-{part}")));
    xtask::random_model::write(config, None, &source).unwrap_or_else(|error| panic!("{error}"));
    let mut section = usual.section();
    let (mut of_codes, mut of_numbers) = (Tensors::new(), Tensors::new());
    let mut tensors = load(&source);
    tensors.iter_mut().for_each(|(name, array)| array.restore_shape(config, name));
    for (tensor, array) in names::converted(config, tensors) {
        let module = tensor.strip_suffix(".weight").filter(|module| is_quantized(config, module, &array));
        let chosen = module.and_then(&codes);
        let Some((module, chosen)) = module.zip(chosen) else {
            if let Some(module) = module {
                section[module] = json!(false);
            }
            of_codes.insert(tensor.clone(), array.clone());
            of_numbers.insert(tensor, array);
            continue;
        };
        if chosen != usual {
            section[module] = chosen.section();
        }
        let (parts, meant) = codes::encode(module, &array, chosen);
        of_codes.extend(parts);
        of_numbers.insert(tensor, meant);
    }
    let mut quantized_config = config.clone();
    quantized_config["quantization"] = section.clone();
    quantized_config["quantization_config"] = section;
    write(&source, &stored, &quantized_config, &of_codes);
    write(&source, &means, config, &of_numbers);
    [stored, means]
}

/// Whether converters quantize a module: one with a matrix of its own.
fn is_quantized(config: &Value, module: &str, array: &Array) -> bool {
    let chooses = ["deepseek_v3", "glm4_moe"].iter().any(|family| config["model_type"] == *family);
    array.shape.len() > 1 && !module.ends_with(".conv1d") && !(chooses && module.ends_with(".mlp.gate"))
}

/// A random quantized model of a family that converters modify, and its dequantized copy. Widths that are not
/// multiples of 64 have smaller groups; the router has more bits.
pub(crate) fn families(scratch: &Path, name: &str) -> [PathBuf; 2] {
    let of_group = |bits, group| Codes::Affine { bits, group };
    let chooses = |module: &str| {
        ["mlp.gate", "mlp.router", "shared_expert_gate"].iter().any(|end| module.ends_with(end))
    };
    let mut config = json!({
        "torch_dtype": "bfloat16", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": 320, "max_position_embeddings": 320, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": false, "num_experts_per_tok": 2, "bos_token_id": 256, "eos_token_id": 257,
    });
    let mut add = |more: Value| {
        let Value::Object(more) = more else { return };
        config.as_object_mut().expect("it is one").extend(more);
    };
    let family = name.split("_mlx").next().unwrap_or_default();
    match family {
        "gpt_oss" => add(json!({
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_key_value_heads": 2,
            "head_dim": 32, "intermediate_size": 64, "num_local_experts": 4, "sliding_window": 16,
        })),
        "qwen3_next" => add(json!({
            "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_key_value_heads": 2,
            "head_dim": 32, "intermediate_size": 128, "num_experts": 4, "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64, "full_attention_interval": 2, "linear_num_key_heads": 2,
            "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        })),
        "deepseek_v3" => add(json!({
            "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_key_value_heads": 4,
            "intermediate_size": 128, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
            "moe_intermediate_size": 64, "first_k_dense_replace": 1,
        })),
        other => panic!("there is no {other}"),
    }
    let usual = if family == "gpt_oss" { Codes::Mxfp4 } else { of_group(4, 64) };
    let codes = |module: &str| match family {
        _ if chooses(module) => Some(of_group(8, 64)),
        "gpt_oss" if !module.contains(".experts.") => Some(of_group(8, 64)),
        "deepseek_v3" if module.ends_with(".embed_q") => Some(of_group(4, 32)),
        _ => Some(usual),
    };
    once(&[scratch.join(format!("{name}-mixed")), scratch.join(format!("{name}-plain"))], || {
        quantized(scratch, name, &config, usual, codes);
    })
}

/// A model of tests/models or tests/odd in the format of a converter, unquantized.
pub(crate) fn converted(scratch: &Path, name: &str, source: impl Fn() -> PathBuf) -> PathBuf {
    let [folder] = once(&[scratch.join("converted").join(name)], || {
        plain(&source(), &scratch.join("converted").join(name));
    });
    folder
}

/// Directories that are created on first use.
fn once<const N: usize>(folders: &[PathBuf; N], write: impl FnOnce()) -> [PathBuf; N] {
    static WRITTEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut written = WRITTEN.lock().expect("the lock is not poisoned");
    if !written.contains(&folders[0]) {
        write();
        written.extend(folders.iter().cloned());
    }
    folders.clone()
}

/// Writes a model of tests/models or tests/odd in the format of a converter, unquantized, and its expected
/// results.
fn plain(source: &Path, to: &Path) {
    let text = std::fs::read_to_string(source.join("config.json")).expect("a model has config.json");
    let mut config: Value = serde_json::from_str(&text).expect("it is JSON");
    let tensors = names::converted(&config, load(source));
    if let Value::Object(keys) = &mut config {
        keys.remove("vision_config");
        // Its experts were already quantized.
        if keys.remove("quantization_config").is_some() {
            let section = Codes::Mxfp4.section();
            keys.extend(["quantization", "quantization_config"].map(|key| (key.to_owned(), section.clone())));
        }
    }
    write(source, to, &config, &tensors);
}

/// Writes a checkpoint; files other than weights are copied from the source.
fn write(source: &Path, to: &Path, config: &Value, tensors: &Tensors) {
    std::fs::create_dir_all(to).expect("the build folder is writable");
    let views = tensors.iter().map(|(name, Array { dtype, shape, bytes })| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).expect("sizes fit"))
    });
    serialize_to_file(views, None, &to.join("model.safetensors")).expect("it is writable");
    std::fs::write(to.join("config.json"), format!("{config:#}")).expect("it is writable");
    for file in std::fs::read_dir(source).expect("it is a folder").flatten() {
        let name = file.file_name().into_string().expect("names are UTF-8");
        if !name.starts_with("model") && name != "config.json" {
            std::fs::copy(file.path(), to.join(&name)).expect("it is writable");
        }
    }
}

impl Array {
    /// Restores the dimensions of tensors that random models store flat.
    fn restore_shape(&mut self, config: &Value, name: &str) {
        let count = |key: &str, usual: u64| config[key].as_u64().unwrap_or(usual) as usize;
        let all = self.shape.iter().product::<usize>();
        if name.ends_with(".conv1d.weight") {
            let taps = count("linear_conv_kernel_dim", 4);
            self.shape = vec![all / taps, 1, taps];
        } else if name.contains(".experts.") && name.ends_with("_bias") {
            let experts = count("num_local_experts", 1);
            self.shape = vec![experts, all / experts];
        }
    }
}

/// The tensors of a checkpoint.
fn load(source: &Path) -> Tensors {
    let mut all = Tensors::new();
    for file in std::fs::read_dir(source).expect("it is a folder").flatten() {
        let name = file.file_name().into_string().expect("names are UTF-8");
        if !name.starts_with("model") || !name.ends_with(".safetensors") {
            continue;
        }
        let bytes = std::fs::read(file.path()).expect("it is there");
        for (name, view) in SafeTensors::deserialize(&bytes).expect("it is whole").tensors() {
            let (dtype, shape) = (view.dtype(), view.shape().to_vec());
            all.insert(name, Array { dtype, shape, bytes: view.data().to_vec() });
        }
    }
    all
}
