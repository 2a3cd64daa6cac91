//! Expert kernels with quantized activations: results, and bitwise identity for any batch size and weight
//! layout.

use super::layer::{Layer, Run};
use super::sum;
use super::support::{
    Argument, Random, as_encoded, baseline_int8, bytes_of, compare, each_int8_level, each_level, kernel,
    kernel_repacked, output, run_kernel_as, to_f32,
};
use forge_device::cpu::{self};
use forge_device::device::Schedule;
use forge_device::ops::{Epilogue, ExpertsSum, Format, Scales, Squares};
use forge_oracle::matrix::affine;

const ENCODED: [Format; 5] =
    [Format::Q8_0, Format::Q4_0, Format::Q6K, affine(4, 64, Scales::Bf16), Format::Mxfp4];

/// Rows, experts, experts per token, width, intermediate size: with and without whole strips.
const SHAPES: [(usize, [usize; 4]); 6] = [
    (1, [7, 3, 48, 24]),
    (1, [4, 4, 96, 72]),
    (9, [6, 2, 64, 1056]),
    (70, [3, 2, 48, 40]),
    (2, [5, 1, 45, 33]),
    (40, [5, 2, 70, 22]),
];

/// The dequantized values of activations, `width` per row.
fn rounded(numbers: &[f32], width: usize) -> Vec<f32> {
    numbers.chunks(width).flat_map(as_encoded).map(|number| number as f32).collect()
}

#[test]
fn expert_inputs_are_quantized() {
    let Some(baseline) = baseline_int8() else { return };
    let mut random = Random(21);
    for (rows, sizes) in SHAPES {
        for format in ENCODED {
            let layer = Layer::new(&mut random, format, rows, sizes).biased(&mut random);
            let given = random.floats(rows * layer.chosen * layer.inner);
            let wanted = layer.wanted_sum(&rounded(&given, layer.inner));
            let of_codes = Layer { x: rounded(&layer.x, layer.width), ..layer.clone() }.wanted_inner();
            let (given, before) = (bytes_of(&given), vec![0.0; rows * layer.width]);
            let sum = (&given[..], &before[..], Epilogue::Store);
            let of_baseline = Run { level: baseline, threads: 1, exact: false, is_repacked: false };
            let expected = layer.sum_by_row(sum, of_baseline);
            each_int8_level(|level, threads| {
                let what = format!("{level:?} {rows} rows {format:?} {sizes:?}");
                let run = Run { level, threads, ..of_baseline };
                compare(&what, &to_f32(&layer.inner_by_row(run)), &of_codes);
                let found = layer.sum_by_row(sum, run);
                compare(&what, &to_f32(&found), &wanted);
                assert!(found == expected, "{what}: other bits");
                let exact = layer.sum_by_row(sum, Run { exact: true, ..run });
                assert!(found != exact, "{what}: nothing was encoded");
            });
        }
    }
}

#[test]
fn experts_are_bitwise_identical_in_any_batch_and_layout() {
    let mut random = Random(22);
    for (rows, sizes) in SHAPES {
        for format in ENCODED {
            let layer = Layer::new(&mut random, format, rows, sizes);
            let given = bytes_of(&random.floats(rows * layer.chosen * layer.inner));
            let before = random.floats(rows * layer.width);
            each_level(|level, threads| {
                let rowwise = Run { level, threads, exact: false, is_repacked: false };
                let (inner, sum) = (layer.inner_by_row(rowwise), (&given[..], &before[..], Epilogue::Add));
                let summed = layer.sum_by_row(sum, rowwise);
                let strips = sizes[2] % 16 == 0 && sizes[3] % 8 == 0;
                for is_repacked in if strips { vec![false, true] } else { vec![false] } {
                    let what = format!("{level:?} {rows} rows {format:?} {sizes:?}, strips {is_repacked}");
                    let run = Run { is_repacked, ..rowwise };
                    assert!(layer.inner_by_row(run) == inner, "{what}");
                    assert!(layer.inner_of_tiles(16, run) == inner, "{what}");
                    assert!(layer.sum_by_row(sum, run) == summed, "{what}");
                    assert!(layer.sum_of_tiles(16, sum, run) == summed, "{what}");
                }
            });
        }
    }
}

/// Partitions of outputs that are not whole strips, and more partitions than outputs.
#[test]
fn partial_squares_do_not_depend_on_the_weight_layout() {
    kernel_under_test!(SUM, ExpertsSum, sum);
    let run_sum = run as fn(&cpu::KernelArgs<'_>);
    let mut random = Random(23);
    for partials in [3, 5, 100] {
        for format in ENCODED {
            let layer = Layer::new(&mut random, format, 1, [7, 3, 144, 70]);
            let given = random.floats(layer.chosen * layer.inner);
            let before = random.floats(layer.width);
            let ending = Epilogue::AddSquares(Squares { partials, gain: false });
            *SUM.write().unwrap() = Some(layer.sum_op(ending));
            let left = |is_repacked, level, threads| {
                let mut arguments = layer.arguments(1, is_repacked);
                arguments.extend([
                    ("x", Argument::F32(given.clone())),
                    ("y", Argument::Output(bytes_of(&before))),
                    ("squares_out", output(partials)),
                ]);
                let (buffers, arguments): (Vec<_>, Vec<_>) = arguments.into_iter().unzip();
                let kernel = match is_repacked {
                    true => kernel_repacked("experts_sum", buffers, layer.repacked(1), run_sum),
                    false => kernel("experts_sum", buffers, run_sum),
                };
                run_kernel_as(kernel, &arguments, &[1], Schedule::Decode, level, threads, false)
            };
            each_level(|level, threads| {
                let same = left(true, level, threads) == left(false, level, threads);
                assert!(same, "{level:?} {format:?}, {partials} partials");
            });
        }
    }
}
