//! `bench`, `perplexity`, `profile` and `tune`.

use crate::chat::{say, words};
use crate::support::reference::Reference;
use crate::{directory, json, run, text};
use serde_json::Value;

#[test]
fn profile_lists_kernels_and_writes_a_trace() {
    let folder = directory(0.0);
    let output = text(&run(&folder, "profile --ctx-size 9 -p 20 -r 2").stdout);
    let (id, prompt) = output.split_once("prefill of 20 tokens\n").expect("both are printed");
    assert!(id.starts_with("decode at 9 tokens\nkernel"), "{output}");
    let dispatches = json(&folder, "info --json")["decode"]["dispatches"].clone();
    let dispatches_of_id = dispatches.as_u64().unwrap();
    // Three passes, of which the last has a head: three steps.
    for (part, dispatches) in [(id, dispatches_of_id), (prompt, 3 * dispatches_of_id - 6)] {
        assert!(part.contains(&format!("\n{dispatches} dispatches: ")), "{output}");
        assert!(part.contains("µs isolated, ") && part.contains("µs in the pass (median of 2)"), "{output}");
    }
    let line = |kernel: &str| id.lines().find(|line| line.starts_with(kernel)).map(str::to_owned);
    let qkv = line("qkv ").expect("it has a line");
    assert_eq!(qkv.split_whitespace().nth(1), Some("2"), "one a layer: {qkv}");
    let file = folder.path().join("trace.json");
    let output = json(&folder, &format!("profile -r 1 --ctx-size 5 --json --trace {}", file.display()));
    let steps = output["profiles"][0]["steps"].as_array().unwrap();
    assert_eq!(steps.len() as u64, dispatches.as_u64().unwrap());
    let layers: Vec<Option<u64>> = steps.iter().map(|step| step["layer"].as_u64()).collect();
    assert_eq!([layers[0], layers[1], *layers.last().unwrap()], [None, Some(0), None], "{layers:?}");
    assert_eq!(layers.iter().flatten().max(), Some(&1));
    let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    // One event names the track.
    assert_eq!(events.len(), steps.len() + 1);
    let missing = run(&folder, "profile -r 1 --trace nowhere/trace.json");
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("--trace nowhere/trace.json"));
    let beyond = run(&folder, "profile -r 1 -p 100000");
    assert_eq!(beyond.status.code(), Some(2), "{}", text(&beyond.stderr));
}

#[test]
fn tune_is_for_gpus() {
    let folder = directory(0.0);
    let output = run(&folder, "tune --device cpu");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("tune needs a GPU"), "{}", text(&output.stderr));
}

#[test]
fn perplexity_matches_the_reference() {
    let folder = directory(0.0);
    let reference = Reference::new();
    // The loss of each token after the first.
    let costs = |ids: &[u32]| -> Vec<f64> {
        let logits = reference.logits(ids);
        let cost = |row: &Vec<f64>, id: u32| row.iter().map(|l| l.exp()).sum::<f64>().ln() - row[id as usize];
        ids.iter().skip(1).zip(&logits).map(|(&id, row)| cost(row, id)).collect()
    };
    let (first, second): (Vec<u32>, Vec<u32>) = ((3..40).collect(), vec![41, 7, 7]);
    let file = folder.path().join("texts.txt");
    std::fs::write(&file, format!("{}\n\n---\n\n{}\n", words(&first), words(&second))).unwrap();
    let line = format!("perplexity {} --separator --- --append-eos --json --f32-activations", file.display());
    let whole = |ids: &[u32]| [&[1], ids, &[2]].concat();
    let expected = [costs(&whole(&first)), costs(&whole(&second))].concat();
    let mean = expected.iter().sum::<f64>() / expected.len() as f64;
    let found = json(&folder, &line);
    assert_eq!((found["texts"].as_u64(), found["tokens"].as_u64()), (Some(2), Some(42)));
    assert!((found["loss"].as_f64().unwrap() - mean).abs() < 1e-3 * mean, "{found} is not {mean}");
    assert_eq!(found["perplexity"].as_f64().unwrap(), found["loss"].as_f64().unwrap().exp());
    // With windows of 16 that overlap by half: every token once, with at least 8 tokens of context except at
    // the start.
    let ids = [&[1][..], &first].concat();
    let mut expected = costs(&ids[..16]);
    for start in (8..ids.len() - 8).step_by(8) {
        let window = &ids[start..ids.len().min(start + 16)];
        expected.extend(&costs(window)[7..]);
    }
    assert_eq!(expected.len(), 37);
    let mean = expected.iter().sum::<f64>() / expected.len() as f64;
    std::fs::write(&file, words(&first)).unwrap();
    let found =
        json(&folder, &format!("perplexity {} --ctx-size 16 --json --f32-activations", file.display()));
    assert_eq!((found["tokens"].as_u64(), found["context"].as_u64()), (Some(37), Some(16)));
    assert!((found["loss"].as_f64().unwrap() - mean).abs() < 1e-3 * mean, "{found} is not {mean}");
    // From standard input, as text.
    let output = say(&folder, "perplexity - --ctx-size 16", &words(&first));
    assert!(text(&output.stdout).starts_with("perplexity "), "{}", text(&output.stdout));
}

