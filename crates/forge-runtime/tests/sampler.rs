//! The sampler: what it may draw, in which order its settings apply, and that it draws by probability.

use forge_runtime::sampler::{Sampler, Sampling};
use proptest::prelude::*;
use std::collections::BTreeSet;

const PLAIN: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

/// The ids that settings leave, worked out the long way; and their probabilities.
fn kept(logits: &[f32], sampling: Sampling) -> Vec<(usize, f64)> {
    let scaled: Vec<f64> = logits.iter().map(|&l| f64::from(l) / f64::from(sampling.temperature)).collect();
    let top = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut ids: Vec<(usize, f64)> = scaled.iter().map(|l| (l - top).exp()).enumerate().collect();
    ids.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if sampling.top_k > 0 {
        ids.truncate(sampling.top_k);
    }
    let total: f64 = ids.iter().map(|id| id.1).sum();
    let mut sum = 0.0;
    let count = ids.iter().take_while(|id| {
        let more = sum < f64::from(sampling.top_p) * total;
        sum += id.1;
        more
    });
    let count = count.count().max(1);
    ids.truncate(count);
    ids.retain(|id| id.1 >= f64::from(sampling.min_p));
    let total: f64 = ids.iter().map(|id| id.1).sum();
    ids.iter_mut().for_each(|id| id.1 /= total);
    ids
}

fn settings() -> impl Strategy<Value = Sampling> {
    (0.1_f32..3.0, 0_usize..12, 0.05_f32..=1.0, 0.0_f32..=1.0)
        .prop_map(|(temperature, top_k, top_p, min_p)| Sampling { temperature, top_k, top_p, min_p })
}

proptest! {
    #[test]
    fn only_kept_ids_are_drawn(
        logits in proptest::collection::vec(-8.0_f32..8.0, 1..40),
        sampling in settings(),
        seed: u64,
    ) {
        let allowed: BTreeSet<usize> = kept(&logits, sampling).into_iter().map(|id| id.0).collect();
        let mut sampler = Sampler::new(sampling, seed);
        for _ in 0..50 {
            let id = sampler.draw(&logits) as usize;
            prop_assert!(allowed.contains(&id), "{} is not among {:?}", id, allowed);
        }
    }

    #[test]
    fn a_seed_decides_everything(
        logits in proptest::collection::vec(-8.0_f32..8.0, 1..40),
        sampling in settings(),
        seed: u64,
    ) {
        let draw = || {
            let mut sampler = Sampler::new(sampling, seed);
            (0..20).map(|_| sampler.draw(&logits)).collect::<Vec<u32>>()
        };
        prop_assert_eq!(draw(), draw());
    }

    #[test]
    fn what_is_not_a_number_is_not_drawn(at in 0_usize..5, seed: u64) {
        let mut logits = [1.0_f32, 2.0, 3.0, 4.0, 5.0];
        logits[at] = if seed.is_multiple_of(2) { f32::NAN } else { f32::NEG_INFINITY };
        for sampling in [PLAIN, Sampling { top_p: 0.9, top_k: 4, ..PLAIN }] {
            let mut sampler = Sampler::new(sampling, seed);
            for _ in 0..50 {
                prop_assert_ne!(sampler.draw(&logits), at as u32);
            }
        }
    }
}

#[test]
fn ids_are_drawn_as_often_as_they_are_probable() {
    let logits: Vec<f32> = vec![0.0, 1.0, -1.0, 0.5, 2.0, 2.0, -3.0];
    for sampling in [
        PLAIN,
        Sampling { temperature: 0.5, ..PLAIN },
        Sampling { top_k: 3, ..PLAIN },
        Sampling { top_p: 0.8, ..PLAIN },
        Sampling { temperature: 2.0, top_k: 5, top_p: 0.9, min_p: 0.3 },
    ] {
        let draws = 40_000;
        let mut counts = vec![0_u32; logits.len()];
        let mut sampler = Sampler::new(sampling, 42);
        for _ in 0..draws {
            counts[sampler.draw(&logits) as usize] += 1;
        }
        let wanted = kept(&logits, sampling);
        for (id, probability) in &wanted {
            let got = f64::from(counts[*id]) / f64::from(draws);
            // Five standard deviations of so many draws.
            let spread = 5.0 * (probability * (1.0 - probability) / f64::from(draws)).sqrt();
            assert!((got - probability).abs() <= spread, "{sampling:?}: id {id} {got} is not {probability}");
        }
        assert_eq!(counts.iter().filter(|count| **count > 0).count(), wanted.len());
    }
}

#[test]
fn temperature_0_takes_the_first_of_the_largest() {
    let mut sampler = Sampler::new(Sampling { temperature: 0.0, ..PLAIN }, 1);
    assert_eq!(sampler.draw(&[1.0, 3.0, 3.0, f32::NAN]), 1);
}

#[test]
fn settings_that_mean_nothing_are_refused() {
    for (sampling, right) in [
        (PLAIN, true),
        (Sampling { temperature: 0.0, ..PLAIN }, true),
        (Sampling { temperature: -0.1, ..PLAIN }, false),
        (Sampling { temperature: f32::NAN, ..PLAIN }, false),
        (Sampling { temperature: f32::INFINITY, ..PLAIN }, false),
        (Sampling { top_p: 0.0, ..PLAIN }, false),
        (Sampling { top_p: 1.1, ..PLAIN }, false),
        (Sampling { min_p: 1.0, ..PLAIN }, true),
        (Sampling { min_p: -0.1, ..PLAIN }, false),
    ] {
        assert_eq!(sampling.check().is_ok(), right, "{sampling:?}");
    }
}
