//! The command line interface of generated programs.
//!
//! A command is a file or directory of `commands`. All standard output goes through `output`; `progress` shows
//! a progress line on standard error.

pub(crate) mod arguments;
pub(crate) mod command;
pub(crate) mod commands;
pub(crate) mod interrupt;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod reference;

pub use crate::cli::arguments::{
    Bench, Chat, Common, Completions, Generate, Info, Logits, Perplexity, Profile, Record, Serve, Tune,
    Verify,
};
pub use crate::cli::command::{Command, Context, Entry, command, main, run};
pub use crate::cli::output::{CommandExit, Outcome};
#[doc(hidden)]
pub use crate::cli::reference::reference;

/// Every command.
pub const COMMANDS: &[Entry] = &[
    command::<Generate>(),
    command::<Chat>(),
    #[cfg(feature = "serve")]
    command::<Serve>(),
    command::<Perplexity>(),
    command::<Logits>(),
    command::<Bench>(),
    command::<Profile>(),
    #[cfg(feature = "tune")]
    command::<Tune>(),
    command::<Verify>(),
    command::<Info>(),
    command::<Completions>(),
    command::<Record>(),
];
