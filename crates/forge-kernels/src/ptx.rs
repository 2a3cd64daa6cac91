//! Translates Metal text to PTX, the assembly that an NVIDIA driver takes, with clang.
//!
//! Clang reads the very text that Metal compiles, between the declarations of `check/metal_check.h` with their bodies in
//! `ptx/metal_ptx.h`, and one entry for each kernel, which is written from the kernel's signature. An entry has the
//! kernel's name. Its parameters lie in memory as the host's arguments do: a pointer of 8 bytes for each buffer, slot by
//! slot, and after them the struct of scalars, words of 4 bytes.

use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::check;
use crate::check::{CheckError, FILE, candidates, feed, for_clang};
use crate::decl::{Buffer, DeclError, KernelDecl};

/// What is declared in [`check::HEADER`], with bodies: read before it and after it.
const BODIES: &str = include_str!("../ptx/metal_ptx.h");

/// Matrices, read last.
const MATRICES: &str = include_str!("../ptx/matrices.h");

/// The GPUs that a text is for: those of a compute capability, and newer ones, for which drivers translate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    /// The least compute capability, as 70 for 7.0.
    pub capability: u32,
    /// Its name in a crate.
    pub file: &'static str,
    /// Whether kernels are begun before what they wait for has ended, and wait themselves.
    pub waits: bool,
    /// Options that are its own.
    #[serde(skip)]
    options: &'static [&'static str],
}

/// From the least capability to the most.
pub const TARGETS: [Target; 3] = [
    // Kernels count on lanes that part and meet at a barrier of the warp, which GPUs before Volta have not. PTX 6.3 is the first
    // that clang writes for it with everything that is used; drivers since 2018 read it.
    Target {
        capability: 70,
        file: "kernels_70.ptx",
        waits: false,
        options: &["-march=sm_70", "-Xclang", "-target-feature", "-Xclang", "+ptx63"],
    },
    // Matrix units that take singles come with Ampere, and with PTX 7.0; drivers since 2020 read it.
    Target {
        capability: 80,
        file: "kernels_80.ptx",
        waits: false,
        options: &["-march=sm_80", "-Xclang", "-target-feature", "-Xclang", "+ptx70", "-DMATRIX_UNITS"],
    },
    // Kernels that are begun before their time come with Hopper, and with PTX 7.8; every driver for such GPUs reads it.
    Target {
        capability: 90,
        file: "kernels_90.ptx",
        waits: true,
        options: &[
            "-march=sm_90",
            "-Xclang",
            "-target-feature",
            "-Xclang",
            "+ptx78",
            "-DMATRIX_UNITS",
            "-DBEGUN_EARLY",
        ],
    },
];

const OPTIONS: [&str; 15] = [
    "--target=nvptx64-nvidia-cuda",
    "-x",
    "c++",
    "-std=c++17",
    "-O3",
    "-S",
    "-nostdinc",
    "-nostdinc++",
    "-fno-math-errno",
    "-fno-caret-diagnostics",
    "-fno-color-diagnostics",
    "-Wno-unknown-attributes",
    "-Wno-user-defined-literals",
    "-o-",
    "-",
];

/// Vectors are loaded from threadgroup arrays of any type.
const STORAGE: &str = "static __attribute__((aligned(16))) ";

