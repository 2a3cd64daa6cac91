//! Argmax and sampling.

use crate::support::{Argument, Random, each_level, kernel, run_kernel, words_of};
use forge_device::sampling::sampler::{Sampler, SamplingParams};
use forge_device::{cpu, ops};
use forge_oracle::head::{self, CANDIDATES};

#[test]
fn argmax_combine_returns_the_lowest_of_equal_ids() {
    kernel_under_test!(SHAPE, ops::ArgmaxCombine, cpu::argmax_combine);
    let mut random = Random(9);
    for candidates in CANDIDATES {
        let pairs = head::candidates(&mut random, candidates);
        let wanted = head::argmax_combine(&pairs[..candidates]);
        let words = pairs.concat();
        let kernel = kernel("argmax_combine", vec!["candidates", "ids"], run);
        *SHAPE.write().unwrap() = Some(ops::ArgmaxCombine { candidates });
        let arguments = [Argument::U32(words), Argument::Output(vec![0xff; 8])];
        each_level(|level, threads| {
            let ids = run_kernel(kernel, &arguments, &[2], level, threads);
            assert_eq!(words_of(&ids[0]), [wanted, 0], "{level:?} {candidates}");
        });
    }
}

#[test]
fn generation_returns_the_sampled_tokens() {
    kernel_under_test!(SHAPE, ops::Sample, cpu::sample);
    let plain = SamplingParams::default();
    let settings = [
        plain.clone(),
        SamplingParams { temperature: 0.2, top_k: 7, ..plain.clone() },
        SamplingParams { temperature: 1.5, top_p: 0.4, ..plain.clone() },
        SamplingParams { min_p: 0.1, ..plain.clone() },
        SamplingParams { temperature: 3.0, top_k: 40, top_p: 0.9, min_p: 0.3, ..plain },
        SamplingParams::greedy(),
    ];
    let mut random = Random(12);
    for vocabulary in [1, 17, 500, 32_001] {
        let rows = settings.len();
        // Many logits are equal, and some are NaN.
        let logit = |random: &mut Random| match random.below(40) {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            of => (random.number() * 9.0 * of as f32).round() / of as f32,
        };
        let logits: Vec<f32> = (0..rows * vocabulary).map(|_| logit(&mut random)).collect();
        let kernel = kernel("sample", vec!["logits", "draws", "ids"], run);
        *SHAPE.write().unwrap() = Some(ops::Sample { vocabulary });
        for seed in 0..if vocabulary > 1000 { 3 } else { 200 } {
            let mut samplers: Vec<Sampler> =
                settings.iter().map(|sampling| Sampler::new(sampling.clone(), seed, &[])).collect();
            for index in 0..2 {
                let draws =
                    settings.iter().flat_map(|sampling| sampling.device_sampling(seed, index).words());
                let draws = Argument::U32(draws.collect());
                let arguments =
                    [Argument::F32(logits.clone()), draws, Argument::Output(vec![0xff; 4 * rows])];
                let wanted: Vec<u32> = samplers
                    .iter_mut()
                    .zip(logits.chunks(vocabulary))
                    .map(|(sampler, logits)| sampler.sample(logits))
                    .collect();
                each_level(|level, threads| {
                    let ids = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
                    assert_eq!(words_of(&ids[0]), wanted, "{level:?} {vocabulary} {seed}");
                });
            }
        }
    }
}

#[test]
fn argmax_returns_the_lowest_of_equal_ids() {
    kernel_under_test!(SHAPE, ops::Argmax, cpu::argmax);
    let mut random = Random(4);
    for vocabulary in [1, 2, 15, 16, 17, 500, 32_001] {
        let mut logits = random.floats(3 * vocabulary);
        let twice = random.below(vocabulary);
        logits[twice] = 2.0;
        logits[vocabulary - 1] = 2.0;
        logits[vocabulary..2 * vocabulary].fill(-3.5);
        let third = random.below(vocabulary);
        logits[2 * vocabulary + third] = f32::INFINITY;
        let kernel = kernel("argmax", vec!["logits", "ids"], run);
        let arguments = [Argument::F32(logits), Argument::Output(vec![0xff; 12])];
        *SHAPE.write().unwrap() = Some(ops::Argmax { vocabulary });
        each_level(|level, threads| {
            let ids = run_kernel(kernel, &arguments, &[3], level, threads);
            assert_eq!(words_of(&ids[0]), [twice as u32, 0, third as u32], "{level:?} {vocabulary}");
        });
    }
}
