//! Expert kernels for prefill in the kernel checker, compared with plain arithmetic: grouping by expert,
//! tiled products and their sums.

#[path = "execution/mod.rs"]
mod execution;

use execution::Kernels;
use forge_kernels::Spec;
use forge_kernels::spec::{ExpertsTileLayout, Kernel, Operand};
use forge_ops::{ExpertsCombine, Format};
use forge_oracle::compare::{sum, term};
use forge_oracle::moe::{ExpertLayer, Routes, in_records};
use forge_oracle::{Expected, Random, compare, relative, values_of};
use forge_sim::Sim;

/// Rows, and the layer's experts, experts per row, width and inner width; the rows of a tile; and whether it has
/// biases and clamped gates. Most rows, one row or no row have an expert; or there is a single expert; and an
/// expert has more rows than a tile.
const LAYERS: [(usize, [usize; 4], usize, bool); 4] = [
    (28, [40, 3, 45, 22], 16, false),
    (37, [7, 2, 36, 70], 16, true),
    (17, [1, 1, 64, 32], 32, true),
    (20, [5, 5, 33, 8], 32, false),
];

#[test]
fn expert_gemm_matches_the_reference() {
    let mut random = Random(1);
    for (rows, sizes, tile_rows, is_biased) in LAYERS {
        let [experts, chosen, width, inner] = sizes;
        let what = format!("{rows} rows {sizes:?}");
        let mut layer = ExpertLayer::random(&mut random, Format::F32, sizes);
        if is_biased {
            layer = layer.biased(&mut random);
        }
        let routes = Routes::skewed(&mut random, rows, experts, chosen);
        let group = layer.group_op(tile_rows);
        let tiles = |matrix| {
            let layout = ExpertsTileLayout { operand: Operand::F32, tile_outputs: 32 };
            Spec::ExpertsTiles(Kernel { op: layer.tiles_op(matrix, tile_rows), layout })
        };
        let join = Spec::ExpertsCombine(ExpertsCombine { chosen, width, adds: true });
        let program = Kernels::of([Spec::ExpertsGroup(group), tiles(0), tiles(1), join]).program;
        let mut sim = Sim::new(&program).unwrap();
        let [x, before] = [0; 2].map(|_| random.floats(rows * width));
        let weights = [0, 1].map(|matrix| {
            let stacked = in_records(&layer.matrix(matrix).planes[0], experts, layer.record(), true);
            sim.memory.bytes(&stacked).unwrap()
        });
        let biases = [0, 1].map(|matrix| {
            layer.biases.as_ref().map(|biases| sim.memory.floats(&biases[matrix]).unwrap().read())
        });
        let [x_id, y_id] = [&x, &before].map(|numbers| sim.memory.floats(numbers).unwrap());
        let routes_id = sim.memory.words(&routes.words()).unwrap();
        let most = group.tiles(rows);
        let [pairs, tiles, inner_id, each] =
            [rows * chosen, 3 * most, rows * chosen * inner, rows * chosen * width]
                .map(|count| sim.memory.unwritten(count * 4).unwrap());
        let scalars = [rows as u32];
        let grid = |groups: [usize; 3]| groups.map(|side| side as _);
        let bound = [routes_id.read(), pairs.write(), tiles.write()];
        sim.dispatch("kernel_0", &bound, &scalars, grid([1, 1, 1]));
        sim.barrier();
        for (matrix, x, y, outputs) in [(0, x_id, inner_id, 2 * inner), (1, inner_id, each, width)] {
            // Every other expert is cached.
            for turn in 0..2 {
                let slot = |expert: usize| match expert % 2 == turn {
                    true => (experts - 1 - expert) as u32,
                    false => u32::MAX,
                };
                let expert_slots = sim.memory.words(&(0..experts).map(slot).collect::<Vec<_>>()).unwrap();
                let mut bound = vec![weights[matrix].read(), expert_slots.read(), pairs.read(), tiles.read()];
                bound.push(x.read());
                bound.extend(biases[matrix]);
                bound.push(y.write());
                let groups = grid([most, outputs.div_ceil(32), 1]);
                sim.dispatch(&format!("kernel_{}", matrix + 1), &bound, &scalars, groups);
                sim.barrier();
            }
        }
        let groups = grid([width.div_ceil(128), rows, 1]);
        sim.dispatch("kernel_3", &[routes_id.read(), each.read(), y_id.write()], &scalars, groups);
        assert!(sim.faults().is_empty(), "{what}: {:?}", sim.faults());

        // Equal, index by index.
        assert_eq!([pairs, tiles].map(|id| sim.memory.read_words(id)), routes.grouped(&group), "{what}");
        let near = |found: &[f32], expected: &[Expected]| {
            compare(&what, found, &relative(values_of(expected), 1.0), 2e-5);
        };
        let own = layer.inner(&x, &routes, &[]);
        near(&sim.memory.read_floats(inner_id), &own);
        let sums = layer.sum(&own, &routes).into_iter().zip(&before);
        let sums: Vec<Expected> = sums.map(|(of_row, before)| sum(of_row, term(*before))).collect();
        near(&sim.memory.read_floats(y_id), &sums);
    }
}
