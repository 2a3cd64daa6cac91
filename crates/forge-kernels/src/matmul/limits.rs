//! Limits of linear layers.

use crate::context::{DEFAULT_MEMORY, Tile, group_outputs, packet_columns};
use crate::error::KernelError;
use crate::limits::Limits;
use crate::spec::{Knobs, LinearKernel, Rows};
use forge_msl::KernelDecl;
use forge_ops::Epilogue;

impl Limits<'_> {
    pub(crate) fn linear(&self, linear: &LinearKernel) -> Result<(), KernelError> {
        self.positive("the number of outputs", linear.op.outputs)?;
        self.positive("the number of inputs", linear.op.inputs)?;
        self.indexable("the number of outputs", linear.op.outputs, linear.op.inputs, linear.op.format)?;
        linear.op.unary.map_or(Ok(()), |unary| self.unary(unary))?;
        if matches!(linear.op.epilogue, Epilogue::Gate(_)) {
            self.holds(
                "the number of outputs",
                linear.op.outputs,
                linear.op.outputs.is_multiple_of(2),
                || "even: gate and up rows alternate".to_owned(),
            )?;
        }
        match linear.layout.rows {
            Rows::Few => {
                self.no_single_row_features(linear)?;
                self.few(linear)
            }
            Rows::Many => {
                self.no_single_row_features(linear)?;
                self.many(linear)
            }
            _ => self.one(linear),
        }
    }

    /// Rejects features that only one-row kernels have.
    fn no_single_row_features(&self, linear: &LinearKernel) -> Result<(), KernelError> {
        let least = if linear.layout.rows == Rows::Few { 2 } else { 17 };
        let writes_partials = matches!(
            linear.op.epilogue,
            Epilogue::AddSquares(_) | Epilogue::Best { .. } | Epilogue::Multiply { .. }
        );
        let normed = linear.op.norm.is_some() || linear.op.own_norm.is_some();
        self.holds(
            "the number of rows of x",
            least,
            !normed && !writes_partials && !linear.layout.knobs.mma,
            || {
                "1 for a deferred or inline norm, partial squares, argmax candidates, column factors or MMA"
                    .to_owned()
            },
        )
    }

    fn one(&self, linear: &LinearKernel) -> Result<(), KernelError> {
        let knobs = linear.layout.knobs;
        self.simdgroups(linear)?;
        self.split(linear)?;
        let packets = knobs.packets;
        let format = linear.op.format;
        let columns = if knobs.mma { Knobs::mma_columns(format) } else { packet_columns(format) };
        let (of_row, at_once) = (linear.op.inputs.div_ceil(columns), if knobs.mma { 1 } else { 32 });
        let fits = packets == 1 || packets == 2 && of_row > at_once * knobs.split;
        self.holds("packets", packets, fits, || {
            format!("1, or 2 if lanes have a second packet: a row has {of_row}")
        })?;
        let rows = knobs.rows_per_simdgroup;
        self.holds("rows_per_simdgroup", rows, rows <= 32, || {
            "at most 32: each lane writes one row".to_owned()
        })?;
        if knobs.mma {
            self.mma(linear)?;
        }
        if let Some(rows) = linear.layout.rows.of_decode_batch() {
            let fits = linear.layout.rows == Rows::for_decode_batch(rows, knobs.mma);
            self.holds("the number of rows of x", rows, fits, || {
                "2 or 4 per threadgroup; 4, 8 or 16 with MMA".to_owned()
            })?;
            let bytes = linear.decode_batch_bytes();
            let most = KernelDecl::MOST_THREADGROUP_BYTES as usize;
            self.holds("the threadgroup memory of a decode batch", bytes, bytes <= most, || {
                format!("at most {most} bytes: use fewer simdgroups or rows_per_simdgroup")
            })?;
        }
        let outputs = group_outputs(linear);
        let writes_blocks = linear.layout.rows.of_decode_batch().is_some()
            && knobs.mma
            && LinearKernel::can_quantize(&linear.op)
            && outputs == 32 * linear.op.epilogue.results_per_output();
        self.holds(
            "the number of outputs of a threadgroup",
            outputs,
            writes_blocks || !linear.layout.quantizes,
            || "32 results of a decode batch, in rows of a multiple of 128, to quantize them".to_owned(),
        )?;
        if let Some(norm) = linear.op.norm {
            self.positive("the number of partial sums of squares", norm.partials)?;
            self.finite("epsilon", norm.epsilon)?;
        }
        if let Some(norm) = linear.op.own_norm {
            self.finite("epsilon", norm.epsilon)?;
            self.holds("the number of norms of x", 2, linear.op.norm.is_none(), || {
                "1: inline or deferred".to_owned()
            })?;
            self.pitch(norm.pitch, linear.op.inputs)?;
        }
        let each = if matches!(linear.op.epilogue, Epilogue::Gate(_)) { 2 } else { 1 };
        let writes_partials = matches!(linear.op.epilogue, Epilogue::AddSquares(_) | Epilogue::Best { .. });
        let finished = group_outputs(linear);
        let fits = finished <= 32 * each || !writes_partials && knobs.split == 1 && !knobs.mma;
        self.holds("the number of outputs of a threadgroup", finished, fits, || {
            format!("at most {}, which one simdgroup writes: use fewer simdgroups", 32 * each)
        })?;
        if let Epilogue::Multiply { of } = linear.op.epilogue {
            self.holds("the number of factors", of, of >= linear.op.outputs, || {
                format!("at least the number of outputs, {}", linear.op.outputs)
            })?;
        }
        if let Epilogue::Best { candidates } = linear.op.epilogue {
            let groups = linear.op.outputs.div_ceil(finished);
            self.holds("the number of argmax candidates", candidates, candidates >= groups, || {
                format!("at least the number of threadgroups, {groups}")
            })?;
        }
        if let Epilogue::AddSquares(squares) = linear.op.epilogue {
            let groups = linear.op.outputs.div_ceil(group_outputs(linear));
            self.holds(
                "the number of partial sums of squares",
                squares.partials,
                squares.partials >= groups,
                || format!("at least the number of threadgroups, {groups}"),
            )?;
        }
        Ok(())
    }

    /// Limits with MMA.
    fn mma(&self, linear: &LinearKernel) -> Result<(), KernelError> {
        let rows = linear.layout.knobs.rows_per_simdgroup;
        let fits = matches!(rows, 16 | 32) && Knobs::can_use_mma(linear.op.format);
        self.holds("rows_per_simdgroup", rows, fits, || {
            "16 or 32 with MMA, which processes 16 rows at once, and weights in f16, bf16, q4_0, q4_k, q8_0 or affine \
             with 4 or 8 bits".to_owned()
        })
    }

    fn few(&self, linear: &LinearKernel) -> Result<(), KernelError> {
        let knobs = linear.layout.knobs;
        self.simdgroups(linear)?;
        self.split(linear)?;
        let rows = knobs.rows_per_simdgroup;
        self.holds("rows_per_simdgroup", rows, rows.is_multiple_of(8) && rows <= 32, || {
            "8, 16, 24 or 32: matrices are 8 by 8, and registers hold 4 rows of them".to_owned()
        })?;
        let bytes = 4 * 16 * rows * knobs.simdgroups;
        self.holds(
            "the threadgroup memory of rows_per_simdgroup and simdgroups",
            bytes,
            bytes <= DEFAULT_MEMORY,
            || format!("at most {DEFAULT_MEMORY} bytes: reduce either"),
        )
    }

    fn many(&self, linear: &LinearKernel) -> Result<(), KernelError> {
        let knobs = linear.layout.knobs;
        self.side("tile_rows", knobs.tile_rows)?;
        self.side("tile_outputs", knobs.tile_outputs)?;
        let most = KernelDecl::MOST_THREADGROUP_BYTES as usize;
        self.holds("split", knobs.split, matches!(knobs.split, 1 | 2), || {
            "1 or 2 groups of four simdgroups".to_owned()
        })?;
        let bytes =
            Tile::of([knobs.tile_rows, knobs.tile_outputs], knobs.split, linear.layout.operand).bytes();
        self.holds("the threadgroup memory of tile_rows and tile_outputs", bytes, bytes <= most, || {
            format!("at most {most} bytes: use a smaller tile, or f16")
        })
    }

    /// Checks a side of a tile.
    pub(crate) fn side(&self, what: &'static str, value: usize) -> Result<(), KernelError> {
        self.positive(what, value)?;
        self.holds(what, value, value.is_multiple_of(16) && value <= 128, || {
            "a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices".to_owned()
        })
    }

    fn simdgroups(&self, linear: &LinearKernel) -> Result<(), KernelError> {
        let knobs = linear.layout.knobs;
        self.positive("rows_per_simdgroup", knobs.rows_per_simdgroup)?;
        self.positive("simdgroups", knobs.simdgroups)?;
        self.holds("simdgroups", knobs.simdgroups, knobs.simdgroups <= 32, || "at most 32".to_owned())?;
        if matches!(linear.op.epilogue, Epilogue::Gate(_)) {
            let rows = knobs.rows_per_simdgroup;
            self.holds("rows_per_simdgroup", rows, rows.is_multiple_of(2), || {
                "even: a simdgroup computes pairs of gate and up".to_owned()
            })?;
        }
        Ok(())
    }

    fn split(&self, linear: &LinearKernel) -> Result<(), KernelError> {
        let knobs = linear.layout.knobs;
        self.positive("split", knobs.split)?;
        self.holds("split", knobs.split, knobs.simdgroups.is_multiple_of(knobs.split), || {
            format!("a divisor of simdgroups, {}", knobs.simdgroups)
        })
    }
}
