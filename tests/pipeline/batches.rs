//! Decode passes of several rows, in the kernel checker: a row has the bits that it has alone. The kernels' own
//! tests do the same for every format and layout.

use crate::faults::record;
use crate::logits::for_each_program;
use forge_sim::{Program, Recording, Replay, Weights};
use tests::{Built, all_built};

/// Slots, and the rows of each pass of a slot, with a KV cache that is split. Passes of all slots have at most 16
/// rows, so that they are decode passes, in which rows share a slot at first.
const SLOTS: usize = 3;
const CHUNKS: [usize; 10] = [5, 5, 5, 5, 5, 5, 5, 5, 1, 1];

/// The bits of all logits that a program computes, pass by pass.
fn logits(program: &Program, built: &Built, recording: &Recording) -> Vec<Vec<u32>> {
    let weights = built.directory.join("weights.safetensors");
    let mut replay = Replay::new(program, recording, Weights::File(&weights)).expect("it can be replayed");
    let report = replay.run(&mut |_, _| {});
    assert_eq!(report.faults, [], "{}", built.name());
    let bits = |values: &Vec<f32>| values.iter().map(|value| value.to_bits()).collect();
    report.reads.iter().map(|read| bits(&read.values)).collect()
}

#[test]
fn rows_of_decode_passes_have_the_bits_of_one_row() {
    let decodes_batches = |built: &&Built| {
        if built.format != "f32" || !built.disabled.is_empty() {
            return false;
        }
        let model =
            std::fs::read_to_string(built.directory.join("src/model.rs")).expect("a crate has a model");
        !model.contains("MAX_DECODE_ROWS: usize = 1;")
    };
    let count = all_built().iter().filter(decodes_batches).count();
    assert!(count > 0, "no program decodes batches");
    for_each_program(all_built().iter().filter(decodes_batches), |built| {
        let text =
            std::fs::read_to_string(built.directory.join("src/kernels.metal")).expect("a crate has kernels");
        let program = Program::compile(&text).unwrap_or_else(|error| panic!("{error}"));
        let rows: usize = CHUNKS.iter().sum();
        let together = logits(&program, built, &record(built, (SLOTS, 0), 64, &CHUNKS));
        let alone = logits(&program, built, &record(built, (1, 0), 64, &vec![1; rows])).concat();
        let width = alone.len() / rows;
        let (mut errors, mut first) = (Vec::new(), 0);
        for (pass, count) in together.iter().zip(CHUNKS) {
            assert_eq!(pass.len(), SLOTS * count * width, "{}", built.name());
            for (index, row) in pass.chunks(width).enumerate() {
                let position = first + index % count;
                if row != &alone[position * width..][..width] {
                    errors.push(format!("slot {} position {position} differs", index / count));
                }
            }
            first += count;
        }
        errors
    });
}
