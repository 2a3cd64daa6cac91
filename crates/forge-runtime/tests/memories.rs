//! Slots of a model that remembers by memories: however a text is read, alone, in turns with another, after one that was given
//! up, or from where a slot was remembered, it gives the same logits to the bit.
//!
//! The model is the smallest there is: a slot's memory is one number, which halves and is added the id of each row. Its
//! logits are that number, and what more each id is.

use forge_runtime as runtime;
use runtime::cpu::{Call, CpuDevice};
use runtime::device::{Buffer, Kernel, Pass, Span};
use runtime::engine::{Engine, Row, Want};
use runtime::failure::Failure;
use runtime::model::{Arena, Cost, Info, Layout, Model};
use runtime::weights::WeightFile;
use support::reference::Reference;

mod support;

const VOCABULARY: usize = 16;
const CHUNK: usize = 8;
const HEAD_ROWS: usize = 2;
const SUMS: Span<f32> = Span::new(Buffer::Scratch, 0, CHUNK * 4);
const LOGITS: Span<f32> = Span::new(Buffer::Scratch, 256, HEAD_ROWS * VOCABULARY * 4);
const NEXT: Span<u32> = Span::new(Buffer::Scratch, 512, HEAD_ROWS * 4);

struct Halving {
    memory: Span<f32>,
    layout: Layout,
}

static LEARN: Kernel = Kernel {
    name: "learn",
    buffers: &["ids", "slots", "positions", "memory", "sums"],
    threads: 32,
    cpu: learn,
};
static TELL: Kernel =
    Kernel { name: "tell", buffers: &["sums", "wanted", "logits", "next"], threads: 32, cpu: tell };

fn learn(call: &Call<'_>) {
    let (rows, kept) = (call.scalar(0), call.scalar(1));
    let [ids, slots, positions] = ["ids", "slots", "positions"].map(|name| call.input::<u32>(name, rows));
    let memory = call.output::<f32>("memory", 2);
    let sums = call.output::<f32>("sums", rows);
    for _ in call.share(1, 1) {
        for row in 0..rows {
            let slot = slots[row] as usize;
            // SAFETY: one thread has the only share.
            let (own, sum) =
                unsafe { (&mut memory.part(slot..slot + 1)[0], &mut sums.part(row..row + 1)[0]) };
            let before = if positions[row] == 0 { 0.0 } else { *own };
            *sum = before / 2.0 + ids[row] as f32;
            if row < kept {
                *own = *sum;
            }
        }
    }
}

fn tell(call: &Call<'_>) {
    let rows = call.scalar(0);
    let wanted = call.input::<u32>("wanted", rows);
    let sums = call.input::<f32>("sums", CHUNK);
    let logits = call.output::<f32>("logits", rows * VOCABULARY);
    let next = call.output::<u32>("next", rows);
    for _ in call.share(1, 1) {
        // SAFETY: one thread has the only share.
        let (logits, next) = unsafe { (logits.part(0..rows * VOCABULARY), next.part(0..rows)) };
        next.fill(VOCABULARY as u32 - 1);
        for (row, logits) in wanted.iter().zip(logits.chunks_exact_mut(VOCABULARY)) {
            logits.iter_mut().enumerate().for_each(|(id, logit)| *logit = sums[*row as usize] + id as f32);
        }
    }
}

const NOTHING: Cost =
    Cost { dispatches: 2, barriers: 1, bytes_read: 0, dispatches_per_layer: &[1], more_when_split: &[0] };

impl Model for Halving {
    const INFO: Info = Info {
        name: "halving",
        architecture: "HalvingForCausalLM",
        parameters: 0,
        vocabulary: VOCABULARY as u32,
        hidden: 1,
        layers: 1,
        context: 12,
        chunk: CHUNK as u32,
        head_rows: HEAD_ROWS as u32,
        begin: None,
        end: &[],
        formats: &[],
        cache: "f32",
        state_bytes_per_position: 0,
        rings: &[],
        memory_bytes: 4,
        decode: NOTHING,
        prefill: NOTHING,
    };

