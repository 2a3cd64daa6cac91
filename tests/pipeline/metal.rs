//! The host code for Metal, executed: `metal.rs` as it is over the emulated Metal of `forge-emulation`, whose kernels are
//! those of each model's kernels.metal.

use crate::logits::{bound, golden, is_restretched};
use serde_json::{Value, json};
use std::process::Command;
use std::sync::Mutex;
use tests::emulated::{PLANTED, Planted};
use tests::{Built, distance, emulated, ids, model, numbers, run};

/// A text that a model is to write.
#[derive(Clone)]
struct Text {
    ids: Vec<u32>,
    count: usize,
    context: usize,
}

/// What came of a job with a model on a host.
fn drive(built: &Built, host: &str, texts: &[Text], executed: bool) -> Value {
    let text = |text: &Text| json!({ "ids": text.ids, "count": text.count, "context": text.context, "executed": executed });
    let texts: Vec<Value> = texts.iter().map(text).collect();
    let job = json!({ "model": built.name(), "host": host, "texts": texts });
    let output = run(Command::new(emulated().1).arg(job.to_string()));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// For each model, the complaints that `check` has; as many at a time as the machine does at once.
fn every_model(check: impl Fn(&Built) -> Vec<String> + Sync) {
    let (complaints, models) = (Mutex::new(Vec::new()), Mutex::new(emulated().0.into_iter()));
    let next = || models.lock().expect("nobody panics with it").next();
    let work = || {
        while let Some(built) = next() {
            let found = check(built).into_iter().map(|complaint| format!("{}: {complaint}", built.name()));
            complaints.lock().expect("nobody panics with it").extend(found);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let complaints = complaints.into_inner().expect("nobody panicked with it");
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// Whether positions are turned by how long a slot is.
fn is_stretched(name: &str) -> bool {
    let text = std::fs::read_to_string(model(name).join("config.json")).expect("a model has config.json");
    ["\"dynamic\"", "\"longrope\""].iter().any(|kind| text.contains(kind))
}

#[test]
fn every_model_writes_through_the_emulated_metal_as_the_reference() {
    every_model(|built| {
        let prompts = golden(&built.model);
        // Where positions are turned by a slot's context, the reference's logits are of a slot that its prompt fills.
        let each = if is_stretched(&built.model) { 2 } else { 1 };
        let texts: Vec<Text> = prompts
            .iter()
            .flat_map(|(ids, greedy, _)| {
                let context = ids.len() + greedy.len();
                let whole = Text { ids: ids.clone(), count: greedy.len(), context };
                let beginning = Text { count: 0, context: ids.len(), ..whole.clone() };
                [beginning, whole].into_iter().skip(2 - each)
            })
            .collect();
        let found = drive(built, "whole", &texts, true);
        let found = found["texts"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert_eq!(found.len(), texts.len());
        let is_wrong = |text: &&Value| !text["error"].is_null() || text["complaints"] != json!([]);
        let told =
            found.iter().filter(is_wrong).map(|text| format!("{}, {}", text["error"], text["complaints"]));
        let mut complaints: Vec<String> = told.collect();
        if !complaints.is_empty() {
            return complaints;
        }
        for ((prompt, greedy, logits), found) in prompts.iter().zip(found.chunks(each)) {
            let distance = distance(&numbers(&found[0]["logits"]), logits);
            println!("{} {} ids: {distance:.1e}", built.name(), prompt.len());
            if distance > bound(built) {
                complaints
                    .push(format!("logits after {} ids are {distance:.1e} deviations off", prompt.len()));
            }
            let written = ids(&found[each - 1]["ids"]);
            if written != *greedy && !is_restretched(&built.model, prompt.len() + greedy.len()) {
                complaints.push(format!("{written:?} is not {greedy:?}"));
            }
        }
        complaints
    });
}

#[test]
fn a_token_is_one_command_buffer_of_the_dispatches_and_barriers_that_info_tells() {
    every_model(|built| {
        let text = Text { ids: vec![1, 2, 3], count: 4, context: 8 };
        let found = drive(built, "whole", &[text], false);
        let info = built.json(&["info", "--json", "--context", "8"]);
        let expected = ["dispatches", "barriers"].map(|what| info["decode"][what].clone());
        let passes = found["texts"][0]["passes"].as_array().cloned().unwrap_or_default();
        let wrong = passes.iter().skip(1).find(|pass| {
            [&pass["dispatches"], &pass["barriers"], &pass["command_buffers"]]
                != [&expected[0], &expected[1], &json!(1)]
        });
        assert_eq!(passes.len(), 4, "{found}");
        wrong.map(|pass| format!("{pass}, and info says {expected:?}")).into_iter().collect()
    });
}

/// Kernels are not executed here: only the host's objects are counted.
#[test]
fn no_object_is_left_of_a_thousand_tokens() {
    let (models, _) = emulated();
    let Some(built) = models.first() else { return };
    let text = Text { ids: vec![1, 2, 3], count: 1001, context: 200 };
    let found = drive(built, "whole", &[text], false);
    let text = &found["texts"][0];
    assert_eq!((&text["complaints"], &text["error"]), (&json!([]), &Value::Null));
    let passes = text["passes"].as_array().expect("passes are listed");
    assert_eq!(passes.len(), 1001);
    let objects: Vec<&Value> = passes.iter().map(|pass| &pass["objects"]).collect();
    assert!(objects.iter().all(|count| *count == objects[0]), "{objects:?}");
    assert_eq!(found["living"], json!({}), "objects are left when the device is gone");
}

#[test]
fn every_fault_planted_in_the_host_is_found() {
    let (models, _) = emulated();
    let built =
        models.iter().find(|built| built.model == "llama").or(models.first()).expect("there is a model");
    let text = Text { ids: (1..8).collect(), count: 3, context: 12 };
    let whole = drive(built, "whole", std::slice::from_ref(&text), true);
    assert_eq!(whole["texts"][0]["complaints"], json!([]), "before anything is planted");
    let missed: Vec<String> = PLANTED
        .iter()
        .filter_map(|planted| {
            let said = said(&drive(built, planted.name, std::slice::from_ref(&text), true), &whole);
            println!("{}: {}", planted.name, said.chars().take(300).collect::<String>());
            let Planted { name, found, .. } = planted;
            (!said.contains(found)).then(|| format!("{name} should be found by {found:?}: {said}"))
        })
        .collect();
    assert!(missed.is_empty(), "\n{}", missed.join("\n"));
}

/// What shows that a host is not whole.
fn said(found: &Value, whole: &Value) -> String {
    let (text, right) = (&found["texts"][0], &whole["texts"][0]);
    let mut said: Vec<String> = Vec::new();
    said.extend(text["error"].as_str().map(str::to_owned));
    said.extend(
        text["complaints"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned),
    );
    if text["error"].is_null() && [&text["logits"], &text["ids"]] != [&right["logits"], &right["ids"]] {
        said.push("other numbers".to_owned());
    }
    let objects = |found: &Value| found["passes"].as_array()?.last()?["objects"].as_u64();
    if objects(text) > objects(right) {
        said.push("objects grow".to_owned());
    }
    said.join("; ")
}
