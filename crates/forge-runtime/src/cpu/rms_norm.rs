//! Root-mean-square norm of each row. Scalars: rows. Buffers: x, gain, [wanted,] y.

use super::call::Call;
use super::level::Task;
use super::simd::Simd;

/// What the compiler decided.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// Of a row.
    pub width: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Whether row i of y is the norm of row `wanted[i]` of x.
    pub gather: bool,
}

/// Runs this thread's share.
pub fn rms_norm(call: &Call<'_>, shape: &RmsNorm) {
    call.level().run(Norm { call, shape });
}

struct Norm<'a> {
    call: &'a Call<'a>,
    shape: &'a RmsNorm,
}

impl Task for Norm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let RmsNorm { width, epsilon, gather } = *self.shape;
        let rows = self.call.scalar(0);
        let wanted = if gather { self.call.input::<u32>("wanted", rows) } else { &[] };
        let last = wanted.iter().map(|&row| row as usize + 1).max().unwrap_or(rows);
        let x = self.call.input::<f32>("x", last * width);
        let gain = self.call.input::<f32>("gain", width);
        let y = self.call.output::<f32>("y", rows * width);
        let whole = width / S::LANES * S::LANES;
        for row in self.call.share(rows, 1).flatten() {
            let from = if gather { wanted[row] as usize } else { row };
            let x = &x[from * width..(from + 1) * width];
            // SAFETY: this thread alone has this row; vectors up to `whole` lie inside the rows.
            unsafe {
                let y = y.part(row * width..(row + 1) * width);
                let mut squares = S::splat(0.0);
                for i in (0..whole).step_by(S::LANES) {
                    let v = S::load(x.as_ptr().add(i));
                    squares = S::fma(v, v, squares);
                }
                let mut total = S::sum(squares);
                for &v in &x[whole..] {
                    total += v * v;
                }
                let factor = 1.0 / (total / width as f32 + epsilon).sqrt();
                let factors = S::splat(factor);
                for i in (0..whole).step_by(S::LANES) {
                    let v = S::mul(S::load(x.as_ptr().add(i)), factors);
                    S::store(y.as_mut_ptr().add(i), S::mul(v, S::load(gain.as_ptr().add(i))));
                }
                for i in whole..width {
                    y[i] = x[i] * factor * gain[i];
                }
            }
        }
    }
}
