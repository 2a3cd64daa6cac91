//! Projections, embedding and token selection in the kernel checker, against plain f64.

#[path = "projections/each_head.rs"]
mod each_head;
mod plain;

use forge_kernels::spec::{Kernel, Knobs, LinearKernel, LinearLayout, Operand, Rows};
use forge_kernels::{Family, Spec};
use forge_ops::{
    Activation, ArgmaxJoin, DeferredNorm, Embed, Epilogue, Format, Gating, InlineNorm, Linear, Squares,
    UnaryOp,
};
use forge_sim::Exactness;
use plain::{Bench, FIRST, Given, Random, Wanted, compare, numbers_of, stored};

/// The tolerance of f32 dot products, relative to the magnitude of each product.
const SINGLES: f64 = 1e-6;

/// The tolerance with f16 factors: both are rounded to 11 bits.
const HALVES: f64 = 1e-3;

const GATE: Epilogue = Epilogue::Gate(Gating::Plain(Activation::Silu));

/// Formats of every kind: every number of bits, each size of groups and both kinds of scales among them.
fn formats() -> Vec<Format> {
    let plain = ["f32", "f16", "bf16", "q8_0", "q4_0", "q6_k", "q5_k", "q4_k"];
    let affine =
        ["affine8_32_bf16", "affine6_128", "affine5", "affine4_bf16", "affine4_128", "affine3", "affine2_32"];
    plain.into_iter().chain(affine).chain(["mxfp4"]).map(named).collect()
}

fn named(name: &str) -> Format {
    Format::from_name(name).unwrap_or_else(|| panic!("{name}"))
}

fn project(rows: Rows, format: Format, outputs: usize, inputs: usize, epilogue: Epilogue) -> LinearKernel {
    Kernel {
        op: Linear {
            format,
            outputs,
            inputs,
            norm: None,
            own_norm: None,
            bias: false,
            each: None,
            epilogue,
            chooses: false,
        },
        layout: LinearLayout {
            rows,
            operand: Operand::F32,
            knobs: Knobs::for_chip(Family::Apple9, 10, rows, format, [outputs, inputs], false, false),
        },
    }
}

/// The order of floats as integer keys.
fn key(number: f32) -> u32 {
    let bits = (number + 0.0).to_bits();
    if number.is_nan() {
        0
    } else if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}

/// Results before the epilogue, and how far they may be off.
fn products(
    it: &LinearKernel,
    rows: usize,
    weights: &[f32],
    x: &[f32],
    (squares, x_gain): (&[f32], &[f32]),
    bias: &[f32],
) -> Vec<Wanted> {
    let own = |_: &InlineNorm| x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let left = || squares.iter().map(|&square| f64::from(square)).sum::<f64>();
    let epsilon = it.op.norm.map(|norm| norm.epsilon).or(it.op.own_norm.map(|norm| norm.epsilon));
    let factor = epsilon.map_or(1.0, |epsilon| {
        let sum = it.op.own_norm.as_ref().map_or_else(left, own);
        1.0 / (sum / it.op.inputs as f64 + f64::from(epsilon)).sqrt()
    });
    let has_gain = it.op.own_norm.is_some_and(|norm| norm.gain);
    let taken = |at: usize| x[at] * if has_gain { x_gain[at] } else { 1.0 };
    // The tolerance of a quantized activation: half a unit, where the largest of its block is at least 16,192 units.
    let rounding = |block: usize| {
        let columns = 32 * block..(32 * (block + 1)).min(it.op.inputs);
        let largest = columns.map(|at| taken(at).abs()).fold(0.0, f32::max);
        f64::from(largest) / 16192.0 / 2.0
    };
    let roundings: Vec<f64> = if it.layout.knobs.codes {
        (0..it.op.inputs.div_ceil(32)).map(rounding).collect()
    } else {
        Vec::new()
    };
    let mut all = Vec::new();
    for row in 0..rows {
        for output in 0..it.op.outputs {
            let (mut sum, mut size) = (0.0, 0.0);
            for column in 0..it.op.inputs {
                let gain = if has_gain { f64::from(x_gain[column]) } else { 1.0 };
                let (w, x) = (weights[output * it.op.inputs + column], x[row * it.op.inputs + column]);
                let x = f64::from(x) * gain;
                sum += f64::from(w) * x;
                size += (f64::from(w) * x).abs();
                // Such a weight is the difference of its scaled code and its offset.
                if it.op.format.has_offsets() {
                    size += x.abs();
                }
                if it.layout.knobs.codes {
                    size += f64::from(w).abs() * roundings[column / 32] / SINGLES;
                }
            }
            (sum, size) = (sum * factor, size * factor);
            if it.op.bias {
                sum += f64::from(bias[output]);
                size += f64::from(bias[output]).abs();
            }
            match it.op.each {
                None => {}
                Some(UnaryOp::Softcap(cap)) => {
                    let cap = f64::from(cap);
                    (sum, size) = (cap * (sum / cap).tanh(), size + cap);
                }
                Some(UnaryOp::Scale(factor)) => {
                    (sum, size) = (f64::from(factor) * sum, f64::from(factor).abs() * size);
                }
                // The slope of an activation is at most 1.2.
                Some(UnaryOp::Activate(activation)) => (sum, size) = (activated(activation, sum), 1.2 * size),
            }
            all.push((sum, size));
        }
    }
    all
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => unreachable!("its numbers are tested by themselves"),
        Activation::Relu => x.max(0.0),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x * (1.0 + u.tanh()) / 2.0
        }
    }
}

