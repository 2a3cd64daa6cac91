//! Template context of linear layers.

use forge_ops::{BLOCK, Gating};
use serde::Serialize;

use crate::context::{Base, DEFAULT_MEMORY, Weight};
use crate::norm::context::UnaryText;
use crate::spec::{Knobs, LinearKernel, Operand, Rows, STRETCH};
use forge_ops::{Epilogue, Quantize, Squares};

#[derive(Serialize)]
pub(crate) struct LinearContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a LinearKernel,
    #[serde(flatten)]
    weight: Weight,
    /// Support function that loads 4 columns of x.
    load: &'static str,
    /// Bound argument of `load`, if any.
    bound: String,
    /// Support function of a gate's activation.
    activation: Option<&'static str>,
    /// Text before and after a result: its unary function.
    before: String,
    after: String,
    /// Outputs for the deferred norm of y.
    add_squares: Option<Squares>,
    /// Whether the argmax candidate is written.
    best: bool,
    /// Partitions of the outputs with an argmax candidate each.
    candidates_count: usize,
    /// Rows of x per threadgroup (batched GEMV), and packets of four rows of 128 quantized columns.
    x_rows: usize,
    quad_packets: usize,
    /// Row stride of x.
    x_pitch: usize,
    /// Whether results are multiplied by columns of a row of factors, and the elements of that row.
    factors: bool,
    factors_pitch: usize,
    /// Assignment operator for y.
    assign: &'static str,
    /// How partial sums of squares are loaded: type, expression, count.
    squares_vector: &'static str,
    squares_source: &'static str,
    squares_count: usize,
    inputs_float: f32,
    rows_per_simdgroup: usize,
    simdgroups: usize,
    split: usize,
    /// Whether packets are loaded one step ahead.
    ahead: bool,
    /// Template of the dot products in `matmul/parts` (GEMV).
    body: &'static str,
    /// Whether products use MMA: of integers, for which x is quantized, or of floats (GEMV).
    mma: bool,
    codes: bool,
    float_mma: bool,
    #[serde(flatten)]
    tile: Tile,
    /// Whether Metal 4 multiplies tensors.
    has_tensors: bool,
    threads: usize,
    /// Outputs per threadgroup.
    group_outputs: usize,
    /// Threadgroups per row.
    grid: usize,
    /// Whether the last threadgroup has fewer outputs.
    ragged: bool,
    /// Whether a threadgroup collects its results before the epilogue.
    gather: bool,
    /// Columns that a lane reads of a row at once; as packets; and as float4 of each half (small batch).
    portion: usize,
    each: usize,
    chunks: usize,
    /// Steps of four portions in a row.
    strips: usize,
    /// Whether the last step (small batch) or block (many rows) extends past the end of a stored row.
    clamped: bool,
}

impl<'a> LinearContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a LinearKernel) -> LinearContext<'a> {
        let weight = Weight::of(spec.op.format, spec.op.inputs);
        let knobs = spec.layout.knobs;
        // At least a float4 of each half.
        let portion = weight.columns.max(8);
        let each = portion / weight.columns;
        let strips = spec.op.inputs.div_ceil(4 * portion);
        // Columns of x loaded at once: of a packet, a step or a block.
        let piece = match spec.layout.rows {
            Rows::Few => 4 * portion,
            Rows::Many => BLOCK * knobs.split,
            _ if knobs.mma => Knobs::mma_columns(spec.op.format),
            _ => weight.columns,
        };
        let pitch = spec.op.own_norm.and_then(|norm| norm.pitch);
        let (load, bound) = loader((spec.op.inputs, pitch), piece);
        let group_outputs = group_outputs(spec);
        let codes = knobs.quantizes_x(spec.op.format);
        let body = match (knobs.mma, codes, spec.layout.rows) {
            (false, _, Rows::One) => "gemv_simd",
            (false, ..) => "gemv_batch_simd",
            (true, false, _) => "gemv_float_mma",
            (true, true, Rows::One) => "gemv_int_mma",
            (true, true, _) => "gemv_batch_int_mma",
        };
        let nothing = UnaryText { before: String::new(), after: String::new() };
        let UnaryText { before, after } = spec.op.unary.map_or(nothing, UnaryText::of);
        let add_squares = match spec.op.epilogue {
            Epilogue::AddSquares(squares) => Some(squares),
            _ => None,
        };
        let best = matches!(spec.op.epilogue, Epilogue::Best { .. });
        let (candidates_count, factors_pitch) = match spec.op.epilogue {
            Epilogue::Best { candidates } => (candidates, 0),
            Epilogue::Multiply { of } => (0, of),
            _ => (0, 0),
        };
        let partials = spec.op.norm.map_or(0, |norm| norm.partials);
        let (squares_vector, squares_source, squares_count) = if partials.is_multiple_of(4) {
            ("float4", "((device const float4*)squares)", partials / 4)
        } else {
            ("float", "squares", partials)
        };
        LinearContext {
            base,
            spec,
            load,
            bound,
            activation: match spec.op.epilogue {
                Epilogue::Gate(Gating::Plain(activation)) => Some(activation.name()),
                _ => None,
            },
            before,
            after,
            add_squares,
            best,
            candidates_count,
            x_rows: spec.layout.rows.of_decode_batch().unwrap_or(1),
            quad_packets: Quantize::QUAD_PACKETS,
            x_pitch: pitch.unwrap_or(spec.op.inputs),
            factors_pitch,
            factors: matches!(spec.op.epilogue, Epilogue::Multiply { .. }),
            assign: if spec.op.epilogue == Epilogue::Add { "+=" } else { "=" },
            squares_vector,
            squares_source,
            squares_count,
            inputs_float: spec.op.inputs as f32,
            rows_per_simdgroup: knobs.rows_per_simdgroup,
            simdgroups: knobs.simdgroups,
            split: knobs.split,
            ahead: knobs.packets > 1,
            body,
            mma: knobs.mma,
            codes,
            float_mma: knobs.mma && !codes,
            tile: Tile::of([knobs.tile_rows, knobs.tile_outputs], knobs.split, spec.layout.operand),
            has_tensors: spec.has_tensors(),
            threads: 32 * if spec.layout.rows == Rows::Many { 4 * knobs.split } else { knobs.simdgroups },
            group_outputs,
            grid: spec.op.outputs.div_ceil(group_outputs),
            ragged: !spec.op.outputs.is_multiple_of(group_outputs),
            gather: knobs.mma || knobs.split > 1 || add_squares.is_some() || best,
            portion,
            each,
            chunks: portion / 8,
            strips,
            clamped: match spec.layout.rows {
                Rows::Few => 4 * strips * each > weight.stride,
                Rows::Many => weight.blocks.next_multiple_of(knobs.split) * weight.per_block > weight.stride,
                _ => false,
            },
            weight,
        }
    }
}

