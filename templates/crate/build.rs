//! Compiles kernels.metal for macOS or iOS if Apple's Metal compiler is installed. It is part of Xcode, but not of the command
//! line tools. Otherwise, and in the iOS simulator, the program compiles the source at startup.

use std::path::Path;
use std::process::{Command, Output};

fn main() {
    println!("cargo::rerun-if-changed=src/kernels.metal");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    // The first systems with each version of the language.
    let (sdk, system, newer) = match (&*variable("CARGO_CFG_TARGET_OS"), &*variable("CARGO_CFG_TARGET_ABI")) {
        ("macos", _) => ("macosx", "-mmacosx-version-min=13.0", "-mmacosx-version-min=26.0"),
        ("ios", "") => ("iphoneos", "-mios-version-min=16.0", "-mios-version-min=26.0"),
        _ => return,
    };
    if xcrun(sdk, &["--find", "metal"]).is_none_or(|output| !output.status.success()) {
        return;
    }
    // The same language version, math mode and functions as at run time. Before Xcode 16 one option sets both.
    let math = ["-fmetal-math-mode=safe", "-fmetal-math-fp32-functions=precise"];
    let compile = |version: &str, system: &str, library: &str, math: &[&str]| {
        let library = Path::new(&variable("OUT_DIR")).join(library).display().to_string();
        let options = ["metal", version, system];
        let output = xcrun(sdk, &[&options[..], math, &["-o", &library, "src/kernels.metal"]].concat())?;
        Some((output.status.success(), output))
    };
    let plain = |math: &[&str]| compile("-std=metal3.0", system, "kernels.metallib", math);
    let output = match plain(&math) {
        Some((false, _)) => plain(&["-fno-fast-math"]),
        output => output,
    };
    match output.map(|(_, output)| output) {
        Some(output) if output.status.success() => println!("cargo::rustc-cfg=metallib"),
        output => {
            let stderr = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
            println!("cargo::warning=xcrun metal failed to compile src/kernels.metal: the program will compile it at startup");
            for line in stderr.unwrap_or_default().lines() {
                println!("cargo::warning={line}");
            }
        }
    }
    // Metal 4 multiplies tensors. Compilers before Xcode 26 do not know it; the program compiles it at startup if the GPU does.
    if let Some((true, _)) = compile("-std=metal4.0", newer, "tensor_kernels.metallib", &math) {
        println!("cargo::rustc-cfg=tensor_metallib");
    }
}

/// Runs one of Xcode's tools; `None` if Xcode is not installed.
fn xcrun(sdk: &str, arguments: &[&str]) -> Option<Output> {
    Command::new("xcrun").args(["-sdk", sdk]).args(arguments).output().ok()
}
