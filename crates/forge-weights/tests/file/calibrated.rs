//! Quantization for activation statistics.

use crate::common::{checkpoint, graph, packed, read_of};
use forge_ir::{
    ColumnSquares, Format, Graph, ImportanceMatrix, Layout, Packed, Records, WeightId, WeightRows,
};
use forge_weights::{CheckpointWeights, PackedFile, Summary, measure, write_calibrated};

/// The statistics of some weights: of each column and part, from the seed of the weight.
fn statistics(graph: &Graph, weights: &[(usize, usize)]) -> ImportanceMatrix {
    let mut statistics = ImportanceMatrix::default();
    for (weight, parts) in weights {
        let weight = &graph.weights[*weight];
        let columns = weight.columns();
        let square = |index: usize| (3.0 * (1.7 * index as f64 + weight.tensor.len() as f64).sin()).exp();
        // The first of several parts has no inputs.
        let is_silent = |part: usize| *parts > 1 && part == 0;
        let sum = |index: usize| if is_silent(index / columns) { 0.0 } else { square(index) };
        let sums = (0..parts * columns).map(sum).collect();
        let counts = (0..*parts).map(|part| if is_silent(part) { 0 } else { 2 * part as u64 + 1 }).collect();
        let squares = ColumnSquares::from_sums(sums, counts).unwrap();
        statistics.insert(weight, squares);
    }
    statistics
}

fn pack(graph: &Graph, plan: &[Packed], statistics: Option<&ImportanceMatrix>) -> (Vec<u8>, Summary) {
    let mut file = Vec::new();
    let source = CheckpointWeights::new(graph, checkpoint);
    let summary = write_calibrated(graph, plan, &source, statistics, &mut file, &mut |_| {}).unwrap();
    (file, summary)
}

/// The relative RMS error of the outputs of a packed matrix, by definition: each row of each weight with the
/// mean squares of its part, and its gain.
fn output_error(graph: &Graph, plan: &[Packed], file: &[u8], statistics: &ImportanceMatrix) -> f64 {
    let back = PackedFile::open(graph, plan, read_of(file)).unwrap();
    let source = CheckpointWeights::new(graph, checkpoint);
    let numbers = |rows: &dyn WeightRows, id: WeightId| {
        let mut out = vec![0.0; graph.weights[id.0].shape.iter().product()];
        rows.rows(id, 0..graph.weights[id.0].rows(), &mut out).unwrap();
        out
    };
    let gain = plan[0].gain.map(|gain| numbers(&source, gain));
    let (mut errors, mut squares) = (0.0, 0.0);
    for id in &plan[0].parts {
        let weight = &graph.weights[id.0];
        let of = statistics.get(weight).unwrap();
        let (exact, stored) = (numbers(&source, *id), numbers(&back, *id));
        for row in 0..weight.rows() {
            let means = of.means(row / (weight.rows() / of.parts())).unwrap();
            for (column, mean) in means.iter().enumerate() {
                let place = row * weight.columns() + column;
                let gain = gain.as_ref().map_or(1.0, |gain| gain[column]);
                // The packed matrix multiplies x / gain.
                let (x, y) = (exact[place] * gain, stored[place]);
                let input = mean / f64::from(gain).powi(2);
                errors += input * f64::from(x - y).powi(2);
                squares += input * f64::from(x).powi(2);
            }
        }
    }
    (errors / squares).sqrt()
}

#[test]
fn calibrated_matrices_have_a_lower_output_error() {
    let graph = graph(&[vec![6, 256], vec![6, 256], vec![256], vec![9, 512]]);
    let records = Some(Records { tensor: "layers.0.experts".to_owned(), experts: 3 });
    let name = "layers.0.matrix";
    for format in
        ["q8_0", "q5_0", "q4_0", "q6_k", "q5_k", "q4_k", "affine6", "affine4", "affine3", "affine2_128"]
    {
        let format = Format::from_name(format).unwrap();
        let alternate = packed(name, format, &[12, 256], Layout::Alternate, &[1, 2]);
        let gained =
            Packed { gain: Some(WeightId(3)), ..packed(name, format, &[12, 256], Layout::Rows, &[1, 2]) };
        let experts = Packed { records: records.clone(), ..alternate.clone() };
        let blocks = packed(name, format, &[18, 256], Layout::Blocks, &[4]);
        for (case, parts) in [(alternate.clone(), 1), (alternate, 3), (gained, 1), (experts, 3), (blocks, 1)]
        {
            let weights: Vec<(usize, usize)> = case.parts.iter().map(|part| (part.0, parts)).collect();
            let statistics = statistics(&graph, &weights);
            let plan = [case];
            let (with, summary) = pack(&graph, &plan, Some(&statistics));
            let (without, plain) = pack(&graph, &plan, None);
            let [found, before] =
                [&with, &without].map(|file| output_error(&graph, &plan, file, &statistics));
            let text = format!("{format} {:?} of {parts}: {found} {before}", plan[0].layout);
            assert!(found < before, "{text}");
            let reported = summary.weights[0].output_error.unwrap();
            // Columns without activity count a little, and files have f32 products of gains.
            assert!((reported / found - 1.0).abs() < 0.02, "{text}: {reported}");
            assert_eq!(plain.weights[0].output_error, None);
            let (again, _) = pack(&graph, &plan, Some(&statistics));
            assert!(again == with, "{text}: two files differ");
            let source = CheckpointWeights::new(&graph, checkpoint);
            let measured =
                measure(&graph, &plan[0], &source, Some(&statistics), &[format]).unwrap()[0].unwrap();
            assert_eq!(measured.relative, summary.weights[0].error);
            assert!(measured.output.is_some_and(|output| output > 0.0));
        }
    }
}

#[test]
fn matrices_without_statistics_are_as_without_calibration() {
    let graph = graph(&[vec![6, 256], vec![6, 256]]);
    let format = Format::from_name("affine4").unwrap();
    let plan = [packed("matrix", format, &[6, 256], Layout::Rows, &[1])];
    let (plain, _) = pack(&graph, &plan, None);
    let mut silent = ImportanceMatrix::default();
    silent.insert(&graph.weights[1], ColumnSquares::new(256, 1));
    let mut narrow = ImportanceMatrix::default();
    narrow.insert(&graph.weights[1], ColumnSquares::from_sums(vec![1.0; 8], vec![1]).unwrap());
    for statistics in [ImportanceMatrix::default(), statistics(&graph, &[(2, 1)]), silent, narrow] {
        let (file, summary) = pack(&graph, &plan, Some(&statistics));
        assert!(file == plain && summary.weights[0].output_error.is_none(), "{statistics:?}");
    }
}
