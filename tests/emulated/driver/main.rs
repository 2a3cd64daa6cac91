//! Runs compiled models through the Metal host code: in the emulator, or on the GPU of a Mac. Takes a [`Job`] as JSON and prints its
//! result as JSON.
//!
//! The tests generate `models.rs` and `hosts.rs`: the models are generated crates as libraries, and the hosts
//! are the runtime's Metal backend, unmodified and with injected faults.

// Hosts name the runtime's modules as the runtime itself does.
#[allow(unused_imports)]
use forge_runtime::*;

mod hosts;
mod models;
mod resample;
mod faulty_device;
mod long_context;
#[cfg(not(target_os = "linux"))]
mod real_device;

#[cfg(target_os = "linux")]
use forge_emulation::{
    Machine, counts, emulate, execute, labels, live_objects, machine, metallib, set_machine, take_violations,
};
#[cfg(not(target_os = "linux"))]
use real_device::{
    Machine, counts, emulate, execute, labels, live_objects, machine, metallib, set_machine, take_violations,
};
use forge_runtime::device::{Device, RunAhead};
use forge_runtime::sampling::device_sampling::{DeviceSampling, TokenWeights};
use forge_runtime::engine::{Engine, Output};
use forge_runtime::gpu::metal_backend::{self, OpenDevice};
use forge_runtime::offload::ExpertPlacement;
use forge_runtime::error::Error;
use forge_runtime::sampling::argmax::argmax;
use forge_runtime::measure::capture::CapturingDevice;
use forge_runtime::load::LoadOptions;
use forge_runtime::program::CompiledModel;
use forge_runtime::measure::profile::ProfiledPass;
use forge_runtime::measure::tune::Tuner;
use forge_runtime::weights::WeightFile;
use resample::resample;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Loads a model on a device, with streamed experts if requested.
pub type Make = OpenDevice;

/// A job for the driver.
#[derive(Deserialize)]
pub struct Job {
    /// The crate.
    model: String,
    /// The host code: `whole`, or the name of a fault.
    host: String,
    /// The fault injected into passes, if any.
    engine_fault: Option<String>,
    /// Whether kernels were compiled when the program was built.
    metallib: bool,
    /// Directory of the pipeline archive.
    cache: Option<PathBuf>,
    /// Name of the emulated machine, if it is not an ordinary one.
    machine: Option<String>,
    /// Maximum buffer length of the device in bytes, if it is to be small.
    max_buffer_length: Option<usize>,
    /// Bytes of memory for experts, where they are streamed from disk.
    experts: Option<u64>,
    requests: Vec<Request>,
    /// Whether the steps of decode and prefill are timed.
    #[serde(default)]
    profile: bool,
    /// The tuning to perform, if any.
    tune: Option<Tune>,
}

/// Settings of tuning.
#[derive(Deserialize)]
struct Tune {
    /// Candidate kernels to modify, with the replacement in the source of each.
    replacements: Vec<[String; 3]>,
    /// Number of times that tuning is allowed to continue before it is cancelled; never if `None`.
    until: Option<usize>,
}

/// A generation request. It gets a device of its own.
#[derive(Deserialize)]
struct Request {
    ids: Vec<u32>,
    /// Number of tokens to generate.
    count: usize,
    context: u32,
    /// Run-ahead of the device: tokens per pass, and passes in flight.
    run_ahead: (u32, usize),
    /// Sampling parameters as words, with the number of the first token's draw; `None` for greedy.
    draw: Option<[u32; DeviceSampling::WORDS]>,
    /// Further draws from the logits of the last token.
    draws: Vec<[u32; DeviceSampling::WORDS]>,
    /// Whether the host samples from logits that it reads after each pass.
    on_host: bool,
    /// Whether to use the long-context device, and process the prompt in parts.
    long_context: bool,
    /// Whether the host drops the device while a pass is in flight.
    dropped_in_flight: bool,
    /// Whether kernels are executed. Otherwise the tokens are unknown, and those beyond the context start a
    /// new one.
    executed: bool,
}

/// The result of a generation request.
#[derive(Default)]
struct Generated {
    ids: Vec<u32>,
    /// Committed commands for the prompt and for each token, and the live objects after it.
    passes: Vec<Value>,
    /// The source of the device's pipelines.
    kernels: Option<String>,
    /// Pipelines that were compiled at the last report of progress, and all.
    compiled: [usize; 2],
    /// Dispatches that the device has completed.
    dispatches: Option<u64>,
    /// Residency requests when the host renews it once, if it does.
    renewals: Option<usize>,
    /// The tokens that host and device draw for each of the further draws.
    drawn: Vec<[u32; 2]>,
    /// Requested and prefetched experts, if they are streamed.
    experts: Option<[u64; 2]>,
}

