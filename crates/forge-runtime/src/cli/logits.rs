//! `logits`: what the model says after some ids.

use super::super::engine::Want;
use super::super::model::Model;
use super::super::open::Program;
use super::arguments::{Common, Logits};
use super::output::{Outcome, print_json};
use serde_json::json;

/// Prints the logits as JSON.
pub(super) fn run<M: Model>(program: &Program, common: &Common, command: &Logits) -> Outcome {
    let mut engine = common.setup().engine::<M>(program, Some(command.ids.len()))?;
    let want = if command.all { Want::AllLogits } else { Want::Logits };
    let rows = engine.feed(0, &command.ids, want)?.logits;
    let logits = if command.all { json!(rows) } else { json!(rows.first()) };
    print_json(&json!({ "ids": command.ids, "logits": logits }))?;
    Ok(true)
}
