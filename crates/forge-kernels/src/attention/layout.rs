//! Attention layouts: the default, and the candidates for tuning. Derived; these kernels have not been
//! measured on Apple chips.
//!
//! The rest of the plan does not depend on the layout. One threadgroup computes a KV split, whatever its
//! number of simdgroups.

use crate::context::{
    DIRECT_LINES, LINES, LINES_MEMORY, WIDEST_DIRECT, WIDEST_LINE, channels, element, grouped_bytes,
    head_memory, queries_fit, sums_bytes, tile_bytes,
};
use crate::layout::Family;
use crate::spec::{AttentionKnobs, Rows};
use forge_ops::Format;

/// Maximum heads per simdgroup for small batches, limited by registers.
const HEADS_EACH: usize = 4;

/// Heads per MMA.
pub(crate) const MMA_HEADS: usize = 8;

/// Query heads per KV head up to which shuffles are faster than MMA on NVIDIA GPUs; MMA takes the same time
/// for two heads as for eight. Measured on an H100 in q4_0, decode tok/s at 4,096 positions: 2 heads (0.6B)
/// 1,361 with shuffles and 1,227 with MMA; 4 heads (8B) 393 and 430.
const FEW_HEADS: usize = 2;

/// Simdgroups per threadgroup for small batches.
const SIMDGROUPS: usize = 8;

/// [`SIMDGROUPS`] on NVIDIA GPUs when the query heads of a KV head are divided among simdgroups. Measured on
/// an H200 among all candidates, with 32 heads, 8 and 4 KV heads, 128 channels, at 521 and 4,105 positions:
/// 16 simdgroups of 2 heads take 3% longer for one row, and 28% for eight. (With 16 heads over 8 KV heads a
/// token at 4,096 positions takes 11% less with 8 simdgroups than with 16.)
const OF_PARTS: usize = 16;

/// Bytes of keys, and of values, in flight per lane when it has sums of several heads. With one head there
/// are registers for twice that.
const UNDER_WAY: usize = 64;

impl AttentionKnobs {
    /// Knobs for a GPU family and batch-size class.
    ///
    /// For many rows NVIDIA GPUs use tiled GQA attention: all query heads of a KV head together, with the
    /// largest tile that fits. Measured on an H200 with 32 heads, 8 KV heads, 128 channels at 32,768
    /// positions: about 200 TFLOP/s, compared with 11 for tiles of 8 rows of one head.
    ///
    /// Apple GPUs use keys and values straight from the cache. Derived: a tile of 32 positions leaves registers
    /// for loads ahead.
    pub fn for_chip(
        family: Family,
        rows: Rows,
        query_heads: usize,
        key_heads: usize,
        width: usize,
        cache: Format,
    ) -> AttentionKnobs {
        let rule = AttentionKnobs::for_heads(query_heads, key_heads, width, cache);
        if family != Family::Nvidia {
            let is_direct = rows == Rows::Many && width <= WIDEST_DIRECT;
            return if is_direct { AttentionKnobs { tile: 32, lines: DIRECT_LINES, ..rule } } else { rule };
        }
        if rows == Rows::Many {
            let tile = grouped_tiles(width, cache).next_back();
            return tile.map_or(rule, |tile| AttentionKnobs { tile, lines: LINES, ..rule });
        }
        let group = (query_heads / key_heads.max(1)).max(1);
        if group > FEW_HEADS && AttentionKnobs::can_use_mma(group, width, cache) {
            return AttentionKnobs { heads_each: group.min(MMA_HEADS), mma: true, loads: 1, ..rule };
        }
        let has_parts = group > rule.heads_each;
        let fits = sums_bytes(OF_PARTS, width) <= head_memory(width);
        if has_parts && fits { AttentionKnobs { simdgroups: OF_PARTS, ..rule } } else { rule }
    }

    /// Default knobs for query heads over KV heads of `width` channels.
    pub fn for_heads(query_heads: usize, key_heads: usize, width: usize, cache: Format) -> AttentionKnobs {
        let group = (query_heads / key_heads.max(1)).max(1);
        let heads_each = group.div_ceil(group.div_ceil(HEADS_EACH));
        let tile = [32, 16, 8].into_iter().find(|tile| tile_bytes(*tile, width) <= head_memory(width));
        AttentionKnobs {
            simdgroups: SIMDGROUPS,
            heads_each,
            mma: false,
            loads: most_loads(heads_each, width, cache),
            tile: tile.unwrap_or(8),
            lines: 8,
        }
    }

