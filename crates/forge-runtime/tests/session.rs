//! Sessions: generated text, prefix reuse, and stop conditions.

use forge_runtime as runtime;
use runtime::cpu::CpuDevice;
use runtime::engine::{Engine, Output};
use runtime::error::Error;
use runtime::sampling::sampler::SamplingParams;
use runtime::session::generation::{
    Constraint, FinishReason, GeneratedToken, Generation, GenerationParams, Logprobs, log_sum_exp,
};
use runtime::session::session::{Event, Generated, Session};
use runtime::text::chat_template::{Message, Template};
use runtime::text::tokenizer::Tokenizer;
use runtime::weights::WeightFile;
use std::ops::ControlFlow;
use support::reference::{Reference, write_tokenizer};

#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../tiny/kernels.rs"]
mod kernels;
#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../tiny/model.rs"]
mod model;
mod support;
use model::Tiny;

/// A message is rendered as `w3` and its text, and a reply starts after `w4`.
const TEMPLATE: &str =
    "{% for m in messages %}w3 {{ m.content }} {% endfor %}{% if add_generation_prompt %}w4{% endif %}";

fn session(context: u32) -> Session<CpuDevice> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    Reference::new().write_weights(&path);
    write_tokenizer(&folder.path().join("tokenizer.json"));
    let weights = WeightFile::open(&path).unwrap();
    let tiny = Tiny::load(&weights, context, 1).unwrap();
    let device = CpuDevice::new(&weights, tiny.layout(), Some(1)).unwrap().exact(true);
    let text = Tokenizer::read(&folder.path().join("tokenizer.json")).unwrap();
    let template = Template::new(TEMPLATE, None, serde_json::Map::new()).unwrap();
    Session::new(Engine::new(tiny, device, context, 1), Some(text), Some(template))
}

/// The run-ahead of a session: the device's default, and many tokens.
const CHAINS: [Option<u32>; 2] = [None, Some(8)];

