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
use forge_oracle::moe::Routes;

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
        let mut layer = Layer::new(&mut random, Format::F32, rows, sizes);
        for is_skewed in [false, true] {
            if is_skewed {
                layer.routes = Routes::skewed(&mut random, rows, layer.experts, layer.chosen);
            }
            let op = layer.group_op(tile_rows);
            let wanted = layer.routes.grouped(&op);
            each_level(|level, threads| {
                assert_eq!(layer.grouped(op, exactly(level, threads)), wanted, "{level:?} {op:?}");
            });
        }
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
                compare(&what, &to_f32(&inner), &layer.wanted_inner());
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

/// The kernels of a layer, expert by expert and row by row.
impl Layer {
    fn grouped(&self, shape: ExpertsGroup, with: Run) -> [Vec<u32>; 2] {
        let rows = self.rows();
        let arguments = [
            ("routes", Argument::U32(self.routes.words())),
            ("pairs", Argument::Output(NAN.repeat(rows * self.chosen))),
            ("tiles", Argument::Output(NAN.repeat(3 * shape.tiles(rows)))),
        ];
        let left = ran!(cpu::experts_group, ExpertsGroup, shape, arguments, None, (rows, with));
        [words_of(&left[0]), words_of(&left[1])]
    }

    /// Products of the pairs in the tiles with the first or the second matrix.
    fn products(
        &self,
        matrix: usize,
        (x, gating): (Argument, Option<Gating>),
        tile_rows: usize,
        with: Run,
    ) -> Vec<u8> {
        let shape = ExpertsTiles { gating, ..self.tiles_op(matrix, tile_rows) };
        let [pairs, tiles_words] = self.grouped(self.group_op(tile_rows), with);
        let mut arguments = self.weight(matrix, with.is_repacked);
        arguments.extend(self.bias(matrix));
        arguments.extend([("pairs", Argument::U32(pairs)), ("tiles", Argument::U32(tiles_words))]);
        arguments.push(("x", x));
        let made = [self.inner, self.width][matrix];
        arguments.push(("y", Argument::Output(NAN.repeat(self.rows() * self.chosen * made))));
        let strips = with.is_repacked.then(|| self.repacked(matrix));
        ran!(tiles, ExpertsTiles, shape, arguments, strips, (self.rows(), with)).remove(0)
    }

    pub(crate) fn inner_of_tiles(&self, tile_rows: usize, with: Run) -> Vec<u8> {
        let x = Argument::F32(self.x.clone());
        self.products(0, (x, Some(self.gating)), tile_rows, with)
    }

    pub(crate) fn inner_by_row(&self, with: Run) -> Vec<u8> {
        let mut arguments = self.arguments(0, with.is_repacked);
        arguments.push(("x", Argument::F32(self.x.clone())));
        arguments.push(("y", Argument::Output(NAN.repeat(self.rows() * self.chosen * self.inner))));
        let shape = self.inner_op();
        let strips = with.is_repacked.then(|| self.repacked(0));
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
            ("routes", Argument::U32(self.routes.words())),
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
        let mut arguments = self.arguments(1, with.is_repacked);
        arguments.push(("x", Argument::F32(to_f32(given))));
        arguments.push(("y", Argument::Output(bytes_of(before))));
        let shape = self.sum_op(ending);
        let strips = with.is_repacked.then(|| self.repacked(1));
        ran!(sum, ExpertsSum, shape, arguments, strips, (self.rows(), with)).remove(0)
    }
}
