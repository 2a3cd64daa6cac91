//! Empty libraries in place of the Objective-C runtime, Foundation and libdispatch, which the emulator implements.

use std::path::Path;

fn main() {
    let directory = std::env::var("OUT_DIR").expect("cargo says where");
    for name in ["objc", "gnustep-base", "dispatch"] {
        let archive = Path::new(&directory).join(format!("lib{name}.a"));
        std::fs::write(archive, "!<arch>\n").expect("cargo's folder is writable");
    }
    println!("cargo::rustc-link-search=native={directory}");
    println!("cargo::rerun-if-changed=build.rs");
}
