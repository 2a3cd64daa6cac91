//! Activation statistics against their definition.

use forge_frontend::{LoadedCheckpoint, MemoryCheckpoint, read_model};
use forge_ir::{Diagnostic, Graph, ImportanceMatrix, Op, WeightId, WeightRows};
use forge_reference::{Positions, calibrate, evaluate};
use forge_weights::CheckpointWeights;
use std::ops::Range;
use std::path::Path;

/// A model of `tests/models`.
fn model(name: &str) -> (MemoryCheckpoint, LoadedCheckpoint) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models").join(name);
    let files = std::fs::read_dir(folder).expect("a folder").flatten();
    let file = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().expect("a name");
        (name, std::fs::read(entry.path()).expect("a file"))
    };
    let checkpoint = MemoryCheckpoint(files.map(file).collect());
    let opened = read_model(&checkpoint, &forge_frontend::Options::default()).expect("a model");
    (checkpoint, opened)
}

fn sequences(graph: &Graph) -> Vec<Vec<u32>> {
    let vocabulary = graph.model.vocabulary as u32;
    [7, 30, 19].map(|length| (0..length).map(|i| (i * i * 31 + length * 7) % vocabulary).collect()).to_vec()
}

/// The statistics of a model over some sequences.
fn statistics(graph: &Graph, weights: &dyn WeightRows, sequences: &[Vec<u32>]) -> ImportanceMatrix {
    calibrate(graph, weights, sequences, &mut |_| {}).expect("it can be evaluated")
}

/// The weights of a model, where one column of one matrix is changed.
struct Changed<'a> {
    weights: &'a dyn WeightRows,
    weight: WeightId,
    column: usize,
    columns: usize,
    by: f32,
}

impl WeightRows for Changed<'_> {
    fn rows(&self, weight: WeightId, rows: Range<usize>, out: &mut [f32]) -> Result<(), Diagnostic> {
        self.weights.rows(weight, rows, out)?;
        if weight == self.weight {
            out.iter_mut().skip(self.column).step_by(self.columns).for_each(|x| *x += self.by);
        }
        Ok(())
    }
}

#[test]
fn statistics_predict_the_error_of_the_logits() {
    let (checkpoint, opened) = model("llama");
    let graph = &opened.graph;
    let read = |tensor: &str, offset, out: &mut [u8]| opened.tensors.read(&checkpoint, tensor, offset, out);
    let weights = CheckpointWeights::new(graph, read);
    let sequences = sequences(graph);
    let found = statistics(graph, &weights, &sequences);
    let head = graph.epilogue.weights.iter().copied().find(|id| graph.weights[id.0].is_matrix());
    let head = head.expect("an output head");
    assert!(!graph.prologue.weights.contains(&head), "the embedding would change too");
    let means = found.get(&graph.weights[head.0]).and_then(|it| it.means(0)).expect("statistics of the head");
    let tokens: usize = sequences.iter().map(Vec::len).sum();
    let logits = |weights: &dyn WeightRows| -> Vec<f32> {
        let each =
            sequences.iter().map(|ids| evaluate(graph, weights, ids, Positions::All).unwrap().concat());
        each.collect::<Vec<_>>().concat()
    };
    let exact = logits(&weights);
    for column in [0, 5, means.len() - 1] {
        let changed = Changed { weights: &weights, weight: head, column, columns: means.len(), by: 0.5 };
        let squares = exact.iter().zip(logits(&changed)).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        let expected = 0.25 * means[column] * (tokens * graph.model.vocabulary) as f64;
        assert!((squares / expected - 1.0).abs() < 1e-4, "column {column}: {squares} {expected}");
    }
}

