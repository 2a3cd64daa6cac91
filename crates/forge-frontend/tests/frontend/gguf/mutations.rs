//! Every key and every tensor of a GGUF file counts: changing one is an error, or changes the graph.

use crate::common::read;
use crate::gguf::file::File;
use crate::gguf::{FILES, bytes, memory};
use forge_ir::Graph;

/// Keys that may have any value in a file, and why.
const WITHOUT_EFFECT: &[(&str, &str, &str)] = &[
    ("qwen35-f16", "rope.dimension_sections", "all positions of text are equal"),
    ("qwen35_moe-f16", "rope.dimension_sections", "all positions of text are equal"),
    ("qwen35-f16", "full_attention_interval", "the file lists the layers"),
    ("qwen35_moe-f16", "full_attention_interval", "the file lists the layers"),
    ("qwen3_next-q4_1", "full_attention_interval", "the file lists the layers"),
    ("qwen2_moe-q5_0", "feed_forward_length", "no layer is dense"),
    ("qwen3_moe-q4_0", "feed_forward_length", "no layer is dense"),
    ("gpt_oss-mxfp4", "feed_forward_length", "no layer is dense"),
    ("qwen3_next-q4_1", "feed_forward_length", "no layer is dense"),
    ("qwen35_moe-f16", "feed_forward_length", "no layer is dense"),
    ("deepseek_v2-f16", "expert_group_used_count", "there is one group"),
];

/// The graph of a file, if it is read.
fn graph(file: &File) -> Option<Graph> {
    read(&memory(file.write())).ok().map(|opened| opened.graph)
}

/// Another value of a key's type: the first element of a list is changed.
fn changed(kind: u32, value: &[u8]) -> Vec<u8> {
    let mut value = value.to_vec();
    match kind {
        9 => {
            let of = u32::from_le_bytes(value[..4].try_into().unwrap());
            let first = changed(of, &value[12..12 + if matches!(of, 0 | 1 | 7) { 1 } else { 4 }]);
            value[12..12 + first.len()].copy_from_slice(&first);
        }
        6 => {
            let number = f32::from_le_bytes(value[..].try_into().unwrap());
            value = (number * 8.0 + 0.5).to_le_bytes().to_vec();
        }
        8 => value[8] ^= 1,
        7 => value[0] ^= 1,
        // An eighth of more than 4095; else one more.
        4 | 5 if value[1] >= 16 => value[1] /= 8,
        _ => value[0] += 1,
    }
    value
}

#[test]
fn a_changed_key_is_an_error_or_changes_the_graph() {
    let mut without_effect = Vec::new();
    for (name, _) in FILES {
        let file = File::parse(&bytes(&format!("gguf/{name}.gguf")));
        let original = graph(&file).unwrap();
        for (key, kind, value) in &file.values {
            let outside = ["general.", "tokenizer.", "split.", "quantize."];
            if outside.iter().any(|prefix| key.starts_with(prefix)) {
                continue;
            }
            let mut other = file.clone();
            other.set(key, *kind, &changed(*kind, value));
            if graph(&other).is_some_and(|graph| graph == original) {
                without_effect.push((name, key.split_once('.').unwrap().1.to_owned()));
            }
        }
    }
    let expected = WITHOUT_EFFECT.iter().map(|(name, key, _)| (*name, (*key).to_owned()));
    let mut expected: Vec<_> = expected.collect();
    expected.sort();
    without_effect.sort();
    assert_eq!(without_effect, expected);
}

#[test]
fn a_missing_or_misshaped_tensor_is_an_error_or_changes_the_graph() {
    for (name, _) in FILES {
        let file = File::parse(&bytes(&format!("gguf/{name}.gguf")));
        let original = graph(&file).unwrap();
        let check = |other: &File, what: &str, tensor: &str| {
            assert!(graph(other).is_none_or(|graph| graph != original), "{name}: {what} {tensor}");
        };
        for at in 0..file.tensors.len() {
            let tensor = file.tensors[at].0.as_str();
            let mut other = file.clone();
            other.tensors.remove(at);
            check(&other, "without", tensor);
            let mut other = file.clone();
            let copy = (
                format!("{tensor}.fog"),
                file.tensors[at].1.clone(),
                file.tensors[at].2,
                file.tensors[at].3.clone(),
            );
            other.tensors.push(copy);
            assert!(graph(&other).is_none(), "{name}: a tensor like {tensor}");
            // One row less, or one element.
            let mut other = file.clone();
            let (_, shape, kind, bytes) = &mut other.tensors[at];
            let last = shape.len() - 1;
            if shape[last] == 1 || last == 0 && *kind > 1 {
                continue;
            }
            // Without the padding.
            let bytes_of_row = match (last, *kind) {
                (0, 0) => 4,
                _ => bytes.len() / shape[last] as usize,
            };
            shape[last] -= 1;
            bytes.truncate(bytes_of_row * shape[last] as usize);
            check(&other, "another shape of", tensor);
        }
    }
}

#[test]
fn extreme_values_of_keys_give_a_graph_or_a_diagnostic() {
    for (name, _) in &FILES[FILES.len() - 12..] {
        let file = File::parse(&bytes(&format!("gguf/{name}.gguf")));
        for (key, kind, value) in &file.values {
            if ["general.", "tokenizer."].iter().any(|prefix| key.starts_with(prefix)) {
                continue;
            }
            let values: Vec<Vec<u8>> = match kind {
                6 => [0.0, -1.0, 1e30, f32::INFINITY, f32::NAN].map(|x: f32| x.to_le_bytes().to_vec()).into(),
                4 => [0, 3, 1 << 31, u32::MAX].map(|x: u32| x.to_le_bytes().to_vec()).into(),
                // An empty list, and one of one element.
                9 => {
                    let size = if value[0] == 7 { 1 } else { 4 };
                    let one = [&value[..4], &1_u64.to_le_bytes(), &value[12..12 + size]].concat();
                    vec![[&value[..4], &[0; 8]].concat(), one]
                }
                _ => continue,
            };
            let wide = (*kind == 4).then(|| (10, u64::MAX.to_le_bytes().to_vec()));
            for (kind, value) in values.into_iter().map(|value| (*kind, value)).chain(wide) {
                let mut other = file.clone();
                other.set(key, kind, &value);
                if let Err(faults) = read(&memory(other.write())) {
                    assert!(!faults.is_empty(), "{name}: {key}");
                }
            }
        }
    }
}
