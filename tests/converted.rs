//! Models in the format of MLX converters: they compute the logits of the original model, and unknown layouts
//! are rejected.

use forge_frontend::{MemoryCheckpoint, Options, read_model};
use forge_ir::tolerance;
use forge_ops::Format;
use safetensors::SafeTensors;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tests::{distance, model, root};

/// The files of a checkpoint that the frontend reads.
fn memory(checkpoint: &Path) -> MemoryCheckpoint {
    let file =
        |name: &str| (name.to_owned(), std::fs::read(checkpoint.join(name)).expect("it has this file"));
    MemoryCheckpoint(BTreeMap::from(["config.json", "model.safetensors"].map(file)))
}

/// The largest distance between the reference's logits of the converted model and transformers' logits of the
/// original model.
fn farthest(name: &str) -> f64 {
    let folder = model(&format!("{name}_mlx"));
    let memory = memory(&folder);
    let opened =
        read_model(&memory, &Options::default()).unwrap_or_else(|faults| panic!("{name}: {faults:#?}"));
    let read = |tensor: &str, offset: u64, out: &mut [u8]| opened.tensors.read(&memory, tensor, offset, out);
    let numbers = forge_weights::CheckpointWeights::new(&opened.graph, read);
    let bytes = std::fs::read(folder.join("golden.safetensors")).expect("it has what is expected");
    let golden = SafeTensors::deserialize(&bytes).expect("it is whole");
    let words = |name: &str| {
        let tensor = golden.tensor(name).ok()?;
        let words = tensor.data().as_chunks::<4>().0;
        Some(words.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<u32>>())
    };
    let prompts =
        (0..).map_while(|index| Some((words(&format!("ids_{index}"))?, words(&format!("last_{index}"))?)));
    let distances = prompts.map(|(ids, last)| {
        let rows = forge_reference::evaluate(&opened.graph, &numbers, &ids, forge_reference::Positions::Last);
        let rows = rows.expect("it can be evaluated");
        let found: Vec<f64> = rows.last().expect("a row").iter().map(|x| f64::from(*x)).collect();
        let expected: Vec<f64> = last.into_iter().map(|bits| f64::from(f32::from_bits(bits))).collect();
        distance(&found, &expected)
    });
    let distances: Vec<f64> = distances.collect();
    assert!(distances.len() > 1, "{name} has something to compare with");
    distances.into_iter().fold(0.0, f64::max)
}

/// Models that converters do not support: this family only with tied embeddings.
const UNKNOWN: [&str; 1] = ["gpt2_untied"];

/// All models of tests/models and tests/odd, including those that converters store unchanged.
#[test]
fn converted_mlx_models_match_transformers() {
    let folders = ["tests/models", "tests/odd"].map(|folder| std::fs::read_dir(root().join(folder)));
    let entries = folders.into_iter().flat_map(|entries| entries.expect("it is there").flatten());
    let models = entries.filter(|entry| entry.path().join("golden.safetensors").is_file());
    let names = models.filter_map(|entry| entry.file_name().into_string().ok());
    let names: BTreeSet<String> = names.filter(|name| !UNKNOWN.contains(&name.as_str())).collect();
    assert!(names.len() > 100, "{} models", names.len());
    let far = names.iter().filter_map(|name| {
        let distance = farthest(name);
        println!("{name}: {distance:.1e}");
        (distance > tolerance(Format::F32).bound).then(|| format!("{name}: {distance:.1e}"))
    });
    let far: Vec<String> = far.collect();
    assert!(far.is_empty(), "{far:?}");
}

/// The diagnostics of a converted model after replacing some text of one file with another text of the same
/// length.
fn error_with(name: &str, file: &str, [from, to]: [&str; 2]) -> String {
    let mut memory = memory(&model(name));
    let bytes = memory.0.get_mut(file).expect("it has this file");
    let at = bytes.windows(from.len()).position(|part| part == from.as_bytes());
    let at = at.unwrap_or_else(|| panic!("{file} of {name} has no {from}"));
    bytes.splice(at..at + from.len(), to.bytes());
    let faults = read_model(&memory, &Options::default()).err().unwrap_or_default();
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn rejects_inconsistent_conversions() {
    const TENSORS: &str = "model.safetensors";
    const CONFIG: &str = "config.json";
    let mode = |to| [r#""mode": "mxfp4""#, to];
    let cases: [(&str, &str, [&str; 2], &[&str]); 7] = [
        // Convolution weights in the original layout indicate norm weights minus 1, but the metadata
        // indicates a converter.
        (
            "qwen3_5_old_mlx",
            TENSORS,
            [r#""shape":[90,4,1]"#, r#""shape":[90,1,4]"#],
            &["conv1d.weight", "[90, 4, 1]"],
        ),
        ("qwen3_next_mlx", TENSORS, ["switch_mlp.up_proj", "switch_mlp.up_prog"], &["switch_mlp.up_proj"]),
        ("deepseek_v3_mlx", TENSORS, ["unembed_out", "unembed_own"], &["unembed_out"]),
        ("gpt_oss_mxfp4_mlx", TENSORS, ["gate_proj.bias", "gate_proj.bies"], &["gate_proj.bias"]),
        ("gpt_oss_mxfp4_mlx", CONFIG, mode(r#""mode": "nvfp8""#), &["mode", "mxfp8 or nvfp4"]),
        ("gpt_oss_mxfp4_mlx", CONFIG, mode(r#""made": "mxfp4""#), &["quantization_config", "differs"]),
        ("gpt_oss_mlxmix", CONFIG, [r#""bits": 8"#, r#""bits": 4"#], &["quantization_config", "differs"]),
    ];
    for (name, file, change, named) in cases {
        let message = error_with(name, file, change);
        assert!(named.iter().all(|part| message.contains(part)), "{name} should name {named:?}:\n{message}");
    }
}

/// The convolution weights of one layer in the original layout, in a model whose other layers are converted.
#[test]
fn norm_offset_is_ambiguous_if_convolution_axes_disagree() {
    let mut memory = memory(&model("qwen3_next_listed_mlx"));
    let bytes = memory.0.get_mut("model.safetensors").expect("it is there");
    let text = String::from_utf8_lossy(&bytes[8..]);
    let last = text.rfind("conv1d.weight").expect("it has a convolution") + 8;
    let at = last + text[last - 8..].find(",1]").expect("taps are transposed");
    let taps = bytes[at - 1];
    bytes[at - 1..at + 2].copy_from_slice(&[b'1', b',', taps]);
    let faults = read_model(&memory, &Options::default()).expect_err("axes disagree");
    assert!(faults.iter().any(|fault| fault.to_string().contains("conv1d.weight")), "{faults:?}");
}
