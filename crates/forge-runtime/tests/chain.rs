//! Multi-token passes: generated tokens, cached tokens, and stop conditions.

use forge_runtime as runtime;
use runtime::cpu::CpuDevice;
use runtime::device::{Buffer, Device, Pass, RunAhead, Schedule};
use runtime::engine::{Engine, Output};
use runtime::measure::recorder::Recorder;
use runtime::model::{LoadModel, Model};
use runtime::sampling::sampler::{Sampler, SamplingParams};
use runtime::weights::WeightFile;
use support::halving::Halving;
use support::reference::Reference;

#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../tiny/kernels.rs"]
mod kernels;
#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../tiny/model.rs"]
mod model;
mod support;
use model::Tiny;

const PROMPT: [u32; 4] = [5, 6, 7, 31];

/// Within the maximum of tokens in flight.
const LEADS: [RunAhead; 6] = [
    RunAhead::NONE,
    RunAhead { tokens_per_pass: 8, passes: 1 },
    RunAhead { tokens_per_pass: 1, passes: 2 },
    RunAhead { tokens_per_pass: 3, passes: 2 },
    RunAhead { tokens_per_pass: 8, passes: 2 },
    RunAhead { tokens_per_pass: 5, passes: 3 },
];

fn repacked(load: LoadModel, context: u32, slots: u32) -> (Box<dyn Model>, WeightFile) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    Reference::new().write_weights(&path);
    let weights = WeightFile::open(&path).unwrap();
    (load(&weights, context, slots).unwrap(), weights)
}

fn engine(load: LoadModel, context: u32, slots: u32) -> Engine<CpuDevice> {
    let (model, weights) = repacked(load, context, slots);
    let device = CpuDevice::new(&weights, model.layout(), Some(2)).unwrap().exact(true);
    Engine::new(model, device, context, slots)
}

#[test]
fn generation_does_not_depend_on_run_ahead() {
    let wanted = Reference::new().greedy(&PROMPT, 30);
    for (lead, slots) in LEADS.into_iter().flat_map(|lead| [(lead, 1), (lead, 3)]) {
        let slot = slots - 1;
        let mut engine = engine(Tiny::load, 40, slots);
        let first = engine.run_tokens(slot, &PROMPT, Output::Greedy).unwrap().next_tokens[0];
        let mut chain = engine.decode_multi_step(slot, first, lead).unwrap();
        let written: Vec<u32> = (1..30).rev().map(|left| chain.next(left).unwrap()).collect();
        drop(chain);
        assert_eq!((first, &written[..]), (wanted[0], &wanted[1..]), "{lead:?}");
        assert_eq!(engine.length(slot), 4 + 29, "{lead:?}: no more was begun than was wanted");
        // The last token has not been processed: the sequence continues with it.
        let next = engine.run_tokens(slot, &written[28..], Output::Greedy).unwrap().next_tokens;
        assert_eq!(next, Reference::new().greedy(&[&PROMPT[..], &wanted].concat(), 1), "{lead:?}");
    }
}

/// The host samples from the logits of every token; the device samples by itself.
#[test]
fn device_sampling_matches_the_host_at_any_run_ahead() {
    let plain = SamplingParams::default();
    for sampling in [
        SamplingParams { temperature: 2.0, ..plain.clone() },
        SamplingParams { temperature: 0.7, top_k: 12, top_p: 0.9, min_p: 0.01, ..plain },
    ] {
        let mut engine_of_host = engine(Tiny::load, 40, 1);
        let mut sampler = Sampler::new(sampling.clone(), 77, &PROMPT);
        let mut wanted: Vec<u32> = Vec::new();
        let mut fed = PROMPT.to_vec();
        for _ in 0..30 {
            let logits = engine_of_host.run_tokens(0, &fed, Output::Logits).unwrap().logits;
            wanted.push(sampler.sample(&logits[0]));
            fed = vec![wanted[wanted.len() - 1]];
        }
        for lead in LEADS {
            let mut engine = engine(Tiny::load, 40, 1);
            let first = engine
                .run_tokens(0, &PROMPT, Output::Sampled(sampling.device_sampling(77, 0)))
                .unwrap()
                .next_tokens[0];
            let mut chain = engine
                .decode_multi_step(0, first, lead)
                .unwrap()
                .with_sampling(sampling.device_sampling(77, 1));
            let written: Vec<u32> = (1..30).rev().map(|left| chain.next(left).unwrap()).collect();
            assert_eq!((first, &written[..]), (wanted[0], &wanted[1..]), "{lead:?} {sampling:?}");
        }
    }
}

/// A generation that is stopped after a few tokens, while the device has run ahead.
#[test]
fn tokens_after_the_end_are_dropped() {
    let reference = Reference::new();
    let wanted = reference.greedy(&PROMPT, 3);
    for lead in LEADS {
        let mut engine = engine(Tiny::load, 60, 1);
        let first = engine.run_tokens(0, &PROMPT, Output::Greedy).unwrap().next_tokens[0];
        let mut chain = engine.decode_multi_step(0, first, lead).unwrap();
        let written = [chain.next(100).unwrap(), chain.next(99).unwrap()];
        drop(chain);
        assert_eq!(written, wanted[1..]);
        assert_eq!(engine.truncate(0, 6), 6);
        let text = [&PROMPT[..], &wanted[..2], &[8, 9]].concat();
        let next = engine.run_tokens(0, &[8, 9], Output::Greedy).unwrap().next_tokens;
        assert_eq!(next, reference.greedy(&text, 1), "{lead:?}");
    }
}

