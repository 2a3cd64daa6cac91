//! Multi-head latent attention (MLA): the latent cache and attention, with separate and fused preparation.

use crate::{
    CONTEXT, Input, Kernels, Random, SLOTS, bytes_of, compare, long, normed, rope_parameters, rotated,
    to_f32, to_f64, with_attention_factor,
};
use forge_kernels::Spec;
use forge_kernels::spec::{CombineLayout, Kernel};
use forge_ops::{
    AttendCombine, Format, MlaAppend, MlaAttention, MlaColumns, MlaLoadLatents, MlaPrepare, Pairing,
    RopeParameters,
};

#[derive(Clone, Debug)]
struct Shape {
    heads: usize,
    width: usize,
    rope_width: usize,
    cache: Format,
    rope: RopeParameters,
    /// Whether the inputs are columns of one buffer or of three.
    together: bool,
}

impl Shape {
    fn record(&self) -> usize {
        self.width + self.rope_width
    }

    fn columns(&self) -> MlaColumns {
        let Shape { heads, width, rope_width, .. } = *self;
        if self.together {
            let (latent_first, pitch) = (3 + heads * rope_width, 3 + heads * rope_width + width + rope_width);
            return MlaColumns {
                queries_pitch: pitch,
                q_rope_first: 3,
                latent_pitch: pitch,
                latent_first,
                key_pitch: pitch,
                key_first: latent_first + width,
            };
        }
        MlaColumns {
            queries_pitch: heads * rope_width,
            q_rope_first: 0,
            latent_pitch: 5 + width,
            latent_first: 5,
            key_pitch: rope_width + 2,
            key_first: 0,
        }
    }

    fn prepare(&self) -> MlaPrepare {
        let rope = self.rope.clone();
        let (heads, columns) = (self.heads, self.columns());
        MlaPrepare { heads, columns, epsilon: 1e-6, rope }
    }

    fn append(&self, prepare: Option<MlaPrepare>) -> Spec {
        let Shape { width, rope_width, cache, .. } = *self;
        Spec::MlaAppend(MlaAppend { width, rope_width, cache, prepare })
    }

    fn attend(&self, prologue: Option<MlaPrepare>) -> Spec {
        let Shape { heads, width, rope_width, cache, .. } = *self;
        Spec::MlaAttention(MlaAttention { heads, width, rope_width, cache, scale: SCALE, prologue })
    }

    /// The tolerance of a cached value.
    fn unit(&self) -> f64 {
        if self.cache == Format::F32 { 3e-6 } else { 2e-3 }
    }

    fn place(&self, (slot, position): (u32, u32)) -> usize {
        (slot as usize * CONTEXT + position as usize) * self.record()
    }

    /// A latent cache, filled up to each slot's length and NaN beyond.
    fn lines(&self, random: &mut Random, seen: impl Fn(u32) -> u32) -> Vec<f32> {
        let mut lines = vec![f32::NAN; SLOTS * CONTEXT * self.record()];
        for slot in 0..SLOTS as u32 {
            let range = self.place((slot, 0))..self.place((slot, seen(slot)));
            let numbers = random.floats(range.len());
            let rounded = to_f32(&bytes_of(&numbers, self.cache), self.cache);
            lines[range].copy_from_slice(&rounded);
        }
        lines
    }

    /// The expected attention output.
    fn attended(&self, q: &[f32], q_rope: &[f64], lines: &[f32], row: (u32, u32)) -> Vec<f64> {
        let mut out = Vec::new();
        for head in 0..self.heads {
            let query = [
                to_f64(&q[head * self.width..][..self.width]),
                q_rope[head * self.rope_width..][..self.rope_width].to_vec(),
            ]
            .concat();
            let line = |position: u32| &lines[self.place((row.0, position))..][..self.record()];
            let score = |position: u32| {
                let products = query.iter().zip(line(position)).map(|(q, c)| q * f64::from(*c));
                f64::from(SCALE) * products.sum::<f64>()
            };
            let scores: Vec<f64> = (0..=row.1).map(score).collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            out.extend((0..self.width).map(|channel| {
                let sum = (0..=row.1).zip(&weights).map(|(p, weight)| weight * f64::from(line(p)[channel]));
                sum.sum::<f64>() / total
            }));
        }
        out
    }
}

const SCALE: f32 = 0.4;

