//! Convolutions and delta rules: what they give, and what they leave in the slots' memories.

use crate::{Given, Kernels, Random, SLOTS, bytes_of, compare, numbers_of, wide};
use forge_ir::Format;
use forge_kernels::Spec;
use forge_kernels::spec::{Convolve, DeltaRule};

/// Rows of two slots: one goes on at position 5, is interrupted by one that begins, and goes on. The last row leaves no trace.
const ROWS: [(u32, u32); 7] = [(1, 5), (1, 6), (0, 0), (0, 1), (0, 2), (1, 7), (0, 3)];
const KEPT: usize = 6;

fn column(of: impl Fn(&(u32, u32)) -> u32) -> Vec<u32> {
    ROWS.iter().map(of).collect()
}

#[test]
fn convolutions_see_the_last_rows_of_their_slot() {
    let mut random = Random(11);
    let shapes = [(300, 4), (32, 2), (50, 5)].map(|(width, taps)| Convolve { width, taps });
    let kernels = Kernels::of(shapes.iter().cloned().map(Spec::Convolve));
    for (index, shape) in shapes.iter().enumerate() {
        let Convolve { width, taps: count } = *shape;
        let (x, taps) = (random.numbers(ROWS.len() * width), random.numbers(width * count));
        let before = random.numbers(SLOTS * count * width);
        let given = [
            ("x", Given::Numbers(&x)),
            ("taps", Given::Numbers(&taps)),
            ("slots", Given::Words(&column(|row| row.0))),
            ("positions", Given::Words(&column(|row| row.1))),
            ("tail", Given::Bytes(&bytes_of(&before, Format::F32))),
            ("y", Given::Unwritten(ROWS.len() * width * 4)),
        ];
        let left = kernels.run(index, &[("rows", ROWS.len()), ("kept", KEPT)], &given);
        let (mut tail, mut wanted) = (wide(&before), Vec::new());
        for (row, (slot, position)) in ROWS.iter().enumerate() {
            let (slot, position) = (*slot as usize, *position as usize);
            for channel in 0..width {
                if row >= KEPT {
                    wanted.push(0.0);
                    continue;
                }
                let place = |position: usize| (slot * count + position % count) * width + channel;
                tail[place(position)] = f64::from(x[row * width + channel]);
                let seen = (0..count.min(position + 1)).map(|back| {
                    tail[place(position - back)] * f64::from(taps[(channel + 1) * count - 1 - back])
                });
                wanted.push(seen.sum());
            }
        }
        compare(shape, &numbers_of(&left[0], Format::F32), &tail, 0.0);
        compare(shape, &numbers_of(&left[1], Format::F32), &wanted, 1e-6);
    }
}

#[test]
fn memories_learn_row_after_row() {
    let mut random = Random(12);
    let shapes = [(2, 4, 10, 6), (1, 1, 16, 8), (3, 3, 128, 32), (1, 3, 7, 11), (2, 2, 20, 16)].map(
        |(key_heads, heads, keys, values)| DeltaRule {
            key_heads,
            heads,
            keys,
            values,
            scale: 0.25,
            epsilon: 1e-6,
        },
    );
    let kernels = Kernels::of(shapes.iter().cloned().map(Spec::DeltaRule));
    for (index, shape) in shapes.iter().enumerate() {
        let DeltaRule { key_heads, heads, keys, values, scale, epsilon } = *shape;
        let rows = ROWS.len();
        let [query, key] = [0; 2].map(|_| random.numbers(rows * key_heads * keys));
        let value = random.numbers(rows * heads * values);
        // From nothing left to everything: times from -200 to 200.
        let time: Vec<f32> = random.numbers(rows * heads).iter().map(|x| 200.0 * x * x * x).collect();
        let strength: Vec<f32> = random.numbers(rows * heads).iter().map(|x| x.abs()).collect();
        let [rate, bias] = [0; 2].map(|_| random.numbers(heads));
        let before = random.numbers(SLOTS * heads * values * keys);
        let given = [
            ("query", Given::Numbers(&query)),
            ("key", Given::Numbers(&key)),
            ("value", Given::Numbers(&value)),
            ("time", Given::Numbers(&time)),
            ("strength", Given::Numbers(&strength)),
            ("rate", Given::Numbers(&rate)),
            ("bias", Given::Numbers(&bias)),
            ("slots", Given::Words(&column(|row| row.0))),
            ("positions", Given::Words(&column(|row| row.1))),
            ("memory", Given::Bytes(&bytes_of(&before, Format::F32))),
            ("heads", Given::Unwritten(rows * heads * values * 4)),
        ];
        let left = kernels.run(index, &[("rows", rows), ("kept", KEPT)], &given);
        let (mut memory, mut said) = (wide(&before), vec![0.0; rows * heads * values]);
        for (row, (slot, position)) in ROWS.iter().enumerate().take(KEPT) {
            for head in 0..heads {
                let unit = |x: &[f32]| -> Vec<f64> {
                    let part = wide(&x[(row * key_heads + head / (heads / key_heads)) * keys..][..keys]);
                    let length = (part.iter().map(|x| x * x).sum::<f64>() + f64::from(epsilon)).sqrt();
                    part.iter().map(|x| x / length).collect()
                };
                let (q, k, of_head) = (unit(&query), unit(&key), row * heads + head);
                let softplus = (f64::from(time[of_head]) + f64::from(bias[head])).exp().ln_1p();
                let decay = (-f64::from(rate[head]).exp() * softplus).exp();
                let columns = &mut memory[(*slot as usize * heads + head) * values * keys..][..values * keys];
                for (number, column) in columns.chunks_exact_mut(keys).enumerate() {
                    let kept = if *position == 0 { 0.0 } else { decay };
                    column.iter_mut().for_each(|s| *s *= kept);
                    let ask =
                        |column: &[f64], by: &[f64]| column.iter().zip(by).map(|(s, x)| s * x).sum::<f64>();
                    let unknown = f64::from(value[of_head * values + number]) - ask(column, &k);
                    let learnt = f64::from(strength[of_head]) * unknown;
                    column.iter_mut().zip(&k).for_each(|(s, k)| *s += learnt * k);
                    said[of_head * values + number] = f64::from(scale) * ask(column, &q);
                }
            }
        }
        compare(shape, &numbers_of(&left[0], Format::F32), &memory, 4e-6);
        compare(shape, &numbers_of(&left[1], Format::F32), &said, 4e-6);
    }
}
