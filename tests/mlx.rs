//! A checkpoint quantised the way MLX does, in every number of bits and size of groups, module by module: as it is stored, and
//! as the plain numbers that it means. Written from the layout's definition, with nothing of ours that reads it.

use half::f16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize_to_file};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What becomes of modules of the first layer and of those outside: bits and group. All others have 4 and 64, but for one
/// that is left as it is.
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

/// Not quantised.
const LEFT: &str = "model.layers.1.self_attn.k_proj";

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Writes the checkpoint, and beside it one of the plain numbers that it means; gives both places.
pub(crate) fn mixed(scratch: &Path) -> [PathBuf; 2] {
    let [source, quantised, plain] = ["mlx-source", "mlx-mixed", "mlx-plain"].map(|name| scratch.join(name));
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16",
        "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 256, "vocab_size": 301, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": false,
        "mlp_bias": false, "bos_token_id": 256, "eos_token_id": 257,
    });
    xtask::random_model::write(&config, None, &source).unwrap_or_else(|error| panic!("{error}"));
    let bytes = std::fs::read(source.join("model.safetensors")).expect("it was just written");
    let tensors = SafeTensors::deserialize(&bytes).expect("it is whole");
    let (mut stored, mut means) = (Tensors::new(), Tensors::new());
    let mut section = json!({"group_size": 64, "bits": 4});
    for (name, view) in tensors.iter() {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let shape = view.shape().to_vec();
        if shape.len() == 1 || module == LEFT {
            section[LEFT] = json!(false);
            let copy = (view.dtype(), shape, view.data().to_vec());
            stored.insert(name.to_owned(), copy.clone());
            means.insert(name.to_owned(), copy);
            continue;
        }
        let special = MODULES.iter().find(|(known, ..)| *known == module);
        let (bits, group) = special.map_or((4, 64), |(_, bits, group)| (*bits, *group));
        if special.is_some() {
            section[module] = json!({"group_size": group, "bits": bits});
        }
        let numbers: Vec<f32> = view
            .data()
            .chunks_exact(2)
            .map(|bytes| f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16))
            .collect();
        quantise(module, &numbers, &shape, (bits, group), &mut stored, &mut means);
    }
    for (directory, tensors) in [(&quantised, &stored), (&plain, &means)] {
        std::fs::create_dir_all(directory).expect("the build folder is writable");
        let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).expect("sizes fit"))
        });
        serialize_to_file(views, None, &directory.join("model.safetensors")).expect("it is writable");
        std::fs::copy(source.join("tokenizer.json"), directory.join("tokenizer.json")).expect("it is there");
        if directory == &quantised {
            config["quantization"] = section.clone();
            config["quantization_config"] = section.clone();
        } else if let Value::Object(config) = &mut config {
            config.retain(|key, _| !key.starts_with("quantization"));
        }
        std::fs::write(directory.join("config.json"), format!("{config:#}")).expect("it is writable");
    }
    [quantised, plain]
}

/// Codes as one stream of bits, scales and biases in f16; and the numbers that they mean, in f32.
fn quantise(
    module: &str,
    numbers: &[f32],
    shape: &[usize],
    (bits, group): (usize, usize),
    stored: &mut Tensors,
    means: &mut Tensors,
) {
    let levels = ((1 << bits) - 1) as f32;
    let (mut stream, mut place) = (vec![0_u8; numbers.len() * bits / 8], 0);
    let (mut scales, mut biases, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for group in numbers.chunks_exact(group) {
        let low = group.iter().copied().fold(f32::MAX, f32::min);
        let high = group.iter().copied().fold(f32::MIN, f32::max);
        // Every other group runs downwards, as MLX lets those whose largest number is the lowest.
        let (from, to) = if scales.len() % 4 == 0 { (low, high) } else { (high, low) };
        let (scale, bias) = (f16::from_f32((to - from) / levels), f16::from_f32(from));
        scales.extend(scale.to_le_bytes());
        biases.extend(bias.to_le_bytes());
        for x in group {
            let code = ((x - bias.to_f32()) / scale.to_f32()).round().clamp(0.0, levels);
            plain.extend((code * scale.to_f32() + bias.to_f32()).to_le_bytes());
            for bit in 0..bits {
                stream[place / 8] |= (code as u8 >> bit & 1) << (place % 8);
                place += 1;
            }
        }
    }
    let [rows, columns] = shape else { panic!("{module} is a matrix") };
    let groups = vec![*rows, columns / group];
    stored.insert(format!("{module}.weight"), (Dtype::U32, vec![*rows, columns * bits / 32], stream));
    stored.insert(format!("{module}.scales"), (Dtype::F16, groups.clone(), scales));
    stored.insert(format!("{module}.biases"), (Dtype::F16, groups, biases));
    means.insert(format!("{module}.weight"), (Dtype::F32, shape.to_vec(), plain));
}
