//! Checkpoints of other quantization tools: modules that are not quantized, and diagnostics. Values are tested
//! by `forge-reference`.

use crate::common::{Raw, changed, edit, edit_weights, fault};
use forge_frontend::MemoryCheckpoint;
use serde_json::{Value, json};

const CONFIG: &str = "config.json";
const DOWN: &str = "model.layers.0.mlp.down_proj";

/// Changes a tensor of the down projection.
fn down(files: &mut MemoryCheckpoint, part: &str, change: impl FnOnce(&mut Raw)) {
    let name = format!("{DOWN}.{part}");
    edit_weights(files, |all| {
        change(all.iter_mut().find(|tensor| tensor.name == name).expect("it has this tensor"));
    });
}

fn quantization(files: &mut MemoryCheckpoint, key: &str, value: Value) {
    edit(files, CONFIG, |config| config["quantization_config"][key] = value);
}

#[test]
fn every_part_of_a_matrix_is_required() {
    for (name, parts) in [
        ("awq", &["qzeros", "scales"][..]),
        ("gptq", &["qzeros", "scales"]),
        ("fp8_block", &["weight_scale_inv"]),
        ("ct_int4_asym", &["weight_scale", "weight_shape"]),
        ("ct_nvfp4", &["weight_scale", "weight_global_scale"]),
        ("ct_mxfp4", &["weight_scale"]),
        ("ct_int8", &["weight_scale"]),
        ("bnb_nf4", &["weight.absmax", "weight.quant_map", "weight.nested_quant_map"]),
        ("bnb_int8", &["SCB"]),
        ("mlx_f32", &["biases"]),
    ] {
        for part in parts {
            let tensor = format!("{DOWN}.{part}");
            let message = fault(name, |files| {
                edit_weights(files, |all| all.retain(|other| other.name != tensor));
            });
            let expected = format!("[F0304] {DOWN}: missing tensor {tensor}");
            assert!(message.contains(&expected), "{name} without {part}: {message}");
        }
    }
}

#[test]
fn shapes_of_parts_must_agree() {
    for (name, part, expected) in [
        ("awq", "qzeros", "qzeros is I32"),
        ("gptq", "scales", "qzeros is I32"),
        ("gptq", "g_idx", "g_idx is I32"),
        ("fp8_block", "weight_scale_inv", "which fits neither rows nor blocks"),
        ("ct_fp8", "weight_scale", "which fits neither rows nor blocks"),
        ("ct_int8", "weight_scale", "expected a row for each of 128"),
        ("ct_mxfp4", "weight_scale", "weight_scale is U8"),
        ("bnb_nf4", "weight.absmax", "weight.absmax is U8"),
        ("mlx_nvfp4", "scales", "scales is U8"),
    ] {
        let module = if name == "mlx_nvfp4" { "model.layers.0.self_attn.q_proj" } else { DOWN };
        let message = fault(name, |files| {
            edit_weights(files, |all| {
                let tensor = format!("{module}.{part}");
                let tensor = all.iter_mut().find(|it| it.name == tensor).expect("it has this tensor");
                let elements: usize = tensor.shape.iter().product();
                // One row more than there can be.
                let (of_row, size) =
                    (tensor.shape[1..].iter().product::<usize>(), tensor.bytes.len() / elements);
                tensor.shape[0] += 1;
                tensor.bytes.extend(vec![0; of_row * size]);
            });
        });
        assert!(message.contains(expected) && message.contains(module), "{name} {part}: {message}");
    }
}