/// Runs every projection with each batch size.
fn check(projections: &[LinearKernel], rows: &[usize]) {
    let specs: Vec<Spec> = projections.iter().cloned().map(Spec::Project).collect();
    let bench = Bench::new(&specs);
    let mut random = Random(1);
    for (index, it) in projections.iter().enumerate() {
        let weights = stored(&mut random, it.op.format, it.op.outputs, it.op.inputs);
        for &rows in rows {
            check_one(&bench, index, it, rows, &weights, &mut random);
        }
    }
}

fn check_one(
    bench: &Bench,
    index: usize,
    it: &LinearKernel,
    rows: usize,
    weights: &plain::Stored,
    random: &mut Random,
) {
    let what = format!("{rows} rows of {it:?}");
    let x = random.numbers(rows * it.op.inputs);
    let bias = random.numbers(it.op.outputs);
    let gain = random.numbers(it.op.outputs);
    let x_gain = random.numbers(it.op.inputs);
    let partials = it.op.norm.map_or(0, |norm| norm.partials);
    let squares: Vec<f32> = random.numbers(partials).iter().map(|number| number.abs()).collect();
    let width = if matches!(it.op.epilogue, Epilogue::Gate(_)) { it.op.outputs / 2 } else { it.op.outputs };
    let before = random.numbers(rows * width);
    let of = if let Epilogue::Multiply { of } = it.op.epilogue { of } else { 0 };
    let factors = random.numbers(of);
    let left = bench.run(index, rows, |name| match name {
        "weight_values" | "weight_codes" => Given::Bytes(weights.planes[0].clone()),
        "weight_scales" => Given::Bytes(weights.planes[1].clone()),
        "bias" => Given::Numbers(bias.clone()),
        "x" => Given::Numbers(x.clone()),
        "x_gain" => Given::Numbers(x_gain.clone()),
        "factors" => Given::Numbers(factors.clone()),
        "squares" => Given::Numbers(squares.clone()),
        "gain" => Given::Numbers(gain.clone()),
        "y" => match it.op.epilogue {
            Epilogue::Add | Epilogue::AddSquares(_) => Given::Numbers(before.clone()),
            _ => Given::Unwritten(rows * width),
        },
        "gained" => Given::Unwritten(width),
        "squares_out" => match it.op.epilogue {
            Epilogue::AddSquares(squares) => Given::Unwritten(squares.partials),
            _ => panic!("{what}"),
        },
        "candidates" => Given::Unwritten(2 * it.op.outputs.div_ceil(outputs_of_a_threadgroup(it))),
        other => panic!("{what} has a buffer `{other}`"),
    });
    let results = products(it, rows, &weights.values, &x, (&squares, &x_gain), &bias);
    let wanted: Vec<Wanted> = match it.op.epilogue {
        Epilogue::Store | Epilogue::Best { .. } => results,
        Epilogue::Add | Epilogue::AddSquares(_) => {
            let added = |(&(sum, size), &before): (&Wanted, &f32)| {
                (sum + f64::from(before), size + f64::from(before).abs())
            };
            results.iter().zip(&before).map(added).collect()
        }
        Epilogue::Multiply { .. } => {
            let factors = factors[FIRST as usize..].iter().map(|&factor| f64::from(factor));
            let times = |(&(sum, size), factor): (&Wanted, f64)| (sum * factor, size * factor.abs());
            results.iter().zip(factors).map(times).collect()
        }
        // The effect of an error of the gate: the slope of an activation is at most 1.13.
        Epilogue::Gate(Gating::Clamped { .. }) => panic!("{what}"),
        Epilogue::Gate(Gating::Plain(activation)) => results
            .chunks(2)
            .map(|pair| {
                let ((gate, a), (up, b)) = (pair[0], pair[1]);
                let gate = activated(activation, gate);
                (gate * up, 1.13 * a * up.abs() + gate.abs() * b)
            })
            .collect(),
    };
    let tolerance = match it.layout.operand {
        Operand::F32 => SINGLES,
        Operand::F16 => HALVES,
        Operand::Ranged => Exactness::own().ranged_loss().unwrap_or(SINGLES),
    };
    let y = numbers_of(&left[0]);
    compare(&what, &y, &wanted, tolerance);
    match it.op.epilogue {
        Epilogue::AddSquares(leaves) => {
            if leaves.gain {
                let product: Vec<f32> = y.iter().zip(&gain).map(|(y, gain)| y * gain).collect();
                assert_eq!(numbers_of(&left[1]), product, "{what}");
            }
            let mut parts: Vec<Wanted> = y
                .chunks(outputs_of_a_threadgroup(it))
                .map(|part| part.iter().map(|&y| f64::from(y) * f64::from(y)).sum())
                .map(|sum: f64| (sum, sum))
                .collect();
            parts.resize(leaves.partials, (0.0, 0.0));
            compare(&what, &numbers_of(&left[left.len() - 1]), &parts, 1e-6);
        }
        Epilogue::Best { .. } => {
            let each = outputs_of_a_threadgroup(it);
            for (group, (part, candidate)) in y.chunks(each).zip(left[1].chunks(2)).enumerate() {
                let best = part.iter().map(|&y| key(y)).max().unwrap_or(0);
                let first = part.iter().position(|&y| key(y) == best).unwrap_or(0) + group * each;
                assert_eq!(candidate, [best, first as u32], "{what}");
            }
        }
        Epilogue::Store | Epilogue::Add | Epilogue::Multiply { .. } | Epilogue::Gate(_) => {}
    }
}

