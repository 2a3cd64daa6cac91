//! Merges of a vocabulary that has scores instead, as SentencePiece keeps it.
//!
//! SentencePiece joins the two neighbours whose piece has the highest score; a tokenizer of merges joins those that come
//! first in its list. So every way to make a piece of two others is a merge, those of the highest score first. That is the
//! same as long as no two pieces have one score: of equals SentencePiece takes the leftmost in the text, which no list says.

use std::collections::HashMap;

/// Pieces that may be joined, each with its id and score.
pub(super) type Pieces<'a> = HashMap<&'a str, (usize, f64)>;

/// The merges in their order; or two pieces of one score, which have none.
pub(super) fn merges<'a>(pieces: &Pieces<'a>) -> Result<Vec<[&'a str; 2]>, [&'a str; 2]> {
    let mut merges = Vec::new();
    for (piece, (_, score)) in pieces {
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some((first, _)), Some((second, _))) = (pieces.get(left), pieces.get(right)) {
                merges.push((*score, [*first, *second], [left, right]));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let joined = |[left, right]: [&str; 2]| [left, right].concat();
    for pair in merges.windows(2) {
        let ([(score, _, first), (next, _, second)], ..) = (pair,) else { continue };
        if score == next && joined(*first) != joined(*second) {
            let piece =
                |parts: [&str; 2]| pieces.get_key_value(joined(parts).as_str()).map(|(piece, _)| *piece);
            return Err([piece(*first).unwrap_or_default(), piece(*second).unwrap_or_default()]);
        }
    }
    Ok(merges.into_iter().map(|(_, _, parts)| parts).collect())
}
