//! Logits of programs against Hugging Face transformers and the reference implementation, for every model in
//! every format: on the CPU device, and of kernels.metal in the kernel checker.

use forge_ir::{int8_tolerances, tolerance};
use forge_ops::Format;
use serde_json::Value;
use std::process::Command;
use tests::{
    ALL_EXPERTS_SELECTED, Built, MLX, ODD, SUPERBLOCKS, all_built, deviation, distance, forge, id_list, ids,
    is_random, model, numbers, parallel_map, rms_distance, run, scratch,
};

/// The prompts of a model's golden.json: tokens, the 24 greedy tokens that follow, and the logits of the last
/// position. Models that tests create have none: only the reference implementation computes them.
pub(crate) fn golden(name: &str) -> Vec<(Vec<u32>, Vec<u32>, Vec<f64>)> {
    if is_random(name) {
        return Vec::new();
    }
    let bytes =
        std::fs::read(model(name).join("golden.safetensors")).expect("a model has golden.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("golden.safetensors is whole");
    let words = |name: &str| {
        let tensor = tensors.tensor(name).ok()?;
        Some(
            tensor
                .data()
                .as_chunks::<4>()
                .0
                .iter()
                .map(|bytes| u32::from_le_bytes(*bytes))
                .collect::<Vec<_>>(),
        )
    };
    let floats = |name: &str| -> Option<Vec<f64>> {
        Some(words(name)?.into_iter().map(|bits| f64::from(f32::from_bits(bits))).collect())
    };
    let Ok(text) = std::fs::read_to_string(model(name).join("golden.json")) else {
        // Odd models have tokens and logits, but no continuation.
        let text =
            |index| Some((words(&format!("ids_{index}"))?, Vec::new(), floats(&format!("last_{index}"))?));
        return (0..).map_while(text).collect();
    };
    let golden: Value = serde_json::from_str(&text).expect("golden.json is JSON");
    let sequences = golden["sequences"].as_array().expect("golden.json has sequences").iter().enumerate();
    sequences
        .map(|(index, sequence)| {
            let last = floats(&format!("last_{index}")).expect("every sequence has logits");
            (ids(&sequence["ids"]), ids(&sequence["greedy"]), last)
        })
        .collect()
}

/// Crates with exactly the checkpoint's weights and a nearly exact KV cache, so that only arithmetic and the
/// rounding of the cache differ. Tests of the reference cover quantized caches.
fn exact(built: &Built) -> bool {
    matches!(built.format.as_str(), "f32" | "bf16" | "keep") && built.cache() != Format::Q8_0
}

/// The bound for a crate's logits against logits of the same weights.
pub(crate) fn bound(built: &Built) -> f64 {
    tolerance(built.cache()).bound
}

/// For every crate, the errors that `check` returns.
fn every_crate(check: impl Fn(&Built) -> Vec<String> + Sync) {
    for_each_program(all_built().iter(), check);
}

/// Like the above for some crates, in parallel on all cores.
pub(crate) fn for_each_program(
    crates: impl Iterator<Item = &'static Built> + Send,
    check: impl Fn(&Built) -> Vec<String> + Sync,
) {
    let named = |built: &Built| {
        let errors = check(built).into_iter().map(|error| format!("{}: {error}", built.name()));
        errors.collect::<Vec<_>>()
    };
    let errors = parallel_map(crates, named).concat();
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

#[test]
fn logits_equal_those_of_transformers() {
    every_crate(|built| {
        let mut errors = Vec::new();
        for (prompt, _, expected) in golden(&built.model) {
            let found = built.json(&["logits", "--token-ids", &id_list(&prompt), "--threads", "2", "--json"]);
            let distance = distance(&numbers(&found["logits"]), &expected);
            println!("{} {} ids: {distance:.1e}", built.name(), prompt.len());
            if exact(built) && distance > bound(built) {
                errors.push(format!("logits after {} ids are {distance:.1e} deviations off", prompt.len()));
            }
        }
        errors
    });
}

#[test]
fn every_position_equals_the_last_of_its_prefix() {
    every_crate(|built| {
        let prompt: Vec<u32> = (0..23).map(|index| index * 97 % 60).collect();
        let all = built.json(&["logits", "--token-ids", &id_list(&prompt), "--all", "--json"]);
        let rows = all["logits"].as_array().expect("one row a position");
        assert_eq!(rows.len(), prompt.len());
        let mut errors = Vec::new();
        for length in [1, 2, prompt.len() - 1] {
            let alone = built.json(&["logits", "--token-ids", &id_list(&prompt[..length]), "--json"]);
            let distance = distance(&numbers(&rows[length - 1]), &numbers(&alone["logits"]));
            if distance > bound(built) {
                errors.push(format!("position {} differs by {distance:.1e}", length - 1));
            }
        }
        errors
    });
}

/// The tolerance for quantized activations, by model; none with float weights.
#[test]
fn quantized_activations_are_close_to_f32_activations() {
    every_crate(|built| {
        let distances = |count: u32| {
            let prompt: Vec<u32> = (0..count).map(|index| index * index * 31 % 60).collect();
            let list = id_list(&prompt);
            let arguments = ["logits", "--token-ids", &list, "--all", "--json"];
            let rows = |text: String| -> Vec<Vec<f64>> {
                let answer: Value = serde_json::from_str(&text).expect("it is JSON");
                answer["logits"].as_array().into_iter().flatten().map(numbers).collect()
            };
            let (found, exact) = (rows(built.run_by_default(&arguments)), rows(built.run(&arguments)));
            assert_eq!([found.len(), exact.len()], [prompt.len(); 2]);
            let pairs = || found.iter().zip(&exact);
            let mut of_positions: Vec<f64> = pairs().map(|(a, b)| rms_distance(a, b)).collect();
            of_positions.sort_by(f64::total_cmp);
            (of_positions, pairs().map(|(a, b)| distance(a, b)).fold(0.0, f64::max))
        };
        let kernels =
            std::fs::read_to_string(built.directory.join("src/kernels.rs")).expect("it was written");
        let numbers_only =
            ["f32", "f16", "bf16"].contains(&built.format.as_str()) && built.overrides.is_empty();
        let has_all = ALL_EXPERTS_SELECTED.iter().any(|(model, _)| *model == built.model);
        let chooses = kernels.contains("\"routes\"") && !has_all;
        let ((several, of_several), (_, alone)) = (distances(41), distances(1));
        let found = [several[20], several[36], of_several.max(alone)];
        let [middle, of_most, worst] = found;
        println!("{}: {middle:.1e}, {of_most:.1e}, at most {worst:.1e}, alone {alone:.1e}", built.name());
        let allowed = int8_tolerances(chooses).map(|tolerance| tolerance.bound);
        let mut errors = Vec::new();
        // NaN is never allowed.
        let is_near = |(found, allowed): (&f64, f64)| found.is_finite() && *found <= allowed;
        if !found.iter().zip(allowed).all(is_near) {
            errors.push(format!(
                "logits of encoded rows are {middle:.1e}, {of_most:.1e} and {worst:.1e} deviations off"
            ));
        }
        if numbers_only && worst > 0.0 {
            errors.push(format!("nothing is to be encoded, and logits are {worst:.1e} deviations off"));
        }
        errors
    });
}

/// On every instruction set of the machine.
#[test]
fn verify_passes_on_every_instruction_set() {
    let levels = levels(&all_built()[0]);
    every_crate(|built| {
        let mut errors = Vec::new();
        for level in &levels {
            let mut command = Command::new(&built.program);
            command.args(["verify", "--json", "--device", "cpu", "--threads", "2"]).env("FORGE_ISA", level);
            let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
            let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let int8 = &report["int8_activations"]["distance"];
            println!("{} by {level}: max error {}, int8 {int8}", built.name(), report["max_error"]);
            if report["ok"] != Value::Bool(true) {
                let stderr = String::from_utf8_lossy(&output.stderr);
                errors.push(format!("by {level} verify says {report} {stderr}"));
            }
        }
        errors
    });
}

/// The ISA levels that a program supports on this machine, from its error message for an unknown level.
fn levels(built: &Built) -> Vec<String> {
    let mut command = Command::new(&built.program);
    let output =
        command.args(["logits", "--token-ids", "1", "--device", "cpu"]).env("FORGE_ISA", "others").output();
    let stderr = String::from_utf8(output.expect("it runs").stderr).expect("programs print UTF-8");
    let names = stderr.trim().rsplit_once("this machine supports ").map(|(_, names)| names.to_owned());
    let levels: Vec<String> =
        names.unwrap_or_default().split(", ").map(|name| name.trim().to_owned()).collect();
    assert!(levels.iter().any(|name| name == "portable"), "{stderr}");
    levels
}

/// Whether transformers changes the RoPE frequencies with every generated token: dynamic scaling, beyond the
/// original context length. A program uses the frequencies of its slot's context from the start. Its text
/// therefore differs, and must be the greedy one for these frequencies.
pub(crate) fn rope_changes_during_decode(name: &str, length: usize) -> bool {
    let text = std::fs::read_to_string(model(name).join("config.json")).expect("a model has config.json");
    let config: Value = serde_json::from_str(&text).expect("config.json is JSON");
    config["rope_scaling"]["type"].as_str().or(config["rope_scaling"]["rope_type"].as_str())
        == Some("dynamic")
        && config["max_position_embeddings"].as_u64().is_some_and(|most| length as u64 > most)
}

#[test]
fn greedy_tokens_match_the_reference() {
    every_crate(|built| {
        let mut errors = Vec::new();
        let texts = golden(&built.model).into_iter().filter(|(_, expected, _)| !expected.is_empty());
        for (prompt, expected, _) in texts {
            let count = expected.len().to_string();
            let arguments = [
                "generate",
                "--token-ids",
                &id_list(&prompt),
                "-n",
                &count,
                "--temperature",
                "0",
                "--ignore-eos",
                "--threads",
                "2",
                "--json",
            ];
            let found = ids(&built.json(&arguments)["token_ids"]);
            let rope_changes_during_decode =
                rope_changes_during_decode(&built.model, prompt.len() + expected.len());
            if exact(built)
                && built.cache() == Format::F32
                && found != expected
                && !rope_changes_during_decode
            {
                errors.push(format!("{found:?} is not {expected:?}"));
            }
            // This reference has an unquantized KV cache.
            if built.cache() == Format::Q8_0 {
                continue;
            }
            errors.extend(not_greedy(built, &prompt, &found, expected.len()));
        }
        errors
    });
}

/// Each generated token must have the largest of the reference's logits for the stored weights, or be within
/// the tolerance of it.
fn not_greedy(built: &Built, prompt: &[u32], found: &[u32], count: usize) -> Option<String> {
    if found.len() != count {
        return Some(format!("{} ids were requested, {} were generated", count, found.len()));
    }
    let ids: Vec<u32> = prompt.iter().chain(found).copied().collect();
    let rows = reference(built, &ids);
    found.iter().enumerate().find_map(|(index, id)| {
        let logits: Vec<f64> = rows[prompt.len() + index - 1].iter().map(|logit| f64::from(*logit)).collect();
        let best = logits.iter().copied().fold(f64::MIN, f64::max);
        let margin = (best - logits[*id as usize]) / deviation(&logits);
        (margin > bound(built))
            .then(|| format!("id {index} of the answer is {margin:.1e} deviations below the likeliest"))
    })
}

/// The reference's logits at every position, computed from the bytes of the crate's weight file.
fn reference(built: &Built, ids: &[u32]) -> Vec<Vec<f32>> {
    let (graph, plan) = built.planned();
    let bytes = std::fs::read(built.directory.join("weights.safetensors")).expect("a crate has weights");
    let read = |offset: u64, out: &mut [u8]| {
        let part = bytes.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(part.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    let packed =
        forge_weights::PackedFile::open(&graph, &plan.weights, read).expect("it was written for this plan");
    forge_reference::evaluate(&graph, &packed, ids, forge_reference::Positions::All)
        .expect("it can be evaluated")
}

#[test]
fn replay_has_no_faults_and_the_same_logits() {
    every_crate(|built| {
        let directory = built.directory.display().to_string();
        let program = built.program.display().to_string();
        let output = Command::new(forge())
            .args(["verify", &directory, "--program", &program, "--json", "--report"])
            .output()
            .expect("forge runs");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        println!("{}: {} steps, worst {}", built.name(), report["steps"], report["worst"]);
        let page = std::fs::read_to_string(built.directory.join("report.html")).unwrap_or_default();
        let reported = page.contains("<td>head_decode") && !page.contains("Nothing yet");
        match report["ok"] == Value::Bool(true) && output.status.success() && reported {
            true => vec![],
            false => vec![format!("{report:#}\n{}", String::from_utf8_lossy(&output.stderr))],
        }
    });
}

#[test]
fn kv_cache_memory_matches_the_plan() {
    every_crate(|built| {
        // Checkpoints created by tests are deleted, so they cannot be planned again.
        if [ODD, MLX, SUPERBLOCKS.0].contains(&built.model.as_str()) {
            return vec![];
        }
        let plan = built.planned().1;
        let info = built.json(&["info", "--json", "--ctx-size", "70", "--slots", "3"]);
        // The memory of a device: the buffers of a recording.
        let file = scratch().join(format!("{}.recording.json", built.name()));
        let path = file.display().to_string();
        built.run(&["record", "--token-ids", "1,2", "--ctx-size", "70", "--slots", "3", "-o", &path]);
        let recording = std::fs::read(&file).expect("it was written");
        let recording: Value = serde_json::from_slice(&recording).expect("it is JSON");
        let bytes = [&info["memory"]["kv_bytes"], &recording["buffers"]["state"]["bytes"]].map(Value::as_u64);
        match bytes == [Some(plan.state_bytes(70, 3)); 2] {
            true => vec![],
            false => vec![format!("{bytes:?}, and the plan says {}", plan.state_bytes(70, 3))],
        }
    });
}

#[test]
fn kernels_compile_with_address_spaces() {
    let clang = forge_kernels::check::find_clang().expect("clang is installed: cargo xtask test says how");
    every_crate(|built| {
        let text =
            std::fs::read_to_string(built.directory.join("src/kernels.metal")).expect("a crate has kernels");
        match forge_kernels::check::check_text(&clang, &text) {
            Ok(()) => vec![],
            Err(faults) => vec![format!("{faults:?}")],
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let built = &all_built()[0];
    let generate = |seed: &str| {
        built.run(&[
            "generate",
            "--token-ids",
            "1,2,3",
            "-n",
            "20",
            "--temperature",
            "1",
            "--seed",
            seed,
            "--ignore-eos",
            "--json",
        ])
    };
    let text = |seed| {
        serde_json::from_str::<Value>(&generate(seed))
            .map(|answer| answer["token_ids"].clone())
            .unwrap_or_default()
    };
    assert_eq!(text("7"), text("7"));
    assert_ne!(text("7"), text("8"));
}

#[test]
fn rejects_invalid_arguments() {
    let built = &all_built()[0];
    let cases: [(&[&str], i32, &str); 5] = [
        (&["logits", "--token-ids", "1,99999", "--json"], 2, "99999"),
        (&["generate", "--token-ids", "1", "--ctx-size", "100000000"], 2, "context"),
        (&["generate", "--no-such-flag"], 2, "--no-such-flag"),
        (&["generate", "--token-ids", "1,x"], 2, "x"),
        (&["generate", "--token-ids", "1,2,3,4,5,6,7,8,9", "--ctx-size", "8"], 2, "9 tokens"),
    ];
    for (arguments, code, named) in cases {
        let output = Command::new(&built.program).args(arguments).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(named), "{arguments:?} should name {named}: {stderr}");
    }
    run(Command::new(&built.program).arg("--help"));
}
