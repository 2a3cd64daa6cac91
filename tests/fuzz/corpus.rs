//! The files that are mutated: those of the repository's models, and the regression seeds.

use crate::folder;
use crate::mutate::{Random, json, mutated_bytes};
use forge_frontend::MemoryCheckpoint;
use std::path::PathBuf;

/// The regression seeds of a target, with their names.
pub(crate) fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let paths = entries(&format!("fuzz/seeds/{target}"));
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), std::fs::read(path).unwrap())).collect()
}

/// The directories of all models, relative to this package.
pub(crate) fn models() -> Vec<String> {
    let of = |kind: &'static str| {
        let models = entries(kind).into_iter().filter(|path| path.is_dir());
        models.map(move |path| format!("{kind}/{}", path.file_name().unwrap().to_string_lossy()))
    };
    ["models", "odd", "quantized"].into_iter().flat_map(of).collect()
}

fn entries(path: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder(path)).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// All files with this name, without duplicates.
pub(crate) fn files(name: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<Vec<u8>> =
        models().iter().filter_map(|model| std::fs::read(folder(model).join(name)).ok()).collect();
    files.sort();
    files.dedup();
    assert!(!files.is_empty(), "no model has a {name}");
    files
}

/// A model with all its files.
pub(crate) fn model(path: &str) -> MemoryCheckpoint {
    let files = entries(path).into_iter().map(|path| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
    });
    MemoryCheckpoint(files.collect())
}

/// The header of a model's weight file; none if there are several files.
pub(crate) fn header(model: &str) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(folder(model).join("model.safetensors")).ok()?;
    let length = u64::from_le_bytes(*bytes.first_chunk()?);
    bytes.truncate(8 + length as usize);
    Some(bytes)
}

/// A mutated safetensors header, mostly with the correct length.
pub(crate) fn mutated_header(
    random: &mut Random,
    corpus: &[Vec<u8>],
    dictionary: &json::Dictionary,
) -> Vec<u8> {
    if random.once_in(4) {
        return mutated_bytes(random, corpus, &["{", "\"", "9", ",", "]", "\u{0}\u{0}\u{0}"]);
    }
    let base = random.one(corpus).clone();
    let Some(header) = json::mutated(random, base.get(8..).unwrap_or_default(), dictionary) else {
        return base;
    };
    let length = header.len() as u64;
    let stated = if random.once_in(20) { length.wrapping_mul(1 << random.below(64)) } else { length };
    [&stated.to_le_bytes(), &*header].concat()
}

/// The headers of small GGUF files, and zeros for the longest data of any of them.
pub(crate) fn gguf() -> (Vec<Vec<u8>>, Vec<u8>) {
    let files = entries("gguf").into_iter().filter(|path| path.extension().is_some_and(|end| end == "gguf"));
    let files = files.map(|path| std::fs::read(path).unwrap()).filter(|file| file.len() < 100_000);
    let mut longest = 0;
    let heads = files.map(|mut file| {
        // The name of the last tensor is the last string. Its shape and offset follow.
        let name = file.windows(7).rposition(|text| text == b".weight").unwrap_or_default();
        longest = longest.max(file.len() - name);
        file.truncate(name + 64);
        file
    });
    (heads.collect(), vec![0; longest])
}

/// A mutated binary file: a few integers are replaced, or bytes are mutated.
pub(crate) fn mutated_binary(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    if random.once_in(3) {
        return mutated_bytes(random, corpus, &["\u{0}\u{0}\u{0}\u{0}", "GGUF", "."]);
    }
    let mut bytes = random.one(corpus).clone();
    for _ in 0..=random.below(3) {
        let number = match random.below(4) {
            0 => random.below(20) as u64,
            1 => 1 << random.below(64),
            2 => (1 << random.below(64)) - 1,
            _ => u64::MAX - random.below(9) as u64,
        };
        let width = *random.one(&[1, 4, 8]);
        let at = random.below(bytes.len() - width);
        bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
    }
    bytes
}

/// The chat templates of all models, and one with the features that theirs lack.
pub(crate) fn templates() -> Vec<Vec<u8>> {
    let configs = files("tokenizer_config.json");
    let configs = configs.iter().map(|config| serde_json::from_slice::<serde_json::Value>(config).unwrap());
    let mut templates: Vec<Vec<u8>> =
        configs.filter_map(|config| Some(config["chat_template"].as_str()?.as_bytes().to_vec())).collect();
    templates.sort();
    templates.dedup();
    templates
}

/// Fragments of templates.
pub(crate) const TEMPLATE_FRAGMENTS: &[&str] = &[
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "{%- ",
    "{# ",
    "{% if true %}",
    "{% endif %}",
    "{% for i in range(99999) %}",
    "{% endfor %}",
    "{% for m in messages %}",
    "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "{% set x = x ~ x %}",
    "namespace(a=[])",
    "{% generation %}",
    "{% endgeneration %}",
    "| tojson",
    "| tojson(indent=9999999999)",
    "| length",
    "* 99999999",
    "~ ('a' * 1000000)",
    "[::-1]",
    ".split('')",
    ".strip()",
    "['content']",
    "raise_exception('x')",
    "strftime_now('%')",
    "strftime_now('%9999d')",
    "loop.index0 % 2",
    " and ",
    " not in ",
    "((((((((((((((((",
    "[[[[[[[[[[[[[[[[",
    "**",
    "// 0",
    "% 0",
    "| indent(999999999)",
    "| center(999999999)",
    "\u{10ffff}",
    "\u{0}",
    "''",
    "\\",
    "range(0, 100000, 0)",
    "{% include 'default' %}",
    "{{ self }}",
    "|join('a')",
    "{% raw %}",
    "|map(attribute='content')|list",
    ".format(1)",
    "|sort",
    "- 1",
];
