//! The error type of `forge`: a message and an exit code.

use forge_ir::Diagnostic;
use std::path::{Path, PathBuf};

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Error {
    /// Wrong usage: exit code 2.
    Usage(String),
    /// The model cannot be compiled as it is: exit code 1.
    Faults {
        /// What is wrong.
        faults: Vec<Diagnostic>,
        /// Where the checkpoint lies.
        root: PathBuf,
    },
    /// Something else went wrong: exit code 1.
    Other(String),
    /// The message has been printed already: exit code 1, or the program's own.
    Reported(u8),
}

impl Error {
    /// A wrong command line.
    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error::Usage(message.into())
    }

    /// Anything else.
    pub(crate) fn other(message: impl Into<String>) -> Error {
        Error::Other(message.into())
    }

    /// A file that could not be written.
    pub(crate) fn write(path: &Path, error: &std::io::Error) -> Error {
        let path = path.display();
        match error.kind() {
            std::io::ErrorKind::StorageFull => {
                Error::Other(format!("{path}: the disk is full; nothing was left behind"))
            }
            _ => Error::Other(format!("{path} cannot be written: {error}")),
        }
    }

    /// A file that could not be read.
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