fn outputs_of_a_threadgroup(it: &LinearKernel) -> usize {
    it.layout.knobs.rows_per_simdgroup * it.layout.knobs.simdgroups / it.layout.knobs.split
}

fn knobs(rows_per_simdgroup: usize, simdgroups: usize, split: usize, packets: usize) -> Knobs {
    Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows: 1, tile_outputs: 1, codes: false }
}

#[test]
fn one_row() {
    let squares = |partials, gain| Epilogue::AddSquares(Squares { partials, gain });
    let norm = |partials| Some(DeferredNorm { partials, epsilon: 1e-5 });
    let own = |gain| Some(InlineNorm { gain, epsilon: 1e-5 });
    let (scale, gelu) = (Some(UnaryOp::Scale(0.22)), Some(UnaryOp::Activate(Activation::GeluTanh)));
    let mut all = Vec::new();
    for format in formats() {
        let one = |outputs, inputs, epilogue| project(Rows::One, format, outputs, inputs, epilogue);
        all.extend([
            one(18, 1100, Epilogue::Store)
                .with_op(|op| Linear { norm: norm(128), ..op })
                .with_knobs(knobs(4, 2, 1, 2)),
            one(18, 1100, Epilogue::Store)
                .with_op(|op| Linear { own_norm: own(true), ..op })
                .with_knobs(knobs(4, 2, 1, 2)),
            one(21, 70, Epilogue::Store)
                .with_op(|op| Linear { own_norm: own(false), bias: true, ..op })
                .with_knobs(knobs(2, 4, 2, 1)),
            one(22, 90, GATE)
                .with_op(|op| Linear { own_norm: own(true), ..op })
                .with_knobs(knobs(4, 4, 2, 1)),
            one(22, 70, GATE)
                .with_op(|op| Linear { norm: norm(30), bias: true, ..op })
                .with_knobs(knobs(2, 4, 2, 1)),
            one(26, 64, GATE)
                .with_op(|op| Linear { norm: norm(52), each: Some(UnaryOp::Softcap(0.5)), ..op })
                .with_knobs(knobs(4, 2, 1, 1)),
            one(22, 96, squares(11, true)).with_knobs(knobs(2, 4, 1, 1)),
            one(64, 40, squares(2, true)).with_knobs(knobs(4, 8, 1, 1)),
            one(37, 2100, squares(5, false))
                .with_op(|op| Linear { bias: true, ..op })
                .with_knobs(knobs(4, 4, 2, 2)),
            one(150, 32, Epilogue::Best { candidates: 1 << 16 })
                .with_op(|op| Linear { norm: norm(200), each: Some(UnaryOp::Softcap(3.0)), ..op })
                .with_knobs(knobs(8, 4, 1, 1)),
            one(5, 50, Epilogue::Add).with_op(|op| Linear { bias: true, ..op }).with_knobs(knobs(1, 2, 1, 1)),
            one(6, 50, Epilogue::Add)
                .with_op(|op| Linear { each: scale, bias: true, ..op })
                .with_knobs(knobs(2, 2, 1, 1)),
            one(22, 96, squares(11, true))
                .with_op(|op| Linear { norm: norm(8), each: scale, ..op })
                .with_knobs(knobs(2, 4, 1, 1)),
            one(7, 50, Epilogue::Store)
                .with_op(|op| Linear { each: gelu, bias: true, ..op })
                .with_knobs(knobs(2, 2, 1, 1)),
            one(6, 33, Epilogue::Gate(Gating::Plain(Activation::GeluTanh))).with_knobs(knobs(2, 2, 1, 1)),
            one(7, 50, Epilogue::Multiply { of: 12 })
                .with_op(|op| Linear { each: scale, bias: true, ..op })
                .with_knobs(knobs(2, 2, 1, 1)),
            one(22, 96, Epilogue::Multiply { of: 40 })
                .with_op(|op| Linear { norm: norm(8), bias: true, ..op })
                .with_knobs(knobs(2, 4, 2, 1)),
        ]);
    }
    check(&all, &[1]);
}

