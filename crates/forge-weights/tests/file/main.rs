//! The weight file: the safetensors library can read it, and it contains the packed weights.

mod refusals;

use forge_ir::{
    Apply, Blocks, Body, BodyId, Draft, Format, Graph, Layout, Model, Node, Op, Packed, Param, ParamId,
    ParamKind, Record, Records, SpecialTokens, Stack, ValueId, Weight, WeightId, WeightRows, WeightSlice,
};
use forge_weights::{ALIGNMENT, CheckpointWeights, PAGE, PackedFile, Progress, Summary, measure, write};
use proptest::prelude::*;
use safetensors::{Dtype, SafeTensors};
use std::io;

/// A graph that binds weights of these shapes, in f32, and an embedding to be a model at all.
fn graph(shapes: &[Vec<usize>]) -> Graph {
    graph_plus(shapes, &[])
}

/// The same, with weights stored as tensor plus 1.
fn graph_plus(shapes: &[Vec<usize>], plus_one: &[usize]) -> Graph {
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
fn checkpoint(tensor: &str, offset: u64, out: &mut [u8]) -> io::Result<()> {
    let seed: usize = tensor.trim_start_matches("tensor.").parse().unwrap();
    for (index, bytes) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *bytes = (((offset as usize / 4 + index) as f32 + 0.37 * seed as f32).sin()).to_le_bytes();
    }
    Ok(())
}

fn packed(name: &str, format: Format, shape: &[usize], layout: Layout, parts: &[usize]) -> Packed {
    let parts = parts.iter().map(|part| WeightId(*part)).collect();
    Packed { name: name.to_owned(), format, shape: shape.to_vec(), layout, parts, gain: None, records: None }
}

