//! The program: what was typed, taken apart and carried out.
//!
//! One file a command. `output` is the one way to standard output, `progress` tells on standard error how far something
//! long has come.

mod activations;
mod arguments;
mod bench;
mod chat;
mod command;
mod completions;
mod generate;
mod info;
mod interrupt;
mod logits;
mod output;
mod perplexity;
mod profile;
pub(super) mod progress;
mod record;
mod sampling_arguments;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "tune")]
mod tune;
mod verify;

#[cfg(feature = "tune")]
pub use arguments::Tune;
pub use arguments::{
    Bench, Chat, Common, Completions, Generate, Info, Logits, Perplexity, Profile, Record, Verify,
};
pub use command::{Command, Context, Entry, command, main, run};
pub use output::{Ended, Outcome};
#[cfg(feature = "serve")]
pub use serve::Serve;

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