/// Minimum positions of a KV split.
const SPLIT_POSITIONS: usize = 4;

fn shapes() -> Vec<Shape> {
    let shape = |heads, width, rope_width, cache, rope, together| Shape {
        heads,
        width,
        rope_width,
        cache,
        rope,
        together,
    };
    vec![
        shape(4, 24, 8, Format::F32, rope_parameters(4, Pairing::Interleaved, 1.25), false),
        shape(1, 120, 8, Format::F16, rope_parameters(4, Pairing::Half, 1.0), true),
        shape(5, 21, 6, Format::F32, rope_parameters(2, Pairing::Half, 1.0), true),
        shape(19, 130, 64, Format::F16, rope_parameters(32, Pairing::Interleaved, 1.0), false),
        shape(2, 300, 80, Format::F32, rope_parameters(40, Pairing::Half, 1.0), true),
        shape(3, 40, 16, Format::F16, long(CONTEXT - 1), false),
        shape(2, 40, 16, Format::F32, with_attention_factor(CONTEXT / 3), true),
    ]
}

/// Rows with their slots and positions.
type Rows<'a> = &'a [(u32, u32)];

fn column(rows: Rows<'_>, of: impl Fn(&(u32, u32)) -> u32) -> Vec<u32> {
    rows.iter().map(of).collect()
}

/// Rows before preparation, and their expected results.
struct Raw {
    queries: Vec<f32>,
    latent: Vec<f32>,
    key: Vec<f32>,
    gain: Vec<f32>,
    q_rope: Vec<Vec<f64>>,
    lines: Vec<Vec<f64>>,
}

fn raw(shape: &Shape, random: &mut Random, rows: Rows<'_>) -> Raw {
    let columns = shape.columns();
    let queries = random.floats(rows.len() * columns.queries_pitch);
    let (latent, key) = match shape.together {
        true => (queries.clone(), queries.clone()),
        false => {
            (random.floats(rows.len() * columns.latent_pitch), random.floats(rows.len() * columns.key_pitch))
        }
    };
    let gain = random.floats(shape.width);
    let (mut q_rope, mut lines) = (Vec::new(), Vec::new());
    for (row, (_, position)) in rows.iter().enumerate() {
        let part =
            |x: &[f32], pitch: usize, first: usize, count: usize| to_f64(&x[row * pitch + first..][..count]);
        let of_queries =
            part(&queries, columns.queries_pitch, columns.q_rope_first, shape.heads * shape.rope_width);
        let heads = of_queries.chunks_exact(shape.rope_width);
        q_rope.push(heads.flat_map(|head| rotated(head, &shape.rope, *position)).collect());
        let of_latent = part(&latent, columns.latent_pitch, columns.latent_first, shape.width);
        let of_key = part(&key, columns.key_pitch, columns.key_first, shape.rope_width);
        let normed = normed(&of_latent, Some(&gain), 1e-6);
        lines.push([normed, rotated(&of_key, &shape.rope, *position)].concat());
    }
    Raw { queries, latent, key, gain, q_rope, lines }
}

#[test]
fn appends_raw_or_prepared_latents() {
    let mut random = Random(31);
    let rows: Rows<'_> = &[(1, 5), (1, 6), (0, 0), (1, 150)];
    let shapes = shapes();
    let kernels = Kernels::of(
        shapes.iter().flat_map(|shape| [shape.append(None), shape.append(Some(shape.prepare()))]),
    );
    for (index, shape) in shapes.iter().enumerate() {
        let before = shape.lines(&mut random, |_| CONTEXT as u32);
        let bytes = bytes_of(&before, shape.cache);
        let (slots, positions) = (column(rows, |row| row.0), column(rows, |row| row.1));
        let scalars = [("rows", rows.len()), ("context", CONTEXT)];
        let check = |found: &[u8], lines: &[Vec<f64>]| {
            let found = to_f32(found, shape.cache);
            let mut expected = to_f64(&before);
            for (row, line) in rows.iter().zip(lines) {
                expected[shape.place(*row)..][..shape.record()].copy_from_slice(line);
            }
            compare(shape, &found, &expected, shape.unit());
        };
        let (latent, key) =
            (random.floats(rows.len() * shape.width), random.floats(rows.len() * shape.rope_width));
        let bindings = [
            ("latent", Input::F32(&latent)),
            ("key", Input::F32(&key)),
            ("slots", Input::U32(&slots)),
            ("positions", Input::U32(&positions)),
            ("latents", Input::Bytes(&bytes)),
        ];
        let outputs = kernels.run(2 * index, &scalars, &bindings);
        let line = |row: usize| {
            [
                to_f64(&latent[row * shape.width..][..shape.width]),
                to_f64(&key[row * shape.rope_width..][..shape.rope_width]),
            ]
            .concat()
        };
        check(&outputs[0], &(0..rows.len()).map(line).collect::<Vec<_>>());

        let raw = raw(shape, &mut random, rows);
        let bindings = [
            ("queries", Input::F32(&raw.queries)),
            ("latent", Input::F32(&raw.latent)),
            ("key", Input::F32(&raw.key)),
            ("gain", Input::F32(&raw.gain)),
            ("slots", Input::U32(&slots)),
            ("positions", Input::U32(&positions)),
            ("q_rope", Input::Uninitialized(rows.len() * shape.heads * shape.rope_width * 4)),
            ("latents", Input::Bytes(&bytes)),
        ];
        let outputs = kernels.run(2 * index + 1, &scalars, &bindings);
        compare(shape, &to_f32(&outputs[0], Format::F32), &raw.q_rope.concat(), 1e-5);
        check(&outputs[1], &raw.lines);
    }
}