#[test]
fn one_row_taken_as_codes() {
    let squares = |partials, gain| Epilogue::AddSquares(Squares { partials, gain });
    let own = |gain| Some(InlineNorm { gain, epsilon: 1e-5 });
    let norm = Some(DeferredNorm { partials: 128, epsilon: 1e-5 });
    let codes =
        |rows, simdgroups, split, packets| Knobs { codes: true, ..knobs(rows, simdgroups, split, packets) };
    let mut all = Vec::new();
    let stored = ["q4_0", "q8_0", "affine4_bf16", "affine4_128", "affine8_32_bf16", "affine8", "q4_k"];
    for format in stored.map(named) {
        let one = |outputs, inputs, epilogue| project(Rows::One, format, outputs, inputs, epilogue);
        all.extend([
            one(16, 128, Epilogue::Store).with_knobs(codes(16, 1, 1, 1)),
            one(50, 640, Epilogue::Store).with_op(|op| Linear { norm, ..op }).with_knobs(codes(16, 2, 1, 2)),
            one(64, 640, GATE)
                .with_op(|op| Linear { own_norm: own(true), bias: true, ..op })
                .with_knobs(codes(32, 2, 2, 2)),
            one(37, 384, Epilogue::Add)
                .with_op(|op| Linear { own_norm: own(false), ..op })
                .with_knobs(codes(16, 8, 8, 1)),
            one(70, 896, squares(3, true))
                .with_op(|op| Linear { bias: true, ..op })
                .with_knobs(codes(16, 4, 2, 2)),
            one(150, 512, Epilogue::Best { candidates: 1 << 16 })
                .with_op(|op| Linear { norm, each: Some(UnaryOp::Softcap(3.0)), ..op })
                .with_knobs(codes(16, 8, 4, 1)),
            one(33, 256, Epilogue::Multiply { of: 60 }).with_knobs(codes(32, 1, 1, 1)),
            one(18, 272, Epilogue::Store)
                .with_op(|op| Linear { own_norm: own(true), ..op })
                .with_knobs(codes(16, 4, 2, 2)),
            one(18, 50, Epilogue::Store).with_knobs(codes(16, 2, 1, 1)),
        ]);
    }
    check(&all, &[1]);
}

