//! Models created from configurations without weights.

use crate::common::{model, models, read};
use forge_frontend::{Checkpoint, DummyWeights, Options, read_model};
use forge_ir::{Format, Graph, Op};
use serde_json::{Value, json};

/// The graph of a configuration.
fn graph(config: &str) -> Graph {
    let shapes =
        DummyWeights::new(config, &Options::default()).unwrap_or_else(|faults| panic!("{faults:#?}"));
    read_model(&shapes, &Options::default()).unwrap_or_else(|faults| panic!("{faults:#?}")).graph
}

#[test]
fn published_models_have_their_published_sizes() {
    let cases = [
        ("Llama-3.1-8B", 8_030_261_248_u64),
        ("Llama-3.2-1B", 1_235_814_400),
        ("Mistral-7B-v0.3", 7_248_023_552),
        ("Qwen3-0.6B", 596_049_920),
        ("Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen3-4B", 4_022_468_096),
    ];
    let folder = format!("{}/../../tests/shapes", env!("CARGO_MANIFEST_DIR"));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), cases.len());
    for (name, expected) in cases {
        let graph = graph(&std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap());
        let size = |shape: &[usize]| shape.iter().map(|size| *size as u64).product::<u64>();
        let parameters: u64 = graph.weights.iter().map(|weight| size(&weight.shape)).sum();
        assert_eq!(parameters, expected, "{name}");
        assert!(graph.weights.iter().all(|weight| weight.format == Format::Bf16), "{name}");
        assert_eq!(graph.bodies.len(), 3, "{name}: all layers are alike");
    }
}

#[test]
fn config_with_dummy_weights_gives_the_same_graph() {
    // All weights are then unquantized; 4-bit weights would have other names.
    for name in models().into_iter().filter(|name| name != "gpt_oss_mxfp4") {
        let files = model(&name);
        let whole = read(&files).unwrap().graph;
        let alone = graph(std::str::from_utf8(&files.0["config.json"]).unwrap());
        let weights = |graph: &Graph| -> Vec<(String, Vec<usize>)> {
            graph.weights.iter().map(|weight| (weight.tensor.clone(), weight.shape.clone())).collect()
        };
        assert_eq!(weights(&alone), weights(&whole), "{name}");
        assert_eq!((&alone.bodies, &alone.states), (&whole.bodies, &whole.states), "{name}");
        assert_eq!((&alone.layers, &alone.epilogue), (&whole.layers, &whole.epilogue), "{name}");
    }
}

#[test]
fn absent_sizes_have_the_defaults_of_transformers() {
    /// Rows of a projection of the first layer.
    fn rows(name: &str, projection: &str, changes: &Value) -> usize {
        let mut config: Value = serde_json::from_slice(&model(name).0["config.json"]).unwrap();
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        config.as_object_mut().unwrap().retain(|_, value| value != "REMOVE");
        let graph = graph(&config.to_string());
        let tensor = format!("model.layers.0.self_attn.{projection}.weight");
        graph.weights.iter().find(|weight| weight.tensor == tensor).unwrap().rows()
    }
    // 64 heads of 4 channels: the number of key heads if its key is absent, and if it is null.
    for (name, absent, null) in [
        ("llama", 64, 64),
        ("mistral", 8, 64),
        ("qwen2", 32, 64),
        ("qwen3", 32, 64),
        ("gemma2", 4, 64),
        ("olmo2", 64, 64),
        ("smollm3", 4, 64),
        ("granite", 64, 64),
        ("gemma3_text", 4, 64),
        ("ernie4_5", 2, 64),
        ("glm4", 2, 64),
        ("hunyuan_v1_dense", 64, 64),
    ] {
        let heads = |value: Value| {
            let sizes = json!({"num_attention_heads": 64, "head_dim": 4, "num_key_value_heads": value});
            rows(name, "k_proj", &sizes) / 4
        };
        assert_eq!((heads(json!("REMOVE")), heads(json!(null))), (absent, null), "{name}");
    }
    // 16 heads of 64 channels: the width of a head.
    for (name, absent, null) in [
        ("llama", 4, 4),
        ("mistral", 4, 4),
        ("qwen2", 4, 4),
        ("qwen3", 128, 4),
        ("gemma2", 256, 4),
        ("olmo2", 4, 4),
        ("smollm3", 4, 4),
        ("granite", 4, 4),
        ("gemma3_text", 256, 4),
        ("ernie4_5", 128, 4),
        ("glm4", 128, 4),
        ("hunyuan_v1_dense", 4, 4),
    ] {
        let width = |value: Value| {
            let sizes = json!({"num_attention_heads": 16, "head_dim": value, "num_key_value_heads": 2});
            rows(name, "q_proj", &sizes) / 16
        };
        assert_eq!((width(json!("REMOVE")), width(json!(null))), (absent, null), "{name}");
    }
}

