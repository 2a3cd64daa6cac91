//! Embedding rows, and the sums of squares that they leave.

use crate::support::{
    Argument, Call, Matrix, Random, bytes_of, compare, each_level, kernel, kernel_repacked, output,
    plane_arguments, plane_buffers, repacked, run_kernel_as, to_f32,
};
use crate::{FORMATS, embed};
use forge_device::cpu;
use forge_device::device::Schedule;
use forge_device::ops::{self, Squares};
use forge_oracle::elementwise;

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
            let table = Matrix::random(&mut random, format, vocabulary, width, 1.0);
            let mut ids: Vec<u32> = (0..11).map(|_| random.below(vocabulary) as u32).collect();
            ids.push(vocabulary as u32 - 1);
            ids.push(vocabulary as u32);
            let mut buffers = plane_buffers(&table, "table");
            buffers.extend(["ids", "stream"]);
            let plane = if is_repacked { Argument::Weights } else { Argument::Bytes };
            let mut arguments: Vec<Argument> = table.planes.iter().cloned().map(plane).collect();
            arguments.extend([Argument::U32(ids.clone()), output(ids.len() * width)]);
            let kernel = match is_repacked {
                false => kernel("embed", buffers, run),
                true => kernel_repacked("embed", buffers, repacked(&table), run),
            };
            let before = random.floats(ids.len() * width);
            for adds in [false, true] {
                let shape = ops::Embed { format, vocabulary, width, scale: 1.0, adds, squares: None };
                *SHAPE.write().unwrap() = Some(shape);
                if adds {
                    *arguments.last_mut().unwrap() = Argument::Output(bytes_of(&before));
                }
                let wanted = elementwise::embed(&shape, &table, &ids, &before);
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
                    assert_eq!(to_f32(&stream[0]), wanted, "{level:?} {format:?} {width} {is_repacked}");
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
            let table = Matrix::random(&mut random, format, 5, width, 1.0);
            let gains = random.floats(width);
            let squares = Some(Squares { partials, gain });
            let shape = ops::Embed { format, vocabulary: 5, width, scale: 0.5, adds: false, squares };
            let row = elementwise::embed(&shape, &table, &[3], &vec![0.0; width]);
            let planes = plane_buffers(&table, "table").into_iter().zip(plane_arguments(&table));
            let mut arguments: Vec<_> = planes.collect();
            arguments.push(("ids", Argument::U32(vec![3])));
            arguments.extend(gain.then(|| ("gain", Argument::F32(gains.clone()))));
            arguments.push(("stream", output(width)));
            arguments.extend(gain.then(|| ("gained", output(width))));
            arguments.push(("squares", output(partials)));
            let call = Call::new("embed", run, arguments);
            *SHAPE.write().unwrap() = Some(shape);
            each_level(|level, threads| {
                let what = format!("{level:?} {format:?} {width}");
                let left = call.run(&[1], level, threads);
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
