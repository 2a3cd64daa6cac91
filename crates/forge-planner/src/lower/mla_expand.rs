//! Whether many rows meet latents as they are, or keys and values that are made of them.
//!
//! A row that meets a latent has its queries multiplied by the matrices of keys, and what comes of the latents by those of values.
//! The other way round both are multiplied by the latent, once for all rows of its slot. With l channels of a latent, t of a turned
//! key, and k and v of a head's key and value, a head takes
//!
//! ```text
//! as they are   2 (2 l + t)     operations for a position and a row
//! unfolded      2 (k + t + v)   the same, and 2 l (k + v) for a position, however many rows there are
//! ```
//!
//! So from l (k + v) / (2 l - k - v) rows on keys and values are fewer operations, however long the text; and they are made, and
//! met, by products of matrices. They are made of a share of the positions at a time, so that their room does not grow with it.

use forge_ir::LatentCache;
use serde::Serialize;

/// Positions of which keys and values are made at once, at most. Of DeepSeek V3 they fill 128 MiB, as much as 256 rows' queries and
/// sums of latents, in whose place they are.
const SHARE: usize = 1024;

/// How passes of many rows of one slot meet latents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MlaExpand {
    /// The fewest rows for which keys and values are made.
    pub from: usize,
    /// Positions of which they are made at once.
    pub share: usize,
}

impl MlaExpand {
    /// Of heads with keys and values of these widths, in passes of at most `chunk` rows that are more than `few`; none where
    /// no pass has as many rows as it takes.
    pub(crate) fn of(
        latents: &LatentCache,
        [keys, values]: [usize; 2],
        (few, chunk): (usize, usize),
        context: usize,
    ) -> Option<MlaExpand> {
        let once = latents.width * (keys + values);
        let saved = (2 * latents.width).checked_sub(keys + values).filter(|saved| *saved > 0)?;
        let from = (once / saved + 1).max(few + 1);
        (from <= chunk).then_some(MlaExpand { from, share: SHARE.min(context) })
    }

    /// That of layers which differ.
    pub(crate) fn and(self, other: Option<MlaExpand>) -> MlaExpand {
        MlaExpand { from: self.from.max(other.map_or(0, |other| other.from)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_made_from_where_it_is_fewer_operations() {
        for (width, turned, keys, values, from) in [
            (512, 64, 128, 128, Some(171)),
            (24, 8, 16, 16, Some(49)),
            // Fewer are few.
            (26, 10, 9, 5, Some(17)),
            // More than a pass has, and never.
            (512, 64, 192, 192, None),
            (16, 8, 16, 16, None),
            (15, 8, 16, 16, None),
        ] {
            let latents = LatentCache { width, turned };
            let unfold = MlaExpand::of(&latents, [keys, values], (16, 256), 4096);
            assert_eq!(unfold.map(|unfold| unfold.from), from, "{width} {turned} {keys} {values}");
            let Some(MlaExpand { from, share }) = unfold else { continue };
            assert_eq!(share, 1024);
            let folded = |rows: usize| rows * 2 * (2 * width + turned);
            let unfolded = |rows: usize| rows * 2 * (keys + turned + values) + 2 * width * (keys + values);
            assert!(unfolded(from) < folded(from));
            assert!(from == 17 || unfolded(from - 1) >= folded(from - 1));
        }
    }
}