#[test]
fn few_rows() {
    let mut all = Vec::new();
    for format in formats() {
        let few = |outputs, inputs, epilogue| project(Rows::Few, format, outputs, inputs, epilogue);
        all.extend([
            few(18, 70, Epilogue::Store)
                .with_op(|op| Linear { bias: true, ..op })
                .with_knobs(knobs(8, 2, 1, 1)),
            few(22, 96, GATE).with_op(|op| Linear { each: Some(UnaryOp::Softcap(0.5)), ..op }).with_layout(
                |layout| LinearLayout { knobs: knobs(16, 2, 2, 1), operand: Operand::Ranged, ..layout },
            ),
            few(13, 130, Epilogue::Add)
                .with_op(|op| Linear { each: Some(UnaryOp::Scale(0.22)), ..op })
                .with_knobs(knobs(8, 4, 2, 1)),
            few(8, 640, Epilogue::Store).with_knobs(knobs(8, 2, 2, 1)),
        ]);
    }
    check(&all, &[1, 2, 11]);
}

#[test]
fn many_rows() {
    let mut all = Vec::new();
    let knobs =
        |tile_rows, tile_outputs, split| Knobs { split, tile_rows, tile_outputs, ..knobs(1, 4, 1, 1) };
    for format in formats() {
        let many = |outputs, inputs, epilogue| project(Rows::Many, format, outputs, inputs, epilogue);
        let halves = Operand::F16;
        all.extend([
            many(18, 70, Epilogue::Store)
                .with_op(|op| Linear { bias: true, each: Some(UnaryOp::Softcap(2.0)), ..op })
                .with_knobs(knobs(16, 32, 1)),
            many(70, 33, Epilogue::Add).with_layout(|layout| LinearLayout {
                knobs: knobs(32, 64, 2),
                operand: halves,
                ..layout
            }),
            many(16, 128, GATE).with_op(|op| Linear { bias: true, ..op }).with_knobs(knobs(16, 16, 2)),
            many(16, 96, Epilogue::Store).with_layout(|layout| LinearLayout {
                knobs: knobs(48, 16, 1),
                operand: Operand::Ranged,
                ..layout
            }),
            many(22, 288, GATE).with_layout(|layout| LinearLayout {
                knobs: knobs(32, 16, 1),
                operand: halves,
                ..layout
            }),
        ]);
    }
    // Results in two parts.
    for (format, split) in [("q4_0", 1), ("affine8_32", 2)] {
        let format = Format::from_name(format).unwrap_or(Format::F16);
        let plain = project(Rows::Many, format, 64, 96, Epilogue::Add);
        all.push(plain.with_layout(|layout| LinearLayout {
            knobs: knobs(64, 64, split),
            operand: Operand::F16,
            ..layout
        }));
    }
    check(&all, &[17]);
}

