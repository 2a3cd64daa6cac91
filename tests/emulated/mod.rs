//! A program that runs compiled models through the unmodified Metal backend of the runtime, on Linux, in the Metal emulator of
//! `forge-emulation`; and host code with injected faults, which the emulator must detect.
//!
//! The program is a member of the workspace in which compiled models are built, so that their libraries and dependencies exist.
//! It builds `objc2` for GNUstep's runtime. `objc2-metal` links Apple's framework in a way that only Apple's compilers accept, so
//! the workspace has a copy of the published crate with that line changed.

use crate::{Built, root, run, scratch};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

mod host_faults;

pub use host_faults::{ENGINE_FAULTS, HOST_FAULTS, HostFault, STREAMING_FAULTS};

/// The name of the program and of its directory.
pub const DRIVER: &str = "metal-driver";

/// Writes the program for these crates into their workspace. Returns its additions to the workspace manifest.
pub fn write_driver(workspace: &Path, crates: &[&Built]) -> String {
    let directory = workspace.join(DRIVER);
    let hosts = if cfg!(target_os = "linux") { emulated_hosts(&directory) } else { REAL_HOST.to_owned() };
    write(&directory.join("src/hosts.rs"), &hosts);
    write(&directory.join("src/models.rs"), &models_text(crates));
    let sources = root().join("tests/emulated/driver");
    for from in
        ["main.rs", "faulty_device.rs", "resample.rs", "long_context.rs", "real_device.rs", "build.rs"]
    {
        let to = if from == "build.rs" { from.to_owned() } else { format!("src/{from}") };
        write(&directory.join(to), &std::fs::read_to_string(sources.join(from)).expect("it lies here"));
    }
    write(&directory.join("Cargo.toml"), &manifest(crates));
    if cfg!(not(target_os = "linux")) {
        return String::new();
    }
    format!(
        "[patch.crates-io]\nobjc2-metal = {{ path = {:?} }}\n\
         [profile.release.package.forge-sim]\nopt-level = 3\n[profile.release.package.forge-msl]\nopt-level = 3\n\
         [profile.release.package.corosensei]\nopt-level = 3\n",
        patched_objc2_metal()
    )
}

/// The host of a Mac's GPU: the runtime's own.
const REAL_HOST: &str = "//! The host for Metal of the runtime.\n\n\
    pub fn find(name: &str) -> crate::Make {\n    \
    assert_eq!(name, \"whole\", \"faults need the emulator\");\n    backend().open\n}\n\n\
    pub fn backend() -> crate::gpu::metal_backend::MetalBackend {\n    crate::gpu::metal::BACKEND\n}\n";

/// Writes the host code, unmodified and with each fault. Returns the module of them.
fn emulated_hosts(directory: &Path) -> String {
    let texts = files(&root().join("crates/forge-device/src/gpu/metal"));
    let mut hosts = vec!["whole"];
    write_host(directory, "whole", &texts);
    for fault in HOST_FAULTS.iter().chain(&STREAMING_FAULTS) {
        write_host(directory, fault.name, &fault.apply(&texts));
        hosts.push(fault.name);
    }
    hosts_text(&hosts)
}

/// Writes a host. Its files refer to each other by their paths in the driver.
fn write_host(directory: &Path, name: &str, texts: &BTreeMap<String, String>) {
    let folder = directory.join("src/hosts").join(name);
    for (file, text) in texts {
        write(&folder.join(file), &text.replace("crate::gpu::metal::", &format!("crate::hosts::{name}::")));
    }
}

/// The files of a directory by name.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).expect("the runtime has a host for Metal").flatten();
    let file = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().expect("names are UTF-8");
        (name, std::fs::read_to_string(entry.path()).expect("sources are text"))
    };
    entries.map(file).collect()
}

