//! GGUF files: rejected files, and robustness against malformed input.

mod file;
mod mutations;
mod tokenizers;

use crate::common::read;
use crate::gguf::file::File;
use forge_frontend::{LoadedCheckpoint, MemoryCheckpoint, Options, Tensors, read_model};
use forge_ir::Diagnostic;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write;

const FILE: &str = "model.gguf";

/// Files written by llama.cpp's converter, and the model of tests/models with the same tokenizer.
const FILES: [(&str, &str); 25] = [
    ("tiny-f32", "llama"),
    ("tiny-f16", "llama"),
    ("wide-q4_k", "llama"),
    ("llama-q4_0", "llama"),
    ("llama-nvfp4", "llama"),
    ("llama3-q8_0", "llama"),
    ("mistral-q5_0", "mistral"),
    ("gemma2-q5_1", "gemma2"),
    ("gemma3-q4_1", "gemma3_text"),
    ("phi3_longrope-q4_0", "gpt2"),
    ("qwen2-bf16", "qwen2"),
    ("glm4-q4_0", "glm4"),
    ("gpt2-q8_0", "gpt2"),
    ("qwen2_moe-q5_0", "qwen2_moe"),
    ("qwen3_moe-q4_0", "qwen3_moe"),
    ("mixtral-q4_0", "mixtral"),
    ("gpt_oss-mxfp4", "gpt_oss"),
    ("qwen3_next-q4_1", "qwen3_next"),
    ("qwen35-f16", "qwen3_5_text"),
    ("qwen35_moe-f16", "qwen3_5_moe_text"),
    ("glm4_moe-q5_1", "glm4_moe"),
    ("deepseek_v2-f16", "deepseek_v2"),
    ("deepseek_v3-f16", "deepseek_v3"),
    ("gemma4-q4_1", "gemma4_text"),
    ("gemma4_moe-q5_0", "gemma4_moe"),
];

