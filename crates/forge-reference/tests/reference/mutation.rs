//! Every config key and every tensor has an effect: a change changes the logits, is rejected, or is known to
//! have no effect. This detects keys that are read but ignored, and tensors that are bound but unused.
//!
//! For every model of tests/models and tests/odd, each key that its architecture reads is set to several
//! other values, even if it is absent from the file. In at least one model of the architecture, one value
//! must change the logits, or all must be rejected. Keys without effect are listed in the frontend's
//! `config/ignored_keys.rs`, or disabled by another key; the test prints them and checks that they have none.
//! Then half of the elements of every tensor are negated.

use crate::common::{Case, cases, deviation, distance, odd_cases};
use forge_frontend::{LoadedCheckpoint, MemoryCheckpoint, Options, read_model};
use forge_ir::{Format, Graph, tolerance};
use forge_reference::{Positions, evaluate};
use forge_weights::CheckpointWeights;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

fn read(files: &MemoryCheckpoint) -> Option<LoadedCheckpoint> {
    read_model(files, &Options { name: "changed".to_owned(), ..Options::default() }).ok()
}

/// The logits of a sequence.
fn logits(
    opened: &LoadedCheckpoint,
    files: &MemoryCheckpoint,
    ids: &[u32],
    want: Positions,
) -> Vec<Vec<f32>> {
    let read = |tensor: &str, offset, out: &mut [u8]| opened.tensors.read(files, tensor, offset, out);
    evaluate(&opened.graph, &CheckpointWeights::new(&opened.graph, read), ids, want).unwrap()
}

/// Whether modified files give other logits than the original, beyond rounding: at any position of a short
/// sequence, because tokens may use different experts, or at the last position of a long one.
fn changes_logits(case: &Case, opened: &LoadedCheckpoint, files: &MemoryCheckpoint) -> bool {
    case.texts().skip(1).any(|text| {
        let (want, tensor) = match text {
            1 if !case.golden.is_null() => (Positions::All, "all_1".to_owned()),
            _ => (Positions::Last, format!("last_{text}")),
        };
        let others = logits(opened, files, &case.ids(text), want);
        others.iter().zip(case.logits(&tensor)).any(|(other, own)| {
            let bound = tolerance(Format::F32).bound * deviation(&own);
            // NaN is far from everything.
            let is_near = || distance(other, &own).partial_cmp(&bound).is_some_and(std::cmp::Ordering::is_le);
            other.len() != own.len() || !is_near()
        })
    })
}

/// The effect of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    /// The model is unchanged.
    None,
    Rejected,
    /// The context length, the BOS or EOS tokens, or the notes for the user differ.
    OutsideLogits,
    /// The logits differ.
    Computed,
}

fn effect(case: &Case, files: &MemoryCheckpoint) -> Effect {
    let Some(opened) = read(files) else { return Effect::Rejected };
    let (own, other) = (&case.opened.graph, &opened.graph);
    let same_name = |graph: &Graph| forge_ir::Model { name: String::new(), ..graph.model.clone() };
    let differs_outside_logits = same_name(own) != same_name(other) || case.opened.notes != opened.notes;
    let is_computed =
        (&own.bodies, &own.layers, &own.weights) != (&other.bodies, &other.layers, &other.weights);
    match () {
        // The number of logits differs.
        () if own.model.vocabulary != other.model.vocabulary => Effect::Computed,
        () if is_computed && changes_logits(case, &opened, files) => Effect::Computed,
        () if differs_outside_logits => Effect::OutsideLogits,
        () => Effect::None,
    }
}

/// Alternative values of a key.
fn alternatives(value: &Value) -> Vec<Value> {
    let mut others = match value {
        Value::Number(number) if number.is_u64() => {
            let number = number.as_u64().unwrap_or_default();
            vec![json!(number * 2), json!(number + 1), json!(number / 2), json!(1), json!(3)]
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            vec![json!(number * 2.0), json!(number / 2.0), json!(0.5), json!(3.0)]
        }
        Value::Bool(flag) => vec![json!(!flag)],
        Value::Array(values) => {
            let mut reversed = values.clone();
            reversed.reverse();
            let larger =
                values.iter().map(|value| value.as_f64().map_or(value.clone(), |it| json!(it * 1.5)));
            vec![json!(reversed), larger.collect(), json!(["sliding_attention", "full_attention"])]
        }
        // The type is unknown: an absent key may have any type.
        _ => vec![
            json!(true),
            json!(false),
            json!(1),
            json!(2),
            json!(3),
            json!(0.5),
            json!("gelu"),
            json!("relu"),
            json!("else"),
            json!({"rope_type": "linear", "factor": 2.0}),
            json!({"rope_type": "longrope", "short_factor": vec![2.0; 8], "long_factor": vec![3.0; 8]}),
            json!({"full_attention": {"rope_type": "linear", "factor": 2.0}}),
            json!(["sliding_attention", "full_attention"]),
            json!(["full_attention", "full_attention", "sliding_attention"]),
            json!([0, 0, 0]),
        ],
    };
    others.retain(|other| other != value);
    others
}

/// A configuration with another value under a path.
fn set(config: &Value, path: &str, value: Value) -> Value {
    let mut config = config.clone();
    let mut place = &mut config;
    for key in path.split('.') {
        place = &mut place[key];
    }
    *place = value;
    config
}

fn get<'a>(config: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(config, |value, key| &value[key])
}

