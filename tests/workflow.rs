//! The workflow of continuous integration (`.github/workflows/ci.yml`): its keys and runners are known, every job
//! has a timeout, and the commands and tests that it names exist.

use saphyr::{LoadableYamlNode, Yaml};
use std::fs;
use std::path::Path;

const WORKFLOW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../.github/workflows/ci.yml");

/// Runners that exist; those of macOS have Apple silicon.
const RUNNERS: [&str; 3] = ["ubuntu-24.04", "macos-15", "macos-26"];

const TOP_KEYS: [&str; 6] = ["name", "on", "permissions", "concurrency", "env", "jobs"];
const JOB_KEYS: [&str; 7] = ["name", "runs-on", "needs", "timeout-minutes", "strategy", "env", "steps"];
const STEP_KEYS: [&str; 6] = ["name", "uses", "with", "run", "env", "timeout-minutes"];

fn keys<'a>(node: &'a Yaml<'a>) -> Vec<&'a str> {
    node.as_mapping().into_iter().flatten().filter_map(|(key, _)| key.as_str()).collect()
}

fn steps<'a>(job: &'a Yaml<'a>) -> &'a [Yaml<'a>] {
    job.as_mapping_get("steps").and_then(Yaml::as_sequence).map_or(&[], Vec::as_slice)
}

/// The command of a step.
fn command<'a>(step: &'a Yaml<'a>) -> &'a str {
    step.as_mapping_get("run").and_then(Yaml::as_str).unwrap_or_default()
}

/// All faults of a workflow.
fn faults(text: &str) -> Vec<String> {
    let documents = match Yaml::load_from_str(text) {
        Ok(documents) => documents,
        Err(error) => return vec![error.to_string()],
    };
    let [workflow] = &documents[..] else { return vec!["not one document".to_owned()] };
    let mut faults = Vec::new();
    let mut unknown = |place: &str, node: &Yaml<'_>, known: &[&str]| {
        let unknown = keys(node).into_iter().filter(|key| !known.contains(key)).map(str::to_owned);
        faults.extend(unknown.map(|key| format!("{place}: unknown key {key}")));
    };
    unknown("workflow", workflow, &TOP_KEYS);
    let jobs = workflow.as_mapping_get("jobs").and_then(Yaml::as_mapping);
    let jobs: Vec<(&str, &Yaml<'_>)> =
        jobs.into_iter().flatten().filter_map(|(name, job)| Some((name.as_str()?, job))).collect();
    for (name, job) in &jobs {
        unknown(name, job, &JOB_KEYS);
        steps(job).iter().for_each(|step| unknown(name, step, &STEP_KEYS));
    }
    if jobs.is_empty() {
        faults.push("no jobs".to_owned());
    }
    for (name, job) in &jobs {
        let value = |key: &str| job.as_mapping_get(key);
        if value("timeout-minutes").and_then(Yaml::as_integer).is_none_or(|minutes| minutes > 360) {
            faults.push(format!("{name}: no timeout-minutes of at most 360"));
        }
        faults.extend(
            runners(job)
                .into_iter()
                .filter(|runner| !RUNNERS.contains(&runner.as_str()))
                .map(|runner| format!("{name}: unknown runner {runner}")),
        );
        let needed = value("needs").and_then(Yaml::as_str);
        if needed.is_some_and(|needed| jobs.iter().all(|(other, _)| *other != needed)) {
            faults.push(format!("{name}: needs an unknown job"));
        }
        if steps(job).is_empty() {
            faults.push(format!("{name}: no steps"));
        }
        for step in steps(job) {
            if step.as_mapping_get("uses").is_some() == step.as_mapping_get("run").is_some() {
                faults.push(format!("{name}: a step has either `uses` or `run`"));
            }
            faults.extend(unknown_commands(command(step)).into_iter().map(|what| format!("{name}: {what}")));
        }
    }
    faults
}

