//! The tiny model end to end: mapped weights, passes on the CPU device, logits against plain f64.

use forge_runtime as runtime;
use runtime::cpu::CpuDevice;
use runtime::cpu::simd::isa::Isa;
use runtime::engine::golden::Golden;
use runtime::engine::{Engine, Output, OutputKind, Row};
use runtime::error::Error;
use runtime::weights::WeightFile;
use support::reference::Reference;
use tempfile::TempDir;

#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../../tiny/kernels.rs"]
mod kernels;
#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../../tiny/model.rs"]
mod model;
mod recording;
#[path = "../support/mod.rs"]
mod support;
mod weight_file;
use model::Tiny;

fn weights(folder: &TempDir) -> WeightFile {
    let path = folder.path().join("weights.safetensors");
    Reference::new().write_weights(&path);
    WeightFile::open(&path).unwrap()
}

fn engine(level: Isa, threads: usize, context: u32, slots: u32) -> Engine<CpuDevice> {
    let folder = tempfile::tempdir().unwrap();
    let weights = weights(&folder);
    let tiny = Tiny::load(&weights, context, slots).unwrap();
    let device = CpuDevice::new(&weights, tiny.layout(), Some(threads)).unwrap();
    let device = device.with_level(level).exact(true);
    Engine::new(tiny, device, context, slots)
}

fn close(got: &[f32], wanted: &[f64]) {
    let deviation = (wanted.iter().map(|v| v * v).sum::<f64>() / wanted.len() as f64).sqrt();
    for (got, wanted) in got.iter().zip(wanted) {
        // Both include the rounding of the cache to f16. A tie that f32 rounds differently costs one f16 ULP.
        assert!((f64::from(*got) - wanted).abs() < 5e-4 * deviation, "{got} is not {wanted}");
    }
}

const IDS: [u32; 21] = [3, 49, 1, 7, 7, 7, 0, 12, 30, 31, 5, 6, 44, 2, 9, 10, 11, 13, 28, 41, 17];

#[test]
fn logits_match_the_reference_in_any_chunking() {
    let wanted = Reference::new().logits(&IDS);
    for (number, level) in Isa::available().into_iter().enumerate() {
        for chunks in [vec![21], vec![1; 21], vec![8, 1, 12], vec![3, 18]] {
            let mut engine = engine(level, number + 1, 21, 1);
            let mut start = 0;
            for count in chunks {
                let logits =
                    engine.run_tokens(0, &IDS[start..start + count], Output::AllLogits).unwrap().logits;
                assert_eq!(logits.len(), count);
                for (row, got) in logits.iter().enumerate() {
                    close(got, &wanted[start + row]);
                }
                start += count;
            }
        }
    }
}

/// A sequence that wraps the ring of the second layer twice.
fn long_text() -> Vec<u32> {
    (0..150).map(|i| (i * i * 7 + i * 3 + 5) % 50).collect()
}

#[test]
fn texts_longer_than_the_ring_match_the_reference() {
    let ids = long_text();
    let wanted = Reference::new().logits(&ids);
    for chunks in [vec![150], vec![1; 150], vec![7, 1, 90, 3, 49]] {
        let mut engine = engine(Isa::available()[0], 2, 150, 1);
        let mut start = 0;
        for count in chunks {
            let logits = engine.run_tokens(0, &ids[start..start + count], Output::AllLogits).unwrap().logits;
            for (row, got) in logits.iter().enumerate() {
                close(got, &wanted[start + row]);
            }
            start += count;
        }
    }
}

/// The ring has 64 positions and the window 20. After 150 positions, position 105 reads positions from 86 on,
/// which are available; position 104 would read 85, which is not.
#[test]
fn slots_rewind_within_their_ring() {
    let (ids, reference) = (long_text(), Reference::new());
    let after = |kept: usize, more: &[u32]| reference.logits(&[&ids[..kept], more].concat());
    for (back_to, kept) in [(150, 150), (149, 149), (120, 120), (105, 105), (104, 0), (64, 0), (1, 0), (0, 0)]
    {
        let mut engine = engine(Isa::available()[0], 2, 170, 2);
        engine.run_tokens(1, &ids, Output::Nothing).unwrap();
        assert_eq!(engine.rewindable(1, back_to), kept, "{back_to}");
        assert_eq!(engine.truncate(1, back_to), kept, "{back_to}");
        assert_eq!(engine.length(1), kept);
        let more: Vec<u32> = (0..12).map(|i| 49 - i).collect();
        let logits = engine.run_tokens(1, &more, Output::AllLogits).unwrap().logits;
        for (got, wanted) in logits.iter().zip(&after(kept as usize, &more)[kept as usize..]) {
            close(got, wanted);
        }
    }
    // Overwritten positions stay unavailable, even after the sequence is truncated.
    let mut engine = engine(Isa::available()[0], 1, 170, 1);
    engine.run_tokens(0, &ids, Output::Nothing).unwrap();
    assert_eq!(engine.truncate(0, 110), 110);
    engine.run_tokens(0, &[4, 5], Output::Nothing).unwrap();
    assert_eq!((engine.rewindable(0, 105), engine.rewindable(0, 104)), (105, 0));
    let back = Row { id: 1, slot: 0, position: 104 };
    match engine.run_batch(&[back], &[0], OutputKind::Logits) {
        Err(Error::Usage(message)) => assert!(message.contains("position 104"), "{message}"),
        other => panic!("{other:?}"),
    }
    // A new sequence starts without cached positions.
    assert_eq!(engine.truncate(0, 3), 0);
    engine.run_tokens(0, &ids[..30], Output::Nothing).unwrap();
    assert_eq!(engine.truncate(0, 3), 3);
    let logits = engine.run_tokens(0, &[9], Output::Logits).unwrap().logits;
    close(&logits[0], reference.logits(&[&ids[..3], &[9]].concat()).last().unwrap());
}

