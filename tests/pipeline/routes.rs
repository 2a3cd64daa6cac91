//! Expert routing of programs on the reference sequences: identical to transformers for every token.
//!
//! A recording is cut after every dispatch that writes routes, so that the replay in the kernel checker can
//! read them.

use forge_planner::Plan;
use forge_sim::{Command, Dispatch, Pass, Program, Read, Recording, Replay, Weights};
use serde_json::Value;
use std::collections::BTreeSet;
use tests::{Built, all_built, id_list, ids, model, models, parallel_map, scratch};

/// Expert indices, by MoE layer and by token.
type Routes = Vec<Vec<BTreeSet<u32>>>;

/// The reference sequences of a model with their continuations, and the routes of their tokens.
fn golden(name: &str) -> Option<Vec<(Vec<u32>, Routes)>> {
    let bytes = std::fs::read(model(name).join("routes.safetensors")).ok()?;
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("routes.safetensors is whole");
    let text = std::fs::read_to_string(model(name).join("golden.json")).expect("a model has golden.json");
    let golden: Value = serde_json::from_str(&text).expect("golden.json is JSON");
    let of_text = |(index, text): (usize, &Value)| {
        let tensor = tensors.tensor(&format!("experts_{index}")).expect("every text has routes");
        let words = tensor.data().as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let words: Vec<u32> = words.collect();
        let [_, tokens, chosen] = tensor.shape() else { panic!("routes of layers, tokens, experts") };
        let layer =
            |layer: &[u32]| layer.chunks_exact(*chosen).map(|row| row.iter().copied().collect()).collect();
        let routes = words.chunks_exact(tokens * chosen).map(layer).collect();
        ([ids(&text["ids"]), ids(&text["greedy"])].concat(), routes)
    };
    let texts = golden["sequences"].as_array().expect("golden.json has sequences").iter().enumerate();
    Some(texts.map(of_text).collect())
}

/// Number of routed experts of a model.
fn experts(name: &str) -> u32 {
    let text = std::fs::read_to_string(model(name).join("config.json")).expect("a model has config.json");
    let config: Value = serde_json::from_str(&text).expect("config.json is JSON");
    let keys = ["num_experts", "n_routed_experts", "num_local_experts"];
    let count = keys.iter().find_map(|key| config[key].as_u64()).expect("it has experts");
    count as u32
}

/// The routes buffer that a dispatch writes, if any.
fn routes(plan: &Plan, dispatch: &Dispatch) -> Option<Read> {
    let kernel = plan.kernels.iter().find(|kernel| kernel.name == dispatch.kernel)?;
    let buffers = &kernel.decl.buffers;
    let place = buffers.iter().position(|buffer| buffer.name == "routes" && buffer.written)?;
    let binding = &dispatch.bindings[place];
    let scratch = plan.scratch.iter().find(|scratch| scratch.name == "routes")?;
    let rows = dispatch.scalars[0] as usize;
    Some(Read {
        buffer: binding.buffer.clone(),
        offset: binding.offset,
        bytes: 4 * rows * scratch.width,
        what: None,
    })
}

/// The recording, modified so that the host only reads routes.
fn cut(recording: Recording, plan: &Plan) -> Recording {
    let cut = |pass: Pass| {
        let label = pass.label;
        let mut parts =
            vec![Pass { label: label.clone(), writes: pass.writes, commands: Vec::new(), reads: Vec::new() }];
        for command in pass.commands {
            let read = match &command {
                Command::Dispatch(dispatch) => routes(plan, dispatch),
                Command::Barrier(_) => None,
            };
            let part = parts.last_mut().expect("it begins with one");
            part.commands.push(command);
            if let Some(read) = read {
                part.reads.push(read);
                parts.push(Pass {
                    label: label.clone(),
                    writes: Vec::new(),
                    commands: Vec::new(),
                    reads: Vec::new(),
                });
            }
        }
        parts
    };
    Recording { passes: recording.passes.into_iter().flat_map(cut).collect(), ..recording }
}

/// The routes of a sequence's tokens by a program's kernels, in passes of this many rows.
fn found(
    built: &Built,
    plan: &Plan,
    program: &Program,
    text: &[u32],
    chunks: &[usize],
    layers: usize,
) -> Routes {
    let file = scratch().join(format!("{}.routes.json", built.name()));
    let path = file.display().to_string();
    let list: Vec<String> = chunks.iter().map(usize::to_string).collect();
    built.run(&["record", "--token-ids", &id_list(text), "--chunks", &list.join(","), "-o", &path]);
    let recording = std::fs::read_to_string(&file).expect("it was written");
    let recording = cut(Recording::parse(&recording).expect("it is a recording"), plan);
    let weights = built.directory.join("weights.safetensors");
    let mut replay =
        Replay::new(program, &recording, Weights::File(&weights)).unwrap_or_else(|error| panic!("{error}"));
    let report = replay.run(&mut |_, _| ());
    assert!(report.faults.is_empty() && report.stopped.is_none(), "{}: {:?}", built.name(), report.faults);
    let width = plan.scratch.iter().find(|scratch| scratch.name == "routes").expect("it routes").width;
    let among = experts(&built.model);
    let mut found = vec![Vec::new(); layers];
    for (index, read) in report.reads.iter().enumerate() {
        let rows = read.values.chunks_exact(width);
        // Shared experts are not selected, and have the last indices.
        let row = |row: &[f32]| {
            row[..width / 2].iter().map(|word| word.to_bits()).filter(|expert| *expert < among).collect()
        };
        found[index % layers].extend(rows.map(row));
    }
    found
}

#[test]
fn routed_experts_match_transformers() {
    let models = models();
    let is_whole = |built: &&Built| built.format == "f32" && built.disabled.is_empty();
    let crates = all_built().iter().filter(is_whole).filter(|built| models.contains(&built.model));
    let checked = parallel_map(crates, |built| {
        let Some(texts) = golden(&built.model) else { return 0 };
        let plan = built.planned().1;
        let text =
            std::fs::read_to_string(built.directory.join("src/kernels.metal")).expect("a crate has kernels");
        let program = Program::compile(&text).unwrap_or_else(|error| panic!("{error}"));
        for (index, (text, expected)) in texts.iter().enumerate() {
            // In a pass of many rows, in small batches, and row by row.
            let one = [vec![5], vec![1; text.len() - 5]].concat();
            for chunks in [vec![text.len()], one] {
                let found = found(built, &plan, &program, text, &chunks, expected.len());
                assert_eq!(found, *expected, "{} text {index} in passes of {chunks:?}", built.name());
            }
        }
        1
    });
    assert!(
        checked.iter().sum::<usize>() > 0 || std::env::var_os("FORGE_MODELS").is_some(),
        "no model has experts"
    );
}