/// The runners of a job, with a matrix resolved.
fn runners(job: &Yaml<'_>) -> Vec<String> {
    match job.as_mapping_get("runs-on").and_then(Yaml::as_str) {
        Some("${{ matrix.system }}") => {
            let matrix =
                job.as_mapping_get("strategy").and_then(|strategy| strategy.as_mapping_get("matrix"));
            let systems = matrix.and_then(|matrix| matrix.as_mapping_get("system")?.as_sequence());
            systems.into_iter().flatten().filter_map(Yaml::as_str).map(str::to_owned).collect()
        }
        Some(runner) => vec![runner.to_owned()],
        None => vec!["(none)".to_owned()],
    }
}

/// Commands of `cargo xtask` and filters of tests that match nothing.
fn unknown_commands(command: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let mut unknown = Vec::new();
    let words: Vec<&str> = command.split_whitespace().collect();
    for place in words.windows(3).filter(|words| words[..2] == ["cargo", "xtask"]) {
        let mut letters = place[2].chars();
        let variant: String =
            letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
        let tasks = read("crates/xtask/src/main.rs");
        if !["{", ","].iter().any(|end| tasks.contains(&format!("\n    {variant}{end}")))
            && !tasks.contains(&format!("\n    {variant} {{"))
        {
            unknown.push(format!("no task {}", place[2]));
        }
    }
    if command.contains("--test pipeline -- ") {
        let tests = ["metal.rs", "metal_emulated.rs"].map(|file| read(&format!("tests/pipeline/{file}")));
        let filters = command.split("--test pipeline -- ").nth(1).unwrap_or_default().split_whitespace();
        let exists = |filter: &&str| tests[0].contains(&format!("\nfn {filter}"));
        unknown.extend(filters.filter(|filter| !exists(filter)).map(|filter| format!("no test {filter}")));
    }
    unknown
}

#[test]
fn the_workflow_has_no_faults() {
    let text = fs::read_to_string(WORKFLOW).unwrap();
    assert_eq!(faults(&text), Vec::<String>::new());
}

#[test]
fn faults_of_a_workflow_are_found() {
    let text = fs::read_to_string(WORKFLOW).unwrap();
    for (from, to, fault) in [
        ("timeout-minutes: 350", "timeout: 350", "linux: no timeout-minutes"),
        ("runs-on: ubuntu-24.04", "runs-on: ubuntu", "linux: unknown runner ubuntu"),
        ("[macos-15, macos-26]", "[macos-15, macos-99]", "unknown runner macos-99"),
        ("needs: macos-build", "needs: macos", "needs an unknown job"),
        ("cargo xtask metal", "cargo xtask mental", "no task mental"),
        ("metal_sampling", "metal_simpling", "no test metal_simpling"),
        ("permissions:", "permission:", "unknown key permission"),
        ("run: cargo xtask test", "runs: cargo xtask test", "unknown key runs"),
        ("jobs:", "jobs: [", "while parsing"),
    ] {
        assert!(text.contains(from), "{from}");
        let found = faults(&text.replace(from, to)).join("\n");
        assert!(found.contains(fault), "{to}: {found:?} instead of {fault:?}");
    }
}

/// The job with a GPU demands one, runs programs on it, and reports no times.
#[test]
fn the_gpu_job_demands_a_gpu_and_measures_nothing() {
    let text = fs::read_to_string(WORKFLOW).unwrap();
    let documents = Yaml::load_from_str(&text).unwrap();
    let job = &documents[0]["jobs"]["macos-gpu"];
    assert_eq!(job["env"]["FORGE_REQUIRE_METAL"].as_integer(), Some(1));
    let commands: Vec<&str> = steps(job).iter().map(command).collect();
    assert!(commands.iter().any(|command| command.starts_with("cargo xtask metal ")), "{commands:?}");
    for step in steps(job).iter().filter(|step| !command(step).is_empty()) {
        assert!(step["timeout-minutes"].as_integer().is_some(), "{} has no timeout", command(step));
        for measured in ["bench", "profile", "tune"] {
            assert!(!command(step).contains(measured), "{}", command(step));
        }
    }
}