#[test]
fn embedding() {
    let mut random = Random(3);
    for (width, partials) in [(50, None), (64, Some(7)), (33, Some(300)), (1100, Some(5))] {
        let squares = |gain| partials.map(|partials| Squares { partials, gain });
        let specs: Vec<Embed> = formats()
            .into_iter()
            .enumerate()
            .map(|(index, format)| Embed {
                format,
                vocabulary: 9,
                width,
                scale: if index % 3 == 0 { 1.5 } else { 1.0 },
                adds: partials.is_none() && index % 2 == 0,
                squares: squares(index % 2 == 0),
            })
            .collect();
        let bench = Bench::new(&specs.iter().cloned().map(Spec::Embed).collect::<Vec<_>>());
        for (index, it) in specs.iter().enumerate() {
            let table = stored(&mut random, it.format, 9, width);
            let gain = random.numbers(width);
            let ids = if it.squares.is_some() { vec![7] } else { vec![3, 0, 8, 9] };
            let rows = ids.len();
            let before = if it.adds { random.numbers(rows * width) } else { vec![0.0; rows * width] };
            let left = bench.run(index, rows, |name| match name {
                "table_values" | "table_codes" => Given::Bytes(table.planes[0].clone()),
                "table_scales" => Given::Bytes(table.planes[1].clone()),
                "ids" => Given::Words(ids.clone()),
                "gain" => Given::Numbers(gain.clone()),
                "squares" => Given::Unwritten(it.squares.map_or(0, |squares| squares.partials)),
                "stream" if it.adds => Given::Numbers(before.clone()),
                _ => Given::Unwritten(rows * width),
            });
            // An id outside the table reads row 0.
            let wanted: Vec<f32> = ids
                .iter()
                .map(|&id| if id < 9 { id as usize } else { 0 })
                .flat_map(|id| table.values[id * width..(id + 1) * width].to_vec())
                .zip(&before)
                .map(|(value, before)| if it.adds { before + value * it.scale } else { value * it.scale })
                .collect();
            assert_eq!(numbers_of(&left[0]), wanted, "{it:?}");
            let Some(squares) = it.squares else { continue };
            if squares.gain {
                let gained: Vec<f32> = wanted.iter().zip(&gain).map(|(x, gain)| x * gain).collect();
                assert_eq!(numbers_of(&left[1]), gained, "{it:?}");
            }
            let sum: f64 = wanted.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let mut parts = vec![(0.0, 0.0); squares.partials];
            parts[0] = (sum, sum);
            compare(&format!("{it:?}"), &numbers_of(&left[left.len() - 1]), &parts, 1e-6);
        }
    }
}

#[test]
fn the_best_candidate_is_the_lowest_of_equals() {
    let mut random = Random(4);
    let specs = [1, 3, 70, 1500, 5000].map(|candidates| ArgmaxJoin { candidates });
    let bench = Bench::new(&specs.clone().map(Spec::ArgmaxJoin));
    for (index, it) in specs.iter().enumerate() {
        let mut pairs: Vec<[u32; 2]> =
            (0..2 * it.candidates).map(|_| [random.bits() % 9, random.bits()]).collect();
        // In the second row there is no number.
        pairs[it.candidates..].iter_mut().for_each(|pair| pair[0] = 0);
        let best = pairs[..it.candidates].iter().map(|&[key, id]| (key, u32::MAX - id)).max();
        let first = best.filter(|&(key, _)| key > 0).map_or(0, |(_, id)| u32::MAX - id);
        let left = bench.run(index, 2, |name| match name {
            "candidates" => Given::Words(pairs.concat()),
            _ => Given::Unwritten(2),
        });
        assert_eq!(left[0], [first, 0], "{it:?}");
    }
}
