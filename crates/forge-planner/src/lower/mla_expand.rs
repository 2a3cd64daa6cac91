//! Choice between absorbed and expanded MLA for passes of many rows.
//!
//! In absorbed form, queries are multiplied by the key up-projection, and attention output by the value
//! up-projection. In expanded form, the latents are multiplied by both once for all rows of a slot. With l
//! channels of a latent, t of a RoPE key, and k and v of a head's key and value, a head takes
//!
//! ```text
//! absorbed   2 (2 l + t)     operations per position and row
//! expanded   2 (k + t + v)   operations per position and row, and 2 l (k + v) per position for all rows
//! ```
//!
//! From l (k + v) / (2 l - k - v) rows on, the expanded form takes fewer operations at any context length,
//! and it uses GEMM. Keys and values are expanded one tile of positions at a time, so that their memory does
//! not grow with the context.

use forge_ir::LatentCache;
use serde::Serialize;

/// Maximum positions of an expanded KV tile. For DeepSeek V3 a tile takes 128 MiB, as much as the queries and
/// latent sums of 256 rows, whose memory it shares.
const TILE: usize = 1024;

/// Parameters of expanded MLA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MlaExpand {
    /// Minimum rows for the expanded form.
    pub min_rows: usize,
    /// Positions of an expanded KV tile.
    pub tile: usize,
}

impl MlaExpand {
    /// The threshold for heads with keys and values of these widths, in passes of more than `few` and at most
    /// `chunk` rows. `None` if no pass has that many rows.
    pub(crate) fn of(
        latents: &LatentCache,
        [keys, values]: [usize; 2],
        (few, chunk): (usize, usize),
        context: usize,
    ) -> Option<MlaExpand> {
        let once = latents.width * (keys + values);
        let saved = (2 * latents.width).checked_sub(keys + values).filter(|saved| *saved > 0)?;
        let min_rows = (once / saved + 1).max(few + 1);
        (min_rows <= chunk).then_some(MlaExpand { min_rows, tile: TILE.min(context) })
    }

    /// Combines layers with different thresholds.
    pub(crate) fn and(self, other: Option<MlaExpand>) -> MlaExpand {
        MlaExpand { min_rows: self.min_rows.max(other.map_or(0, |other| other.min_rows)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mla_expands_where_it_needs_fewer_operations() {
        for (width, rope_width, keys, values, min_rows) in [
            (512, 64, 128, 128, Some(171)),
            (24, 8, 16, 16, Some(49)),
            // The threshold is above a small batch.
            (26, 10, 9, 5, Some(17)),
            // Beyond the chunk, and never.
            (512, 64, 192, 192, None),
            (16, 8, 16, 16, None),
            (15, 8, 16, 16, None),
        ] {
            let latents = LatentCache { width, rope_width };
            let expand = MlaExpand::of(&latents, [keys, values], (16, 256), 4096);
            assert_eq!(
                expand.map(|expand| expand.min_rows),
                min_rows,
                "{width} {rope_width} {keys} {values}"
            );
            let Some(MlaExpand { min_rows, tile }) = expand else { continue };
            assert_eq!(tile, 1024);
            let absorbed = |rows: usize| rows * 2 * (2 * width + rope_width);
            let expanded =
                |rows: usize| rows * 2 * (keys + rope_width + values) + 2 * width * (keys + values);
            assert!(expanded(min_rows) < absorbed(min_rows));
            assert!(min_rows == 17 || expanded(min_rows - 1) >= absorbed(min_rows - 1));
        }
    }
}