#[test]
fn all_matrices_have_statistics_and_experts_their_own() {
    for name in ["llama", "qwen3_moe", "deepseek_v3", "qwen3_next", "gpt_oss", "gemma4_text"] {
        let (checkpoint, opened) = model(name);
        let graph = &opened.graph;
        let read =
            |tensor: &str, offset, out: &mut [u8]| opened.tensors.read(&checkpoint, tensor, offset, out);
        let weights = CheckpointWeights::new(graph, read);
        let sequences = sequences(graph);
        let tokens: u64 = sequences.iter().map(|ids| ids.len() as u64).sum();
        let found = statistics(graph, &weights, &sequences);
        let mut experts = 0;
        for apply in graph.applications() {
            let body = graph.body(apply);
            let of = |param| found.get(&graph.weights[apply.weight(body, param).expect("bound").0]);
            let chosen = body.nodes.iter().find_map(|node| match &node.op {
                Op::Route(routing) => Some(routing.chosen as u64),
                _ => None,
            });
            for node in &body.nodes {
                match &node.op {
                    Op::Linear { weight, .. } => {
                        let squares = of(*weight).unwrap_or_else(|| panic!("{name}: {}", node.name));
                        // A weight that several layers share has the inputs of all of them.
                        assert!(
                            squares.count() >= tokens && squares.count().is_multiple_of(tokens),
                            "{name}"
                        );
                        assert_eq!(squares.parts(), 1);
                    }
                    Op::Experts(stacks) => {
                        for param in [stacks.gate, stacks.up, stacks.down] {
                            let squares = of(param).expect("statistics of experts");
                            assert!(squares.parts() > 1, "{name}: one part for all experts");
                            assert_eq!(Some(squares.count()), chosen.map(|chosen| chosen * tokens), "{name}");
                        }
                        experts += 1;
                    }
                    Op::PerHeadLinear { weight, heads, transposed: false } => {
                        let squares = of(*weight).expect("statistics of heads");
                        assert_eq!((squares.parts(), squares.count()), (*heads, *heads as u64 * tokens));
                    }
                    _ => {}
                }
            }
        }
        assert_eq!(
            experts > 0,
            ["qwen3_moe", "deepseek_v3", "qwen3_next", "gpt_oss"].contains(&name),
            "{name}"
        );
    }
}

#[test]
fn statistics_do_not_depend_on_the_batches() {
    let (checkpoint, opened) = model("qwen3_moe");
    let graph = &opened.graph;
    let read = |tensor: &str, offset, out: &mut [u8]| opened.tensors.read(&checkpoint, tensor, offset, out);
    let weights = CheckpointWeights::new(graph, read);
    // More tokens than one batch has.
    let sequences: Vec<Vec<u32>> =
        (0..24_u32).map(|text| (0..60).map(|i| (i * 7 + text * 31) % 300).collect()).collect();
    let mut steps = Vec::new();
    let whole = calibrate(graph, &weights, &sequences, &mut |done| steps.push(done)).unwrap();
    assert!(steps.len() > 1 && steps.last() == Some(&1440), "{steps:?}");
    assert_eq!(whole, statistics(graph, &weights, &sequences), "two runs differ");
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
    let parts: Vec<ImportanceMatrix> =
        sequences.iter().map(|ids| statistics(graph, &weights, std::slice::from_ref(ids))).collect();
    for weight in graph.weights.iter().filter(|weight| whole.get(weight).is_some()) {
        let all = whole.get(weight).expect("it has");
        let counts: u64 = parts.iter().map(|part| part.get(weight).map_or(0, |it| it.count())).sum();
        assert_eq!(all.count(), counts, "{}", weight.tensor);
        if all.parts() == 1 {
            let sum = |column: usize| -> f64 {
                let one = |part: &ImportanceMatrix| {
                    let it = part.get(weight).expect("it has");
                    it.means(0).map_or(0.0, |means| means[column] * it.count() as f64)
                };
                parts.iter().map(one).sum()
            };
            let means = all.means(0).expect("inputs");
            assert!(near(means[3] * all.count() as f64, sum(3)), "{}", weight.tensor);
        }
    }
}