fn bytes(path: &str) -> Vec<u8> {
    let path = format!("{}/../../tests/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn memory(file: Vec<u8>) -> MemoryCheckpoint {
    MemoryCheckpoint(BTreeMap::from([(FILE.to_owned(), file)]))
}

fn opened(name: &str) -> LoadedCheckpoint {
    read(&memory(bytes(&format!("gguf/{name}.gguf")))).unwrap_or_else(|faults| panic!("{name}: {faults:#?}"))
}

/// The diagnostics of a modified file.
fn diagnostics(file: &File, options: &Options) -> String {
    messages(read_model(&memory(file.write()), options))
}

fn messages(read: Result<LoadedCheckpoint, Vec<Diagnostic>>) -> String {
    match read {
        Ok(_) => "nothing\n".to_owned(),
        Err(faults) => faults.iter().map(|fault| format!("{fault}\n")).collect(),
    }
}

type Change = fn(&mut File);

/// Changes of `llama-q4_0`.
const CHANGES: &[(&str, Change)] = &[
    ("nothing", |_| {}),
    ("unknown architecture", |file| file.set_text("general.architecture", "mystery")),
    ("an adapter", |file| file.set_text("general.type", "adapter")),
    ("a part", |file| file.set("split.count", 2, &[3, 0])),
    ("a key that llama.cpp reads", |file| {
        file.set("llama.attention.temperature_scale", 6, &0.1_f32.to_le_bytes());
    }),
    ("a key of the tokenizer that llama.cpp reads", |file| {
        file.set("tokenizer.ggml.precompiled_charsmap", 9, &[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    }),
    ("keys that llama.cpp does not read", |file| {
        file.set("llama.attention.fog", 6, &1.0_f32.to_le_bytes());
        file.set("tokenizer.ggml.fog", 7, &[1]);
    }),
    ("missing key", |file| file.remove("llama.attention.head_count")),
    ("wrong kind", |file| file.set_text("llama.block_count", "two")),
    ("too many layers", |file| file.set("llama.block_count", 10, &(1_u64 << 60).to_le_bytes())),
    ("experts", |file| file.set("llama.expert_count", 4, &8_u32.to_le_bytes())),
    ("layers of two sizes", |file| {
        let list = [4_u32.to_le_bytes().to_vec(), 2_u64.to_le_bytes().to_vec()].concat();
        let sizes = [64_u32, 32].map(u32::to_le_bytes).concat();
        file.set("llama.feed_forward_length", 9, &[list, sizes].concat());
    }),
    ("unknown scaling", |file| file.set_text("llama.rope.scaling.type", "longrope")),
    ("heads that rotate in part", |file| file.set("llama.rope.dimension_count", 4, &8_u32.to_le_bytes())),
    ("another vocabulary", |file| file.set("llama.vocab_size", 4, &99_u32.to_le_bytes())),
    ("unknown tokenizer", |file| file.set_text("tokenizer.ggml.model", "rwkv")),
    ("unknown cutting", |file| file.set_text("tokenizer.ggml.pre", "mystery")),
    ("no cutting", |file| file.remove("tokenizer.ggml.pre")),
    ("no merges", |file| file.remove("tokenizer.ggml.merges")),
    ("no token to begin with", |file| file.remove("tokenizer.ggml.bos_token_id")),
    ("a token beyond the last", |file| {
        file.set("tokenizer.ggml.eos_token_id", 4, &4096_u32.to_le_bytes());
    }),
    ("lower case", |file| file.set("tokenizer.ggml.normalizer.lowercase", 7, &[1])),
    ("a missing tensor", |file| file.tensors.retain(|tensor| tensor.0 != "blk.1.attn_k.weight")),
    ("a tensor that nothing uses", |file| {
        let more = ("blk.0.attn_fog.weight".to_owned(), vec![8], 0, vec![0; 32]);
        file.tensors.push(more);
    }),
    ("a type that is not read", |file| {
        let tensor = file.tensor("blk.0.ffn_down.weight");
        (tensor.2, tensor.3) = (9, vec![0; 64 * 2 * 36]);
    }),
    ("an unknown tensor type", |file| file.tensor("blk.0.ffn_down.weight").2 = 99),
    ("a vector in blocks", |file| {
        let tensor = file.tensor("blk.0.ffn_norm.weight");
        (tensor.2, tensor.3) = (8, vec![0; 2 * 34]);
    }),
    ("another shape", |file| {
        let tensor = file.tensor("blk.0.ffn_norm.weight");
        (tensor.1, tensor.3) = (vec![32], vec![0; 128]);
    }),
];

#[test]
fn rejects_unsupported_gguf_metadata() {
    let file = File::parse(&bytes("gguf/llama-q4_0.gguf"));
    let mut all = String::new();
    for (name, change) in CHANGES {
        let mut changed = file.clone();
        change(&mut changed);
        writeln!(all, "== {name}\n{}", diagnostics(&changed, &Options::default())).unwrap();
    }
    insta::assert_snapshot!(all);
}

#[test]
fn accepts_unknown_gguf_keys_on_request() {
    let mut file = File::parse(&bytes("gguf/llama-q4_0.gguf"));
    let key = "llama.attention.temperature_scale";
    file.set(key, 6, &0.1_f32.to_le_bytes());
    let allow_unknown = vec![key.to_owned()];
    assert_eq!(diagnostics(&file, &Options { allow_unknown, ..Options::default() }), "nothing\n");
    let allow_unknown = vec![key.to_owned(), "llama.attention.frog".to_owned()];
    let diagnostics = diagnostics(&file, &Options { allow_unknown, ..Options::default() });
    assert!(diagnostics.contains("--ignore-config-key llama.attention.frog: "), "{diagnostics}");
}

#[test]
fn keys_unread_by_llama_cpp_are_listed_and_have_no_effect() {
    let mut file = File::parse(&bytes("gguf/llama-q4_0.gguf"));
    let keys = [
        "imatrix.chunks_count",
        "llama.attention.sliding_window",
        "llama.expert_feed_forward_length",
        "llama.pooling_type.fog",
    ];
    keys.iter().for_each(|key| file.set(key, 4, &7_u32.to_le_bytes()));
    file.set("llama.pooling_type", 4, &3_u32.to_le_bytes());
    file.set("llama.rope.scaling.attn_factor", 6, &1.0_f32.to_le_bytes());
    let changed = read(&memory(file.write())).unwrap();
    assert_eq!(changed.graph.to_string(), opened("llama-q4_0").graph.to_string());
    for key in keys.into_iter().chain(["general.file_type", "llama.rope.scaling.attn_factor"]) {
        assert!(
            changed.keys.ignored.iter().any(|ignored| ignored == key),
            "{key}: {:?}",
            changed.keys.ignored
        );
    }
}

#[test]
fn ignores_mmproj_files() {
    let mut files = memory(bytes("gguf/tiny-f32.gguf"));
    files.0.insert("mmproj-model-f16.gguf".to_owned(), vec![0; 9]);
    read(&files).unwrap_or_else(|faults| panic!("{faults:#?}"));
}

#[test]
fn rejects_invalid_gguf_headers() {
    let whole = bytes("gguf/tiny-f32.gguf");
    let set = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let twice = |change: fn(&mut File)| {
        let mut file = File::parse(&whole);
        change(&mut file);
        file.write()
    };
    let cases = [
        ("empty", Vec::new()),
        ("another magic", set(0, b"GGML")),
        ("version 1", set(4, &1_u32.to_le_bytes())),
        ("version 4", set(4, &4_u32.to_le_bytes())),
        ("big end first", set(4, &3_u32.to_be_bytes())),
        ("more tensors than bytes", set(8, &u64::MAX.to_le_bytes())),
        ("more values than bytes", set(16, &(u64::MAX / 2).to_le_bytes())),
        ("a name beyond the end", set(24, &(1_u64 << 40).to_le_bytes())),
        ("cut in the metadata", whole[..1000].to_vec()),
        ("cut in a tensor", whole[..whole.len() - 64].to_vec()),
        ("more than its tensors", [&whole[..], &[0; 64]].concat()),
        ("a value twice", twice(|file| file.values.push(file.values[0].clone()))),
        ("a tensor twice", twice(|file| file.tensors.push(file.tensors[0].clone()))),
        ("a text that is none", twice(|file| file.set("general.name", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]))),
        ("lists of lists", twice(|file| file.set("general.tags", 9, &[9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]))),
        ("an alignment of 3", twice(|file| file.set("general.alignment", 4, &3_u32.to_le_bytes()))),
        ("a kind of value", twice(|file| file.set("general.fog", 77, &[]))),
    ];
    let mut all = String::new();
    for (name, file) in cases {
        writeln!(all, "== {name}\n{}", messages(read(&memory(file)))).unwrap();
    }
    insta::assert_snapshot!(all);
}

#[test]
fn split_gguf_files_give_the_same_model() {
    let whole = File::parse(&bytes("gguf/tiny-f32.gguf"));
    let name = |part: usize| format!("tiny-{part:05}-of-00003.gguf");
    let mut files = MemoryCheckpoint::default();
    for part in 0..3 {
        let mut file = File { values: Vec::new(), tensors: Vec::new() };
        if part == 0 {
            file.values = whole.values.clone();
        }
        file.tensors = whole.tensors.iter().skip(part).step_by(3).cloned().collect();
        file.set("split.no", 2, &(part as u16).to_le_bytes());
        file.set("split.count", 2, &3_u16.to_le_bytes());
        file.set("split.tensors.count", 5, &(whole.tensors.len() as i32).to_le_bytes());
        files.0.insert(name(part + 1), file.write());
    }
    let split = read(&files).unwrap_or_else(|faults| panic!("{faults:#?}"));
    let one = opened("tiny-f32");
    assert_eq!(split.graph.to_string(), one.graph.to_string());
    let file = memory(bytes("gguf/tiny-f32.gguf"));
    for tensor in one.tensors.iter() {
        let read = |opened: &LoadedCheckpoint, files: &MemoryCheckpoint| {
            let mut bytes = vec![0; tensor.bytes as usize];
            opened.tensors.read(files, &tensor.name, 0, &mut bytes).unwrap();
            bytes
        };
        assert!(read(&split, &files) == read(&one, &file), "{}", tensor.name);
    }
    files.0.remove(&name(2));
    let diagnostics = messages(read(&files));
    assert!(diagnostics.contains("found 2 of 3 parts of tiny.gguf"), "{diagnostics}");
    assert!(diagnostics.contains("missing: tiny-00002-of-00003.gguf"), "{diagnostics}");
    files.0.insert("other.gguf".to_owned(), bytes("gguf/tiny-f32.gguf"));
    let diagnostics = messages(read(&files));
    assert!(diagnostics.contains("are not parts of one model"), "{diagnostics}");
    files.0.retain(|file, _| *file == name(3));
    let diagnostics = messages(read(&files));
    assert!(diagnostics.contains("missing: tiny-00001-of-00003.gguf, tiny-00002"), "{diagnostics}");
}

#[test]
fn notes_say_what_the_order_of_value_heads_costs() {
    let note = "rows of queries and keys are stored 2 times";
    for (name, has_note) in [("qwen35-f16", true), ("qwen35_moe-f16", true), ("qwen3_next-q4_1", false)] {
        let opened = opened(name);
        assert_eq!(opened.notes.iter().any(|found| found.ends_with(note)), has_note, "{:?}", opened.notes);
        let repeats = opened.graph.to_string().contains("in_proj_qkv.weight rows 0..32 repeated");
        assert_eq!(repeats, has_note, "{}", opened.graph);
    }
    let note = "the file names no expert groups";
    for (name, groups, has_note) in [
        ("deepseek_v3-f16", false, true),
        ("deepseek_v3-f16", true, false),
        ("deepseek_v2-f16", false, false),
    ] {
        let mut file = File::parse(&bytes(&format!("gguf/{name}.gguf")));
        if !groups {
            file.remove("deepseek2.expert_group_count");
            file.remove("deepseek2.expert_group_used_count");
        }
        let notes = read(&memory(file.write())).unwrap().notes;
        assert_eq!(notes.iter().any(|found| found.starts_with(note)), has_note, "{notes:?}");
    }
}

#[test]
fn notes_say_which_types_are_repacked_or_dequantized() {
    let mut file = File::parse(&bytes("gguf/wide-q4_k.gguf"));
    for (name, kind, bytes) in [
        ("blk.0.ffn_up.weight", 18, 98),
        ("blk.0.ffn_down.weight", 21, 110),
        ("blk.0.ffn_gate.weight", 39, 8 * 17),
        ("blk.0.attn_q.weight", 20, 8 * 18),
        ("blk.0.attn_output.weight", 40, 4 * 36),
    ] {
        let tensor = file.tensor(name);
        (tensor.2, tensor.3) = (kind, vec![0; 256 * bytes]);
    }
    let opened = read(&memory(file.write())).unwrap();
    insta::assert_snapshot!(opened.notes.join("\n"), @r"
    1 matrix in IQ3_S: repacked as q6_k with the same values, 28.2 KB → 53.8 KB
    1 matrix in IQ3_XXS: --quant keep dequantizes and rounds to f16, 25.1 KB → 131 KB; --quant q8_0 takes 69.6 KB
    ");
    let graph = opened.graph.to_string();
    let stored = |format: &str| graph.lines().any(|line| line.contains(format));
    assert!(stored("f16 from IQ3_XXS model.layers.0.mlp.up_proj.weight"), "{graph}");
    assert!(stored("q6_k from IQ3_S model.layers.0.mlp.down_proj.weight"), "{graph}");
    assert!(stored("mxfp4 model.layers.0.mlp.gate_proj.weight"), "{graph}");
}

/// A change of a file's bytes, mostly of its header.
fn mutation() -> impl Strategy<Value = (u32, u64, Vec<u8>)> {
    let number = prop_oneof![
        Just(0_u64),
        Just(1),
        Just(u64::from(u32::MAX)),
        Just(1 << 40),
        Just(u64::MAX),
        any::<u64>(),
        0_u64..64,
    ];
    let bytes = prop_oneof![
        number.clone().prop_map(|number| number.to_le_bytes().to_vec()),
        number.prop_map(|number| number.to_le_bytes()[..4].to_vec()),
        prop::collection::vec(any::<u8>(), 1..5),
    ];
    (0_u32..5, any::<u64>(), bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn mutated_gguf_files_give_a_graph_or_a_diagnostic(mutations in prop::collection::vec(mutation(), 1..4)) {
        let mut file = bytes("gguf/tiny-f32.gguf");
        for (how, at, bytes) in mutations {
            // Most bytes of the file are weights, whose values do not matter.
            let among = if how == 0 { file.len() } else { file.len().min(40_000) };
            let at = (at % among.max(1) as u64) as usize;
            match how {
                1 => file.truncate(at),
                2 => { file.splice(at..at, bytes); }
                3 => { file.drain(at..file.len().min(at + bytes.len())); }
                _ => {
                    let end = file.len().min(at + bytes.len());
                    file[at..end].copy_from_slice(&bytes[..end - at]);
                }
            }
            if file.is_empty() { break; }
        }
        if let Err(faults) = read(&memory(file)) {
            prop_assert!(!faults.is_empty());
        }
    }
}

#[test]
fn lists_tensors_of_unsupported_models() {
    let mut file = File::parse(&bytes("gguf/llama-q4_0.gguf"));
    file.set_text("general.architecture", "mystery");
    let tensor = file.tensor("blk.0.ffn_down.weight");
    (tensor.2, tensor.3) = (20, vec![0; 64 * 2 * 18]);
    let tensors = Tensors::open(&memory(file.write())).unwrap();
    let found = tensors.get("blk.0.ffn_down.weight").unwrap();
    assert_eq!((found.dtype.as_str(), &found.shape[..], found.bytes), ("IQ4_NL", &[64, 64][..], 64 * 2 * 18));
}
