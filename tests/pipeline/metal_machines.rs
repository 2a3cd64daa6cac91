//! Compiled programs with the Metal device on different emulated machines: older systems, virtual machines,
//! GPUs that cannot run the kernels, and machines without a GPU.

use crate::logits::bound;
use crate::metal::{HostSetup, Request, run_driver};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};
use tests::{Built, distance, emulated, emulated_with_tensors, forge, model, numbers};
use xtask::metal::{MetalProgram, check_programs};

/// The program of a model with the emulated Metal device, and a home directory for its cache.
struct Program {
    path: PathBuf,
    home: tempfile::TempDir,
}

impl Program {
    fn new(built: &Built) -> Program {
        let home = tempfile::tempdir().expect("a temporary directory");
        let path = home.path().join(built.name());
        symlink(emulated().1, &path).expect("the directory is writable");
        Program { path, home }
    }

    /// Runs it on a machine, where a missing GPU is an error.
    fn run(&self, machine: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(&self.path);
        command.args(arguments).env("HOME", self.home.path()).env("EMULATED_MACHINE", machine);
        command.env("FORGE_REQUIRE_METAL", "1").envs(variables.iter().copied());
        command.output().expect("it is a program")
    }

    /// The path of the pipeline archive, if there is one.
    fn archive(&self) -> Option<PathBuf> {
        let folder = self.home.path().join("Library/Caches/forge");
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).next()
    }
}

/// The smallest model, if `FORGE_MODELS` includes any.
fn any() -> Option<&'static Built> {
    emulated().0.first().copied()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn programs_run_on_old_systems_and_in_virtual_machines() {
    let Some(built) = any() else { return };
    let program = Program::new(built);
    for machine in ["mac", "mac-13", "virtual"] {
        let output = program.run(machine, &["verify", "--json"], &[]);
        assert!(output.status.success(), "{machine}: {}", text(&output.stderr));
        let found: Value = serde_json::from_slice(&output.stdout).expect("verify prints JSON");
        assert_eq!(found["ok"], true, "{machine}: {found}");
        assert!(found["dispatches"].as_u64() > Some(0), "{machine}: {found}");
    }
}

#[test]
fn programs_reject_gpus_that_cannot_run_the_kernels() {
    let Some(built) = any() else { return };
    let program = Program::new(built);
    let cases = [
        ("none", "FORGE_REQUIRE_METAL=1 is set: no Metal device found"),
        ("wrong-matrices", "matrix products of a simdgroup are wrong: use --device cpu"),
        ("no-matrices", "no matrices of a simdgroup: "),
    ];
    for (machine, expected) in cases {
        let output = program.run(machine, &["verify"], &[]);
        let message = text(&output.stderr);
        assert!(!output.status.success() && message.contains(expected), "{machine}: {message}");
        // Without the variable, the CPU is used.
        let output = program.run(machine, &["verify", "--json"], &[("FORGE_REQUIRE_METAL", "")]);
        let found: Value = serde_json::from_slice(&output.stdout).expect("verify prints JSON");
        assert_eq!((&found["ok"], &found["dispatches"]), (&json!(true), &Value::Null), "{machine}");
    }
}

#[test]
fn models_beyond_the_working_set_are_an_error() {
    let Some(built) = any() else { return };
    let program = Program::new(built);
    let output = program.run("small", &["verify"], &[]);
    let message = text(&output.stderr);
    assert!(!output.status.success(), "{message}");
    for part in ["Emulated GPU may use 65.54 kB (65536 bytes)", "sudo sysctl iogpu.wired_limit_mb="] {
        assert!(message.contains(part), "{message}");
    }
    let info = program.run("small", &["info", "--json"], &[]);
    let info: Value = serde_json::from_slice(&info.stdout).expect("info prints JSON");
    assert_eq!((&info["gpu"], &info["gpu_memory_bytes"]), (&json!("Emulated GPU"), &json!(65536)));
    let info = text(&program.run("small", &["info"], &[]).stdout);
    assert!(info.contains("65536 bytes  Emulated GPU may use 65.54 kB"), "{info}");
}