fn write(session: &mut Session<CpuDevice>, prompt: &[u32], settings: GenerationParams) -> Generated {
    session.generate(prompt, settings, None, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn count(count: usize) -> GenerationParams {
    GenerationParams { max_tokens: count, ignore_eos: true, ..GenerationParams::default() }
}

#[test]
fn cached_prefixes_are_reused_without_changing_results() {
    CHAINS.into_iter().for_each(|chain| held(session(64).with_tokens_per_pass(chain)));
}

fn held(mut session: Session<CpuDevice>) {
    let reference = Reference::new();
    let mut prompt: Vec<u32> = vec![5, 6, 7];
    // (text after the answer, number of new tokens in the next prompt)
    for (more, read) in [(vec![8, 9], 3), (vec![10], 3), (vec![11, 12, 13], 2)] {
        let written = write(&mut session, &prompt, count(4));
        assert_eq!(written.token_ids, reference.greedy(&prompt, 4), "{prompt:?}");
        assert_eq!(written.prefilled_tokens, read, "the last id of an answer has not been read");
        prompt.extend(&written.token_ids);
        prompt.extend(more);
    }
    // For the same prompt only the last token is processed, to get its logits. Another start reprocesses the
    // whole prompt.
    let again = write(&mut session, &prompt, count(2));
    assert_eq!((again.prefilled_tokens, again.token_ids), (4, reference.greedy(&prompt, 2)));
    assert_eq!(write(&mut session, &prompt, count(2)).prefilled_tokens, 1);
    let other = [9, 6, 7];
    assert_eq!(write(&mut session, &other, count(3)).token_ids, reference.greedy(&other, 3));
}

/// A ring of 64 positions with a window of 20: a conversation that rewinds by few tokens reuses the cache,
/// and one that rewinds by many is reprocessed.
#[test]
fn positions_lost_from_a_ring_are_recomputed() {
    let reference = Reference::new();
    let mut session = session(200);
    let long: Vec<u32> = (0..150).map(|i| (i * i * 7 + i * 3 + 5) % 50).collect();
    write(&mut session, &long, count(1));
    for (common, read) in [(140, 2), (110, 2), (90, 92), (60, 62)] {
        let prompt = [&long[..common], &[1, 2]].concat();
        let written = write(&mut session, &prompt, count(2));
        assert_eq!(
            (written.prefilled_tokens, written.token_ids),
            (read, reference.greedy(&prompt, 2)),
            "{common}"
        );
        // Back to the long prompt, whatever can be reused.
        write(&mut session, &long, count(1));
    }
}

#[test]
fn conversations_are_rendered_and_answered() {
    let reference = Reference::new();
    let mut session = session(64);
    let mut messages = vec![Message::user("w7 w8")];
    let first = session.chat(&messages, count(3)).unwrap();
    let words = |ids: &[u32]| ids.iter().map(|id| format!("w{id}")).collect::<Vec<_>>().join(" ");
    assert_eq!(first, words(&reference.greedy(&[3, 7, 8, 4], 3)));
    messages.extend([Message::assistant(first.clone()), Message::user("w9")]);
    let mut ids = vec![3, 7, 8, 3];
    ids.extend(reference.greedy(&[3, 7, 8, 4], 3));
    ids.extend([3, 9, 4]);
    assert_eq!(session.chat(&messages, count(2)).unwrap(), words(&reference.greedy(&ids, 2)));
}

#[test]
fn generation_reports_its_finish_reason() {
    let prompt = [5, 6, 7];
    let greedy = Reference::new().greedy(&prompt, 20);
    let stop = format!("w{} w{}", greedy[1], greedy[2]);
    let cases = [
        (64, count(3), FinishReason::Length, 3),
        (64, GenerationParams { stop: vec![stop], ..count(20) }, FinishReason::StopString, 3),
        // Positions 3 to 7 take five tokens, and a sixth is sampled from the last.
        (8, count(20), FinishReason::Context, 6),
    ];
    for ((context, settings, end, ids), chain) in
        cases.into_iter().flat_map(|case| CHAINS.map(|chain| (case.clone(), chain)))
    {
        let mut session = session(context).with_tokens_per_pass(chain);
        let written = write(&mut session, &prompt, settings);
        assert_eq!((written.finish_reason, written.token_ids.as_slice()), (end, &greedy[..ids]), "{chain:?}");
        assert_eq!(session.length() as usize, 3 + ids - 1, "{chain:?}: the last id has not been read");
    }
    let mut session = session(64);
    let mut pieces = 0;
    let written = session.generate(&prompt, count(20), None, &mut |event| {
        pieces += usize::from(matches!(event, Event::Token(_)));
        if pieces == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let written = written.unwrap();
    assert_eq!(
        (written.finish_reason, written.token_ids.as_slice()),
        (FinishReason::Interrupted, &greedy[..2])
    );
    // A cancelled generation can be continued.
    assert_eq!(write(&mut session, &prompt, count(20)).token_ids, greedy);
}

#[test]
fn long_prompts_report_progress() {
    let mut session = session(64);
    let prompt: Vec<u32> = (3..30).collect();
    let mut read = Vec::new();
    let mut listen = |event: Event<'_>| {
        if let Event::Prefill { done, total } = event {
            read.push((done, total));
        }
        ControlFlow::Continue(())
    };
    session.generate(&prompt, count(1), None, &mut listen).unwrap();
    assert_eq!(read, [(8, 27), (16, 27), (24, 27)]);
    let rejected = session.generate(&[3; 65], count(1), None, &mut |_| ControlFlow::Continue(()));
    let message = rejected.unwrap_err().to_string();
    assert!(message.contains("65 tokens exceed the context length of 64"), "{message}");
}

/// Only even token ids, and three of them.
struct Even(usize);

impl Constraint for Even {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        logits.iter_mut().skip(1).step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), Error> {
        assert_eq!(id % 2, 0);
        self.0 += 1;
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        self.0 == 3
    }
}

#[test]
fn generation_obeys_constraints() {
    for temperature in [0.0, 2.0] {
        let sampling = SamplingParams { temperature, ..SamplingParams::default() };
        let settings = GenerationParams { sampling, seed: 3, ..count(20) };
        let written = session(64)
            .generate(&[5, 6], settings, Some(Box::new(Even(0))), &mut |_| ControlFlow::Continue(()));
        let written = written.unwrap();
        assert_eq!((written.finish_reason, written.token_ids.len()), (FinishReason::Complete, 3));
        assert!(written.token_ids.iter().all(|id| id % 2 == 0), "{:?}", written.token_ids);
    }
}

#[test]
fn logprobs_are_of_the_unmodified_distribution() {
    let settings = GenerationParams {
        sampling: SamplingParams { bias: vec![(7, 100.0)], ..SamplingParams::greedy() },
        logprobs: Some(2),
        ..GenerationParams::default()
    };
    let mut completion = Generation::new(None, &[], &[1], settings, None);
    assert_eq!(completion.required_output(), Output::Logits);
    let mut logits: Vec<f32> = (0..10).map(|i| (i as f32 * 1.7).sin()).collect();
    let plain = logits.clone();
    let GeneratedToken { id, logprobs, .. } = completion.sample(&mut logits).unwrap();
    assert_eq!(id, Some(7));
    let logprobs = logprobs.unwrap();
    assert_eq!(logprobs, Logprobs::of(&plain, 7, 2));
    let probability =
        |id: usize| f64::from(plain[id]).exp() / plain.iter().map(|l| f64::from(*l).exp()).sum::<f64>();
    assert!((f64::from(logprobs.chosen).exp() - probability(7)).abs() < 1e-6);
    let best = (0..10).max_by(|a, b| plain[*a].total_cmp(&plain[*b])).unwrap();
    assert_eq!(logprobs.top[0].0 as usize, best);
    assert!((f64::from(logprobs.top[0].1).exp() - probability(best)).abs() < 1e-6);
    assert_eq!(logprobs.top.len(), 2);
    assert!((log_sum_exp(&[0.0, 0.0]) - 2.0_f64.ln()).abs() < 1e-12);
}
