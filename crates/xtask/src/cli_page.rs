//! `cargo xtask cli`: writes docs/reference/cli.md.
//!
//! The page is made by a test of forge-cli, which has the clap definitions of `forge` and of the runtime. Its
//! dependencies are not those of xtask.

use crate::checks::test::run;
use std::process::Command;

/// Runs the test with permission to write the page.
pub(crate) fn write() -> Result<(), String> {
    let arguments = ["test", "--package", "forge-cli", "reference_page"];
    run(Command::new(env!("CARGO")).args(arguments).env("FORGE_WRITE_CLI_PAGE", "1"))
}
