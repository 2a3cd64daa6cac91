//! Suggestions for misspelled names.

/// The candidate with the smallest edit distance from `name`, if small enough for a typo.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(name, candidate), candidate))
        .filter(|(distance, candidate)| {
            *distance > 0 && *distance <= (name.len().min(candidate.len()) / 3).clamp(1, 6)
        })
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn suggests_names_for_typos_only() {
        let known = ["rms_norm_eps", "rope_theta", "rope_scaling", "head_dim"];
        let cases = [
            ("rms_norm_epsilon", Some("rms_norm_eps")),
            ("rope_tehta", Some("rope_theta")),
            ("rope_scalling", Some("rope_scaling")),
            ("sliding_window", None),
            ("head_dim", None),
            ("", None),
        ];
        for (name, expected) in cases {
            let found = nearest(name, known);
            assert_eq!(found, expected, "{name}");
        }
    }
}
