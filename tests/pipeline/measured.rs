//! What programs measure of themselves, over the emulated Metal: which times come of it means nothing there, but everything that is
//! done for it is done, and compared.

use serde_json::{Value, json};
use std::process::Command;
use tests::{Built, TUNABLE, emulated, run};

/// The crate that has layouts to choose from; none where another model is worked on.
fn tunable() -> Option<&'static Built> {
    emulated().0.into_iter().find(|built| built.model == TUNABLE)
}

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

/// The layouts of products of so many rows, each measured and compared.
fn chosen(built: &Built, rows: &str, planted: Option<[&str; 3]>) -> Vec<Value> {
    let found = &measured(built, json!({ "tune": { "rows": rows, "planted": planted } }))["tuned"];
    assert_eq!(found["complaints"], json!([]), "{found}");
    found["table"]["layouts"].as_array().cloned().unwrap_or_else(|| panic!("{found}"))
}

#[test]
fn layouts_that_stand_in_write_what_those_of_the_plan_write() {
    let Some(built) = tunable() else { return };
    for rows in ["one", "few", "many"] {
        let layouts = chosen(built, rows, None);
        assert!(layouts.len() >= 4, "{rows}: {layouts:?}");
        for layout in layouts {
            assert_eq!(layout["wrong"], json!([]), "{layout}");
            assert!(layout["tried"].as_u64().is_some_and(|count| count > 1), "{layout}");
        }
    }
}

#[test]
fn a_layout_that_computes_something_else_is_told_of_and_not_chosen() {
    let Some(built) = tunable() else { return };
    let right = chosen(built, "one", None);
    let layout = right.iter().find(|layout| layout["kernels"] == json!(["qkv_one"])).expect("there is one");
    let text = std::fs::read_to_string(built.directory.join("src/layouts.metal")).expect("it has layouts");
    let start = text.find("kernel void qkv_one_").expect("some stand in for qkv_one") + "kernel void ".len();
    let planted = &text[start..start + text[start..].find('(').expect("a kernel has parameters")];
    let wrong = chosen(built, "one", Some([planted, "sums[r] += sum", "sums[r] -= sum"]));
    for found in &wrong {
        let is_of_planted = found["kernels"] == layout["kernels"];
        let expected = if is_of_planted { json!(planted) } else { Value::Null };
        assert_eq!(found["wrong"][0]["kernel"], expected, "{found}");
        let knob = |name: &str| &found["knobs"][name];
        let [rows, simdgroups] = [knob("rows_per_simdgroup"), knob("simdgroups")];
        let best = format!("qkv_one_r{rows}_g{simdgroups}_s{}_p{}", knob("split"), knob("packets"));
        assert!(!is_of_planted || best != planted, "{found}");
    }
    assert!(wrong.iter().any(|found| found["wrong"] != json!([])));
}
