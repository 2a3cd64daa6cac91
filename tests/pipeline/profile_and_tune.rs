//! `profile` and `tune` in the Metal emulator. The times are meaningless there, but all steps of the
//! measurement run and their results are compared.

use forge_sim::Signature;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;
use tests::{Built, TUNABLE, emulated, run};

/// The crates with candidate layouts; none if `FORGE_MODELS` excludes them.
fn tunable() -> impl Iterator<Item = &'static Built> {
    emulated().0.into_iter().filter(|built| TUNABLE.contains(&built.model.as_str()))
}

/// The result of a job without generation.
fn run_job(built: &Built, more: Value) -> Value {
    let mut job = json!({ "model": built.name(), "host": "whole", "metallib": false, "requests": [] });
    for (key, value) in more.as_object().into_iter().flatten() {
        job[key] = value.clone();
    }
    let output = run(Command::new(emulated().1).arg(job.to_string()));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

#[test]
fn profile_times_every_step() {
    for built in emulated().0.into_iter().take(3) {
        let info = built.json(&["info", "--json", "--ctx-size", "20"]);
        let found = &run_job(built, json!({ "profile": true }))["profiles"];
        assert_eq!(found["violations"], json!([]), "{}: {found}", built.name());
        let steps =
            |profile: usize| found["profiles"][profile]["steps"].as_array().cloned().unwrap_or_default();
        assert_eq!(json!(steps(0).len()), info["decode"]["dispatches"], "{}", built.name());
        assert!(!steps(1).is_empty());
        for step in steps(0).iter().chain(&steps(1)) {
            assert!(step["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{step}");
        }
    }
}

/// The layouts chosen with these modified kernels, until tuning is complete.
fn chosen(built: &Built, replacements: &[[&str; 3]], until: Option<usize>) -> Vec<Value> {
    let found = &run_job(built, json!({ "tune": { "replacements": replacements, "until": until } }))["tuned"];
    assert_eq!(found["violations"], json!([]), "{found}");
    found["table"]["layouts"].as_array().cloned().unwrap_or_else(|| panic!("{found}"))
}

#[test]
fn candidate_layouts_match_the_planned_layouts() {
    for built in tunable() {
        let layouts = chosen(built, &[], None);
        let mut met = BTreeSet::new();
        for layout in &layouts {
            assert_eq!(layout["mismatches"], json!([]), "{layout}");
            assert!(layout["candidates"].as_u64().is_some_and(|count| count > 1), "{layout}");
            let field = |name: &str| layout[name].as_str().unwrap_or_default();
            met.insert(format!("{} {}", field("subject"), field("rows")));
            // A short sequence, and one as long as the context.
            let texts = layout["texts"].as_array().into_iter().flatten();
            let positions: Vec<u64> = texts.filter_map(|text| text["positions"].as_u64()).collect();
            let is_attention = field("subject") == "attention";
            assert_eq!(positions.len(), if is_attention { 2 } else { 0 }, "{layout}");
            assert!(!is_attention || 2 * positions[0] <= positions[1], "{layout}");
        }
        let table = json!({ "device": "a GPU", "layouts": layouts }).to_string();
        let table = forge_planner::Tuned::parse(&table).unwrap_or_else(|error| panic!("{error}: {table}"));
        assert_eq!(table.used(&built.planned().1), (layouts.len(), layouts.len()), "{layouts:?}");
        let of = |subject: &str| ["few", "many", "one"].map(|rows| format!("{subject} {rows}"));
        let mut expected = [of("attention"), of("projection")].concat();
        if built.model != "llama" {
            expected.extend(of("experts"));
        }
        assert_eq!(met, BTreeSet::from_iter(expected), "{}", built.model);
    }
}

/// One wrong kernel of each kind: the name of the plan's kernel, some source of its candidates, and the
/// modified source.
const MUTATED_KERNELS: [(&str, &[[&str; 3]]); 2] = [
    (
        "llama",
        &[
            ["qkv_decode_one", "sums[r] += sum", "sums[r] -= sum"],
            ["attend_decode", "total[h] *= rescale;", "total[h] *= rescale * 1.5f;"],
            ["attend_tiled", "total[i] * rescale + simd_sum(weight)", "total[i] + 0.5f * simd_sum(weight)"],
        ],
    ),
    (
        "qwen3_moe",
        &[
            ["experts_sum_decode_one", "sum(sums[r])", "sum(sums[0])"],
            ["experts_inner_many", "(gate) * up", "(gate) + up"],
        ],
    ),
];

#[test]
fn tune_reports_and_excludes_layouts_with_wrong_results() {
    for (model, wrong) in MUTATED_KERNELS {
        let Some(built) = tunable().find(|built| built.model == model) else { continue };
        let text =
            std::fs::read_to_string(built.directory.join("src/layouts.metal")).expect("it has layouts");
        let kernels = Signature::parse_all(&text).expect("its signatures are valid");
        let candidate_kernel = |kernel: &str| {
            let mut names = kernels.iter().map(|kernel| kernel.name.as_str());
            let found = names.find(|name| name.starts_with(&format!("{kernel}_")));
            found.unwrap_or_else(|| panic!("some stand in for {kernel}"))
        };
        let replacements: Vec<[&str; 3]> =
            wrong.iter().map(|[kernel, right, wrong]| [candidate_kernel(kernel), right, wrong]).collect();
        let mut met = 0;
        for found in chosen(built, &replacements, None) {
            let kernels = found["kernels"].as_array().cloned().unwrap_or_default();
            let place = wrong.iter().position(|[kernel, ..]| kernels.contains(&json!(kernel)));
            let reported =
                found["mismatches"].as_array().into_iter().flatten().map(|it| it["kernel"].clone());
            let expected: Vec<Value> = place.iter().map(|place| json!(replacements[*place][0])).collect();
            assert_eq!(reported.collect::<Vec<_>>(), expected, "{found}");
            assert!(place.is_none_or(|place| !named_by(&found["knobs"], replacements[place][0])), "{found}");
            met += expected.len();
        }
        assert_eq!(met, wrong.len());
    }
}

/// Whether a kernel's name has these knobs, by their first letters, except knobs that do not affect it.
fn named_by(knobs: &Value, kernel: &str) -> bool {
    let letters = [
        ("r", "rows_per_simdgroup"),
        ("g", "simdgroups"),
        ("s", "split"),
        ("p", "packets"),
        ("h", "heads_each"),
        ("l", "loads"),
        ("t", "tile"),
        ("o", "tile_outputs"),
        ("n", "lines"),
    ];
    let says = |part: &str| {
        let knob = letters.iter().find(|(letter, _)| part.strip_prefix(letter).is_some_and(is_number));
        knob.map(|(letter, name)| knobs[name].as_u64() == part[letter.len()..].parse().ok())
    };
    kernel.split('_').filter_map(says).all(|is_so| is_so)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[test]
fn an_interrupted_tune_keeps_its_measurements() {
    let Some(built) = tunable().next() else { return };
    let text = std::fs::read_to_string(built.directory.join("src/layouts.rs")).expect("it has layouts");
    let all = text.matches("TuningProblem {").count();
    // Each layout is checked and then measured in two rounds: no choice takes more than a hundred runs.
    let some = chosen(built, &[], Some(100)).len();
    assert!((1..all).contains(&some), "{some} of {all}");
}
