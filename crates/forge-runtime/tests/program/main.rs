//! The program of the tiny model: output and exit code of every command.

#[path = "../support/mod.rs"]
mod support;

#[cfg(unix)]
mod cut_short;
#[cfg(feature = "serve")]
mod served;

use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use support::reference::{Reference, write_tokenizer};
use tempfile::TempDir;

/// A directory as the compiler leaves it.
fn directory(error: f64) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let reference = Reference::new();
    reference.write_weights(&folder.path().join("weights.safetensors"));
    reference.write_golden(&folder.path().join("golden.json"), error);
    write_tokenizer(&folder.path().join("tokenizer.json"));
    folder
}

fn program(folder: &TempDir, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiny-model"));
    command.args(line.split_whitespace()).arg("--model-dir").arg(folder.path());
    command.env_remove("FORGE_ISA");
    command
}

fn run(folder: &TempDir, line: &str) -> Output {
    program(folder, line).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a command that has to end well, and gives the JSON it prints.
fn json(folder: &TempDir, line: &str) -> Value {
    let output = run(folder, line);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    serde_json::from_str(&text(&output.stdout)).unwrap()
}

#[test]
fn logits_are_json() {
    let folder = directory(0.0);
    let wanted = Reference::new().logits(&[3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    let all =
        json(&folder, "logits --token-ids 3,4,5,6,7,8,9,10,11,12 --all --json --threads 2 --f32-activations");
    let last = json(&folder, "logits --token-ids 3,4,5,6,7,8,9,10,11,12 --device cpu --f32-activations");
    assert_eq!(last["token_ids"].as_array().unwrap().len(), 10);
    assert_eq!(all["logits"].as_array().unwrap().len(), 10);
    for (row, wanted) in wanted.iter().enumerate() {
        for (id, wanted) in wanted.iter().enumerate() {
            assert!((all["logits"][row][id].as_f64().unwrap() - wanted).abs() < 3e-3);
        }
    }
    for (id, wanted) in wanted[9].iter().enumerate() {
        assert!((last["logits"][id].as_f64().unwrap() - wanted).abs() < 3e-3);
    }
}

#[test]
fn generate_continues_ids_and_text() {
    let folder = directory(0.0);
    let prompt = [1, 5, 6, 7];
    let ids = Reference::new().greedy(&prompt, 12);
    let words: Vec<String> = ids.iter().map(|id| format!("w{id}")).collect();
    assert!(ids.iter().all(|&id| id > 2), "the test wants ids that are words: {ids:?}");
    // With f32 activations: the reference does not quantize, and in such a small model the difference matters.
    let line = "generate --f32-activations --temperature 0 -n 12 --json";
    let by_text = {
        let mut command = program(&folder, line);
        let output = command.args(["-p", "w5 w6 w7"]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let by_ids = json(&folder, &format!("{line} --token-ids 1,5,6,7"));
    for result in [&by_text, &by_ids] {
        assert_eq!(result["token_ids"], serde_json::json!(ids));
        assert_eq!(result["text"], words.join(" "));
        assert_eq!(result["finish_reason"], "length");
        assert_eq!(result["timings"]["prompt_tokens"], 4);
        assert_eq!(result["timings"]["tokens"], 12);
    }
    // Streamed, from standard input, ended by a stop string that spans several tokens.
    let mut command = program(&folder, "generate --f32-activations -p - --temperature 0 -n 12");
    command.args(["--stop", &format!("{} {}", words[4], words[5])]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"w5 w6 w7").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), format!("{} \n", words[..4].join(" ")));
    let stats = text(&output.stderr);
    assert!(stats.contains("prefill 4 tokens") && stats.contains("stop string"), "{stats}");
    // Without a tokenizer the output consists of token ids.
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let output = run(&folder, "generate --token-ids 1,5,6,7 --temperature 0 -n 3");
    assert_eq!(text(&output.stdout), format!("{} {} {} \n", ids[0], ids[1], ids[2]));
}

#[test]
fn generate_ends_where_it_must() {
    let folder = directory(0.0);
    let full =
        json(&folder, "generate --token-ids 3,4 --temperature 0 -n 100 --ctx-size 10 --ignore-eos --json");
    assert_eq!(full["finish_reason"], "context full");
    // Eight tokens fill positions 2 to 9; the ninth is sampled from the last of them.
    assert_eq!(full["token_ids"].as_array().unwrap().len(), 9);
    // The end of a text: sample until some seed gives id 2.
    let ended = (0..200).find_map(|seed| {
        let line = format!("generate --token-ids 3,4 --temperature 3 -n 40 --seed {seed} --json");
        let result = json(&folder, &line);
        (result["finish_reason"] == "end of text").then_some((seed, result))
    });
    let (seed, result) = ended.expect("one of 200 texts ends");
    assert_eq!(result["token_ids"].as_array().unwrap().last().unwrap(), 2);
    assert!(!result["text"].as_str().unwrap().contains("</s>"));
    let line = format!("generate --token-ids 3,4 --temperature 3 -n 40 --seed {seed} --json");
    assert_eq!(json(&folder, &line)["token_ids"], result["token_ids"]);
    let longer = json(&folder, &format!("{line} --ignore-eos"));
    assert_eq!(longer["token_ids"].as_array().unwrap().len(), 40);
}

#[test]
fn profile_tells_each_kernel_and_leaves_a_trace() {
    let folder = directory(0.0);
    let told = text(&run(&folder, "profile --ctx-size 9 -p 20 -r 2").stdout);
    let (id, prompt) = told.split_once("prefill of 20 tokens\n").expect("both are told");
    assert!(id.starts_with("decode at 9 tokens\nkernel"), "{told}");
    let dispatches = json(&folder, "info --json")["decode"]["dispatches"].clone();
    let dispatches_of_id = dispatches.as_u64().unwrap();
    // Three passes, of which the last has a head: three steps.
    for (part, dispatches) in [(id, dispatches_of_id), (prompt, 3 * dispatches_of_id - 6)] {
        assert!(part.contains(&format!("\n{dispatches} dispatches: ")), "{told}");
        assert!(part.contains("µs isolated, ") && part.contains("µs in the pass (median of 2)"), "{told}");
    }
    let line = |kernel: &str| id.lines().find(|line| line.starts_with(kernel)).map(str::to_owned);
    let qkv = line("qkv ").expect("it has a line");
    assert_eq!(qkv.split_whitespace().nth(1), Some("2"), "one a layer: {qkv}");
    let file = folder.path().join("trace.json");
    let told = json(&folder, &format!("profile -r 1 --ctx-size 5 --json --trace {}", file.display()));
    let steps = told["profiles"][0]["steps"].as_array().unwrap();
    assert_eq!(steps.len() as u64, dispatches.as_u64().unwrap());
    let layers: Vec<Option<u64>> = steps.iter().map(|step| step["layer"].as_u64()).collect();
    assert_eq!([layers[0], layers[1], *layers.last().unwrap()], [None, Some(0), None], "{layers:?}");
    assert_eq!(layers.iter().flatten().max(), Some(&1));
    let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    // One names the track.
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

/// A directory with a chat model: every message is `w3` and its text, an answer begins after `w4`.
fn talkative() -> TempDir {
    let folder = directory(0.0);
    let template =
        "{% for m in messages %}w3 {{ m.content }} {% endfor %}{% if add_generation_prompt %}w4{% endif %}";
    let config = serde_json::json!({ "chat_template": template });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

fn words(ids: &[u32]) -> String {
    ids.iter().map(|id| format!("w{id}")).collect::<Vec<_>>().join(" ")
}

/// The program's output for these lines of standard input.
fn say(folder: &TempDir, line: &str, lines: &str) -> Output {
    let mut command = program(folder, line);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn chat_answers_once_or_line_by_line() {
    let folder = talkative();
    let reference = Reference::new();
    let first = reference.greedy(&[3, 7, 8, 4], 4);
    assert!(first.iter().all(|&id| id > 2), "the test wants ids that are words: {first:?}");
    let output = run(&folder, "chat -p w7 -n 4 --temperature 0");
    assert_eq!(text(&output.stdout), format!("{}\n", words(&reference.greedy(&[3, 7, 4], 4))));
    // With a conversation before it.
    let mut ids = vec![3, 7, 8, 3];
    ids.extend(&first);
    ids.extend([3, 9, 4]);
    let second = reference.greedy(&ids, 4);
    let lines = "w7 w8\n\nw9\n/stats\n/save talk.json\n/nonsense\n/load nowhere.json\n/quit\nw9\n";
    let mut command = program(&folder, "chat -n 4 --temperature 0");
    command.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "standard input is not a terminal, and two lines were invalid");
    assert_eq!(text(&output.stdout), format!("{}\n{}\n", words(&first), words(&second)));
    let said = text(&output.stderr);
    for part in ["decode 4 tokens", "of 64 tokens", "/nonsense: unknown command", "nowhere.json: "] {
        assert!(said.contains(part), "should say {part}: {said}");
    }
    // The conversation that was saved goes on; an answer can be had again, and everything forgotten.
    let saved = folder.path().join("talk.json");
    let line = format!("chat -n 4 --temperature 0 --load {}", saved.display());
    let output = say(&folder, &line, "/retry\n/reset\nw7 w8\n");
    assert_eq!(text(&output.stdout), format!("{}\n{}\n", words(&second), words(&first)));
    // Slash commands report their effect. Two slashes begin a message, and a backslash continues it on the next line.
    let mut command = program(&folder, "chat -n 1 --temperature 0");
    command.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = "w7 \\\nw8\n//w9\n/system w5\n/save more.json\n/load more.json\n/system\n";
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let did = [
        "system prompt set, 2 characters",
        "saved to more.json",
        "loaded from more.json",
        "system prompt removed",
    ];
    for part in did {
        assert!(said.contains(part), "should say {part}: {said}");
    }
    let saved = std::fs::read_to_string(folder.path().join("more.json")).unwrap();
    let saved: Vec<Value> = serde_json::from_str(&saved).unwrap();
    let contents = |role: &str| -> Vec<&str> {
        saved.iter().filter(|it| it["role"] == role).map(|it| it["content"].as_str().unwrap()).collect()
    };
    assert_eq!((contents("system"), contents("user")), (vec!["w5"], vec!["w7 \nw8", "/w9"]));
    // A message that does not fit is refused, and the conversation is as it was.
    let long = format!("{}\nw7 w8\n", "w5 ".repeat(80));
    let output = say(&folder, "chat -n 4 --temperature 0", &long);
    assert!(
        text(&output.stderr).contains("82 tokens exceed the context length of 64\n"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(text(&output.stdout), format!("{}\n", words(&first)));
    // The system message comes first.
    let output = run(&folder, "chat -p w8 --system w7 -n 4 --temperature 0");
    assert_eq!(text(&output.stdout), format!("{}\n", words(&reference.greedy(&[3, 7, 3, 8, 4], 4))));
}

#[test]
fn perplexity_is_what_the_reference_makes_of_a_text() {
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
    // With windows of 16 that overlap by half: every token once, with at least 8 tokens of context except at the start.
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
    // From standard input, for people.
    let output = say(&folder, "perplexity - --ctx-size 16", &words(&first));
    assert!(text(&output.stdout).starts_with("perplexity "), "{}", text(&output.stdout));
}

#[test]
fn sampling_defaults_come_from_the_checkpoint() {
    let folder = directory(0.0);
    let config = |text: &str| std::fs::write(folder.path().join("generation_config.json"), text).unwrap();
    let ids = |line: &str| {
        json(&folder, &format!("generate --token-ids 3,4 -n 12 --seed 5 --ignore-eos --json {line}"))["token_ids"]
            .clone()
    };
    let greedy = ids("--temperature 0");
    config(r#"{ "do_sample": false, "temperature": 1.5 }"#);
    assert_eq!(ids(""), greedy);
    config(r#"{ "do_sample": true, "temperature": 3.0, "top_k": 40, "repetition_penalty": 1.2 }"#);
    let drawn = ids("");
    assert_ne!(drawn, greedy);
    assert_eq!(ids("--temperature 3 --top-k 40 --repetition-penalty 1.2"), drawn);
    assert_eq!(ids("--top-k 1 --repetition-penalty 1"), greedy);
    config(r#"{ "top_p": 7 }"#);
    let output = run(&folder, "generate --token-ids 3");
    assert!(
        text(&output.stderr).contains("generation_config.json: top-p must be"),
        "{}",
        text(&output.stderr)
    );
    config(r#"{ "temperature": "hot" }"#);
    let output = run(&folder, "generate --token-ids 3");
    let said = text(&output.stderr);
    assert!(said.contains("generation_config.json: temperature must be a number"), "{said}");
}

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
fn verify_measures_the_default_path_as_well() {
    let folder = directory(0.0);
    let result = json(&folder, "verify --json --device cpu");
    let int8 = &result["int8_activations"];
    assert_eq!((&int8["ok"], &int8["positions"]), (&true.into(), &34.into()));
    let number = |name: &str| int8[name].as_f64().unwrap();
    assert!(number("kl_mean") > 0.0 && number("kl_mean") <= number("kl_max"), "{int8}");
    assert!(number("same_top_token") > 0.5, "{int8}");
    let said = text(&run(&folder, "verify --device cpu").stdout);
    assert!(said.contains("int8 activations") && said.contains("KL divergence"), "{said}");
    // With --f32-activations there is no rounding to measure.
    assert!(json(&folder, "verify --json --device cpu --f32-activations")["int8_activations"].is_null());
    // Where int8 activations lose more than they may, the program is not right, though its f32 logits are.
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
fn info_counts_memory_to_the_byte() {
    let folder = directory(0.0);
    let weights = std::fs::metadata(folder.path().join("weights.safetensors")).unwrap().len();
    let info = json(&folder, "info --json --ctx-size 32 --slots 2");
    let memory = &info["memory"];
    assert_eq!(memory["weights_bytes"], weights);
    assert_eq!(memory["kv_bytes"], 2 * 32 * 160);
    let arena = memory["arena_bytes"].as_u64().unwrap();
    assert_eq!(memory["total_bytes"], weights + 2 * 32 * 160 + arena);
    assert_eq!((&memory["context"], &memory["slots"]), (&32.into(), &2.into()));
    assert_eq!(info["model"], "tiny");
    assert_eq!(info["decode"]["dispatches"], 22);
    assert_eq!(info["decode"]["dispatches_per_layer"], serde_json::json!([9, 9]));
    assert_eq!(info["formats"]["q8_0"], 19_400);
    assert_eq!(info["kernels"].as_array().unwrap().len(), 15);
    assert_eq!(json(&folder, "info --json")["memory"]["context"], 64);
    let text = text(&run(&folder, "info").stdout);
    assert!(text.contains("22 dispatches (9 a layer and 4), 21 barriers"), "{text}");
    assert!(text.contains("1 × 64 positions of 80 bytes and 64 of 80 bytes in f16"), "{text}");
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
    let refused = run(&folder, "bench -p 4 -n 5 -d 60 --threads 1");
    assert!(
        !refused.status.success() && text(&refused.stderr).contains("65 tokens of context"),
        "{refused:?}"
    );
    let table = text(&run(&folder, "bench -p 4 -n 5 -r 1 --threads 1").stdout);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
    assert_eq!(rows[0][1..8], ["model", "size", "params", "backend", "threads", "test", "t/s"], "{table}");
    assert_eq!((rows.len(), rows[2][4..7].to_vec()), (4, vec!["CPU", "1", "pp4"]), "{table}");
    let widths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
}

#[test]
fn completions_list_all_commands() {
    let folder = directory(0.0);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&run(&folder, &format!("completions {shell}")).stdout);
        for word in ["tiny-model", "generate", "temperature"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
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

#[test]
fn without_an_nvidia_gpu_the_error_names_what_is_missing() {
    let Err(why) = forge_runtime::gpu::cuda::find_gpu(&[]) else { return };
    let folder = directory(0.0);
    let output = run(&folder, "logits --token-ids 3 --device cuda");
    assert_eq!(output.status.code(), Some(2));
    assert!(why.contains("NVIDIA"), "{why}");
    assert!(text(&output.stderr).contains(&format!("{why}: use --device cpu")), "{}", text(&output.stderr));
    assert_eq!(run(&folder, "logits --token-ids 3 --device auto").status.code(), Some(0));
    assert!(text(&run(&folder, "info").stdout).contains(&format!("cuda     {why}")));
}

#[test]
fn errors_are_printed_and_counted() {
    let folder = directory(0.0);
    for (line, code, part) in [
        ("generate", 2, "--prompt"),
        ("generate --token-ids 3 --temperature -1", 2, "temperature must be at least 0, not -1"),
        ("generate --token-ids 3 --seed -1", 2, "--seed"),
        ("generate --token-ids 3 --stop=", 2, "--stop"),
        (
            "generate --token-ids 3 --logit-bias 50=1",
            2,
            "--logit-bias: token id 50 is not below the vocabulary size 50",
        ),
        ("generate --token-ids 3 --threads 1025", 2, "1025 is not in 1..=1024"),
        ("generate --token-ids 3 --top-p 0", 2, "top-p must be above 0"),
        ("generate --token-ids 3 --min-p 2", 2, "min-p must be between 0 and 1"),
        ("generate --token-ids 3,50", 2, "token id 50 is out of range: tiny has token ids 0 to 49"),
        ("generate --token-ids 3,4,5 --ctx-size 2", 2, "of 2; tiny supports --ctx-size up to 64"),
        (
            "logits --token-ids 3 --ctx-size 65",
            2,
            "compiled for contexts up to 64: --ctx-size 65 is too large",
        ),
        ("logits --token-ids 3 --device metal", 2, "no Metal device found"),
        ("logits --token-ids 3 --device gpu", 2, "[possible values: auto, metal, cuda, cpu]"),
        ("logits --token-ids 3 --ctx-siz 4", 2, "--ctx-size"),
        ("record --token-ids 3,4 --chunks 2,1 -o unwritten", 2, "3 rows exceed the 2 token ids"),
        ("record --token-ids 3,4 --chunks 2,x -o unwritten", 2, "expected numbers of rows"),
        ("talk", 2, "unrecognized subcommand"),
        ("chat", 2, "no chat template"),
        ("chat -p Hello --load F", 2, "cannot be used with"),
        ("perplexity nowhere", 2, "nowhere: "),
    ] {
        if cfg!(target_vendor = "apple") && part.contains("Metal") {
            continue;
        }
        let output = run(&folder, line);
        assert_eq!(output.status.code(), Some(code), "{line}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{line}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "", "{line}");
    }
    for (line, code, part) in
        [("--help", 0, "generate"), ("--version", 0, "tiny "), ("generate --help", 0, "--top-k")]
    {
        let output = run(&folder, line);
        assert_eq!(output.status.code(), Some(code), "{line}");
        assert!(text(&output.stdout).contains(part), "{line}");
        assert!(!text(&output.stdout).contains("record"), "{line}");
    }
    let output = say(&folder, "perplexity - --ctx-size 1", "w5 w6 w7");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--ctx-size 2 or more"), "{}", text(&output.stderr));
    let output = program(&folder, "logits --token-ids 3").env("FORGE_ISA", "mmx").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("FORGE_ISA=mmx is not available: this machine supports"),
        "{}",
        text(&output.stderr)
    );
    for name in ["golden.json", "tokenizer.json", "weights.safetensors"] {
        std::fs::write(folder.path().join(name), "no").unwrap();
        for line in ["verify", "generate -p hello"] {
            let output = run(&folder, line);
            if name != "golden.json" || line == "verify" {
                assert_eq!(output.status.code(), Some(1), "{name} {line}");
                assert!(
                    text(&output.stderr).contains(".json: ")
                        || text(&output.stderr).contains(".safetensors: ")
                );
            }
        }
    }
}
