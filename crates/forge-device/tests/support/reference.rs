//! The tiny model in plain f64, and its files.

use super::{Matrix, Random, tensors, vector, write_weights};
use forge_device::ops::Format;
use forge_oracle::elementwise::silu;
use forge_oracle::norm::normed;
use half::f16;
use serde_json::json;
use std::path::Path;

pub struct Layer {
    attention_gain: Vec<f32>,
    qkv: Matrix,
    output: Matrix,
    mlp_gain: Vec<f32>,
    gate_up: Matrix,
    down: Matrix,
}

pub struct Reference {
    embed: Matrix,
    layers: Vec<Layer>,
    final_gain: Vec<f32>,
    head: Matrix,
}

const FREQUENCIES: [f32; 5] = [1.0, 0.158_489_3, 0.025_118_864, 0.003_981_071_7, 0.000_630_957_36];

fn product(matrix: &Matrix, x: &[f64]) -> Vec<f64> {
    let rows = matrix.values.chunks_exact(matrix.columns);
    rows.map(|row| row.iter().zip(x).map(|(&w, &x)| f64::from(w) * x).sum()).collect()
}

fn norm(x: &[f64], gain: &[f32]) -> Vec<f64> {
    normed(x, Some(gain), 1e-5)
}

/// A value rounded as the cache stores it.
fn cached(x: f64) -> f64 {
    f64::from(f16::from_f32(x as f32).to_f32())
}

impl Reference {
    pub fn new() -> Reference {
        // Some seeds make a model that soon repeats itself, and stop strings then end the text early.
        let mut random = Random(80);
        let mut gain = Random(78);
        let mut gain = || (0..40).map(|_| 1.0 + 0.3 * gain.number()).collect::<Vec<f32>>();
        let layers = (0..2)
            .map(|_| Layer {
                attention_gain: gain(),
                qkv: Matrix::random(&mut random, Format::Q4_0, 80, 40, 0.4),
                output: Matrix::random(&mut random, Format::Q8_0, 40, 40, 0.4),
                mlp_gain: gain(),
                gate_up: Matrix::random(&mut random, Format::Q8_0, 48, 40, 0.5),
                down: Matrix::random(&mut random, Format::Q8_0, 40, 24, 0.4),
            })
            .collect();
        Reference {
            embed: Matrix::random(&mut random, Format::Q8_0, 50, 40, 1.0),
            layers,
            final_gain: gain(),
            head: Matrix::random(&mut random, Format::Q8_0, 50, 40, 1.0),
        }
    }

    /// Logits after every token.
    pub fn logits(&self, ids: &[u32]) -> Vec<Vec<f64>> {
        let mut streams: Vec<Vec<f64>> = ids
            .iter()
            .map(|&id| self.embed.values[id as usize * 40..][..40].iter().map(|&v| f64::from(v)).collect())
            .collect();
        for (number, layer) in self.layers.iter().enumerate() {
            let rows: Vec<Vec<f64>> =
                streams.iter().map(|x| product(&layer.qkv, &norm(x, &layer.attention_gain))).collect();
            let rotated: Vec<Vec<f64>> = rows
                .iter()
                .enumerate()
                .map(|(position, row)| {
                    let mut row = row.clone();
                    for head in row[..60].chunks_exact_mut(10) {
                        for (k, frequency) in FREQUENCIES.iter().enumerate() {
                            let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
                            let (x, y) = (head[k], head[k + 5]);
                            head[k] = x * cosine - y * sine;
                            head[k + 5] = y * cosine + x * sine;
                        }
                    }
                    for value in &mut row[40..] {
                        *value = cached(*value);
                    }
                    row
                })
                .collect();
            for (position, stream) in streams.iter_mut().enumerate() {
                // The second layer has a window of 20 positions.
                let first = if number == 1 { (position + 1).saturating_sub(20) } else { 0 };
                let mut heads = vec![0.0; 40];
                for head in 0..4 {
                    let q = &rotated[position][head * 10..][..10];
                    let (key, value) = (40 + head / 2 * 10, 60 + head / 2 * 10);
                    let weights: Vec<f64> = rotated[first..=position]
                        .iter()
                        .map(|row| {
                            let dot: f64 = q.iter().zip(&row[key..key + 10]).map(|(a, b)| a * b).sum();
                            (dot / 10.0_f64.sqrt()).exp()
                        })
                        .collect();
                    let total: f64 = weights.iter().sum();
                    for (weight, row) in weights.iter().zip(&rotated[first..]) {
                        for channel in 0..10 {
                            heads[head * 10 + channel] += weight / total * row[value + channel];
                        }
                    }
                }
                for (s, v) in stream.iter_mut().zip(product(&layer.output, &heads)) {
                    *s += v;
                }
                let gate_up = product(&layer.gate_up, &norm(stream, &layer.mlp_gain));
                let inner: Vec<f64> = gate_up.chunks_exact(2).map(|pair| silu(pair[0]) * pair[1]).collect();
                for (s, v) in stream.iter_mut().zip(product(&layer.down, &inner)) {
                    *s += v;
                }
            }
        }
        streams.iter().map(|stream| product(&self.head, &norm(stream, &self.final_gain))).collect()
    }

