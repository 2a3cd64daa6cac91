//! The sampler: its draws follow the definition, and token frequencies match their probabilities.

use forge_runtime::sampling::device_sampling::{DeviceSampling, MAX_WEIGHT, power, random, weight};
use forge_runtime::sampling::sampler::{Sampler, SamplingParams};
use proptest::prelude::*;

/// The next token for raw logits.
fn draw(sampler: &mut Sampler, logits: &[f32]) -> u32 {
    let mut logits = logits.to_vec();
    sampler.adjust(&mut logits);
    sampler.sample(&logits)
}

#[test]
fn reads_or_rejects_generation_configs() {
    let configured = |text: &str| SamplingParams::from_generation_config(text.as_bytes());
    let ordinary = SamplingParams::ordinary();
    for nothing in ["{}", r#"{"temperature": null, "top_k": null, "do_sample": null, "max_length": "20"}"#] {
        assert_eq!(configured(nothing), Ok(ordinary.clone()));
    }
    assert_eq!(configured(r#"{"do_sample": false, "temperature": 2}"#), Ok(SamplingParams::greedy()));
    assert_eq!(configured(r#"{"top_k": -1}"#), Ok(ordinary.clone()));
    let all = r#"{"temperature": 2, "top_k": 3, "typical_p": 0.5, "top_p": 0.25, "min_p": 0, "repetition_penalty": 1.5}"#;
    assert_eq!(
        configured(all),
        Ok(SamplingParams {
            temperature: 2.0,
            top_k: 3,
            typical_p: 0.5,
            top_p: 0.25,
            repetition_penalty: 1.5,
            ..ordinary
        })
    );
    let rejected = [
        ("{", "not valid JSON: "),
        ("[]", "not a JSON object"),
        (r#"{"do_sample": "no"}"#, "do_sample must be true or false, not \"no\""),
        (r#"{"temperature": "hot"}"#, "temperature must be a number, not \"hot\""),
        (r#"{"temperature": -5}"#, "temperature must be at least 0, not -5"),
        (r#"{"temperature": 1e300}"#, "temperature must be at least 0, not inf"),
        (r#"{"top_k": -3}"#, "top_k must be an integer of at least 0, not -3"),
        (r#"{"top_k": 2.5}"#, "top_k must be an integer of at least 0, not 2.5"),
        (r#"{"top_p": 7}"#, "top-p must be above 0 and at most 1, not 7"),
        (r#"{"typical_p": [1]}"#, "typical_p must be a number, not [1]"),
        (r#"{"min_p": true}"#, "min_p must be a number, not true"),
        (r#"{"repetition_penalty": 0}"#, "repetition-penalty must be above 0, not 0"),
    ];
    for (text, why) in rejected {
        let told = configured(text).unwrap_err();
        assert!(told.starts_with(why), "{text}: {told}");
    }
}

/// The remaining tokens and their probabilities, by the definition.
fn kept(logits: &[f32], sampling: &SamplingParams) -> Vec<(usize, f64)> {
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

/// The token by the definition: by sorting and cumulative sums. Without `typical_p`.
fn defined(logits: &[f32], sampling: &SamplingParams, seed: u64, index: u32) -> u32 {
    let DeviceSampling { scale, .. } = sampling.device_sampling(seed, index);
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weigh =
        |&logit: &f32| if top == f32::NEG_INFINITY { 0 } else { u128::from(weight(logit, top, scale)) };
    let mut ids: Vec<(usize, u128)> = logits.iter().map(weigh).enumerate().filter(|id| id.1 > 0).collect();
    ids.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    if sampling.top_k > 0 {
        ids.truncate(sampling.top_k);
    }
    if sampling.top_p < 1.0 {
        let total: u128 = ids.iter().map(|id| id.1).sum();
        let share = (f64::from(sampling.top_p) * 2_f64.powi(32)).ceil() as u128;
        let mut sum = 0;
        ids.retain(|id| {
            let is_kept = sum << 32 < share * total;
            sum += id.1;
            is_kept
        });
    }
    let least = (f64::from(sampling.min_p) * 2_f64.powi(31)).ceil() as u128;
    let heaviest = ids.first().map_or(0, |id| id.1);
    ids.retain(|id| id.1 << 31 >= least * heaviest);
    ids.sort_by_key(|id| id.0);
    let total: u128 = ids.iter().map(|id| id.1).sum();
    let bound = (u128::from(random(seed, index)) * total) >> 64;
    let mut sum = 0;
    let drawn = ids.iter().find(|id| {
        sum += id.1;
        sum > bound
    });
    drawn.map_or(0, |id| id.0 as u32)
}

/// Random logits of all magnitudes, with many ties and NaN.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        8 => -8.0_f32..8.0,
        4 => (-3_i8..4).prop_map(f32::from),
        1 => -1e6_f32..1e6,
        1 => (0.0_f32..1e-3).prop_map(|logit| logit * 1e-36),
        1 => prop_oneof![Just(f32::NAN), Just(f32::NEG_INFINITY), Just(-0.0), Just(f32::MAX), Just(f32::MIN)],
    ];
    let huge = Just(f32::INFINITY);
    prop_oneof![
        20 => proptest::collection::vec(logit.clone(), 1..700),
        1 => proptest::collection::vec(prop_oneof![5 => logit, 1 => huge], 1..40),
        1 => proptest::collection::vec(prop_oneof![Just(f32::NAN), Just(f32::NEG_INFINITY)], 1..9),
    ]
}

fn settings() -> impl Strategy<Value = SamplingParams> {
    let temperature = prop_oneof![6 => 0.1_f32..3.0, 1 => 1e-38_f32..1e-3, 1 => 1e3_f32..3e38];
    let top_k = prop_oneof![Just(0_usize), 1_usize..12, 1_usize..700];
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

proptest! {
    #[test]
    fn sampling_follows_its_definition(logits in logits(), sampling in settings(), seed: u64) {
        let mut sampler = Sampler::new(sampling.clone(), seed, &[]);
        for index in 0..20 {
            prop_assert_eq!(draw(&mut sampler, &logits), defined(&logits, &sampling, seed, index));
        }
    }

    #[test]
    fn typical_sampling_keeps_typical_tokens(
        logits in proptest::collection::vec(-8.0_f32..8.0, 1..40),
        typical_p in 0.3_f32..1.0,
        seed: u64,
    ) {
        let sampling = SamplingParams { typical_p, ..SamplingParams::default() };
        let allowed: Vec<usize> = kept(&logits, &sampling).into_iter().map(|id| id.0).collect();
        let mut sampler = Sampler::new(sampling, seed, &[]);
        for _ in 0..50 {
            let id = draw(&mut sampler, &logits) as usize;
            prop_assert!(allowed.contains(&id), "{} is not among {:?}", id, allowed);
        }
    }

    #[test]
    fn draws_are_encoded_as_words(sampling in settings(), seed: u64, index: u32) {
        let draw = sampling.device_sampling(seed, index);
        prop_assert_eq!(DeviceSampling::of(draw.words()), draw);
    }

    #[test]
    fn nan_logits_are_not_sampled(at in 0_usize..5, seed: u64) {
        let mut logits = [1.0_f32, 2.0, 3.0, 4.0, 5.0];
        logits[at] = if seed.is_multiple_of(2) { f32::NAN } else { f32::NEG_INFINITY };
        for sampling in [SamplingParams::default(), SamplingParams { top_p: 0.9, top_k: 4, ..SamplingParams::default() }] {
            let mut sampler = Sampler::new(sampling.clone(), seed, &[]);
            for _ in 0..50 {
                prop_assert_ne!(draw(&mut sampler, &logits), at as u32);
            }
        }
    }
}

/// Checks every fractional power of two that a weight may be.
#[test]
fn weights_are_powers_and_never_grow_with_distance() {
    let mut before = MAX_WEIGHT;
    assert_eq!(power(0), MAX_WEIGHT);
    for steps in 0..1 << 26 {
        let weight = power(steps);
        assert!(weight <= before, "{steps}");
        before = weight;
        if steps % 1001 == 0 {
            let exact = (31.0 - f64::from(steps) / 2_f64.powi(26)).exp2();
            assert!((f64::from(weight) - exact).abs() <= 5e-9 * exact, "{steps}: {weight}, not {exact}");
        }
    }
    // Whole powers of two are right shifts, rounded.
    assert!(power(1 << 26) <= before);
    for whole in 1..32_u32 {
        for steps in (0..1 << 26).step_by(100_003) {
            let exact = f64::from(power(steps)) / 2_f64.powi(whole as i32);
            assert_eq!(f64::from(power(whole << 26 | steps)), (exact + 0.5).floor(), "{whole} {steps}");
        }
    }
}

#[test]
fn routing_weights_are_of_the_softmax() {
    let mut logits = (0..2000).map(|i| (i as f32 * 0.37).sin() * 9.0 - i as f32 * 0.004);
    for temperature in [0.3_f32, 1.0, 2.5] {
        let DeviceSampling { scale, .. } =
            SamplingParams { temperature, ..SamplingParams::default() }.device_sampling(0, 0);
        for logit in logits.by_ref().take(600) {
            let exact = f64::from(MAX_WEIGHT) * (f64::from(logit - 9.0) / f64::from(temperature)).exp();
            let got = f64::from(weight(logit, 9.0, scale));
            // The tolerance of a distance of 60 rounded to 24 binary places, and of rounding to an integer.
            assert!((got - exact).abs() <= 5e-6 * exact + 1.0, "{logit}: {got}, not {exact}");
        }
    }
}

#[test]
fn tokens_are_sampled_with_their_probability() {
    let logits: Vec<f32> = vec![0.0, 1.0, -1.0, 0.5, 2.0, 2.0, -3.0];
    for sampling in [
        SamplingParams::default(),
        SamplingParams { temperature: 0.5, ..SamplingParams::default() },
        SamplingParams { top_k: 3, ..SamplingParams::default() },
        SamplingParams { top_p: 0.8, ..SamplingParams::default() },
        SamplingParams { temperature: 2.0, top_k: 5, top_p: 0.9, min_p: 0.3, ..SamplingParams::default() },
        SamplingParams { typical_p: 0.6, ..SamplingParams::default() },
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
            // Five standard deviations for this many draws.
            let spread = 5.0 * (probability * (1.0 - probability) / f64::from(draws)).sqrt();
            assert!((got - probability).abs() <= spread, "{sampling:?}: id {id} {got} is not {probability}");
        }
        assert_eq!(counts.iter().filter(|count| **count > 0).count(), wanted.len());
    }
}

#[test]
fn temperature_0_returns_the_first_maximum() {
    let mut sampler = Sampler::new(SamplingParams::greedy(), 1, &[]);
    assert_eq!(draw(&mut sampler, &[1.0, 3.0, 3.0, f32::NAN]), 1);
    assert_eq!(draw(&mut sampler, &[f32::NAN, f32::NEG_INFINITY, -3.0]), 2);
}

#[test]
fn penalties_change_logits_of_generated_tokens() {
    // Logits 2, 1, 0, -1. The prompt is [0, 3], and the output so far [0, 0, 1], chosen by a bias.
    for (name, penalties, expected) in [
        ("nothing", SamplingParams::greedy(), [2.0, 1.0, 0.0, -1.0]),
        (
            "repetition",
            SamplingParams { repetition_penalty: 2.0, ..SamplingParams::greedy() },
            [1.0, 0.5, 0.0, -2.0],
        ),
        (
            "presence",
            SamplingParams { presence_penalty: 0.5, ..SamplingParams::greedy() },
            [1.5, 0.5, 0.0, -1.0],
        ),
        (
            "frequency",
            SamplingParams { frequency_penalty: 0.25, ..SamplingParams::greedy() },
            [1.5, 0.75, 0.0, -1.0],
        ),
        (
            "bias",
            SamplingParams { bias: vec![(2, 3.0), (9, 1.0)], ..SamplingParams::greedy() },
            [2.0, 1.0, 3.0, -1.0],
        ),
        (
            "all",
            SamplingParams {
                repetition_penalty: 2.0,
                presence_penalty: 0.5,
                frequency_penalty: 0.25,
                bias: vec![(0, 2.0)],
                ..SamplingParams::greedy()
            },
            [1.0, -0.25, 0.0, -2.0],
        ),
    ] {
        let mut sampler = Sampler::new(penalties, 1, &[0, 3]);
        for logits in [[9.0, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0], [0.0, 9.0, 0.0, 0.0]] {
            sampler.sample(&logits);
        }
        let mut logits = [2.0, 1.0, 0.0, -1.0];
        sampler.adjust(&mut logits);
        assert_eq!(logits, expected, "{name}");
    }
}

#[test]
fn rejects_invalid_sampling_parameters() {
    for (sampling, right) in [
        (SamplingParams::default(), true),
        (SamplingParams { temperature: 0.0, ..SamplingParams::default() }, true),
        (SamplingParams { temperature: -0.1, ..SamplingParams::default() }, false),
        (SamplingParams { temperature: f32::NAN, ..SamplingParams::default() }, false),
        (SamplingParams { temperature: f32::INFINITY, ..SamplingParams::default() }, false),
        (SamplingParams { top_p: 0.0, ..SamplingParams::default() }, false),
        (SamplingParams { top_p: 1.1, ..SamplingParams::default() }, false),
        (SamplingParams { min_p: 1.0, ..SamplingParams::default() }, true),
        (SamplingParams { min_p: -0.1, ..SamplingParams::default() }, false),
        (SamplingParams { typical_p: 0.0, ..SamplingParams::default() }, false),
        (SamplingParams { repetition_penalty: 0.0, ..SamplingParams::default() }, false),
        (SamplingParams { presence_penalty: -2.0, ..SamplingParams::default() }, true),
        (SamplingParams { frequency_penalty: f32::NAN, ..SamplingParams::default() }, false),
        (SamplingParams { bias: vec![(1, f32::NEG_INFINITY)], ..SamplingParams::default() }, true),
        (SamplingParams { bias: vec![(1, f32::NAN)], ..SamplingParams::default() }, false),
    ] {
        assert_eq!(sampling.check().is_ok(), right, "{sampling:?}");
    }
}
