//! Quantized checkpoints: kept bit for bit, dequantized and stored in another format, or rejected.

use forge_frontend::{MemoryCheckpoint, read_model};
use forge_ir::{Graph, WeightId, WeightRows};
use forge_planner::{Options, Override, Quant, plan};
use forge_weights::{CheckpointWeights, PackedFile};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tests::{CONVERTED_TO_CODES, converted_to_codes, forge_with, mixed_mlx, model};

fn memory(checkpoint: &Path) -> MemoryCheckpoint {
    let file =
        |name: &str| (name.to_owned(), std::fs::read(checkpoint.join(name)).expect("it has this file"));
    MemoryCheckpoint(BTreeMap::from(["config.json", "model.safetensors"].map(file)))
}

/// Compiles, and returns the weight file and the JSON output, or the error message.
fn compiled(checkpoint: &Path, quant: &str) -> Result<(Vec<u8>, Value), String> {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (from, to) = (checkpoint.display().to_string(), folder.path().join("out").display().to_string());
    let output =
        forge_with(&["compile", &from, "-o", &to, "--quant", quant, "--no-reference-logits", "--json"]);
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let file = std::fs::read(folder.path().join("out/weights.safetensors")).expect("it was written");
    Ok((file, serde_json::from_slice(&output.stdout).expect("it is JSON")))
}

/// Every element of every weight, by tensor and position. Several weights may be parts of one tensor.
fn numbers(graph: &Graph, source: &dyn WeightRows) -> BTreeMap<String, Vec<f32>> {
    let of = |(index, weight): (usize, &forge_ir::Weight)| {
        let mut out = vec![0.0; weight.shape.iter().product()];
        source.rows(WeightId(index), 0..weight.rows(), &mut out).expect("it can be read");
        (format!("{} {index}", weight.tensor), out)
    };
    graph.weights.iter().enumerate().map(of).collect()
}

/// The weights of a checkpoint, and those of a crate compiled from it.
fn before_and_after(checkpoint: &Path, quant: &str) -> [BTreeMap<String, Vec<f32>>; 2] {
    let (file, _) = compiled(checkpoint, quant).unwrap_or_else(|error| panic!("{error}"));
    let memory = memory(checkpoint);
    let opened = read_model(&memory, &forge_frontend::Options::default()).expect("it was compiled");
    let stored = CheckpointWeights::new(&opened.graph, |tensor, offset, out| {
        opened.tensors.read(&memory, tensor, offset, out)
    });
    let options = Options { quant: Quant::from_name(quant).expect("a format"), ..Options::default() };
    let plan = plan(&opened.graph, &options).expect("it was compiled");
    let read = |offset: u64, out: &mut [u8]| {
        out.copy_from_slice(&file[offset as usize..][..out.len()]);
        Ok(())
    };
    let packed = PackedFile::open(&opened.graph, &plan.weights, read).expect("it was written for this plan");
    [numbers(&opened.graph, &stored), numbers(&opened.graph, &packed)]
}

fn checkpoints() -> Vec<PathBuf> {
    let models = ["llama_mlx4", "qwen3_mlx8", "gpt_oss_mxfp4", "gpt_oss_mxfp4_mlx"];
    let named = models.into_iter().chain(CONVERTED_TO_CODES).map(model);
    named.chain([mixed_mlx()[0].clone()]).collect()
}

#[test]
fn kept_weights_dequantize_to_the_same_values() {
    for checkpoint in checkpoints() {
        let [before, after] = before_and_after(&checkpoint, "keep");
        for (tensor, numbers) in &before {
            let same = numbers.iter().zip(&after[tensor]).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && numbers.len() == after[tensor].len(), "{}: {tensor}", checkpoint.display());
        }
        let (_, summary) = compiled(&checkpoint, "keep").expect("it was compiled before");
        assert_eq!(summary["errors"]["all"], 0.0, "{}", checkpoint.display());
    }
}

