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
