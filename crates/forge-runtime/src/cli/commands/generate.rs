//! `generate`: continues a prompt.
//!
//! Text streams to standard output. The token counts and speeds go to standard error at the end.

use crate::cli::arguments::Generate;
use crate::cli::command::{Command, Context};
use crate::cli::interrupt;
use crate::cli::output::{CommandExit, Outcome, log_info, print, print_json};
use crate::cli::progress::Progress;
use crate::load::LoadOptions;
use crate::session::generation::{FinishReason, GenerationParams};
use crate::session::session::{Event, Generated, Session};
use crate::text::tokenizer::Tokenizer;
use forge_device::error::Error;
use forge_device::program::CompiledModel;
use serde_json::json;
use std::io::Read;
use std::ops::ControlFlow;
use std::time::Duration;

impl Command for Generate {
    const NAME: &'static str = "generate";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let setup = common.load_options();
        let sampling = command.sampling.sampling(setup.sampling(program)?, program.info.vocabulary)?;
        let is_greedy = sampling.is_greedy();
        let (ids, text) = prompt(program, &setup, command)?;
        let needed =
            (ids.len() + command.max_tokens as usize).min(program.info.context as usize).max(ids.len() + 1);
        let has_text = text.is_some();
        let session = Session::new(setup.engine(program, Some(needed))?, text, None);
        let mut session = session.with_tokens_per_pass(command.run_ahead.tokens_per_pass);
        let settings = GenerationParams {
            sampling,
            seed: command.sampling.seed(),
            max_tokens: command.max_tokens as usize,
            stop: command.stop.clone(),
            ignore_eos: command.ignore_eos,
            logprobs: None,
        };
        let seed = settings.seed;
        let generated = show(&mut session, &ids, settings, !command.json)?;
        // The first token comes from the prefill pass; each of the others takes a decode step.
        let steps = generated.token_ids.len().saturating_sub(1);
        if command.json {
            print_json(&json!({
                "token_ids": generated.token_ids,
                "text": has_text.then_some(&generated.text),
                "finish_reason": generated.finish_reason.name(),
                "seed": seed,
                "timings": {
                    "prompt_tokens": ids.len(),
                    "prompt_seconds": generated.prefill_time.as_secs_f64(),
                    "prompt_tokens_per_second": rate(ids.len(), generated.prefill_time),
                    "tokens": generated.token_ids.len(),
                    "seconds": generated.decode_time.as_secs_f64(),
                    "tokens_per_second": rate(steps, generated.decode_time),
                },
            }))?;
        } else {
            print("\n")?;
            let seed_note = if is_greedy { String::new() } else { format!(" · seed {seed}") };
            log_info(&format!("{}{seed_note} · {}", summary(&generated), session.describe()));
        }
        Ok(true)
    }
}

/// Token counts and speeds, and the finish reason.
pub(crate) fn summary(generated: &Generated) -> String {
    format!(
        "prefill {} tokens, {:.1} tok/s · decode {} tokens, {:.1} tok/s · {}",
        generated.prefilled_tokens,
        rate(generated.prefilled_tokens, generated.prefill_time),
        generated.token_ids.len(),
        rate(generated.token_ids.len().saturating_sub(1), generated.decode_time),
        generated.finish_reason.name(),
    )
}

fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64().max(1e-9)
}

/// Generates after `ids` and prints the output if `is_shown`, until the sequence ends or Ctrl-C is pressed.
/// Without a tokenizer it prints token ids.
pub(crate) fn show(
    session: &mut Session,
    ids: &[u32],
    settings: GenerationParams,
    is_shown: bool,
) -> Result<Generated, CommandExit> {
    let has_text = session.tokenizer().is_some();
    let mut progress = Progress::new("prefill, tokens");
    let mut closed = None;
    interrupt::watch();
    let generated = session.generate(ids, settings, None, &mut |event| {
        let shown = match event {
            Event::Prefill { done, total } => {
                progress.at(done, total);
                Ok(())
            }
            Event::Token(piece) => {
                progress.clear();
                let token_id = piece.id.filter(|_| piece.finish_reason != Some(FinishReason::EndOfText));
                match token_id {
                    _ if !is_shown => Ok(()),
                    Some(id) if !has_text => print(&format!("{id} ")),
                    _ if piece.text.is_empty() => Ok(()),
                    _ => print(&piece.text),
                }
            }
        };
        if let Err(ended) = shown {
            closed = Some(ended);
        }
        if closed.is_some() || interrupt::interrupted() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    interrupt::unwatch();
    closed.map_or(Ok(generated?), Err)
}

/// The prompt's token ids, and the tokenizer if there is one. Token ids do not need a tokenizer.
fn prompt(
    program: &CompiledModel,
    setup: &LoadOptions,
    command: &Generate,
) -> Result<(Vec<u32>, Option<Tokenizer>), Error> {
    let Some(prompt) = &command.prompt else {
        // Stop strings need a tokenizer.
        let has_text = !command.stop.is_empty() || setup.path(program, "tokenizer.json").is_file();
        return Ok((command.token_ids.clone(), has_text.then(|| setup.tokenizer(program))));
    };
    let text = setup.tokenizer(program);
    let ids = text.encode(&read_prompt(prompt)?, true)?;
    if ids.is_empty() {
        return Err(Error::usage("the prompt is empty"));
    }
    Ok((ids, Some(text)))
}

/// The argument, or all of standard input if it is `-`.
pub(crate) fn read_prompt(prompt: &str) -> Result<String, Error> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    let mut read = String::new();
    std::io::stdin()
        .read_to_string(&mut read)
        .map_err(|error| Error::usage(format!("standard input: {error}")))?;
    Ok(read)
}
