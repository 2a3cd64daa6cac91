//! Ring buffers of sliding-window layers: sequences that wrap around give the logits of the reference, which
//! keeps all positions, for any chunking; and the memory matches the plan.
//!
//! The models are those of `tests/models` with sliding windows, in contexts that are longer than their rings.

use forge_frontend::MemoryCheckpoint;
use forge_ir::{Graph, tolerance};
use forge_ops::Format;
use forge_planner::{Options, Plan, Quant};
use forge_reference::{Positions, evaluate};
use forge_weights::PackedFile;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use tests::{Built, build_together, compile_member, deviation, forge_with, model, scratch};

/// A model, and changes of its window configuration.
const MODELS: [(&str, Option<usize>); 5] =
    [("cohere2", None), ("gemma2", None), ("gemma3_text", None), ("mistral", None), ("phi3", Some(24))];

/// Positions of a context: more than three rings of 320.
const CONTEXT: usize = 1024;

/// Tokens of a sequence that wraps around every ring buffer twice.
const LONG: usize = 700;

/// A crate, and its checkpoint.
struct RingBufferModel {
    built: Built,
    graph: Graph,
    plan: Plan,
}

/// The checkpoint of a model, in a longer context.
fn checkpoint(name: &str, window: Option<usize>) -> PathBuf {
    let to = scratch().join("rings").join("checkpoints").join(name);
    std::fs::create_dir_all(&to).expect("the build folder is writable");
    for entry in std::fs::read_dir(model(name)).expect("a model is a folder").flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("the build folder is writable");
    }
    let path = to.join("config.json");
    let text = std::fs::read_to_string(&path).expect("a model has a configuration");
    let mut config: Value = serde_json::from_str(&text).expect("it is JSON");
    config["max_position_embeddings"] = json!(CONTEXT);
    if let Some(window) = window {
        config["sliding_window"] = json!(window);
    }
    std::fs::write(&path, config.to_string()).expect("the build folder is writable");
    to
}

fn ring_buffer_model(name: &str, window: Option<usize>, workspace: &Path) -> RingBufferModel {
    let from = checkpoint(name, window);
    let directory = workspace.join(format!("{}-rings", name.replace('_', "-")));
    compile_member(&from, &["--quant", "f32", "--no-reference-logits"], &directory);
    let file = |file: &str| (file.to_owned(), std::fs::read(from.join(file)).expect("it has this file"));
    let memory = MemoryCheckpoint(BTreeMap::from(["config.json", "model.safetensors"].map(file)));
    let opened =
        forge_frontend::read_model(&memory, &forge_frontend::Options::default()).expect("it was compiled");
    let options = Options { quant: Quant::To(Format::F32), ..Options::default() };
    let plan = forge_planner::plan(&opened.graph, &options).expect("it was compiled");
    let built = Built {
        model: name.to_owned(),
        format: "f32".to_owned(),
        overrides: &[],
        kv: None,
        disabled: BTreeSet::new(),
        directory,
        program: PathBuf::new(),
    };
    RingBufferModel { built, graph: opened.graph, plan }
}

fn all() -> &'static [RingBufferModel] {
    static ALL: OnceLock<Vec<RingBufferModel>> = OnceLock::new();
    ALL.get_or_init(|| {
        let workspace = scratch().join("rings").join("crates");
        let mut all: Vec<RingBufferModel> =
            MODELS.iter().map(|(name, window)| ring_buffer_model(name, *window, &workspace)).collect();
        let names = || {
            let name = |it: &RingBufferModel| {
                it.built.directory.file_name().map(|name| name.to_string_lossy().into_owned())
            };
            all.iter().filter_map(name)
        };
        let programs = build_together(&workspace, names());
        let found: Vec<PathBuf> = names().map(|name| programs[&name].clone()).collect();
        all.iter_mut().zip(found).for_each(|(it, program)| it.built.program = program);
        all
    })
}

