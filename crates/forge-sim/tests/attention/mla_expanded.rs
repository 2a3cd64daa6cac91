//! MLA attention over keys and values that are expanded from latents.

use crate::{Input, Kernels, compare};
use forge_kernels::Spec;
use forge_kernels::spec::{Kernel, MlaExpandedLayout, Operand};
use forge_oracle::mla::{EXPANDED_ROWS, ExpandedInputs, attend_expanded, expanded_samples};
use forge_oracle::{Random, values_of};
use forge_sim::Precision;

/// Expanded MLA, tile by tile: the expected attention of rows of one sequence over the keys and values of
/// their heads.
#[test]
fn expanded_mla_attention_matches_the_reference() {
    let mut random = Random(33);
    let samples = expanded_samples();
    let kernels = Kernels::of(samples.iter().flat_map(|op| {
        let tile = MlaExpandedLayout::tile_for(op.keys, op.rope_width, op.values).expect("a tile fits");
        [Operand::F32, Operand::Ranged].map(|operand| {
            Spec::MlaAttentionExpanded(Kernel { op: *op, layout: MlaExpandedLayout { operand, tile } })
        })
    }));
    for (index, op) in samples.iter().enumerate() {
        for [rows, first, tile] in EXPANDED_ROWS {
            let length = first + rows;
            let given = ExpandedInputs::random(&mut random, op, rows, first);
            let expected = attend_expanded(op, &given);
            let positions = given.positions();
            for which in [2 * index, 2 * index + 1] {
                let mut outputs: Vec<Vec<u8>> = Vec::new();
                for begin in (0..length).step_by(tile) {
                    let end = length.min(begin + tile);
                    let part = |x: &[f32]| x[x.len() / length * begin..x.len() / length * end].to_vec();
                    let bindings = |numbers: usize, before: usize| match outputs.get(before) {
                        Some(bytes) => Input::Bytes(bytes),
                        None => Input::Uninitialized(numbers * 4),
                    };
                    let bindings = [
                        ("q", Input::F32(&given.q)),
                        ("q_rope", Input::F32(&given.q_rope)),
                        ("keys", Input::F32(&part(&given.keys))),
                        ("k_rope", Input::F32(&part(&given.k_rope))),
                        ("values", Input::F32(&part(&given.values))),
                        ("positions", Input::U32(&positions)),
                        ("heads", bindings(expected.len(), 0)),
                        ("carried", bindings(rows * op.heads * 2, 1)),
                    ];
                    outputs =
                        kernels.run(which, &[("rows", rows), ("begin", begin), ("end", end)], &bindings);
                }
                let is_ranged = which % 2 == 1;
                let error = Precision::own().reduced_precision_error().filter(|_| is_ranged).unwrap_or(1e-5);
                compare(&(op, rows, first, tile), &outputs[0], values_of(&expected), error);
            }
        }
    }
}
