//! Embedding rows.

use crate::execution::{Input, Kernels, to_f32};
use crate::formats;
use forge_kernels::Spec;
use forge_ops::{Embed, Squares};
use forge_oracle::elementwise::embed;
use forge_oracle::{Matrix, Random, compare};

#[test]
fn embedding_lookup_matches_the_reference() {
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
        let kernels = Kernels::of(specs.iter().cloned().map(Spec::Embed));
        for (index, it) in specs.iter().enumerate() {
            let table = Matrix::random(&mut random, it.format, 9, width, 1.0);
            let gain = random.floats(width);
            let ids = if it.squares.is_some() { vec![7] } else { vec![3, 0, 8, 9] };
            let rows = ids.len();
            let before = if it.adds { random.floats(rows * width) } else { vec![0.0; rows * width] };
            let outputs = kernels.run_with(index, &[("rows", rows)], |name| match name {
                plane if plane.starts_with("table_") => Input::Bytes(table.plane(plane)),
                "ids" => Input::U32(&ids),
                "gain" => Input::F32(&gain),
                "squares" => Input::Uninitialized(it.squares.map_or(0, |squares| 4 * squares.partials)),
                "stream" if it.adds => Input::F32(&before),
                _ => Input::Uninitialized(4 * rows * width),
            });
            let expected = embed(it, &table, &ids, &before);
            assert_eq!(to_f32(&outputs[0]), expected, "{it:?}");
            let Some(squares) = it.squares else { continue };
            if squares.gain {
                let gained: Vec<f32> = expected.iter().zip(&gain).map(|(x, gain)| x * gain).collect();
                assert_eq!(to_f32(&outputs[1]), gained, "{it:?}");
            }
            let sum: f64 = expected.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let mut parts = vec![(0.0, 0.0); squares.partials];
            parts[0] = (sum, sum);
            compare(it, &to_f32(&outputs[outputs.len() - 1]), &parts, 1e-6);
        }
    }
}
