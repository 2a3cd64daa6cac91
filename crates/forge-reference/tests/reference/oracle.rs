//! The reference implementation against Hugging Face transformers, on every model of tests/models: from the
//! checkpoint, and from packed weight files.

use crate::common::{Case, cases, distance, folded, open, pack, plan};
use forge_ir::{Bits, Body, Diagnostic, Format, Node, Op, ValueId, WeightId, WeightRows, tolerance};
use forge_reference::{Positions, evaluate, greedy};
use forge_weights::{decode_row, encode_row};
use std::ops::Range;

/// The largest distance from the oracle's logits over all sequences, in standard deviations.
fn worst(case: &Case, weights: &dyn WeightRows) -> f64 {
    let graph = &case.opened.graph;
    let mut worst = 0.0_f64;
    let mut compare = |ids: &[u32], want: Positions, tensor: String| {
        let logits = evaluate(graph, weights, ids, want).unwrap();
        let expected = case.logits(&tensor);
        assert_eq!(logits.len(), expected.len(), "{} {tensor}", case.name);
        for (logits, expected) in logits.iter().zip(&expected) {
            worst = worst.max(distance(logits, expected) / case.deviation());
        }
    };
    for sequence in 0..3 {
        compare(&case.tokens(sequence, "ids"), Positions::Last, format!("last_{sequence}"));
    }
    compare(&case.tokens(1, "ids"), Positions::All, "all_1".to_owned());
    worst
}

#[test]
fn every_model_matches_transformers() {
    for case in cases() {
        let weights = case.stored();
        let distance = worst(&case, &weights);
        println!("{}: {distance:.1e} of a standard deviation from the oracle", case.name);
        assert!(distance <= tolerance(Format::F32).bound, "{}: {distance:e}", case.name);
        for sequence in 0..3 {
            let expected = case.tokens(sequence, "greedy");
            let ids = case.tokens(sequence, "ids");
            let continued = greedy(&case.opened.graph, &weights, &ids, expected.len()).unwrap();
            assert_eq!(continued, expected, "{} sequence {sequence}", case.name);
        }
    }
}

#[test]
fn packed_weight_files_give_the_same_logits() {
    for case in cases() {
        let graph = &case.opened.graph;
        // A token whose routing scores are nearly equal may switch experts due to rounding. Recurrent states
        // accumulate rounding errors too.
        let mut nodes = graph.bodies.iter().flat_map(|body| &body.nodes);
        let magnifies = nodes.any(|node| matches!(node.op, Op::Route(_) | Op::DeltaRule { .. }));
        for format in Format::ALL {
            let plan = plan(graph, format);
            let (file, summary) = pack(&case, &plan);
            let held = open(graph, &plan, &file);
            for (index, packed) in
                plan.iter().flat_map(|packed| packed.parts.iter().map(move |part| (part, packed)))
            {
                let own = own_numbers(&case, *index, packed.format);
                let mut found = vec![0.0; own.len()];
                held.rows(*index, 0..graph.weights[index.0].rows(), &mut found).unwrap();
                let tensor = &graph.weights[index.0].tensor;
                assert!(
                    found == own,
                    "{} in {format}: {tensor} is not what {} makes of it",
                    case.name,
                    packed.format
                );
            }
            let distance = worst(&case, &held);
            let error = summary.weights.iter().map(|stat| stat.error).fold(0.0, f64::max);
            println!(
                "{} in {format}: {distance:.1e} from the oracle, weights by at most {error:.1e}",
                case.name
            );
            // A format that represents the weights exactly changes nothing. Any other format must leave it
            // the same model with noise: 2^-12 or 2^-9 of a value, or half a step of 1/127 or 1/8. The
            // largest values of mxfp4, 4 and 6, are as far apart as those of 3 bits, and 8 is rounded to 6.
            let bound = match format {
                _ if error < 1e-8 => tolerance(Format::F32).bound,
                Format::F32 => 0.0,
                Format::F16 => 0.03,
                Format::Bf16 => 0.2,
                Format::Q8_0 => 0.3,
                Format::Fp8 => 1.5,
                Format::Q5_0 => 2.5,
                Format::Q4_0 | Format::Iq4Nl | Format::Iq4Xs => 3.0,
                Format::Mxfp4 | Format::Nvfp4 => 6.0,
                Format::Affine(_) | Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K => {
                    match format.bits() {
                        None | Some(Bits::Eight) => 0.3,
                        Some(Bits::Six) => 1.5,
                        Some(Bits::Five) => 2.5,
                        Some(Bits::Four) => 3.0,
                        Some(Bits::Three) => 6.0,
                        Some(Bits::Two) => 9.0,
                    }
                }
            };
            assert!(error <= bound / 10.0 + 1e-8, "{} in {format}: weights by {error:e}", case.name);
            let is_noisy = magnifies && error >= 1e-8;
            // Gemma 4 normalizes the output of each branch, even if it is small, and is therefore more
            // sensitive to rounding. Errors of that size with the opposite sign must have the same effect.
            let is_touchy = || {
                case.name.starts_with("gemma4")
                    && distance <= 1.5 * worst(&case, &Opposite { of: &held, around: &case.stored() })
            };
            assert!(distance <= bound || is_noisy || is_touchy(), "{} in {format}: {distance:e}", case.name);
        }
    }
}

