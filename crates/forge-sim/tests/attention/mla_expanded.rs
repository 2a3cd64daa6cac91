//! MLA attention over keys and values that are expanded from latents.

use crate::{Input, Kernels, Random, compare, to_f32, to_f64};
use forge_kernels::Spec;
use forge_kernels::spec::{Kernel, MlaExpandedLayout, Operand};
use forge_ops::{Format, MlaAttentionExpanded};
use forge_sim::Precision;

const SCALE: f32 = 0.4;

/// Expanded MLA, tile by tile: the expected attention of rows of one sequence over the keys and values of
/// their heads.
#[test]
fn expanded_mla_attention_matches_the_reference() {
    let mut random = Random(33);
    let shapes = [[4, 16, 8, 16], [3, 9, 10, 5], [2, 40, 4, 100], [1, 7, 6, 33]];
    let attend = |[heads, keys, rope_width, values]: [usize; 4], operand| {
        let tile = MlaExpandedLayout::tile_for(keys, rope_width, values).expect("a tile fits");
        let (queries_pitch, scale) = (heads * keys + heads, SCALE);
        Spec::MlaAttentionExpanded(Kernel {
            op: MlaAttentionExpanded { heads, keys, rope_width, values, queries_pitch, scale },
            layout: MlaExpandedLayout { operand, tile },
        })
    };
    let kernels = Kernels::of(
        shapes
            .iter()
            .flat_map(|shape| [Operand::F32, Operand::Ranged].map(|operand| attend(*shape, operand))),
    );
    for (index, [heads, keys, rope_width, values]) in shapes.into_iter().enumerate() {
        for (rows, first, tile) in [(19, 0, 64), (21, 120, 64), (17, 90, 33), (33, 0, 12)] {
            let length = first + rows;
            let q = random.floats(rows * (heads * keys + heads));
            let r = random.floats(rows * heads * rope_width);
            let [k, t, v] =
                [heads * keys, rope_width, heads * values].map(|width| random.floats(length * width));
            let mut expected = Vec::new();
            for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                let query = to_f64(&q[row * (heads * keys + heads) + head * keys..][..keys]);
                let head_rope = to_f64(&r[(row * heads + head) * rope_width..][..rope_width]);
                let score = |position: usize| {
                    let key = &k[(position * heads + head) * keys..][..keys];
                    let products =
                        query.iter().zip(key).chain(head_rope.iter().zip(&t[position * rope_width..]));
                    f64::from(SCALE) * products.map(|(q, k)| q * f64::from(*k)).sum::<f64>()
                };
                let scores: Vec<f64> = (0..=first + row).map(score).collect();
                let largest = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                expected.extend((0..values).map(|channel| {
                    let of = |position: usize| f64::from(v[(position * heads + head) * values + channel]);
                    weights.iter().enumerate().map(|(position, weight)| weight * of(position)).sum::<f64>()
                        / total
                }));
            }
            let positions: Vec<u32> = (first as u32..length as u32).collect();
            for which in [2 * index, 2 * index + 1] {
                let mut outputs: Vec<Vec<u8>> = Vec::new();
                for begin in (0..length).step_by(tile) {
                    let end = length.min(begin + tile);
                    let bindings = |numbers: usize, before: usize| match outputs.get(before) {
                        Some(bytes) => Input::Bytes(bytes),
                        None => Input::Uninitialized(numbers * 4),
                    };
                    let bindings = [
                        ("q", Input::F32(&q)),
                        ("q_rope", Input::F32(&r)),
                        ("keys", Input::F32(&k[begin * heads * keys..end * heads * keys])),
                        ("k_rope", Input::F32(&t[begin * rope_width..end * rope_width])),
                        ("values", Input::F32(&v[begin * heads * values..end * heads * values])),
                        ("positions", Input::U32(&positions)),
                        ("heads", bindings(rows * heads * values, 0)),
                        ("carried", bindings(rows * heads * 2, 1)),
                    ];
                    outputs =
                        kernels.run(which, &[("rows", rows), ("begin", begin), ("end", end)], &bindings);
                }
                let what = (shapes[index], rows, first, tile);
                let is_ranged = which % 2 == 1;
                let loss = Precision::own().reduced_precision_error().filter(|_| is_ranged).unwrap_or(1e-5);
                compare(&what, &to_f32(&outputs[0], Format::F32), &expected, loss);
            }
        }
    }
}