fn pack(graph: &Graph, plan: &[Packed]) -> (Vec<u8>, Summary) {
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

fn read_of(file: &[u8]) -> impl Fn(u64, &mut [u8]) -> io::Result<()> + Sync + '_ {
    |offset, out| {
        let from = file.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// The tensors of a file as the library of the format reads it, with where they begin; every rule of the file checked.
fn tensors(file: &[u8]) -> Vec<(String, Dtype, Vec<usize>)> {
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

#[test]
fn parts_of_tensors_are_cut_out_of_them() {
    let whole = graph(&[vec![7, 5], vec![9]]);
    let tensor = |weight: usize, length: usize| {
        let mut numbers = vec![0.0; length];
        let stored = CheckpointWeights::new(&whole, checkpoint);
        stored.rows(WeightId(weight), 0..whole.weights[weight].rows(), &mut numbers).unwrap();
        numbers
    };
    let (matrix, vector) = (tensor(1, 35), tensor(2, 9));
    let cut = |weight: usize, shape: &[usize], cut: WeightSlice, rows: std::ops::Range<usize>| {
        let mut draft = (*graph(&[shape.to_vec()])).clone();
        (draft.weights[1].cut, draft.weights[1].tensor) = (Some(cut), format!("tensor.{weight}"));
        let graph = draft.validate().unwrap();
        let mut numbers = vec![0.0; if shape.len() == 2 { rows.len() * shape[1] } else { shape[0] }];
        CheckpointWeights::new(&graph, checkpoint).rows(WeightId(1), rows, &mut numbers).unwrap();
        numbers
    };
    assert_eq!(cut(1, &[3, 5], WeightSlice::Rows { first: 2, of: 7 }, 0..3), matrix[10..25]);
    assert_eq!(cut(1, &[3, 5], WeightSlice::Rows { first: 4, of: 7 }, 1..2), matrix[25..30]);
    assert_eq!(cut(2, &[4], WeightSlice::Rows { first: 5, of: 9 }, 0..1), vector[5..]);
    // Columns 1 to 3 of the tensor, each a row of 7.
    let column = |column: usize| matrix.iter().skip(column).step_by(5).copied().collect::<Vec<f32>>();
    let grouped = |rows| cut(1, &[4, 5], WeightSlice::Groups { first: 1, rows: 2, of: 3 }, rows);
    assert_eq!(grouped(0..4), [&matrix[5..15], &matrix[20..30]].concat());
    assert_eq!(grouped(1..3), [&matrix[10..15], &matrix[20..25]].concat());
    assert_eq!(
        cut(2, &[6], WeightSlice::Groups { first: 1, rows: 2, of: 3 }, 0..1),
        [1, 2, 4, 5, 7, 8].map(|i| vector[i])
    );

    let turned = |rows| cut(1, &[3, 7], WeightSlice::Columns { first: 1, of: 5 }, rows);
    assert_eq!(turned(0..3), [column(1), column(2), column(3)].concat());
    assert_eq!(turned(1..2), column(2));

    // As 7 groups of one row and another, and 3 of columns.
    let wide = graph(&[vec![7, 6]]);
    let mut numbers = vec![0.0; 42];
    CheckpointWeights::new(&wide, checkpoint).rows(WeightId(1), 0..7, &mut numbers).unwrap();
    let column = |column: usize| numbers.iter().skip(column).step_by(6).copied().collect::<Vec<f32>>();
    let second = |rows| cut(1, &[3, 7], WeightSlice::ColumnGroups { first: 1, columns: 1, of: 2 }, rows);
    assert_eq!(second(0..3), [column(1), column(3), column(5)].concat());
    assert_eq!(second(1..3), [column(3), column(5)].concat());
    assert!(second(1..1).is_empty());
    let pairs = |rows| cut(1, &[4, 7], WeightSlice::ColumnGroups { first: 0, columns: 2, of: 3 }, rows);
    assert_eq!(pairs(1..4), [column(1), column(3), column(4)].concat());
}

#[test]
fn stacks_are_one_matrix_wherever_their_parts_lie() {
    /// Three matrices of 4 rows and 5 columns, whose values encode matrix and position.
    fn read(tensor: &str, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        let first = tensor.strip_prefix("apart.").map_or(0.0, |number| 20.0 * number.parse::<f32>().unwrap());
        for (index, out) in out.chunks_exact_mut(4).enumerate() {
            out.copy_from_slice(&(first + offset as f32 / 4.0 + index as f32).to_le_bytes());
        }
        Ok(())
    }
    let rows = |tensor: &str, stack, cut, shape: &[usize], rows: std::ops::Range<usize>| {
        let mut draft = (*graph(&[shape.to_vec()])).clone();
        let weight = &mut draft.weights[1];
        (weight.tensor, weight.stack, weight.cut) = (tensor.to_owned(), Some(stack), cut);
        let graph = draft.validate().unwrap();
        let mut numbers = vec![0.0; rows.len() * shape[2]];
        CheckpointWeights::new(&graph, read).rows(WeightId(1), rows, &mut numbers).unwrap();
        numbers
    };
    for (tensor, stack) in [("whole", Stack::Whole), ("apart.*", Stack::Apart)] {
        let count = |from: usize, to: usize| (from..to).map(|number| number as f32).collect::<Vec<f32>>();
        assert_eq!(rows(tensor, stack, None, &[3, 4, 5], 0..12), count(0, 60));
        assert_eq!(rows(tensor, stack, None, &[3, 4, 5], 3..9), count(15, 45));
        // The second and third row of each, and columns of each as rows.
        let cut = Some(WeightSlice::Rows { first: 1, of: 4 });
        assert_eq!(
            rows(tensor, stack, cut, &[3, 2, 5], 1..5),
            [count(10, 15), count(25, 35), count(45, 50)].concat()
        );
        let cut = Some(WeightSlice::Columns { first: 3, of: 5 });
        let turned = [[4., 9., 14., 19.], [23., 28., 33., 38.], [24., 29., 34., 39.]].concat();
        assert_eq!(rows(tensor, stack, cut, &[3, 2, 4], 1..4), turned);
    }
}

#[test]
fn a_file_has_the_tensors_of_its_plan() {
    let graph = graph(&[vec![3, 40], vec![2, 40], vec![5], vec![5], vec![7, 31], vec![7, 31]]);
    let plan = [
        packed("plain", Format::F32, &[5, 40], Layout::Rows, &[1, 2]),
        packed("bias", Format::F32, &[10], Layout::Alternate, &[3, 4]),
        packed("eight", Format::Q8_0, &[14, 31], Layout::Alternate, &[5, 6]),
        packed("four", Format::Q4_0, &[5, 40], Layout::Rows, &[2, 1]),
        packed("half", Format::F16, &[7, 31], Layout::Rows, &[5]),
        packed("brain", Format::Bf16, &[4, 4], Layout::Rows, &[0]),
    ];
    let (file, summary) = pack(&graph, &plan);
    let expected = [
        ("plain", Dtype::F32, vec![5, 64]),
        ("bias", Dtype::F32, vec![10]),
        ("eight.codes", Dtype::I8, vec![14, 32]),
        ("eight.scales", Dtype::F16, vec![14, 1]),
        ("four.codes", Dtype::U8, vec![5, 32]),
        ("four.scales", Dtype::F16, vec![5, 2]),
        ("half", Dtype::F16, vec![7, 32]),
        ("brain", Dtype::BF16, vec![4, 32]),
    ];
    assert_eq!(tensors(&file), expected.map(|(name, dtype, shape)| (name.to_owned(), dtype, shape)));
    let sizes: Vec<u64> = summary.weights.iter().map(|stat| stat.bytes).collect();
    assert_eq!(sizes, [5 * 64 * 4, 40, 14 * 34, 5 * 36, 7 * 64, 4 * 64]);
    let plain: Vec<bool> = summary.weights.iter().map(|stat| stat.error == 0.0).collect();
    assert_eq!(plain, [true, true, false, false, false, false]);
    assert_eq!(summary.worst()[0].name, "four");
}

/// Part, row and column of a value, in a checkpoint whose values encode them.
#[test]
fn pairs_alternate_and_wide_parts_are_cut_in_blocks() {
    let graph = graph(&[vec![2, 2], vec![2, 2], vec![1, 2], vec![1, 2], vec![2, 6]]);
    let place = |tensor: &str, offset: u64, out: &mut [u8]| {
        let seed: usize = tensor.trim_start_matches("tensor.").parse().unwrap();
        let columns = if seed == 5 { 6 } else { 2 };
        for (index, bytes) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let at = offset as usize / 4 + index;
            *bytes = ((100 * seed + 10 * (at / columns) + at % columns) as f32).to_le_bytes();
        }
        Ok(())
    };
    let rows_of = |layout, shape: &[usize], parts: &[usize]| {
        let plan = [packed("w", Format::F32, shape, layout, parts)];
        let mut file = Vec::new();
        write(&graph, &plan, &CheckpointWeights::new(&graph, place), &mut file, &mut |_| {}).unwrap();
        let all = SafeTensors::deserialize(&file).unwrap();
        let bytes = all.tensor("w").unwrap().data().to_vec();
        let numbers = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes) as usize);
        let numbers: Vec<usize> = numbers.collect();
        numbers.chunks(32).map(|row| [row[0], row[1]]).collect::<Vec<_>>()
    };
    assert_eq!(
        rows_of(Layout::Alternate, &[6, 2], &[1, 2, 3, 4]),
        [[100, 101], [200, 201], [110, 111], [210, 211], [300, 301], [400, 401]]
    );
    assert_eq!(
        rows_of(Layout::Blocks, &[8, 2], &[1, 5]),
        [[100, 101], [110, 111], [500, 501], [510, 511], [502, 503], [512, 513], [504, 505], [514, 515]]
    );
}

