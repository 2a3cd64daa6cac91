//! How a command fails: what to say, and which exit code says it to scripts.

use forge_ir::Diagnostic;
use std::path::{Path, PathBuf};

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line was wrong: exit code 2.
    Misuse(String),
    /// The model cannot be compiled as it is: exit code 1.
    Faults {
        /// What is wrong.
        faults: Vec<Diagnostic>,
        /// Where the checkpoint lies.
        root: PathBuf,
    },
    /// Something else went wrong: exit code 1.
    Other(String),
    /// It has been said already: exit code 1, or the program's own.
    Said(u8),
}

impl Failure {
    /// A wrong command line.
    pub(crate) fn misuse(message: impl Into<String>) -> Failure {
        Failure::Misuse(message.into())
    }

    /// Anything else.
    pub(crate) fn other(message: impl Into<String>) -> Failure {
        Failure::Other(message.into())
    }

    /// A file that could not be written.
    pub(crate) fn write(path: &Path, error: &std::io::Error) -> Failure {
        let path = path.display();
        match error.kind() {
            std::io::ErrorKind::StorageFull => {
                Failure::Other(format!("{path}: the disk is full; nothing was left behind"))
            }
            _ => Failure::Other(format!("{path} cannot be written: {error}")),
        }
    }

    /// A file that could not be read.
    pub(crate) fn read(path: &Path, error: &std::io::Error) -> Failure {
        Failure::Other(format!("{} cannot be read: {error}", path.display()))
    }

    /// The process's exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Misuse(_) => 2,
            Failure::Said(code) => *code,
            Failure::Faults { .. } | Failure::Other(_) => 1,
        }
    }
}
