//! How attention is laid over threads: the rule, and what lies around it. Derived; nobody has measured these kernels on Apple's chips.
//!
//! Nothing else of a plan depends on it. A share of a row's cache is computed by one threadgroup, however many simdgroups that has.

use crate::context::{
    LINES, LINES_MEMORY, WIDEST_LINE, channels, element, grouped_bytes, head_memory, queries_fit, sums_bytes,
    tile_bytes,
};
use crate::layout::Family;
use crate::spec::{AttentionKnobs, Rows};
use forge_ir::Format;

/// The most heads that a simdgroup of few rows serves: registers hold the sums of as many.
const HEADS_EACH: usize = 4;

/// Heads that matrix units meet at once.
pub(crate) const UNIT_HEADS: usize = 8;

/// Heads of a key head that a card's shuffles are faster for than its matrix units, which meet eight as fast as two. Measured on an H100 in
/// q4_0, ids a second after 4,096 positions: of 2 heads (0.6B) 1,361 by lanes and 1,227 by units, of 4 (8B) 393 and 430.
const FEW_HEADS: usize = 2;

/// Simdgroups of a threadgroup of few rows.
const SIMDGROUPS: usize = 8;

/// The same on NVIDIA's GPUs where more heads read a key head than a simdgroup serves: each part of them has as many as where there
/// is one. Measured on an H200, among all that is tried, with 32 heads over 8 and over 4 of 128 channels, at 521 and 4,105 positions: 16
/// simdgroups of 2 heads take 3% longer for one row, and 28% for eight. (Of 16 heads over 8 a token at 4,096 takes 11% less with 8
/// simdgroups than with 16.)
const OF_PARTS: usize = 16;

/// Bytes of a lane's keys that are under way at once, and of values as many, where it has sums of several heads. Those of one head
/// leave room for twice that.
const UNDER_WAY: usize = 64;

impl AttentionKnobs {
    /// Knobs for query heads that read key heads of `width` channels, on a chip or a card, by the kernel for so many rows.
    ///
    /// Many rows: on NVIDIA's GPUs all heads that share a key head together, as many positions at once as there is room for. Measured on
    /// an H200 with 32 heads over 8 of 128 channels: at 32,768 positions some 200 TFLOP a second, and 11 by 8 rows of a head.
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
            return rule;
        }
        if rows == Rows::Many {
            let tile = grouped_tiles(width, cache).next_back();
            return tile.map_or(rule, |tile| AttentionKnobs { tile, lines: LINES, ..rule });
        }
        let group = (query_heads / key_heads.max(1)).max(1);
        if group > FEW_HEADS && AttentionKnobs::can_take_units(group, width, cache) {
            return AttentionKnobs { heads_each: group.min(UNIT_HEADS), units: true, loads: 1, ..rule };
        }
        let has_parts = group > rule.heads_each;
        let fits = sums_bytes(OF_PARTS, width) <= head_memory(width);
        if has_parts && fits { AttentionKnobs { simdgroups: OF_PARTS, ..rule } } else { rule }
    }

    /// Knobs for query heads that read key heads of `width` channels, by either kernel.
    pub fn for_heads(query_heads: usize, key_heads: usize, width: usize, cache: Format) -> AttentionKnobs {
        let group = (query_heads / key_heads.max(1)).max(1);
        let heads_each = group.div_ceil(group.div_ceil(HEADS_EACH));
        let tile = [32, 16, 8].into_iter().find(|tile| tile_bytes(*tile, width) <= head_memory(width));
        AttentionKnobs {
            simdgroups: SIMDGROUPS,
            heads_each,
            units: false,
            loads: most_loads(heads_each, width, cache),
            tile: tile.unwrap_or(8),
            lines: 8,
        }
    }

    /// Whether matrix units can meet a cache for `group` query heads of a key head: eight positions with 32 channels at once, and 16 with 64.
    pub fn can_take_units(group: usize, width: usize, cache: Format) -> bool {
        cache == Format::F16 && [64, 128].contains(&width) && queries_fit(group, width)
    }

    /// Layouts that are worth a try for so many rows. What does not matter for these is as the rule has it.
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
            return of_a_head.chain(grouped).collect();
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
        if AttentionKnobs::can_take_units(group, width, cache) {
            let of_units =
                AttentionKnobs { heads_each: group.min(UNIT_HEADS), units: true, loads: 1, ..rule };
            let parts = group.div_ceil(UNIT_HEADS);
            let fits = |simdgroups: &usize| {
                *simdgroups >= parts && sums_bytes(*simdgroups, width) <= head_memory(width)
            };
            tried.extend(
                [4, 8, 16]
                    .into_iter()
                    .filter(fits)
                    .map(|simdgroups| AttentionKnobs { simdgroups, ..of_units }),
            );
        }
        tried
    }
}

/// Positions that 64 lines may be met by at once.
fn grouped_tiles(width: usize, cache: Format) -> impl DoubleEndedIterator<Item = usize> {
    let fits = move |tile: &usize| width <= WIDEST_LINE && grouped_bytes(*tile, width, cache) <= LINES_MEMORY;
    [16, 32].into_iter().filter(fits)
}

/// How often registers have room for what a simdgroup loads.
fn most_loads(heads_each: usize, width: usize, cache: Format) -> usize {
    let bytes = if heads_each == 1 { 2 * UNDER_WAY } else { UNDER_WAY };
    (bytes / (channels(width) * element(cache).1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_rule_chooses_is_tried() {
        for (query_heads, key_heads) in [(1, 1), (4, 2), (9, 3), (10, 2), (32, 1), (14, 2), (40, 8)] {
            for width in [6, 64, 80, 128, 256, 512] {
                for cache in [Format::F32, Format::F16, Format::Q8_0] {
                    let rule = AttentionKnobs::for_heads(query_heads, key_heads, width, cache);
                    for rows in [Rows::One, Rows::Few, Rows::Many] {
                        let card = AttentionKnobs::for_chip(
                            Family::Nvidia,
                            rows,
                            query_heads,
                            key_heads,
                            width,
                            cache,
                        );
                        let tried = AttentionKnobs::tried(rows, query_heads, key_heads, width, cache);
                        for chosen in [rule, card] {
                            let what = format!("{query_heads} {key_heads} {width} {cache}: {chosen:?}");
                            assert!(tried.contains(&chosen), "{what}");
                        }
                    }
                }
            }
        }
    }
}