/// The checkpoint's own quantized values, which requantization would change: no block uses the largest value.
#[test]
fn codes_that_are_kept_are_cut_in_blocks() {
    let mut draft = Draft::clone(&graph(&[vec![3, 32], vec![3, 96]]));
    for weight in &mut draft.weights[1..] {
        (weight.format, weight.blocks) = (Format::Q8_0, Some(Blocks::Q8_0));
    }
    let graph = draft.validate().unwrap();
    let blocks = |tensor: &str, offset: u64, out: &mut [u8]| {
        let seed = tensor.len() + usize::from(tensor.ends_with('2'));
        for (index, byte) in out.iter_mut().enumerate() {
            let at = offset as usize + index;
            *byte = match at % 34 {
                0 => 0,
                1 => 0x3c,
                column => ((at / 34 * 7 + column + 40 * seed) % 61) as u8,
            };
        }
        Ok(())
    };
    let plan = [packed("w", Format::Q8_0, &[12, 32], Layout::Blocks, &[1, 2])];
    let stored = CheckpointWeights::new(&graph, blocks);
    let mut file = Vec::new();
    write(&graph, &plan, &stored, &mut file, &mut |_| {}).unwrap();
    let back = PackedFile::open(&graph, &plan, read_of(&file)).unwrap();
    for (part, columns) in [(1, 32), (2, 96)] {
        let mut numbers = [vec![0.0; 3 * columns], vec![1.0; 3 * columns]];
        stored.rows(WeightId(part), 0..3, &mut numbers[0]).unwrap();
        back.rows(WeightId(part), 0..3, &mut numbers[1]).unwrap();
        assert_eq!(numbers[0], numbers[1]);
        assert!(numbers[0].iter().any(|number| *number > 50.0));
    }
}

