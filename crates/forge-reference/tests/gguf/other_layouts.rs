//! Layouts of tensors that older or other converters write: the same values in other tensors give the same logits.

use crate::file::File;
use crate::{distance, open};
use forge_frontend::MemoryCheckpoint;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A tensor: name, dimensions with columns first, type and bytes.
type Tensor = (String, Vec<u64>, u32, Vec<u8>);

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/gguf/{name}.gguf"))
}

fn memory(file: &File) -> MemoryCheckpoint {
    MemoryCheckpoint(BTreeMap::from([("model.gguf".to_owned(), file.write())]))
}

/// Checks that a changed file has the logits of the original.
fn assert_equal(name: &str, change: impl Fn(&mut File)) {
    let path = path(name);
    let mut file = File::parse(&std::fs::read(&path).unwrap());
    change(&mut file);
    let distance = distance(&memory(&file), &path);
    assert!(distance < 2e-4, "{name}: {distance}");
}

fn take(file: &mut File, name: &str) -> Tensor {
    let at = file.tensors.iter().position(|tensor| tensor.0 == name).unwrap_or_else(|| panic!("{name}"));
    file.tensors.remove(at)
}

/// The rows of a matrix or of a stack, without padding behind the last.
fn rows(tensor: &Tensor) -> Vec<&[u8]> {
    let count = tensor.1[1..].iter().product::<u64>() as usize;
    // All sizes here are multiples of the alignment.
    assert!(tensor.3.len().is_multiple_of(count), "{}", tensor.0);
    tensor.3.chunks(tensor.3.len() / count).collect()
}

fn number(file: &mut File, key: &str, value: u32) {
    file.set(key, 4, &value.to_le_bytes());
}

#[test]
fn queries_keys_and_values_in_one_tensor() {
    for name in ["llama-q4_0", "qwen2-bf16", "glm4_moe-q5_1"] {
        assert_equal(name, |file| {
            for (layer, kind) in [(0, "weight"), (0, "bias"), (1, "weight"), (1, "bias")] {
                let has = |tensor: &Tensor| tensor.0 == format!("blk.{layer}.attn_q.{kind}");
                if !file.tensors.iter().any(has) {
                    continue;
                }
                let parts =
                    ["q", "k", "v"].map(|part| take(file, &format!("blk.{layer}.attn_{part}.{kind}")));
                let mut shape = parts[0].1.clone();
                *shape.last_mut().unwrap() = parts.iter().map(|part| part.1.last().unwrap()).sum();
                let bytes = parts.iter().flat_map(|part| part.3.clone()).collect();
                file.tensors.push((format!("blk.{layer}.attn_qkv.{kind}"), shape, parts[0].2, bytes));
            }
        });
    }
}

#[test]
fn keys_and_values_of_mla_in_one_tensor() {
    for name in ["deepseek_v2-f16", "deepseek_v3-f16"] {
        assert_equal(name, |file| {
            for layer in 0..2 {
                let keys = take(file, &format!("blk.{layer}.attn_k_b.weight"));
                let values = take(file, &format!("blk.{layer}.attn_v_b.weight"));
                let [plain, rank, heads] = keys.1[..] else { panic!("{:?}", keys.1) };
                let width = values.1[1];
                let half = |tensor: &Tensor, at: u64| tensor.3[2 * at as usize..][..2].to_vec();
                let mut bytes = Vec::new();
                for head in 0..heads {
                    for row in 0..plain {
                        let at = |column| (head * rank + column) * plain + row;
                        (0..rank).for_each(|column| bytes.extend(half(&keys, at(column))));
                    }
                    let first = head * width * rank;
                    (first..first + width * rank).for_each(|at| bytes.extend(half(&values, at)));
                }
                let name = format!("blk.{layer}.attn_kv_b.weight");
                file.tensors.push((name, vec![rank, heads * (plain + width)], keys.2, bytes));
            }
            // 16 channels without RoPE and 16 with it.
            number(file, "deepseek2.attention.key_length", 32);
            number(file, "deepseek2.attention.value_length", 16);
            number(file, "deepseek2.attention.head_count_kv", 2);
            file.remove("deepseek2.attention.key_length_mla");
            file.remove("deepseek2.attention.value_length_mla");
        });
    }
}