/// The effects of changes to the key at a path.
fn changes(case: &Case, path: &str) -> Vec<Effect> {
    let config: Value = serde_json::from_slice(&case.files.0["config.json"]).unwrap();
    let effects = alternatives(get(&config, path)).into_iter().map(|value| {
        let mut files = case.files.clone();
        files.0.insert("config.json".to_owned(), set(&config, path, value).to_string().into_bytes());
        // It overrides a few keys, which would hide that they are read.
        files.0.remove("generation_config.json");
        effect(case, &files)
    });
    let effects = effects.collect::<Vec<_>>();
    // For an absent key, one of the values is the default.
    let defaults = usize::from(get(&config, path).is_null());
    let unchanged = effects.iter().filter(|effect| **effect == Effect::None).count();
    let all_rejected = effects.iter().max() == Some(&Effect::Rejected);
    if all_rejected && unchanged > defaults { vec![Effect::None] } else { effects }
}

#[test]
fn every_config_key_has_an_effect() {
    // By architecture and path: the largest effect of a change in any of its models.
    let mut best: BTreeMap<(String, String), Effect> = BTreeMap::new();
    let mut inert: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for case in cases().into_iter().chain(odd_cases()) {
        let architecture = &case.opened.graph.model.architecture;
        for path in &case.opened.keys.read {
            // All architectures read the `rope_scaling` object with the same code, and none has a model for
            // each of its kinds.
            let key = match path.rsplit_once('.') {
                Some((object, key)) if object.contains("rope_") => {
                    ("scaled positions".to_owned(), key.to_owned())
                }
                _ => (architecture.clone(), path.clone()),
            };
            let best = best.entry(key).or_insert(Effect::None);
            if *best != Effect::Computed {
                *best = changes(&case, path).into_iter().max().unwrap_or(Effect::None).max(*best);
            }
        }
        for path in &case.opened.keys.inert {
            if inert.entry(path.clone()).or_default().insert(architecture.clone()) {
                let effects = changes(&case, path);
                let is_inert = effects.iter().all(|effect| *effect == Effect::None);
                assert!(is_inert, "{} {path}: {effects:?}", case.name);
            }
        }
    }
    let known: BTreeSet<&String> = best.keys().map(|(architecture, _)| architecture).collect();
    for architecture in &known {
        let of =
            |effect| best.iter().filter(|((of, _), best)| of == *architecture && **best == effect).count();
        let (computed, outside_logits, rejected) =
            (of(Effect::Computed), of(Effect::OutsideLogits), of(Effect::Rejected));
        println!(
            "{architecture}: {computed} keys change logits, {outside_logits} other results, {rejected} are rejected"
        );
    }
    for (path, of) in &inert {
        let of: Vec<&str> = of.iter().map(String::as_str).collect();
        let of = if of.len() + 1 == known.len() { "every architecture".to_owned() } else { of.join(", ") };
        println!("without effect: {path} of {of}");
    }
    let silent: Vec<_> = best.iter().filter(|(_, effect)| **effect == Effect::None).collect();
    assert!(silent.is_empty(), "{silent:#?}");
}

/// Keys that transformers reads, of models of tests/models; the last four are keys that forge does not read.
const READ_BY_THE_REFERENCE: [(&str, &str); 20] = [
    ("llama", "rms_norm_eps"),
    ("llama", "hidden_act"),
    ("llama", "attention_bias"),
    ("llama", "tie_word_embeddings"),
    ("llama3_rope", "max_position_embeddings"),
    ("gemma2", "query_pre_attn_scalar"),
    ("gemma2", "attn_logit_softcapping"),
    ("gemma2", "final_logit_softcapping"),
    ("gemma2", "sliding_window"),
    ("granite", "residual_multiplier"),
    ("granite", "logits_scaling"),
    ("cohere2", "logit_scale"),
    ("qwen3_moe", "norm_topk_prob"),
    ("qwen3_moe", "num_experts_per_tok"),
    ("deepseek_v3", "routed_scaling_factor"),
    ("gpt_oss", "swiglu_limit"),
    ("llama", "attention_chunk_size"),
    ("qwen3", "is_causal"),
    ("mistral", "layer_types"),
    ("olmo2", "sliding_window"),
];

#[test]
fn keys_read_by_transformers_change_the_logits_or_are_rejected() {
    let cases = cases();
    for (name, key) in READ_BY_THE_REFERENCE {
        let case = cases.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("no model {name}"));
        let most = changes(case, key).into_iter().max();
        assert!(
            matches!(most, Some(Effect::Computed | Effect::Rejected | Effect::OutsideLogits)),
            "{name} {key}: {most:?}"
        );
    }
}

#[test]
fn every_tensor_has_an_effect() {
    for case in cases() {
        let mut files = case.files.clone();
        for tensor in case.opened.tensors.iter() {
            let width = if tensor.dtype == "F32" { 4 } else { 2 };
            let range = tensor.offset as usize..(tensor.offset + tensor.bytes) as usize;
            let whole = files.0[&tensor.file][range.clone()].to_vec();
            let is_ignored = case.opened.ignored.contains(&tensor.name);
            // Tensors that only affect routing may leave the selection unchanged, so the other half is
            // negated too.
            let is_changed = [0, 1].into_iter().any(|first| {
                let bytes = &mut files.0.get_mut(&tensor.file).unwrap()[range.clone()];
                // The sign is the highest bit of the last byte. Only every second element is negated, since
                // norms cancel a factor of all.
                let numbers = bytes.chunks_mut(width).skip(first).step_by(2);
                numbers.for_each(|number| number[width - 1] ^= 0x80);
                let is_changed = changes_logits(&case, &read(&files).unwrap(), &files);
                files.0.get_mut(&tensor.file).unwrap()[range.clone()].copy_from_slice(&whole);
                is_changed
            });
            assert_eq!(is_changed, !is_ignored, "{} {}", case.name, tensor.name);
        }
        println!("{}: {} tensors", case.name, case.opened.tensors.iter().count());
    }
}