#[test]
fn affine_matrices_have_offsets_beside_their_scales() {
    let graph = graph(&[vec![3, 130], vec![2, 130]]);
    let affine =
        |name: &str| packed(name, Format::from_name(name).unwrap(), &[5, 130], Layout::Rows, &[1, 2]);
    let plan = ["affine8", "affine4", "affine4_128", "affine8_32", "affine3_bf16", "affine5_32"].map(affine);
    let (file, summary) = pack(&graph, &plan);
    let expected = [
        ("affine8.codes", Dtype::U8, vec![5, 192]),
        ("affine8.scales", Dtype::F16, vec![5, 6]),
        ("affine4.codes", Dtype::U8, vec![5, 96]),
        ("affine4.scales", Dtype::F16, vec![5, 6]),
        ("affine4_128.codes", Dtype::U8, vec![5, 128]),
        ("affine4_128.scales", Dtype::F16, vec![5, 4]),
        ("affine8_32.codes", Dtype::U8, vec![5, 160]),
        ("affine8_32.scales", Dtype::F16, vec![5, 10]),
        ("affine3_bf16.codes", Dtype::U8, vec![5, 72]),
        ("affine3_bf16.scales", Dtype::BF16, vec![5, 6]),
        ("affine5_32.codes", Dtype::U8, vec![5, 100]),
        ("affine5_32.scales", Dtype::F16, vec![5, 10]),
    ];
    assert_eq!(tensors(&file), expected.map(|(name, dtype, shape)| (name.to_owned(), dtype, shape)));
    let sizes: Vec<u64> = summary.weights.iter().map(|stat| stat.bytes).collect();
    assert_eq!(sizes, [5 * 3 * 68, 5 * 3 * 36, 5 * 2 * 68, 5 * 5 * 36, 5 * 3 * 28, 5 * 5 * 24]);
    // Uniform values between -1 and 1, standard deviation 0.7: a step of 2 in 255, 15, 7 or 31, with the standard deviation of a
    // uniform error.
    for (stat, steps) in summary.weights.iter().zip([255.0, 15.0, 15.0, 255.0, 7.0, 31.0]) {
        let expected = 2.0 / steps / 12_f64.sqrt() / 0.5_f64.sqrt();
        assert!((0.8..1.1).contains(&(stat.error / expected)), "{}: {} of {expected}", stat.name, stat.error);
    }
}

#[test]
fn what_is_measured_is_what_writing_finds() {
    let graph = graph(&[vec![3, 130], vec![3, 130], vec![130]]);
    let formats = ["affine4", "q8_0", "f16", "q4_0"].map(|name| Format::from_name(name).unwrap());
    let of = |format: Format, gain| {
        let mut packed = packed(format.name(), format, &[6, 130], Layout::Alternate, &[1, 2]);
        packed.gain = gain;
        packed
    };
    for gain in [None, Some(WeightId(3))] {
        let plan = formats.map(|format| of(format, gain));
        let source = CheckpointWeights::new(&graph, checkpoint);
        let measured = measure(&graph, &of(Format::F32, gain), &source, &formats).unwrap();
        let written = plan.map(|packed| Some(pack(&graph, &[packed]).1.weights[0].error));
        assert_eq!(measured, written);
    }
}

#[test]
fn gains_are_stored_with_their_one() {
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
    let tensor = |seed: f32| (0..40).map(move |column| (column as f32 + 0.37 * seed).sin());
    let gain: Vec<f32> = tensor(3.0).map(|x| x + 1.0).collect();
    assert_eq!(read(&CheckpointWeights::new(&graph, checkpoint), 3, 1), gain);
    assert_eq!(read(&back, 3, 1), gain, "the 1 is added once");
    assert_eq!(read(&back, 2, 1), [1.0; 40]);
    let products: Vec<f32> = tensor(1.0).zip(tensor(2.0)).map(|(x, gain)| x * (gain + 1.0)).collect();
    assert_eq!(read(&back, 1, 3)[..40], products);
}

