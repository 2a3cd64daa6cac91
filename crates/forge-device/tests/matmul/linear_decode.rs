//! Decode projections: the norm of x, and what the following step needs.

use crate::support::{Random, compare, each_level, to_f32, words_of};
use crate::{FORMATS, linear, linear_call};
use forge_device::cpu;
use forge_device::ops::{self, DeferredNorm, Epilogue, Linear, Squares};
use forge_oracle::head::best;
use forge_oracle::matmul::{self, LinearInputs, SWIGLU, decode_linears, plain, quantized_linears};

/// Layers with a deferred norm and a bias, whose outputs are partitioned in any way.
fn partitioned(format: ops::Format) -> impl Iterator<Item = Linear> {
    let squares = |partials, gain| Epilogue::AddSquares(Squares { partials, gain });
    let layer = move |(outputs, inputs, partials, epilogue)| {
        let norm = Some(DeferredNorm { partials, epsilon: 1e-5 });
        Linear { norm, bias: true, ..plain(format, outputs, inputs, epilogue) }
    };
    [
        (1, 1, 1, Epilogue::Store),
        (50, 70, 128, SWIGLU),
        (300, 96, 37, squares(3, true)),
        (70, 256, 9, squares(100, false)),
        (90, 33, 300, Epilogue::Best { candidates: 7 }),
        (600, 128, 4, Epilogue::Best { candidates: 2 }),
        (9, 40, 5, Epilogue::Best { candidates: 40 }),
        (30, 64, 8, Epilogue::Multiply { of: 33 }),
        (150, 40, 8, Epilogue::Multiply { of: 160 }),
    ]
    .into_iter()
    .map(layer)
}

/// Decode projections: the norm of x, and sums of squares or argmax candidates for the following step.
#[test]
fn deferred_norms_and_epilogues_are_exact() {
    const FIRST: usize = 3;
    kernel_under_test!(SHAPE, ops::Linear, linear);
    let mut random = Random(7);
    let layers = |format| partitioned(format).chain(decode_linears(format)).chain(quantized_linears(format));
    for op in FORMATS.into_iter().flat_map(layers) {
        let given = LinearInputs::random(&mut random, &op, 1);
        let wanted = matmul::linear(&op, &given, &given.taken(&op), FIRST);
        let call = linear_call(&op, &given, 1, run);
        *SHAPE.write().unwrap() = Some(op);
        each_level(|level, threads| {
            let what = format!("{level:?} {op:?}");
            let left = call.run(&[1, FIRST], level, threads);
            for other in [1, 2, 5] {
                let again = call.run(&[1, FIRST], level, other);
                assert_eq!(left, again, "{what}: {threads} and {other} threads");
            }
            let y = to_f32(&left[0]);
            compare(&what, &y, &wanted);
            match op.epilogue {
                Epilogue::AddSquares(squares) => {
                    if squares.gain {
                        let product: Vec<f32> = y.iter().zip(&given.gain).map(|(y, gain)| y * gain).collect();
                        assert_eq!(to_f32(&left[1]), product, "{what}");
                    }
                    let parts = to_f32(&left[left.len() - 1]);
                    let sum = parts.iter().map(|&part| f64::from(part)).sum::<f64>() as f32;
                    let all = y.iter().map(|&y| f64::from(y) * f64::from(y)).sum::<f64>();
                    compare(&what, &[sum], &[(all, all)]);
                }
                Epilogue::Best { .. } => {
                    let pairs = words_of(&left[1]);
                    let found = pairs.chunks(2).max_by_key(|pair| (pair[0], u32::MAX - pair[1])).unwrap();
                    assert_eq!(found[1], best(&y, 0)[1], "{what}");
                    // All candidates are written; those without an output are NaN.
                    assert!(pairs.chunks(2).all(|pair| pair[0] != u32::MAX), "{what}");
                }
                _ => {}
            }
        });
    }
}
