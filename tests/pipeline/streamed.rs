//! Experts on disk, streamed and memory-mapped: results are identical to those with all experts in memory,
//! with the minimum of cache slots and with more.

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use tests::{Built, all_built, id_list, parallel_map};

fn run(built: &Built, experts: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(&built.program);
    command.args(arguments).args(["--device", "cpu", "--experts", experts]);
    command.output().expect("the program runs")
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it is text")
}

/// The minimum expert memory that the program's error names.
pub(crate) fn enough(built: &Built) -> Option<u64> {
    let rejected = run(built, "stream:1", &["info"]);
    let message = String::from_utf8(rejected.stderr).expect("it is text");
    assert!(!rejected.status.success(), "one byte does not hold an expert");
    let words: Vec<&str> = message.split_whitespace().collect();
    let end = words.windows(3).position(|words| words == ["bytes", "are", "enough"])?;
    Some(words[end - 1].parse().expect("it is a number"))
}

/// A model with experts in several layers, so that those of the next can be prefetched.
const PREFETCH_MODEL: &str = "qwen3_moe";

/// `bench` reports the expert cache hits and the bytes read for misses.
fn streaming_statistics_are_printed(built: &Built, enough: u64) {
    let bench = ["bench", "-p", "4", "-n", "6", "-r", "1", "--json"];
    let report: Value =
        serde_json::from_str(&text(run(built, &format!("stream:{enough}"), &bench))).expect("JSON");
    for (result, test) in report["results"].as_array().expect("two results").iter().zip(["pp4", "tg6"]) {
        let number = |name: &str| result[name].as_f64().unwrap_or_else(|| panic!("{test} has no {name}"));
        assert_eq!(result["test"], test);
        let (hits, read) = (number("expert_hit_rate"), number("expert_read_bytes_per_token"));
        assert!((0.0..1.0).contains(&hits) && read > 0.0, "{test}: {hits} found, {read} bytes read");
        // Four rows request too many experts for prefetching.
        let foreseen = number("expert_prefetch_hit_rate");
        assert_eq!(foreseen > 0.0, test == "tg6", "{test}: {foreseen} foreseen");
        assert!(hits + foreseen <= 1.0 && number("expert_miss_bytes_per_token") <= read, "{test}");
        assert!(number("avg_ts") > 0.0 && number("disk_bound_ts") > 0.0, "{test}");
    }
    assert_eq!(report["results"].as_array().map(Vec::len), Some(2));
}

/// The number of MoE layers: each has one tensor of records.
pub(crate) fn layers_with_experts(built: &Built) -> usize {
    let file = std::fs::read(built.directory.join("weights.safetensors")).expect("it was written");
    let file = SafeTensors::deserialize(&file).expect("it is a safetensors file");
    file.names().iter().filter(|name| name.ends_with(".experts")).count()
}

/// `info` prints the expert records of the weight file: equal sizes for all experts, page-aligned.
fn records_lie_on_pages(built: &Built) {
    let info: Value = serde_json::from_str(&text(run(built, "resident", &["info", "--json"]))).expect("JSON");
    let file = std::fs::read(built.directory.join("weights.safetensors")).expect("it was written");
    let (header, metadata) = SafeTensors::read_metadata(&file).expect("it is a safetensors file");
    let mut found = BTreeMap::new();
    for (name, tensor) in metadata.tensors().iter().filter(|(name, _)| name.ends_with(".experts")) {
        assert_eq!((tensor.dtype, (8 + header + tensor.data_offsets.0) % 4096), (Dtype::U8, 0), "{name}");
        *found.entry(tensor.shape[1] as u64).or_default() += tensor.shape[0] as u64;
    }
    let number = |record: &Value, name: &str| record[name].as_u64().expect("it is a number");
    let records = info["expert_records"].as_array().expect("a list").iter();
    let records: BTreeMap<u64, u64> =
        records.map(|it| (number(it, "bytes"), number(it, "experts"))).collect();
    assert!(
        !records.is_empty() && records.keys().all(|bytes| bytes % 4096 == 0),
        "{}: {records:?}",
        built.name()
    );
    assert_eq!(records, found, "{}", built.name());
}

#[test]
fn streamed_experts_match_resident_experts() {
    let prompt: Vec<u32> = (0..41).map(|index| index * index * 31 % 60).collect();
    let list = id_list(&prompt);
    let is_told = AtomicBool::new(false);
    let streamed = parallel_map(all_built().iter(), |built| {
        let kernels =
            std::fs::read_to_string(built.directory.join("src/kernels.rs")).expect("it was written");
        let enough = enough(built);
        assert_eq!(enough.is_some(), kernels.contains("\"routes\""), "{}", built.name());
        let Some(enough) = enough else { return 0 };
        records_lie_on_pages(built);
        for arguments in [
            vec!["logits", "--token-ids", &list, "--all", "--json"],
            vec!["logits", "--token-ids", "1,2,3", "--all", "--json"],
            vec!["logits", "--token-ids", "7", "--json"],
            vec!["generate", "--token-ids", "1,2,3", "-n", "16", "--temperature", "0", "--ignore-eos"],
        ] {
            let resident = text(run(built, "resident", &arguments));
            for residence in [&format!("stream:{enough}"), &format!("stream:{}", enough * 2), "mmap"] {
                let found = text(run(built, residence, &arguments));
                assert_eq!(found, resident, "{}, {residence}, {arguments:?}", built.name());
            }
        }
        let info: Value =
            serde_json::from_str(&text(run(built, &format!("stream:{enough}"), &["info", "--json"])))
                .expect("JSON");
        if built.model == PREFETCH_MODEL && !is_told.swap(true, Ordering::Relaxed) {
            streaming_statistics_are_printed(built, enough);
        }
        println!(
            "{}: {} cache slots for {} experts",
            built.name(),
            info["experts"]["cache_slots"],
            info["experts"]["experts"]
        );
        1
    });
    println!("{} programs", streamed.iter().sum::<usize>());
}
