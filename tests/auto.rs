//! `--quant auto:BITS`: its size, and its effect on quality.

use forge_frontend::{MemoryCheckpoint, read_model};
use forge_planner::{Options, Override, Quant};
use forge_reference::{Positions, evaluate};
use forge_weights::PackedFile;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tests::{deviation, forge_with, model, root};

/// The output of `forge compile --json` for a model, and its logits at every position of some sequences.
struct Compiled {
    summary: Value,
    logits: Vec<Vec<f64>>,
}

fn compiled(checkpoint: &Path, quant: &str) -> Compiled {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (from, to) = (checkpoint.display().to_string(), folder.path().join("out").display().to_string());
    let output =
        forge_with(&["compile", &from, "-o", &to, "--quant", quant, "--no-reference-logits", "--json"]);
    let summary: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let file =
        |name: &str| (name.to_owned(), std::fs::read(checkpoint.join(name)).expect("it has this file"));
    let memory = MemoryCheckpoint(BTreeMap::from(["config.json", "model.safetensors"].map(file)));
    let opened = read_model(&memory, &forge_frontend::Options::default()).expect("it was compiled");
    let graph = opened.graph;
    let quant = |value: &Value| value.as_str().and_then(Quant::from_name).expect("a format");
    let overrides = summary["options"]["overrides"].as_array().into_iter().flatten().map(|it| {
        Override::new(it["pattern"].as_str().unwrap_or_default(), quant(&it["to"])).expect("a pattern")
    });
    let options = Options {
        overrides: overrides.collect(),
        quant: quant(&summary["options"]["quant"]),
        ..Options::default()
    };
    let plan = forge_planner::plan(&graph, &options).expect("it was compiled");
    let bytes = std::fs::read(folder.path().join("out/weights.safetensors")).expect("it was written");
    let read = |offset: u64, out: &mut [u8]| {
        out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
        Ok(())
    };
    let packed = PackedFile::open(&graph, &plan.weights, read).expect("it was written for this plan");
    let mut logits = Vec::new();
    for text in 0..4_u32 {
        let ids: Vec<u32> = (0..48_u32).map(|i| (i * i * 31 + i * 97 + text * 57) % 300).collect();
        let rows = evaluate(&graph, &packed, &ids, Positions::All).expect("it can be evaluated");
        logits.extend(rows.into_iter().map(|row| row.into_iter().map(f64::from).collect::<Vec<f64>>()));
    }
    Compiled { summary, logits }
}

/// The root mean square of the differences at all positions, in standard deviations of the second.
fn distance(a: &Compiled, b: &Compiled) -> f64 {
    let one = |(a, b): (&Vec<f64>, &Vec<f64>)| {
        let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / a.len() as f64;
        squares / deviation(b).powi(2)
    };
    let all: Vec<f64> = a.logits.iter().zip(&b.logits).map(one).collect();
    (all.iter().sum::<f64>() / all.len() as f64).sqrt()
}

#[test]
fn auto_5_has_a_lower_error_than_q4_0_within_its_budget() {
    let trained = root().join("examples/fable");
    let random = ["llama", "qwen3", "gemma2"].map(model);
    for checkpoint in random.iter().chain([&trained]) {
        let [exact, chosen, uniform] = ["f32", "auto:5", "q4_0"].map(|quant| compiled(checkpoint, quant));
        let weights = chosen.summary["weights"].as_array().expect("a list");
        let matrices = weights.iter().filter(|weight| weight["format"] != "f32");
        let bytes: u64 = matrices.filter_map(|weight| weight["bytes"].as_u64()).sum();
        let numbers = exact.summary["parameters"].as_u64().expect("a number");
        let bits = 8.0 * bytes as f64 / numbers as f64;
        let (with, without) = (distance(&chosen, &exact), distance(&uniform, &exact));
        println!("{}: {bits:.3} bits, {with:.4} off; q4_0 is {without:.4}", checkpoint.display());
        assert!(bits <= 5.0 && bits > 4.5, "{}: {bits} bits", checkpoint.display());
        assert!(with < without, "{}: {with} is not below {without}", checkpoint.display());
        let errors = [&chosen, &uniform].map(|it| it.summary["errors"]["all"].as_f64().expect("a number"));
        assert!(errors[0] < errors[1], "{}: {errors:?}", checkpoint.display());
    }
}

#[test]
fn auto_quantization_is_deterministic_and_keeps_overrides() {
    let llama = model("llama").display().to_string();
    let plan = |more: &[&str]| {
        let arguments: Vec<&str> =
            ["inspect", &llama, "--stage", "plan", "--json"].iter().chain(more).copied().collect();
        let output = forge_with(&arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let arguments = ["--quant", "auto:5.5", "--quant-override", "*.1.mlp.down_proj=f16"];
    let (first, stderr) = plan(&arguments);
    assert!(first == plan(&arguments).0, "two choices differ");
    assert!(
        stderr.contains("bits per weight, of 5.5 requested") && stderr.contains("down       f16, "),
        "{stderr}"
    );
}
