//! The reference logits of a compiled crate, and errors of invalid requests.

use crate::common::cases;
use forge_ir::{Format, Graph, Op, RopeParameters};
use forge_reference::{Positions, Sequence, evaluate, golden, sequences};

fn chunks(vocabulary: usize, context: usize, parameters: u64) -> Vec<Vec<usize>> {
    let texts = sequences(vocabulary, context, parameters);
    assert_eq!(texts, sequences(vocabulary, context, parameters), "always the same");
    for text in &texts {
        assert_eq!(text.chunks.iter().sum::<usize>(), text.ids.len());
        assert!(text.ids.iter().all(|id| (*id as usize) < vocabulary) && text.ids.len() <= context);
    }
    texts.into_iter().map(|text| text.chunks).collect()
}

#[test]
fn golden_sequences_fit_the_context() {
    let cases: [(usize, u64, &[&[usize]]); 7] = [
        (256, 100_000, &[&[1], &[8, 1], &[33, 5, 1], &[70, 2, 1]]),
        (2048, 1_100_000_000, &[&[1], &[8, 1], &[33, 5, 1]]),
        (2048, 3_000_000_000, &[&[1], &[8, 1]]),
        (2048, 70_000_000_000, &[&[1], &[4, 1]]),
        (64, 100_000, &[&[1], &[8, 1], &[33, 5, 1]]),
        (7, 100_000, &[&[1], &[4, 1]]),
        (1, 100_000, &[&[1]]),
    ];
    for (context, parameters, expected) in cases {
        assert_eq!(chunks(500, context, parameters), expected, "context {context}, {parameters} parameters");
    }
}

#[test]
fn batched_evaluation_matches_single_sequences() {
    for case in cases() {
        let (graph, weights) = (&case.opened.graph, case.stored());
        let texts = sequences(graph.model.vocabulary, graph.model.context, 1);
        let together = golden(graph, &weights, Format::F16, &texts).unwrap();
        let longest = texts.iter().map(|text| text.ids.len()).max().unwrap();
        for (text, golden) in texts.iter().zip(together) {
            let alone = evaluate(graph, &weights, &text.ids, Positions::Last).unwrap().remove(0);
            assert_eq!((&golden.ids, &golden.chunks), (&text.ids, &text.chunks));
            // All slots have the same size; with long-context RoPE frequencies the longest sequence decides.
            let length = text.ids.len();
            let same_frequencies = rope_parameters(graph).all(|it| it.within(longest) == it.within(length));
            // RoPE has no effect on a single position.
            assert_eq!(
                golden.logits == alone,
                same_frequencies || length == 1,
                "{} {:?}",
                case.name,
                text.chunks
            );
            let count = golden.logits.len() as f64;
            let mean = golden.logits.iter().copied().map(f64::from).sum::<f64>() / count;
            let square = |x: &f32| (f64::from(*x) - mean).powi(2);
            let deviation = (golden.logits.iter().map(square).sum::<f64>() / count).sqrt();
            assert!(deviation > 0.0 && (golden.deviation / deviation - 1.0).abs() < 1e-6, "{}", case.name);
        }
    }
}

fn rope_parameters(graph: &Graph) -> impl Iterator<Item = &RopeParameters> {
    graph.bodies.iter().flat_map(|body| &body.nodes).filter_map(|node| match &node.op {
        Op::Rope { rope, .. } => Some(rope),
        _ => None,
    })
}

#[test]
fn rejects_invalid_sequences() {
    let case = cases().remove(0);
    let (graph, weights) = (&case.opened.graph, case.stored());
    for ids in [&[][..], &[512], &[1, u32::MAX]] {
        assert!(evaluate(graph, &weights, ids, Positions::All).is_err());
        let text = Sequence { ids: ids.to_vec(), chunks: vec![ids.len()] };
        let texts = [Sequence { ids: vec![1], chunks: vec![1] }, text];
        assert!(golden(graph, &weights, Format::F16, &texts).is_err());
    }
}

#[test]
fn rejects_models_with_nan_logits() {
    for weight in [f32::NAN, f32::INFINITY] {
        let case = cases().remove(0).rewritten("F32", |_| weight.to_bits());
        let texts = [Sequence { ids: vec![1, 2], chunks: vec![2] }];
        let fault = golden(&case.opened.graph, &case.stored(), Format::F16, &texts).unwrap_err();
        assert_eq!(fault.code, "F0403");
        assert!(fault.message.contains("NaN or infinite logits for a sequence of 2 tokens"), "{fault}");
    }
}
