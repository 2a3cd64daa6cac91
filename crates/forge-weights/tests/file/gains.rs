//! Norm weights: stored plus 1, and folded into matrices.

use crate::common::{checkpoint, graph, graph_plus, pack, packed, read_of};
use forge_ir::{Format, Layout, WeightId, WeightRows};
use forge_weights::{CheckpointWeights, PackedFile};
use safetensors::SafeTensors;
use std::hint::black_box;

#[test]
fn stores_gains_with_one_added() {
    let graph = graph_plus(&[vec![3, 40], vec![40], vec![40]], &[2, 3]);
    let mut folded = packed("folded", Format::F32, &[3, 40], Layout::Rows, &[1]);
    folded.gain = Some(WeightId(2));
    let plan = [folded, packed("gain", Format::F32, &[40], Layout::Rows, &[3])];
    let (file, _) = pack(&graph, &plan);
    let back = PackedFile::open(&graph, &plan, read_of(&file)).unwrap();
    let read = |numbers: &dyn WeightRows, weight: usize, rows: usize| {
        let mut out = vec![0.0; rows * 40];
        numbers.rows(WeightId(weight), 0..rows, &mut out).unwrap();
        out
    };
    // A sine that the compiler computes may be rounded differently.
    let tensor = |seed: f32| (0..40).map(move |column| (column as f32 + 0.37 * seed).sin());
    let gain: Vec<f32> = tensor(black_box(3.0)).map(|x| x + 1.0).collect();
    assert_eq!(read(&CheckpointWeights::new(&graph, checkpoint), 3, 1), gain);
    assert_eq!(read(&back, 3, 1), gain, "the 1 is added once");
    assert_eq!(read(&back, 2, 1), [1.0; 40]);
    let products: Vec<f32> =
        tensor(black_box(1.0)).zip(tensor(black_box(2.0))).map(|(x, gain)| x * (gain + 1.0)).collect();
    assert_eq!(read(&back, 1, 3)[..40], products);
}

/// A matrix with a folded norm weight, in two parts, and the same matrix of a graph without the norm weight.
#[test]
fn folds_gains_into_matrix_columns() {
    let graph = graph(&[vec![3, 40], vec![2, 40], vec![40], vec![3, 40]]);
    let mut folded = packed("folded", Format::F16, &[5, 40], Layout::Rows, &[1, 2]);
    folded.gain = Some(WeightId(3));
    let plan = [folded, packed("plain", Format::F32, &[3, 40], Layout::Rows, &[4])];
    let (file, summary) = pack(&graph, &plan);
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    let metadata = header.metadata().as_ref().unwrap();
    assert_eq!((metadata.len(), metadata["folded.gain"].as_str()), (3, "tensor.3"));
    // The reported quantization error is that of the product.
    assert!((1e-5..2e-4).contains(&summary.weights[0].error), "{}", summary.weights[0].error);

    let numbers = |numbers: &dyn WeightRows, weight: usize| {
        let mut out = vec![0.0; graph.weights[weight].shape.iter().product()];
        numbers.rows(WeightId(weight), 0..graph.weights[weight].rows(), &mut out).unwrap();
        out
    };
    let stored = CheckpointWeights::new(&graph, checkpoint);
    let back = PackedFile::open(&graph, &plan, read_of(&file)).unwrap();
    let gain = numbers(&stored, 3);
    for part in [1, 2] {
        let products = numbers(&stored, part);
        let products = products.iter().zip(gain.iter().cycle()).map(|(x, gain)| x * gain);
        for (x, y) in products.zip(numbers(&back, part)) {
            assert!((x - y).abs() <= x.abs() * 2_f32.powi(-11) + 2_f32.powi(-25), "{x} became {y}");
        }
    }
    assert_eq!(numbers(&back, 3), [1.0; 40]);
    assert_eq!(numbers(&back, 4), numbers(&stored, 4));
    // A plan without the norm weight does not match the file.
    let mut without = plan.clone();
    without[0].gain = None;
    assert!(PackedFile::open(&graph, &without, read_of(&file)).is_err());
}
