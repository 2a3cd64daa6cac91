//! Projections in int8: results, and bitwise identity on every ISA level.

use crate::support::{
    Argument, Expected, Matrix, NAN, Random, as_encoded, baseline_int8, bytes_of, compare, each_int8_level,
    each_level, kernel, kernel_repacked, plane_arguments, plane_buffers, repacked, run_kernel_as, to_f32,
};
use crate::{FORMATS, linear};
use forge_device::cpu;
use forge_device::cpu::simd::isa::Isa;
use forge_device::device::Schedule::{self, Batch, Decode};
use forge_device::ops::{self, Activation, Epilogue, Format, Gating, Squares};
use forge_oracle::matmul::plain;
use forge_oracle::relative;
use std::sync::{Mutex, PoisonError};

/// Held by the test that uses the shared static shape.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
kernel_under_test!(SHAPE, ops::Linear, linear);

/// Formats for which activations are quantized, and whose matrices can be repacked.
fn integer_formats() -> impl Iterator<Item = Format> {
    FORMATS.into_iter().filter(|format| format.has_integers())
}

/// A matmul and its weights.
struct Case {
    format: Format,
    outputs: usize,
    inputs: usize,
    weight: Matrix,
    /// Whether the results are router logits.
    chooses: bool,
}

impl Case {
    fn new(random: &mut Random, format: Format, outputs: usize, inputs: usize) -> Case {
        let weight = Matrix::random(random, format, outputs, inputs, 1.0);
        Case { format, outputs, inputs, weight, chooses: false }
    }

    fn products(&self, program: Schedule, x: &[f32], level: Isa, threads: usize, exact: bool) -> Vec<f32> {
        self.repacked(false, program, x, level, threads, exact)
    }

    /// The results with a repacked or a row-major matrix.
    fn repacked(
        &self,
        is_repacked: bool,
        program: Schedule,
        x: &[f32],
        level: Isa,
        threads: usize,
        exact: bool,
    ) -> Vec<f32> {
        let Case { format, outputs, inputs, .. } = *self;
        let shape = ops::Linear { chooses: self.chooses, ..plain(format, outputs, inputs, Epilogue::Store) };
        let _only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        *SHAPE.write().unwrap() = Some(shape);
        let buffers = [plane_buffers(&self.weight, "weight"), vec!["x", "y"]].concat();
        let rows = x.len() / inputs;
        let (kernel, mut arguments) = match is_repacked {
            false => (kernel("linear", buffers, run), plane_arguments(&self.weight)),
            true => {
                let planes = self.weight.planes.iter().cloned().map(Argument::Weights);
                (kernel_repacked("linear", buffers, repacked(&self.weight), run), planes.collect())
            }
        };
        arguments.push(Argument::F32(x.to_vec()));
        arguments.push(Argument::Output(NAN.repeat(rows * outputs)));
        to_f32(&run_kernel_as(kernel, &arguments, &[rows as u32], program, level, threads, exact)[0])
    }

    /// All dot products of rows with these values instead of x, and the magnitude of the terms.
    fn wanted(&self, numbers: &[f64]) -> Vec<Expected> {
        let x = relative(numbers.iter().copied(), 0.0);
        let rows = x.chunks(self.inputs);
        rows.flat_map(|x| (0..self.outputs).map(|output| self.weight.row_product(output, x))).collect()
    }
}

#[test]
fn quantized_batches_are_bitwise_identical_on_all_instruction_sets() {
    let Some(baseline) = baseline_int8() else { return };
    let mut random = Random(11);
    let shapes = [
        (1, 9, 3),
        (1, 40, 2050),
        (2, 8, 3),
        (3, 50, 56),
        (4, 33, 70),
        (5, 26, 40),
        (258, 30, 96),
        (6, 70, 1056),
        (2, 40, 4128),
    ];
    for (rows, outputs, inputs) in shapes {
        for format in FORMATS {
            let case = Case::new(&mut random, format, outputs, inputs);
            let x = random.floats(rows * inputs);
            let numbers: Vec<f64> = match format.has_integers() {
                true => x.chunks(inputs).flat_map(as_encoded).collect(),
                false => x.iter().copied().map(f64::from).collect(),
            };
            let wanted = case.wanted(&numbers);
            let of_baseline = case.products(Batch, &x, baseline, 1, false);
            each_int8_level(|level, threads| {
                let what = format!("{level:?} {rows} rows {format:?} {outputs}x{inputs}");
                let found = case.products(Batch, &x, level, threads, false);
                compare(&what, &found, &wanted);
                assert!(
                    !format.has_integers() || bytes_of(&found) == bytes_of(&of_baseline),
                    "{what}: other bits"
                );
                let is_exact = bytes_of(&found) == bytes_of(&case.products(Batch, &x, level, threads, true));
                assert_eq!(is_exact, !format.has_integers(), "{what}");
            });
        }
    }
}

