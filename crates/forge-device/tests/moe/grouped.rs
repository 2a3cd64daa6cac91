//! Rows grouped by expert: their order, and results bitwise identical to row-by-row execution.

use super::layer::{Layer, Run};
use super::support::{
    Argument, NAN, Random, bytes_of, compare, each_level, kernel, kernel_repacked, run_kernel_as, to_f32,
    words_of,
};
use super::{FORMATS, inner, sum};
use forge_device::cpu::simd::isa::Isa;
use forge_device::cpu::{self};
use forge_device::device::Schedule;
use forge_device::ops::{
    Epilogue, ExpertsCombine, ExpertsGroup, ExpertsInner, ExpertsSum, ExpertsTiles, Format, Gating,
};

fn tiles(call: &cpu::KernelArgs<'_>, shape: &ExpertsTiles) {
    stored!(shape.format, experts_tiles, call, shape);
}

/// Runs a kernel of a spec on buffers and returns its output.
macro_rules! ran {
    ($function:path, $type:ty, $shape:expr, $arguments:expr, $strips:expr, ($rows:expr, $run:expr)) => {{
        kernel_under_test!(SHAPE, $type, $function);
        // One test at a time uses a kernel's static shape.
        static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *SHAPE.write().unwrap() = Some($shape);
        let (names, arguments): (Vec<_>, Vec<_>) = $arguments.into_iter().unzip();
        let kernel = match $strips {
            Some(shape) => kernel_repacked(stringify!($function), names, shape, run),
            None => kernel(stringify!($function), names, run),
        };
        let Run { level, threads, exact, .. } = $run;
        run_kernel_as(kernel, &arguments, &[$rows as u32], Schedule::Batch, level, threads, exact)
    }};
}

/// Rows that share few experts, rows with distinct experts, experts without rows, and experts with more rows
/// than a group holds.
const GROUPED: [(usize, [usize; 4], usize); 5] = [
    (17, [7, 3, 45, 22], 16),
    (40, [1, 1, 64, 33], 16),
    (150, [2, 1, 96, 70], 32),
    (19, [90, 2, 70, 64], 32),
    (33, [5, 5, 33, 40], 32),
];

fn exactly(level: Isa, threads: usize) -> Run {
    Run { level, threads, exact: true, is_repacked: false }
}

#[test]
fn grouped_rows_follow_the_routes_in_order() {
    let mut random = Random(11);
    for (rows, sizes, tile_rows) in GROUPED {
        let layer = Layer::new(&mut random, Format::F32, rows, sizes);
        let shape = ExpertsGroup { experts: layer.experts, chosen: layer.chosen, tile_rows };
        let mut wanted: Vec<(usize, usize)> =
            layer.pairs().enumerate().map(|(pair, (_, expert, _))| (expert, pair)).collect();
        wanted.sort_unstable();
        each_level(|level, threads| {
            let [pairs, tiles] = layer.grouped(shape, exactly(level, threads));
            let found: Vec<usize> = pairs.iter().map(|pair| *pair as usize).collect();
            assert_eq!(found, wanted.iter().map(|(_, pair)| *pair).collect::<Vec<_>>());
            let mut next = 0;
            for tile in tiles.chunks_exact(3) {
                let [expert, first, count] = [0, 1, 2].map(|i| tile[i] as usize);
                if next == pairs.len() {
                    assert_eq!([expert, first, count], [0; 3]);
                    continue;
                }
                let of_expert = wanted[next..].iter().take_while(|(other, _)| *other == expert).count();
                assert_eq!((expert, first), (wanted[next].0, next));
                assert_eq!(count, of_expert.min(tile_rows));
                next += count;
            }
            assert_eq!(next, pairs.len());
        });
    }
}

#[test]
fn grouped_rows_are_bitwise_identical_to_single_rows() {
    let mut random = Random(12);
    for (rows, sizes, tile_rows) in GROUPED {
        for (format, biased) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)]) {
            let mut layer = Layer::new(&mut random, format, rows, sizes);
            if biased {
                layer = layer.biased(&mut random);
            }
            let before = random.floats(rows * layer.width);
            each_level(|level, threads| {
                let what = format!("{level:?} {rows} {format:?} {sizes:?}");
                let run = exactly(level, threads);
                let inner = layer.inner_of_tiles(tile_rows, run);
                compare(&what, &to_f32(&inner), &layer.inner(1.0));
                assert!(inner == layer.inner_by_row(run), "{what}");
                for ending in [Epilogue::Store, Epilogue::Add] {
                    let sums = layer.sum_of_tiles(tile_rows, (&inner, &before, ending), run);
                    let by_row = layer.sum_by_row((&inner, &before, ending), run);
                    assert!(sums == by_row, "{what} {ending:?}");
                }
            });
        }
    }
}

