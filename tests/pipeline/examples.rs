//! The examples, with the commands that users type. Each builds its own copy of the runtime, so it is compiled with
//! less optimization.

use std::process::{Command, Output};
use tests::{forge, root, run, scratch};

/// Runs the command of an example.
fn run_example(command: &mut Command) -> Output {
    let profile = [("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"), ("CARGO_PROFILE_RELEASE_LTO", "off")];
    run(command.envs(profile).env("FORGE", forge()).env("CARGO_TARGET_DIR", scratch().join("release")))
}

#[test]
fn first_steps_example() {
    let out = scratch().join("first-steps");
    let mut command = Command::new("sh");
    command.arg("examples/first-steps.sh").arg("tests/models/llama").arg(&out).current_dir(root());
    let output = run_example(&mut command);
    let stdout = String::from_utf8_lossy(&output.stdout);
    for expected in ["body layer", "decode of 1", "dispatches", "ok: the logits match the reference."] {
        assert!(stdout.contains(expected), "should say {expected}:\n{stdout}");
    }
}

/// Runs a copy of an example crate, so that builds in its own directory are not touched, and returns its output.
fn run_copy(name: &str) -> String {
    let (example, copy) = (root().join("examples").join(name), scratch().join(name));
    std::fs::create_dir_all(copy.join("src")).unwrap();
    for file in ["Cargo.toml", "run.sh", "src/main.rs"] {
        std::fs::copy(example.join(file), copy.join(file)).unwrap();
    }
    let mut command = Command::new("sh");
    command.arg(copy.join("run.sh")).arg(root().join("examples/fable"));
    String::from_utf8(run_example(&mut command).stdout).unwrap()
}

#[test]
fn embedding_example() {
    let stdout = run_copy("embedding");
    let (story, rest) = stdout.split_once("\n\nHe wanted ").unwrap_or((&stdout, ""));
    assert!(story.contains("goat") && story.contains("bell"), "{stdout}");
    assert!(rest.contains("10 of them read for this answer"), "{stdout}");
}

/// Builds three crates, each of which evaluates 57,000 tokens. The values depend on the model, so only their order is checked.
#[test]
fn recipe_example() {
    let mut command = Command::new("sh");
    command.args(["examples/recipe.sh", "examples/fable", "examples/fable/held-out.txt"]);
    command.arg(scratch().join("recipes")).current_dir(root());
    let output = run_example(&mut command);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let figures = |name: &str| -> (f64, f64) {
        let line = stdout
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("no {name}: {stdout}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[1].parse().unwrap(), words[4].parse().unwrap())
    };
    let (small, mixed, spent) = (figures("small"), figures("mixed"), figures("spent"));
    assert!(small.0 < mixed.0 && small.0 < spent.0, "{stdout}");
    assert!(mixed.1 < small.1 && (1.0..2.0).contains(&mixed.1), "{stdout}");
    assert!((1.0..2.0).contains(&spent.1), "{stdout}");
}

#[test]
fn outline_example() {
    let stdout = run_copy("outline");
    for expected in ["Outline {", "kind: \"troll\"", "ending: "] {
        assert!(stdout.contains(expected), "should say {expected}: {stdout}");
    }
}