#[test]
fn mla_attention_over_latents_matches_the_reference() {
    let mut random = Random(32);
    let shapes = shapes();
    let join = |shape: &Shape| {
        Spec::AttendCombine(Kernel {
            op: AttendCombine { query_heads: shape.heads, width: shape.width, gates: None },
            layout: CombineLayout::default(),
        })
    };
    let kernels = Kernels::of(
        shapes
            .iter()
            .flat_map(|shape| [shape.attend(None), shape.attend(Some(shape.prepare())), join(shape)]),
    );
    for (index, shape) in shapes.iter().enumerate() {
        let batches: [(Rows<'_>, usize); 4] =
            [(&[(0, 0)], 1), (&[(1, 149)], 1), (&[(1, 2), (0, 90)], 5), (&[(0, 7), (1, 121)], 16)];
        for (rows, splits) in batches {
            let count = rows.len();
            let (slots, positions) = (column(rows, |row| row.0), column(rows, |row| row.1));
            let scalars = [
                ("rows", count),
                ("context", CONTEXT),
                ("splits", splits),
                ("split_positions", SPLIT_POSITIONS),
                ("appends", 1),
            ];
            let raw = raw(shape, &mut random, rows);
            let q = random.floats(count * shape.heads * shape.width);
            let many = splits > 1;
            let numbers = count * shape.heads * shape.width;
            let partials = count * shape.heads * splits * (shape.width + 2) * 4;
            let (partials, heads) = if many { (partials, 0) } else { (0, numbers * 4) };
            let joined = |mut outputs: Vec<Vec<u8>>| {
                let whole = outputs.pop().unwrap_or_default();
                let whole = match outputs.pop().filter(|_| many) {
                    None => whole,
                    Some(partials) => kernels
                        .run(
                            3 * index + 2,
                            &scalars,
                            &[
                                ("partials", Input::Bytes(&partials)),
                                ("heads", Input::Uninitialized(numbers * 4)),
                            ],
                        )
                        .swap_remove(0),
                };
                (to_f32(&whole, Format::F32), outputs)
            };
            let expected = |lines: &[f32]| -> Vec<f64> {
                let row = |index: usize| {
                    let q = &q[index * shape.heads * shape.width..][..shape.heads * shape.width];
                    shape.attended(q, &raw.q_rope[index], lines, rows[index])
                };
                (0..count).flat_map(row).collect()
            };

            // The filled cache, and queries after RoPE.
            let reach = |slot: u32| rows.iter().find(|row| row.0 == slot).map_or(0, |row| row.1);
            let lines = shape.lines(&mut random, |slot| reach(slot) + 1);
            let bytes = bytes_of(&lines, shape.cache);
            let q_rope: Vec<f32> = raw.q_rope.concat().iter().map(|x| *x as f32).collect();
            let bindings = [
                ("q", Input::F32(&q)),
                ("q_rope", Input::F32(&q_rope)),
                ("latents", Input::Bytes(&bytes)),
                ("slots", Input::U32(&slots)),
                ("positions", Input::U32(&positions)),
                ("partials", Input::Uninitialized(partials)),
                ("heads", Input::Uninitialized(heads)),
            ];
            let (found, _) = joined(kernels.run(3 * index, &scalars, &bindings));
            compare(shape, &found, &expected(&lines), 1e-5);

            // A row with one split has the bits that it has in a pass where no row has more.
            for row in (0..count).filter(|row| many && positions[*row] < SPLIT_POSITIONS as u32) {
                let of_row = |x: &[f32]| -> Vec<f32> {
                    let width = x.len() / count;
                    x[row * width..][..width].to_vec()
                };
                let bindings = [
                    ("q", Input::F32(&of_row(&q))),
                    ("q_rope", Input::F32(&of_row(&q_rope))),
                    ("latents", Input::Bytes(&bytes)),
                    ("slots", Input::U32(&slots[row..=row])),
                    ("positions", Input::U32(&positions[row..=row])),
                    ("partials", Input::Uninitialized(0)),
                    ("heads", Input::Uninitialized(numbers / count * 4)),
                ];
                let scalars = [("rows", 1), ("context", CONTEXT), ("splits", 1), scalars[3]];
                let alone = kernels.run(3 * index, &scalars, &bindings).pop().unwrap_or_default();
                assert_eq!(to_f32(&alone, Format::F32), of_row(&found), "{shape:?}, row {row}");
            }

            // A row that the kernel prepares and appends to the cache.
            let mut lines = shape.lines(&mut random, reach);
            let bytes = bytes_of(&lines, shape.cache);
            let bindings = [
                ("q", Input::F32(&q)),
                ("queries", Input::F32(&raw.queries)),
                ("latent", Input::F32(&raw.latent)),
                ("key", Input::F32(&raw.key)),
                ("gain", Input::F32(&raw.gain)),
                ("latents", Input::Bytes(&bytes)),
                ("slots", Input::U32(&slots)),
                ("positions", Input::U32(&positions)),
                ("partials", Input::Uninitialized(partials)),
                ("heads", Input::Uninitialized(heads)),
            ];
            let (found, mut outputs) = joined(kernels.run(3 * index + 1, &scalars, &bindings));
            let after = to_f32(&outputs.swap_remove(0), shape.cache);
            for (row, line) in rows.iter().zip(&raw.lines) {
                let range = shape.place(*row)..shape.place(*row) + shape.record();
                compare(shape, &after[range.clone()], line, shape.unit());
                lines[range.clone()].copy_from_slice(&after[range]);
            }
            let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
            assert!(after.iter().zip(&lines).all(same), "{shape:?} wrote where it should not");
            compare(shape, &found, &expected(&lines), 2e-5);
        }
    }
}

#[test]
fn loads_latents_of_a_tile_from_the_cache() {
    let mut random = Random(34);
    let shapes = shapes();
    let load_latents = |shape: &Shape| {
        let Shape { width, rope_width, cache, .. } = *shape;
        Spec::MlaLoadLatents(MlaLoadLatents { width, rope_width, cache })
    };
    let kernels = Kernels::of(shapes.iter().map(load_latents));
    for (index, shape) in shapes.iter().enumerate() {
        let lines = shape.lines(&mut random, |slot| 140 * slot);
        let bytes = bytes_of(&lines, shape.cache);
        for (begin, rows) in [(0, 1), (7, 120)] {
            let bindings = [
                ("latents", Input::Bytes(&bytes)),
                ("slots", Input::U32(&[1])),
                ("latent_tile", Input::Uninitialized(rows * shape.width * 4)),
                ("k_rope", Input::Uninitialized(rows * shape.rope_width * 4)),
            ];
            let scalars = [("rows", rows), ("context", CONTEXT), ("begin", begin)];
            let outputs = kernels.run(index, &scalars, &bindings);
            let of = |part: fn(&Shape, &[f32]) -> Vec<f32>| -> Vec<f32> {
                let line = |position: u32| &lines[shape.place((1, position))..][..shape.record()];
                (begin as u32..(begin + rows) as u32)
                    .flat_map(|position| part(shape, line(position)))
                    .collect()
            };
            assert_eq!(to_f32(&outputs[0], Format::F32), of(|shape, line| line[..shape.width].to_vec()));
            assert_eq!(to_f32(&outputs[1], Format::F32), of(|shape, line| line[shape.width..].to_vec()));
        }
    }
}