#[test]
fn multi_step_decode_ends_at_the_context_length() {
    for lead in LEADS {
        let mut engine = engine(Tiny::load, 9, 1);
        engine.run_tokens(0, &PROMPT, Output::Nothing).unwrap();
        let mut chain = engine.decode_multi_step(0, 8, lead).unwrap();
        (0..5).for_each(|_| _ = chain.next(100).unwrap());
        let end = chain.next(100).unwrap_err();
        assert!(end.to_string().contains("the context is full at 9 tokens"), "{end}");
        drop(chain);
        assert_eq!(engine.length(0), 9);
        assert!(engine.decode_multi_step(0, 8, lead).is_err(), "there is no position for it");
    }
    let mut engine = engine(Tiny::load, 9, 1);
    for (slot, id, lead) in [
        (1, 8, RunAhead::NONE),
        (0, 50, RunAhead::NONE),
        (0, 8, RunAhead { tokens_per_pass: 9, passes: 2 }),
        (0, 8, RunAhead { tokens_per_pass: 0, passes: 1 }),
        (0, 8, RunAhead { tokens_per_pass: 1, passes: 0 }),
    ] {
        assert!(engine.decode_multi_step(slot, id, lead).is_err(), "{slot} {id} {lead:?}");
    }
}

/// The recurrent state is where the device has stopped. It can be restored from a snapshot, but not to the
/// last accepted token.
#[test]
fn recurrent_states_are_restored() {
    let text = [3, 1, 4];
    let mut plain = engine(Halving::load, 12, 1);
    let mut wanted = plain.run_tokens(0, &text, Output::Greedy).unwrap().next_tokens;
    for _ in 0..4 {
        let last = wanted[wanted.len() - 1];
        wanted.extend(plain.run_tokens(0, &[last], Output::Greedy).unwrap().next_tokens);
    }
    for lead in LEADS {
        let mut engine = engine(Halving::load, 12, 1);
        engine.run_tokens(0, &text[..2], Output::Nothing).unwrap();
        engine.snapshot_state(0);
        let first = engine.run_tokens(0, &text[2..], Output::Greedy).unwrap().next_tokens[0];
        let mut chain = engine.decode_multi_step(0, first, lead).unwrap();
        let written: Vec<u32> = (0..4).map(|_| chain.next(100).unwrap()).collect();
        drop(chain);
        assert_eq!(written, wanted[1..], "{lead:?}");
        let is_ahead = lead != RunAhead::NONE;
        assert_eq!(engine.truncate(0, 7), if is_ahead { 2 } else { 7 }, "{lead:?}");
        engine.truncate(0, 2);
        assert_eq!(
            engine.run_tokens(0, &text[2..], Output::Greedy).unwrap().next_tokens,
            wanted[..1],
            "{lead:?}"
        );
    }
}

/// Several tokens in one pass, with barriers between them: the token of a row is stored where the next row
/// reads it.
#[test]
fn rows_of_a_pass_follow_each_other() {
    let (tiny, weights) = repacked(Tiny::load, 40, 1);
    let recorder = Recorder::new(weights.bytes(), tiny.layout(), 64);
    let mut engine = Engine::new(tiny, recorder, 40, 1);
    engine.decode_multi_step(0, 5, RunAhead { tokens_per_pass: 3, passes: 1 }).unwrap().next(3).unwrap();
    let recording = engine.into_device().finish();
    let passes = recording["passes"].as_array().unwrap();
    assert_eq!(passes.len(), 1);
    let commands = passes[0]["commands"].as_array().unwrap();
    let barriers = commands.iter().filter(|command| !command["barrier"].is_null()).count() as u32;
    let cost = model::INFO.decode;
    assert_eq!((commands.len() as u32 - barriers, barriers), (3 * cost.dispatches, 3 * cost.barriers + 2));
    let place = |kernel: &str, buffer: usize| {
        let dispatches = commands.iter().filter(|command| command["dispatch"]["kernel"] == kernel);
        let binding =
            |command: &serde_json::Value| command["dispatch"]["bindings"][buffer]["offset"].as_u64();
        dispatches.map(|command| binding(command).unwrap()).collect::<Vec<_>>()
    };
    let (read, given) = (place("embed", 2), place("argmax", 1));
    assert_eq!(read, [given[0] - 4, given[0], given[1]]);
    assert_eq!(given[2], given[1] + 4);
}

/// A device whose passes fail after a number of successful ones.
struct Failing(CpuDevice, usize);

impl Device for Failing {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        self.0.write(buffer, offset, bytes);
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        self.0.read(buffer, offset, bytes);
    }

    fn run(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.1 = self.1.checked_sub(1).ok_or("the device is lost")?;
        self.0.run(program, encode)
    }
}

#[test]
fn tokens_before_a_device_failure_are_kept() {
    let (tiny, weights) = repacked(Tiny::load, 40, 1);
    let device = CpuDevice::new(&weights, tiny.layout(), Some(1)).unwrap().exact(true);
    let mut engine = Engine::new(tiny, Failing(device, 2), 40, 1);
    let mut chain = engine.decode_multi_step(0, 5, RunAhead { tokens_per_pass: 3, passes: 1 }).unwrap();
    let given: Vec<_> = (0..7).map(|_| chain.next(100).map_err(|failure| failure.to_string())).collect();
    drop(chain);
    let wanted = Reference::new().greedy(&[5], 6);
    assert_eq!(given[..6], wanted.into_iter().map(Ok).collect::<Vec<_>>());
    assert!(given[6].as_ref().is_err_and(|failure| failure.contains("the device is lost")), "{given:?}");
    assert_eq!(engine.length(0), 6);
}
