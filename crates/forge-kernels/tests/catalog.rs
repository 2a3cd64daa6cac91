//! The catalog and the directory `kernels/` list the same templates, and rendered kernels are readable.

mod common;

use std::fs;
use std::path::Path;

use forge_kernels::catalog::{PARTS, SUPPORT, TEMPLATES, template_path};
use forge_kernels::render;

/// Paths of the `.metal` files under `folder`, without extension.
fn files(folder: &Path, prefix: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap_or_else(|error| panic!("{error}")).path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            files(&path, &format!("{prefix}{name}/"), found);
        } else {
            found.push(format!("{prefix}{name}"));
        }
    }
}

#[test]
fn all_kernel_files_are_listed() {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels"), "", &mut found);
    let mut listed: Vec<String> =
        TEMPLATES.iter().chain(PARTS).chain(SUPPORT).map(|source| source.path.to_owned()).collect();
    found.sort();
    listed.sort();
    assert_eq!(found, listed);
}

#[test]
fn rendered_lines_are_short() {
    let mut unused: Vec<&str> = TEMPLATES.iter().map(|template| template.path).collect();
    for spec in [common::others(), common::projections(), common::attentions()].concat() {
        unused.retain(|path| *path != template_path(&spec));
        let instance = render("layer_kernel", &spec).unwrap_or_else(|error| panic!("{error}"));
        for line in instance.text.lines() {
            assert!(line.len() <= 130, "{spec:?} has a line of {} characters: {line}", line.len());
            assert_eq!(line.trim_end(), line, "{spec:?} has spaces at the end of a line");
        }
        assert!(!instance.text.contains("\n\n\n"), "{spec:?} has two empty lines");
    }
    assert!(unused.is_empty(), "no test renders {unused:?}");
}
