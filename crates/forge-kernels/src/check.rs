//! Type-checks Metal text with clang: address spaces, overloads and conversions as Apple's compiler has them.
//!
//! With [`crate::ptx`] this is what of the crate does I/O: it starts clang and talks to it through pipes. Clang reads the
//! text as C++14 after `check/metal_check.h`, which declares the part of Metal's library that kernels may use.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::decl::{Kind, tokenize};

/// The declarations that stand for `<metal_stdlib>`.
pub const HEADER: &str = include_str!("../check/metal_check.h");

/// The oldest clang that knows what the header uses.
const OLDEST: u32 = 15;

/// What faults are told to be in.
pub(crate) const FILE: &str = "kernels.metal";

const OPTIONS: [&str; 17] = [
    "-x",
    "c++",
    "-std=c++14",
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

/// Something that clang said about a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClangFault {
    /// The line of the text, from 1; 0 if clang named none.
    pub line: u32,
    /// What clang said.
    pub message: String,
}

impl fmt::Display for ClangFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

/// Why a text has not passed.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Clang refuses the text, or warns.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Refused(Vec<ClangFault>),
    /// Clang could not be run.
    #[error("{} cannot be run: {source}", .clang.display())]
    Run {
        /// What was run.
        clang: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The text is not even tokens.
    #[error("{0}")]
    Text(#[from] crate::decl::DeclError),
}

/// A clang of version 15 or later, if one is on the path.
pub fn find_clang() -> Option<PathBuf> {
    candidates().find(|clang| is_recent(clang))
}

/// What a clang may be called, best first.
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

/// The 19 of `Debian clang version 19.1.7 (3)`.
fn version(text: &str) -> Option<u32> {
    text.split("version ").nth(1)?.split('.').next()?.trim().parse().ok()
}

/// Checks the text of a whole file, or of an instance with its support units: what [`crate::assemble`] gives.
///
/// Warnings are faults as well.
pub fn check_text(clang: &Path, text: &str) -> Result<(), CheckError> {
    let input = format!("{HEADER}\n#line 1 \"{FILE}\"\n{}", for_clang(text, "static ")?);
    feed(clang, &OPTIONS, &input).map(|_| ())
}

/// What clang writes to its output where it reads `input`, if it has nothing to say against it.
pub(crate) fn feed(clang: &Path, options: &[&str], input: &str) -> Result<String, CheckError> {
    let run = |source| CheckError::Run { clang: clang.to_owned(), source };
    let mut child = Command::new(clang)
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(run)?;
    // Clang reads its input to the end before it says anything, so writing first cannot block for ever.
    let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(run)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let faults: Vec<ClangFault> = said.lines().filter_map(fault).collect();
    if !faults.is_empty() {
        return Err(CheckError::Refused(faults));
    }
    written.map_err(run)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(CheckError::Refused(vec![ClangFault { line: 0, message: said.trim().to_owned() }]))
}

/// The text as clang can read it, line for line: Metal's headers are left out, because ours has been read, and
/// threadgroup arrays are made `storage`, which is static, because C++ allows no automatic variable an address space.
pub(crate) fn for_clang(text: &str, storage: &str) -> Result<String, crate::decl::DeclError> {
    let tokens = tokenize(text)?;
    let mut output = String::with_capacity(text.len());
    let mut copied = 0;
    for (at, token) in tokens.iter().enumerate() {
        let is_header = token.kind == Kind::Directive && token.text.contains("<metal");
        let is_array = token.text == "threadgroup"
            && matches!(&tokens[at..], [_, element, name, next, ..]
                if element.kind == Kind::Word && name.kind == Kind::Word && matches!(next.text, "[" | ";"));
        if is_header || is_array {
            output.push_str(&text[copied..token.offset]);
            copied = if is_header { token.offset + token.text.len() } else { token.offset };
        }
        if is_array {
            output.push_str(storage);
        }
    }
    output.push_str(&text[copied..]);
    Ok(output)
}

/// `kernels.metal:12:5: error: message`
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
    fn versions_are_read() {
        assert_eq!(version("Debian clang version 19.1.7 (3~deb12u1)\nTarget"), Some(19));
        assert_eq!(version("Apple clang version 16.0.0 (clang-1600)"), Some(16));
        assert_eq!(version("gcc"), None);
    }

    #[test]
    fn lines_stay_where_they_are() {
        let text = "#include <metal_stdlib>\nvoid f() {\n    threadgroup float a[2];\n    threadgroup float* b = a;\n}\n";
        let expected = "\nvoid f() {\n    static threadgroup float a[2];\n    threadgroup float* b = a;\n}\n";
        assert_eq!(for_clang(text, "static "), Ok(expected.to_owned()));
    }
}
