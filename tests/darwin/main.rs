//! The programs of all models for macOS, and an app's library of two models for iOS, on any system: code that only compiles there
//! is linted, and the results are linked. Nothing is executed.
//!
//! `sdk` replaces Apple's SDKs with lists of the exported symbols that programs use. A missing symbol means that no program has
//! used it before: check Apple's documentation, also for the systems that have it, and add it. (The C functions are all in the
//! `libSystem` list of other cross compilers, version 1359.)
//!
//! The tests need Rust's standard library for both systems, which is a download: `cargo xtask darwin` runs them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::{PROGRAMS, compile_member, model, models, root, run, scratch, share_lock_file, write_programs};

const MACOS: &str = "aarch64-apple-darwin";
const IOS: &str = "aarch64-apple-ios";

/// A model with attention and experts.
const TUNABLE: &str = "qwen3_moe";

/// The models of [`IOS`]: a dense one, and one with experts, which may be streamed.
const IOS_MODELS: [&str; 2] = ["llama", TUNABLE];

/// The first iOS with the version of Metal that the kernels use.
const IOS_VERSION: &str = "16.0";

/// The linker that comes with Rust.
fn linker() -> PathBuf {
    let output = run(Command::new("rustc").args(["--print", "sysroot"]));
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let host = run(Command::new("rustc").args(["--print", "host-tuple"]));
    let host = String::from_utf8_lossy(&host.stdout).trim().to_owned();
    sysroot.join("lib/rustlib").join(host).join("bin/rust-lld")
}

fn sdk() -> PathBuf {
    root().join("tests/darwin/sdk")
}

/// Cargo for one of Apple's systems, in a workspace.
fn cargo(workspace: &Path, target: &str, arguments: &[&str]) {
    let environment = [
        ("CARGO_TARGET_DIR", scratch().join("darwin/target")),
        ("CARGO_BUILD_TARGET", PathBuf::from(target)),
        ("IPHONEOS_DEPLOYMENT_TARGET", PathBuf::from(IOS_VERSION)),
        ("SDKROOT", sdk()),
    ];
    let variable = format!("CARGO_TARGET_{}", target.to_uppercase().replace('-', "_"));
    let mut command = Command::new(env!("CARGO"));
    command.env(format!("{variable}_LINKER"), linker());
    command.env(format!("{variable}_RUSTFLAGS"), "-Clinker-flavor=ld64.lld");
    run(command.args(arguments).current_dir(workspace).envs(environment));
}

/// Writes the manifest of a workspace. Nothing is executed, so no optimization is needed.
fn write_workspace(workspace: &Path, members: &[&str]) {
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = {members:?}\n[profile.dev]\nopt-level = 0\ndebug = false\n"
    );
    fs::write(workspace.join("Cargo.toml"), manifest).expect("the build folder is writable");
    share_lock_file(workspace);
}

/// The 32-bit words of a Mach-O file.
fn words(path: &Path) -> Vec<u32> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
    words.map(u32::from_le_bytes).collect()
}

#[test]
#[ignore = "takes Rust's standard library for a Mac: cargo xtask darwin"]
fn programs_of_all_models_are_clean_and_link() {
    let workspace = scratch().join("darwin");
    let names = models();
    for name in &names {
        // One crate has candidate layouts for `tune`.
        let more = (name == TUNABLE).then_some("--with-tuning");
        let arguments: Vec<&str> =
            ["--quant", "f32", "--no-reference-logits"].into_iter().chain(more).collect();
        compile_member(&model(name), &arguments, &workspace.join(name));
    }
    write_programs(&workspace, &names);
    let members: Vec<&str> = names.iter().map(String::as_str).chain([PROGRAMS]).collect();
    write_workspace(&workspace, &members);
    cargo(&workspace, MACOS, &["clippy", "--workspace", "--", "-D", "warnings"]);
    cargo(&workspace, MACOS, &["build", "--package", PROGRAMS]);
    let words = words(&scratch().join("darwin/target").join(MACOS).join("debug").join(PROGRAMS));
    // A Mach-O file of 64 bits, for a processor of ARM's, that is a program.
    assert_eq!([words[0], words[1], words[3]], [0xfeed_facf, 0x0100_000c, 2]);
}

