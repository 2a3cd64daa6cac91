//! Slots of a model with recurrent state: logits are bitwise identical for a sequence alone, interleaved with
//! another, after a cancelled one, or restored from a snapshot.
//!
//! The model is minimal (`support/halving.rs`): the logit of token 0 is its state.

use forge_runtime::cpu::CpuDevice;
use forge_runtime::engine::{Engine, Output, OutputKind, Row};
use forge_runtime::weights::WeightFile;
use support::halving::Halving;
use support::reference::Reference;

mod support;

fn engine(slots: u32) -> Engine<CpuDevice> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    Reference::new().write_weights(&path);
    let weights = WeightFile::open(&path).unwrap();
    let model = Halving::load(&weights, 12, slots).unwrap();
    let device = CpuDevice::new(&weights, model.layout(), Some(1)).unwrap();
    Engine::new(model, device, 12, slots)
}

/// The expected first logit after a sequence: its recurrent state.
fn sum(text: &[u32]) -> f32 {
    text.iter().fold(0.0, |sum, id| sum / 2.0 + *id as f32)
}

fn fed(engine: &mut Engine<CpuDevice>, slot: u32, ids: &[u32]) -> f32 {
    engine.run_tokens(slot, ids, Output::Logits).unwrap().logits[0][0]
}

const ONE: [u32; 7] = [3, 1, 4, 1, 5, 9, 2];
const OTHER: [u32; 7] = [2, 7, 1, 8, 2, 8, 1];

#[test]
fn interleaved_sequences_match_single_ones() {
    let mut both = engine(2);
    for length in 1..=7 {
        assert_eq!(fed(&mut both, 0, &ONE[length - 1..length]), sum(&ONE[..length]));
        assert_eq!(fed(&mut both, 1, &OTHER[length - 1..length]), sum(&OTHER[..length]));
    }
    // Several rows of both in one pass.
    let row = |slot: u32, position: u32| Row { id: 1, slot, position };
    let rows = [row(1, 7), row(1, 8), row(0, 7)];
    let logits = both.run_batch(&rows, &[1, 2], OutputKind::Logits).unwrap().logits;
    assert_eq!(logits[0][0], sum(&[&OTHER[..], &[1, 1]].concat()));
    assert_eq!(logits[1][0], sum(&[&ONE[..], &[1]].concat()));
}

#[test]
fn recurrent_slots_rewind_to_the_start_only() {
    let mut engine = engine(2);
    fed(&mut engine, 0, &ONE);
    assert_eq!(
        [engine.rewindable(0, 7), engine.rewindable(0, 9), engine.rewindable(0, 6), engine.rewindable(0, 0)],
        [7, 7, 0, 0]
    );
    assert_eq!(engine.truncate(0, 6), 0);
    assert_eq!(fed(&mut engine, 0, &OTHER), sum(&OTHER));
    let behind =
        engine.run_batch(&[Row { id: 1, slot: 0, position: 6 }], &[0], OutputKind::Greedy).unwrap_err();
    assert!(behind.to_string().contains("reprocess the prompt from position 0"), "{behind}");
    assert_eq!(fed(&mut engine, 0, &ONE[..2]), sum(&[&OTHER[..], &ONE[..2]].concat()), "nothing was done");
}

#[test]
fn recurrent_slots_rewind_to_saved_positions() {
    let mut engine = engine(2);
    fed(&mut engine, 0, &ONE[..4]);
    engine.snapshot_state(0);
    fed(&mut engine, 1, &OTHER);
    fed(&mut engine, 0, &ONE[4..]);
    assert_eq!(
        [engine.rewindable(0, 7), engine.rewindable(0, 5), engine.rewindable(0, 4), engine.rewindable(0, 3)],
        [7, 4, 4, 0]
    );
    for text in [&OTHER[..3], &ONE[4..]] {
        assert_eq!(engine.truncate(0, 5), 4);
        assert_eq!(fed(&mut engine, 0, text), sum(&[&ONE[..4], text].concat()));
    }
    assert_eq!(fed(&mut engine, 1, &[5]), sum(&[&OTHER[..], &[5]].concat()), "the other slot is as it was");
    // The snapshot belongs to a sequence that no longer exists.
    assert_eq!(engine.truncate(0, 2), 0);
    fed(&mut engine, 0, &OTHER);
    assert_eq!(engine.rewindable(0, 5), 0);
}

#[test]
fn a_slot_can_copy_the_state_of_another() {
    let mut engine = engine(3);
    fed(&mut engine, 0, &ONE[..4]);
    fed(&mut engine, 1, &OTHER);
    assert_eq!(engine.copy(0, 1, 3), 0, "a recurrent state cannot be shortened");
    assert_eq!(engine.copy(0, 1, 4), 4);
    assert_eq!(fed(&mut engine, 1, &ONE[4..]), sum(&ONE));
    assert_eq!(fed(&mut engine, 0, &OTHER[..2]), sum(&[&ONE[..4], &OTHER[..2]].concat()), "it is as it was");
    // Copying up to the snapshot of a slot also copies the snapshot.
    engine.truncate(0, 0);
    fed(&mut engine, 0, &OTHER[..5]);
    engine.snapshot_state(0);
    fed(&mut engine, 0, &[4, 4]);
    assert_eq!(engine.copy(0, 2, 6), 5);
    assert_eq!(fed(&mut engine, 2, &ONE[..3]), sum(&[&OTHER[..5], &ONE[..3]].concat()));
    assert_eq!(engine.truncate(2, 7), 5);
    assert_eq!(fed(&mut engine, 2, &[1]), sum(&[&OTHER[..5], &[1]].concat()));
    assert_eq!(fed(&mut engine, 0, &[5]), sum(&[&OTHER[..5], &[4, 4, 5]].concat()), "it is as it was");
}
