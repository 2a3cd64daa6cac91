//! The command line interface of generated programs.
//!
//! One file per command. All standard output goes through `output`; `progress` shows a progress line on
//! standard error.

pub(crate) mod activations;
pub(crate) mod arguments;
pub(crate) mod batched_bench;
pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod command;
pub(crate) mod completions;
pub(crate) mod generate;
pub(crate) mod info;
pub(crate) mod interrupt;
pub(crate) mod logits;
pub(crate) mod output;
pub(crate) mod perplexity;
pub(crate) mod profile;
pub(crate) mod progress;
pub(crate) mod record;
pub(crate) mod reference;
pub(crate) mod sampling_arguments;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod sustained_bench;
#[cfg(feature = "tune")]
pub(crate) mod tune;
pub(crate) mod verify;

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