/// Support function that loads 4 columns of x, and its bound argument: `piece` columns are read of a row of
/// this width and stride.
fn loader((width, pitch): (usize, Option<usize>), piece: usize) -> (&'static str, String) {
    let is_aligned = pitch.unwrap_or(width).is_multiple_of(4);
    if width.is_multiple_of(piece) && is_aligned {
        ("load4_whole", String::new())
    } else if width.is_multiple_of(4) && is_aligned {
        ("load4_guarded", format!(", {width}u"))
    } else {
        ("load4_single", format!(", {width}u"))
    }
}

#[derive(Serialize)]
pub(crate) struct QuantizeContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Quantize,
    load: &'static str,
    bound: String,
    quad_packets: usize,
    /// Row stride of x.
    x_pitch: usize,
    /// Simdgroups per row.
    simdgroups: usize,
}

impl<'a> QuantizeContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a Quantize) -> QuantizeContext<'a> {
        let (load, bound) = loader((spec.width, spec.pitch), STRETCH);
        let x_pitch = spec.pitch.unwrap_or(spec.width);
        let simdgroups = if spec.parts > 0 { spec.parts } else { 2 };
        QuantizeContext { base, spec, load, bound, quad_packets: Quantize::QUAD_PACKETS, x_pitch, simdgroups }
    }
}

/// Outputs per threadgroup.
pub(crate) fn group_outputs(linear: &LinearKernel) -> usize {
    let knobs = linear.layout.knobs;
    match linear.layout.rows {
        Rows::Many => knobs.tile_outputs,
        _ => knobs.rows_per_simdgroup * (knobs.simdgroups / knobs.split),
    }
}

/// Tile of `matmul/gemm` and `moe/grouped_gemm`, and its placement in threadgroup memory.
#[derive(Serialize)]
pub(crate) struct Tile {
    /// Rows of x.
    #[serde(rename = "tile_rows")]
    rows: usize,
    #[serde(rename = "tile_outputs")]
    outputs: usize,
    /// Stride of its rows of weights and of x in elements: a block, with padding that moves adjacent rows to
    /// other banks.
    pitch: usize,
    #[serde(rename = "tile_x_pitch")]
    x_pitch: usize,
    /// The weights and x of a part of the columns, in elements of the weights.
    staged_elements: usize,
    /// Results replace the tile in this many parts, of `part_rows` rows each.
    parts: usize,
    part_rows: usize,
    memory_floats: usize,
}

impl Tile {
    pub(crate) fn of([rows, outputs]: [usize; 2], split: usize, operand: Operand) -> Tile {
        let [(pitch, bytes), (x_pitch, x_bytes)] =
            Tile::element_bytes(operand).map(|bytes| (BLOCK + 16 / bytes, bytes));
        let staged_elements = outputs * pitch + rows * x_pitch * x_bytes / bytes;
        let staged = staged_elements * bytes * split;
        let results = |parts: usize| rows / parts * (outputs + 4) * 4;
        let parts = if results(1) > staged.max(DEFAULT_MEMORY) { 2 } else { 1 };
        let memory_floats = staged.max(results(parts)).div_ceil(4);
        Tile { rows, outputs, pitch, x_pitch, staged_elements, parts, part_rows: rows / parts, memory_floats }
    }

    /// Bytes of an element of the weights and of x.
    pub(crate) fn element_bytes(operand: Operand) -> [usize; 2] {
        match operand {
            Operand::F32 | Operand::Ranged => [4, 4],
            Operand::F16 => [2, 2],
            Operand::F16Weights => [2, 4],
        }
    }

    /// Threadgroup memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.memory_floats * 4
    }
}
