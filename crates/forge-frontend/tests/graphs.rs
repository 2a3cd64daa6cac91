//! Snapshots of the graphs of the test models.

use forge_frontend::{Memory, Options, read_model};

/// A model of tests/models, in memory.
fn model(name: &str) -> Memory {
    let folder = format!("{}/../../tests/models/{name}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap())
    });
    Memory(files.collect())
}

#[test]
fn graphs() {
    for name in ["llama", "llama3_rope", "llama_bias"] {
        let options = Options { name: name.to_owned(), ..Options::default() };
        let opened = read_model(&model(name), &options).unwrap();
        insta::assert_snapshot!(name, opened.graph);
    }
}
