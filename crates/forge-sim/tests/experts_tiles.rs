//! Expert kernels for prefill in the kernel checker, compared with plain arithmetic: grouping by expert,
//! tiled products and their sums.

use forge_ir::Record;
use forge_kernels::spec::{ExpertsTileLayout, Kernel, Operand};
use forge_kernels::{Spec, assemble, render};
use forge_ops::{Activation, ExpertsCombine, ExpertsGroup, ExpertsTiles, Format, Gating};
use forge_sim::{BufferId, Program, Sim};

/// A layer's sizes, and whether it has biases and clamped gates.
#[derive(Clone, Copy, Debug)]
struct Layer {
    rows: usize,
    experts: usize,
    chosen: usize,
    width: usize,
    inner: usize,
    tile_rows: usize,
    biased: bool,
}

const LIMIT: f64 = 0.75;
const SHARPNESS: f64 = 1.5;

/// Layers with experts that most rows use, one row uses, and no row uses; with a single expert; and with more
/// rows than a tile.
const LAYERS: [Layer; 4] = [
    Layer { rows: 28, experts: 40, chosen: 3, width: 45, inner: 22, tile_rows: 16, biased: false },
    Layer { rows: 37, experts: 7, chosen: 2, width: 36, inner: 70, tile_rows: 16, biased: true },
    Layer { rows: 17, experts: 1, chosen: 1, width: 64, inner: 32, tile_rows: 32, biased: true },
    Layer { rows: 20, experts: 5, chosen: 5, width: 33, inner: 8, tile_rows: 32, biased: false },
];

fn floats(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0) * 0.9).collect()
}

impl Layer {
    /// Four of five rows use the first experts.
    fn expert(&self, row: usize, place: usize) -> usize {
        let first = if row.is_multiple_of(5) { row } else { 0 };
        (first + self.chosen - 1 - place) % self.experts
    }

    fn weight(&self, row: usize, place: usize) -> f32 {
        ((row * self.chosen + place) % 13) as f32 / 13.0 - 0.25
    }

    fn routes(&self) -> Vec<f32> {
        let of = |row: usize| {
            let experts = (0..self.chosen).map(move |place| f32::from_bits(self.expert(row, place) as u32));
            experts.chain((0..self.chosen).map(move |place| self.weight(row, place)))
        };
        (0..self.rows).flat_map(of).collect()
    }

    /// Pairs and tiles by the definition.
    fn grouped(&self) -> (Vec<u32>, Vec<u32>) {
        let (mut pairs, mut tiles) = (Vec::new(), Vec::new());
        for expert in 0..self.experts {
            let all = (0..self.rows).flat_map(|row| (0..self.chosen).map(move |place| (row, place)));
            let own: Vec<u32> = all
                .filter(|(row, place)| self.expert(*row, *place) == expert)
                .map(|(row, place)| (row * self.chosen + place) as u32)
                .collect();
            for some in own.chunks(self.tile_rows) {
                tiles.extend([expert as u32, pairs.len() as u32, some.len() as u32]);
                pairs.extend(some);
            }
        }
        tiles.resize(3 * self.group().tiles(self.rows), 0);
        (pairs, tiles)
    }

    fn group(&self) -> ExpertsGroup {
        ExpertsGroup { experts: self.experts, chosen: self.chosen, tile_rows: self.tile_rows }
    }

    fn tiles(&self, [outputs, inputs]: [usize; 2], gating: Option<Gating>) -> Spec {
        Spec::ExpertsTiles(Kernel {
            op: ExpertsTiles {
                format: Format::F32,
                experts: self.experts,
                chosen: self.chosen,
                shared: 0,
                outputs,
                inputs,
                record: self.record(),
                bias: self.biased,
                gating,
                tile_rows: self.tile_rows,
            },
            layout: ExpertsTileLayout { operand: Operand::F32, tile_outputs: 32 },
        })
    }

    /// Bytes from one expert's matrix to the next expert's, for both matrices.
    fn record(&self) -> usize {
        let Layer { width, inner, .. } = *self;
        Record::of(&[(Format::F32, [2 * inner, width]), (Format::F32, [width, inner])]).bytes
    }

    fn gating(&self) -> Gating {
        match self.biased {
            false => Gating::Plain(Activation::Silu),
            true => Gating::Clamped { limit: LIMIT as f32, sharpness: SHARPNESS as f32 },
        }
    }

    fn gated(&self, gate: f64, up: f64) -> f64 {
        if !self.biased {
            return gate / (1.0 + (-gate).exp()) * up;
        }
        let gate = gate.min(LIMIT);
        gate / (1.0 + (-SHARPNESS * gate).exp()) * (up.clamp(-LIMIT, LIMIT) + 1.0)
    }
}

/// Rows of a matrix, padded to whole blocks.
fn padded(plain: &[f32], columns: usize) -> Vec<f32> {
    let row = |row: &[f32]| {
        let mut padded = row.to_vec();
        padded.resize(columns.next_multiple_of(32), 0.0);
        padded
    };
    plain.chunks_exact(columns).flat_map(row).collect()
}

/// The experts' matrices in the expert cache: in reverse order, with this stride, and NaN in between.
fn in_cache(stack: &[f32], experts: usize, record: usize) -> Vec<f32> {
    let of_one = stack.len() / experts;
    let mut expert_slots = vec![f32::NAN; (experts - 1) * record / 4 + of_one];
    for (slot, matrix) in expert_slots.chunks_mut(record / 4).zip(stack.chunks(of_one).rev()) {
        slot[..of_one].copy_from_slice(matrix);
    }
    expert_slots
}

