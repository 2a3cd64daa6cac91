//! The Metal host code in the emulator: its dispatches, objects and pipelines, and injected faults.

use crate::metal::{HostSetup, RUN_AHEAD, Request, every_model, run_driver};
use forge_runtime::sampling::device_sampling::DeviceSampling;
use forge_runtime::sampling::sampler::SamplingParams;
use serde_json::{Value, json};
use std::path::PathBuf;
use tests::emulated::{ENGINE_FAULTS, HOST_FAULTS, HostFault};
use tests::{Built, emulated, parallel_map};

/// A model whose weights are larger than its other buffers, so that a buffer limit can split the weights
/// only. If `FORGE_MODELS` excludes it, the tests that need it are skipped.
const LONG: &str = "llama";

#[test]
fn dispatches_and_barriers_per_token_match_info() {
    every_model(|built| {
        let info = built.json(&["info", "--json", "--ctx-size", "32"]);
        let per_token =
            ["dispatches", "barriers"].map(|what| info["decode"][what].as_u64().expect("info reports it"));
        let check = |(run_ahead, draw): ((u32, usize), Option<DeviceSampling>)| {
            let request = Request { draw, ..Request::greedy(vec![1, 2, 3], 22, 32, run_ahead) };
            let found = run_driver(built, &HostSetup::default(), &[request], false);
            let notes = found["results"][0]["passes"].as_array().cloned().unwrap_or_default();
            let sum = |what: &str| notes.iter().skip(1).filter_map(|note| note[what].as_u64()).sum::<u64>();
            let ids = 21;
            let passes = u64::div_ceil(ids, run_ahead.0.into());
            let expected = [passes, ids * per_token[0], ids * per_token[1] + ids - passes];
            let counted = ["command_buffers", "dispatches", "barriers"].map(sum);
            (counted != expected)
                .then(|| format!("ahead by {run_ahead:?}: {counted:?} is not {expected:?}, {found}"))
        };
        // Sampling replaces the argmax.
        let draws = [None, Some(SamplingParams::default().device_sampling(1, 0))];
        RUN_AHEAD
            .into_iter()
            .flat_map(|run_ahead| draws.map(|draw| (run_ahead, draw)))
            .filter_map(check)
            .collect()
    });
}

/// Kernels are not executed here: only the host's objects are counted.
#[test]
fn decoding_1000_tokens_leaks_no_objects() {
    let (models, _) = emulated();
    let Some(built) = models.first() else { return };
    for run_ahead in RUN_AHEAD {
        let request = Request::greedy(vec![1, 2, 3], 1001, 200, run_ahead);
        let found = run_driver(built, &HostSetup::default(), &[request], false);
        let text = &found["results"][0];
        assert_eq!((&text["violations"], &text["error"]), (&json!([]), &Value::Null));
        let notes = text["passes"].as_array().expect("passes are listed");
        assert_eq!(notes.len(), 1001);
        let objects: Vec<u64> = notes.iter().filter_map(|note| note["objects"].as_u64()).collect();
        // One command buffer for each pass that is in flight after the host has read one.
        let most = objects[0] + run_ahead.1 as u64 - 1;
        assert!(objects.iter().all(|count| (objects[0]..=most).contains(count)), "{objects:?}");
        assert_eq!(objects[1000], objects[0], "nothing is on its way");
        assert_eq!(found["live_objects"], json!({}), "objects are left when the device is gone");
    }
}

#[test]
fn detects_every_host_fault() {
    let (models, _) = emulated();
    let Some(built) = models.iter().find(|built| built.model == LONG) else { return };
    let request = Request { dropped_in_flight: true, ..Request::greedy((1..8).collect(), 7, 20, (2, 2)) };
    let requests = std::slice::from_ref(&request);
    let short = HostSetup { max_buffer_length: Some(shortest_buffer(built)), ..HostSetup::default() };
    let whole = run_driver(built, &short, requests, true);
    assert_eq!(whole["results"][0]["violations"], json!([]), "without an injected fault");
    let missed = parallel_map(HOST_FAULTS.iter(), |HostFault { name, found, .. }| {
        let setup = HostSetup { host: Some(name), ..short.clone() };
        let message = symptoms(&run_driver(built, &setup, requests, true), &whole);
        println!("{name}: {}", message.chars().take(300).collect::<String>());
        (!message.contains(found)).then(|| format!("{name} should be found by {found:?}: {message}"))
    });
    let missed: Vec<String> = missed.into_iter().flatten().collect();
    assert!(missed.is_empty(), "\n{}", missed.join("\n"));
    for (engine_fault, found) in ENGINE_FAULTS {
        let setup = HostSetup { engine_fault: Some(engine_fault), ..short.clone() };
        let message = symptoms(&run_driver(built, &setup, requests, true), &whole);
        assert!(message.contains(found), "{engine_fault} should be found by {found:?}: {message}");
    }
}

