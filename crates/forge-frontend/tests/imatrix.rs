//! Importance matrix files of llama.cpp, in both formats, for models of several kinds.

use forge_frontend::{Imatrix, MemoryCheckpoint, Options, read_imatrix, read_model};
use forge_ir::{Diagnostic, Graph, Weight};
use std::path::Path;

/// The graph of a model of `tests/models`.
fn graph(name: &str) -> Graph {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models").join(name);
    let file = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().expect("a name");
        (name, std::fs::read(entry.path()).expect("a file"))
    };
    let files = std::fs::read_dir(folder).expect("a folder").flatten();
    let checkpoint = MemoryCheckpoint(files.map(file).collect());
    read_model(&checkpoint, &Options::default()).expect("a model").graph
}

/// A matrix of a file: its name, the mean squares of each expert, and the numbers of inputs.
struct Matrix {
    name: &'static str,
    means: Vec<Vec<f32>>,
    counts: Vec<u32>,
}

fn matrix(name: &'static str, columns: usize, counts: &[u32]) -> Matrix {
    let of = |part: usize| (0..columns).map(|column| (part * 100 + column + 1) as f32).collect();
    Matrix { name, means: (0..counts.len()).map(of).collect(), counts: counts.to_vec() }
}

/// The older format, as llama.cpp writes it: mean squares times the number of calls.
fn legacy(matrices: &[Matrix]) -> Vec<u8> {
    const CALLS: u32 = 7;
    let mut bytes = (matrices.len() as u32).to_le_bytes().to_vec();
    for matrix in matrices {
        let values: Vec<f32> = matrix.means.concat().iter().map(|mean| mean * CALLS as f32).collect();
        bytes.extend((matrix.name.len() as u32).to_le_bytes());
        bytes.extend(matrix.name.as_bytes());
        bytes.extend(CALLS.to_le_bytes());
        bytes.extend((values.len() as u32).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    // The last call, and the name of the text.
    bytes.extend([7_u32, 4].map(u32::to_le_bytes).concat());
    bytes.extend(b"text");
    bytes
}

/// A GGUF file: sums of squares and counts.
fn gguf(matrices: &[Matrix]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut tensors = Vec::new();
    for Matrix { name, means, counts } in matrices {
        let sums =
            means.iter().zip(counts).flat_map(|(means, count)| means.iter().map(|mean| mean * *count as f32));
        tensors.push((format!("{name}.in_sum2"), [means[0].len(), means.len()], sums.collect::<Vec<f32>>()));
        let counts = counts.iter().map(|count| *count as f32).collect();
        tensors.push((format!("{name}.counts"), [1, means.len()], counts));
    }
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend([text("general.type"), 8_u32.to_le_bytes().to_vec(), text("imatrix")].concat());
    let mut data = Vec::new();
    for (name, shape, values) in &tensors {
        bytes.extend(text(name));
        bytes.extend(2_u32.to_le_bytes());
        bytes.extend(shape.iter().flat_map(|size| (*size as u64).to_le_bytes()));
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    [bytes, data].concat()
}

fn read(bytes: Vec<u8>, graph: &Graph) -> Result<Imatrix, Diagnostic> {
    read_imatrix("imatrix", bytes, graph)
}

fn weight<'a>(graph: &'a Graph, tensor: &str) -> &'a Weight {
    graph.weights.iter().find(|weight| weight.tensor == tensor).unwrap_or_else(|| panic!("no {tensor}"))
}

#[test]
fn both_formats_have_the_same_means() {
    let graph = graph("qwen3_moe");
    let matrices = [
        matrix("blk.0.attn_q.weight", 64, &[9]),
        matrix("blk.1.ffn_gate_exps.weight", 64, &[3, 5, 1, 9]),
        matrix("blk.1.ffn_down_exps.weight", 24, &[3, 5, 1, 9]),
        matrix("output.weight", 64, &[9]),
        matrix("blk.0.attn_k.weight", 63, &[9]),
    ];
    for bytes in [legacy(&matrices), gguf(&matrices)] {
        let found = read(bytes, &graph).unwrap();
        assert_eq!(found.unused, ["output.weight", "blk.0.attn_k.weight"], "absent, and of another width");
        assert_eq!(found.statistics.len(), 3);
        for (tensor, matrix) in [
            ("model.layers.0.self_attn.q_proj.weight", &matrices[0]),
            ("model.layers.1.mlp.experts.*.gate_proj.weight", &matrices[1]),
            ("model.layers.1.mlp.experts.*.down_proj.weight", &matrices[2]),
        ] {
            let squares = found.statistics.get(weight(&graph, tensor)).unwrap_or_else(|| panic!("{tensor}"));
            assert_eq!(squares.parts(), matrix.means.len());
            for (part, expected) in matrix.means.iter().enumerate() {
                let means = squares.means(part).unwrap();
                let near = |(a, b): (&f64, &f32)| (a - f64::from(*b)).abs() < 1e-5 * a;
                assert!(means.iter().zip(expected).all(near), "{tensor} {part}: {means:?}");
            }
        }
    }
}

#[test]
fn fused_tensors_have_the_statistics_of_their_parts() {
    for (name, gguf_name, tensor, parts) in [
        (
            "mixtral",
            "blk.0.ffn_gate_exps.weight",
            "model.layers.0.block_sparse_moe.experts.*.w1.weight",
            true,
        ),
        ("phi3", "blk.0.attn_qkv.weight", "model.layers.0.self_attn.qkv_proj.weight", false),
        ("gpt_oss", "blk.0.ffn_gate_exps.weight", "model.layers.0.mlp.experts.gate_up_proj", true),
        ("llama", "output.weight", "lm_head.weight", false),
    ] {
        let graph = graph(name);
        let weight = weight(&graph, tensor);
        let counts = vec![4; if parts { weight.matrices() } else { 1 }];
        let found = read(gguf(&[matrix(gguf_name, weight.columns(), &counts)]), &graph).unwrap();
        assert!(found.statistics.get(weight).is_some_and(|it| it.parts() == counts.len()), "{name}");
        assert!(found.unused.is_empty());
    }
}

#[test]
fn rejects_other_files_and_other_models() {
    let graph = graph("llama");
    let good = [matrix("blk.0.attn_q.weight", 64, &[9])];
    let code = |bytes: Vec<u8>| read(bytes, &graph).expect_err("it is wrong").code;
    for bytes in [legacy(&good), gguf(&good)] {
        assert!(read(bytes.clone(), &graph).is_ok());
        for length in [0, 3, 9, 40, bytes.len() / 2] {
            assert!(["F0109", "F0112"].contains(&code(bytes[..length].to_vec())), "{length} bytes");
        }
    }
    assert_eq!(code(vec![0xff; 64]), "F0112");
    assert_eq!(code(legacy(&[matrix("blk.77.attn_q.weight", 64, &[9])])), "F0112");
    let mut negative = legacy(&good);
    negative[35..39].copy_from_slice(&(-1_f32).to_le_bytes());
    assert_eq!(code(negative), "F0112", "a negative sum of squares");
}