fn manifest(crates: &[&Built]) -> String {
    let path = |name: &str| root().join("crates").join(name);
    let mut text = format!(
        "[package]\nname = {DRIVER:?}\nversion = \"0.1.0\"\nedition = \"2024\"\n[dependencies]\n\
         forge-runtime = {{ path = {:?}, default-features = false }}\n\
         half = \"2.7\"\nmemmap2 = \"0.9\"\nserde = {{ version = \"1.0\", features = [\"derive\"] }}\nserde_json = \"1.0\"\n",
        path("forge-runtime"),
    );
    for built in crates {
        let name = built.name();
        writeln!(text, "{name} = {{ path = \"../{name}\", default-features = false }}")
            .expect("a text takes text");
    }
    if cfg!(not(target_os = "linux")) {
        return text;
    }
    writeln!(text, "forge-emulation = {{ path = {:?} }}", path("forge-emulation"))
        .expect("a text takes text");
    // The dependencies of forge-device for Apple systems, configured for GNUstep.
    let device = std::fs::read_to_string(path("forge-device").join("Cargo.toml")).expect("it is a crate");
    let start = device.find("dispatch2 = ").expect("it depends on dispatch2");
    let end = start + device[start..].find("\n[").expect("its lints follow");
    let mut own = format!("{}\n", &device[start..end]);
    for (name, version) in [("objc2", "0.6.5"), ("block2", "0.6")] {
        let plain = format!("\n{name} = {version:?}\n");
        assert!(own.contains(&plain), "it depends on another {name}");
        let gnustep = format!("\n{name} = {{ version = {version:?}, features = [\"gnustep-2-1\"] }}\n");
        own = own.replace(&plain, &gnustep);
    }
    text + &own
}

fn hosts_text(hosts: &[&str]) -> String {
    let mut text = "//! The host for Metal, as it is and with faults planted.\n\n".to_owned();
    for name in hosts {
        writeln!(text, "#[allow(unused_imports)]\nmod {name};").expect("a text takes text");
    }
    text += "pub fn find(name: &str) -> crate::Make {\n    match name {\n";
    for name in hosts {
        writeln!(
            text,
            "        {name:?} => |program, weights, layout, cache, experts, report| \
             Ok(Box::new({name}::MetalDevice::new(program, weights, layout, cache, experts, report)?)),"
        )
        .expect("a text takes text");
    }
    text += "        _ => panic!(\"there is no host {name}\"),\n    }\n}\n";
    text + "pub fn backend() -> crate::gpu::metal_backend::MetalBackend {\n    whole::BACKEND\n}\n"
}

fn models_text(crates: &[&Built]) -> String {
    let mut text =
        "//! The models.\n\npub fn run(job: &crate::Job) -> serde_json::Value {\n    match &*job.model {\n"
            .to_owned();
    for built in crates {
        let name = built.name();
        let library = name.replace('-', "_");
        writeln!(text, "        {name:?} => crate::run_job(&{library}::PROGRAM, job),")
            .expect("a text takes text");
    }
    text += "        name => panic!(\"there is no model {name}\"),\n    }\n}\n";
    text += "pub fn program(name: &str) -> Option<&'static crate::CompiledModel> {\n    match name {\n";
    for built in crates {
        let name = built.name();
        let library = name.replace('-', "_");
        writeln!(text, "        {name:?} => Some(&{library}::PROGRAM),").expect("a text takes text");
    }
    text + "        _ => None,\n    }\n}\n"
}

/// A copy of `objc2-metal` that links Apple's framework only on Apple systems, like the other crates of its family.
fn patched_objc2_metal() -> PathBuf {
    static PATCHED: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let arguments = ["metadata", "--format-version", "1", "--locked"];
        let output = run(Command::new(env!("CARGO")).args(arguments).current_dir(root()));
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
        let packages = metadata["packages"].as_array().expect("there are packages");
        let package = packages.iter().find(|package| package["name"] == "objc2-metal");
        let manifest =
            package.and_then(|package| package["manifest_path"].as_str()).expect("it is depended on");
        let from = Path::new(manifest).parent().expect("a manifest lies in a folder");
        let to = scratch().join("objc2-metal");
        copy(&from.join("src"), &to.join("src"));
        write(&to.join("Cargo.toml"), &std::fs::read_to_string(manifest).expect("it was just named"));
        let path = "src/generated/mod.rs";
        let text = std::fs::read_to_string(from.join(path)).expect("the crate is generated");
        let line = r#"#[link(name = "Metal", kind = "framework")]"#;
        assert!(text.contains(line), "objc2-metal names its framework otherwise, perhaps as it should");
        let patched = r#"#[cfg_attr(target_vendor = "apple", link(name = "Metal", kind = "framework"))]"#;
        write(&to.join(path), &text.replace(line, patched));
        to
    };
    PATCHED.get_or_init(make).clone()
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("the registry has it").flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy(&source, &target);
        } else if !target.exists() {
            write(&target, &std::fs::read_to_string(&source).expect("sources are text"));
        }
    }
}

/// Writes a file unless it already has this content.
fn write(path: &Path, text: &str) {
    if std::fs::read_to_string(path).is_ok_and(|there| there == text) {
        return;
    }
    std::fs::create_dir_all(path.parent().expect("a file lies in a folder"))
        .expect("the build folder is writable");
    std::fs::write(path, text).expect("the build folder is writable");
}