/// Kernels come from the library compiled at build time, or from the Metal source. Pipelines come from an
/// archive if there is a complete one.
#[test]
fn pipeline_sources_give_the_same_logits_and_are_reported() {
    let (models, _) = emulated();
    let Some(built) = models.first() else { return };
    let text = [Request::greedy(vec![1, 2, 3], 2, 8, (1, 1))];
    let folder = tempfile::tempdir().expect("a temporary directory");
    let cache = folder.path().join("cache");
    let kept = || -> Vec<PathBuf> {
        std::fs::read_dir(&cache).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let check = |what: &str, setup: HostSetup<'_>, expected: [&str; 2]| {
        let found = run_driver(built, &setup, &text, true);
        let found = &found["results"][0];
        assert_eq!((&found["error"], &found["violations"]), (&Value::Null, &json!([])), "{what}");
        let kernels = found["kernels"].as_str().unwrap_or_default();
        assert!(expected.iter().all(|part| kernels.contains(part)), "{what}: {kernels}");
        found["ids"].clone()
    };
    let plain = HostSetup { cache: Some(&cache), ..HostSetup::default() };
    let compiled = HostSetup { metallib: true, ..plain.clone() };
    let ids = check("the first start", plain.clone(), ["compiled from source", "pipelines saved to"]);
    assert_eq!(kept().len(), 1);
    assert_eq!(check("the second start", plain.clone(), ["compiled from source", "pipelines from"]), ids);
    std::fs::write(&kept()[0], "not an archive").expect("the folder is ours");
    assert_eq!(check("a broken archive", plain.clone(), ["compiled from source", "pipelines saved to"]), ids);
    let whole = std::fs::read_to_string(&kept()[0]).expect("it was just written");
    let but_one: Vec<&str> = whole.lines().rev().skip(1).collect::<Vec<_>>().into_iter().rev().collect();
    std::fs::write(&kept()[0], but_one.join("\n")).expect("the folder is ours");
    assert_eq!(
        check("an archive that lacks one", plain.clone(), ["compiled from source", "pipelines saved to"]),
        ids
    );
    assert_eq!(std::fs::read_to_string(&kept()[0]).expect("it was just written"), whole);
    assert_eq!(
        check("compiled before", compiled.clone(), ["xcrun metal at build time", "pipelines saved to"]),
        ids
    );
    let source = HostSetup { variables: &[("FORGE_METAL_SOURCE", "1")], ..compiled.clone() };
    assert_eq!(check("source asked for", source, ["FORGE_METAL_SOURCE is set", "pipelines from"]), ids);
    assert_eq!(
        check("compiled before, again", compiled, ["xcrun metal at build time", "pipelines from"]),
        ids
    );
    assert_eq!(kept().len(), 2, "each has its own, and nothing is left half written");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("the folder is ours");
    let nowhere = HostSetup { cache: Some(&file), ..HostSetup::default() };
    assert_eq!(check("nowhere to keep it", nowhere, ["compiled from source", "pipelines not saved: "]), ids);
}

/// A device with buffers smaller than the weight file.
#[test]
fn weight_files_larger_than_a_buffer_use_several_buffers() {
    let (models, _) = emulated();
    let Some(built) = models.iter().find(|built| built.model == LONG) else { return };
    let longest = longest_weight(built);
    let text = [Request::greedy(vec![1, 2, 3], 2, 8, (1, 1))];
    let whole = run_driver(built, &HostSetup::default(), &text, true);
    let fits = shortest_buffer(built);
    let weights = whole_file(built).len();
    assert!(fits < weights, "one buffer of {fits} bytes shows all {weights} bytes");
    let short = |bytes| {
        run_driver(built, &HostSetup { max_buffer_length: Some(bytes), ..HostSetup::default() }, &text, true)
    };
    let several = short(fits);
    assert_eq!(several["results"][0]["violations"], json!([]));
    assert_eq!(several["results"][0]["ids"], whole["results"][0]["ids"]);
    assert_eq!(several["results"][0]["logits"], whole["results"][0]["logits"]);
    let error =
        short(longest.next_multiple_of(PAGE))["results"][0]["error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains(&format!("weights: a binding of {longest} bytes exceeds")), "{error}");
}

/// The page size, of which no-copy buffers must be a multiple.
const PAGE: usize = 16384;

/// A model's weights.
fn whole_file(built: &Built) -> Vec<u8> {
    std::fs::read(built.directory.join("weights.safetensors")).expect("a crate has weights")
}

/// Bytes of a model's longest weight.
fn longest_weight(built: &Built) -> usize {
    let file = whole_file(built);
    let tensors = safetensors::SafeTensors::deserialize(&file).expect("they are whole");
    tensors.tensors().iter().map(|(_, view)| view.data().len()).max().unwrap_or(0)
}

/// The smallest buffer limit that holds the writable buffers and all weights in several views.
fn shortest_buffer(built: &Built) -> usize {
    let info = built.json(&["info", "--json", "--ctx-size", "32"]);
    let own = ["kv_bytes", "arena_bytes"].map(|what| info["memory"][what].as_u64().expect("info reports it"));
    let weights = longest_weight(built).next_multiple_of(PAGE) + PAGE;
    own.into_iter().fold(weights, |most, bytes| most.max(bytes as usize)).next_multiple_of(PAGE)
}

/// Symptoms of a fault in the host code.
pub(crate) fn symptoms(found: &Value, whole: &Value) -> String {
    let (text, right) = (&found["results"][0], &whole["results"][0]);
    let mut messages: Vec<String> = Vec::new();
    messages.extend(text["error"].as_str().map(str::to_owned));
    messages.extend(
        text["violations"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned),
    );
    if text["error"].is_null() && [&text["logits"], &text["ids"]] != [&right["logits"], &right["ids"]] {
        messages.push("other numbers".to_owned());
    }
    let prefetches = |found: &Value| found["experts"][1].as_u64() > Some(0);
    if prefetches(right) && !prefetches(text) {
        messages.push("nothing is prefetched".to_owned());
    }
    let objects = |found: &Value| found["passes"].as_array()?.last()?["objects"].as_u64();
    if objects(text) > objects(right) {
        messages.push("objects grow".to_owned());
    }
    messages.join("; ")
}
