//! The project's texts use the field's vocabulary: words that only this project used do not occur.

use std::path::{Path, PathBuf};
use tests::root;

/// Words to avoid, each with its replacement.
const WORDS: [(&str, &str); 16] = [
    ("bfloats", "bf16"),
    ("chores", "tasks"),
    ("foretell", "predict"),
    ("foretells", "predicts"),
    ("foretold", "predicted"),
    ("ids a second", "tokens per second"),
    ("in vain", "wasted"),
    ("mended", "fixed"),
    ("nobody", "no thread, no kernel, none"),
    ("quantised", "quantized"),
    ("referee", "kernel checker"),
    ("seats", "slots of the expert cache"),
    ("somebody", "a thread, a caller"),
    ("the nearest cache", "L1"),
    ("whoever", "the thing by its name"),
    ("whom", "the thing by its name"),
];

/// Extensions of the files that are checked.
const KINDS: [&str; 5] = ["rs", "metal", "jinja", "md", "html"];

/// Files that may contain such words: this one, the style guide with its examples, dated notes, and stories.
const EXEMPT: [&str; 4] =
    ["tests/vocabulary.rs", "docs/contributing/STYLE.md", "docs/perf-log", "examples/fable"];

#[test]
fn no_project_only_words() {
    let mut faults = Vec::new();
    for folder in
        ["crates", "kernels", "templates", "docs", "tests", "examples", "README.md", "CONTRIBUTING.md"]
    {
        for file in files(&root().join(folder)) {
            let path = file.strip_prefix(root()).expect("it was found there").display().to_string();
            if EXEMPT.iter().any(|quoting| path.starts_with(quoting)) {
                continue;
            }
            let Ok(text) = std::fs::read_to_string(&file) else { continue };
            for (number, line) in text.lines().enumerate() {
                for (word, instead) in used(line) {
                    faults.push(format!("{path}:{}: `{word}`; write: {instead}", number + 1));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} places\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn finds_words_in_names_and_sentences_only() {
    for (line, expected) in [
        ("// Whoever is done", vec!["whoever"]),
        ("fn referee_of(x: u32)", vec!["referee"]),
        ("0.5 ids a second", vec!["ids a second"]),
        ("amended, recommended", vec![]),
    ] {
        assert_eq!(used(line).map(|(word, _)| word).collect::<Vec<_>>(), expected, "{line}");
    }
}

/// The words of the list in a line.
fn used(line: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let line = line.to_lowercase();
    WORDS.into_iter().filter(move |(word, _)| {
        line.match_indices(word).any(|(at, _)| {
            let is_letter = |c: char| c.is_alphabetic();
            let before = line[..at].chars().next_back().is_some_and(is_letter);
            !before && !line[at + word.len()..].starts_with(is_letter)
        })
    })
}

/// The files with these extensions in a directory, or the file itself.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        let is_built = ["target", "seeds", "snapshots"].iter().any(|name| path.ends_with(name));
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        return if is_built { Vec::new() } else { entries.flat_map(|entry| files(&entry.path())).collect() };
    }
    let is_read = path.extension().is_some_and(|kind| KINDS.iter().any(|read| kind == *read));
    if is_read { vec![path.to_owned()] } else { Vec::new() }
}