/// A matrix times a norm weight, in two parts, and the same matrix of a graph without the norm weight.
#[test]
fn a_gain_is_folded_into_the_columns_of_its_matrix() {
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

/// Matrices and vectors in random orders, formats and layouts.
fn plans() -> impl Strategy<Value = (Vec<Vec<usize>>, Vec<Packed>)> {
    let flags = [any::<bool>(), any::<bool>(), any::<bool>()];
    let group = (1_usize..4, 1_usize..40, 1_usize..200, flags, 0..Format::ALL.len());
    prop::collection::vec(group, 1..5).prop_map(|groups| {
        let (mut shapes, mut plan) = (Vec::new(), Vec::new());
        for (index, (parts, rows, columns, flags, format)) in groups.into_iter().enumerate() {
            let [vector, alternate, folded] = flags;
            let format = if vector { Format::F32 } else { Format::ALL[format] };
            let layout = match (alternate, vector || folded) {
                (true, _) => Layout::Alternate,
                (false, true) => Layout::Rows,
                (false, false) => Layout::Blocks,
            };
            // Pairs alternate, and blocks are whole groups.
            let parts = if alternate { 2 * parts } else { parts };
            let grow = |part: usize| rows + if alternate { part / 2 } else { part };
            let blocks = |part: usize| if layout == Layout::Blocks { 1 + part } else { 1 };
            let columns =
                if layout == Layout::Blocks { columns.next_multiple_of(format.group()) } else { columns };
            let numbers: Vec<usize> = (0..parts).map(|part| shapes.len() + 1 + part).collect();
            let tail = |blocks| if vector { vec![] } else { vec![blocks * columns] };
            let shape = |rows, blocks| [vec![rows], tail(blocks)].concat();
            let total = (0..parts).map(|part| grow(part) * blocks(part)).sum();
            plan.push(packed(&format!("w{index}"), format, &shape(total, 1), layout, &numbers));
            shapes.extend((0..parts).map(|part| shape(grow(part), blocks(part))));
            if folded && !vector {
                shapes.push(vec![columns]);
                plan.last_mut().unwrap().gain = Some(WeightId(shapes.len()));
            }
        }
        (shapes, plan)
    })
}

fn largest(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The root of the mean of the squares.
fn mean(a: &[f32], b: &[f32]) -> f32 {
    (a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / a.len() as f32).sqrt()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn what_was_packed_comes_back((shapes, plan) in plans(), start in 0_usize..40, length in 0_usize..40) {
        let graph = graph(&shapes);
        let (file, _) = pack(&graph, &plan);
        tensors(&file);
        let stored = CheckpointWeights::new(&graph, checkpoint);
        let back = PackedFile::open(&graph, &plan, read_of(&file)).unwrap();
        for packed in &plan {
            for part in &packed.parts {
                let weight = &graph.weights[part.0];
                let end = weight.rows().min(start + length);
                let rows = start.min(end)..end;
                let (mut a, mut b) = (vec![0.0; rows.len() * weight.columns()], vec![9.0; rows.len() * weight.columns()]);
                stored.rows(*part, rows.clone(), &mut a).unwrap();
                back.rows(*part, rows, &mut b).unwrap();
                let mut gain = vec![1.0; weight.columns()];
                if let Some(id) = packed.gain {
                    let mut ones = gain.clone();
                    back.rows(id, 0..1, &mut ones).unwrap();
                    prop_assert_eq!(&ones, &gain);
                    stored.rows(id, 0..1, &mut gain).unwrap();
                }
                a.iter_mut().zip(gain.iter().cycle()).for_each(|(x, gain)| *x *= gain);
                let groups = |numbers: &'_ [f32]| -> Vec<Vec<f32>> {
                    let rows = numbers.chunks(weight.columns());
                    rows.flat_map(|row| row.chunks(packed.format.group())).map(<[f32]>::to_vec).collect()
                };
                for (a, b) in groups(&a).iter().zip(groups(&b)) {
                    let error = match packed.format {
                        // The ends of a group give way to the rest.
                        Format::Affine(affine) if affine.bits.count() <= 4 => mean(a, &b),
                        Format::Q4K | Format::Q5K | Format::Q6K => mean(a, &b),
                        _ => largest(a, &b),
                    };
                    let bound = match packed.format {
                        Format::F32 => 0.0,
                        Format::F16 => 2_f32.powi(-11),
                        Format::Bf16 => 2_f32.powi(-8),
                        Format::Q8_0 => 0.51 / 127.0 + 2_f32.powi(-11),
                        Format::Q4_0 => 1.01 / 8.0 + 2_f32.powi(-11),
                        Format::Mxfp4 => 0.25,
                        // An offset as a bfloat can be a 128th of itself too low.
                        Format::Affine(_) | Format::Q4K | Format::Q5K | Format::Q6K => {
                            let bits = packed.format.bits().map_or(0, |bits| bits.count());
                            0.515 * 2.0 / (2_f32.powi(bits as i32) - 1.0)
                        }
                    };
                    prop_assert!(error <= bound, "{} {}: {:?} became {:?}", packed.name, packed.format, a, b);
                }
            }
        }
        for (weight, rows, length) in [(99, 0..1, 4), (1, 0..1000, 4), (1, 0..1, 3000)] {
            prop_assert!(back.rows(WeightId(weight), rows.clone(), &mut vec![0.0; length]).is_err());
            prop_assert!(stored.rows(WeightId(weight), rows, &mut vec![0.0; length]).is_err());
        }
    }
}

#[test]
fn what_an_expert_has_of_all_matrices_is_one_record() {
    let graph = graph(&[vec![6, 40], vec![6, 40], vec![9], vec![15, 33]]);
    let records = Some(Records { tensor: "layers.0.experts".to_owned(), experts: 3 });
    let inner = packed("layers.0.inner", Format::Q8_0, &[12, 40], Layout::Alternate, &[1, 2]);
    let bias = packed("layers.0.bias", Format::F32, &[9], Layout::Rows, &[3]);
    let sum = packed("layers.0.sum", Format::F16, &[15, 33], Layout::Rows, &[4]);
    let apart = [inner.clone(), bias.clone(), sum.clone()];
    let of_record = |packed| Packed { records: records.clone(), ..packed };
    let together = [of_record(inner), bias, of_record(sum)];
    let record = Record::of(&[(Format::Q8_0, [4, 40]), (Format::F16, [5, 33])]);
    let (file, summary) = pack(&graph, &together);
    let told = tensors(&file);
    assert_eq!(told[0], ("layers.0.experts".to_owned(), Dtype::U8, vec![3, record.bytes]));
    assert_eq!(told[1..], [("layers.0.bias".to_owned(), Dtype::F32, vec![9])]);
    let (plain, plain_summary) = pack(&graph, &apart);
    let sizes =
        |summary: &Summary| summary.weights.iter().map(|stat| (stat.bytes, stat.error)).collect::<Vec<_>>();
    assert_eq!(sizes(&summary), sizes(&plain_summary), "padding has no effect");
    // Every plane of every expert is at the offset in its record.
    let (records, plain) =
        (SafeTensors::deserialize(&file).unwrap(), SafeTensors::deserialize(&plain).unwrap());
    let of_experts = records.tensor("layers.0.experts").unwrap().data();
    let planes = [["layers.0.inner.codes", "layers.0.inner.scales"], ["layers.0.sum", ""]];
    for (names, places) in planes.iter().zip(&record.matrices) {
        for (name, place) in names.iter().zip(places).filter(|(name, _)| !name.is_empty()) {
            let rows = plain.tensor(name).unwrap().data().chunks_exact(place.len());
            for (own, rows) in of_experts.chunks_exact(record.bytes).zip(rows) {
                assert_eq!(own[place.clone()], *rows, "{name}");
            }
        }
    }
    // Reading returns the same values, for any range of rows.
    let back = PackedFile::open(&graph, &together, read_of(&file)).unwrap();
    let stored = CheckpointWeights::new(&graph, checkpoint);
    for (part, width, rows) in [(1, 40, 1..6), (2, 40, 0..6), (4, 33, 3..14), (4, 33, 4..5)] {
        let (mut found, mut given) = (vec![0.0; rows.len() * width], vec![0.0; rows.len() * width]);
        back.rows(WeightId(part), rows.clone(), &mut found).unwrap();
        stored.rows(WeightId(part), rows, &mut given).unwrap();
        let near = found.iter().zip(&given).all(|(found, given)| (found - given).abs() < 0.01);
        assert!(near, "part {part}");
    }
}
