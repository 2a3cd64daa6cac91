//! Checkpoints in the quantization formats of other tools (`tests/encoded`): values and logits equal those of
//! the tools, and compiling changes a value only with a note.

use forge_frontend::{LoadedCheckpoint, MemoryCheckpoint, Options, StoredMatrices, read_model};
use forge_ir::{Format, Stack, WeightId, WeightRows, tolerance};
use forge_weights::{CheckpointWeights, decode_row, encode_row};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

/// Storage of a checkpoint's quantized matrices: directory, storage, format and whether its values are exact.
const EXPECTED: [(&str, &str, &str, bool); 22] = [
    ("awq", "AWQ int4, groups of 64", "affine5", true),
    ("awq_fused", "AWQ int4, groups of 32", "q5_0", true),
    ("bnb_fp4", "bitsandbytes fp4, groups of 64", "bf16", false),
    ("bnb_int8", "bitsandbytes int8, one scale per row", "bf16", false),
    ("bnb_nf4", "bitsandbytes nf4, groups of 64", "bf16", false),
    ("ct_fp8", "FP8, one scale per row", "fp8", true),
    ("ct_int4", "compressed-tensors int4, groups of 32", "q4_0", true),
    ("ct_int4_asym", "compressed-tensors int4, groups of 64", "affine5", true),
    ("ct_int8", "compressed-tensors int8, one scale per row", "q8_0", true),
    ("ct_mxfp4", "MXFP4, groups of 32", "mxfp4", true),
    ("ct_nvfp4", "NVFP4, groups of 16", "nvfp4", false),
    ("fp8_block", "FP8, blocks of 128x128", "fp8", true),
    ("fp8_power", "FP8, blocks of 64x64", "bf16", true),
    ("fp8_tensor", "FP8, one scale", "fp8", true),
    ("gptq", "GPTQ int4, groups of 64", "affine4", true),
    ("gptq_int8", "GPTQ int8, groups of 64", "q8_0", true),
    ("gptq_reordered", "GPTQ int4, groups of 32, reordered columns", "bf16", false),
    ("mlx_f32", "MLX affine, groups of 64", "bf16", false),
    ("mlx_mxfp8", "MXFP8, groups of 32", "bf16", true),
    ("mlx_nvfp4", "NVFP4, groups of 16", "nvfp4", true),
    ("modelopt_fp8", "FP8, one scale", "fp8", true),
    ("modelopt_nvfp4", "NVFP4, groups of 16", "nvfp4", true),
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/encoded").join(name)
}

/// The largest difference of two lists, in standard deviations of the second.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let (count, mean) = (expected.len() as f64, expected.iter().sum::<f64>() / expected.len() as f64);
    let deviation = (expected.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt();
    found.iter().zip(expected).map(|(a, b)| (a - b).abs() / deviation).fold(0.0, f64::max)
}

/// The files of a checkpoint that the frontend reads.
fn memory(folder: &Path) -> MemoryCheckpoint {
    let names = ["config.json", "model.safetensors", "hf_quant_config.json"];
    let file = |name: &str| Some((name.to_owned(), std::fs::read(folder.join(name)).ok()?));
    MemoryCheckpoint(names.into_iter().filter_map(file).collect())
}

fn opened(name: &str, memory: &MemoryCheckpoint) -> LoadedCheckpoint {
    read_model(memory, &Options::default()).unwrap_or_else(|faults| panic!("{name}: {faults:#?}"))
}

