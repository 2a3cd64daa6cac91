//! Graphs and plans of given shapes, and the checkpoint that their weights are read from.

use forge_ir::{
    Apply, Body, BodyId, Draft, Format, Graph, Layout, Model, Node, Op, Packed, Param, ParamId, ParamKind,
    SpecialTokens, ValueId, Weight, WeightId,
};
use forge_weights::{ALIGNMENT, CheckpointWeights, PAGE, Progress, Summary, write};
use safetensors::{Dtype, SafeTensors};
use std::io;

/// A graph that binds f32 weights of these shapes, and an embedding, which every model needs.
pub(crate) fn graph(shapes: &[Vec<usize>]) -> Graph {
    graph_plus(shapes, &[])
}

/// The same, with weights that are the tensor plus 1.
pub(crate) fn graph_plus(shapes: &[Vec<usize>], plus_one: &[usize]) -> Graph {
    let all: Vec<Vec<usize>> = std::iter::once(vec![4, 4]).chain(shapes.iter().cloned()).collect();
    let param = |(index, shape): (usize, &Vec<usize>)| Param {
        name: format!("p{index}"),
        kind: ParamKind::Weight(shape.clone()),
    };
    let params: Vec<Param> = all.iter().enumerate().map(param).collect();
    let node = |op| Node { name: "value".to_owned(), op, inputs: vec![ValueId(0)] };
    let embed = Body {
        name: "embed".to_owned(),
        input: 0,
        params,
        nodes: vec![node(Op::Embed { table: ParamId(0), scale: 1.0 })],
    };
    let linear = node(Op::Linear { weight: ParamId(0), bias: None });
    let head =
        Body { name: "head".to_owned(), input: 4, params: embed.params[..1].to_vec(), nodes: vec![linear] };
    let apply = |body, weights| Apply { body: BodyId(body), weights, states: Vec::new(), parts: Vec::new() };
    let weight = |(index, shape): (usize, &Vec<usize>)| Weight {
        tensor: format!("tensor.{index}"),
        shape: shape.clone(),
        format: Format::F32,
        plus_one: plus_one.contains(&index),
        cut: None,
        stack: None,
        blocks: None,
        encoding: None,
    };
    let draft = Draft {
        model: Model {
            name: "test".to_owned(),
            architecture: "Test".to_owned(),
            vocabulary: 4,
            hidden: 4,
            context: 4,
            specials: SpecialTokens::default(),
        },
        weights: all.iter().enumerate().map(weight).collect(),
        states: Vec::new(),
        bodies: vec![embed, head],
        prologue: apply(0, (0..all.len()).map(WeightId).collect()),
        layers: Vec::new(),
        epilogue: apply(1, vec![WeightId(0)]),
    };
    draft.validate().unwrap()
}

/// Bytes of a tensor `tensor.N`, whose values depend on the tensor and the position.
pub(crate) fn checkpoint(tensor: &str, offset: u64, out: &mut [u8]) -> io::Result<()> {
    let seed: usize = tensor.trim_start_matches("tensor.").parse().unwrap();
    for (index, bytes) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *bytes = (((offset as usize / 4 + index) as f32 + 0.37 * seed as f32).sin()).to_le_bytes();
    }
    Ok(())
}

pub(crate) fn packed(name: &str, format: Format, shape: &[usize], layout: Layout, parts: &[usize]) -> Packed {
    let parts = parts.iter().map(|part| WeightId(*part)).collect();
    Packed { name: name.to_owned(), format, shape: shape.to_vec(), layout, parts, gain: None, records: None }
}

pub(crate) fn pack(graph: &Graph, plan: &[Packed]) -> (Vec<u8>, Summary) {
    let (mut file, mut last) = (Vec::new(), 0);
    let summary = write(
        graph,
        plan,
        &CheckpointWeights::new(graph, checkpoint),
        &mut file,
        &mut |progress: Progress<'_>| {
            assert!(last <= progress.written && progress.written <= progress.total);
            last = progress.written;
        },
    );
    let summary = summary.unwrap();
    assert_eq!((summary.bytes, last), (file.len() as u64, file.len() as u64));
    assert_eq!(summary.crc32, crc32fast::hash(&file));
    (file, summary)
}

pub(crate) fn read_of(file: &[u8]) -> impl Fn(u64, &mut [u8]) -> io::Result<()> + Sync + '_ {
    |offset, out| {
        let from = file.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// The tensors of a file with their offsets, as read by the safetensors library; checks all rules of the
/// format.
pub(crate) fn tensors(file: &[u8]) -> Vec<(String, Dtype, Vec<usize>)> {
    let (header, _) = SafeTensors::read_metadata(file).unwrap();
    assert_eq!((8 + header as u64) % PAGE, 0, "the data begins at a page");
    let read = SafeTensors::deserialize(file).unwrap();
    let mut tensors: Vec<_> = read.iter().collect();
    tensors.sort_by_key(|(_, view)| view.data().as_ptr());
    for (name, view) in &tensors {
        let offset = view.data().as_ptr() as usize - file.as_ptr() as usize;
        let padding = name.starts_with("_padding.");
        assert!(padding || (offset as u64).is_multiple_of(ALIGNMENT), "{name} begins at {offset}");
        assert!(
            !padding || view.data().iter().all(|byte| *byte == 0) && view.data().len() < ALIGNMENT as usize
        );
    }
    let tell = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        (name.to_owned(), view.dtype(), view.shape().to_vec())
    };
    tensors.into_iter().filter(|(name, _)| !name.starts_with("_padding.")).map(tell).collect()
}
