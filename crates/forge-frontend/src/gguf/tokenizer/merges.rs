//! BPE merges from the scores of a SentencePiece vocabulary.
//!
//! SentencePiece merges the adjacent pair whose piece has the highest score; a BPE tokenizer merges the pair
//! that comes first in its list. So every split of a piece into two pieces is a merge, sorted by descending
//! score. Ties, mostly runs of spaces, are ordered by a longer first part, then a longer second part, as in
//! Hugging Face's conversion.

use std::collections::HashMap;

/// Pieces that may be merged, with id and score.
pub(crate) type Pieces<'a> = HashMap<&'a str, (usize, f64)>;

/// The merges in order; `None` if all pieces have the same score.
pub(crate) fn merges<'a>(pieces: &Pieces<'a>) -> Option<Vec<[&'a str; 2]>> {
    let mut merges = Vec::new();
    for (piece, (id, score)) in pieces {
        let characters = piece.chars().count();
        for (length, (at, _)) in piece.char_indices().enumerate().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some((first, _)), Some((second, _))) = (pieces.get(left), pieces.get(right)) {
                // The last tie-break is by id.
                let order = ([length, characters - length].map(std::cmp::Reverse), [*id, *first, *second]);
                merges.push((*score, order, [left, right]));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let scores = |merge: Option<&(f64, _, _)>| merge.map(|merge| merge.0);
    let is_ordered = merges.len() <= 1 || scores(merges.first()) != scores(merges.last());
    is_ordered.then(|| merges.into_iter().map(|(_, _, parts)| parts).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merges_of(pieces: &[(&'static str, f64)]) -> Option<Vec<String>> {
        let numbered = pieces.iter().enumerate().map(|(id, (piece, score))| (*piece, (id, *score)));
        let merges = merges(&numbered.collect())?;
        Some(merges.into_iter().map(|parts| parts.join(" ")).collect())
    }

    #[test]
    fn merges_are_ordered_by_score() {
        let pieces =
            [("a", -9.0), ("b", -9.5), ("ab", -2.0), ("ba", -1.0), ("aba", -3.0), ("x", 0.0), ("xy", 0.0)];
        assert_eq!(merges_of(&pieces).unwrap(), ["b a", "a b", "ab a", "a ba"]);
    }

    #[test]
    fn equal_scores_order_by_longer_first_part() {
        let pieces = [("_", -9.0), ("__", -5.0), ("___", -5.0), ("é", -9.0), ("éé", -1.0)];
        assert_eq!(merges_of(&pieces).unwrap(), ["é é", "__ _", "_ __", "_ _"]);
    }

    #[test]
    fn constant_scores_give_no_merge_order() {
        assert_eq!(merges_of(&[("a", -1000.0), ("aa", -1000.0), ("aaa", -1000.0)]), None);
        assert_eq!(merges_of(&[("a", -1000.0), ("b", -1000.0)]), Some(Vec::new()));
    }
}
