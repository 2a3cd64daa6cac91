//! Diagnostics for broken checkpoints, one fault each.

use crate::common::{Raw, edit, edit_weights, file, model, raw_file, read, shard, tensors};
use crate::configuration_faults::CONFIGURATIONS;
use crate::fault_edits::{CONFIG, Change, K, find, set, text};
use serde_json::json;
use std::fmt::Write;

const WEIGHTS: &str = "model.safetensors";

const INDEX: &str = "model.safetensors.index.json";

const TENSORS: &[(&str, Change)] = &[
    ("missing tensor", |files| edit_weights(files, |all| all.retain(|tensor| tensor.name != K))),
    ("misspelled tensor", |files| {
        edit_weights(files, |all| find(all, K).name = "model.layers.1.self_attn.kproj.weight".to_owned());
    }),
    ("unused tensor", |files| {
        edit_weights(files, |all| {
            let bytes = vec![0; 128];
            let name = "model.layers.0.self_attn.q_norm.weight".to_owned();
            all.push(Raw { name, dtype: "BF16".to_owned(), shape: vec![64], bytes });
        });
    }),
    ("wrong shape", |files| edit_weights(files, |all| find(all, K).shape = vec![64, 32])),
    ("shapes of another config", set!("intermediate_size": 60, "num_key_value_heads": 4)),
    ("unsupported dtype", |files| edit_weights(files, |all| find(all, K).dtype = "I16".to_owned())),
    ("tied head that differs", set!("tie_word_embeddings": true)),
    ("many missing layers", set!("num_hidden_layers": 900)),
    ("unknown key and unused tensor", |files| {
        edit(files, CONFIG, |config| config["attention_chunk_size"] = json!(1));
        edit_weights(files, |all| {
            let bytes = vec![0; 2];
            all.push(Raw { name: "mystery".to_owned(), dtype: "F16".to_owned(), shape: vec![], bytes });
        });
    }),
];

const FILES: &[(&str, Change)] = &[
    ("no weights", |files| {
        files.0.remove(WEIGHTS);
    }),
    ("weights in an unsupported file format", |files| {
        files.0.remove(WEIGHTS);
        files.0.insert("pytorch_model.bin".to_owned(), vec![]);
    }),
    ("misspelled weight file", |files| {
        let weights = files.0.remove(WEIGHTS).unwrap();
        files.0.insert("models.safetensors".to_owned(), weights);
    }),
    ("truncated data", |files| files.0.get_mut(WEIGHTS).unwrap().truncate(200_000)),
    ("truncated header", |files| files.0.get_mut(WEIGHTS).unwrap().truncate(100)),
    ("empty", |files| files.0.get_mut(WEIGHTS).unwrap().clear()),
    ("not a safetensors file", |files| text(files, WEIGHTS, "<!DOCTYPE html><html>Not found</html>")),
    ("bytes after the end", |files| files.0.get_mut(WEIGHTS).unwrap().extend([0; 7])),
    ("invalid header", |files| {
        files.0.insert(WEIGHTS.to_owned(), raw_file("{\"a\": {\"dtype\": \"F32\"}}", &[]));
    }),
    ("size and shape differ", |files| edit_weights(files, |all| find(all, K).shape = vec![64, 33])),
    ("shape beyond the limit", |files| edit_weights(files, |all| find(all, K).shape = vec![usize::MAX, 9])),
    ("duplicate tensor", |files| {
        edit_weights(files, |all| {
            let copy = find(all, K).clone();
            all.push(copy);
        });
    }),
    ("overlapping tensors", |files| {
        let entry =
            |begin| format!(r#"{{"dtype": "U8", "shape": [4], "data_offsets": [{begin}, {}]}}"#, begin + 4);
        let header = format!(r#"{{"a": {}, "b": {}}}"#, entry(0), entry(2));
        files.0.insert(WEIGHTS.to_owned(), raw_file(&header, &[0; 6]));
    }),
    ("gap between tensors", |files| {
        let header = r#"{"a": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}"#;
        files.0.insert(WEIGHTS.to_owned(), raw_file(header, &[0; 6]));
    }),
    ("missing shard", |files| {
        shard(files, 2);
        files.0.remove("model-00002-of-00002.safetensors");
    }),
    ("shard without its tensor", |files| {
        shard(files, 2);
        let held = files.0.get_mut("model-00001-of-00002.safetensors").unwrap();
        let mut all = tensors(held);
        all.remove(0);
        *held = file(&all);
    }),
    ("shard with a tensor of another shard", |files| {
        shard(files, 2);
        let other = tensors(&files.0["model-00002-of-00002.safetensors"])[0].clone();
        let held = files.0.get_mut("model-00001-of-00002.safetensors").unwrap();
        let mut all = tensors(held);
        all.push(other);
        *held = file(&all);
    }),
    ("invalid index", |files| {
        shard(files, 2);
        text(files, INDEX, "{\"weight_map\": 1}");
    }),
    ("index with a path outside the directory", |files| {
        shard(files, 2);
        text(files, INDEX, "{\"weight_map\": {\"a\": \"../secret.safetensors\"}}");
    }),
];

/// The diagnostics of a model as text: message, location with the marked source, notes and help.
fn faults(change: Change) -> String {
    let mut files = model("llama");
    change(&mut files);
    let mut text = String::new();
    for fault in read(&files).expect_err("the change breaks the model") {
        writeln!(text, "[{}] {}", fault.code, fault.message).unwrap();
        if let Some(place) = fault.place {
            let marked = std::str::from_utf8(&files.0[&place.file][place.span]).unwrap();
            writeln!(text, "  {}: {marked:?} {}", place.file, place.label).unwrap();
        }
        fault.notes.iter().for_each(|note| writeln!(text, "  = {note}").unwrap());
    }
    text
}

#[test]
fn reports_every_fault() {
    for (name, cases) in [("configurations", CONFIGURATIONS), ("tensors", TENSORS), ("files", FILES)] {
        let messages: Vec<String> =
            cases.iter().map(|(title, change)| format!("── {title}\n{}", faults(*change))).collect();
        insta::assert_snapshot!(name, messages.join("\n"));
    }
}
