//! What went wrong, and whose turn it is: a message for people, and the exit code that goes with it.

use std::any::Any;
use std::fmt;

/// Why a program ends without having done what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was asked for something that cannot be: exit code 2.
    Misuse(String),
    /// It was asked well, and could not or did not do it: exit code 1.
    Wrong(String),
}

impl Failure {
    /// A [`Failure::Misuse`].
    pub fn misuse(message: impl Into<String>) -> Failure {
        Failure::Misuse(message.into())
    }

    /// A [`Failure::Wrong`].
    pub fn wrong(message: impl Into<String>) -> Failure {
        Failure::Wrong(message.into())
    }

    /// The program's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Misuse(_) => 2,
            Failure::Wrong(_) => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Misuse(message) | Failure::Wrong(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Failure {}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic that says nothing")
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure::Wrong(message)
    }
}
