//! The sampling kernel in the kernel checker draws the same tokens as the host's sampler, for the same seeds and settings. Many
//! logits are equal and some are NaN.

use forge_kernels::{Spec, assemble, render};
use forge_ops::Sample;
use forge_runtime::sampling::sampler::{Sampler, SamplingParams};
use forge_sim::{Program, Sim};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const ROWS: usize = 4;
/// Less than a simdgroup, one-digit and two-digit token ids, and several tokens per thread.
const VOCABULARIES: [usize; 5] = [1, 31, 256, 257, 1900];

/// Logits of a row.
fn logits(vocabulary: usize) -> impl Strategy<Value = Vec<f32>> {
    let numbers = prop_oneof![
        Just(None),
        (-9.0_f32..9.0).prop_map(Some),
        (0.0_f32..1e-3).prop_map(|logit| Some(logit * 1e-36))
    ];
    let odd = prop_oneof![Just(f32::NAN), Just(f32::NEG_INFINITY), Just(-0.0), Just(f32::MAX)];
    (numbers, odd, 0..30_usize, any::<u32>()).prop_map(move |(all, odd, often, seed)| {
        let mut random = seed;
        let mut next = move || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 9) as usize
        };
        let logit = |_| match (next(), all) {
            (some, _) if some % 30 == often => odd,
            (_, Some(logit)) => logit * (1 + next() % 3) as f32,
            (some, None) if some % 2 == 0 => (next() % 9) as f32 - 4.0,
            (_, None) => (next() % 20_000) as f32 * 1e-3 - 10.0,
        };
        (0..vocabulary).map(logit).collect()
    })
}

fn settings() -> impl Strategy<Value = SamplingParams> {
    let temperature =
        prop_oneof![1 => Just(0.0_f32), 6 => 0.1_f32..3.0, 1 => 1e-38_f32..1e-3, 1 => 1e3_f32..3e38];
    let top_k = prop_oneof![Just(0_usize), 1_usize..12, 1_usize..2000];
    let top_p = prop_oneof![Just(1.0_f32), 0.0001_f32..=1.0];
    let min_p = prop_oneof![Just(0.0_f32), Just(1.0), 0.0_f32..=1.0];
    (temperature, top_k, top_p, min_p).prop_map(|(temperature, top_k, top_p, min_p)| SamplingParams {
        temperature,
        top_k,
        top_p,
        min_p,
        ..SamplingParams::default()
    })
}

#[test]
fn gpu_sampling_matches_cpu_sampling() {
    let instances = VOCABULARIES.map(|vocabulary| {
        let spec = Spec::Sample(Sample { vocabulary });
        render(&format!("sample_{vocabulary}"), &spec).unwrap_or_else(|error| panic!("{error}"))
    });
    let program = Program::compile(&assemble(&instances, "")).unwrap_or_else(|error| panic!("{error}"));
    let row = (prop::sample::select(VOCABULARIES.to_vec())).prop_flat_map(|vocabulary| {
        let rows = prop::collection::vec((logits(vocabulary), settings(), any::<u64>()), ROWS);
        (Just(vocabulary), rows, 0..2_u32)
    });
    let mut runner = TestRunner::new(Config { cases: 120, max_shrink_iters: 50, ..Config::default() });
    let result = runner.run(&row, |(vocabulary, rows, index)| {
        let mut sim = Sim::new(&program).unwrap();
        let all: Vec<f32> = rows.iter().flat_map(|row| row.0.clone()).collect();
        let words: Vec<u32> =
            rows.iter().flat_map(|row| row.1.device_sampling(row.2, index).words()).collect();
        let (logits, draws) = (sim.memory.floats(&all).unwrap(), sim.memory.words(&words).unwrap());
        let ids = sim.memory.unwritten(ROWS * 4).unwrap();
        let name = format!("sample_{vocabulary}");
        sim.dispatch(&name, &[logits.read(), draws.read(), ids.write()], &[ROWS as u32], [ROWS as u32, 1, 1]);
        prop_assert!(sim.faults().is_empty(), "{:?}", sim.faults());
        let wanted = rows.iter().map(|(logits, sampling, seed)| {
            let mut sampler = Sampler::new(sampling.clone(), *seed, &[]);
            (0..=index).map(|_| sampler.sample(logits)).last()
        });
        let wanted: Vec<u32> = wanted.map(Option::unwrap_or_default).collect();
        prop_assert_eq!(
            sim.memory.read_words(ids),
            wanted,
            "{:?}",
            rows.iter().map(|row| &row.1).collect::<Vec<_>>()
        );
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