/// One plane of all experts of a layer, cut out of their records by the file's metadata.
fn of_experts(file: &[u8], layer: usize, plane: &str) -> Vec<u8> {
    let all = safetensors::SafeTensors::deserialize(file).expect("it is whole");
    let (_, header) = safetensors::SafeTensors::read_metadata(file).expect("it is whole");
    let metadata = header.metadata().as_ref().expect("a weight file has metadata");
    let place = &metadata[&format!("layers.{layer}.{plane}")];
    let [rows, columns, at] = place
        .split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect::<Vec<usize>>()[1..]
    else {
        panic!("{plane}: {place:?} is no place in a record");
    };
    let records = all.tensor(&format!("layers.{layer}.experts")).expect("experts have records");
    let one = records.shape()[1];
    records.data().chunks_exact(one).flat_map(|record| &record[at..][..rows * columns]).copied().collect()
}

/// Gate and up are interleaved in the checkpoint as in a crate, so rows are not even reordered.
#[test]
fn kept_mxfp4_weights_have_the_same_bits() {
    let checkpoint = model("gpt_oss_mxfp4");
    let (file, _) = compiled(&checkpoint, "keep").expect("it compiles");
    let before = std::fs::read(checkpoint.join("model.safetensors")).expect("it is there");
    let before = safetensors::SafeTensors::deserialize(&before).expect("it is whole");
    for layer in 0..2 {
        for (own, theirs) in [("routed_gate_up", "gate_up_proj"), ("routed_down", "down_proj")] {
            let theirs = |plane: &str| {
                let name = format!("model.layers.{layer}.mlp.experts.{theirs}_{plane}");
                before.tensor(&name).unwrap_or_else(|error| panic!("{name}: {error}")).data()
            };
            assert!(of_experts(&file, layer, &format!("{own}.scales")) == theirs("scales"), "{own}");
            // In the checkpoint adjacent columns share a byte; in the crate columns that are 16 apart do.
            let code = |block: &[u8], column: usize| block[column / 2] >> (column % 2 * 4) & 15;
            let moved = theirs("blocks").chunks_exact(16).flat_map(|block| {
                (0..16).map(|byte| code(block, byte) | code(block, byte + 16) << 4).collect::<Vec<u8>>()
            });
            let codes = of_experts(&file, layer, &format!("{own}.codes"));
            assert!(codes == moved.collect::<Vec<u8>>(), "{own}");
        }
    }
}

#[test]
fn quantized_values_follow_the_layout() {
    for [quantized, plain] in CONVERTED_TO_CODES.map(converted_to_codes).iter().chain([mixed_mlx()]) {
        let [numbers, _] = before_and_after(quantized, "keep");
        let [meant, _] = before_and_after(plain, "f32");
        assert_eq!(numbers.len(), meant.len());
        for (tensor, numbers) in numbers {
            assert!(numbers == meant[&tensor], "{}: {tensor} is decoded wrong", quantized.display());
        }
    }
}

#[test]
fn modules_have_their_configured_formats() {
    let (_, summary) = compiled(&mixed_mlx()[0], "keep").expect("it compiles");
    let weights = summary["weights"].as_array().expect("a list");
    let format = |name: &str| {
        let found = weights.iter().find(|weight| weight["name"] == name);
        found.map_or("nothing", |weight| weight["format"].as_str().unwrap_or_default()).to_owned()
    };
    for (name, expected) in [
        ("embed", "affine6"),
        ("layers.0.query", "affine2_32"),
        ("layers.0.key", "affine2_32"),
        ("layers.0.value", "affine3"),
        ("layers.0.output", "affine5_128"),
        ("layers.0.gate_up", "affine3_32"),
        ("layers.0.down", "affine8_128"),
        ("layers.1.query", "affine4"),
        ("layers.1.key", "bf16"),
        ("head", "affine4_128"),
    ] {
        assert_eq!(format(name), expected, "{name}");
    }
}

