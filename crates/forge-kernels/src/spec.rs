//! What a kernel instance is asked to be: every shape, format and knob, before any text exists.
//!
//! A spec says all that a template may know; what follows from it is computed beside its fields. Two equal specs render
//! the same text, so the planner deduplicates instances by comparing specs.
//!
//! Each spec's documentation names the kernel's scalars and buffers in their order, and its grid: threadgroups along
//! x, y and z. "Planes" of a weight are `<weight>_values`, or `<weight>_codes` and `<weight>_scales`; values and codes are
//! read as packets of 16 bytes (`uint4`), scales as `half`.

use crate::context::DEFAULT_MEMORY;
use forge_ir::{Activation, Bits, Format};
use serde::{Deserialize, Serialize};

mod attention;
mod experts;
mod latent;

pub use attention::{
    AT_ONCE, Append, Attend, AttendJoin, AttendKnobs, Brings, Gates, HeadNorm, Prologue, Rotate, RotateAppend,
};
pub use experts::{
    ExpertsGroup, ExpertsInner, ExpertsJoin, ExpertsKnobs, ExpertsSum, ExpertsTiles, MOST_CHOSEN,
    MOST_EXPERTS, Route, Summed,
};
pub use latent::{
    AttendUnfolded, EachHead, LatentAppend, LatentAttend, LatentColumns, LatentPrepare, LatentShare,
};

/// A kernel instance to be rendered.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "family", rename_all = "snake_case")]
pub enum Spec {
    /// ids -> rows of the table, widened to f32.
    Embed(Embed),
    /// Root-mean-square norm of each row.
    RmsNorm(RmsNorm),
    /// Root-mean-square norm of each row, added to another.
    NormAdd(NormAdd),
    /// Layer norm of each row.
    LayerNorm(LayerNorm),
    /// y = W x for one row or a few or many, with a bias before and an epilogue after.
    Project(Project),
    /// Every head of each row turned by the row's position.
    Rotate(Rotate),
    /// Keys and values to the cache.
    Append(Append),
    /// Norm and rotate queries and keys, append keys and values to the cache.
    RotateAppend(RotateAppend),
    /// Attention of few rows, split over the cache.
    AttendSplit(Attend),
    /// Joins the splits of [`Spec::AttendSplit`].
    AttendJoin(AttendJoin),
    /// Attention of many rows with an online softmax.
    AttendTiled(Attend),
    /// Every head's own matrix times its part of x.
    EachHead(EachHead),
    /// Latents and turned keys to the cache, with what prepares them and queries if there is something.
    LatentAppend(LatentAppend),
    /// Attention over latents that all heads share.
    LatentAttend(LatentAttend),
    /// Lines of a share of a cache as numbers.
    LatentShare(LatentShare),
    /// Attention of many rows over keys and values that were made of a share of the latents.
    AttendUnfolded(AttendUnfolded),
    /// Each channel's last values times its taps.
    Convolve(Convolve),
    /// What memories say to queries when they have learnt keys and values.
    DeltaRule(DeltaRule),
    /// The same of many rows, by products of matrices, and before heads are normed.
    DeltaChunks(DeltaChunks),
    /// Of what heads say, normed, what their gates let through.
    LetThrough(LetThrough),
    /// The same of one row, with the convolutions before it.
    DeltaStep(DeltaStep),
    /// The experts of each row and their weights.
    Route(Route),
    /// What each of a row's experts makes of it, up to its last projection.
    ExpertsInner(ExpertsInner),
    /// The last projections of a row's experts, weighed and summed.
    ExpertsSum(ExpertsSum),
    /// The rows of each expert, in tiles.
    ExpertsGroup(ExpertsGroup),
    /// Experts' products with the rows of tiles.
    ExpertsTiles(ExpertsTiles),
    /// What a row's experts have made of it, weighed and summed.
    ExpertsJoin(ExpertsJoin),
    /// One function of one or two vectors, element by element.
    Elementwise(Elementwise),
    /// Columns of wider rows.
    Take(Take),
    /// The id of the largest logit of each row.
    Argmax(Argmax),
    /// An id of each row, drawn by chance.
    Sample(Sample),
    /// The best of the candidates that [`Epilogue::Best`] left.
    ArgmaxJoin(ArgmaxJoin),
}

