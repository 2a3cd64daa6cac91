//! The unmodified Metal host code of the runtime, in the emulator of `forge-emulation`, with each model's
//! kernels.metal.

use crate::logits::{bound, for_each_program, golden, rope_changes_during_decode};
use forge_runtime::sampling::device_sampling::DeviceSampling;
use forge_runtime::sampling::sampler::SamplingParams;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::emulated::{ENGINE_FAULTS, HOST_FAULTS, HostFault};
use tests::{Built, distance, emulated, ids, model, numbers, parallel_map, run};

/// A generation request.
#[derive(Clone)]
pub(crate) struct Request {
    ids: Vec<u32>,
    count: usize,
    context: usize,
    /// Tokens per pass, and passes in flight before the host reads the first.
    run_ahead: (u32, usize),
    /// Sampling parameters; `None` for greedy.
    draw: Option<DeviceSampling>,
    /// Further draws from the logits of the last token.
    draws: Vec<DeviceSampling>,
    /// Whether the host draws them.
    on_host: bool,
    /// Whether to use the long-context device, and process the prompt in parts.
    long_context: bool,
    /// Whether the host drops the device while a pass is in flight.
    dropped_in_flight: bool,
}

impl Request {
    /// Greedy decoding.
    pub(crate) fn greedy(ids: Vec<u32>, count: usize, context: usize, run_ahead: (u32, usize)) -> Request {
        let (draw, draws, on_host, long_context, dropped_in_flight) = (None, Vec::new(), false, false, false);
        Request { ids, count, context, run_ahead, draw, draws, on_host, long_context, dropped_in_flight }
    }
}

/// The run-ahead settings: the host reads each token before the next, or lags behind by the maximum.
const RUN_AHEAD: [(u32, usize); 2] = [(1, 1), (8, 2)];

/// The host code and the directory of a job.
#[derive(Clone, Default)]
pub(crate) struct HostSetup<'a> {
    /// The fault injected into the host code, if any.
    pub(crate) host: Option<&'a str>,
    /// The fault injected into the engine's commands, if any.
    pub(crate) engine_fault: Option<&'a str>,
    /// Whether kernels were compiled when the program was built.
    pub(crate) metallib: bool,
    /// Directory of the pipeline archive.
    pub(crate) cache: Option<&'a Path>,
    /// Maximum buffer length of the device in bytes, if it is to be small.
    pub(crate) max_buffer_length: Option<usize>,
    /// Bytes of memory for experts, where they are streamed from disk.
    pub(crate) experts: Option<u64>,
}

/// Seeds for draws from the same logits, with two settings.
const SEEDS: u64 = 200;

/// A model whose weights are larger than its other buffers, so that a buffer limit can split the weights
/// only. If `FORGE_MODELS` excludes it, the tests that need it are skipped.
const LONG: &str = "llama";

