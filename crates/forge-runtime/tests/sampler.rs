//! The sampler: what it may draw, in which order its settings apply, and that it draws by probability.

use forge_runtime::sampler::{Sampler, Sampling};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The next id of logits that nothing has been done to.
fn draw(sampler: &mut Sampler, logits: &[f32]) -> u32 {
    let mut logits = logits.to_vec();
    sampler.adjust(&mut logits);
    sampler.draw(&logits)
}

/// The ids that settings leave, worked out the long way; and their probabilities.
fn kept(logits: &[f32], sampling: &Sampling) -> Vec<(usize, f64)> {
    let scaled: Vec<f64> = logits.iter().map(|&l| f64::from(l) / f64::from(sampling.temperature)).collect();
    let top = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut ids: Vec<(usize, f64)> = scaled.iter().map(|l| (l - top).exp()).enumerate().collect();
    ids.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if sampling.top_k > 0 {
        ids.truncate(sampling.top_k);
    }
    let share = |ids: &mut Vec<(usize, f64)>, share: f32| {
        let total: f64 = ids.iter().map(|id| id.1).sum();
        let mut sum = 0.0;
        let count = ids.iter().take_while(|id| {
            let more = sum < f64::from(share) * total;
            sum += id.1;
            more
        });
        let count = count.count().max(1);
        ids.truncate(count);
    };
    if sampling.typical_p < 1.0 {
        let total: f64 = ids.iter().map(|id| id.1).sum();
        let entropy: f64 = ids.iter().map(|id| -id.1 / total * (id.1 / total).ln()).sum();
        let distance = |id: &(usize, f64)| (-(id.1 / total).ln() - entropy).abs();
        ids.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
        share(&mut ids, sampling.typical_p);
        ids.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }
    share(&mut ids, sampling.top_p);
    let most = ids.first().map_or(0.0, |id| id.1);
    ids.retain(|id| id.1 >= f64::from(sampling.min_p) * most);
    let total: f64 = ids.iter().map(|id| id.1).sum();
    ids.iter_mut().for_each(|id| id.1 /= total);
    ids
}

fn settings() -> impl Strategy<Value = Sampling> {
    (0.1_f32..3.0, 0_usize..12, 0.3_f32..=1.4, 0.05_f32..=1.0, 0.0_f32..=1.0).prop_map(
        |(temperature, top_k, typical_p, top_p, min_p)| {
            let typical_p = typical_p.min(1.0);
            Sampling { temperature, top_k, typical_p, top_p, min_p, ..Sampling::default() }
        },
    )
}

proptest! {
    #[test]
    fn only_kept_ids_are_drawn(
        logits in proptest::collection::vec(-8.0_f32..8.0, 1..40),
        sampling in settings(),
        seed: u64,
    ) {
        let allowed: BTreeSet<usize> = kept(&logits, &sampling).into_iter().map(|id| id.0).collect();
        let mut sampler = Sampler::new(sampling.clone(), seed, &[]);
        for _ in 0..50 {
            let id = draw(&mut sampler, &logits) as usize;
            prop_assert!(allowed.contains(&id), "{} is not among {:?}", id, allowed);
        }
    }

    #[test]
    fn a_seed_decides_everything(
        logits in proptest::collection::vec(-8.0_f32..8.0, 1..40),
        sampling in settings(),
        seed: u64,
    ) {
        let drawn = || {
            let mut sampler = Sampler::new(sampling.clone(), seed, &[]);
            (0..20).map(|_| draw(&mut sampler, &logits)).collect::<Vec<u32>>()
        };
        prop_assert_eq!(drawn(), drawn());
    }

    #[test]
    fn what_is_not_a_number_is_not_drawn(at in 0_usize..5, seed: u64) {
        let mut logits = [1.0_f32, 2.0, 3.0, 4.0, 5.0];
        logits[at] = if seed.is_multiple_of(2) { f32::NAN } else { f32::NEG_INFINITY };
        for sampling in [Sampling::default(), Sampling { top_p: 0.9, top_k: 4, ..Sampling::default() }] {
            let mut sampler = Sampler::new(sampling.clone(), seed, &[]);
            for _ in 0..50 {
                prop_assert_ne!(draw(&mut sampler, &logits), at as u32);
            }
        }
    }
}