    /// Whether MMA can be used for `group` query heads per KV head: eight positions with 32 channels at once,
    /// or 16 with 64.
    pub fn can_use_mma(group: usize, width: usize, cache: Format) -> bool {
        cache == Format::F16 && [64, 128].contains(&width) && queries_fit(group, width)
    }

    /// Candidate layouts for a batch-size class. Irrelevant knobs have their default.
    pub fn tried(
        rows: Rows,
        query_heads: usize,
        key_heads: usize,
        width: usize,
        cache: Format,
    ) -> Vec<AttentionKnobs> {
        let rule = AttentionKnobs::for_heads(query_heads, key_heads, width, cache);
        if rows == Rows::Many {
            let tiles = [8, 16, 32].into_iter().filter(|tile| tile_bytes(*tile, width) <= head_memory(width));
            let of_a_head = tiles.map(|tile| AttentionKnobs { tile, ..rule });
            let grouped =
                grouped_tiles(width, cache).map(|tile| AttentionKnobs { tile, lines: LINES, ..rule });
            let direct = [32, 64].map(|tile| AttentionKnobs { tile, lines: DIRECT_LINES, ..rule });
            let direct = direct.into_iter().filter(|_| width <= WIDEST_DIRECT);
            return of_a_head.chain(grouped).chain(direct).collect();
        }
        let group = (query_heads / key_heads.max(1)).max(1);
        let mut heads = vec![1, 2, 4, rule.heads_each];
        heads.retain(|each| *each <= group);
        heads.sort_unstable();
        heads.dedup();
        let mut tried = Vec::new();
        for simdgroups in [4, 8, 16] {
            for &heads_each in &heads {
                let fits = group.div_ceil(heads_each) <= simdgroups
                    && sums_bytes(simdgroups, width) <= head_memory(width);
                let most = most_loads(heads_each, width, cache);
                for loads in [most / 4, most / 2, most].into_iter().filter(|loads| fits && *loads > 0) {
                    tried.push(AttentionKnobs { simdgroups, heads_each, loads, ..rule });
                }
            }
        }
        if AttentionKnobs::can_use_mma(group, width, cache) {
            let with_mma = AttentionKnobs { heads_each: group.min(MMA_HEADS), mma: true, loads: 1, ..rule };
            let parts = group.div_ceil(MMA_HEADS);
            let fits = |simdgroups: &usize| {
                *simdgroups >= parts && sums_bytes(*simdgroups, width) <= head_memory(width)
            };
            tried.extend(
                [4, 8, 16]
                    .into_iter()
                    .filter(fits)
                    .map(|simdgroups| AttentionKnobs { simdgroups, ..with_mma }),
            );
        }
        tried
    }
}

/// Tile sizes in positions for 64 query rows.
fn grouped_tiles(width: usize, cache: Format) -> impl DoubleEndedIterator<Item = usize> {
    let fits = move |tile: &usize| width <= WIDEST_LINE && grouped_bytes(*tile, width, cache) <= LINES_MEMORY;
    [16, 32].into_iter().filter(fits)
}

/// Loads per block that fit in registers.
fn most_loads(heads_each: usize, width: usize, cache: Format) -> usize {
    let bytes = if heads_each == 1 { 2 * UNDER_WAY } else { UNDER_WAY };
    (bytes / (channels(width) * element(cache).1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_attention_layouts_are_tuning_candidates() {
        for (query_heads, key_heads) in [(1, 1), (4, 2), (9, 3), (10, 2), (32, 1), (14, 2), (40, 8)] {
            for width in [6, 64, 80, 128, 256, 512] {
                for cache in [Format::F32, Format::F16, Format::Q8_0] {
                    let rule = AttentionKnobs::for_heads(query_heads, key_heads, width, cache);
                    for rows in [Rows::One, Rows::Few, Rows::Many] {
                        let [card, apple] = [Family::Nvidia, Family::Apple9].map(|family| {
                            AttentionKnobs::for_chip(family, rows, query_heads, key_heads, width, cache)
                        });
                        let tried = AttentionKnobs::tried(rows, query_heads, key_heads, width, cache);
                        for chosen in [rule, card, apple] {
                            let what = format!("{query_heads} {key_heads} {width} {cache}: {chosen:?}");
                            assert!(tried.contains(&chosen), "{what}");
                        }
                    }
                }
            }
        }
    }
}
