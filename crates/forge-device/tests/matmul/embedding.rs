//! Embedding rows, and the sums of squares that they leave.

use crate::support::{
    Argument, NAN, Random, bytes_of, compare, each_level, kernel, kernel_repacked, matrix, repacked,
    run_kernel, run_kernel_as, to_f32,
};
use crate::{FORMATS, embed, plane_arguments, planes};
use forge_device::cpu;
use forge_device::device::Schedule;
use forge_device::ops::{self, Squares};

#[test]
fn embed_widens_rows_exactly() {
    kernel_under_test!(SHAPE, ops::Embed, embed);
    let mut random = Random(2);
    let shapes = [(7, 1), (5, 31), (9, 32), (300, 56), (4, 200), (48, 70)];
    for ((vocabulary, width), format) in
        shapes.iter().flat_map(|shape| FORMATS.map(|format| (*shape, format)))
    {
        let strips = vocabulary % 16 == 0 && format.has_integers();
        for is_repacked in if strips { vec![false, true] } else { vec![false] } {
            let table = matrix(&mut random, format, vocabulary, width, 1.0);
            let mut ids: Vec<u32> = (0..11).map(|_| random.below(vocabulary) as u32).collect();
            ids.push(vocabulary as u32 - 1);
            ids.push(vocabulary as u32);
            let wanted: Vec<(f64, f64)> = ids
                .iter()
                .map(|&id| if id as usize == vocabulary { 0 } else { id as usize })
                .flat_map(|id| {
                    table.values[id * width..(id + 1) * width].iter().map(|&v| (f64::from(v), 0.0))
                })
                .collect();
            let mut buffers = planes(format, "table");
            buffers.extend(["ids", "stream"]);
            let mut arguments = plane_arguments(&table);
            if is_repacked {
                arguments = table.planes.iter().cloned().map(Argument::Weights).collect();
            }
            arguments.push(Argument::U32(ids.clone()));
            arguments.push(Argument::Output(NAN.repeat(ids.len() * width)));
            let kernel = match is_repacked {
                false => kernel("embed", buffers, run),
                true => kernel_repacked("embed", buffers, repacked(&table), run),
            };
            let before = random.floats(ids.len() * width);
            for adds in [false, true] {
                let shape = ops::Embed { format, vocabulary, width, scale: 1.0, adds, squares: None };
                *SHAPE.write().unwrap() = Some(shape);
                let mut wanted = wanted.clone();
                if adds {
                    *arguments.last_mut().unwrap() = Argument::Output(bytes_of(&before));
                    for (wanted, before) in wanted.iter_mut().zip(&before) {
                        *wanted = (f64::from(wanted.0 as f32 + before), 0.0);
                    }
                }
                each_level(|level, threads| {
                    let stream = run_kernel_as(
                        kernel,
                        &arguments,
                        &[ids.len() as u32],
                        Schedule::Batch,
                        level,
                        threads,
                        !is_repacked,
                    );
                    compare(
                        &format!("{level:?} {format:?} {width} {is_repacked}"),
                        &to_f32(&stream[0]),
                        &wanted,
                    );
                });
            }
        }
    }
}

#[test]
fn embedding_writes_partial_squares() {
    kernel_under_test!(SHAPE, ops::Embed, embed);
    let mut random = Random(8);
    for (width, partials, gain) in [(1, 1, true), (56, 128, false), (200, 3, true)] {
        for format in FORMATS {
            let table = matrix(&mut random, format, 5, width, 1.0);
            let gains = random.floats(width);
            let row: Vec<f32> = table.values[3 * width..4 * width].iter().map(|x| x * 0.5).collect();
            let mut buffers = planes(format, "table");
            let mut arguments = plane_arguments(&table);
            buffers.push("ids");
            arguments.push(Argument::U32(vec![3]));
            if gain {
                buffers.push("gain");
                arguments.push(Argument::F32(gains.clone()));
            }
            buffers.push("stream");
            arguments.push(Argument::Output(NAN.repeat(width)));
            if gain {
                buffers.push("gained");
                arguments.push(Argument::Output(NAN.repeat(width)));
            }
            buffers.push("squares");
            arguments.push(Argument::Output(NAN.repeat(partials)));
            let kernel = kernel("embed", buffers, run);
            let squares = Some(Squares { partials, gain });
            *SHAPE.write().unwrap() =
                Some(ops::Embed { format, vocabulary: 5, width, scale: 0.5, adds: false, squares });
            each_level(|level, threads| {
                let what = format!("{level:?} {format:?} {width}");
                let left = run_kernel(kernel, &arguments, &[1], level, threads);
                assert_eq!(to_f32(&left[0]), row, "{what}");
                if gain {
                    let product: Vec<f32> = row.iter().zip(&gains).map(|(x, gain)| x * gain).collect();
                    assert_eq!(to_f32(&left[1]), product, "{what}");
                }
                let all = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
                let mut wanted = vec![(0.0, 0.0); partials];
                wanted[0] = (all, all);
                compare(&what, &to_f32(&left[left.len() - 1]), &wanted);
            });
        }
    }
}
