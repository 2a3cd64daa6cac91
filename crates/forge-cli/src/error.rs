//! The error type of `forge`: a message and an exit code.

use forge_ir::Diagnostic;
use std::path::{Path, PathBuf};

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Error {
    /// Wrong usage: exit code 2.
    Usage(String),
    /// The model cannot be compiled: exit code 1.
    Faults {
        /// All diagnostics.
        faults: Vec<Diagnostic>,
        /// Directory of the checkpoint.
        root: PathBuf,
    },
    /// Any other failure: exit code 1.
    Other(String),
    /// The message has already been printed: exit code 1, or the program's own.
    Reported(u8),
}

impl Error {
    /// A usage error.
    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error::Usage(message.into())
    }

    /// Any other error.
    pub(crate) fn other(message: impl Into<String>) -> Error {
        Error::Other(message.into())
    }

    /// A file that cannot be written.
    pub(crate) fn write(path: &Path, error: &std::io::Error) -> Error {
        let path = path.display();
        match error.kind() {
            std::io::ErrorKind::StorageFull => {
                Error::Other(format!("{path}: disk full; partial output was removed"))
            }
            _ => Error::Other(format!("{path} cannot be written: {error}")),
        }
    }

    /// A file that cannot be read.
    pub(crate) fn read(path: &Path, error: &std::io::Error) -> Error {
        Error::Other(format!("{} cannot be read: {error}", path.display()))
    }

    /// The process's exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Reported(code) => *code,
            Error::Faults { .. } | Error::Other(_) => 1,
        }
    }
}