impl Spec {
    /// Whether the kernel adds to what a buffer holds: it reads what it writes.
    pub fn adds_to(&self, buffer: &str) -> bool {
        match (self, buffer) {
            (Spec::NormAdd(_), "stream") => true,
            (Spec::Project(project), "y") => {
                matches!(project.epilogue, Epilogue::Add | Epilogue::AddSquares(_))
            }
            (Spec::Embed(embed), "stream") => embed.adds,
            (Spec::ExpertsSum(sum), "y") => sum.ending != Summed::Store,
            (Spec::ExpertsJoin(join), "y") => join.adds,
            (Spec::LetThrough(_), "heads") => true,
            _ => false,
        }
    }

    /// Whether the kernel goes on with what its dispatch before has left in a buffer, unless it is the first.
    pub fn carries(&self, buffer: &str) -> bool {
        matches!((self, buffer), (Spec::AttendUnfolded(_), "heads" | "carried"))
    }
}

/// See [`Spec::Embed`]. Scalars: rows. Buffers: table planes, ids, \[gain,\] stream\[, gained\]\[, squares\]. Grid: rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Embed {
    /// Of the table.
    pub format: Format,
    /// Rows of the table. An id outside reads row 0: the host has refused it already.
    pub vocabulary: usize,
    /// Columns of the table.
    pub width: usize,
    /// Multiplies what is looked up; 1 where a model leaves it as it is.
    pub scale: f32,
    /// Whether it is added to what `stream` holds, in place.
    pub adds: bool,
    /// What a deferred norm of the rows needs, if one follows. Its first partial sum is the row's whole, the others 0.
    pub squares: Option<Squares>,
}

/// What the producer of a row leaves for the deferred norm that reads it. Made for one row.
///
/// A norm is `gain · x / rms(x)`. The division is by one number for the whole row, and `W (gain · x / rms) =
/// (W (gain · x)) / rms`: whoever writes x writes `gained = gain · x` too, with the sum of squares of its share of x, and
/// the projection that reads `gained` divides its results at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Squares {
    /// Partial sums of squares in `squares`: `[partials]`. All are written, those that no threadgroup has as 0.
    pub partials: usize,
    /// Whether `gained` is written. Where gains are folded into weights the reader takes x itself.
    pub gain: bool,
}

/// See [`Spec::RmsNorm`]. Scalars: rows. Buffers: x, \[gain,\] \[wanted,\] y. Grid: parts, rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RmsNorm {
    /// Of a part.
    pub width: usize,
    /// Equal parts of a row, each normed by itself with the same gain: 1, or the heads of a norm of heads.
    pub parts: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Whether the result is multiplied by a gain (f32, `[width]`).
    pub gain: bool,
    /// Whether row i of y is the norm of row `wanted[i]` of x.
    pub gather: bool,
    /// Numbers from one row of x to the next, where what is normed are the first columns of wider rows.
    pub pitch: Option<usize>,
}

/// See [`Spec::NormAdd`]. Scalars: rows. Buffers: x, \[norm_gain,\] \[factor,\] \[gain,\] stream (updated in place)
/// \[, gained\] \[, squares_out\]. Grid: rows.
///
/// What a norm makes of a branch is added to the stream by who norms it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NormAdd {
    /// Of a row.
    pub width: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Whether what is added is multiplied by a gain (f32, `[width]`).
    pub gain: bool,
    /// Whether the sum is multiplied by a number (f32, `[1]`).
    pub factor: bool,
    /// What a deferred norm of the sum needs, if one follows. For one row.
    pub squares: Option<Squares>,
}

/// See [`Spec::LayerNorm`]. Scalars: rows. Buffers: x, gain, \[bias,\] \[wanted,\] y. Grid: rows.
///
/// The mean is taken off, what is left divided by the root of its variance, multiplied by the gain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerNorm {
    /// Of a row.
    pub width: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether a bias (f32, `[width]`) is added.
    pub bias: bool,
    /// Whether row i of y is the norm of row `wanted[i]` of x.
    pub gather: bool,
}

