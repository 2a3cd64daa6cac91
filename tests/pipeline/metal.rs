//! The unmodified Metal host code of the runtime with each model's kernels.metal, in the emulator of
//! `forge-emulation`. On a Mac the same tests run on its GPU.

use crate::logits::{bound, for_each_program, golden, rope_changes_during_decode};
use forge_runtime::sampling::device_sampling::DeviceSampling;
use forge_runtime::sampling::sampler::SamplingParams;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use tests::{Built, distance, emulated, ids, model, numbers, run};

/// A generation request.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) ids: Vec<u32>,
    pub(crate) count: usize,
    pub(crate) context: usize,
    /// Tokens per pass, and passes in flight before the host reads the first.
    pub(crate) run_ahead: (u32, usize),
    /// Sampling parameters; `None` for greedy.
    pub(crate) draw: Option<DeviceSampling>,
    /// Further draws from the logits of the last token.
    pub(crate) draws: Vec<DeviceSampling>,
    /// Whether the host draws them.
    pub(crate) on_host: bool,
    /// Whether to use the long-context device, and process the prompt in parts.
    pub(crate) long_context: bool,
    /// Whether the host drops the device while a pass is in flight.
    pub(crate) dropped_in_flight: bool,
}

impl Request {
    /// Greedy decoding.
    pub(crate) fn greedy(ids: Vec<u32>, count: usize, context: usize, run_ahead: (u32, usize)) -> Request {
        let (draw, draws, on_host, long_context, dropped_in_flight) = (None, Vec::new(), false, false, false);
        Request { ids, count, context, run_ahead, draw, draws, on_host, long_context, dropped_in_flight }
    }
}

/// The run-ahead settings: the host reads each token before the next, or lags behind by the maximum.
pub(crate) const RUN_AHEAD: [(u32, usize); 2] = [(1, 1), (8, 2)];

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
    /// Name of the emulated machine, if it is not an ordinary one.
    pub(crate) machine: Option<&'a str>,
    /// Environment variables of the program.
    pub(crate) variables: &'a [(&'a str, &'a str)],
    /// Maximum buffer length of the device in bytes, if it is to be small.
    pub(crate) max_buffer_length: Option<usize>,
    /// Bytes of memory for experts, where they are streamed from disk.
    pub(crate) experts: Option<u64>,
}

/// Seeds for draws from the same logits, with two settings.
const SEEDS: u64 = 200;

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
    let HostSetup { host, engine_fault, metallib, cache, machine, max_buffer_length, experts, .. } = setup;
    let job = json!({
        "model": built.name(), "host": host.unwrap_or("whole"), "engine_fault": engine_fault, "metallib": metallib,
        "cache": cache, "machine": machine, "max_buffer_length": max_buffer_length, "experts": experts, "requests": requests,
    });
    let mut command = Command::new(emulated().1);
    command.arg(job.to_string()).envs(setup.variables.iter().copied());
    let output = run(&mut command);
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
        errors.extend(
            found
                .iter()
                .filter(|text| text["dispatches"].as_u64() < Some(1))
                .map(|text| format!("nothing was dispatched: {text}")),
        );
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
