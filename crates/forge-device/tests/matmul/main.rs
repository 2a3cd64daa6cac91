//! CPU kernels of projections, embedding, argmax and sampling against plain f64, for every ISA level of this
//! machine.
//!
//! Shapes are those of real models and edge cases: odd widths, one row, more rows than a block, groups that
//! fill no tile. NaN around each buffer reveals out-of-bounds reads.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod coded;
mod embedding;
mod linear;
mod linear_decode;
mod next_token;

use forge_device::cpu;
use forge_device::ops::{self, Epilogue, Format, Scales};
use forge_oracle::matmul::{LinearInputs, row_len};
use forge_oracle::matrix::affine;
use support::{Argument, Call, bytes_of, output, plane_arguments, plane_buffers};

pub(crate) const FORMATS: [Format; 22] = [
    Format::F32,
    Format::F16,
    Format::Bf16,
    Format::Fp8,
    Format::Q8_0,
    Format::Q5_0,
    Format::Q4_0,
    Format::Iq4Nl,
    Format::Iq4Xs,
    Format::Q6K,
    Format::Q5K,
    Format::Q4K,
    Format::Q3K,
    Format::Q2K,
    affine(8, 32, Scales::F16),
    affine(6, 64, Scales::F16),
    affine(5, 32, Scales::F16),
    affine(4, 64, Scales::Bf16),
    affine(3, 128, Scales::F16),
    affine(2, 64, Scales::Bf16),
    Format::Mxfp4,
    Format::Nvfp4,
];

/// Calls a function of [`cpu::Stored`] for the type of a format.
macro_rules! stored {
    ($format:expr, $function:ident, $call:expr, $shape:expr) => {
        match $format {
            Format::F32 => cpu::$function::<cpu::F32>($call, $shape),
            Format::F16 => cpu::$function::<cpu::F16>($call, $shape),
            Format::Bf16 => cpu::$function::<cpu::Bf16>($call, $shape),
            Format::Fp8 => cpu::$function::<cpu::Fp8>($call, $shape),
            Format::Q8_0 => cpu::$function::<cpu::Q8_0>($call, $shape),
            Format::Q5_0 => cpu::$function::<cpu::Q5_0>($call, $shape),
            Format::Q4_0 => cpu::$function::<cpu::Q4_0>($call, $shape),
            Format::Iq4Nl => cpu::$function::<cpu::Iq4Nl>($call, $shape),
            Format::Iq4Xs => cpu::$function::<cpu::Iq4Xs>($call, $shape),
            Format::Q6K => cpu::$function::<cpu::Q6K>($call, $shape),
            Format::Q5K => cpu::$function::<cpu::Q5K>($call, $shape),
            Format::Q4K => cpu::$function::<cpu::Q4K>($call, $shape),
            Format::Q3K => cpu::$function::<cpu::Q3K>($call, $shape),
            Format::Q2K => cpu::$function::<cpu::Q2K>($call, $shape),
            Format::Mxfp4 => cpu::$function::<cpu::Mxfp4>($call, $shape),
            Format::Nvfp4 => cpu::$function::<cpu::Nvfp4>($call, $shape),
            Format::Affine(of) => match (of.bits.count(), of.group.columns(), of.scales == Scales::Bf16) {
                (8, 32, false) => cpu::$function::<cpu::Affine<8, 32>>($call, $shape),
                (6, 64, false) => cpu::$function::<cpu::Affine<6, 64>>($call, $shape),
                (5, 32, false) => cpu::$function::<cpu::Affine<5, 32>>($call, $shape),
                (4, 32, false) => cpu::$function::<cpu::Affine<4, 32>>($call, $shape),
                (4, 64, true) => cpu::$function::<cpu::AffineBf16<4, 64>>($call, $shape),
                (4, 128, false) => cpu::$function::<cpu::Affine<4, 128>>($call, $shape),
                (3, 128, false) => cpu::$function::<cpu::Affine<3, 128>>($call, $shape),
                (2, 64, true) => cpu::$function::<cpu::AffineBf16<2, 64>>($call, $shape),
                other => panic!("{other:?} is not a format"),
            },
        }
    };
}

pub(crate) fn linear(call: &cpu::KernelArgs<'_>, shape: &ops::Linear) {
    stored!(shape.format, linear, call, shape);
}

pub(crate) fn embed(call: &cpu::KernelArgs<'_>, shape: &ops::Embed) {
    stored!(shape.format, embed, call, shape);
}

/// A layer with its inputs by name; without activation quantization if it is run so.
pub(crate) fn linear_call(op: &ops::Linear, given: &LinearInputs, rows: usize, run: Run) -> Call {
    let floats = |name: &'static str, is_read: bool| {
        let numbers = given.floats(op, name).unwrap_or_default();
        is_read.then(|| (name, Argument::F32(numbers.to_vec())))
    };
    let planes = plane_buffers(&given.weight, "weight").into_iter().zip(plane_arguments(&given.weight));
    let mut arguments: Vec<_> = planes.collect();
    arguments.extend(floats("bias", op.bias));
    arguments.extend(floats("x", true));
    arguments.extend(floats("x_gain", op.own_norm.is_some_and(|norm| norm.gain)));
    arguments.extend(floats("squares", op.norm.is_some()));
    arguments.push(("y", Argument::Output(bytes_of(&given.before))));
    let width = |buffer| rows * row_len(op, buffer).unwrap_or(0);
    match op.epilogue {
        Epilogue::AddSquares(squares) => {
            arguments.extend(floats("gain", squares.gain));
            arguments.extend(squares.gain.then(|| ("gained", output(width("gained")))));
            arguments.push(("squares_out", output(squares.partials)));
        }
        Epilogue::Multiply { .. } => arguments.extend(floats("factors", true)),
        Epilogue::Best { candidates } => arguments.push(("candidates", output(2 * candidates))),
        _ => {}
    }
    Call::new("linear", run, arguments)
}

/// A kernel as a plain function.
pub(crate) type Run = fn(&cpu::KernelArgs<'_>);