/// Copied positions are bitwise identical to computed ones, before and after the ring wraps, as far back as
/// it reaches.
#[test]
fn slots_copy_the_prefix_of_other_slots() {
    let (ids, more) = (long_text(), IDS[..5].to_vec());
    for (read, length, kept) in [
        (40, 40, 40),
        (40, 7, 7),
        (40, 90, 40),
        (150, 150, 150),
        (150, 120, 120),
        (150, 105, 105),
        (150, 104, 0),
    ] {
        let mut engine = engine(Isa::available()[0], 2, 170, 4);
        engine.run_tokens(1, &ids[..read], Output::Nothing).unwrap();
        engine.run_tokens(2, &ids[100..130], Output::Nothing).unwrap();
        assert_eq!(engine.copy(1, 2, length), kept, "{length} of {read}");
        assert_eq!((engine.length(1), engine.length(2)), (read as u32, kept));
        let mut logits =
            |slot: u32, text: &[u32]| engine.run_tokens(slot, text, Output::AllLogits).unwrap().logits;
        let copied = logits(2, &more);
        let whole = [&ids[..kept as usize], &more].concat();
        assert_eq!(copied[..], logits(3, &whole)[kept as usize..], "{length} of {read}");
        // The source slot continues unaffected.
        logits(0, &ids[..read]);
        assert_eq!(logits(1, &more), logits(0, &more), "{length} of {read}");
        // A copy reaches as far back as its source. Copying a slot to itself does nothing.
        for back_to in [kept.saturating_sub(1), kept.saturating_sub(40)] {
            assert!(
                engine.rewindable(2, back_to) <= engine.rewindable(1, back_to),
                "{back_to}, {length} of {read}"
            );
        }
        assert_eq!(engine.copy(2, 2, kept), kept);
    }
    let mut engine = engine(Isa::available()[0], 1, 30, 2);
    engine.run_tokens(0, &ids[..9], Output::Nothing).unwrap();
    assert_eq!(
        [engine.copy(0, 2, 9), engine.copy(7, 1, 9), engine.length(0)],
        [0, 0, 9],
        "there are no such slots"
    );
}