#[test]
fn unsupported_variants_are_rejected() {
    for (name, key, value, expected) in [
        ("awq", "version", json!("gemv"), "expected gemm"),
        ("awq", "bits", json!(8), "expected 4"),
        ("gptq", "checkpoint_format", json!("marlin"), "expected gptq or gptq_v2"),
        ("fp8_block", "fmt", json!("e5m2"), "expected e4m3"),
        ("fp8_block", "weight_block_size", json!([128]), "expected rows and columns of a block"),
        ("ct_int4", "format", json!("marlin-24"), "expected one of float-quantized"),
        (
            "ct_int4",
            "transform_config",
            json!({"config_groups": {"R1": {"type": "hadamard"}}}),
            "unsupported",
        ),
        (
            "ct_int4",
            "sparsity_config",
            json!({"format": "sparse-24-bitmask"}),
            "sparse formats are unsupported",
        ),
        ("bnb_nf4", "bnb_4bit_quant_storage", json!("bfloat16"), "expected uint8"),
        ("awq", "quant_method", json!("hqq"), "use the original checkpoint in BF16 or F16"),
    ] {
        let message = fault(name, |files| quantization(files, key, value));
        assert!(message.contains(&format!("quantization_config.{key}")), "{name} {key}: {message}");
        assert!(message.contains(expected), "{name} {key}: {message}");
    }
    for key in ["transform_config", "sparsity_config"] {
        changed("ct_int4", |files| quantization(files, key, json!({})));
    }
}

#[test]
fn ambiguous_zero_points_are_rejected() {
    let all_ones = |files: &mut MemoryCheckpoint| down(files, "qzeros", |zeros| zeros.bytes[0] = 0xf7);
    let message = fault("gptq", all_ones);
    assert!(message.contains("has a zero point of 15 plus 1"), "{message}");
    let opened = changed("gptq", |files| {
        all_ones(files);
        quantization(files, "checkpoint_format", json!("gptq_v2"));
    });
    let formats: Vec<&str> = opened.matrices.iter().map(|group| group.format.name()).collect();
    assert_eq!(formats, ["affine5"], "zero points of 15 and 7 need a fifth bit");
}

#[test]
fn damaged_scales_are_rejected() {
    let message = fault("gptq", |files| down(files, "scales", |scales| scales.bytes[1] = 0x7e));
    assert!(message.contains("down_proj.scales has a scale that is infinite or NaN"), "{message}");
    let message = fault("bnb_int8", |files| down(files, "weight_format", |format| format.bytes[0] = 1));
    assert!(message.contains("weight_format is not 0"), "{message}");
}

#[test]
fn sizes_that_overflow_are_errors() {
    let message = fault("gptq", |files| {
        down(files, "qweight", |weight| (weight.shape, weight.bytes) = (vec![1 << 62, 0], Vec::new()));
    });
    assert!(message.contains("expected a matrix"), "{message}");
    let message = fault("mlx_f32", |files| {
        down(files, "weight", |weight| (weight.shape, weight.bytes) = (vec![0, 1 << 62], Vec::new()));
    });
    assert!(message.contains("down_proj.weight has shape"), "{message}");
    let message = fault("ct_int4_asym", |files| {
        down(files, "weight_shape", |shape| shape.bytes[8..].copy_from_slice(&i64::MAX.to_le_bytes()));
    });
    assert!(message.contains("weight_shape is"), "{message}");
    let message = fault("bnb_fp4", |files| {
        down(files, "weight.quant_state.bitsandbytes__fp4", |state| {
            state.bytes = br#"{"shape": [4611686018427387904, 64], "blocksize": 64}"#.to_vec();
            state.shape = vec![state.bytes.len()];
        });
    });
    assert!(message.contains("down_proj.weight has 12288 bytes, expected"), "{message}");
}

/// Stores the down projection in BF16.
fn plain_down(files: &mut MemoryCheckpoint, shape: [usize; 2]) {
    edit_weights(files, |all| {
        all.retain(|tensor| !tensor.name.starts_with(DOWN));
        let (name, dtype) = (format!("{DOWN}.weight"), "BF16".to_owned());
        all.push(Raw { name, dtype, shape: shape.to_vec(), bytes: vec![0; 2 * shape[0] * shape[1]] });
    });
}

#[test]
fn modules_in_float_are_used_as_they_are() {
    for (name, shape) in
        [("awq", [128, 192]), ("gptq", [128, 256]), ("fp8_tensor", [128, 256]), ("bnb_nf4", [128, 256])]
    {
        let opened = changed(name, |files| plain_down(files, shape));
        assert_eq!(opened.matrices[0].matrices, 6, "{name}");
        let tensor = format!("{DOWN}.weight");
        let weight = opened.graph.weights.iter().find(|weight| weight.tensor == tensor).expect("it is bound");
        assert_eq!((weight.format.name(), weight.encoding), ("bf16", None), "{name}");
    }
    // Parts of a quantized matrix next to a float one.
    let message = fault("ct_fp8", |files| {
        down(files, "weight", |weight| {
            weight.dtype = "BF16".to_owned();
            weight.bytes.extend(vec![0; weight.bytes.len()]);
        });
    });
    assert!(message.contains(&format!("[F0303] unused tensor {DOWN}.weight_scale")), "{message}");
}