/// The static library of `examples/apple-app`: an app links the functions of its header, and what its module map names.
#[test]
#[ignore = "takes Rust's standard library for iOS: cargo xtask darwin"]
fn libraries_of_apps_are_clean_and_link() {
    let workspace = scratch().join("ios");
    let apps = IOS_MODELS.map(|name| format!("app_{name}"));
    for (name, app) in IOS_MODELS.iter().zip(&apps) {
        compile_member(&model(name), &["--quant", "f32", "--no-reference-logits"], &workspace.join(name));
        write_app(&workspace.join(app), app, name);
    }
    let members: Vec<&str> = IOS_MODELS.into_iter().chain(apps.iter().map(String::as_str)).collect();
    write_workspace(&workspace, &members);
    cargo(&workspace, IOS, &["clippy", "--workspace", "--", "-D", "warnings"]);
    cargo(&workspace, IOS, &["build", "--package", &apps[0], "--package", &apps[1]]);
    let (functions, links) = (functions(), links());
    assert!(functions.len() == 5 && !links.is_empty(), "{functions:?} {links:?}");
    for app in &apps {
        let folder = scratch().join("darwin/target").join(IOS).join("debug");
        let linked = folder.join(format!("{app}.dylib"));
        let mut command = Command::new(linker());
        command.args(["-flavor", "darwin", "-dylib", "-arch", "arm64", "-fatal_warnings", "-dead_strip"]);
        command.args(["-platform_version", "ios", IOS_VERSION, IOS_VERSION, "-syslibroot"]).arg(sdk());
        for name in functions.iter().map(|name| format!("_{name}")) {
            command.args(["-u", &name, "-exported_symbol", &name]);
        }
        command.arg(folder.join(format!("lib{app}.a"))).args(&links).args(["-lSystem", "-o"]).arg(&linked);
        run(&mut command);
        let words = words(&linked);
        // A Mach-O file of 64 bits, for a processor of ARM's, that is a library.
        assert_eq!([words[0], words[1], words[3]], [0xfeed_facf, 0x0100_000c, 6]);
    }
}

fn example(file: &str) -> String {
    let path = root().join("examples/apple-app").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Writes the example as a workspace member, over a model of the workspace.
fn write_app(directory: &Path, app: &str, model: &str) {
    let manifest = example("Cargo.toml")
        .replace("\"apple-app\"", &format!("{app:?}"))
        .replace("\"language_model\"", &format!("{app:?}"))
        .replace("path = \"model\"", &format!("package = {model:?}, path = \"../{model}\""))
        .replace("[workspace]\nexclude = [\"model\"]\n", "");
    fs::create_dir_all(directory.join("src")).expect("the build folder is writable");
    fs::write(directory.join("Cargo.toml"), manifest).expect("the build folder is writable");
    fs::write(directory.join("src/lib.rs"), example("src/lib.rs")).expect("the build folder is writable");
}

/// The functions that the example's header declares.
fn functions() -> BTreeSet<String> {
    let header = example("include/language_model.h");
    let before_parentheses = header.split('(').map(|text| {
        text.rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default()
    });
    before_parentheses.filter(|name| name.starts_with("language_model_")).map(str::to_owned).collect()
}

/// The linker's arguments for the libraries and frameworks that the example's module map names.
fn links() -> Vec<String> {
    let map = example("include/module.modulemap");
    let names = map.lines().filter_map(|line| line.trim().strip_prefix("link "));
    let arguments = names.flat_map(|name| match name.strip_prefix("framework ") {
        Some(name) => vec!["-framework".to_owned(), name.trim_matches('"').to_owned()],
        None => vec![format!("-l{}", name.trim_matches('"'))],
    });
    arguments.collect()
}
