//! `--calibrate`: its effect on the quality of quantized models.

use forge_frontend::{MemoryCheckpoint, read_model};
use forge_ir::Graph;
use forge_planner::{Options, Override, Quant};
use forge_reference::{Positions, evaluate};
use forge_weights::{CheckpointWeights, PackedFile};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tests::{forge_with, model, root};

/// A trained model and two parts of its held-out text.
struct Trained {
    checkpoint: MemoryCheckpoint,
    /// For `--calibrate`.
    calibration: tempfile::NamedTempFile,
    /// Stories, for the comparison.
    sequences: Vec<Vec<u32>>,
}

fn fable() -> Trained {
    let folder = root().join("examples/fable");
    let file = |name: &str| (name.to_owned(), std::fs::read(folder.join(name)).expect("it has this file"));
    let files = BTreeMap::from(["config.json", "model.safetensors"].map(file));
    let text = std::fs::read_to_string(folder.join("held-out.txt")).expect("a text");
    let calibration = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(calibration.path(), &text[..20_000]).expect("it can be written");
    let tokenizer = forge_runtime::text::tokenizer::Tokenizer::read(&folder.join("tokenizer.json")).unwrap();
    let stories = text.split("* * *\n").skip(120).step_by(10).take(5);
    let sequences = stories.map(|story| {
        let ids = tokenizer.encode(story.trim_end_matches('\n'), false).expect("tokens");
        [&[0], &ids[..ids.len().min(240)]].concat()
    });
    let sequences = sequences.collect();
    Trained { checkpoint: MemoryCheckpoint(files), calibration, sequences }
}

/// Compiles the trained model.
fn compiled(trained: &Trained, quant: &str, calibrated: bool, out: &Path) -> Value {
    let folder = root().join("examples/fable").display().to_string();
    let (to, text) = (out.display().to_string(), trained.calibration.path().display().to_string());
    let mut words = vec!["compile", &folder, "-o", &to, "--quant", quant, "--no-reference-logits", "--json"];
    words.extend(["--calibrate", &text, "--calibrate-tokens", "4096"].into_iter().take(if calibrated {
        4
    } else {
        0
    }));
    let output = forge_with(&words);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// The graph and options of a compiled crate.
fn planned(graph: &Graph, summary: &Value) -> (Graph, Options) {
    let quant = |value: &Value| value.as_str().and_then(Quant::from_name).expect("a format");
    let overrides = summary["options"]["overrides"].as_array().into_iter().flatten().map(|it| {
        Override::new(it["pattern"].as_str().unwrap_or_default(), quant(&it["to"])).expect("a pattern")
    });
    let quant = quant(&summary["options"]["quant"]);
    let options = Options { overrides: overrides.collect(), quant, ..Options::default() };
    (forge_planner::untie(graph.clone(), &options).expect("it was compiled"), options)
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |largest, x| largest.max(*x));
    let sum: f64 = logits.iter().map(|x| f64::from(x - largest).exp()).sum();
    logits.iter().map(|x| f64::from(x - largest) - sum.ln()).collect()
}

/// The mean KL divergence of the logits from those of the checkpoint.
fn divergence(trained: &Trained, summary: &Value, out: &Path) -> f64 {
    let opened = read_model(&trained.checkpoint, &forge_frontend::Options::default()).expect("a model");
    let read =
        |tensor: &str, offset, out: &mut [u8]| opened.tensors.read(&trained.checkpoint, tensor, offset, out);
    let exact = CheckpointWeights::new(&opened.graph, read);
    let (graph, options) = planned(&opened.graph, summary);
    let plan = forge_planner::plan(&graph, &options).expect("it was compiled");
    let bytes = std::fs::read(out.join("weights.safetensors")).expect("it was written");
    let read = |offset: u64, out: &mut [u8]| {
        out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
        Ok(())
    };
    let packed = PackedFile::open(&graph, &plan.weights, read).expect("it was written for this plan");
    let (mut sum, mut count) = (0.0, 0);
    for ids in &trained.sequences {
        let exact = evaluate(&opened.graph, &exact, ids, Positions::All).expect("it can be evaluated");
        let found = evaluate(&graph, &packed, ids, Positions::All).expect("it can be evaluated");
        for (p, q) in exact.iter().zip(&found) {
            let (p, q) = (log_softmax(p), log_softmax(q));
            sum += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            count += 1;
        }
    }
    sum / f64::from(count)
}

#[test]
fn calibration_lowers_the_kl_divergence_on_other_text() {
    let trained = fable();
    let folder = tempfile::tempdir().expect("a temporary directory");
    for quant in ["q4_0", "affine3"] {
        let [plain, with] = [false, true].map(|calibrated| {
            let out = folder.path().join(format!("{quant}-{calibrated}"));
            let summary = compiled(&trained, quant, calibrated, &out);
            (divergence(&trained, &summary, &out), summary)
        });
        println!("{quant}: KL {:.5} → {:.5}", plain.0, with.0);
        assert!(with.0 < 0.95 * plain.0, "{quant}: {} is not below {}", with.0, plain.0);
        assert!(with.1["errors"]["outputs"].as_f64().is_some_and(|error| error > 0.0));
        assert!(plain.1["errors"]["outputs"].is_null());
    }
}

#[test]
fn calibrated_compilation_is_deterministic() {
    let text = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(text.path(), "The quick brown fox jumps over the lazy dog. ".repeat(12))
        .expect("it can be written");
    let folder = tempfile::tempdir().expect("a temporary directory");
    for name in ["qwen3_moe", "deepseek_v3"] {
        let files = ["a", "b"].map(|run| {
            let out = folder.path().join(format!("{name}-{run}"));
            let (from, to) = (model(name).display().to_string(), out.display().to_string());
            let calibrate = ["--calibrate", &text.path().display().to_string()].map(str::to_owned);
            let words = ["compile", &from, "-o", &to, "--quant", "q4_0", "--no-reference-logits"];
            let words: Vec<&str> = words.into_iter().chain(calibrate.iter().map(String::as_str)).collect();
            let output = forge_with(&words);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && stderr.contains("activation statistics of"), "{stderr}");
            std::fs::read(out.join("weights.safetensors")).expect("it was written")
        });
        assert!(files[0] == files[1], "{name}: two files differ");
    }
}
