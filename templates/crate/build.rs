//! Compiles kernels.metal for a Mac where Apple's Metal compiler is installed: it comes with Xcode, and not with its command
//! line tools. Where it is not, the program compiles the text when it starts.

use std::path::Path;
use std::process::{Command, Output};

fn main() {
    println!("cargo::rerun-if-changed=src/kernels.metal");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("CARGO_CFG_TARGET_OS") != "macos" {
        return;
    }
    if xcrun(&["--find", "metal"]).is_none_or(|output| !output.status.success()) {
        return;
    }
    let library = Path::new(&variable("OUT_DIR")).join("kernels.metallib").display().to_string();
    // The language and the mathematics that the program asks for where it compiles the text itself.
    let options = ["metal", "-std=metal3.0", "-mmacosx-version-min=13.0", "-fno-fast-math"];
    match xcrun(&[&options[..], &["-o", &library, "src/kernels.metal"]].concat()) {
        Some(output) if output.status.success() => println!("cargo::rustc-cfg=metallib"),
        output => {
            let said = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
            println!("cargo::warning=xcrun metal does not compile src/kernels.metal, so the program will when it starts");
            for line in said.unwrap_or_default().lines() {
                println!("cargo::warning={line}");
            }
        }
    }
}

/// Runs one of Xcode's tools, if they are there.
fn xcrun(arguments: &[&str]) -> Option<Output> {
    Command::new("xcrun").args(["-sdk", "macosx"]).args(arguments).output().ok()
}
