//! The error type of the runtime: a message and an exit code.

use std::any::Any;
use std::fmt;

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Wrong usage: exit code 2.
    Usage(String),
    /// A failure at run time: exit code 1.
    Runtime(String),
}

impl Error {
    /// An [`Error::Usage`].
    pub fn usage(message: impl Into<String>) -> Error {
        Error::Usage(message.into())
    }

    /// An [`Error::Runtime`].
    pub fn runtime(message: impl Into<String>) -> Error {
        Error::Runtime(message.into())
    }

    /// The program's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Runtime(_) => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(message) | Error::Runtime(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

/// The message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic without a message")
}

impl From<String> for Error {
    fn from(message: String) -> Error {
        Error::Runtime(message)
    }
}