#[test]
fn a_method_without_quantized_matrices_is_noted() {
    let opened = changed("llama", |files| {
        edit(files, CONFIG, |config| {
            config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4})
        });
    });
    assert_eq!(opened.notes, ["no matrix is quantized, although config.json names a quantization method"]);
}

#[test]
fn scales_of_activations_and_caches_are_listed_as_unused() {
    let opened = changed("modelopt_fp8", |_| {});
    let at = "model.layers.0.self_attn";
    for name in
        [format!("{at}.k_proj.k_scale"), format!("{at}.v_proj.v_scale"), format!("{DOWN}.input_scale")]
    {
        assert!(opened.ignored.contains(&name), "{name}: {:?}", opened.ignored);
    }
    assert!(opened.notes.iter().any(|note| note.starts_with("scales of activations are not used")));
}

#[test]
fn biases_of_zero_are_unused_and_others_are_errors() {
    let with = |byte: u8| {
        move |files: &mut MemoryCheckpoint| {
            edit_weights(files, |all| {
                let (name, dtype) = (format!("{DOWN}.bias"), "F16".to_owned());
                all.push(Raw { name, dtype, shape: vec![128], bytes: vec![byte; 256] });
            });
        }
    };
    assert_eq!(changed("gptq", with(0)).ignored, [format!("{DOWN}.bias")]);
    let message = fault("gptq", with(1));
    assert!(message.contains(&format!("[F0303] unused tensor {DOWN}.bias")), "{message}");
}

#[test]
fn experts_of_a_layer_are_stored_alike() {
    let message = fault("ct_int4", |files| {
        let expert = "model.layers.0.mlp.experts.3.up_proj";
        edit_weights(files, |all| {
            all.retain(|tensor| !tensor.name.starts_with(expert));
            let (name, dtype) = (format!("{expert}.weight"), "BF16".to_owned());
            all.push(Raw { name, dtype, shape: vec![64, 64], bytes: vec![0; 2 * 64 * 64] });
        });
    });
    assert!(message.contains("experts.0.up_proj.weight is stored as q4_0"), "{message}");
    assert!(message.contains("experts.3.up_proj.weight as bf16"), "{message}");
}

#[test]
fn wrong_shapes_name_the_storage() {
    let message =
        fault("awq", |files| edit(files, CONFIG, |config| config["intermediate_size"] = json!(256)));
    assert!(
        message.contains("expected shape [128, 256] from the configuration, found [128, 192]"),
        "{message}"
    );
    assert!(message.contains("stored as AWQ int4, groups of 64"), "{message}");
}

/// The configuration of a text model inside a multimodal checkpoint may have the method.
#[test]
fn reads_the_method_of_a_nested_text_model() {
    let message = fault("qwen3_5_old", |files| {
        edit(files, CONFIG, |config| {
            config["text_config"]["quantization_config"] = json!({"quant_method": "hqq"});
        });
    });
    assert!(message.contains("text_config.quantization_config.quant_method"), "{message}");
    let opened = changed("qwen3_5_old", |files| {
        edit(files, CONFIG, |config| {
            config["text_config"]["quantization_config"] = json!({"quant_method": "fp8"});
        });
    });
    assert!(opened.notes.iter().any(|note| note.contains("no matrix is quantized")), "{:?}", opened.notes);
}

