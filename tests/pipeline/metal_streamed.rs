//! Expert streaming in the Metal emulator: tokens and logits are identical to those with all experts in memory, with the minimum of
//! cache slots and with more, and the kernel checker finds no faults. With few slots and a next layer to predict, some experts are
//! prefetched. A decoded token waits for one command buffer, and without shared events for more.

use crate::metal::{HostSetup, Request, every_model, run_driver};
use crate::metal_emulated::symptoms;
use crate::streamed::{enough, layers_with_experts};
use serde_json::{Value, json};
use tests::emulated::{HostFault, STREAMING_FAULTS};
use tests::{emulated, parallel_map};

/// Prompts of many rows, of a small batch and of one row, each with generated tokens.
fn requests() -> [Request; 3] {
    [41, 12, 1].map(|count| Request::greedy((0..count).map(|i| i * i * 31 % 60).collect(), 4, 48, (1, 1)))
}

fn streamed(experts: u64) -> HostSetup<'static> {
    HostSetup { experts: Some(experts), ..HostSetup::default() }
}

#[test]
fn metal_streamed_experts_match_resident_experts() {
    every_model(|built| {
        let Some(enough) = enough(built) else { return Vec::new() };
        let requests = requests();
        let resident = run_driver(built, &HostSetup::default(), &requests, true);
        let mut errors = Vec::new();
        for (memory, events) in [(enough, "1"), (enough * 2, "1"), (enough, "0")] {
            let setup = HostSetup { variables: &[("FORGE_METAL_EVENTS", events)], ..streamed(memory) };
            let found = run_driver(built, &setup, &requests, true);
            let both = |what: &str| [&found, &resident].map(|all| of_all(all, what));
            if both("error")[0].iter().chain(&both("violations")[0]).any(|it| !is_nothing(it)) {
                errors.push(format!("{memory} bytes: {:?}, {:?}", both("error")[0], both("violations")[0]));
            }
            for what in ["ids", "logits"] {
                if both(what)[0] != both(what)[1] {
                    errors.push(format!("{memory} bytes: {what} are not those of resident experts"));
                }
            }
            // The first pass of a request is its prompt.
            let passes = of_all(&found, "passes");
            let decoded = passes.iter().flat_map(|passes| passes.as_array().into_iter().flatten().skip(1));
            let waits: Vec<&Value> = decoded.map(|pass| &pass["waits"]).collect();
            let is_once = |waits: &&Value| **waits == json!(1);
            if waits.is_empty() || waits.iter().all(is_once) != (events == "1") {
                errors.push(format!("{memory} bytes, events {events}: decoded tokens wait {waits:?} times"));
            }
            let counts = of_all(&found, "experts");
            println!("{} in {memory} bytes, requested and prefetched: {}", built.name(), json!(counts));
            let prefetched: u64 = counts.iter().filter_map(|counts| counts[1].as_u64()).sum();
            // With more slots, all predicted experts may be in memory already.
            if memory == enough && (prefetched > 0) != (layers_with_experts(built) > 1) {
                errors.push(format!("{memory} bytes: {prefetched} experts are prefetched"));
            }
        }
        errors
    });
}

fn of_all(found: &Value, what: &str) -> Vec<Value> {
    found["results"].as_array().into_iter().flatten().map(|text| text[what].clone()).collect()
}

fn is_nothing(field: &Value) -> bool {
    field.is_null() || *field == json!([])
}

/// A model with routed and shared experts.
const MOE_MODEL: &str = "qwen2_moe";

#[test]
fn detects_every_streaming_fault() {
    let (models, _) = emulated();
    let Some(built) = models.iter().find(|built| built.model == MOE_MODEL) else { return };
    let memory = enough(built).expect("it has experts");
    let requests = requests();
    let run_on = |host: Option<&str>| {
        let setup = HostSetup { host, ..streamed(memory) };
        requests.each_ref().map(|request| run_driver(built, &setup, std::slice::from_ref(request), true))
    };
    let whole = run_on(None);
    let faults = |host: Option<&str>| -> Vec<String> {
        run_on(host).iter().zip(&whole).map(|(found, whole)| symptoms(found, whole)).collect()
    };
    assert!(faults(None).iter().all(String::is_empty), "without an injected fault: {:?}", faults(None));
    let missed = parallel_map(STREAMING_FAULTS.iter(), |HostFault { name, found, .. }| {
        let message = faults(Some(name)).join("; ");
        println!("{name}: {}", message.chars().take(300).collect::<String>());
        let is_found = message.contains(found) && message.chars().any(char::is_alphabetic);
        (!is_found).then(|| format!("{name} should be found by {found:?}: {message}"))
    });
    let missed: Vec<String> = missed.into_iter().flatten().collect();
    assert!(missed.is_empty(), "\n{}", missed.join("\n"));
}
