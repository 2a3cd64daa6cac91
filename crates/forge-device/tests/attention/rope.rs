//! RoPE without other operations.

use crate::support::{Argument, NAN, Random, compare, each_level, kernel, run_kernel, to_f32};
use crate::{long, of_size, rope_parameters, rotated, seventh, to_f64};
use forge_device::cpu::{self};
use forge_device::ops::{self, LongContext, Pairing, RopeParameters};

#[test]
fn rope_scales_for_long_contexts() {
    kernel_under_test!(SHAPE, ops::Rope, cpu::rope);
    let mut random = Random(12);
    let (rows, heads, width) = (3, 2, 16);
    let usual = rope_parameters(8, Pairing::Half, 1.25);
    let shape = ops::Rope { heads, width, rope: long(usual.clone(), 40) };
    let slow = RopeParameters { frequencies: seventh(&usual), ..usual.clone() };
    let growing = RopeParameters {
        long: Some(LongContext::DynamicNtk { original_context: 40, factor: 4.0 }),
        ..usual.clone()
    };
    // Twice the context: the longest wavelength times 4 * 2 - 3.
    let stretched = usual.frequencies.iter().enumerate().map(|(k, own)| own * 5_f32.powf(-(k as f32) / 7.0));
    let stretched = RopeParameters { frequencies: stretched.collect(), ..usual.clone() };
    for (context, rope, expected_rope) in [
        (40_u32, shape.rope.clone(), usual.clone()),
        (41, shape.rope.clone(), slow),
        (40, growing.clone(), usual),
        (80, growing, stretched),
    ] {
        let shape = ops::Rope { rope, ..shape };
        let x = random.floats(rows * heads * width);
        let positions = [0, 3, 39];
        let of_head =
            |(index, head): (usize, &[f32])| rotated(&to_f64(head), &expected_rope, positions[index / heads]);
        let wanted = of_size(x.chunks_exact(width).enumerate().flat_map(of_head), 3.0);
        let kernel = kernel("rope", vec!["x", "positions", "y"], run);
        let arguments = [
            Argument::F32(x),
            Argument::U32(positions.to_vec()),
            Argument::Output(NAN.repeat(rows * heads * width)),
        ];
        *SHAPE.write().unwrap() = Some(shape);
        each_level(|level, threads| {
            let y = run_kernel(kernel, &arguments, &[rows as u32, context], level, threads);
            compare(&format!("{level:?} {context}"), &to_f32(&y[0]), &wanted);
        });
    }
}

#[test]
fn rope_rotates_pairs() {
    kernel_under_test!(SHAPE, ops::Rope, cpu::rope);
    let mut random = Random(9);
    for (rows, heads, width, pairs, pairing, magnitude) in [
        (1, 3, 2, 1, Pairing::Half, 1.0),
        (4, 1, 20, 8, Pairing::Half, 1.25),
        (3, 4, 128, 64, Pairing::Half, 1.0),
        (5, 2, 22, 11, Pairing::Interleaved, 1.0),
    ] {
        let shape = ops::Rope { heads, width, rope: rope_parameters(pairs, pairing, magnitude) };
        let x = random.floats(rows * heads * width);
        let positions: Vec<u32> = (0..rows).map(|_| random.below(5000) as u32).collect();
        let wanted = of_size(
            x.chunks_exact(width)
                .enumerate()
                .flat_map(|(index, head)| rotated(&to_f64(head), &shape.rope, positions[index / heads])),
            3.0,
        );
        let kernel = kernel("rope", vec!["x", "positions", "y"], run);
        let arguments =
            [Argument::F32(x), Argument::U32(positions), Argument::Output(NAN.repeat(rows * heads * width))];
        *SHAPE.write().unwrap() = Some(shape.clone());
        each_level(|level, threads| {
            let y = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
            compare(&format!("{level:?} {shape:?}"), &to_f32(&y[0]), &wanted);
        });
    }
}