/// Why there is no PTX.
#[derive(Debug, thiserror::Error)]
pub enum PtxError {
    /// A signature that cannot be read.
    #[error("kernels.metal: {0}")]
    Declaration(#[from] DeclError),
    /// Clang refuses the text, or cannot be run.
    #[error("clang does not translate kernels.metal to PTX: {0}")]
    Clang(#[from] CheckError),
    /// A kernel that clang has not made an entry of.
    #[error("clang made no entry of kernel `{0}`")]
    NoEntry(String),
    /// A function that has a declaration and no body.
    #[error("kernels call what has no body for PTX: {0}")]
    NoBody(String),
}

/// A clang of version 15 or later that can write PTX, if one is on the path. Apple's own cannot.
pub fn find_clang() -> Option<PathBuf> {
    candidates().find(|clang| check::is_recent(clang) && knows_ptx(clang))
}

fn knows_ptx(clang: &Path) -> bool {
    let asked = Command::new(clang).arg("--print-targets").stdin(Stdio::null()).output();
    asked.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("nvptx64"))
}

/// The PTX for every target, in their order, made side by side.
pub fn translate_all(clang: &Path, text: &str) -> Result<Vec<String>, PtxError> {
    std::thread::scope(|scope| {
        let begun = TARGETS.map(|target| scope.spawn(move || translate(clang, text, target)));
        let ended =
            begun.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.into_iter().collect()
    })
}

/// The PTX of every kernel of a file, what [`crate::assemble`] gives, for a target.
pub fn translate(clang: &Path, text: &str, target: Target) -> Result<String, PtxError> {
    let kernels = KernelDecl::parse_all(text)?;
    let mut input = format!(
        "{BODIES}\n{}\n{BODIES}\n{MATRICES}\n#line 1 \"{FILE}\"\n{}\n#line 1 \"entries\"\n",
        check::HEADER,
        for_clang(text, STORAGE)?
    );
    input.extend(kernels.iter().map(|kernel| entry(kernel, waits_itself(text, &kernel.name))));
    let mut ptx = feed(clang, &[target.options, &OPTIONS].concat(), &input)?;
    if let Some(line) = ptx.lines().find(|line| line.starts_with(".extern .func")) {
        return Err(PtxError::NoBody(line.to_owned()));
    }
    for kernel in &kernels {
        let place =
            threads_place(&ptx, &kernel.name).ok_or_else(|| PtxError::NoEntry(kernel.name.clone()))?;
        ptx.insert_str(place, &format!("\n.reqntid {}, 1, 1", kernel.threads));
    }
    let body = ptx.find(".version").unwrap_or(0);
    let (major, minor) = (target.capability / 10, target.capability % 10);
    Ok(format!(
        "// kernels.metal as clang translates it for NVIDIA GPUs of compute capability {major}.{minor} or later.\n\n{}",
        &ptx[body..]
    ))
}

/// The function that the driver starts: it hands the kernel its buffers, its scalars and what it asks of the launch.
///
/// It waits for what comes before, unless the kernel does that when it has loaded what nobody computes.
fn entry(kernel: &KernelDecl, waits_itself: bool) -> String {
    let KernelDecl { name, buffers, scalars_type, builtins, .. } = kernel;
    let parameter = |buffer: &Buffer| {
        let access = if buffer.written { "" } else { " const" };
        format!("device{access} {}* {}", buffer.element, buffer.name)
    };
    let scalars = format!("{scalars_type} scalars");
    let parameters: Vec<String> = buffers.iter().map(parameter).chain([scalars]).collect();
    // Slots are in the order of the parameters, the scalars after them; what the launch fills in comes last.
    let names = buffers.iter().map(|buffer| buffer.name.clone()).chain(["scalars".to_owned()]);
    let launch = builtins.iter().map(|builtin| format!("{}{{}}", builtin.attribute));
    let arguments: Vec<String> = names.chain(launch).collect();
    let (parameters, arguments) = (parameters.join(", "), arguments.join(", "));
    let wait = if waits_itself { "" } else { "metal::wait_for_others(); " };
    format!(
        "extern \"C\" __attribute__((nvptx_kernel)) void entry_{name}({parameters}) __asm__(\"{name}\");\n\
         void entry_{name}({parameters}) {{ {wait}{name}({arguments}); metal::let_others_begin(); }}\n"
    )
}

/// Whether the kernel of that name waits for what comes before where it wants to.
fn waits_itself(text: &str, name: &str) -> bool {
    let body = text.split_once(&format!("kernel void {name}(")).map_or("", |(_, rest)| rest);
    body.split("\nkernel void ").next().unwrap_or_default().contains("wait_for_others();")
}

/// Where an entry says how many threads its threadgroups have: behind its parameters.
fn threads_place(ptx: &str, name: &str) -> Option<usize> {
    let start = ptx.find(&format!(".entry {name}("))?;
    Some(start + ptx[start..].find("\n)")? + 2)
}
