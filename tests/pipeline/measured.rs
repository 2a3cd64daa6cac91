//! What programs measure of themselves, over the emulated Metal: which times come of it means nothing there, but everything that is
//! done for it is done, and compared.

use serde_json::{Value, json};
use std::process::Command;
use tests::{Built, emulated, run};

/// What came of a job that writes no text.
fn measured(built: &Built, more: Value) -> Value {
    let mut job = json!({ "model": built.name(), "host": "whole", "metallib": false, "texts": [] });
    for (key, value) in more.as_object().into_iter().flatten() {
        job[key] = value.clone();
    }
    let output = run(Command::new(emulated().1).arg(job.to_string()));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn every_step_of_a_profile_is_a_command_buffer_with_a_time() {
    for built in emulated().0.into_iter().take(3) {
        let info = built.json(&["info", "--json", "--context", "20"]);
        let found = &measured(built, json!({ "profile": true }))["profiles"];
        assert_eq!(found["complaints"], json!([]), "{}: {found}", built.name());
        let steps =
            |profile: usize| found["profiles"][profile]["steps"].as_array().cloned().unwrap_or_default();
        assert_eq!(json!(steps(0).len()), info["decode"]["dispatches"], "{}", built.name());
        assert!(!steps(1).is_empty());
        for step in steps(0).iter().chain(&steps(1)) {
            assert!(step["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{step}");
        }
    }
}