#[test]
fn projections_of_delta_net_by_key_head() {
    assert_equal("qwen3_next-q4_1", |file| {
        let stacked = take(file, "blk.0.attn_qkv.weight");
        let gate = take(file, "blk.0.attn_gate.weight");
        let (stacked_rows, gate_rows) = (rows(&stacked), rows(&gate));
        let (keys, width, each) = (2, 16, 2);
        let mut bytes = Vec::new();
        for head in 0..keys {
            let of_head = |first: usize, count: usize| first + head * count..first + (head + 1) * count;
            let query = &stacked_rows[of_head(0, width)];
            let key = &stacked_rows[of_head(keys * width, width)];
            let value = &stacked_rows[of_head(2 * keys * width, each * width)];
            let gate = &gate_rows[of_head(0, each * width)];
            bytes.extend([query, key, value, gate].concat().concat());
        }
        let shape = vec![stacked.1[0], stacked.1[1] + gate.1[1]];
        file.tensors.push(("blk.0.ssm_in.weight".to_owned(), shape, stacked.2, bytes));
    });
}

#[test]
fn gate_and_up_of_experts_in_one_tensor() {
    assert_equal("qwen3_moe-q4_0", |file| {
        for layer in 0..2 {
            let gate = take(file, &format!("blk.{layer}.ffn_gate_exps.weight"));
            let up = take(file, &format!("blk.{layer}.ffn_up_exps.weight"));
            let [columns, inner, experts] = gate.1[..] else { panic!("{:?}", gate.1) };
            let (gate_rows, up_rows) = (rows(&gate), rows(&up));
            let each = gate_rows.chunks(inner as usize).zip(up_rows.chunks(inner as usize));
            let bytes = each.flat_map(|(gate, up)| [gate.concat(), up.concat()].concat()).collect();
            let name = format!("blk.{layer}.ffn_gate_up_exps.weight");
            file.tensors.push((name, vec![columns, 2 * inner, experts], gate.2, bytes));
        }
    });
}

#[test]
fn gate_and_up_of_experts_in_two_tensors() {
    assert_equal("gemma4_moe-q5_0", |file| {
        for layer in 0..2 {
            let both = take(file, &format!("blk.{layer}.ffn_gate_up_exps.weight"));
            let [columns, twice, experts] = both.1[..] else { panic!("{:?}", both.1) };
            let matrices: Vec<Vec<u8>> =
                rows(&both).chunks(twice as usize / 2).map(|rows| rows.concat()).collect();
            for (first, name) in ["gate", "up"].into_iter().enumerate() {
                let bytes = matrices.iter().skip(first).step_by(2).flatten().copied().collect();
                let name = format!("blk.{layer}.ffn_{name}_exps.weight");
                file.tensors.push((name, vec![columns, twice / 2, experts], both.2, bytes));
            }
        }
    });
}

#[test]
fn experts_in_tensors_of_their_own() {
    let apart = |file: &mut File| {
        for (layer, name) in
            [0, 1].into_iter().flat_map(|layer| ["gate", "up", "down"].map(|name| (layer, name)))
        {
            let stack = take(file, &format!("blk.{layer}.ffn_{name}_exps.weight"));
            let [columns, of_expert, _] = stack.1[..] else { panic!("{:?}", stack.1) };
            for (expert, rows) in rows(&stack).chunks(of_expert as usize).enumerate() {
                let name = format!("blk.{layer}.ffn_{name}.{expert}.weight");
                file.tensors.push((name, vec![columns, of_expert], stack.2, rows.concat()));
            }
        }
    };
    assert_equal("mixtral-q4_0", apart);
    let mut file = File::parse(&std::fs::read(path("mixtral-q4_0")).unwrap());
    apart(&mut file);
    // Another type with the same values, for one expert.
    let other = file.tensor("blk.0.ffn_up.2.weight");
    (other.2, other.3) = (20, vec![0; 32 * 18]);
    let faults = open(&memory(&file)).unwrap_err();
    assert!(faults[0].message.contains("experts.2.w3"), "{faults:#?}");
}

#[test]
fn the_gate_of_the_shared_expert_as_a_vector() {
    assert_equal("qwen2_moe-q5_0", |file| {
        for layer in 0..2 {
            file.tensor(&format!("blk.{layer}.ffn_gate_inp_shexp.weight")).1.truncate(1);
        }
    });
}

#[test]
fn layers_for_multi_token_prediction_are_left_out() {
    let predict = |file: &mut File| {
        number(file, "glm4moe.block_count", 3);
        number(file, "glm4moe.nextn_predict_layers", 1);
        for name in ["blk.2.nextn.eh_proj.weight", "blk.2.attn_norm.weight"] {
            file.tensors.push((name.to_owned(), vec![8], 0, vec![0; 32]));
        }
    };
    assert_equal("glm4_moe-q5_1", predict);
    let mut file = File::parse(&std::fs::read(path("glm4_moe-q5_1")).unwrap());
    predict(&mut file);
    let ignored = open(&memory(&file)).unwrap().ignored;
    assert_eq!(ignored, ["blk.2.nextn.eh_proj.weight", "blk.2.attn_norm.weight"]);
    // Without the key they are layers of the model.
    file.remove("glm4moe.nextn_predict_layers");
    assert!(open(&memory(&file)).is_err());
}