#[test]
fn ids_are_drawn_as_often_as_they_are_probable() {
    let logits: Vec<f32> = vec![0.0, 1.0, -1.0, 0.5, 2.0, 2.0, -3.0];
    for sampling in [
        Sampling::default(),
        Sampling { temperature: 0.5, ..Sampling::default() },
        Sampling { top_k: 3, ..Sampling::default() },
        Sampling { top_p: 0.8, ..Sampling::default() },
        Sampling { temperature: 2.0, top_k: 5, top_p: 0.9, min_p: 0.3, ..Sampling::default() },
        Sampling { typical_p: 0.6, ..Sampling::default() },
    ] {
        let draws = 40_000;
        let mut counts = vec![0_u32; logits.len()];
        let mut sampler = Sampler::new(sampling.clone(), 42, &[]);
        for _ in 0..draws {
            counts[draw(&mut sampler, &logits) as usize] += 1;
        }
        let wanted = kept(&logits, &sampling);
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
    let mut sampler = Sampler::new(Sampling::greedy(), 1, &[]);
    assert_eq!(draw(&mut sampler, &[1.0, 3.0, 3.0, f32::NAN]), 1);
}

#[test]
fn what_has_been_written_changes_logits() {
    // Logits 2, 1, 0, -1; the prompt is [0, 3]; the answer so far [0, 0, 1], drawn by a bias.
    for (name, penalties, expected) in [
        ("nothing", Sampling::greedy(), [2.0, 1.0, 0.0, -1.0]),
        ("repetition", Sampling { repetition_penalty: 2.0, ..Sampling::greedy() }, [1.0, 0.5, 0.0, -2.0]),
        ("presence", Sampling { presence_penalty: 0.5, ..Sampling::greedy() }, [1.5, 0.5, 0.0, -1.0]),
        ("frequency", Sampling { frequency_penalty: 0.25, ..Sampling::greedy() }, [1.5, 0.75, 0.0, -1.0]),
        ("bias", Sampling { bias: vec![(2, 3.0), (9, 1.0)], ..Sampling::greedy() }, [2.0, 1.0, 3.0, -1.0]),
        (
            "all",
            Sampling {
                repetition_penalty: 2.0,
                presence_penalty: 0.5,
                frequency_penalty: 0.25,
                bias: vec![(0, 2.0)],
                ..Sampling::greedy()
            },
            [1.0, -0.25, 0.0, -2.0],
        ),
    ] {
        let mut sampler = Sampler::new(penalties, 1, &[0, 3]);
        for logits in [[9.0, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0], [0.0, 9.0, 0.0, 0.0]] {
            sampler.draw(&logits);
        }
        let mut logits = [2.0, 1.0, 0.0, -1.0];
        sampler.adjust(&mut logits);
        assert_eq!(logits, expected, "{name}");
    }
}

#[test]
fn settings_that_mean_nothing_are_refused() {
    for (sampling, right) in [
        (Sampling::default(), true),
        (Sampling { temperature: 0.0, ..Sampling::default() }, true),
        (Sampling { temperature: -0.1, ..Sampling::default() }, false),
        (Sampling { temperature: f32::NAN, ..Sampling::default() }, false),
        (Sampling { temperature: f32::INFINITY, ..Sampling::default() }, false),
        (Sampling { top_p: 0.0, ..Sampling::default() }, false),
        (Sampling { top_p: 1.1, ..Sampling::default() }, false),
        (Sampling { min_p: 1.0, ..Sampling::default() }, true),
        (Sampling { min_p: -0.1, ..Sampling::default() }, false),
        (Sampling { typical_p: 0.0, ..Sampling::default() }, false),
        (Sampling { repetition_penalty: 0.0, ..Sampling::default() }, false),
        (Sampling { presence_penalty: -2.0, ..Sampling::default() }, true),
        (Sampling { frequency_penalty: f32::NAN, ..Sampling::default() }, false),
        (Sampling { bias: vec![(1, f32::NEG_INFINITY)], ..Sampling::default() }, true),
        (Sampling { bias: vec![(1, f32::NAN)], ..Sampling::default() }, false),
    ] {
        assert_eq!(sampling.check().is_ok(), right, "{sampling:?}");
    }
}