    /// The greedy token after `ids`.
    pub fn greedy(&self, ids: &[u32], count: usize) -> Vec<u32> {
        let mut all = ids.to_vec();
        for _ in 0..count {
            let logits = self.logits(&all).pop().unwrap();
            let next = (0..50).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            all.push(next as u32);
        }
        all.split_off(ids.len())
    }

    /// `weights.safetensors`.
    pub fn write_weights(&self, path: &Path) {
        let mut all = tensors("embed", &self.embed);
        all.extend(tensors("head", &self.head));
        for (i, layer) in self.layers.iter().enumerate() {
            all.push(vector(&format!("layers.{i}.attention_gain"), &layer.attention_gain));
            all.extend(tensors(&format!("layers.{i}.qkv"), &layer.qkv));
            all.extend(tensors(&format!("layers.{i}.output"), &layer.output));
            all.push(vector(&format!("layers.{i}.mlp_gain"), &layer.mlp_gain));
            all.extend(tensors(&format!("layers.{i}.gate_up"), &layer.gate_up));
            all.extend(tensors(&format!("layers.{i}.down"), &layer.down));
        }
        all.push(vector("final_gain", &self.final_gain));
        write_weights(path, &all);
    }

    /// `golden.json` with logits that are off by `error` standard deviations.
    pub fn write_golden(&self, path: &Path, error: f64) {
        let sequences: Vec<serde_json::Value> =
            [(19, vec![19]), (9, vec![8, 1]), (1, vec![1]), (5, vec![2, 1, 2])]
                .into_iter()
                .map(|(count, chunks)| {
                    let ids: Vec<u32> = (0..count).map(|i| (i * 7 + 3) % 50).collect();
                    let mut logits = self.logits(&ids).pop().unwrap();
                    let mean = logits.iter().sum::<f64>() / 50.0;
                    let deviation = (logits.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 50.0).sqrt();
                    logits[13] += error * deviation;
                    json!({ "ids": ids, "chunks": chunks, "logits": logits, "deviation": deviation })
                })
                .collect();
        let int8 = [(0.5, 0.15), (0.9, 0.5), (1.0, 1.0)].map(
            |(share, bound)| json!({ "share": share, "bound": bound, "reason": "as the compiler has it" }),
        );
        let golden = json!({
            "model": "tiny",
            "tolerance": { "bound": 1e-3, "reason": "keys and values are cached in f16" },
            "int8_activations": int8,
            "sequences": sequences,
        });
        std::fs::write(path, golden.to_string()).unwrap();
    }
}

/// `tokenizer.json`: token n is the word `wN`, except some that test special cases.
pub fn write_tokenizer(path: &Path) {
    let mut vocabulary = serde_json::Map::new();
    for id in 0..50 {
        let word = match id {
            0 => "<unk>".to_owned(),
            1 => "<s>".to_owned(),
            2 => "</s>".to_owned(),
            _ => format!("w{id}"),
        };
        vocabulary.insert(word, json!(id));
    }
    let special = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(1, "<s>"), special(2, "</s>")],
        "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] } },
        },
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>" },
    });
    std::fs::write(path, tokenizer.to_string()).unwrap();
}

/// `tokenizer.json` with letters and signs, as many as JSON needs, and tool call tags; token 22 is the blank.
pub fn write_letters(path: &Path) {
    let mut vocabulary = serde_json::Map::new();
    let signs = "{}[]\":,-0123456789\u{120}abcdefghijklmnopqrstuvwxyz";
    let words =
        ["<unk>", "<s>", "</s>"].into_iter().map(str::to_owned).chain(signs.chars().map(String::from));
    let words = words.chain(["<tool_call>", "</tool_call>"].map(str::to_owned));
    for (id, word) in words.enumerate() {
        vocabulary.insert(word, json!(id));
    }
    assert_eq!(vocabulary.len(), 50);
    let added: Vec<_> =
        [(1, "<s>", true), (2, "</s>", true), (48, "<tool_call>", false), (49, "</tool_call>", false)]
            .map(|(id, content, special)| {
                json!({
                    "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": special,
                })
            })
            .to_vec();
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": [],
        },
    });
    std::fs::write(path, tokenizer.to_string()).unwrap();
}