#[test]
fn requantizes_from_dequantized_values() {
    for checkpoint in checkpoints() {
        let [before, after] = before_and_after(&checkpoint, "f32");
        // Norm weights are folded in f32. A table, or a value that no norm precedes, is unchanged.
        let table = "model.embed_tokens.weight 0";
        assert_eq!(before[table], after[table], "{}", checkpoint.display());
        let (_, summary) = compiled(&checkpoint, "q8_0").expect("it compiles");
        let error = summary["errors"]["all"].as_f64().expect("a number");
        assert!(error > 0.0 && error < 0.02, "{}: {error}", checkpoint.display());
    }
}

#[test]
fn rejects_unsupported_quantization_configs() {
    type Change = fn(&mut Value);
    let cases: [(Change, &[&str]); 7] = [
        (|config| config["quantization"]["bits"] = json!(8), &["quantization_config", "differs"]),
        (|config| both(config, "bits", json!(8)), &["embed_tokens.weight", "[512, 32]"]),
        (|config| both(config, "bits", json!(7)), &["7 bits"]),
        (|config| both(config, "group_size", json!(128)), &["scales", "[512, 1]"]),
        (|config| both(config, "mode", json!("mxfp4")), &["group_size is 64", "mxfp4 requires 32"]),
        (|config| both(config, "quant_method", json!("gptq")), &["quant_method"]),
        (
            |config| {
                config.as_object_mut().expect("an object").retain(|key, _| !key.starts_with("quantization"));
            },
            &["stored as U32", "quantization"],
        ),
    ];
    for (change, named) in cases {
        let copy = tempfile::tempdir().expect("a temporary directory");
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(model("llama_mlx4").join(file), copy.path().join(file)).expect("it has this file");
        }
        let path = copy.path().join("config.json");
        let text = std::fs::read_to_string(&path).expect("it was just copied");
        let mut config = serde_json::from_str(&text).expect("it is JSON");
        change(&mut config);
        std::fs::write(&path, format!("{config:#}")).expect("it is writable");
        let error = compiled(copy.path(), "keep").expect_err("it is not what the tensors are");
        for name in named {
            assert!(error.contains(name), "should name {name}:\n{error}");
        }
    }
}

/// Sets a key of both sections.
fn both(config: &mut Value, key: &str, value: Value) {
    for section in ["quantization", "quantization_config"] {
        config[section][key] = value.clone();
    }
}

#[test]
fn routers_are_quantized_only_on_request() {
    let memory = memory(&model("qwen2_moe"));
    let opened = read_model(&memory, &forge_frontend::Options::default()).expect("it can be read");
    let routers = |quant: &str, overrides: &[&str]| {
        let named = |name: &str| Quant::from_name(name).expect("a format");
        let parse = |it: &&str| {
            let (pattern, to) = it.split_once('=').expect("pattern=format");
            Override::new(pattern, named(to)).expect("a pattern")
        };
        let overrides = overrides.iter().map(parse).collect();
        let options = Options { quant: named(quant), overrides, ..Options::default() };
        let plan = plan(&opened.graph, &options).expect("it is planned");
        let of_layer = plan.weights.into_iter().filter(|weight| weight.name.starts_with("layers.0."));
        let chooses = |name: &str| name.contains("router") || name.contains("shared_gate");
        let of_router = of_layer.filter(|weight| chooses(&weight.name));
        of_router.map(|weight| format!("{} {:?}", weight.format, weight.shape)).collect::<Vec<_>>()
    };
    // The router, and the gate of the shared expert: one matrix if the shared expert is merged with the
    // routed ones.
    assert_eq!(routers("q4_0", &[]), ["bf16 [4, 64]", "bf16 [1, 64]"]);
    assert_eq!(routers("f16", &[]), ["f16 [5, 64]"]);
    assert_eq!(routers("q4_0", &["*.mlp.*gate=q8_0"]), ["q8_0 [4, 64]", "q8_0 [1, 64]"]);
}