/// How many rows of x a projection is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One: every weight is used once, straight from memory.
    One,
    /// 2 to 16: a weight is decoded once and used for a few rows.
    Few,
    /// More: tiles in threadgroup memory, products on the matrix unit.
    Many,
}

/// What becomes of a projection's result v for output o of row r.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Epilogue {
    /// `y[r][o] = v`
    Store,
    /// `y[r][o] += v`
    Add,
    /// Outputs alternate gate, up: `y[r][o / 2] = activation(gate) * up`
    Gate(Activation),
    /// `y[o] += v`, and what a deferred norm of y needs. For [`Rows::One`].
    AddSquares(Squares),
    /// `y[o] = v * factors[first + o]`: columns of a row of factors, from the scalar `first` on. For [`Rows::One`].
    Multiply {
        /// Numbers of the row.
        of: usize,
    },
    /// `y[o] = v`, and the best of each threadgroup's outputs in `candidates`: `[threadgroups, 2]`, a key that orders as
    /// the number does and the lowest output that has it. For [`Rows::One`].
    Best,
}

/// The norm of a projection's input, deferred: x is already multiplied by the gain, and v is divided by
/// `sqrt(sum(squares) / inputs + epsilon)` before the bias is added. For [`Rows::One`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeferredNorm {
    /// Numbers in `squares`.
    pub partials: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// The norm of a projection's input, taken by the projection itself: x is multiplied by the gain as it is loaded, where there is
/// one, and v is divided by `sqrt(mean(x²) + epsilon)` before the bias is added. For [`Rows::One`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OwnNorm {
    /// Whether there is a gain (f32, `[inputs]`).
    pub gain: bool,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// What the products of a tile are computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    /// Singles: exact for any format and any x.
    F32,
    /// Singles for their range alone: products may lose what those of halves do. For x that may grow beyond a half's range.
    Ranged,
    /// Halves: half the threadgroup memory. For x that no model lets grow beyond a half's range.
    F16,
}

/// See [`Spec::Project`]. Scalars: rows. Buffers: weight planes, \[bias,\] x, \[x_gain,\] \[squares,\] y\[, gain, gained, squares_out\]
/// \[, candidates\]. Grid: by knobs; see the kernel's own.
///
/// v is W x, then deferred norm, then bias, then a function of each result, then the
/// epilogue. `gain` and `gained` are there if
/// [`Squares::gain`] says so. A deferred norm reads `squares`; an epilogue that leaves some writes `squares_out`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Project {
    /// Rows of x it is made for.
    pub rows: Rows,
    /// Of the weight.
    pub format: Format,
    /// Rows of the weight; with [`Epilogue::Gate`], twice the width of y.
    pub outputs: usize,
    /// Columns of the weight, and the width of x.
    pub inputs: usize,
    /// The deferred norm of x, if there is one.
    pub norm: Option<DeferredNorm>,
    /// The norm of x that is this projection's business, if there is one: then none is deferred.
    pub own_norm: Option<OwnNorm>,
    /// Whether a bias (f32, `[outputs]`) is added.
    pub bias: bool,
    /// What v becomes before the epilogue.
    pub each: Option<Each>,
    /// What becomes of the result.
    pub epilogue: Epilogue,
    /// What the products of a tile are computed from (few, many).
    pub operand: Operand,
    /// Whether experts are chosen by what comes of it: a matter of order, for which the CPU rounds nothing of x.
    pub chooses: bool,
    /// How the work is laid over threads.
    pub knobs: Knobs,
}

/// The knobs of a projection. Which of them matter depends on [`Rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// Weight rows that a simdgroup computes at once (one, few).
    pub rows_per_simdgroup: usize,
    /// Simdgroups of a threadgroup (one, few).
    pub simdgroups: usize,
    /// Simdgroups, or quartets of them (many), that share outputs, each a part of the columns.
    pub split: usize,
    /// Packets of 16 bytes that a lane loads of each row before it computes, of codes those of so many times four blocks (one): 1 or 2.
    pub packets: usize,
    /// Rows of x that a threadgroup computes at once (many).
    pub tile_rows: usize,
    /// Outputs of a tile (many).
    pub tile_outputs: usize,
    /// Whether x is taken as codes of 16 bits, a block of 32 columns at a time, which matrix units multiply by those of W (one): for
    /// who does not ask that nothing be rounded.
    #[serde(default)]
    pub codes: bool,
}

