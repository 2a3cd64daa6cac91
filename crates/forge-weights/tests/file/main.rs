//! The weight file: the safetensors library can read it, and it contains the packed weights.

mod calibrated;
mod common;
mod gains;
mod ggml_blocks;
mod records;
mod rejected_inputs;
mod round_trip;

use crate::common::{checkpoint, graph, pack, packed, read_of, tensors};
use forge_ir::{Blocks, Draft, Format, Layout, Stack, WeightId, WeightRows, WeightSlice};
use forge_weights::{CheckpointWeights, PackedFile, measure, write};
use safetensors::{Dtype, SafeTensors};

#[test]
fn packs_slices_of_tensors() {
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

    let transposed = |rows| cut(1, &[3, 7], WeightSlice::Columns { first: 1, of: 5 }, rows);
    assert_eq!(transposed(0..3), [column(1), column(2), column(3)].concat());
    assert_eq!(transposed(1..2), column(2));

    // As groups of rows, and as groups of columns.
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
fn packs_stacked_parts_as_one_matrix() {
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
        let transposed = [[4., 9., 14., 19.], [23., 28., 33., 38.], [24., 29., 34., 39.]].concat();
        assert_eq!(rows(tensor, stack, cut, &[3, 2, 4], 1..4), transposed);
    }
}

#[test]
fn writes_the_tensors_of_the_plan() {
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
fn interleaves_pairs_and_splits_wide_parts_into_blocks() {
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
fn repacks_stored_codes_in_blocks() {
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
fn stores_affine_offsets_next_to_scales() {
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
    // Uniform values between -1 and 1, standard deviation 0.7: a step of 2 in 255, 15, 7 or 31, with the
    // standard deviation of a uniform error.
    for (stat, steps) in summary.weights.iter().zip([255.0, 15.0, 15.0, 255.0, 7.0, 31.0]) {
        let expected = 2.0 / steps / 12_f64.sqrt() / 0.5_f64.sqrt();
        assert!((0.8..1.1).contains(&(stat.error / expected)), "{}: {} of {expected}", stat.name, stat.error);
    }
}

#[test]
fn measured_errors_equal_those_of_writing() {
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
        let measured = measure(&graph, &of(Format::F32, gain), &source, None, &formats).unwrap();
        let measured: Vec<_> = measured.into_iter().map(|it| it.map(|error| error.relative)).collect();
        let written = plan.map(|packed| Some(pack(&graph, &[packed]).1.weights[0].error));
        assert_eq!(measured, written);
    }
}
