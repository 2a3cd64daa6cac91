//! The commands `verify` and `record`.

use crate::{directory, json, run, text};
use serde_json::Value;

#[test]
fn verify_compares_the_device_with_the_reference() {
    for (error, code) in [(0.0, 0), (0.25, 1)] {
        let folder = directory(error);
        let output = run(&folder, "verify --json");
        assert_eq!(output.status.code(), Some(code));
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(result["ok"], code == 0);
        assert!((result["max_error"].as_f64().unwrap() - error).abs() < 5e-4);
        assert_eq!(result["sequences"].as_array().unwrap().len(), 4);
        let output = run(&folder, "verify");
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(text(&output.stdout).contains("FAIL: error above tolerance"), code == 1);
    }
}

#[test]
fn verify_also_measures_the_default_path() {
    let folder = directory(0.0);
    let result = json(&folder, "verify --json --device cpu");
    let int8 = &result["int8_activations"];
    assert_eq!((&int8["ok"], &int8["positions"]), (&true.into(), &34.into()));
    let number = |name: &str| int8[name].as_f64().unwrap();
    assert!(number("kl_mean") > 0.0 && number("kl_mean") <= number("kl_max"), "{int8}");
    assert!(number("same_top_token") > 0.5, "{int8}");
    let stdout = text(&run(&folder, "verify --device cpu").stdout);
    assert!(stdout.contains("int8 activations") && stdout.contains("KL divergence"), "{stdout}");
    // With --f32-activations there is no rounding to measure.
    assert!(json(&folder, "verify --json --device cpu --f32-activations")["int8_activations"].is_null());
    // If the loss of int8 activations exceeds its bound, `verify` fails although the f32 logits pass.
    let path = folder.path().join("golden.json");
    let mut golden: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    golden["int8_activations"][0]["bound"] = serde_json::json!(1e-6);
    std::fs::write(&path, golden.to_string()).unwrap();
    let output = run(&folder, "verify --json --device cpu");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let found = [&result["ok"], &result["f32_ok"], &result["int8_activations"]["ok"]];
    assert_eq!(found, [&Value::Bool(false), &Value::Bool(true), &Value::Bool(false)]);
}

#[test]
fn record_writes_every_pass_of_every_sequence() {
    let folder = directory(0.0);
    let file = folder.path().join("recording.json");
    let ids: Vec<String> = (0..20).map(|i| i.to_string()).collect();
    let line = format!("record --token-ids {} --chunks 20 --chunks 3,1 -o {}", ids.join(","), file.display());
    let output = run(&folder, &line);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let recording: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let passes = recording["passes"].as_array().unwrap();
    let labels: Vec<&str> = passes.iter().map(|pass| pass["label"].as_str().unwrap()).collect();
    assert_eq!(
        labels,
        [
            "sequence 0 rows 0..8",
            "sequence 0 rows 8..16",
            "sequence 0 rows 16..20",
            "sequence 1 rows 0..3",
            "sequence 1 rows 3..4"
        ]
    );
    let reads: Vec<usize> = passes.iter().map(|pass| pass["reads"].as_array().unwrap().len()).collect();
    assert_eq!(reads, [0, 0, 1, 0, 1]);
    assert_eq!(
        passes[2]["reads"][0]["what"],
        serde_json::json!({ "logits": { "sequence": 0, "position": 19 } })
    );
    assert_eq!(
        passes[4]["reads"][0]["what"],
        serde_json::json!({ "logits": { "sequence": 1, "position": 3 } })
    );
}
