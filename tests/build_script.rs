//! The `build.rs` of generated crates on other systems: it is compiled unmodified and run with a substitute for `xcrun`.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs the script for `system`, a system or a system and an ABI, with this shell script as `xcrun`, and returns its
/// instructions to cargo.
fn run_build_script(folder: &Path, system: &str, xcrun: Option<&str>) -> Vec<String> {
    let (script, tools) = (folder.join("build"), folder.join("tools"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../templates/crate/build.rs");
    if !script.exists() {
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let compiled = Command::new(compiler).args(["--edition", "2024", source, "-o"]).arg(&script).status();
        assert!(compiled.expect("there is a compiler").success());
    }
    let _ = fs::remove_dir_all(&tools);
    fs::create_dir(&tools).unwrap();
    if let Some(text) = xcrun {
        let path = tools.join("xcrun");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let (system, abi) = system.split_once(' ').unwrap_or((system, ""));
    let output = Command::new(&script)
        .current_dir(folder)
        .env("PATH", &tools)
        .env("CARGO_CFG_TARGET_OS", system)
        .env("CARGO_CFG_TARGET_ABI", abi)
        .env("OUT_DIR", folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let begins = "cargo::rerun-if-changed=src/kernels.metal";
    assert_eq!(lines.lines().next(), Some(begins));
    lines.lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn build_script_compiles_kernels_only_with_xcrun() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // The script first looks up the compiler, then runs it. A library contains the arguments.
    let compiles = r#"[ "$3" = --find ] && exit
        case "$*" in *tensor*) echo "$@" > "${OUT_DIR}/tensor_kernels.metallib";; *) echo "$@" > "${OUT_DIR}/kernels.metallib";; esac"#;
    let fails = r#"[ "$3" = --find ] || { echo "kernels.metal:7: no such type" >&2; exit 1; }"#;
    let both = ["cargo::rustc-cfg=metallib", "cargo::rustc-cfg=tensor_metallib"];
    assert!(run_build_script(folder, "linux", Some(compiles)).is_empty(), "there is no Metal");
    assert!(run_build_script(folder, "macos", None).is_empty(), "there are no tools of Apple's");
    assert!(run_build_script(folder, "macos", Some("exit 72")).is_empty(), "there is no compiler among them");
    let library = folder.join("kernels.metallib");
    assert!(!library.exists());
    assert_eq!(run_build_script(folder, "macos", Some(compiles)), both);
    let arguments = fs::read_to_string(&library).unwrap();
    let command = |math: &str| {
        let options = "-sdk macosx metal -std=metal3.0 -mmacosx-version-min=13.0";
        format!("{options} {math} -o {} src/kernels.metal\n", library.display())
    };
    let math = "-fmetal-math-mode=safe -fmetal-math-fp32-functions=precise";
    assert_eq!(arguments, command(math));
    let tensors = folder.join("tensor_kernels.metallib");
    let arguments = fs::read_to_string(&tensors).unwrap();
    let options = "-sdk macosx metal -std=metal4.0 -mmacosx-version-min=26.0";
    assert_eq!(arguments, format!("{options} {math} -o {} src/kernels.metal\n", tensors.display()));
    assert!(run_build_script(folder, "ios sim", Some(compiles)).is_empty(), "the SDK is another one");
    assert_eq!(run_build_script(folder, "ios", Some(compiles)), both);
    let arguments = fs::read_to_string(&library).unwrap();
    assert!(
        arguments.starts_with("-sdk iphoneos metal -std=metal3.0 -mios-version-min=16.0 -f"),
        "{arguments}"
    );
    // A compiler before Xcode 16.
    let old =
        format!(r#"case "$*" in *-fmetal-math*) echo "unknown argument" >&2; exit 1;; esac; {compiles}"#);
    assert_eq!(run_build_script(folder, "macos", Some(&old)), both[..1]);
    assert_eq!(fs::read_to_string(&library).unwrap(), command("-fno-fast-math"));
    let lines = run_build_script(folder, "macos", Some(fails));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].starts_with("cargo::warning=xcrun metal failed to compile src/kernels.metal"),
        "{lines:?}"
    );
    assert_eq!(lines[1], "cargo::warning=kernels.metal:7: no such type");
}
