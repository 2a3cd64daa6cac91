//! Loads and stores of GEMM as the kernel checker counts them, compared with those of predictions.

use crate::execution::{Input, Kernels};
use crate::{project, scalars};
use forge_kernels::Spec;
use forge_kernels::spec::{Knobs, LinearLayout, Operand, Rows};
use forge_ops::{Epilogue, Format};
use forge_oracle::matmul::{LinearInputs, plain};
use forge_oracle::{Matrix, Random};

#[test]
#[cfg_attr(feature = "gpu", ignore = "a GPU does not count accesses")]
fn predicted_bytes_of_gemm_are_those_that_the_checker_counts() {
    for (format, operand, [tile_rows, tile_outputs, split], epilogue) in [
        (Format::Q4_0, Operand::F16, [64, 64, 1], Epilogue::Store),
        (Format::Q4_0, Operand::Ranged, [32, 64, 1], Epilogue::Add),
        (Format::Q8_0, Operand::F16, [32, 64, 2], Epilogue::Store),
        (Format::Bf16, Operand::Ranged, [32, 32, 1], Epilogue::Store),
        (Format::Q4K, Operand::F16, [64, 64, 1], Epilogue::Store),
        (Format::Q4_0, Operand::F16Weights, [32, 64, 1], Epilogue::Store),
        (Format::Bf16, Operand::F16Weights, [32, 64, 1], Epilogue::Store),
    ] {
        let (rows, op) = (64, plain(format, 128, 512, epilogue));
        let linear = project(Rows::Many, op).with_layout(|layout| LinearLayout {
            knobs: Knobs { tile_rows, tile_outputs, split, ..layout.knobs },
            operand,
            ..layout
        });
        let mut random = Random(5);
        let weight = Matrix::random(&mut random, format, linear.op.outputs, linear.op.inputs, 1.0);
        let given = LinearInputs::of(weight, &mut random, &linear.op, rows);
        let spec = Spec::Linear(linear);
        let (_, counters) = Kernels::of([spec.clone()]).run_counted(0, &scalars(rows), |name| {
            match (name, given.floats(&linear.op, name)) {
                (_, Some(numbers)) => Input::F32(numbers),
                ("y", None) => Input::Uninitialized(4 * rows * linear.op.outputs),
                _ => Input::Bytes(given.weight.plane(name)),
            }
        });
        let predicted = spec.on_core_bytes(rows as u64, 0).expect("they are known");
        let found = counters.loaded + counters.stored + counters.threadgroup;
        let over = found as f64 / predicted as f64;
        // Scales are loaded by several lanes, and results that are added are loaded.
        assert!((1.0..1.1).contains(&over), "{format} {operand:?}: {found} {predicted} {over}");
    }
}
