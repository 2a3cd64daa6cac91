//! Mutation tests of the kernel checker with real kernels: each injected fault must be found.
//!
//! Barriers, clamps and guards are removed from kernels.metal, and barriers from the commands of model.rs. A
//! fault is found if the checker reports it, or if the kernel's results change, which a comparison of logits
//! detects. A mutation without any effect would be an unnecessary bound.

use forge_sim::mutants::{self, MutantOutcome};
use forge_sim::recording::Command;
use forge_sim::{Program, Recording, Replay, Sample, Samples, Weights};
use std::collections::BTreeSet;
use std::process;
use tests::{Built, ODD, all_built, id_list, run};

/// Limit of the accesses of a dispatch, beyond which it counts as endless.
const LIMIT: u64 = 50_000_000;

/// The recording of a program for a device with this number of GPU cores, for a prompt in these chunks in
/// this number of slots, each `stagger` tokens behind the one before, with the logits of every position.
pub(crate) fn record(
    built: &Built,
    (slots, stagger): (usize, usize),
    cores: usize,
    chunks: &[usize],
) -> Recording {
    let ids: Vec<u32> = (0..chunks.iter().sum::<usize>() as u32).map(|index| index * 31 % 60).collect();
    let chunks = chunks.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let arguments = ["record", "--all", "--token-ids", &id_list(&ids), "--chunks", &chunks, "--output"];
    run(process::Command::new(&built.program)
        .args(arguments)
        .arg(file.path())
        .args([
            "--slots",
            &slots.to_string(),
            "--stagger",
            &stagger.to_string(),
            "--cores",
            &cores.to_string(),
        ])
        .arg("--model-dir")
        .arg(&built.directory));
    Recording::parse(&std::fs::read_to_string(file.path()).expect("it was written"))
        .expect("it is a recording")
}

fn odd(format: &str) -> &'static Built {
    let odd = all_built()
        .iter()
        .find(|built| built.model == ODD && built.format == format && built.disabled.is_empty());
    odd.unwrap_or_else(|| panic!("{ODD} is compiled to {format}"))
}

/// Recordings that dispatch every kernel, in every batch-size class.
fn samples(built: &Built, program: &Program) -> Vec<Sample> {
    let mut all = Vec::new();
    // One row; small batches of one and two MMA tiles; prefill; a small batch and two, three and seven slots, some of
    // whose rows have fewer KV splits than others; and a long KV cache without split-KV attention.
    let long = ((1, 0), 0, &[280, 3, 1][..], 1 << 18);
    let cases = [
        (&[1][..], (1, 0)),
        (&[7, 1], (1, 0)),
        (&[11], (1, 0)),
        (&[70, 3, 1], (1, 0)),
        (&[21, 15, 1], (1, 0)),
        (&[21, 2, 1], (2, 0)),
        (&[41, 2, 1], (3, 8)),
        (&[9, 1], (7, 1)),
        (&[1], (7, 0)),
    ];
    for (slots, cores, chunks, largest) in
        cases.into_iter().map(|(chunks, slots)| (slots, 64, chunks, 1 << 22)).chain([long])
    {
        let mut recording = record(built, slots, cores, chunks);
        if slots.0 == 1 && chunks.len() < 3 {
            // A token id outside the vocabulary, which the host would reject, to test the bound of the
            // embedding.
            recording.passes[0].writes[0].words[0] = 70_000;
        }
        let weights = built.directory.join("weights.safetensors");
        let mut replay =
            Replay::new(program, &recording, Weights::File(&weights)).expect("it can be replayed");
        replay.sampling(Samples::new(3, largest));
        let report = replay.run(&mut |_, _| {});
        assert_eq!(report.faults, [], "before anything is planted");
        all.extend(replay.into_samples());
    }
    all
}

#[test]
fn detects_every_kernel_mutant() {
    let mut missed = Vec::new();
    let mut kernels = BTreeSet::new();
    let mut planted = 0;
    for format in ["q4_0", "f32"] {
        let built = odd(format);
        let text =
            std::fs::read_to_string(built.directory.join("src/kernels.metal")).expect("a crate has kernels");
        let program = Program::compile(&text).unwrap_or_else(|error| panic!("{error}"));
        let samples = samples(built, &program);
        let mut mutants = mutants::mutants(&text).unwrap_or_else(|error| panic!("{error:?}"));
        // Sampling needs rows with all settings, and NaN logits: the checker's own tests inject these faults.
        mutants.retain(|mutant| mutant.kernel != "sample");
        let fates = mutants::run(&text, &mutants, &samples, LIMIT, &|_, _| {})
            .unwrap_or_else(|error| panic!("{error}"));
        for (mutant, fate) in mutants.iter().zip(fates) {
            planted += 1;
            kernels.insert(mutant.kernel.clone());
            let what = format!("{format} {} line {}: {}", mutant.kernel, mutant.line, mutant.change);
            match fate {
                MutantOutcome::Caught(fault) => println!("{what}\n    {fault}"),
                MutantOutcome::Different => println!("{what}\n    other numbers"),
                fate => missed.push(format!("{what}: {fate:?}")),
            }
        }
    }
    println!("{} of {planted} planted faults found in {} kernels", planted - missed.len(), kernels.len());
    assert!(kernels.len() >= 6, "{kernels:?}");
    assert!(missed.is_empty(), "{} of {planted} were not found:\n{}", missed.len(), missed.join("\n"));
}

/// A model with recurrent state.
const RECURRENT: &str = "qwen3_next";

#[test]
fn removing_any_barrier_is_a_hazard() {
    let recurrent = all_built()
        .iter()
        .find(|built| built.model == RECURRENT && built.format == "f32" && built.disabled.is_empty());
    let recurrent = recurrent.unwrap_or_else(|| panic!("{RECURRENT} is compiled to f32"));
    // In the first pass of two slots, rows share a slot.
    for (built, slots, chunks) in [
        (odd("f32"), 1, &[70, 1][..]),
        (odd("f32"), 1, &[5, 1]),
        (odd("f32"), 2, &[3, 1]),
        (recurrent, 2, &[3, 1]),
    ] {
        let text =
            std::fs::read_to_string(built.directory.join("src/kernels.metal")).expect("a crate has kernels");
        let program = Program::compile(&text).unwrap_or_else(|error| panic!("{error}"));
        let weights = built.directory.join("weights.safetensors");
        let recording = record(built, (slots, 0), 64, chunks);
        for (pass, command) in barriers(&recording) {
            let mut without = recording.clone();
            without.passes[pass].commands.remove(command);
            let mut replay =
                Replay::new(&program, &without, Weights::File(&weights)).expect("it can be replayed");
            let report = replay.run(&mut |_, _| {});
            assert!(
                !report.faults.is_empty(),
                "{}, {slots} slots: pass {pass} of {chunks:?} without its command {command}",
                built.name()
            );
        }
    }
}

/// Pass and position of every barrier. A barrier at the start of a pass separates nothing there. The head
/// begins with one, for passes in which it follows the layers.
fn barriers(recording: &Recording) -> Vec<(usize, usize)> {
    let passes = recording.passes.iter().enumerate();
    passes
        .flat_map(|(pass, data)| {
            let commands = data.commands.iter().enumerate().skip(1);
            commands
                .filter(|(_, command)| matches!(command, Command::Barrier(_)))
                .map(move |(index, _)| (pass, index))
        })
        .collect()
}