impl Rows {
    /// In names and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Rows::One => "one",
            Rows::Few => "few",
            Rows::Many => "many",
        }
    }
}

/// Columns that a kernel takes at once as codes: four blocks.
pub(crate) const STRETCH: usize = 4 * forge_ir::BLOCK;

impl Knobs {
    /// Whether x can be taken as codes by a weight in `format`.
    pub(crate) fn can_take_codes(format: Format) -> bool {
        match format {
            Format::Q4_0 | Format::Q8_0 | Format::Q4K => true,
            Format::Affine(affine) => matches!(affine.bits, Bits::Four | Bits::Eight),
            _ => false,
        }
    }

    /// What they are, in a kernel's name: those that matter for so many rows.
    pub fn name(&self, rows: Rows) -> String {
        let Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows, tile_outputs, codes } = self;
        match rows {
            Rows::One if *codes => format!("c{rows_per_simdgroup}_g{simdgroups}_s{split}_p{packets}"),
            Rows::One => format!("r{rows_per_simdgroup}_g{simdgroups}_s{split}_p{packets}"),
            Rows::Few => format!("r{rows_per_simdgroup}_g{simdgroups}_s{split}"),
            Rows::Many => format!("t{tile_rows}x{tile_outputs}_s{split}"),
        }
    }

    /// Outputs of a threadgroup in a kernel for one row.
    pub fn outputs_of_group(&self) -> usize {
        self.rows_per_simdgroup * self.simdgroups / self.split
    }
}

/// See [`Spec::Elementwise`]. Scalars: rows. Buffers: a, \[b,\] y. Grid: by 256 threads over all numbers of a row; rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Elementwise {
    /// Which function.
    pub function: Function,
    /// Numbers a row.
    pub width: usize,
}

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Each {
    /// `activation(a)`
    Activate(Activation),
    /// `c · tanh(a / c)`
    Softcap(f32),
    /// `c · a`
    Scale(f32),
}

/// A function of one or two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// `y` is this function of `a`.
    Each(Each),
    /// `y = a · b`
    Multiply,
    /// `y = a · b`, where b is one number for each row.
    Times,
    /// `y = b · a`, b being one number (f32, `[1]`).
    ScaleBy,
    /// `y = a + b`
    Add,
}

/// See [`Spec::Take`]. Scalars: rows, first. Buffers: x, y. Grid: by 128 threads a row of y; rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Take {
    /// Columns that are taken, from `first` on.
    pub width: usize,
    /// Columns that there are.
    pub of: usize,
}

/// See [`Spec::Convolve`]. Scalars: rows. Buffers: x, taps, slots, positions, tail, y. Grid: by 128 threads over all channels.
///
/// x is the first channels of wider rows. `taps` is `[channel, tap]`, the last tap being for the row's own value. `tail` is a
/// ring, `[slot, taps, channel]`: what the row at position p had lies at p % taps. Before position 0 there are zeros, whatever
/// the ring holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Convolve {
    /// Channels of a row.
    pub width: usize,
    /// Rows that a result is made of.
    pub taps: usize,
    /// Numbers from one row of x to the next.
    pub pitch: usize,
    /// What each result becomes.
    pub activation: Option<Activation>,
}

/// See [`Spec::DeltaRule`]. Scalars: rows. Buffers: query, key, value, time, strength, rate, bias, slots, positions, memory,
/// heads. Grid: value heads.
///
/// With gates, buffers: convolved, inputs, rate, bias, gain, slots, positions, memory, heads. `convolved` has queries, keys and
/// values of a row side by side; `inputs` what they were made of, then gates, strengths and times. Of strengths the sigmoid is
/// taken; heads are normed, and multiplied by the gain and by silu of the gates.
///
/// `memory` is `[slot, value head, value channel, key channel]`. A row at position 0 finds zeros, whatever it holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeltaRule {
    /// Query heads, and key heads.
    pub key_heads: usize,
    /// Value heads.
    pub heads: usize,
    /// Channels of a query or a key.
    pub keys: usize,
    /// Channels of a value.
    pub values: usize,
    /// Multiplies what a memory says.
    pub scale: f32,
    /// Added to the sum of squares of a query or a key.
    pub epsilon: f32,
    /// Where there are gates: added to the mean of squares of a head.
    pub gated: Option<f32>,
}

