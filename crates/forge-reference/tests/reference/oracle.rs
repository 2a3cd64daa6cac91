//! The reference against Hugging Face transformers: every model of tests/models, from the checkpoint and from weight
//! files made of it.

use crate::common::{Case, cases, distance, open, pack, plan};
use forge_ir::{Format, Numbers, tolerance};
use forge_reference::{Want, evaluate, greedy};

/// The largest distance from the oracle's logits over all sequences, in standard deviations.
fn worst(case: &Case, numbers: &dyn Numbers) -> f64 {
    let graph = &case.opened.graph;
    let mut worst = 0.0_f64;
    let mut compare = |ids: &[u32], want: Want, tensor: String| {
        let logits = evaluate(graph, numbers, ids, want).unwrap();
        let expected = case.logits(&tensor);
        assert_eq!(logits.len(), expected.len(), "{} {tensor}", case.name);
        for (logits, expected) in logits.iter().zip(&expected) {
            worst = worst.max(distance(logits, expected) / case.deviation());
        }
    };
    for sequence in 0..3 {
        compare(&case.tokens(sequence, "ids"), Want::Last, format!("last_{sequence}"));
    }
    compare(&case.tokens(1, "ids"), Want::All, "all_1".to_owned());
    worst
}

#[test]
fn every_model_computes_what_its_authors_compute() {
    for case in cases() {
        let numbers = case.stored();
        let distance = worst(&case, &numbers);
        println!("{}: {distance:.1e} of a standard deviation from the oracle", case.name);
        assert!(distance <= tolerance(Format::F32).bound, "{}: {distance:e}", case.name);
        for sequence in 0..3 {
            let expected = case.tokens(sequence, "greedy");
            let ids = case.tokens(sequence, "ids");
            let continued = greedy(&case.opened.graph, &numbers, &ids, expected.len()).unwrap();
            assert_eq!(continued, expected, "{} sequence {sequence}", case.name);
        }
    }
}

#[test]
fn weight_files_hold_the_model() {
    for case in cases() {
        let graph = &case.opened.graph;
        for format in Format::ALL {
            let plan = plan(graph, format);
            let (file, summary) = pack(&case, &plan);
            let distance = worst(&case, &open(graph, &plan, &file));
            let error = summary.weights.iter().map(|stat| stat.error).fold(0.0, f64::max);
            println!(
                "{} in {format}: {distance:.1e} from the oracle, weights by at most {error:.1e}",
                case.name
            );
            // The checkpoints are bf16, which f32 and bf16 hold exactly and f16 to 11 bits but for tiny numbers. A
            // quantised model has to remain the same model: noise of half a code in 127 or in 8.
            let bound = match format {
                Format::F32 | Format::Bf16 => tolerance(Format::F32).bound,
                Format::F16 => 1e-3,
                Format::Q8_0 => 0.3,
                Format::Q4_0 => 3.0,
            };
            assert!(distance <= bound, "{} in {format}: {distance:e}", case.name);
        }
    }
}

#[test]
fn the_format_of_a_checkpoint_does_not_matter() {
    for case in cases() {
        // Every number of a bf16 file is one of f32.
        let wide = case.rewritten("F32", |half| u32::from(half) << 16);
        let ids = case.tokens(1, "ids");
        let logits = |case: &Case| evaluate(&case.opened.graph, &case.stored(), &ids, Want::All).unwrap();
        assert_eq!(logits(&wide), logits(&case), "{}", case.name);
    }
}