#[test]
fn gemma3_keys_have_defaults() {
    // The complete text configuration of the published 4B multimodal checkpoint.
    let graph = graph(
        &json!({
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024
            }
        })
        .to_string(),
    );
    let parameters: usize = graph.weights.iter().map(|weight| weight.shape.iter().product::<usize>()).sum();
    assert_eq!(parameters, 3_880_263_168);
    assert_eq!(graph.bodies.len(), 4, "an embedding, two kinds of layers, a head");
}

#[test]
fn gemma_embeddings_are_scaled_by_sqrt_of_hidden_size() {
    for (hidden, scale) in [(64, 8.0), (2304, 48.0), (3584, 59.866_52)] {
        let mut config: Value = serde_json::from_slice(&model("gemma2").0["config.json"]).unwrap();
        config["hidden_size"] = json!(hidden);
        let graph = graph(&config.to_string());
        let Op::Embed { scale: found, .. } = graph.body(&graph.prologue).nodes[0].op else {
            panic!("{graph}")
        };
        assert_eq!(found, scale, "{hidden}");
    }
}

#[test]
fn rejects_impossible_sizes() {
    let rejected = |change: &dyn Fn(&mut Value)| {
        let mut config: Value = serde_json::from_slice(&model("qwen3").0["config.json"]).unwrap();
        change(&mut config);
        let faults = DummyWeights::new(&config.to_string(), &Options::default()).map(|_| ()).unwrap_err();
        faults.iter().map(|fault| fault.code).collect::<Vec<_>>()
    };
    let huge = u32::MAX;
    assert_eq!(rejected(&|config| config["num_hidden_layers"] = json!(huge)), ["F0206"]);
    assert_eq!(
        rejected(&|config| {
            config["hidden_size"] = json!(huge);
            config["intermediate_size"] = json!(huge);
        }),
        ["F0306"]
    );
    assert_eq!(rejected(&|config| config["attention_chunk_size"] = json!(1)), ["F0207"]);
    assert_eq!(rejected(&|config| config["vocab_size"] = json!("many")), ["F0204"]);
}

#[test]
fn dummy_weights_are_zero() {
    let shapes = DummyWeights::new(
        std::str::from_utf8(&model("llama").0["config.json"]).unwrap(),
        &Options::default(),
    );
    let shapes = shapes.unwrap();
    let opened = read_model(&shapes, &Options::default()).unwrap();
    for tensor in opened.tensors.iter() {
        let mut bytes = vec![1; tensor.bytes as usize];
        opened.tensors.read(&shapes, &tensor.name, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "{}", tensor.name);
    }
    let end = shapes.len("model.safetensors").unwrap();
    assert!(shapes.read("model.safetensors", end - 1, &mut [0; 2]).is_err());
    assert!(shapes.read("model.safetensors", u64::MAX, &mut [0; 2]).is_err());
    assert!(shapes.read("tokenizer.json", 0, &mut [0; 2]).is_err());
    for offset in [0, 5, end / 2, end - 9] {
        let mut piece = [1; 9];
        shapes.read("model.safetensors", offset, &mut piece).unwrap();
        let mut bytes = piece.map(|_| [1]);
        let read = |(index, byte): (usize, &mut [u8; 1])| {
            shapes.read("model.safetensors", offset + index as u64, byte).unwrap();
        };
        bytes.iter_mut().enumerate().for_each(read);
        assert_eq!(piece, bytes.map(|[byte]| byte));
    }
}