impl DeltaRule {
    /// Channels of queries, keys and values together.
    pub const fn channels(&self) -> usize {
        2 * self.key_heads * self.keys + self.heads * self.values
    }

    /// Numbers of a row of inputs: those, gates, strengths and times.
    pub const fn inputs(&self) -> usize {
        self.channels() + self.heads * self.values + 2 * self.heads
    }
}

/// See [`Spec::DeltaChunks`]. Scalars: rows. Buffers: those of [`DeltaRule`], but for the gain. Grid: by 32 channels of a value, or by
/// 16 where there are no more; value heads.
///
/// Where the rule has gates, heads are left as memories say them: [`LetThrough`] does what is left to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeltaChunks {
    /// What is computed.
    pub rule: DeltaRule,
    /// Rows of a slot that are taken at once.
    pub rows: usize,
}

impl DeltaChunks {
    /// In as many rows at once as threadgroup memory has room for; none where it has no room for 8.
    pub fn of(rule: DeltaRule) -> Option<DeltaChunks> {
        let fits = |rows: &usize| DeltaChunks { rows: *rows, rule: rule.clone() }.bytes() <= DEFAULT_MEMORY;
        let rows = [32, 16, 8].into_iter().find(fits)?;
        Some(DeltaChunks { rule, rows })
    }

    /// Bytes of threadgroup memory: queries and keys, how alike they are, and four numbers of each row.
    pub const fn bytes(&self) -> usize {
        4 * self.rows * (2 * (self.rule.keys.next_multiple_of(8) + 4) + 2 * (self.rows + 4) + 4)
    }

    /// Simdgroups of a threadgroup, each with 16 channels of values.
    pub const fn simdgroups(&self) -> usize {
        if self.rule.values > 16 { 2 } else { 1 }
    }

    /// Threadgroups of a head.
    pub const fn groups(&self) -> usize {
        self.rule.values.div_ceil(16 * self.simdgroups())
    }
}

/// See [`Spec::LetThrough`]. Scalars: rows. Buffers: inputs, gain, heads. Grid: rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LetThrough {
    /// Value heads.
    pub heads: usize,
    /// Channels of a value.
    pub values: usize,
    /// Numbers from one row of inputs to the next.
    pub pitch: usize,
    /// The first of a row's gates.
    pub first: usize,
    /// Added to the mean of squares of a head.
    pub epsilon: f32,
}

/// See [`Spec::DeltaStep`]. Scalars: rows. Buffers: inputs, taps, rate, bias, gain, slots, positions, tail, memory, heads. Grid: value
/// heads, rows.
///
/// Rows have slots of their own. Queries, keys and values of `inputs` are convolved as in [`Convolve`], and activated by silu.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeltaStep {
    /// With gates.
    pub rule: DeltaRule,
    /// Rows that a result of the convolution is made of.
    pub taps: usize,
}

/// See [`Spec::Argmax`]. Scalars: rows. Buffers: logits, ids. Grid: rows. Of equals the lowest id wins; what is not a
/// number never does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Argmax {
    /// Logits a row.
    pub vocabulary: usize,
}

/// See [`Spec::Sample`]. Scalars: rows. Buffers: logits, draws, ids. Grid: rows. A draw is words, those of the runtime's `Draw`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Logits a row.
    pub vocabulary: usize,
}

/// See [`Spec::ArgmaxJoin`]. Scalars: rows. Buffers: candidates, ids. Grid: rows. Of equal keys the lowest id wins; key 0 is
/// no number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArgmaxJoin {
    /// Candidates a row.
    pub candidates: usize,
}