fn main() -> ExitCode {
    emulate();
    let called = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let name = called.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if let Some(program) = models::program(name) {
        return run_program(program);
    }
    let job = std::env::args().nth(1).expect("a job is given");
    let job: Job = serde_json::from_str(&job).expect("a job is JSON");
    println!("{}", models::run(&job));
    ExitCode::SUCCESS
}

/// Runs the command line of a model, with the emulated device. The variable `EMULATED_MACHINE` names the
/// machine. API violations fail the program.
fn run_program(program: &CompiledModel) -> ExitCode {
    let name = std::env::var("EMULATED_MACHINE").unwrap_or_else(|_| "mac".to_owned());
    set_machine(Machine::named(&name).expect("the machine is known"));
    metal_backend::provide(hosts::backend());
    let result = cli::main(program, cli::COMMANDS);
    let violations = take_violations();
    if violations.is_empty() {
        return result;
    }
    eprintln!("{}", violations.join("\n"));
    ExitCode::FAILURE
}

/// Runs a job with a model.
pub fn run_job(program: &CompiledModel, job: &Job) -> Value {
    let named = job.machine.as_deref().map(|name| Machine::named(name).expect("the machine is known"));
    let named = named.unwrap_or(Machine::MAC);
    let max_buffer_length = job.max_buffer_length.unwrap_or(named.max_buffer_length);
    set_machine(Machine { max_buffer_length, ..named });
    let library = |version| job.metallib.then(|| &*metallib(program.metal, version).leak());
    let program = &CompiledModel { metallib: library(300), tensor_metallib: library(400), ..*program };
    let results: Vec<Value> = job.requests.iter().map(|request| generate(program, job, request)).collect();
    let failed = |failure: Error| json!(failure.to_string());
    let profiles = job.profile.then(|| profile(program, job).unwrap_or_else(failed));
    let tuned = job.tune.as_ref().map(|settings| tune(program, job, settings).unwrap_or_else(failed));
    json!({ "results": results, "live_objects": live_objects(), "labels": labels(),
        "background_pipelines": counts().background_pipelines, "profiles": profiles, "tuned": tuned })
}

/// A model on a device with violations recorded, with this context length.
fn load_engine(
    program: &CompiledModel,
    job: &Job,
    positions: u32,
) -> Result<(Engine<CapturingDevice<Box<dyn Device>>>, WeightFile), Error> {
    execute(true);
    let setup = LoadOptions { context: Some(positions), ..LoadOptions::default() };
    let loaded = setup.load(program, None)?;
    let device = hosts::find(&job.host)(program, &loaded.weights, loaded.model.layout(), None, None, &mut |_, _| ())?;
    Ok((Engine::new(loaded.model, CapturingDevice::new(device), positions, 1), loaded.weights))
}

/// Profiles the steps of decode and prefill.
fn profile(program: &CompiledModel, job: &Job) -> Result<Value, Error> {
    let (mut engine, weights) = load_engine(program, job, 20)?;
    let subjects = [ProfiledPass::decode(&mut engine, 9)?, ProfiledPass::prefill(&mut engine, 20)?];
    let mut profiles = Vec::new();
    for subject in subjects {
        let profile = subject.measure(engine.device().device(), &weights, 1, &mut |_| true)?;
        profiles.extend(profile.as_ref().map(forge_runtime::measure::profile::json));
    }
    Ok(json!({ "profiles": profiles, "violations": take_violations() }))
}

/// Tunes the kernel layouts.
fn tune(program: &CompiledModel, job: &Job, settings: &Tune) -> Result<Value, Error> {
    let tunable = program.tunable.ok_or_else(|| Error::usage("it was not compiled for choosing"))?;
    let mut text = tunable.metal.to_owned();
    for [kernel, from, to] in &settings.replacements {
        let start = text.find(&format!("kernel void {kernel}(")).expect("there is such a kernel");
        let place = start + text[start..].find(from).expect("its text has that");
        text.replace_range(place..place + from.len(), to);
    }
    let program = CompiledModel { metal: String::leak(text), ..tunable.program(program) };
    let (mut engine, _) = load_engine(&program, job, Tuner::context_needed(program.info))?;
    let tuning = Tuner::new(&mut engine, 1)?;
    let mut all = Vec::new();
    let mut left = settings.until.unwrap_or(usize::MAX);
    let mut goes_on = || {
        let goes_on = left > 0;
        left = left.saturating_sub(1);
        goes_on
    };
    for choice in tunable.choices {
        all.extend(tuning.measure_layouts(choice, engine.device().device(), &mut goes_on)?);
    }
    let table = forge_runtime::measure::tune::table(program.info.name, &engine.device().describe(), &all);
    Ok(json!({ "table": table, "violations": take_violations() }))
}

