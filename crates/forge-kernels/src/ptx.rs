//! Compiles Metal source to PTX with clang, for NVIDIA drivers.
//!
//! Clang reads the same source as Metal, with the declarations of `check/metal_check.h` and their bodies in
//! `ptx/metal_ptx.h`, and one entry function per kernel that is generated from its signature. An entry has
//! the kernel's name. Its parameters are laid out like the host's arguments: an 8-byte pointer per buffer in
//! slot order, then the struct of 4-byte scalars.

use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::check;
use crate::check::{CheckError, FILE, candidates, feed, for_clang};
use forge_msl::{Buffer, DeclError, KernelDecl};

/// Bodies of the functions declared in [`check::HEADER`]; included before and after it.
const BODIES: &str = include_str!("../ptx/metal_ptx.h");

/// Matrix functions, included last.
const MATRICES: &str = include_str!("../ptx/matrices.h");

/// Target of a PTX file: GPUs of a compute capability and newer ones, for which the driver compiles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    /// Minimum compute capability, such as 70 for 7.0.
    pub capability: u32,
    /// File name in a generated crate.
    pub file: &'static str,
    /// Whether programmatic dependent launch is used: kernels start early and wait for their predecessor
    /// themselves.
    pub waits: bool,
    /// Clang options for this target.
    #[serde(skip)]
    options: &'static [&'static str],
}

/// All targets, in ascending capability.
pub const TARGETS: [Target; 3] = [
    // Kernels need independent thread scheduling and warp barriers, which start with Volta. PTX 6.3 is the
    // first version that clang supports with all features used; drivers since 2018 accept it.
    Target {
        capability: 70,
        file: "kernels_70.ptx",
        waits: false,
        options: &["-march=sm_70", "-Xclang", "-target-feature", "-Xclang", "+ptx63"],
    },
    // Tensor cores with TF32 start with Ampere and PTX 7.0; drivers since 2020 accept it.
    Target {
        capability: 80,
        file: "kernels_80.ptx",
        waits: false,
        options: &["-march=sm_80", "-Xclang", "-target-feature", "-Xclang", "+ptx70", "-DMATRIX_UNITS"],
    },
    // Programmatic dependent launch starts with Hopper and PTX 7.8; every driver for such GPUs accepts it.
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

/// Vector loads require aligned threadgroup arrays, whatever their type.
const STORAGE: &str = "static __attribute__((aligned(16))) ";

/// Why compilation to PTX failed.
#[derive(Debug, thiserror::Error)]
pub enum PtxError {
    /// A signature could not be parsed.
    #[error("kernels.metal: {0}")]
    Declaration(#[from] DeclError),
    /// Clang reported errors, or could not be started.
    #[error("cannot compile kernels.metal to PTX: {0}")]
    Clang(#[from] CheckError),
    /// Clang generated no entry for a kernel.
    #[error("clang generated no entry for kernel `{0}`")]
    NoEntry(String),
    /// A function is declared but has no body.
    #[error("no PTX body for a called function: {0}")]
    MissingBody(String),
}

/// A clang of version 15 or later with the NVPTX target on the search path, if any. Apple's clang lacks it.
pub fn find_clang() -> Option<PathBuf> {
    candidates().find(|clang| check::is_recent(clang) && has_ptx_target(clang))
}

fn has_ptx_target(clang: &Path) -> bool {
    let output = Command::new(clang).arg("--print-targets").stdin(Stdio::null()).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("nvptx64"))
}

/// Compiles for all targets in parallel; results are in the order of [`TARGETS`].
pub fn translate_all(clang: &Path, text: &str) -> Result<Vec<String>, PtxError> {
    std::thread::scope(|scope| {
        let begun = TARGETS.map(|target| scope.spawn(move || translate(clang, text, target)));
        let ended =
            begun.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.into_iter().collect()
    })
}

/// Compiles a file as [`crate::assemble`] returns it to PTX for one target.
pub fn translate(clang: &Path, text: &str, target: Target) -> Result<String, PtxError> {
    let kernels = KernelDecl::parse_all(text)?;
    let mut input = format!(
        "{BODIES}\n{}\n{BODIES}\n{MATRICES}\n#line 1 \"{FILE}\"\n{}\n#line 1 \"entries\"\n",
        check::HEADER,
        for_clang(text, STORAGE)?
    );
    input.extend(kernels.iter().map(|kernel| entry(kernel, text)));
    let mut ptx = feed(clang, &[target.options, &OPTIONS].concat(), &input)?;
    if let Some(line) = ptx.lines().find(|line| line.starts_with(".extern .func")) {
        return Err(PtxError::MissingBody(line.to_owned()));
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

/// The entry function, which calls the kernel with its buffers, scalars and launch builtins.
///
/// It waits for the preceding kernel, unless the kernel does so itself after it has loaded constant data.
fn entry(kernel: &KernelDecl, text: &str) -> String {
    let KernelDecl { name, buffers, scalars_type, builtins, .. } = kernel;
    let parameter = |buffer: &Buffer| {
        let access = if buffer.written { "" } else { " const" };
        format!("device{access} {}* {}", buffer.element, buffer.name)
    };
    let scalars = format!("{scalars_type} scalars");
    let parameters: Vec<String> = buffers.iter().map(parameter).chain([scalars]).collect();
    // Buffers in slot order, then the scalars, then the launch builtins.
    let names = buffers.iter().map(|buffer| buffer.name.clone()).chain(["scalars".to_owned()]);
    let launch = builtins.iter().map(|builtin| format!("{}{{}}", builtin.attribute));
    let arguments: Vec<String> = names.chain(launch).collect();
    let (parameters, arguments) = (parameters.join(", "), arguments.join(", "));
    let waits_itself = text[kernel.body.clone()].contains("wait_for_others();");
    let wait = if waits_itself { "" } else { "metal::wait_for_others(); " };
    format!(
        "extern \"C\" __attribute__((nvptx_kernel)) void entry_{name}({parameters}) __asm__(\"{name}\");\n\
         void entry_{name}({parameters}) {{ {wait}{name}({arguments}); metal::let_others_begin(); }}\n"
    )
}

/// Position for an entry's thread count directive: behind its parameters.
fn threads_place(ptx: &str, name: &str) -> Option<usize> {
    let start = ptx.find(&format!(".entry {name}("))?;
    Some(start + ptx[start..].find("\n)")? + 2)
}
