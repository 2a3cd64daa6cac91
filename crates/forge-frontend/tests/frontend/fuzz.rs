//! Fuzz tests of the frontend: any checkpoint gives a graph or diagnostics, without a panic and in limited
//! time.

use crate::common::{model, models, raw_file, read};
use forge_frontend::{DummyWeights, MemoryCheckpoint, Options, Tensors};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const WEIGHTS: &str = "model.safetensors";

/// Values that configurations do not expect.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_u64..200).prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        prop_oneof![Just(u64::MAX), Just(1 << 32), Just(1 << 63)].prop_map(Value::from),
        any::<f64>().prop_map(|x| json!(x)),
        prop_oneof![Just("llama3"), Just("linear"), Just("default"), Just("yarn"), Just("")]
            .prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        let key = prop_oneof![key(), "\\PC{0,4}".prop_map(String::from)];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

/// Keys that the frontend reads.
fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "architectures",
        "attention_bias",
        "attn_logit_softcapping",
        "bos_token_id",
        "eos_token_id",
        "factor",
        "head_dim",
        "hidden_act",
        "hidden_activation",
        "hidden_size",
        "high_freq_factor",
        "intermediate_size",
        "layer_types",
        "low_freq_factor",
        "max_position_embeddings",
        "max_window_layers",
        "model_type",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "pretraining_tp",
        "query_pre_attn_scalar",
        "quantization_config",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "rope_type",
        "sliding_window",
        "tie_word_embeddings",
        "type",
        "use_sliding_window",
        "vocab_size",
    ])
    .prop_map(str::to_owned)
}

/// A model with some keys of a JSON file replaced.
fn edited(name: &str, file: &str, changes: BTreeMap<String, Value>) -> MemoryCheckpoint {
    let mut files = model(name);
    crate::common::edit(&mut files, file, |config| config.as_object_mut().unwrap().extend(changes));
    files
}

proptest! {
    #[test]
    fn any_configuration(
        name in prop::sample::select(models()),
        changes in prop::collection::btree_map(key(), value(), 1..5),
    ) {
        let files = edited(&name, "config.json", changes);
        if let Err(faults) = read(&files) {
            prop_assert!(!faults.is_empty());
            for place in faults.iter().filter_map(|fault| fault.place.as_ref()) {
                prop_assert!(files.0[&place.file].get(place.span.clone()).is_some());
            }
        }
        // Also without tensors, at which reading would stop.
        let config = std::str::from_utf8(&files.0["config.json"]).unwrap();
        if let Ok(shapes) = DummyWeights::new(config, &Options::default()) {
            forge_frontend::read_model(&shapes, &Options::default()).unwrap();
        }
    }

    #[test]
    fn any_generation_and_tokenizer_settings(
        generation in prop::collection::btree_map(key(), value(), 1..5),
        tokenizer in prop::collection::btree_map("bos_token|eos_token|added_tokens_decoder", value(), 1..4),
    ) {
        let mut files = edited("llama3_rope", "generation_config.json", generation);
        crate::common::edit(&mut files, "tokenizer_config.json", |config| {
            config.as_object_mut().unwrap().extend(tokenizer);
        });
        let _ = read(&files);
    }

    #[test]
    fn any_damage_to_a_text(at in 0_usize..450, with in prop::collection::vec(any::<u8>(), 0..6), cut in 0_usize..6) {
        for file in ["config.json", "generation_config.json", "tokenizer_config.json"] {
            let mut files = model("llama3_rope");
            let bytes = files.0.get_mut(file).unwrap();
            let start = at.min(bytes.len());
            let end = (start + cut).min(bytes.len());
            bytes.splice(start..end, with.clone());
            let _ = read(&files);
        }
    }

    #[test]
    fn any_damage_to_a_header(at in 0_usize..2200, with in prop::collection::vec(any::<u8>(), 0..6), cut in 0_usize..6) {
        let mut files = model("llama3_rope");
        let bytes = files.0.get_mut(WEIGHTS).unwrap();
        bytes.splice(at..at + cut, with);
        let _ = read(&files);
    }

    #[test]
    fn any_truncation(length in 0_usize..170_000) {
        let mut files = model("llama3_rope");
        let bytes = files.0.get_mut(WEIGHTS).unwrap();
        let whole = bytes.len();
        bytes.truncate(length);
        prop_assert!(length >= whole || read(&files).is_err());
    }

    #[test]
    fn any_weights(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let files = MemoryCheckpoint(BTreeMap::from([(WEIGHTS.to_owned(), bytes)]));
        prop_assert!(Tensors::open(&files).is_err() || files.0[WEIGHTS].starts_with(&[2, 0, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn any_entries(
        entries in prop::collection::vec(
            ("[ab]", "F32|F16|I8|F4|X", prop::collection::vec(any::<usize>(), 0..3), any::<[u64; 2]>(), 0_u64..9, 0_u64..9),
            0..3,
        ),
        data in prop::collection::vec(any::<u8>(), 0..16),
    ) {
        let mut tensors = Vec::new();
        for (name, dtype, shape, wild, begin, size) in entries {
            for (shape, offsets) in [(json!(shape), wild), (json!([size]), [begin, begin + size])] {
                let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
                tensors.push(format!("\"{name}\":{entry}"));
            }
        }
        let header = format!("{{{}}}", tensors.join(","));
        let file = raw_file(&header, &data);
        let ours = Tensors::open(&MemoryCheckpoint(BTreeMap::from([(WEIGHTS.to_owned(), file.clone())])));
        // The frontend rejects what the safetensors library rejects, except tensors of unknown type.
        if ours.is_ok() && !header.contains("\"X\"") {
            prop_assert!(safetensors::SafeTensors::deserialize(&file).is_ok(), "{}", header);
        }
    }

    #[test]
    fn any_index(map in prop::collection::btree_map("\\PC{0,4}", value(), 0..4)) {
        let mut files = model("llama3_rope");
        files.0.remove(WEIGHTS);
        let index = json!({"weight_map": map}).to_string();
        files.0.insert("model.safetensors.index.json".to_owned(), index.into_bytes());
        prop_assert!(read(&files).is_err());
    }
}