/// The int8 accumulators of every ISA level hold the largest sums, of either sign.
#[test]
fn integer_sums_do_not_overflow() {
    let Some(baseline) = baseline_int8() else { return };
    let mut random = Random(16);
    for format in integer_formats() {
        for byte in if format == Format::Q8_0 { [0x7f, 0x81] } else { [0xff, 0] } {
            let mut case = Case::new(&mut random, format, 48, 256);
            case.weight.planes[0].fill(byte);
            for (rows, largest) in [(1, 1.0), (3, -1.0), (9, 1.0), (9, -1.0)] {
                let x = vec![largest; rows * 256];
                let of_baseline = case.products(Batch, &x, baseline, 1, false);
                each_int8_level(|level, threads| {
                    for is_repacked in [false, true] {
                        let found = case.repacked(is_repacked, Batch, &x, level, threads, false);
                        let what = format!("{level:?} {format:?} {byte:#x}, {rows} rows of {largest}");
                        assert!(bytes_of(&found) == bytes_of(&of_baseline), "{what}, strips {is_repacked}");
                    }
                });
            }
        }
    }
}

/// Also if the device is given a matrix to repack, which f32 kernels cannot read.
#[test]
fn activations_stay_f32_without_int8_products() {
    let mut random = Random(17);
    for (program, rows) in [(Decode, 1), (Batch, 4), (Batch, 70)] {
        for format in integer_formats() {
            let case = Case::new(&mut random, format, 48, 96);
            let x = random.floats(rows * 96);
            each_level(|level, threads| {
                let exact = bytes_of(&case.products(program, &x, level, threads, true));
                for is_repacked in [false, true] {
                    let found = bytes_of(&case.repacked(is_repacked, program, &x, level, threads, false));
                    let what = format!("{level:?} {program:?} {rows} rows {format:?}, strips {is_repacked}");
                    assert_eq!(found == exact, !level.has_int8(), "{what}");
                }
            });
        }
    }
}

#[test]
fn router_inputs_are_never_quantized() {
    let mut random = Random(15);
    for (program, rows) in [(Decode, 1), (Batch, 1), (Batch, 4), (Batch, 9)] {
        for format in [Format::Q8_0, Format::Q4_0] {
            let case = Case { chooses: true, ..Case::new(&mut random, format, 60, 96) };
            let x = random.floats(rows * 96);
            each_level(|level, threads| {
                let [found, exact] =
                    [false, true].map(|exact| bytes_of(&case.products(program, &x, level, threads, exact)));
                assert!(found == exact, "{level:?} {program:?} {rows} rows {format:?}");
            });
        }
    }
}

/// For small and large batches, and for partitions of strips among threads: the result depends neither on the
/// layout of a matrix nor on the time of its repacking.
#[test]
fn repacked_and_row_major_results_are_bitwise_identical() {
    let Some(baseline) = baseline_int8() else { return };
    let mut random = Random(14);
    let shapes = [
        (1, 16, 32),
        (1, 144, 70),
        (2, 48, 33),
        (3, 80, 2050),
        (4, 16, 64),
        (5, 112, 96),
        (6, 16, 96),
        (7, 80, 70),
        (8, 144, 1056),
        (9, 48, 64),
        (17, 32, 96),
        (32, 16, 64),
        (33, 16, 64),
        (70, 272, 1056),
    ];
    for (rows, outputs, inputs) in shapes {
        for format in integer_formats() {
            let case = Case::new(&mut random, format, outputs, inputs);
            let x = random.floats(rows * inputs);
            let wanted = bytes_of(&case.products(Batch, &x, baseline, 1, false));
            each_int8_level(|level, threads| {
                let programs: &[Schedule] = if rows == 1 { &[Decode, Batch] } else { &[Batch] };
                for (&program, is_repacked) in programs.iter().flat_map(|it| [(it, false), (it, true)]) {
                    let found = case.repacked(is_repacked, program, &x, level, threads, false);
                    let what = format!("{level:?} {rows} rows {format:?} {outputs}x{inputs} {program:?}");
                    assert!(bytes_of(&found) == wanted, "{what}, strips {is_repacked}: other bits");
                }
                // Without activation quantization, the layout has no effect.
                let exact = [true, false].map(|is_repacked| {
                    bytes_of(&case.repacked(is_repacked, Batch, &x, level, threads, true))
                });
                assert!(exact[0] == exact[1], "{level:?} {rows} rows {format:?} {outputs}x{inputs}, exact");
            });
        }
    }
}