    fn new(_: &WeightFile, _: u32, slots: u32) -> Result<Halving, Failure> {
        let mut state = Arena::new(Buffer::State);
        let memory = state.take(slots as usize);
        Ok(Halving { memory, layout: Layout::new(&Self::INFO, state.bytes(), 768, LOGITS, NEXT) })
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn memories(&self) -> Vec<Span<f32>> {
        vec![self.memory]
    }

    fn forward(&self, pass: &mut dyn Pass, rows: u32, kept: u32, _longest: u32) {
        let Layout { ids, slots, positions, .. } = self.layout;
        let bindings = [ids.read(), slots.read(), positions.read(), self.memory.write(), SUMS.write()];
        pass.dispatch(&LEARN, &bindings, &[rows, kept], [1, 1, 1]);
    }

    fn head(&self, pass: &mut dyn Pass, _rows: u32, wanted: u32) {
        pass.barrier();
        let bindings = [SUMS.read(), self.layout.wanted.read(), LOGITS.write(), NEXT.write()];
        pass.dispatch(&TELL, &bindings, &[wanted], [1, 1, 1]);
    }
}

fn engine(slots: u32) -> Engine<Halving, CpuDevice> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    Reference::new().write_weights(&path);
    let weights = WeightFile::open(&path).unwrap();
    let model = Halving::new(&weights, 12, slots).unwrap();
    let device = CpuDevice::new(&weights, model.layout(), Some(1)).unwrap();
    Engine::new(model, device, 12, slots)
}

/// The first logit after a text: its memory.
fn sum(text: &[u32]) -> f32 {
    text.iter().fold(0.0, |sum, id| sum / 2.0 + *id as f32)
}

fn fed(engine: &mut Engine<Halving, CpuDevice>, slot: u32, ids: &[u32]) -> f32 {
    engine.feed(slot, ids, Want::Logits).unwrap().logits[0][0]
}

const ONE: [u32; 7] = [3, 1, 4, 1, 5, 9, 2];
const OTHER: [u32; 7] = [2, 7, 1, 8, 2, 8, 1];

#[test]
fn texts_in_turns_are_those_read_alone() {
    let mut both = engine(2);
    for length in 1..=7 {
        assert_eq!(fed(&mut both, 0, &ONE[length - 1..length]), sum(&ONE[..length]));
        assert_eq!(fed(&mut both, 1, &OTHER[length - 1..length]), sum(&OTHER[..length]));
    }
    // Several rows of both in one pass.
    let row = |slot: u32, position: u32| Row { id: 1, slot, position };
    let rows = [row(1, 7), row(1, 8), row(0, 7)];
    let logits = both.submit(&rows, &[1, 2], true).unwrap().logits;
    assert_eq!(logits[0][0], sum(&[&OTHER[..], &[1, 1]].concat()));
    assert_eq!(logits[1][0], sum(&[&ONE[..], &[1]].concat()));
}

#[test]
fn a_slot_goes_back_to_its_beginning_alone() {
    let mut engine = engine(2);
    fed(&mut engine, 0, &ONE);
    assert_eq!([engine.kept(0, 7), engine.kept(0, 9), engine.kept(0, 6), engine.kept(0, 0)], [7, 7, 0, 0]);
    assert_eq!(engine.truncate(0, 6), 0);
    assert_eq!(fed(&mut engine, 0, &OTHER), sum(&OTHER));
    let behind = engine.submit(&[Row { id: 1, slot: 0, position: 6 }], &[0], false).unwrap_err();
    assert!(behind.to_string().contains("it has to be read again from its start"), "{behind}");
    assert_eq!(fed(&mut engine, 0, &ONE[..2]), sum(&[&OTHER[..], &ONE[..2]].concat()), "nothing was done");
}

#[test]
fn a_slot_goes_back_to_where_it_was_remembered() {
    let mut engine = engine(2);
    fed(&mut engine, 0, &ONE[..4]);
    engine.remember(0);
    fed(&mut engine, 1, &OTHER);
    fed(&mut engine, 0, &ONE[4..]);
    assert_eq!([engine.kept(0, 7), engine.kept(0, 5), engine.kept(0, 4), engine.kept(0, 3)], [7, 4, 4, 0]);
    for text in [&OTHER[..3], &ONE[4..]] {
        assert_eq!(engine.truncate(0, 5), 4);
        assert_eq!(fed(&mut engine, 0, text), sum(&[&ONE[..4], text].concat()));
    }
    assert_eq!(fed(&mut engine, 1, &[5]), sum(&[&OTHER[..], &[5]].concat()), "the other slot is as it was");
    // What was remembered is of a text that is no longer there.
    assert_eq!(engine.truncate(0, 2), 0);
    fed(&mut engine, 0, &OTHER);
    assert_eq!(engine.kept(0, 5), 0);
}
