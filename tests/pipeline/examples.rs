//! The examples, with the commands that users type.
//!
//! `first-steps` builds the crate's own copy of the runtime, with the features that the model needs. The others use the
//! runtime that the programs of the other tests use, which is compiled by then.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tests::{build_directory, forge, root, run, scratch, share_lock_file};

/// Runs the command of an example with this `forge`, in the directory of all tests, whose build profile it takes.
fn run_example(command: &mut Command, forge: &Path) -> Output {
    run(command.env("FORGE", forge).env("CARGO_TARGET_DIR", build_directory()))
}

/// A command like `forge`, whose compiled crates depend on this repository's runtime with all of its features.
fn forge_with_shared_runtime() -> &'static Path {
    static SCRIPT: OnceLock<PathBuf> = OnceLock::new();
    SCRIPT.get_or_init(|| {
        let script = scratch().join("forge-with-shared-runtime.sh");
        let (forge, runtime) = (forge().display(), root().join("crates/forge-runtime"));
        let text = format!(
            "#!/bin/sh\nset -e\n{forge} \"$@\" --runtime {}\n\
             while [ \"$1\" != -o ]; do shift; done\n\
             sed 's/^\\(forge-runtime = {{ path = \"[^\"]*\"\\).*/\\1 }}/' \"$2/Cargo.toml\" > \"$2/Cargo.new\"\n\
             ! grep -q default-features \"$2/Cargo.new\"\n\
             mv \"$2/Cargo.new\" \"$2/Cargo.toml\"\n",
            runtime.display()
        );
        std::fs::write(&script, text).unwrap();
        run(Command::new("chmod").arg("+x").arg(&script));
        script
    })
}

#[test]
fn first_steps_example() {
    let out = scratch().join("first-steps");
    let mut command = Command::new("sh");
    command.arg(root().join("examples/first-steps.sh")).arg("tests/models/llama").arg(&out);
    let output = run_example(&mut command, forge());
    let stdout = String::from_utf8_lossy(&output.stdout);
    for expected in ["body layer", "decode of 1", "dispatches", "ok: the logits match the reference."] {
        assert!(stdout.contains(expected), "should say {expected}:\n{stdout}");
    }
}

/// Copies files of an example crate, so that builds in its own directory are not touched.
fn copy_example(name: &str, files: &[&str]) -> PathBuf {
    let (example, copy) = (root().join("examples").join(name), scratch().join(name));
    std::fs::create_dir_all(copy.join("src")).unwrap();
    for file in files {
        std::fs::copy(example.join(file), copy.join(file)).unwrap();
    }
    share_lock_file(&copy);
    copy
}

/// Runs a copy of an example crate and returns its output.
fn run_copy(name: &str) -> String {
    let copy = copy_example(name, &["Cargo.toml", "run.sh", "src/main.rs"]);
    let mut command = Command::new("sh");
    command.arg(copy.join("run.sh")).arg(root().join("examples/fable"));
    String::from_utf8(run_example(&mut command, forge_with_shared_runtime()).stdout).unwrap()
}

#[test]
fn embedding_example() {
    let stdout = run_copy("embedding");
    let (story, rest) = stdout.split_once("\n\nHe wanted ").unwrap_or((&stdout, ""));
    assert!(story.contains("goat") && story.contains("bell"), "{stdout}");
    assert!(rest.contains("10 of them read for this answer"), "{stdout}");
}

/// Builds three crates, each of which evaluates some stories. The values depend on the model, so only their order is checked.
#[test]
fn recipe_example() {
    let fable = root().join("examples/fable");
    let stories = std::fs::read_to_string(fable.join("held-out.txt")).unwrap();
    let text = scratch().join("stories.txt");
    let some: Vec<&str> = stories.split("* * *").take(60).collect();
    std::fs::write(&text, some.join("* * *")).unwrap();
    // It changes to the parent of its directory, where cargo reads the build profile.
    let script = scratch().join("examples/recipe.sh");
    std::fs::create_dir_all(script.parent().unwrap()).unwrap();
    std::fs::copy(root().join("examples/recipe.sh"), &script).unwrap();
    let mut command = Command::new("sh");
    command.arg(script).arg(&fable).arg(text).arg(scratch().join("recipes"));
    let output = run_example(&mut command, forge_with_shared_runtime());
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

/// The library for apps, on this system: a C program uses it.
#[test]
#[cfg(target_os = "linux")]
fn apple_app_example() {
    let copy = copy_example("apple-app", &["Cargo.toml", "src/lib.rs"]);
    let model = copy.join("model");
    let mut compile = Command::new(forge_with_shared_runtime());
    compile.arg("compile").arg(root().join("examples/fable")).arg("-o").arg(&model);
    run(compile.args(["--name", "model", "--force"]));
    run_example(Command::new(env!("CARGO")).args(["build", "--release"]).current_dir(&copy), forge());
    let program = copy.join("program");
    let mut link = Command::new("cc");
    link.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(root().join("examples/apple-app/include"));
    link.arg(root().join("tests/pipeline/language_model.c"));
    link.arg(build_directory().join("release/liblanguage_model.a"));
    run(link.args(["-lm", "-lpthread", "-ldl", "-o"]).arg(&program));
    let stdout = String::from_utf8(run(Command::new(&program).arg(&model)).stdout).unwrap();
    assert!(stdout.contains("goat"), "{stdout}");
}