#[test]
fn validation_layers_disable_the_pipeline_archive() {
    let Some(built) = any() else { return };
    for layer in ["MTL_DEBUG_LAYER", "MTL_SHADER_VALIDATION", "METAL_DEVICE_WRAPPER_TYPE"] {
        let program = Program::new(built);
        let output = program.run("mac", &["verify"], &[(layer, "1")]);
        let message = text(&output.stderr);
        assert!(output.status.success(), "{message}");
        assert!(message.contains(&format!("pipelines not saved: {layer} is set")), "{message}");
        assert_eq!(program.archive(), None, "{layer}");
        let output = program.run("mac", &["verify"], &[(layer, "0")]);
        assert!(
            output.status.success() && program.archive().is_some(),
            "{layer}=0: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn pipelines_are_compiled_in_parallel_with_progress() {
    let Some(built) = any() else { return };
    let kernels = built.json(&["info", "--json"])["kernels"].as_array().map_or(0, Vec::len);
    let cache = tempfile::tempdir().expect("a temporary directory");
    let setup = HostSetup { cache: Some(cache.path()), ..HostSetup::default() };
    let starts = [json!([kernels, kernels]), json!([0, 0])];
    for (start, compiled) in ["first", "second"].into_iter().zip(starts) {
        let found = run_driver(built, &setup, &[Request::greedy(vec![1, 2], 1, 8, (1, 1))], true);
        assert_eq!(found["results"][0]["compiled"], compiled, "the {start} start");
        assert_eq!(found["background_pipelines"], compiled[0], "the {start} start");
    }
}

#[test]
fn buffers_encoders_and_pipelines_have_labels() {
    let Some(built) = any() else { return };
    let request = Request::greedy((1..10).collect(), 2, 20, (1, 1));
    let found = run_driver(built, &HostSetup::default(), &[request], true);
    let labels = found["labels"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let labels: BTreeSet<&str> = labels.collect();
    let info = built.json(&["info", "--json"]);
    let kernels = info["kernels"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut expected: BTreeSet<String> =
        kernels.map(|kernel| format!("MTLComputePipelineDescriptor {kernel}")).collect();
    expected.extend(["weights", "state", "scratch", "rows"].map(|buffer| format!("MTLBuffer {buffer}")));
    for class in ["MTLCommandBuffer", "MTLComputeCommandEncoder"] {
        expected.extend(["batch", "decode"].map(|schedule| format!("{class} {schedule}")));
    }
    assert_eq!(labels, expected.iter().map(String::as_str).collect());
}

#[test]
fn residency_is_renewed_where_there_are_residency_sets() {
    let Some(built) = any() else { return };
    for (machine, renewals) in [("mac", json!(1)), ("mac-13", Value::Null), ("virtual", Value::Null)] {
        let setup = HostSetup { machine: Some(machine), ..HostSetup::default() };
        let found = run_driver(built, &setup, &[Request::greedy(vec![1, 2], 1, 8, (1, 1))], true);
        assert_eq!(found["results"][0]["violations"], json!([]), "{machine}");
        assert_eq!(found["results"][0]["renewals"], renewals, "{machine}");
    }
}

/// Another kernel adds in another order, so its logits are near, and not equal.
#[test]
fn simple_attention_computes_the_same_logits_with_another_kernel() {
    let Some(built) = any() else { return };
    let logits = |variables: &[(&str, &str)]| {
        let setup = HostSetup { variables, ..HostSetup::default() };
        let found = run_driver(built, &setup, &[Request::greedy((1..40).collect(), 1, 60, (1, 1))], true);
        assert_eq!(found["results"][0]["violations"], json!([]), "{variables:?}");
        numbers(&found["results"][0]["logits"])
    };
    let distance = distance(&logits(&[("FORGE_SIMPLE_ATTENTION", "1")]), &logits(&[]));
    assert!(distance > 0.0 && distance <= bound(built), "{distance:.1e}");
}

/// The logits of a prompt on a machine, and where the device says its kernels come from.
fn prompt_logits(built: &Built, setup: &HostSetup<'_>) -> (Vec<f64>, String) {
    let found = run_driver(built, setup, &[Request::greedy((1..40).collect(), 1, 60, (1, 1))], true);
    let found = &found["results"][0];
    assert_eq!((&found["error"], &found["violations"]), (&Value::Null, &json!([])), "{}", built.name());
    (numbers(&found["logits"]), found["kernels"].as_str().unwrap_or_default().to_owned())
}

/// Products of tensors add in another order than those of matrices, so logits are near, and not equal.
#[test]
fn tensor_operations_compute_the_same_logits() {
    for built in emulated_with_tensors() {
        let (plain, kernels) = prompt_logits(built, &HostSetup::default());
        assert!(!kernels.contains("tensor operations"), "{kernels}");
        let m5 = HostSetup { machine: Some("m5"), ..HostSetup::default() };
        let (logits, kernels) = prompt_logits(built, &m5);
        assert!(
            kernels.starts_with("kernels compiled from source with Metal 4 tensor operations"),
            "{kernels}"
        );
        let distance = distance(&logits, &plain);
        assert!(distance > 0.0 && distance <= bound(built), "{}: {distance:.1e}", built.name());
        let (same, kernels) = prompt_logits(built, &HostSetup { metallib: true, ..m5 });
        assert!(kernels.contains("at build time with Metal 4 tensor operations"), "{kernels}");
        assert_eq!(same, logits, "{}", built.name());
    }
}

#[test]
fn tensor_operations_that_do_not_work_are_not_used() {
    let Some(built) = emulated_with_tensors().into_iter().next() else { return };
    let plain = prompt_logits(built, &HostSetup::default()).0;
    let off: &[(&str, &str)] = &[("FORGE_METAL_TENSORS", "0")];
    let on: &[(&str, &str)] = &[("FORGE_METAL_TENSORS", "1")];
    let wrong = "without tensor operations: products of tensors are wrong";
    let missing = "without tensor operations: Encountered unlowered function call to __tensorops_impl";
    let all = [
        ("m5-wrong-tensors", &[][..], wrong),
        ("m5-no-tensors", &[], missing),
        ("m5-15", on, ""),
        ("m5", off, ""),
        ("mac", on, "with Metal 4 tensor operations"),
    ];
    for (machine, variables, expected) in all {
        let setup = HostSetup { machine: Some(machine), variables, ..HostSetup::default() };
        let (logits, kernels) = prompt_logits(built, &setup);
        let (states, uses) = (kernels.contains(expected), kernels.contains("with Metal 4 tensor"));
        assert!(states && uses == expected.starts_with("with "), "{machine} {variables:?}: {kernels}");
        assert_eq!(logits == plain, !uses, "{machine} {variables:?}");
    }
}

/// A limit of 0 commits at every barrier.
#[test]
fn long_passes_are_split_into_command_buffers() {
    let Some(built) = any() else { return };
    let requests = || [Request::greedy((1..40).collect(), 6, 60, (2, 2))];
    let whole = run_driver(built, &HostSetup::default(), &requests(), true);
    let setup = HostSetup { variables: &[("FORGE_COMMAND_BUFFER_MS", "0")], ..HostSetup::default() };
    let split = run_driver(built, &setup, &requests(), true);
    let sum = |found: &Value, what: &str| {
        let passes = found["results"][0]["passes"].as_array().into_iter().flatten();
        passes.filter_map(|pass| pass[what].as_u64()).sum::<u64>()
    };
    assert_eq!(split["results"][0]["violations"], json!([]));
    assert_eq!(split["results"][0]["ids"], whole["results"][0]["ids"]);
    assert_eq!(split["results"][0]["logits"], whole["results"][0]["logits"]);
    let (buffers, barriers) = (sum(&whole, "command_buffers"), sum(&whole, "barriers"));
    assert_eq!([sum(&split, "command_buffers"), sum(&split, "barriers")], [buffers + barriers, 0]);
    assert_eq!(sum(&split, "dispatches"), sum(&whole, "dispatches"));
}

/// The checks of `cargo xtask metal`, which continuous integration runs on hosted Macs.
#[test]
fn ci_checks_fail_without_a_gpu_or_without_dispatches() {
    let Some(built) = any() else { return };
    let program = Program::new(built);
    let programs = [MetalProgram { name: built.name(), path: program.path.clone() }];
    let check = |machine: &str, more: &[(&str, &str)]| {
        let home = program.home.path().to_str().expect("a path in UTF-8");
        let variables = [&[("HOME", home), ("EMULATED_MACHINE", machine)], more].concat();
        check_programs(&programs, &variables)
    };
    let summary = check("virtual", &[]).expect("the program runs on the emulated GPU");
    assert!(summary.starts_with("1 programs passed, with ") && !summary.contains("with 0 "), "{summary}");
    for machine in ["none", "wrong-matrices"] {
        let message = check(machine, &[]).expect_err("there is no usable GPU");
        assert!(message.contains("FORGE_REQUIRE_METAL=1 is set"), "{message}");
    }
    let message = check("none", &[("FORGE_REQUIRE_METAL", "")]).expect_err("it ran on the CPU");
    assert!(message.contains("nothing ran on a Metal GPU"), "{message}");
    assert_eq!(check_programs(&[], &[]), Err("no program was checked".to_owned()));
}

/// A report of all steps, without private data. Without a GPU it is written too.
#[test]
fn reports_have_all_steps_and_no_private_data() {
    let Some(built) = any() else { return };
    let program = Program::new(built);
    let home = program.home.path().to_str().expect("a path in UTF-8").to_owned();
    let report = |machine: &str| {
        let out = program.home.path().join("report.json");
        let mut command = Command::new(forge());
        command.arg("report").arg(model(&built.model)).arg("--program").arg(&program.path);
        command.args(["--quick", "--minutes", "0", "--out"]).arg(&out);
        command.env("HOME", &home).env("USER", "maxine").env("EMULATED_MACHINE", machine);
        let output = command.output().expect("forge runs");
        let written = std::fs::read_to_string(&out).expect("the report is written");
        let json: Value = serde_json::from_str(&written).expect("a report is JSON");
        (output, written, json)
    };
    let (output, written, json) = report("mac");
    let summary = text(&output.stdout);
    assert!(output.status.success(), "{summary}{}", text(&output.stderr));
    assert_eq!([&json["passed"], &json["failed"], &json["skipped"]], [9, 0, 2], "{summary}");
    assert!(!written.contains(&home) && !written.contains("maxine") && !written.contains("Library/Caches"));
    let results = |name: &str| {
        let steps = json["steps"].as_array().into_iter().flatten();
        steps
            .filter(|step| step["name"] == name)
            .flat_map(|step| step["results"].as_array())
            .flatten()
            .count()
    };
    assert_eq!(["logits match the reference", "speed (bench)"].map(results), [1, 5]);
    assert!(written.contains("pipelines saved to <path>"), "the code path is stated");
    assert!(summary.contains("passed   logits match the reference") && summary.contains("attach the file"));
    let (output, _, json) = report("none");
    assert_eq!(output.status.code(), Some(1));
    assert!(json["failed"].as_u64() >= Some(5), "{json}");
    assert!(text(&output.stdout).contains("FAILED   logits match the reference: "));
}
