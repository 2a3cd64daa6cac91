//! Compiles kernels for NVIDIA GPUs to PTX.

use crate::error::Error;
use crate::{install_advice, terminal};
use forge_codegen::CrateFiles;
use forge_kernels::ptx;
use std::path::{Path, PathBuf};

/// Finds the clang that compiles kernels to PTX.
pub(super) fn find_translator() -> Result<PathBuf, Error> {
    ptx::find_clang().ok_or_else(|| {
        Error::other(format!(
            "--target cuda needs clang 15 or later with the NVPTX target, and none was found on PATH: {}",
            install_advice::ptx_advice()
        ))
    })
}

/// Compiles a kernel source to PTX and adds one file per target.
pub(super) fn translate(
    clang: &Path,
    text: &str,
    name: impl Fn(&ptx::Target) -> String,
    files: &mut CrateFiles,
) -> Result<(), Error> {
    let spinner = terminal::spinner("Rendering", &format!("{text} for NVIDIA GPUs"));
    let translated = ptx::translate_all(clang, &String::from_utf8_lossy(&files[text]));
    spinner.finish_and_clear();
    let translated = translated.map_err(|error| Error::other(error.to_string()))?;
    for (target, ptx) in ptx::TARGETS.iter().zip(translated) {
        files.insert(name(target), ptx.into_bytes());
    }
    Ok(())
}
