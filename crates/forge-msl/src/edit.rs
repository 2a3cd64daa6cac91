//! Edits of a source.

use std::ops::Range;

/// Replaces ranges of `text`, which are disjoint.
pub fn edit(text: &str, edits: impl IntoIterator<Item = (Range<usize>, String)>) -> String {
    let mut edits: Vec<_> = edits.into_iter().collect();
    edits.sort_by_key(|(range, _)| range.start);
    let mut edited = String::with_capacity(text.len());
    let mut at = 0;
    for (range, replacement) in edits {
        edited.push_str(&text[at..range.start]);
        edited.push_str(&replacement);
        at = range.end;
    }
    edited.push_str(&text[at..]);
    edited
}

/// The line breaks of `text`, as a replacement of it that preserves line numbers.
pub fn line_breaks(text: &str) -> String {
    text.matches('\n').collect()
}
