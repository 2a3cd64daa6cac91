//! Type-checks Metal source with clang: address spaces, overloads and conversions follow Apple's compiler.
//!
//! This module and [`crate::ptx`] do all I/O of the crate: they start clang and communicate through pipes.
//! Clang parses the source as C++14 after `check/metal_check.h`, which declares the part of Metal's library
//! that kernels may use. A source with products of tensors is also parsed as Metal 4, as C++20 after
//! `check/metal_tensor_check.h` too.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forge_msl::{DeclError, TokenKind, edit, for_language, threadgroup_decls, tokenize};

/// Declarations that replace `<metal_stdlib>`.
pub const HEADER: &str = include_str!("../check/metal_check.h");

/// Declarations of Metal 4.
const TENSOR_HEADER: &str = include_str!("../check/metal_tensor_check.h");

/// Minimum clang version that supports the header.
const OLDEST: u32 = 15;

/// File name in diagnostics.
pub(crate) const FILE: &str = "kernels.metal";

const OPTIONS: [&str; 16] = [
    "-x",
    "c++",
    "-fsyntax-only",
    "-nostdinc",
    "-nostdinc++",
    "-fno-caret-diagnostics",
    "-fno-color-diagnostics",
    "-ferror-limit=0",
    "-Wall",
    "-Wextra",
    "-Wdouble-promotion",
    "-Wfloat-conversion",
    "-Wno-unknown-attributes",
    "-Wno-unused-parameter",
    "-Wno-user-defined-literals",
    "-",
];

/// A diagnostic of clang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClangFault {
    /// Line of the source, from 1; 0 if clang named none.
    pub line: u32,
    /// The diagnostic's text.
    pub message: String,
}

impl fmt::Display for ClangFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Clang reported errors or warnings.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Rejected(Vec<ClangFault>),
    /// Clang could not be started.
    #[error("cannot run {}: {source}", .clang.display())]
    Run {
        /// The executable.
        clang: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The source is not a sequence of tokens.
    #[error("{0}")]
    Text(#[from] DeclError),
}

/// A clang of version 15 or later on the search path, if any.
pub fn find_clang() -> Option<PathBuf> {
    candidates().find(|clang| is_recent(clang))
}

/// Executable names of clang, best first.
pub(crate) fn candidates() -> impl Iterator<Item = PathBuf> {
    let versions = (OLDEST..=30).rev();
    let numbered = versions.flat_map(|version| [format!("clang-{version}"), format!("clang++-{version}")]);
    let preferred = ["clang-19", "clang++-19"].map(String::from);
    let plain = ["clang", "clang++"].map(String::from);
    preferred.into_iter().chain(plain).chain(numbered).map(PathBuf::from)
}

pub(crate) fn is_recent(clang: &Path) -> bool {
    let Ok(output) = Command::new(clang).arg("--version").stdin(Stdio::null()).output() else { return false };
    version(&String::from_utf8_lossy(&output.stdout)).is_some_and(|version| version >= OLDEST)
}

/// The major version: 19 for `Debian clang version 19.1.7 (3)`.
fn version(text: &str) -> Option<u32> {
    text.split("version ").nth(1)?.split('.').next()?.trim().parse().ok()
}

/// Checks a whole file, or an instance with its support units as [`crate::assemble`] returns it. Warnings are
/// errors.
pub fn check_text(clang: &Path, text: &str) -> Result<(), CheckError> {
    let check = |standard, version, header| {
        let text = for_clang(&for_language(text, version), "static ")?;
        let input = format!("{HEADER}\n{header}\n#line 1 \"{FILE}\"\n{text}");
        feed(clang, &[&[standard], &OPTIONS[..]].concat(), &input).map(|_| ())
    };
    check("-std=c++14", 300, "")?;
    if text.contains("mpp::tensor_ops") { check("-std=c++20", 400, TENSOR_HEADER) } else { Ok(()) }
}

/// Runs clang on `input` and returns its output. Diagnostics are an error.
pub(crate) fn feed(clang: &Path, options: &[&str], input: &str) -> Result<String, CheckError> {
    let run = |source| CheckError::Run { clang: clang.to_owned(), source };
    let mut child = Command::new(clang)
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(run)?;
    // Clang reads all input before it writes diagnostics, so writing first cannot deadlock.
    let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(run)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let faults: Vec<ClangFault> = stderr.lines().filter_map(fault).collect();
    if !faults.is_empty() {
        return Err(CheckError::Rejected(faults));
    }
    written.map_err(run)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(CheckError::Rejected(vec![ClangFault { line: 0, message: stderr.trim().to_owned() }]))
}

/// The source as clang can parse it, with unchanged line numbers. Metal's headers are omitted, since
/// `check/metal_check.h` replaces them. Threadgroup arrays get the storage class `storage` (static), because
/// C++ has no address spaces for automatic variables.
pub(crate) fn for_clang(text: &str, storage: &str) -> Result<String, DeclError> {
    let tokens = tokenize(text)?;
    let headers = tokens
        .iter()
        .filter(|token| token.kind == TokenKind::Directive && token.text.starts_with("#include"));
    let arrays = threadgroup_decls(text, &tokens)?.into_iter().map(|decl| decl.range.start..decl.range.start);
    let removed = headers.map(|token| (token.offset..token.end(), String::new()));
    Ok(edit(text, removed.chain(arrays.map(|place| (place, storage.to_owned())))))
}

/// Parses `kernels.metal:12:5: error: message`.
fn fault(line: &str) -> Option<ClangFault> {
    let (place, message) = line.split_once(": error: ").or_else(|| line.split_once(": warning: "))?;
    let mut parts = place.rsplitn(3, ':');
    let (_column, number, file) = (parts.next(), parts.next()?, parts.next()?);
    let in_text = file == FILE;
    let message = if in_text { message.to_owned() } else { format!("{file}: {message}") };
    Some(ClangFault { line: number.parse().ok().filter(|_| in_text).unwrap_or(0), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_clang_versions() {
        assert_eq!(version("Debian clang version 19.1.7 (3~deb12u1)\nTarget"), Some(19));
        assert_eq!(version("Apple clang version 16.0.0 (clang-1600)"), Some(16));
        assert_eq!(version("gcc"), None);
    }

    #[test]
    fn line_numbers_are_preserved() {
        let text = "#include <metal_stdlib>\nvoid f() {\n    threadgroup float a[2];\n    threadgroup float* b = a;\n}\n";
        let expected = "\nvoid f() {\n    static threadgroup float a[2];\n    threadgroup float* b = a;\n}\n";
        assert_eq!(for_clang(text, "static "), Ok(expected.to_owned()));
    }
}