/// `quantization_config` of published checkpoints, with shortened lists of modules.
const PUBLISHED: [&str; 13] = [
    // deepseek-ai/DeepSeek-R1, DeepSeek-V3.2, Qwen/Qwen3-30B-A3B-FP8
    r#"{"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}"#,
    r#"{"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128]}"#,
    r#"{"activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"],
        "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}"#,
    // MiniMaxAI/MiniMax-M2.5, mistralai/Devstral-2-123B-Instruct-2512, Qwen/Qwen3.8-2.4T-A95B-FP8
    r#"{"quant_method": "fp8", "fmt": "float8_e4m3fn", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]}"#,
    r#"{"activation_scheme": "static", "dequantize": false, "modules_to_not_convert": ["model.vision_tower"],
        "quant_method": "fp8", "weight_block_size": null}"#,
    r#"{"quant_method": "fp8", "activation_scheme": "dynamic", "weight_per_tensor": false, "act_per_tensor": false,
        "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}"#,
    // Qwen/Qwen3-32B-FP8-Static-PerTensor, nvidia/Gemma-4-31B-IT-NVFP4, nvidia/Qwen3.6-27B-NVFP4
    r#"{"config_groups": {"group_0": {"input_activations": {"dynamic": false, "num_bits": 8, "type": "float"},
        "weights": {"dynamic": false, "num_bits": 8, "type": "float"}}}, "ignore": ["lm_head"],
        "quant_algo": "FP8", "kv_cache_scheme": "FP8", "producer": {"name": "modelopt", "version": "0.31.0"}}"#,
    r#"{"config_groups": {"group_0": {"weights": {"dynamic": false, "num_bits": 4, "type": "float",
        "group_size": 16}, "targets": ["Linear"]}}, "ignore": ["lm_head", "model.embed_vision*"],
        "quant_algo": "NVFP4", "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
        "producer": {"name": "modelopt", "version": "0.37.0"}, "quant_method": "modelopt"}"#,
    r#"{"quant_algo": "MIXED_PRECISION", "quantized_layers": {"model.layers.0.mlp": {"quant_algo": "FP8"}},
        "producer": {"name": "modelopt", "version": "0.45.0"}, "quant_method": "modelopt"}"#,
    // inference-sim/llama-4-scout-17b-16e-instruct-fp8-dynamic, moonshotai/Kimi-K2.5
    r#"{"config_groups": {"group_0": {"input_activations": {"dynamic": true, "num_bits": 8, "strategy": "token",
        "type": "float"}, "targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel",
        "symmetric": true, "type": "float"}}}, "format": "float-quantized", "global_compression_ratio": null,
        "ignore": ["lm_head"], "kv_cache_scheme": null, "quant_method": "compressed-tensors",
        "quantization_status": "compressed"}"#,
    r#"{"config_groups": {"group_0": {"input_activations": null, "targets": ["Linear"], "weights": {"group_size": 32,
        "num_bits": 4, "strategy": "group", "symmetric": true, "type": "int"}}}, "format": "pack-quantized",
        "ignore": ["lm_head", "re:.*self_attn.*"], "kv_cache_scheme": null, "quant_method": "compressed-tensors",
        "quantization_status": "compressed"}"#,
    // RedHatAI/DeepSeek-V4-Flash-NVFP4-FP8, IrfanUruchi/1B-building-engineering-llm
    r#"{"config_groups": {"group_0": {"format": "float-quantized", "targets": ["re:.*attn.*(wq_b|wo_a)$"]},
        "group_1": {"format": "nvfp4-pack-quantized", "targets": ["re:.*ffn.*(gate|up|down)_proj$"]}},
        "format": "mixed-precision", "ignore": [], "kv_cache_scheme": null, "quant_method": "compressed-tensors",
        "sparsity_config": {}, "transform_config": {}, "version": "0.15.1"}"#,
    r#"{"_load_in_4bit": true, "_load_in_8bit": false, "bnb_4bit_compute_dtype": "float16",
        "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": true,
        "llm_int8_has_fp16_weight": false, "llm_int8_skip_modules": null, "llm_int8_threshold": 6.0,
        "load_in_4bit": true, "load_in_8bit": false, "quant_method": "bitsandbytes"}"#,
];

#[test]
fn published_configurations_are_read() {
    for text in PUBLISHED {
        let opened = changed("llama", |files| {
            edit(files, CONFIG, |config| {
                config["quantization_config"] = serde_json::from_str(text).expect("it is JSON");
            });
        });
        assert!(opened.notes[0].contains("no matrix is quantized"), "{text}: {:?}", opened.notes);
    }
}