#[test]
fn sustained_bench_prints_the_speed_of_each_minute() {
    let folder = directory(0.0);
    let result = json(&folder, "bench --minutes 2 --interval 1 -n 5 --threads 1 --json");
    let speeds: Vec<f64> =
        result["minutes_ts"].as_array().unwrap().iter().map(|speed| speed.as_f64().unwrap()).collect();
    assert!(speeds.len() == 2 && speeds.iter().all(|speed| *speed > 0.0), "{result}");
    let lines = text(&run(&folder, "bench --minutes 1 --interval 1 -n 5 --threads 1").stdout);
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines[0].starts_with("minute   1: ") && lines[0].ends_with(" tok/s"), "{lines:?}");
    assert!(lines[1].ends_with("the last minute is at 100% of the first"), "{lines:?}");
}

#[test]
fn bench_decodes_more_sequences_than_a_pass_has_rows() {
    let folder = directory(0.0);
    let result = json(&folder, "bench -b 1,8,20 -p 2 -n 3 -r 1 --threads 1 --json");
    let parallel: Vec<_> =
        result["results"].as_array().unwrap().iter().map(|run| run["pl"].clone()).collect();
    assert_eq!(parallel, [1, 8, 20]);
    assert_eq!(result["differing_from_first"], serde_json::json!([]));
}

#[test]
fn bench_measures_prompts_and_generation() {
    let folder = directory(0.0);
    let result = json(&folder, "bench -p 4,20 -n 5 -r 2 --threads 1 --json");
    assert_eq!(result["n_threads"], 1);
    assert_eq!(result["model_type"], "tiny q8_0");
    assert!(result["bytes_per_token"].as_u64().unwrap() > 1000);
    assert!(result["memory_bandwidth"].is_null(), "so few bytes are in caches");
    assert_eq!(result["results"][0]["memory_bandwidth_samples"], serde_json::json!([]));
    assert_eq!(result["flops_per_prompt_token"], 10_000 / 8);
    for kind in ["int8", "f32"] {
        assert!(result["peak_ops"][kind].as_f64().unwrap() > 1e6, "{kind}");
    }
    let tests: Vec<&str> =
        result["results"].as_array().unwrap().iter().map(|result| result["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["pp4", "pp20", "tg5"]);
    for result in result["results"].as_array().unwrap() {
        assert_eq!(result["samples_ts"].as_array().unwrap().len(), 2);
        assert!(result["avg_ts"].as_f64().unwrap() > 0.0);
    }
    let behind = json(&folder, "bench -p 4 -n 5 -d 0,30 -r 1 --threads 1 --json");
    let tests: Vec<(&str, u64)> = behind["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| (result["test"].as_str().unwrap(), result["n_depth"].as_u64().unwrap()))
        .collect();
    assert_eq!(tests, [("pp4", 0), ("tg5", 0), ("pp4 @ d30", 30), ("tg5 @ d30", 30)]);
    let rejected = run(&folder, "bench -p 4 -n 5 -d 60 --threads 1");
    assert!(
        !rejected.status.success() && text(&rejected.stderr).contains("65 tokens of context"),
        "{rejected:?}"
    );
    let table = text(&run(&folder, "bench -p 4 -n 5 -r 1 --threads 1").stdout);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
    assert_eq!(rows[0][1..8], ["model", "size", "params", "backend", "threads", "test", "t/s"], "{table}");
    assert_eq!((rows.len(), rows[2][4..7].to_vec()), (4, vec!["CPU", "1", "pp4"]), "{table}");
    let widths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
}
