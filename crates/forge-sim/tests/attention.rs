//! What kernels of norms, rotation, attention and functions element by element compute, against plain f64; under the
//! referee, which must have nothing to say.

use forge_ir::{Activation, Format, Long, Pairing, Rotation};
use forge_kernels::spec::{
    Append, AttendJoin, AttendSplit, AttendTiled, Each, Elementwise, Function, HeadNorm, LayerNorm, Prologue,
    RmsNorm, Rotate, RotateAppend,
};
use forge_kernels::{Instance, Spec, assemble, prologue_fits, render};
use forge_sim::{Program, Sim};
use half::f16;

/// Numbers that look random and are the same every time, between -1 and 1.
struct Random(u32);

impl Random {
    fn number(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// What a buffer is given, or how many bytes a kernel has to write.
enum Given<'a> {
    Numbers(&'a [f32]),
    Words(&'a [u32]),
    /// Read and written.
    Bytes(&'a [u8]),
    Unwritten(usize),
}

/// Kernels compiled together, by their place.
struct Kernels {
    instances: Vec<Instance>,
    program: Program,
}

impl Kernels {
    fn of(specs: impl IntoIterator<Item = Spec>) -> Kernels {
        let instances: Vec<Instance> = specs
            .into_iter()
            .enumerate()
            .map(|(i, spec)| render(&format!("kernel_{i}"), &spec).unwrap_or_else(|error| panic!("{error}")))
            .collect();
        let program = Program::compile(&assemble(&instances, "")).unwrap_or_else(|error| panic!("{error}"));
        Kernels { instances, program }
    }

    /// Runs kernel `index`; gives the bytes of what it may write, in order.
    fn run(&self, index: usize, scalars: &[(&str, usize)], given: &[(&str, Given<'_>)]) -> Vec<Vec<u8>> {
        let instance = &self.instances[index];
        let mut sim = Sim::new(&self.program).unwrap_or_else(|error| panic!("{error}"));
        let mut written = Vec::new();
        let mut bindings = Vec::new();
        for buffer in &instance.decl.buffers {
            let (_, content) = given
                .iter()
                .find(|(name, _)| *name == buffer.name)
                .unwrap_or_else(|| panic!("nothing for {}", buffer.name));
            let id = match content {
                Given::Numbers(numbers) => sim.memory.floats(numbers),
                Given::Words(words) => sim.memory.words(words),
                Given::Bytes(bytes) => sim.memory.bytes(bytes),
                Given::Unwritten(bytes) => sim.memory.unwritten(*bytes),
            };
            let id = id.unwrap_or_else(|error| panic!("{error}"));
            if buffer.written {
                written.push(id);
            }
            bindings.push(if buffer.written { id.write() } else { id.read() });
        }
        let scalars: Vec<(&str, u32)> = scalars.iter().map(|&(name, value)| (name, value as u32)).collect();
        let value = |name: &String| {
            scalars.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name}")).1
        };
        let values: Vec<u32> = instance.decl.scalars.iter().map(value).collect();
        let groups = [0, 1, 2].map(|axis| instance.decl.grid[axis].eval(&scalars).unwrap_or(0));
        sim.dispatch(&instance.name, &bindings, &values, groups);
        assert!(sim.faults().is_empty(), "{:?}: {:?}", instance.spec, sim.faults());
        written.into_iter().map(|id| sim.memory.contents(id).to_vec()).collect()
    }
}

fn numbers_of(bytes: &[u8], format: Format) -> Vec<f32> {
    match format {
        Format::F16 => bytes.chunks_exact(2).map(|v| f16::from_le_bytes([v[0], v[1]]).to_f32()).collect(),
        _ => bytes.chunks_exact(4).map(|v| f32::from_le_bytes([v[0], v[1], v[2], v[3]])).collect(),
    }
}

fn bytes_of(numbers: &[f32], format: Format) -> Vec<u8> {
    match format {
        Format::F16 => numbers.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        _ => numbers.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().copied().map(f64::from).collect()
}

/// Compares with numbers of about the size of `size`.
fn compare(what: &dyn std::fmt::Debug, found: &[f32], wanted: &[f64], error: f64) {
    assert_eq!(found.len(), wanted.len(), "{what:?}");
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let off = (f64::from(*found) - wanted).abs();
        assert!(off <= error * wanted.abs().max(1.0), "{what:?}: number {index} is {found}, not {wanted}");
    }
}

fn rotation(pairs: usize, pairing: Pairing, magnitude: f32) -> Rotation {
    let frequencies = (0..pairs).map(|k| 10_000f32.powf(-(k as f32) / pairs as f32)).collect();
    Rotation { frequencies, pairing, magnitude, long: None }
}

/// One that is another in contexts of more than so many positions.
fn long(beyond: usize) -> Rotation {
    let plain = rotation(8, Pairing::Half, 1.25);
    let frequencies = plain.frequencies.iter().map(|frequency| frequency / 7.0).collect();
    Rotation { long: Some(Long::Other { beyond, frequencies }), ..plain }
}

/// One that is slower in contexts of more than so many positions, the longer the slower.
fn stretched(beyond: usize) -> Rotation {
    Rotation { long: Some(Long::Stretched { beyond, factor: 3.5 }), ..rotation(8, Pairing::Half, 1.0) }
}

fn normed(x: &[f64], gain: Option<&[f32]>, epsilon: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
    x.iter().enumerate().map(|(i, v)| v * factor * gain.map_or(1.0, |gain| f64::from(gain[i]))).collect()
}

fn rotated(head: &[f64], rotation: &Rotation, position: u32) -> Vec<f64> {
    let pairs = rotation.frequencies.len();
    let mut turned = head.to_vec();
    for (k, frequency) in rotation.within(CONTEXT).iter().enumerate() {
        let (one, other) = match rotation.pairing {
            Pairing::Half => (k, k + pairs),
            Pairing::Interleaved => (2 * k, 2 * k + 1),
        };
        let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
        let magnitude = f64::from(rotation.magnitude);
        turned[one] = (head[one] * cosine - head[other] * sine) * magnitude;
        turned[other] = (head[other] * cosine + head[one] * sine) * magnitude;
    }
    turned
}

/// x times the normal distribution's share below x, which is summed up in so many steps.
fn gelu(x: f64) -> f64 {
    let density = |y: f64| (-y * y / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() > 12.0 {
        return x.max(0.0);
    }
    let (end, steps) = (x.abs(), 2000);
    let step = end / f64::from(steps);
    // Simpson's rule.
    let weight = |i: i32| if i == 0 || i == steps { 1.0 } else { f64::from(2 + i % 2 * 2) };
    let share = (0..=steps).map(|i| weight(i) * density(f64::from(i) * step)).sum::<f64>() * step / 3.0;
    x * (0.5 + share * x.signum())
}

#[test]
fn layer_norms() {
    let mut random = Random(6);
    let rows = 3;
    let norms = [(100, true, false), (1030, false, true), (33, true, true), (4, false, false)]
        .map(|(width, bias, gather)| LayerNorm { width, epsilon: 1e-5, bias, gather });
    let kernels = Kernels::of(norms.iter().map(|norm| Spec::LayerNorm(norm.clone())));
    for (index, norm) in norms.iter().enumerate() {
        let width = norm.width;
        // Far from 0, so that a variance from the squares of x alone would be none.
        let x: Vec<f32> = random.numbers(rows * width).into_iter().map(|x| x + 300.0).collect();
        let [gain, bias] = [0; 2].map(|_| random.numbers(width));
        let order = if norm.gather { [2, 0, 2] } else { [0, 1, 2] };
        let given = [
            ("x", Given::Numbers(&x)),
            ("gain", Given::Numbers(&gain)),
            ("bias", Given::Numbers(&bias)),
            ("wanted", Given::Words(&order)),
            ("y", Given::Unwritten(rows * width * 4)),
        ];
        let y = kernels.run(index, &[("rows", rows)], &given);
        let mut wanted = Vec::new();
        for &row in &order {
            let row = wide(&x[row as usize * width..][..width]);
            let mean = row.iter().sum::<f64>() / width as f64;
            let rest: Vec<f64> = row.iter().map(|x| x - mean).collect();
            let plus = |i: usize| if norm.bias { f64::from(bias[i]) } else { 0.0 };
            wanted.extend(
                normed(&rest, Some(&gain), norm.epsilon).iter().enumerate().map(|(i, y)| y + plus(i)),
            );
        }
        // What the mean of numbers around 300 loses.
        compare(norm, &numbers_of(&y[0], Format::F32), &wanted, 1e-4);
    }
}

#[test]
fn norms_and_functions() {
    let mut random = Random(1);
    let rows = 3;
    let norms = [(100, 1, true, false), (1030, 1, false, true), (20, 3, true, false), (136, 2, true, true)]
        .map(|(width, parts, gain, gather)| RmsNorm { width, parts, epsilon: 1e-5, gain, gather });
    let functions = [
        Function::Each(Each::Activate(Activation::Silu)),
        Function::Each(Each::Activate(Activation::GeluTanh)),
        Function::Each(Each::Activate(Activation::Gelu)),
        Function::Each(Each::Activate(Activation::Relu)),
        Function::Each(Each::Softcap(30.0)),
        Function::Each(Each::Scale(-0.22)),
        Function::Multiply,
        Function::Add,
    ];
    let width = 300;
    let kernels = Kernels::of(
        norms
            .iter()
            .map(|norm| Spec::RmsNorm(norm.clone()))
            .chain(functions.map(|function| Spec::Elementwise(Elementwise { function, width }))),
    );
    for (index, norm) in norms.iter().enumerate() {
        let row = norm.width * norm.parts;
        let (x, gain) = (random.numbers(rows * row), random.numbers(norm.width));
        let order = if norm.gather { [2, 0, 2] } else { [0, 1, 2] };
        let given = [
            ("x", Given::Numbers(&x)),
            ("gain", Given::Numbers(&gain)),
            ("wanted", Given::Words(&order)),
            ("y", Given::Unwritten(rows * row * 4)),
        ];
        let y = kernels.run(index, &[("rows", rows)], &given);
        let parts = order.iter().flat_map(|&at| x[at as usize * row..][..row].chunks_exact(norm.width));
        let gain = norm.gain.then_some(&gain[..]);
        let wanted: Vec<f64> = parts.flat_map(|part| normed(&wide(part), gain, norm.epsilon)).collect();
        compare(norm, &numbers_of(&y[0], Format::F32), &wanted, 2e-6);
    }
    // From tiny to far beyond where exp overflows.
    let a: Vec<f32> = (0..rows * width).map(|i| random.number() * 10f32.powi((i % 30) as i32 - 4)).collect();
    let b = random.numbers(rows * width);
    for (index, function) in functions.iter().enumerate() {
        let given =
            [("a", Given::Numbers(&a)), ("b", Given::Numbers(&b)), ("y", Given::Unwritten(rows * width * 4))];
        let y = kernels.run(norms.len() + index, &[("rows", rows)], &given);
        let wanted = wide(&a).into_iter().zip(wide(&b)).map(|(a, b)| match *function {
            Function::Each(Each::Activate(Activation::Silu)) => a / (1.0 + (-a).exp()),
            Function::Each(Each::Activate(Activation::GeluTanh)) => {
                // Half of 1 + tanh(u), without losing its digits: the logistic of 2 u.
                a / (1.0 + (-1.595_769_121_605_730_7 * (a + 0.044715 * a * a * a)).exp())
            }
            Function::Each(Each::Activate(Activation::Gelu)) => gelu(a),
            Function::Each(Each::Activate(Activation::Relu)) => a.max(0.0),
            Function::Each(Each::Softcap(cap)) => f64::from(cap) * (a / f64::from(cap)).tanh(),
            Function::Each(Each::Scale(factor)) => f64::from(factor) * a,
            Function::Multiply => a * b,
            Function::Add => a + b,
        });
        compare(function, &numbers_of(&y[0], Format::F32), &wanted.collect::<Vec<_>>(), 1e-6);
    }
}

/// A layer's heads, and what attention does with them.
#[derive(Clone, Debug)]
struct Shape {
    query_heads: usize,
    key_heads: usize,
    width: usize,
    cache: Format,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: bool,
    norm: Option<HeadNorm>,
    rotation: Rotation,
}

impl Shape {
    fn group(&self) -> usize {
        self.query_heads / self.key_heads
    }

    fn scale(&self) -> f32 {
        2.0 / (self.width as f32).sqrt()
    }

    fn split(&self, prologue: bool) -> Spec {
        let Shape { query_heads, key_heads, width, cache, window, softcap, sinks, norm, .. } = *self;
        let (rotation, pairing) = (self.rotation.clone(), self.rotation.pairing);
        let prologue = prologue.then_some(Prologue { norm, rotation, pairing });
        let scale = self.scale();
        Spec::AttendSplit(AttendSplit {
            query_heads,
            key_heads,
            width,
            cache,
            scale,
            window,
            softcap,
            sinks,
            prologue,
        })
    }

    fn tiled(&self) -> Spec {
        let Shape { query_heads, key_heads, width, cache, window, softcap, sinks, .. } = *self;
        let scale = self.scale();
        Spec::AttendTiled(AttendTiled { query_heads, key_heads, width, cache, scale, window, softcap, sinks })
    }

    fn join(&self) -> Spec {
        Spec::AttendJoin(AttendJoin { query_heads: self.query_heads, width: self.width })
    }

    fn rotate_append(&self) -> Spec {
        let Shape { query_heads, key_heads, width, cache, norm, .. } = *self;
        let (rotation, pairing) = (self.rotation.clone(), self.rotation.pairing);
        Spec::RotateAppend(RotateAppend { query_heads, key_heads, width, cache, norm, rotation, pairing })
    }

    /// Where a position of a slot begins in the cache.
    fn place(&self, slot: u32, head: usize, position: usize) -> usize {
        ((slot as usize * self.key_heads + head) * CONTEXT + position) * self.width
    }

    fn cache_count(&self) -> usize {
        SLOTS * self.key_heads * CONTEXT * self.width
    }

    /// What one row's query heads get.
    fn attended(
        &self,
        q: &[f64],
        keys: &[f32],
        values: &[f32],
        sinks: &[f32],
        slot: u32,
        position: usize,
    ) -> Vec<f64> {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut heads = Vec::new();
        for (head, q) in q.chunks_exact(self.width).enumerate() {
            let at = |p: usize| self.place(slot, head / self.group(), p);
            let score = |p: usize| {
                let key = &keys[at(p)..][..self.width];
                let score = q.iter().zip(key).map(|(a, &b)| a * f64::from(b)).sum::<f64>();
                let score = score * f64::from(self.scale());
                self.softcap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
            };
            let scores: Vec<f64> = (first..=position).map(score).collect();
            let sink = self.sinks.then(|| f64::from(sinks[head]));
            let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let total = scores.iter().copied().chain(sink).map(|score| (score - largest).exp()).sum::<f64>();
            let mut sums = vec![0.0; self.width];
            for (p, score) in (first..=position).zip(scores) {
                for (sum, &v) in sums.iter_mut().zip(&values[at(p)..][..self.width]) {
                    *sum += (score - largest).exp() / total * f64::from(v);
                }
            }
            heads.extend(sums);
        }
        heads
    }

    /// Query, key and value heads of a row of qkv, as attention sees them.
    fn prepared(&self, row: &[f32], gains: &[Vec<f32>; 2], position: u32) -> [Vec<f64>; 3] {
        let mut prepared = [const { Vec::new() }; 3];
        for (number, head) in row.chunks_exact(self.width).enumerate() {
            let kind = usize::from(number >= self.query_heads)
                + usize::from(number >= self.query_heads + self.key_heads);
            let mut head = wide(head);
            if kind < 2 {
                let norm = |head: Vec<f64>, turned| match self.norm {
                    Some(norm) if norm.turned == turned => normed(&head, Some(&gains[kind]), norm.epsilon),
                    _ => head,
                };
                head = norm(rotated(&norm(head, false), &self.rotation, position), true);
            }
            prepared[kind].extend(head);
        }
        prepared
    }
}

const CONTEXT: usize = 160;
const SLOTS: usize = 2;

/// Sizes and options that meet every branch of the templates.
fn shapes() -> Vec<Shape> {
    let plain = |query_heads, key_heads, width, cache| Shape {
        query_heads,
        key_heads,
        width,
        cache,
        window: None,
        softcap: None,
        sinks: false,
        norm: None,
        rotation: rotation(width / 2, Pairing::Half, 1.0),
    };
    let norm = Some(HeadNorm { epsilon: 1e-6, turned: false });
    let turned = Some(HeadNorm { epsilon: 1e-6, turned: true });
    vec![
        Shape { norm, ..plain(4, 2, 128, Format::F16) },
        Shape { norm, rotation: rotation(7, Pairing::Half, 1.25), ..plain(9, 3, 20, Format::F32) },
        Shape {
            norm,
            window: Some(19),
            softcap: Some(2.0),
            sinks: true,
            rotation: rotation(20, Pairing::Interleaved, 1.0),
            ..plain(10, 2, 80, Format::F16)
        },
        Shape { window: Some(1000), softcap: Some(1.0), norm, ..plain(2, 2, 256, Format::F32) },
        Shape { sinks: true, ..plain(13, 1, 6, Format::F16) },
        Shape { window: Some(1), sinks: true, ..plain(3, 3, 64, Format::F32) },
        plain(2, 2, 96, Format::F16),
        // Norms of heads that have been turned, as a whole and in part.
        Shape { norm: turned, ..plain(4, 2, 16, Format::F32) },
        Shape {
            norm: turned,
            rotation: rotation(5, Pairing::Interleaved, 1.0),
            ..plain(3, 1, 20, Format::F16)
        },
        // A long context's own frequencies, and those of one that is as long as any that is not long.
        Shape { rotation: long(CONTEXT - 1), ..plain(4, 2, 16, Format::F32) },
        Shape { norm, rotation: long(CONTEXT), ..plain(4, 2, 16, Format::F32) },
        Shape { norm, rotation: stretched(CONTEXT / 3), ..plain(4, 2, 16, Format::F32) },
        Shape { rotation: stretched(CONTEXT), ..plain(4, 2, 16, Format::F32) },
        // Queries that do not fit threadgroup memory, and so nothing to prepare them in.
        Shape { sinks: true, ..plain(9, 1, 256, Format::F16) },
        Shape { softcap: Some(1.0), ..plain(18, 1, 126, Format::F32) },
    ]
}

/// Rows of a batch by slot and position; rows of a slot are neighbours.
struct Batch {
    slots: Vec<u32>,
    positions: Vec<u32>,
}

impl Batch {
    fn of(rows: &[(u32, u32)]) -> Batch {
        let (slots, positions) = rows.iter().copied().unzip();
        Batch { slots, positions }
    }

    fn rows(&self) -> usize {
        self.slots.len()
    }
}

/// A cache, as bytes, and the numbers that it holds. What no row may see is not a number.
fn cache(random: &mut Random, shape: &Shape, seen: impl Fn(u32) -> usize) -> (Vec<u8>, Vec<f32>) {
    let mut numbers = random.numbers(shape.cache_count());
    for slot in 0..SLOTS as u32 {
        for head in 0..shape.key_heads {
            numbers[shape.place(slot, head, seen(slot))..shape.place(slot, head, CONTEXT)].fill(f32::NAN);
        }
    }
    let bytes = bytes_of(&numbers, shape.cache);
    let numbers = numbers_of(&bytes, shape.cache);
    (bytes, numbers)
}

#[test]
fn attention_of_few_and_many_rows() {
    let shapes = shapes();
    let kernels =
        Kernels::of(shapes.iter().flat_map(|shape| [shape.split(false), shape.tiled(), shape.join()]));
    let mut random = Random(2);
    for (index, shape) in shapes.iter().enumerate() {
        let batches = [
            (Batch::of(&[(0, 0)]), 1),
            (Batch::of(&[(1, 150)]), 5),
            (Batch::of(&[(0, 33), (1, 2), (0, 90)]), 16),
            (Batch::of(&(0..3).map(|i| (1, i)).chain((40..52).map(|i| (0, i))).collect::<Vec<_>>()), 2),
        ];
        for (batch, splits) in batches {
            let rows = batch.rows();
            let seen = |slot| {
                let of_slot = batch.slots.iter().zip(&batch.positions).filter(|(of, _)| **of == slot);
                of_slot.map(|(_, position)| *position as usize + 1).max().unwrap_or(0)
            };
            let [(key_bytes, keys), (value_bytes, values)] = [0; 2].map(|_| cache(&mut random, shape, seen));
            let q = random.numbers(rows * shape.query_heads * shape.width);
            let sinks = random.numbers(shape.query_heads);
            let row_width = shape.query_heads * shape.width;
            let wanted: Vec<f64> = (0..rows)
                .flat_map(|row| {
                    let q = wide(&q[row * row_width..][..row_width]);
                    let position = batch.positions[row] as usize;
                    shape.attended(&q, &keys, &values, &sinks, batch.slots[row], position)
                })
                .collect();
            let share = shape.width + 2;
            let given = |partials, heads| {
                [
                    ("q", Given::Numbers(&q)),
                    ("keys", Given::Bytes(&key_bytes)),
                    ("values", Given::Bytes(&value_bytes)),
                    ("sinks", Given::Numbers(&sinks)),
                    ("slots", Given::Words(&batch.slots)),
                    ("positions", Given::Words(&batch.positions)),
                    ("partials", Given::Unwritten(partials)),
                    ("heads", Given::Unwritten(heads)),
                ]
            };
            let heads = rows * row_width * 4;
            let scalars = |splits| [("rows", rows), ("context", CONTEXT), ("splits", splits)];
            let whole = kernels.run(3 * index, &scalars(1), &given(0, heads));
            compare(shape, &numbers_of(&whole[1], Format::F32), &wanted, 3e-6);
            let partials = rows * shape.query_heads * splits * share * 4;
            let partials = match splits {
                1 => continue,
                _ => kernels.run(3 * index, &scalars(splits), &given(partials, 0)).swap_remove(0),
            };
            let joined = kernels.run(
                3 * index + 2,
                &scalars(splits),
                &[("partials", Given::Bytes(&partials)), ("heads", Given::Unwritten(heads))],
            );
            compare(shape, &numbers_of(&joined[0], Format::F32), &wanted, 3e-6);
            // Tiles want rows of a slot to be neighbours.
            if batch.slots.windows(2).filter(|pair| pair[0] != pair[1]).count() < 2 {
                let tiled = kernels.run(3 * index + 1, &scalars(1), &given(0, heads));
                compare(shape, &numbers_of(&tiled[0], Format::F32), &wanted, 3e-6);
            }
        }
    }
}

#[test]
fn attention_that_prepares_its_row() {
    let mut shapes = shapes();
    shapes.retain(|shape| prologue_fits(shape.query_heads, shape.key_heads, shape.width));
    let kernels = Kernels::of(shapes.iter().flat_map(|shape| [shape.split(true), shape.join()]));
    let mut random = Random(3);
    for (index, shape) in shapes.iter().enumerate() {
        let batches = [
            (Batch::of(&[(1, 0)]), 1),
            (Batch::of(&[(0, 0)]), 3),
            (Batch::of(&[(0, 18)]), 1),
            (Batch::of(&[(1, 149)]), 1),
            (Batch::of(&[(1, 149), (0, 3)]), 16),
        ];
        for (batch, splits) in batches {
            let rows = batch.rows();
            let row_width = (shape.query_heads + 2 * shape.key_heads) * shape.width;
            let qkv = random.numbers(rows * row_width);
            let gains = [0; 2].map(|_| random.numbers(shape.width));
            let sinks = random.numbers(shape.query_heads);
            let of_row = |slot| batch.slots.iter().position(|of| *of == slot);
            let seen = |slot| of_row(slot).map_or(0, |row| batch.positions[row] as usize);
            let before = [0; 2].map(|_| cache(&mut random, shape, seen).0);
            let many = splits > 1;
            let heads = rows * shape.query_heads * shape.width * 4;
            let partials = rows * shape.query_heads * splits * (shape.width + 2) * 4;
            let scalars = [("rows", rows), ("context", CONTEXT), ("splits", splits)];
            let mut written = kernels.run(
                2 * index,
                &scalars,
                &[
                    ("qkv", Given::Numbers(&qkv)),
                    ("query_gain", Given::Numbers(&gains[0])),
                    ("key_gain", Given::Numbers(&gains[1])),
                    ("keys", Given::Bytes(&before[0])),
                    ("values", Given::Bytes(&before[1])),
                    ("sinks", Given::Numbers(&sinks)),
                    ("slots", Given::Words(&batch.slots)),
                    ("positions", Given::Words(&batch.positions)),
                    ("partials", Given::Unwritten(if many { partials } else { 0 })),
                    ("heads", Given::Unwritten(if many { 0 } else { heads })),
                ],
            );
            if many {
                written[3] = kernels
                    .run(
                        2 * index + 1,
                        &scalars,
                        &[("partials", Given::Bytes(&written[2])), ("heads", Given::Unwritten(heads))],
                    )
                    .swap_remove(0);
            }
            // The cache has the row's key and value, rounded, and what it had.
            let after = [0, 1].map(|which| numbers_of(&written[which], shape.cache));
            let unit = if shape.cache == Format::F16 { 1e-3 } else { 3e-6 };
            let mut wanted = Vec::new();
            let mut expected = before.map(|bytes| numbers_of(&bytes, shape.cache));
            for row in 0..rows {
                let (slot, position) = (batch.slots[row], batch.positions[row]);
                let [queries, key, value] =
                    shape.prepared(&qkv[row * row_width..][..row_width], &gains, position);
                for head in 0..shape.key_heads {
                    let at = shape.place(slot, head, position as usize);
                    for (which, made) in [(0, &key), (1, &value)] {
                        let made = &made[head * shape.width..][..shape.width];
                        compare(shape, &after[which][at..][..shape.width], made, unit);
                        expected[which][at..][..shape.width]
                            .copy_from_slice(&after[which][at..][..shape.width]);
                    }
                }
                wanted.extend(shape.attended(
                    &queries,
                    &after[0],
                    &after[1],
                    &sinks,
                    slot,
                    position as usize,
                ));
            }
            for (after, expected) in after.iter().zip(&expected) {
                let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
                assert!(after.iter().zip(expected).all(same), "{shape:?} wrote where it should not");
            }
            compare(shape, &numbers_of(&written[3], Format::F32), &wanted, 1e-5);
        }
    }
}

#[test]
fn rotation_and_appending() {
    let mut random = Random(4);
    let shapes = shapes();
    let rotate = |shape: &Shape| {
        let rotation = shape.rotation.clone();
        let pairing = rotation.pairing;
        Spec::Rotate(Rotate { heads: shape.query_heads, width: shape.width, rotation, pairing })
    };
    let append = |shape: &Shape| {
        Spec::Append(Append { key_heads: shape.key_heads, width: shape.width, cache: shape.cache })
    };
    let kernels =
        Kernels::of(shapes.iter().flat_map(|shape| [rotate(shape), append(shape), shape.rotate_append()]));
    let batch = Batch::of(&[(1, 100), (1, 101), (0, 0)]);
    let rows = batch.rows();
    for (index, shape) in shapes.iter().enumerate() {
        let Shape { query_heads, key_heads, width, .. } = *shape;
        let scalars = [("rows", rows), ("context", CONTEXT)];
        let positions = ("positions", Given::Words(&batch.positions));
        let x = random.numbers(rows * query_heads * width);
        let given = [("x", Given::Numbers(&x)), positions, ("y", Given::Unwritten(x.len() * 4))];
        let y = kernels.run(3 * index, &scalars, &given);
        let heads = x.chunks_exact(width).enumerate();
        let wanted = heads
            .flat_map(|(at, head)| rotated(&wide(head), &shape.rotation, batch.positions[at / query_heads]));
        compare(shape, &numbers_of(&y[0], Format::F32), &wanted.collect::<Vec<_>>(), 2e-6);

        // Appended as it is, and as a part of qkv.
        let row_width = (query_heads + 2 * key_heads) * width;
        let qkv = random.numbers(rows * row_width);
        let gains = [0; 2].map(|_| random.numbers(width));
        let part = |from: usize, heads: usize| -> Vec<f32> {
            let row = |row: usize| qkv[row * row_width + from * width..][..heads * width].to_vec();
            (0..rows).flat_map(row).collect()
        };
        let bytes = shape.cache_count() * if shape.cache == Format::F16 { 2 } else { 4 };
        let unit = if shape.cache == Format::F16 { 1e-3 } else { 3e-6 };
        let (key, value) = (part(query_heads, key_heads), part(query_heads + key_heads, key_heads));
        let given = |q: usize| {
            [
                ("qkv", Given::Numbers(&qkv)),
                ("query_gain", Given::Numbers(&gains[0])),
                ("key_gain", Given::Numbers(&gains[1])),
                ("key", Given::Numbers(&key)),
                ("value", Given::Numbers(&value)),
                ("slots", Given::Words(&batch.slots)),
                ("positions", Given::Words(&batch.positions)),
                ("q", Given::Unwritten(q)),
                ("keys", Given::Unwritten(bytes)),
                ("values", Given::Unwritten(bytes)),
            ]
        };
        let plain = kernels.run(3 * index + 1, &scalars, &given(0));
        let made = kernels.run(3 * index + 2, &scalars, &given(rows * query_heads * width * 4));
        for row in 0..rows {
            let (slot, position) = (batch.slots[row], batch.positions[row]);
            let [queries, keys, values] =
                shape.prepared(&qkv[row * row_width..][..row_width], &gains, position);
            let q = numbers_of(&made[0], Format::F32);
            compare(shape, &q[row * query_heads * width..][..query_heads * width], &queries, 3e-6);
            for head in 0..key_heads {
                let at = shape.place(slot, head, position as usize);
                let in_row = head * width..(head + 1) * width;
                let in_rows = (row * key_heads + head) * width..(row * key_heads + head + 1) * width;
                let check = |bytes: &[u8], wanted: &[f64]| {
                    compare(shape, &numbers_of(bytes, shape.cache)[at..][..width], wanted, unit)
                };
                check(&made[1], &keys[in_row.clone()]);
                check(&made[2], &values[in_row]);
                check(&plain[0], &wide(&key[in_rows.clone()]));
                check(&plain[1], &wide(&value[in_rows]));
            }
        }
    }
}

/// What one slot's cache holds must not reach another's rows, though a tile has both: neither NaN nor infinity.
#[test]
fn slots_of_a_tile_do_not_meet() {
    let shape = Shape { sinks: false, ..shapes().swap_remove(1) };
    let kernels = Kernels::of([shape.tiled()]);
    let mut random = Random(5);
    let batch = Batch::of(&[(0, 7), (0, 8), (0, 9), (1, 20), (1, 21), (0, 3)]);
    for broken in [f32::NAN, f32::INFINITY] {
        let [keys, values] = [0; 2].map(|_| {
            let mut numbers = random.numbers(shape.cache_count());
            let slot = shape.place(1, 0, 0);
            numbers[slot..].fill(broken);
            numbers
        });
        let q = random.numbers(batch.rows() * shape.query_heads * shape.width);
        let given = [
            ("q", Given::Numbers(&q)),
            ("keys", Given::Bytes(&bytes_of(&keys, shape.cache))),
            ("values", Given::Bytes(&bytes_of(&values, shape.cache))),
            ("slots", Given::Words(&batch.slots)),
            ("positions", Given::Words(&batch.positions)),
            ("heads", Given::Unwritten(q.len() * 4)),
        ];
        let heads = kernels.run(0, &[("rows", batch.rows()), ("context", CONTEXT)], &given);
        let heads = numbers_of(&heads[0], Format::F32);
        let row_width = shape.query_heads * shape.width;
        for row in 0..batch.rows() {
            let found = &heads[row * row_width..][..row_width];
            if batch.slots[row] == 1 {
                assert!(found.iter().all(|v| !v.is_finite()), "row {row} does not show what it sees");
                continue;
            }
            let q = wide(&q[row * row_width..][..row_width]);
            let wanted = shape.attended(&q, &keys, &values, &[], 0, batch.positions[row] as usize);
            compare(&(row, broken), found, &wanted, 3e-6);
        }
    }
}