#[test]
fn slots_do_not_see_each_other() {
    let mut engine = engine(Isa::available()[0], 2, 30, 3);
    let reference = Reference::new();
    engine.run_tokens(2, &IDS[..9], Output::Nothing).unwrap();
    engine.run_tokens(0, &IDS[9..12], Output::Nothing).unwrap();
    assert_eq!((engine.length(0), engine.length(1), engine.length(2)), (3, 0, 9));
    // One pass with rows of all three slots.
    let rows = [(2, 9, 4), (0, 3, 5), (0, 4, 6), (1, 0, 7)];
    let rows: Vec<Row> = rows.iter().map(|&(slot, position, id)| Row { id, slot, position }).collect();
    let logits = engine.run_batch(&rows, &[3, 0, 2], OutputKind::Logits).unwrap().logits;
    let texts: [Vec<u32>; 3] = [vec![7], [&IDS[..9], &[4]].concat(), [&IDS[9..12], &[5, 6]].concat()];
    for (got, ids) in logits.iter().zip(&texts) {
        close(got, reference.logits(ids).last().unwrap());
    }
    // Logits of several rows at once, more than one head pass takes; a row may be requested twice.
    let wanted = [0, 1, 2, 3, 3];
    let next = engine.run_batch(&rows, &wanted, OutputKind::Greedy).unwrap().next_tokens;
    assert_eq!(next.len(), 5);
    let logits = engine.run_batch(&rows, &wanted, OutputKind::Logits).unwrap().logits;
    for (next, logits) in next.iter().zip(&logits) {
        assert_eq!(*next as usize, runtime::sampling::argmax::argmax(logits));
    }
    // Slot 0, rewound to an earlier position.
    engine.truncate(0, 2);
    let logits = engine.run_tokens(0, &[40], Output::Logits).unwrap().logits;
    close(&logits[0], reference.logits(&[&IDS[9..11], &[40]].concat()).last().unwrap());
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 64, failure_persistence: None, ..Default::default() })]
    /// Batch invariance: sequences of any length, in any chunks and any order, in passes with rows of other
    /// sequences, have logits that are bitwise identical to those of a sequence alone.
    #[test]
    fn slots_are_batch_invariant(
        lengths in proptest::collection::vec(1_usize..21, 1..5),
        choices in proptest::collection::vec(0_usize..1000, 200),
        level in 0_usize..8,
    ) {
        let levels = Isa::available();
        let level = levels[level % levels.len()];
        let slots = lengths.len().max(2) as u32;
        let mut alone = engine(level, 1, 21, slots);
        let wanted: Vec<Vec<Vec<f32>>> = (0..).zip(&lengths)
            .map(|(slot, &length)| alone.run_tokens(slot, &IDS[..length], Output::AllLogits).unwrap().logits)
            .collect();
        let mut together = engine(level, 2, 21, slots);
        let mut choices = choices.into_iter().cycle();
        let mut done = vec![0; lengths.len()];
        while done != lengths {
            let mut rows = Vec::new();
            for slot in 0..lengths.len() {
                let most = (8 - rows.len()).min(lengths[slot] - done[slot]);
                for _ in 0..choices.next().unwrap() % (most + 1) {
                    rows.push(Row { id: IDS[done[slot]], slot: slot as u32, position: done[slot] as u32 });
                    done[slot] += 1;
                }
            }
            if rows.is_empty() {
                continue;
            }
            let which: Vec<u32> = (0..rows.len() as u32).filter(|_| choices.next().unwrap() % 2 == 0).collect();
            let got = together.run_batch(&rows, &which, OutputKind::Logits).unwrap().logits;
            for (got, row) in got.iter().zip(which.iter().map(|&row| rows[row as usize])) {
                proptest::prop_assert_eq!(got, &wanted[row.slot as usize][row.position as usize]);
            }
        }
    }
}

#[test]
fn greedy_tokens_match_the_reference() {
    let wanted = Reference::new().greedy(&IDS[..4], 12);
    let mut engine = engine(Isa::available()[0], 2, 20, 1);
    let mut next = engine.run_tokens(0, &IDS[..4], Output::Greedy).unwrap().next_tokens[0];
    let mut got = vec![next];
    for _ in 1..12 {
        next = engine.run_tokens(0, &[next], Output::Greedy).unwrap().next_tokens[0];
        got.push(next);
    }
    assert_eq!(got, wanted);
}

#[test]
fn rejects_invalid_token_input() {
    let mut engine = engine(Isa::available()[0], 1, 6, 2);
    for (slot, ids, part) in [
        (0, &[1, 50][..], "token id 50 is out of range: tiny has token ids 0 to 49"),
        (0, &[], "no token ids"),
        (0, &[1; 7], "7 tokens exceed the context length of 6; tiny supports --ctx-size up to 64"),
        (2, &[1], "slot 2 is out of range: there are 2"),
    ] {
        match engine.run_tokens(slot, ids, Output::Greedy) {
            Err(Error::Usage(message)) => assert!(message.contains(part), "{message}"),
            other => panic!("{other:?}"),
        }
    }
    let row = Row { id: 1, slot: 0, position: 0 };
    for (rows, wanted) in [
        (vec![], 0),
        (vec![row; 9], 0),
        (vec![row], 1),
        (vec![Row { id: 50, ..row }], 0),
        (vec![Row { slot: 2, ..row }], 0),
        (vec![Row { position: 6, ..row }], 0),
    ] {
        assert!(
            matches!(engine.run_batch(&rows, &[wanted], OutputKind::Logits), Err(Error::Usage(_))),
            "{rows:?}"
        );
    }
    engine.run_tokens(1, &[1; 6], Output::Nothing).unwrap();
    assert!(engine.run_tokens(1, &[1], Output::Nothing).is_err());
    assert!(engine.run_tokens(0, &[1; 6], Output::Nothing).is_ok());
}

#[test]
fn golden_sequences_are_measured_in_standard_deviations() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("golden.json");
    let mut engine = engine(Isa::available()[0], 2, 19, 1);
    for error in [0.0, 0.25] {
        Reference::new().write_golden(&path, error);
        let golden = Golden::read(&path).unwrap();
        assert_eq!(golden.max_length(), 19);
        for sequence in &golden.sequences {
            let distance = sequence.measure(&mut engine).unwrap();
            assert!((distance.worst - error).abs() < 5e-4, "{distance:?}");
            assert!(error == 0.0 || distance.at == 13);
        }
    }
    let sequence = &Golden::read(&path).unwrap().sequences[0];
    assert_eq!(sequence.distance(&[f32::NAN; 50]).unwrap().worst, f64::INFINITY);
    assert!(sequence.distance(&[0.0; 49]).is_err());
}