fn product(matrix: &[f32], row: usize, x: &[f64]) -> f64 {
    matrix[row * x.len()..].iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()
}

fn to_f64(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|number| f64::from(*number)).collect()
}

#[test]
fn expert_gemm_matches_the_reference() {
    for layer in LAYERS {
        let Layer { rows, experts, chosen, width, inner, biased, .. } = layer;
        let join = ExpertsCombine { chosen, width, adds: true };
        let specs = [
            Spec::ExpertsGroup(layer.group()),
            layer.tiles([2 * inner, width], Some(layer.gating())),
            layer.tiles([width, inner], None),
            Spec::ExpertsCombine(join),
        ];
        let kernels: Vec<_> = specs
            .iter()
            .enumerate()
            .map(|(index, spec)| render(&format!("kernel_{index}"), spec).unwrap())
            .collect();
        let program = Program::compile(&assemble(&kernels, "")).unwrap_or_else(|error| panic!("{error}"));
        let mut sim = Sim::new(&program).unwrap();
        let (gate_up, down) = (floats(experts * 2 * inner * width, 1), floats(experts * width * inner, 2));
        let biases = [floats(experts * 2 * inner, 3), floats(experts * width, 4)];
        let (x, before) = (floats(rows * width, 5), floats(rows * width, 6));
        let [gate_up_id, down_id, inner_bias, down_bias, x_id, y_id, routes] = [
            &in_cache(&padded(&gate_up, width), experts, layer.record()),
            &in_cache(&padded(&down, inner), experts, layer.record()),
            &biases[0],
            &biases[1],
            &x,
            &before,
            &layer.routes(),
        ]
        .map(|numbers| sim.memory.floats(numbers).unwrap());
        let most = layer.group().tiles(rows);
        let [pairs, tiles, inner_id, each] =
            [rows * chosen, 3 * most, rows * chosen * inner, rows * chosen * width]
                .map(|count| sim.memory.unwritten(count * 4).unwrap());
        let bias = |id: BufferId| biased.then(|| id.read());
        let scalars = [rows as u32];
        let grid = |groups: [usize; 3]| groups.map(|side| side as _);
        sim.dispatch("kernel_0", &[routes.read(), pairs.write(), tiles.write()], &scalars, grid([1, 1, 1]));
        sim.barrier();
        for (name, weight, x, own_bias, y, outputs) in [
            ("kernel_1", gate_up_id, x_id, inner_bias, inner_id, 2 * inner),
            ("kernel_2", down_id, inner_id, down_bias, each, width),
        ] {
            // Every other expert is cached.
            for turn in 0..2 {
                let slot = |expert: usize| match expert % 2 == turn {
                    true => (experts - 1 - expert) as u32,
                    false => u32::MAX,
                };
                let expert_slots: Vec<u8> = (0..experts).map(slot).flat_map(u32::to_le_bytes).collect();
                let expert_slots = sim.memory.bytes(&expert_slots).unwrap();
                let bound = [weight.read(), expert_slots.read(), pairs.read(), tiles.read(), x.read()];
                let bound: Vec<_> = bound.into_iter().chain(bias(own_bias)).chain([y.write()]).collect();
                sim.dispatch(name, &bound, &scalars, grid([most, outputs.div_ceil(32), 1]));
                sim.barrier();
            }
        }
        let groups = grid([width.div_ceil(128), rows, 1]);
        sim.dispatch("kernel_3", &[routes.read(), each.read(), y_id.write()], &scalars, groups);
        assert!(sim.faults().is_empty(), "{layer:?}: {:?}", sim.faults());

        // Equal, index by index.
        let words = |id| sim.memory.read_floats(id).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!((words(pairs), words(tiles)), layer.grouped(), "{layer:?}");
        let (found_inner, found) = (sim.memory.read_floats(inner_id), sim.memory.read_floats(y_id));
        let near = |found: f32, expected: f64| {
            assert!(
                (f64::from(found) - expected).abs() < 2e-5 * expected.abs().max(1.0),
                "{layer:?}: {found} {expected}"
            );
        };
        let bias = |matrix: usize, row: usize| if biased { f64::from(biases[matrix][row]) } else { 0.0 };
        for row in 0..rows {
            let mut sums = to_f64(&before[row * width..][..width]);
            let x = to_f64(&x[row * width..][..width]);
            for place in 0..chosen {
                let expert = layer.expert(row, place);
                let part = |at: usize| product(&gate_up, at, &x) + bias(0, at);
                let at = |i: usize| expert * 2 * inner + 2 * i;
                let own: Vec<f64> = (0..inner).map(|i| layer.gated(part(at(i)), part(at(i) + 1))).collect();
                for (i, expected) in own.iter().enumerate() {
                    near(found_inner[(row * chosen + place) * inner + i], *expected);
                }
                let weight = f64::from(layer.weight(row, place));
                for (output, sum) in sums.iter_mut().enumerate() {
                    let at = expert * width + output;
                    *sum += weight * (product(&down, at, &own) + bias(1, at));
                }
            }
            for (found, expected) in found[row * width..][..width].iter().zip(sums) {
                near(*found, expected);
            }
        }
    }
}