type Named = Vec<(&'static str, Argument)>;

/// The kernels of a layer, expert by expert and row by row.
impl Layer {
    fn grouped(&self, shape: ExpertsGroup, with: Run) -> [Vec<u32>; 2] {
        let rows = self.rows();
        let most = (rows * self.chosen + self.experts * (shape.tile_rows - 1)) / shape.tile_rows;
        let arguments = [
            ("routes", Argument::U32(self.routes.clone())),
            ("pairs", Argument::Output(NAN.repeat(rows * self.chosen))),
            ("tiles", Argument::Output(NAN.repeat(3 * most))),
        ];
        let left = ran!(cpu::experts_group, ExpertsGroup, shape, arguments, None, (rows, with));
        [words_of(&left[0]), words_of(&left[1])]
    }

    /// The planes and the biases of a matrix: the first or the second.
    fn stored(&self, matrix: usize, with: Run) -> (Named, Named) {
        let (names, planes) = self.planes([&self.gate_up, &self.down][matrix], with.is_repacked);
        let bias = self.biases.iter().map(|biases| ("bias", Argument::F32(biases[matrix].clone())));
        (names.into_iter().zip(planes).collect(), bias.collect())
    }

    /// Products of the pairs in the tiles with the first or the second matrix.
    fn products(
        &self,
        matrix: usize,
        (x, gating): (Argument, Option<Gating>),
        tile_rows: usize,
        with: Run,
    ) -> Vec<u8> {
        let Layer { experts, chosen, width, inner, .. } = *self;
        let [pairs, tiles_words] = self.grouped(ExpertsGroup { experts, chosen, tile_rows }, with);
        let (mut arguments, bias) = self.stored(matrix, with);
        arguments.extend([("pairs", Argument::U32(pairs)), ("tiles", Argument::U32(tiles_words))]);
        arguments.push(("x", x));
        arguments.extend(bias);
        let (outputs, inputs, made) = [(2 * inner, width, inner), (width, inner, width)][matrix];
        arguments.push(("y", Argument::Output(NAN.repeat(self.rows() * chosen * made))));
        let bias = self.biases.is_some();
        let record = self.record();
        let format = [&self.gate_up, &self.down][matrix].format;
        let shape = ExpertsTiles {
            format,
            experts,
            chosen,
            shared: 0,
            outputs,
            inputs,
            record,
            bias,
            gating,
            tile_rows,
        };
        let strips = with.is_repacked.then(|| self.repacked([&self.gate_up, &self.down][matrix]));
        ran!(tiles, ExpertsTiles, shape, arguments, strips, (self.rows(), with)).remove(0)
    }

    pub(crate) fn inner_of_tiles(&self, tile_rows: usize, with: Run) -> Vec<u8> {
        let x = Argument::F32(self.x.clone());
        self.products(0, (x, Some(self.inner_shape().gating)), tile_rows, with)
    }

    pub(crate) fn inner_by_row(&self, with: Run) -> Vec<u8> {
        let (mut arguments, bias) = self.stored(0, with);
        arguments.push(("routes", Argument::U32(self.routes.clone())));
        arguments.push(("x", Argument::F32(self.x.clone())));
        arguments.extend(bias);
        arguments.push(("y", Argument::Output(NAN.repeat(self.rows() * self.chosen * self.inner))));
        let shape = self.inner_shape();
        let strips = with.is_repacked.then(|| self.repacked(&self.gate_up));
        ran!(inner, ExpertsInner, shape, arguments, strips, (self.rows(), with)).remove(0)
    }

    pub(crate) fn sum_of_tiles(
        &self,
        tile_rows: usize,
        (given, before, ending): (&[u8], &[f32], Epilogue),
        with: Run,
    ) -> Vec<u8> {
        let x = Argument::F32(to_f32(given));
        let each = self.products(1, (x, None), tile_rows, with);
        let arguments = [
            ("routes", Argument::U32(self.routes.clone())),
            ("each", Argument::F32(to_f32(&each))),
            ("y", Argument::Output(bytes_of(before))),
        ];
        let adds = ending == Epilogue::Add;
        let shape = ExpertsCombine { chosen: self.chosen, width: self.width, adds };
        ran!(cpu::experts_combine, ExpertsCombine, shape, arguments, None, (self.rows(), with)).remove(0)
    }

    pub(crate) fn sum_by_row(
        &self,
        (given, before, ending): (&[u8], &[f32], Epilogue),
        with: Run,
    ) -> Vec<u8> {
        let (mut arguments, bias) = self.stored(1, with);
        arguments.push(("routes", Argument::U32(self.routes.clone())));
        arguments.push(("x", Argument::F32(to_f32(given))));
        arguments.extend(bias);
        arguments.push(("y", Argument::Output(bytes_of(before))));
        let shape = self.sum_shape(ending);
        let strips = with.is_repacked.then(|| self.repacked(&self.down));
        ran!(sum, ExpertsSum, shape, arguments, strips, (self.rows(), with)).remove(0)
    }
}