/// The results of a model's requests.
pub(crate) fn run_driver(
    built: &Built,
    setup: &HostSetup<'_>,
    requests: &[Request],
    executed: bool,
) -> Value {
    let request_json = |request: &Request| {
        let Request { ids, count, context, run_ahead, draw, draws, on_host, long_context, dropped_in_flight } =
            request;
        let draws: Vec<_> = draws.iter().map(DeviceSampling::words).collect();
        json!({
            "ids": ids, "count": count, "context": context, "run_ahead": run_ahead, "executed": executed,
            "draw": draw.map(|draw| draw.words()), "draws": draws, "on_host": on_host,
            "long_context": long_context, "dropped_in_flight": dropped_in_flight,
        })
    };
    let requests: Vec<Value> = requests.iter().map(request_json).collect();
    let HostSetup { host, engine_fault, metallib, cache, max_buffer_length, experts } = setup;
    let job = json!({
        "model": built.name(), "host": host.unwrap_or("whole"), "engine_fault": engine_fault, "metallib": metallib,
        "cache": cache, "max_buffer_length": max_buffer_length, "experts": experts, "requests": requests,
    });
    let output = run(Command::new(emulated().1).arg(job.to_string()));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

/// For each model, the errors that `check` returns, in parallel on all cores.
pub(crate) fn every_model(check: impl Fn(&Built) -> Vec<String> + Sync) {
    for_each_program(emulated().0.into_iter(), check);
}

/// Whether the RoPE frequencies depend on the context length of a slot.
fn has_dynamic_rope(name: &str) -> bool {
    let text = std::fs::read_to_string(model(name).join("config.json")).expect("a model has config.json");
    ["\"dynamic\"", "\"longrope\""].iter().any(|kind| text.contains(kind))
}

#[test]
fn metal_output_matches_the_reference() {
    every_model(|built| {
        let prompts = golden(&built.model);
        // With such RoPE frequencies, the reference's logits are for a slot that its prompt fills.
        let alone = usize::from(has_dynamic_rope(&built.model));
        let each = alone + RUN_AHEAD.len();
        let requests: Vec<Request> = prompts
            .iter()
            .flat_map(|(ids, greedy, _)| {
                let (ids, context) = (ids.clone(), ids.len() + greedy.len());
                let whole =
                    RUN_AHEAD.map(|run_ahead| Request::greedy(ids.clone(), greedy.len(), context, run_ahead));
                let prompt_only = Request::greedy(ids.clone(), 0, ids.len(), RUN_AHEAD[0]);
                std::iter::once(prompt_only).filter(move |_| alone == 1).chain(whole)
            })
            .collect();
        let found = run_driver(built, &HostSetup::default(), &requests, true);
        let found = found["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert_eq!(found.len(), requests.len());
        let is_wrong = |text: &&Value| !text["error"].is_null() || text["violations"] != json!([]);
        let errors =
            found.iter().filter(is_wrong).map(|text| format!("{}, {}", text["error"], text["violations"]));
        let mut errors: Vec<String> = errors.collect();
        if !errors.is_empty() {
            return errors;
        }
        for ((prompt, greedy, logits), found) in prompts.iter().zip(found.chunks(each)) {
            let distance = distance(&numbers(&found[0]["logits"]), logits);
            println!("{} {} ids: {distance:.1e}", built.name(), prompt.len());
            if distance > bound(built) {
                errors.push(format!("logits after {} ids are {distance:.1e} deviations off", prompt.len()));
            }
            for (found, run_ahead) in found[alone..].iter().zip(RUN_AHEAD) {
                let generated = ids(&found["ids"]);
                if generated != *greedy
                    && !rope_changes_during_decode(&built.model, prompt.len() + greedy.len())
                {
                    errors.push(format!("{generated:?} is not {greedy:?}, ahead by {run_ahead:?}"));
                }
            }
        }
        errors
    });
}

/// Latents are expanded to keys and values tile by tile (MLA). The first part of a prompt is cached when the
/// second comes.
#[test]
fn metal_expanded_mla_matches_the_reference() {
    every_model(|built| {
        let text = std::fs::read_to_string(built.directory.join("src/kernels.metal"));
        let unfolds = text.expect("a crate has kernels").contains("kernel void attend_expanded");
        let prompts = if unfolds { golden(&built.model) } else { Vec::new() };
        let requests: Vec<Request> = prompts
            .iter()
            .map(|(ids, ..)| Request {
                long_context: true,
                ..Request::greedy(ids.clone(), 0, ids.len(), RUN_AHEAD[0])
            })
            .collect();
        let found = if requests.is_empty() {
            Value::Null
        } else {
            run_driver(built, &HostSetup::default(), &requests, true)
        };
        let found = found["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert_eq!(found.len(), requests.len());
        let check = |((prompt, _, logits), found): (&(Vec<u32>, _, Vec<f64>), &Value)| {
            let whole = found["error"].is_null() && found["violations"] == json!([]);
            let distance = distance(&numbers(&found["logits"]), logits);
            println!("{} {} ids: {distance:.1e}", built.name(), prompt.len());
            (!whole || distance > bound(built))
                .then(|| format!("{} ids: {distance:.1e}, {found}", prompt.len()))
        };
        prompts.iter().zip(found).filter_map(check).collect()
    });
}

/// The same settings and seed give the same tokens on host and device, with any run-ahead. From the last
/// logits, tokens are drawn with many more seeds.
#[test]
fn metal_sampling_matches_cpu_sampling() {
    every_model(|built| {
        let plain = SamplingParams::default();
        let settings = [
            SamplingParams { temperature: 2.5, ..plain.clone() },
            SamplingParams { temperature: 1.5, top_k: 20, top_p: 0.9, min_p: 0.02, ..plain },
        ];
        let count = 18;
        let requests = |sampling: &SamplingParams| {
            let (ids, draw) = (vec![1, 2, 3], Some(sampling.device_sampling(5, 0)));
            let request = |run_ahead| Request {
                draw,
                ..Request::greedy(ids.clone(), count, ids.len() + count, run_ahead)
            };
            let draws = (0..SEEDS / 2).map(|seed| sampling.device_sampling(seed << 33 | seed, 0)).collect();
            [
                Request { on_host: true, ..request(RUN_AHEAD[0]) },
                request(RUN_AHEAD[0]),
                Request { draws, ..request(RUN_AHEAD[1]) },
            ]
        };
        let requests: Vec<Request> = settings.iter().flat_map(requests).collect();
        let found = run_driver(built, &HostSetup::default(), &requests, true);
        let found = found["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert_eq!(found.len(), requests.len());
        let is_wrong = |text: &&Value| !text["error"].is_null() || text["violations"] != json!([]);
        let mut errors: Vec<String> = found.iter().filter(is_wrong).map(Value::to_string).collect();
        for of_settings in found.chunks(3) {
            let [host, one, many] = [0, 1, 2].map(|text| ids(&of_settings[text]["ids"]));
            if host.len() != count || host != one || host != many {
                errors.push(format!("the host draws {host:?}, the device {one:?} and {many:?}"));
            }
            let drawn = of_settings[2]["drawn"].as_array().map(Vec::as_slice).unwrap_or_default();
            let differ = drawn.iter().enumerate().filter(|(_, ids)| ids[0] != ids[1]);
            errors.extend(differ.map(|(seed, ids)| format!("by seed {seed} host and device draw {ids}")));
            let different: BTreeSet<u64> = drawn.iter().filter_map(|ids| ids[0].as_u64()).collect();
            if drawn.len() as u64 != SEEDS / 2 || different.len() < 5 {
                errors.push(format!("{drawn:?} is not what {SEEDS} seeds give of two settings"));
            }
        }
        errors
    });
}

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