/// Writes golden.json: one long sequence in several portions, with the reference's logits of its last
/// position. The file is deleted when the returned value is dropped.
fn write_golden(it: &RingBufferModel, portions: &[Vec<usize>]) -> MutexGuard<'static, ()> {
    static GOLDEN: Mutex<()> = Mutex::new(());
    let only_one = GOLDEN.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = std::fs::read(it.built.directory.join("weights.safetensors")).expect("a crate has weights");
    let read = |offset: u64, out: &mut [u8]| {
        let part = bytes.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(part.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    let packed = PackedFile::open(&it.graph, &it.plan.weights, read).expect("it was written for this plan");
    let longest = portions.iter().map(|chunks| chunks.iter().sum()).max().unwrap_or(0);
    let ids: Vec<u32> = (0..longest as u32).map(|i| (i * i * 31 + i * 97 + 5) % 300).collect();
    let rows = evaluate(&it.graph, &packed, &ids, Positions::All).expect("it can be evaluated");
    let sequence = |chunks: &Vec<usize>| {
        let count = chunks.iter().sum::<usize>();
        let logits: Vec<f64> = rows[count - 1].iter().copied().map(f64::from).collect();
        json!({ "ids": ids[..count], "chunks": chunks, "logits": logits, "deviation": deviation(&logits) })
    };
    let tolerance = tolerance(Format::F32);
    let golden = json!({
        "model": it.built.model,
        "tolerance": { "bound": tolerance.bound, "reason": tolerance.reason },
        "sequences": portions.iter().map(sequence).collect::<Vec<_>>(),
    });
    std::fs::write(it.built.directory.join("golden.json"), golden.to_string()).expect("it is writable");
    only_one
}

/// Portions of odd sizes, of every kind of pass.
fn odd_chunks(count: usize) -> Vec<usize> {
    let mut portions = Vec::new();
    let mut left = count;
    for size in [7, 250, 33, 1, 1, 200, 17, 3, 99].into_iter().cycle() {
        let size = size.min(left);
        if size == 0 {
            return portions;
        }
        portions.push(size);
        left -= size;
    }
    portions
}

#[test]
fn sequences_longer_than_the_ring_buffer_match_the_reference() {
    for it in all() {
        // As one prompt, in portions of odd sizes, row by row, and row by row after a prompt.
        let then_one_by_one = [vec![400], vec![1; 60]].concat();
        let _golden = write_golden(it, &[vec![LONG], odd_chunks(LONG), vec![1; LONG], then_one_by_one]);
        let report = it.built.json(&["verify", "--json"]);
        println!("{}: max error {}", it.built.model, report["max_error"]);
        assert_eq!(report["ok"], true, "{}: {report:#}", it.built.model);
    }
}

#[test]
fn the_kernel_checker_finds_no_faults_with_ring_buffers() {
    for it in all().iter().filter(|it| ["gemma3_text", "mistral"].contains(&it.built.model.as_str())) {
        // Once around the ring, in passes of many rows, a small batch and one row.
        let _golden = write_golden(it, &[[vec![256, 70, 5], vec![1; 3]].concat()]);
        let directory = it.built.directory.display().to_string();
        let output = std::process::Command::new(tests::forge())
            .args(["verify", &directory, "--program", &it.built.program.display().to_string(), "--json"])
            .output()
            .expect("forge runs");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        println!("{}: {} steps, worst {}", it.built.model, report["steps"], report["worst"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(report["ok"] == true && output.status.success(), "{report:#}\n{stderr}");
    }
}

#[test]
fn kv_cache_memory_matches_the_plan() {
    for it in all() {
        let plan = &it.plan;
        assert!(!plan.rings().is_empty(), "{}", it.built.model);
        // Contexts longer than a ring, as long, and shorter.
        for (context, slots) in [(CONTEXT, 1), (700, 3), (320, 2), (100, 1)] {
            let size = [context.to_string(), slots.to_string()];
            let info = it.built.json(&["info", "--json", "--ctx-size", &size[0], "--slots", &size[1]]);
            let stated = info["memory"]["kv_bytes"].as_u64();
            assert_eq!(stated, Some(plan.state_bytes(context, slots)), "{} {size:?}", it.built.model);
            // The memory of a device: the buffers of a recording.
            let file = scratch().join("rings").join("recording.json");
            let path = file.display().to_string();
            it.built.run(&[
                "record",
                "--token-ids",
                "1,2",
                "--ctx-size",
                &size[0],
                "--slots",
                &size[1],
                "-o",
                &path,
            ]);
            let recording = std::fs::read(&file).expect("it was written");
            let recording: Value = serde_json::from_slice(&recording).expect("it is JSON");
            assert_eq!(recording["buffers"]["state"]["bytes"].as_u64(), stated, "{}", it.built.model);
        }
        let whole: usize = plan.cache_bytes_per_position() * CONTEXT;
        assert!((plan.state_bytes(CONTEXT, 1) as usize) < whole, "{}: rings save memory", it.built.model);
    }
    // The compiler prints the same before the program is built.
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (from, to) = (checkpoint("mistral", None).display().to_string(), folder.path().join("out"));
    let output =
        forge_with(&["compile", &from, "-o", &to.display().to_string(), "--no-reference-logits", "--json"]);
    let summary: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    // Two layers with two heads of width 16, f16 KV cache, 320 positions of 1024.
    assert_eq!(summary["memory"]["kv_bytes"], 2 * 2 * 2 * 16 * 2 * 320);
}