/// Values with the opposite error: as far from the reference, on the other side.
struct Opposite<'a> {
    of: &'a dyn WeightRows,
    around: &'a dyn WeightRows,
}

impl WeightRows for Opposite<'_> {
    fn rows(&self, weight: WeightId, rows: Range<usize>, out: &mut [f32]) -> Result<(), Diagnostic> {
        self.around.rows(weight, rows.clone(), out)?;
        let mut of = vec![0.0; out.len()];
        self.of.rows(weight, rows, &mut of)?;
        out.iter_mut().zip(of).for_each(|(out, of)| *out = 2.0 * *out - of);
        Ok(())
    }
}

/// The values of a weight in a format: quantized weights of the checkpoint unchanged, others quantized row by
/// row.
fn own_numbers(case: &Case, weight: WeightId, format: Format) -> Vec<f32> {
    let of = &case.opened.graph.weights[weight.0];
    let (rows, columns) = (of.rows(), of.columns());
    let mut numbers = vec![0.0; rows * columns];
    case.stored().rows(weight, 0..rows, &mut numbers).unwrap();
    if of.format == format {
        return numbers;
    }
    let [codes, scales] = format.plane_bytes(columns);
    for row in numbers.chunks_exact_mut(columns) {
        let mut planes = [vec![0; codes], vec![0; scales]];
        encode_row(format, row, planes.each_mut().map(Vec::as_mut_slice)).unwrap();
        decode_row(format, planes.each_ref().map(Vec::as_slice), row);
    }
    numbers
}

#[test]
fn folding_gains_does_not_change_the_logits() {
    for case in cases() {
        let graph = &case.opened.graph;
        let plan = folded(graph, plan(graph, Format::F32));
        let gains = plan.iter().filter(|packed| packed.gain.is_some()).count();
        let (file, _) = pack(&case, &plan);
        let distance = worst(&case, &open(graph, &plan, &file));
        println!("{} with {gains} gains folded: {distance:.1e} from the oracle", case.name);
        // Q, K and V; gate and up, each after a norm; and the head if the embedding is another table.
        let norms: usize = graph.layers.iter().map(|layer| norms_of_projections(graph.body(layer))).sum();
        assert!(gains >= norms, "{}: {gains}", case.name);
        assert!(distance <= tolerance(Format::F32).bound, "{}: {distance:e}", case.name);
    }
}

#[test]
fn checkpoint_dtype_does_not_change_the_logits() {
    // Only scales in f16 or bf16 can be represented.
    let is_plain = |case: &Case| case.opened.graph.weights.iter().all(|weight| !weight.format.is_quantized());
    for case in cases().into_iter().filter(is_plain) {
        // Every bf16 value is an f32 value.
        let wide = case.rewritten("F32", |half| u32::from(half) << 16);
        let ids = case.tokens(1, "ids");
        let logits =
            |case: &Case| evaluate(&case.opened.graph, &case.stored(), &ids, Positions::All).unwrap();
        assert_eq!(logits(&wide), logits(&case), "{}", case.name);
    }
}

/// Number of norms of a body that are read by projections only.
fn norms_of_projections(body: &Body) -> usize {
    let is_read_by = |index: usize, reads: fn(&Op) -> bool| {
        body.nodes.iter().filter(|node| node.inputs.contains(&ValueId(index + 1))).all(|node| reads(&node.op))
    };
    let is_one = |(index, node): &(usize, &Node)| {
        matches!(node.op, Op::RmsNorm { .. }) && is_read_by(*index, |op| matches!(op, Op::Linear { .. }))
    };
    body.nodes.iter().enumerate().filter(is_one).count()
}
