//! Branches of a source for versions of the language.

/// The source as one version of the language sees it, 300 for Metal 3.0: the lines of other branches of
/// `#if __METAL_VERSION__ >= N`, and the directives, become empty. Other directives remain. Line numbers do
/// not change.
pub fn for_language(text: &str, version: u32) -> String {
    // Of each open conditional: whether its branch is taken, or `None` if it does not ask for the version.
    let mut branches: Vec<Option<bool>> = Vec::new();
    let mut selected = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let directive = line.trim();
        let mut is_kept = false;
        if let Some(least) = directive.strip_prefix("#if __METAL_VERSION__ >= ") {
            branches.push(Some(least.parse().is_ok_and(|least: u32| version >= least)));
        } else if directive == "#else" && matches!(branches.last(), Some(Some(_))) {
            let taken = branches.pop().flatten();
            branches.push(taken.map(|taken| !taken));
        } else if directive == "#endif" && matches!(branches.last(), Some(Some(_))) {
            branches.pop();
        } else {
            if directive.starts_with("#if") {
                branches.push(None);
            } else if directive == "#endif" {
                branches.pop();
            }
            is_kept = !branches.contains(&Some(false));
        }
        selected.push_str(if is_kept { line } else { &line[line.trim_end_matches('\n').len()..] });
    }
    selected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_branches_and_keeps_lines() {
        let text =
            "a\n#if __METAL_VERSION__ >= 400\nb\n#ifndef X\nc\n#else\nd\n#endif\n#else\ne\n#endif\nf\n";
        assert_eq!(for_language(text, 300), "a\n\n\n\n\n\n\n\n\ne\n\nf\n");
        assert_eq!(for_language(text, 410), "a\n\nb\n#ifndef X\nc\n#else\nd\n#endif\n\n\n\nf\n");
    }
}
