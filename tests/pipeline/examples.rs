//! The examples, run as they stand: a real release build, as users have it.

use std::process::Command;
use tests::{forge, root, run, scratch};

#[test]
fn first_steps() {
    let out = scratch().join("first-steps");
    let mut command = Command::new("sh");
    command.arg("examples/first-steps.sh").arg("tests/models/llama").arg(&out).current_dir(root());
    command.env("FORGE", forge()).env("CARGO_TARGET_DIR", scratch().join("release"));
    let output = run(&mut command);
    let said = String::from_utf8_lossy(&output.stdout);
    for expected in ["body layer", "decode of 1", "dispatches", "This device computes this model."] {
        assert!(said.contains(expected), "should say {expected}:\n{said}");
    }
}

#[test]
fn embedding() {
    // Where it lies, a user's own run may be; so a copy is run.
    let (example, copy) = (root().join("examples/embedding"), scratch().join("embedding"));
    std::fs::create_dir_all(copy.join("src")).unwrap();
    for file in ["Cargo.toml", "run.sh", "src/main.rs"] {
        std::fs::copy(example.join(file), copy.join(file)).unwrap();
    }
    let mut command = Command::new("sh");
    command.arg(copy.join("run.sh")).arg(root().join("examples/fable"));
    command.env("FORGE", forge()).env("CARGO_TARGET_DIR", scratch().join("release"));
    let output = run(&mut command);
    let said = String::from_utf8_lossy(&output.stdout);
    let (story, rest) = said.split_once("\n\nHe wanted ").unwrap_or((&said, ""));
    assert!(story.contains("goat") && story.contains("bell"), "{said}");
    assert!(rest.contains("10 of them read for this answer"), "{said}");
}