fn generate(program: &CompiledModel, job: &Job, request: &Request) -> Value {
    execute(request.executed);
    let mut generated = Generated::default();
    let outcome = generate_into(program, job, request, &mut generated);
    let Generated { ids, passes, kernels, compiled, dispatches, renewals, drawn, experts } = generated;
    let (logits, error) = match outcome {
        Ok(logits) => (logits, None),
        Err(failure) => (Vec::new(), Some(failure.to_string())),
    };
    json!({
        "logits": logits, "ids": ids, "passes": passes, "kernels": kernels, "compiled": compiled, "dispatches": dispatches, "renewals": renewals, "drawn": drawn, "experts": experts,
        "error": error, "violations": take_violations(),
    })
}

/// Generates tokens and returns the logits after the prompt. Records the committed commands and live objects
/// after the prompt and after each token.
fn generate_into(
    program: &CompiledModel,
    job: &Job,
    request: &Request,
    generated: &mut Generated,
) -> Result<Vec<f32>, Error> {
    let experts = job.experts.map_or(ExpertPlacement::Resident, |bytes| ExpertPlacement::Stream(Some(bytes)));
    let setup = LoadOptions { context: Some(request.context), experts, ..LoadOptions::default() };
    let loaded = setup.load(program, None)?;
    let (make, streamed) = (hosts::find(&job.host), loaded.expert_cache(HashMap::new())?);
    let mut device = make(program, &loaded.weights, loaded.model.layout(), job.cache.as_deref(), streamed, &mut |done, all| {
        generated.compiled = [done, all];
    })?;
    generated.kernels = device.kernels();
    assert!(device.describe().starts_with(&format!("Metal, {}", machine().name)), "{}", device.describe());
    if let Some(engine_fault) = &job.engine_fault {
        device = Box::new(faulty_device::FaultyDevice::new(device, engine_fault));
    }
    if request.long_context {
        device = Box::new(long_context::LongContextDevice(device));
    }
    drop(loaded.weights);
    let mut weights = TokenWeights::default();
    let mut engine = Engine::new(loaded.model, CapturingDevice::new(device), request.context, 1);
    let mut before = counts();
    let mut note = || {
        let after = counts();
        generated.passes.push(json!({
            "command_buffers": after.command_buffers - before.command_buffers,
            "dispatches": after.dispatches - before.dispatches,
            "barriers": after.barriers - before.barriers,
            "waits": after.waits - before.waits,
            "objects": live_objects().values().sum::<usize>(),
        }));
        before = after;
    };
    let ids = &mut generated.ids;
    let parts = if request.long_context { 2 } else { 1 };
    let part = request.ids.len().div_ceil(parts).max(long_context::MIN_PREFILL_ROWS as usize);
    let mut logits = Vec::new();
    for ids in request.ids.chunks(part) {
        logits = engine.run_tokens(0, ids, Output::Logits)?.logits.pop().unwrap_or_default();
    }
    note();
    let mut draw = request.draw.map(DeviceSampling::of);
    let mut drawn = |logits: &[f32], draw: &mut Option<DeviceSampling>| match draw {
        Some(draw) => weights.draw(logits, &draw.advance()),
        None => argmax(logits) as u32,
    };
    if request.count > 0 {
        ids.push(if request.executed { drawn(&logits, &mut draw) } else { 0 });
    }
    while request.on_host && ids.len() < request.count {
        let logits = engine.run_tokens(0, &ids[ids.len() - 1..], Output::Logits)?.logits;
        ids.push(drawn(&logits[0], &mut draw));
        note();
    }
    let (per_pass, passes) = request.run_ahead;
    while ids.len() < request.count {
        if engine.length(0) == request.context && !request.executed {
            engine.truncate(0, 0);
        }
        let context_left = (request.context - engine.length(0)) as usize;
        let last = if request.executed { ids[ids.len() - 1] } else { 0 };
        let mut chain = engine.decode_multi_step(0, last, RunAhead { tokens_per_pass: per_pass, passes })?;
        if let Some(draw) = draw {
            chain = chain.with_sampling(draw);
        }
        for left in (1..=context_left.min(request.count - ids.len())).rev() {
            ids.push(chain.next(left)?);
            note();
        }
        if request.dropped_in_flight {
            chain.next(per_pass as usize + 1)?;
            std::mem::forget(chain);
        }
    }
    if !request.draws.is_empty() {
        let draws: Vec<DeviceSampling> = request.draws.iter().map(|words| DeviceSampling::of(*words)).collect();
        generated.drawn = resample(engine.device(), &draws)?;
    }
    let requests = counts().residency_requests;
    let renews = engine.device().device().renew_residency();
    generated.renewals = renews.then_some(counts().residency_requests - requests);
    generated.dispatches = engine.device().device().completed_dispatches();
    generated.experts = engine.device().expert_cache_stats().map(|counts| [counts.requests, counts.prefetch_hits]);
    Ok(logits)
}