/// Partitions of outputs that are not whole strips, larger than one work item, and more partitions than
/// outputs.
#[test]
fn repacked_epilogues_are_bitwise_identical() {
    let Some(baseline) = baseline_int8() else { return };
    let mut random = Random(15);
    let squares = |partials| Epilogue::AddSquares(Squares { partials, gain: true });
    let best = |candidates| Epilogue::Best { candidates };
    for (outputs, inputs, epilogue) in [
        (48, 70, squares(6)),
        (64, 33, squares(100)),
        (336, 96, squares(28)),
        (400, 32, squares(3)),
        (592, 64, best(9)),
        (32, 128, best(40)),
        (1040, 32, best(3)),
        (96, 64, Epilogue::Gate(Gating::Plain(Activation::Silu))),
    ] {
        for format in integer_formats() {
            let case = Case::new(&mut random, format, outputs, inputs);
            let (x, before, gain) = (random.floats(inputs), random.floats(outputs), random.floats(outputs));
            let shape = plain(format, outputs, inputs, epilogue);
            let _only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
            *SHAPE.write().unwrap() = Some(shape);
            let left = |is_repacked: bool, level, threads| {
                let mut buffers = [plane_buffers(&case.weight, "weight"), vec!["x", "y"]].concat();
                let planes = case.weight.planes.iter().cloned();
                let mut arguments: Vec<Argument> =
                    planes.map(if is_repacked { Argument::Weights } else { Argument::Bytes }).collect();
                arguments.extend([Argument::F32(x.clone()), Argument::Output(bytes_of(&before))]);
                match epilogue {
                    Epilogue::AddSquares(Squares { partials, .. }) => {
                        buffers.extend(["gain", "gained", "squares_out"]);
                        arguments.push(Argument::F32(gain.clone()));
                        arguments.push(Argument::Output(NAN.repeat(outputs)));
                        arguments.push(Argument::Output(NAN.repeat(partials)));
                    }
                    Epilogue::Best { candidates } => {
                        buffers.push("candidates");
                        arguments.push(Argument::Output(NAN.repeat(2 * candidates)));
                    }
                    _ => {}
                }
                let kernel = match is_repacked {
                    true => kernel_repacked("linear", buffers, repacked(&case.weight), run),
                    false => kernel("linear", buffers, run),
                };
                run_kernel_as(kernel, &arguments, &[1], Decode, level, threads, false)
            };
            let of_baseline = left(false, baseline, 1);
            each_int8_level(|level, threads| {
                let what = format!("{level:?} {format:?} {outputs}x{inputs} {epilogue:?}");
                let by_rows = left(false, level, threads);
                for other in [1, 2, 5] {
                    assert!(by_rows == left(true, level, other), "{what}: {threads} and {other} threads");
                }
                // Dot products are the same on every ISA. Activation functions, and so squares, are not.
                match epilogue {
                    Epilogue::Best { .. } => assert!(by_rows == of_baseline, "{what}: candidates"),
                    Epilogue::AddSquares(_) => {
                        assert!(by_rows[..2] == of_baseline[..2], "{what}: results");
                        for (found, wanted) in to_f32(&by_rows[2]).iter().zip(to_f32(&of_baseline[2])) {
                            assert!((found - wanted).abs() <= 1e-5 * wanted, "{what}: {found} for {wanted}");
                        }
                    }
                    _ => {}
                }
            });
        }
    }
}

#[test]
fn decode_quantizes_activations_for_int8_gemv() {
    let mut random = Random(12);
    for (outputs, inputs) in [(40_usize, 100_usize), (3, 64), (70, 1056), (33, 96), (41, 2050)] {
        for format in FORMATS {
            let is_encoded = format.has_integers();
            let case = Case::new(&mut random, format, outputs, inputs);
            let x = random.floats(inputs);
            let numbers =
                if is_encoded { as_encoded(&x) } else { x.iter().copied().map(f64::from).collect() };
            let wanted = case.wanted(&numbers);
            each_int8_level(|level, threads| {
                let what = format!("{level:?} {format:?} {outputs}x{inputs}");
                let [found, exact] =
                    [false, true].map(|exact| case.products(Decode, &x, level, threads, exact));
                compare(&what, &found, &wanted);
                assert_eq!(bytes_of(&found) != bytes_of(&exact), is_encoded, "{what}");
            });
        }
    }
}

/// Largest values, smallest values and NaN do not affect other rows.
#[test]
fn nan_propagates_and_denormals_are_zero() {
    let mut random = Random(13);
    let odd_numbers =
        [(f32::NAN, false), (f32::INFINITY, false), (f32::NEG_INFINITY, false), (1e-40, true), (0.0, true)];
    for (format, inputs) in integer_formats().flat_map(|format| [(format, 70), (format, 128)]) {
        let case = Case::new(&mut random, format, 40, inputs);
        let plain = random.floats(2 * inputs);
        for (odd, is_number) in odd_numbers {
            let mut x = plain.clone();
            x.extend(vec![if is_number { odd } else { 0.5 }; inputs]);
            x[2 * inputs + 33] = odd;
            each_level(|level, threads| {
                let what = format!("{level:?} {format:?} {inputs} {odd}");
                let [found, beside, alone] = [(Batch, &x[..]), (Batch, &plain), (Decode, &x[2 * inputs..])]
                    .map(|(program, x)| case.products(program, x, level, threads, false));
                assert_eq!(bytes_of(&found[..80]), bytes_of(&beside), "{what}");
                let shows = |y: &f32| if is_number { y.abs() < 1e-30 } else { !y.is_finite() };
                assert!(found[80..].iter().chain(&alone).all(shows), "{what}: {found:?} {alone:?}");
            });
        }
    }
}
