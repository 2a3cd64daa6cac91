//! Embedding rows.

use crate::formats;
use crate::plain::{Bench, Input, Random, compare, stored, to_f32};
use forge_kernels::Spec;
use forge_ops::{Embed, Squares};

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
        let bench = Bench::new(&specs.iter().cloned().map(Spec::Embed).collect::<Vec<_>>());
        for (index, it) in specs.iter().enumerate() {
            let table = stored(&mut random, it.format, 9, width);
            let gain = random.floats(width);
            let ids = if it.squares.is_some() { vec![7] } else { vec![3, 0, 8, 9] };
            let rows = ids.len();
            let before = if it.adds { random.floats(rows * width) } else { vec![0.0; rows * width] };
            let outputs = bench.run(index, rows, |name| match name {
                "table_values" | "table_codes" => Input::Bytes(table.planes[0].clone()),
                "table_scales" => Input::Bytes(table.planes[1].clone()),
                "ids" => Input::U32(ids.clone()),
                "gain" => Input::F32(gain.clone()),
                "squares" => Input::Uninitialized(it.squares.map_or(0, |squares| squares.partials)),
                "stream" if it.adds => Input::F32(before.clone()),
                _ => Input::Uninitialized(rows * width),
            });
            // An id outside the table reads row 0.
            let expected: Vec<f32> = ids
                .iter()
                .map(|&id| if id < 9 { id as usize } else { 0 })
                .flat_map(|id| table.values[id * width..(id + 1) * width].to_vec())
                .zip(&before)
                .map(|(value, before)| if it.adds { before + value * it.scale } else { value * it.scale })
                .collect();
            assert_eq!(to_f32(&outputs[0]), expected, "{it:?}");
            let Some(squares) = it.squares else { continue };
            if squares.gain {
                let gained: Vec<f32> = expected.iter().zip(&gain).map(|(x, gain)| x * gain).collect();
                assert_eq!(to_f32(&outputs[1]), gained, "{it:?}");
            }
            let sum: f64 = expected.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let mut parts = vec![(0.0, 0.0); squares.partials];
            parts[0] = (sum, sum);
            compare(&format!("{it:?}"), &to_f32(&outputs[outputs.len() - 1]), &parts, 1e-6);
        }
    }
}
