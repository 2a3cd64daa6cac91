//! The likeliest token.

/// The index of the largest value, the lowest index among equals; NaN is ignored. 0 if every value is NaN.
pub fn argmax(logits: &[f32]) -> usize {
    let mut best = None;
    for (index, logit) in logits.iter().enumerate() {
        if !logit.is_nan() && best.is_none_or(|(_, most)| logit > most) {
            best = Some((index, logit));
        }
    }
    best.map_or(0, |(index, _)| index)
}
