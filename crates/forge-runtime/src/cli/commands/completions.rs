//! `completions`: prints a shell completion script.

use crate::cli::arguments::Completions;
use crate::cli::command::{Command, Context};
use crate::cli::output::{Outcome, print};
use std::path::Path;

impl Command for Completions {
    const NAME: &'static str = "completions";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let program = context.program;
        let called = std::env::args_os().next();
        let name = called
            .as_deref()
            .and_then(|path| Path::new(path).file_stem()?.to_str())
            .unwrap_or(program.info.name);
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut context.definition.clone(), name, &mut script);
        print(&String::from_utf8_lossy(&script))?;
        Ok(true)
    }
}
