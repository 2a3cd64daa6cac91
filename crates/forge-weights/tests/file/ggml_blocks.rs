//! Rows of tensors in ggml blocks: stacks, slices and repeated rows, as floats and as written.

use crate::common::{graph, packed, read_of};
use forge_ir::{Blocks, Draft, Format, Layout, Stack, WeightId, WeightRows, WeightSlice};
use forge_weights::{CheckpointWeights, PackedFile, write};
use std::io;

const COLUMNS: usize = 256;

/// Three superblocks, and their values by gguf-py.
fn file(blocks: Blocks) -> (&'static [u8], Vec<Vec<f32>>) {
    let file: &[u8] = match blocks {
        Blocks::IQ2_XXS => include_bytes!("../ggml/iq2_xxs.bin"),
        _ => include_bytes!("../ggml/q3_k.bin"),
    };
    let (superblocks, values) = file.split_at(3 * blocks.bytes());
    let floats = values.as_chunks::<4>().0.iter().take(3 * COLUMNS);
    let values: Vec<f32> = floats.map(|bytes| f32::from_le_bytes(*bytes)).collect();
    (superblocks, values.chunks(COLUMNS).map(<[f32]>::to_vec).collect())
}

/// A graph whose weight 1 has this shape in a tensor of three superblocks, each a row.
fn draft(blocks: Blocks, shape: &[usize], stack: Option<Stack>, cut: Option<WeightSlice>) -> Draft {
    let mut draft = Draft::clone(&graph(&[shape.to_vec()]));
    let weight = &mut draft.weights[1];
    (weight.format, weight.blocks, weight.stack, weight.cut) = (blocks.format(), Some(blocks), stack, cut);
    draft
}

#[test]
fn rows_have_the_values_of_gguf_py() {
    let repeated = WeightSlice::Repeated { first: 1, rows: 2, of: 3 };
    let cases = [
        (vec![3, COLUMNS], None, None, vec![0, 1, 2]),
        (vec![3, 1, COLUMNS], Some(Stack::Whole), None, vec![0, 1, 2]),
        (vec![2, COLUMNS], None, Some(WeightSlice::Rows { first: 1, of: 3 }), vec![1, 2]),
        (vec![6, COLUMNS], None, Some(repeated), vec![1, 2, 1, 2, 1, 2]),
    ];
    for blocks in [Blocks::IQ2_XXS, Blocks::Q3_K] {
        let (superblocks, values) = file(blocks);
        let read = |_: &str, offset: u64, out: &mut [u8]| -> io::Result<()> {
            out.copy_from_slice(&superblocks[offset as usize..][..out.len()]);
            Ok(())
        };
        for (shape, stack, cut, expected) in cases.clone() {
            let graph = draft(blocks, &shape, stack, cut).validate().unwrap();
            let weights = CheckpointWeights::new(&graph, read);
            for first in 0..expected.len() {
                let wanted: Vec<f32> =
                    expected[first..].iter().flat_map(|row| values[*row].clone()).collect();
                let mut found = vec![f32::NAN; wanted.len()];
                weights.rows(WeightId(1), first..expected.len(), &mut found).unwrap();
                assert_eq!(found, wanted, "{blocks:?} {shape:?} {cut:?} from {first}");
            }
        }
    }
}

#[test]
fn the_file_has_the_values_of_gguf_py() {
    for (blocks, format) in [(Blocks::IQ2_XXS, Format::F32), (Blocks::Q3_K, Format::Q3K)] {
        let (superblocks, values) = file(blocks);
        let read = |tensor: &str, offset: u64, out: &mut [u8]| {
            match tensor {
                "tensor.1" => out.copy_from_slice(&superblocks[offset as usize..][..out.len()]),
                _ => out.fill(0),
            }
            Ok(())
        };
        let graph = draft(blocks, &[3, COLUMNS], None, None).validate().unwrap();
        let plan = [packed("w", format, &[3, COLUMNS], Layout::Rows, &[1])];
        let mut written = Vec::new();
        write(&graph, &plan, &CheckpointWeights::new(&graph, read), &mut written, &mut |_| {}).unwrap();
        let back = PackedFile::open(&graph, &plan, read_of(&written)).unwrap();
        let mut found = vec![f32::NAN; 3 * COLUMNS];
        back.rows(WeightId(1), 0..3, &mut found).unwrap();
        assert_eq!(found, values.concat(), "{blocks:?}");
    }
}
