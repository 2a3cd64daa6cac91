//! `logits`: prints the logits after a token sequence.

use crate::cli::arguments::Logits;
use crate::cli::command::{Command, Context};
use crate::cli::output::{Outcome, print_json};
use crate::engine::Output;
use serde_json::json;

impl Command for Logits {
    const NAME: &'static str = "logits";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let mut engine = common.load_options().engine(program, Some(command.token_ids.len()))?;
        let want = if command.all { Output::AllLogits } else { Output::Logits };
        let rows = engine.run_tokens(0, &command.token_ids, want)?.logits;
        let logits = if command.all { json!(rows) } else { json!(rows.first()) };
        print_json(&json!({ "token_ids": command.token_ids, "logits": logits }))?;
        Ok(true)
    }
}