/// Passes the checkpoint's golden tensors and weights to `check`.
fn each(check: impl Fn(&str, &LoadedCheckpoint, &dyn WeightRows, &SafeTensors<'_>)) {
    for (name, ..) in EXPECTED {
        let memory = memory(&folder(name));
        let opened = opened(name, &memory);
        let weights = CheckpointWeights::new(&opened.graph, |tensor, offset, out: &mut [u8]| {
            opened.tensors.read(&memory, tensor, offset, out)
        });
        let golden = std::fs::read(folder(name).join("golden.safetensors")).expect("it has what is expected");
        check(name, &opened, &weights, &SafeTensors::deserialize(&golden).expect("it is whole"));
    }
}

/// All rows of a weight.
fn rows(opened: &LoadedCheckpoint, weights: &dyn WeightRows, index: usize) -> Vec<f32> {
    let weight = &opened.graph.weights[index];
    let mut out = vec![0.0; weight.rows() * weight.columns()];
    // A few rows at a time, as the weight writer reads them.
    for (start, out) in (0..weight.rows()).step_by(7).zip(out.chunks_mut(7 * weight.columns())) {
        let end = weight.rows().min(start + 7);
        weights.rows(WeightId(index), start..end, out).expect("it can be read");
    }
    out
}

fn words(golden: &SafeTensors<'_>, name: &str) -> Option<Vec<u32>> {
    let words = golden.tensor(name).ok()?.data().as_chunks::<4>().0.to_vec();
    Some(words.into_iter().map(u32::from_le_bytes).collect())
}

#[test]
fn every_folder_is_tested() {
    let entries = std::fs::read_dir(folder("")).expect("it is there").flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    assert_eq!(names, EXPECTED.map(|(name, ..)| name));
}

#[test]
fn matrices_keep_the_smallest_format_with_their_values() {
    for (name, stored, format, exact) in EXPECTED {
        let opened = opened(name, &memory(&folder(name)));
        let [matrices] = &opened.matrices[..] else { panic!("{name}: {:?}", opened.matrices) };
        let StoredMatrices { stored: found, format: of, exact: is_exact, .. } = matrices;
        assert_eq!((found.as_str(), of.name(), *is_exact), (stored, format, exact), "{name}");
        assert!(opened.notes.iter().any(|note| note.contains(stored) && note.contains(format)), "{name}");
    }
}

#[test]
fn dequantized_values_equal_those_of_the_tools() {
    each(|name, opened, weights, golden| {
        let mut checked = 0;
        for (index, weight) in opened.graph.weights.iter().enumerate().filter(|(_, it)| it.cut.is_none()) {
            let values = rows(opened, weights, index);
            let each = if weight.stack == Some(Stack::Apart) { weight.matrices() } else { 1 };
            for (tensor, values) in weight.tensors().zip(values.chunks(values.len() / each)) {
                let Some(expected) = words(golden, &format!("crc32.{tensor}")) else { continue };
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                assert_eq!(crc32fast::hash(&bytes), expected[0], "{name}: {tensor}");
                checked += 1;
            }
        }
        let of_golden = golden.names().iter().filter(|name| name.starts_with("crc32.")).count();
        // MLA uses slices of three matrices of both layers; fused projections are slices of two matrices.
        let sliced = match name {
            "fp8_block" => 2 * 3,
            "awq_fused" => 2,
            _ => 0,
        };
        assert!(checked + sliced == of_golden && checked > 1, "{name}: {checked} of {of_golden}");
    });
}

#[test]
fn logits_equal_those_of_transformers() {
    each(|name, opened, weights, golden| {
        for index in 0..2 {
            let ids = words(golden, &format!("ids_{index}")).expect("it has ids");
            let last = words(golden, &format!("last_{index}")).expect("it has logits");
            let expected: Vec<f64> = last.into_iter().map(|bits| f64::from(f32::from_bits(bits))).collect();
            let rows =
                forge_reference::evaluate(&opened.graph, weights, &ids, forge_reference::Positions::Last);
            let rows = rows.expect("it can be evaluated");
            let found: Vec<f64> = rows.last().expect("a row").iter().map(|x| f64::from(*x)).collect();
            let distance = distance(&found, &expected);
            println!("{name} {} ids: {distance:.1e}", ids.len());
            assert!(distance <= tolerance(Format::F32).bound, "{name}: {distance:.1e}");
        }
    });
}

/// The values that a format stores of a row.
fn rounded(format: Format, row: &[f32]) -> Vec<f32> {
    let [values, scales] = format.plane_bytes(row.len()).map(|length| vec![0; length]);
    let (mut values, mut scales, mut out) = (values, scales, vec![0.0; row.len()]);
    encode_row(format, row, [&mut values, &mut scales]).expect("it is finite");
    decode_row(format, [&values, &scales], &mut out);
    out
}

#[test]
fn kept_weights_have_the_same_values_and_others_are_rounded_once() {
    each(|name, opened, weights, _| {
        for (index, weight) in opened.graph.weights.iter().enumerate() {
            let Some(encoding) = weight.encoding else { continue };
            let (columns, exact) = (weight.columns(), rows(opened, weights, index));
            let (format, at) = (weight.format, &weight.tensor);
            let [codes, scales] = format.plane_bytes(columns);
            let kept = if format.is_quantized() {
                let mut stored = vec![0; weight.rows() * (codes + scales)];
                weights.stored(WeightId(index), 0..weight.rows(), &mut stored).expect("it is repacked");
                let mut out = vec![0.0; exact.len()];
                for (row, out) in stored.chunks(codes + scales).zip(out.chunks_mut(columns)) {
                    decode_row(format, row.split_at(codes).into(), out);
                }
                out
            } else {
                exact.chunks(columns).flat_map(|row| rounded(format, row)).collect()
            };
            let same = exact == kept;
            let expected = EXPECTED.iter().find(|(known, ..)| *known == name).expect("it is known").3;
            assert!(same || !expected, "{name}: {at} in {encoding} changed");
            // A scale that is multiplied by an inverse may be off by a bit or two.
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2.0 * f32::EPSILON * a.abs();
            let all_near = exact.iter().zip(&kept).all(is_near);
            assert!(all_near || !format.is_quantized(), "{name}: {at} in {encoding} is not near");
        }
    });
}
