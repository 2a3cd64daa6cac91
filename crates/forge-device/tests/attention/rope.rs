//! RoPE without other operations.

use crate::support::{Argument, Call, Random, absolute, compare, each_level, output, to_f32};
use crate::{layers, support::to_f64};
use forge_device::cpu::{self};
use forge_device::ops::{self, Pairing, RopeParameters};
use forge_oracle::attention::rope;
use forge_oracle::rope::{dynamic_ntk, long_rope, rope_parameters, rotated};

/// The frequencies for a context length, written out.
#[test]
fn rope_scales_for_long_contexts() {
    kernel_under_test!(SHAPE, ops::Rope, cpu::rope);
    let mut random = Random(12);
    let (rows, heads, width) = (3, 2, 16);
    let usual = rope_parameters(8, Pairing::Half, 1.25);
    let long = long_rope(usual.clone(), 40);
    let slow = usual.frequencies.iter().map(|frequency| frequency / 7.0);
    let slow = RopeParameters { frequencies: slow.collect(), ..usual.clone() };
    let growing = dynamic_ntk(usual.clone(), 40, 4.0);
    // Twice the context: the longest wavelength times 4 * 2 - 3.
    let stretched = usual.frequencies.iter().enumerate().map(|(k, own)| own * 5_f32.powf(-(k as f32) / 7.0));
    let stretched = RopeParameters { frequencies: stretched.collect(), ..usual.clone() };
    for (context, rope, expected_rope) in [
        (40, long.clone(), usual.clone()),
        (41, long, slow),
        (40, growing.clone(), usual),
        (80, growing, stretched),
    ] {
        let x = random.floats(rows * heads * width);
        let positions = [0, 3, 39];
        let of_head = |(index, head): (usize, &[f32])| {
            rotated(&to_f64(head), &expected_rope, context, positions[index / heads])
        };
        let wanted = absolute(x.chunks_exact(width).enumerate().flat_map(of_head), 3.0);
        let arguments = [
            ("x", Argument::F32(x)),
            ("positions", Argument::U32(positions.to_vec())),
            ("y", output(wanted.len())),
        ];
        let call = Call::new("rope", run, arguments);
        *SHAPE.write().unwrap() = Some(ops::Rope { heads, width, rope });
        each_level(|level, threads| {
            let y = call.run(&[rows, context], level, threads);
            compare(&format!("{level:?} {context}"), &to_f32(&y[0]), &wanted);
        });
    }
}

#[test]
fn rope_rotates_pairs() {
    kernel_under_test!(SHAPE, ops::Rope, cpu::rope);
    let mut random = Random(9);
    let all = layers().filter(|layer| !layer.rope.is_none()).map(|layer| (layer.rope(), layer.context));
    for (rows, (op, context)) in [1, 4, 3, 5].into_iter().cycle().zip(all) {
        let x = random.floats(rows * op.heads * op.width);
        let positions: Vec<u32> = (0..rows).map(|_| random.below(5000) as u32).collect();
        let wanted = absolute(rope(&op, context, &x, &positions), 3.0);
        let arguments =
            [("x", Argument::F32(x)), ("positions", Argument::U32(positions)), ("y", output(wanted.len()))];
        let call = Call::new("rope", run, arguments);
        *SHAPE.write().unwrap() = Some(op.clone());
        each_level(|level, threads| {
            let y = call.run(&[rows, context], level, threads);
            compare(&format!("{level:?} {op:?}"), &to_f32(&y[0]), &wanted);
        });
    }
}
