//! `perplexity`: evaluates the model on a text file.
//!
//! The loss is the mean negative log probability of each token, given the tokens before it. Perplexity is its
//! exponential. Texts start with the begin-of-text token.
//!
//! A text longer than the context is evaluated in windows that overlap by half. Each token is counted once,
//! with at least half a context before it where the text is that long.

use crate::cli::arguments::Perplexity;
use crate::cli::command::{Command, Context};
use crate::cli::interrupt;
use crate::cli::output::{CommandExit, Outcome, log_info, print, print_json};
use crate::cli::progress::Progress;
use crate::engine::{Engine, Output};
use crate::session::generation::log_sum_exp;
use forge_device::device::Device;
use forge_device::error::Error;
use serde_json::json;
use std::time::Instant;

/// The default window in tokens.
const ORDINARY_WINDOW: usize = 2048;

/// Sums over the evaluated tokens.
#[derive(Clone, Copy, Default)]
struct Losses {
    count: usize,
    sum: f64,
    squares: f64,
}

impl Losses {
    fn add(&mut self, loss: f64) {
        self.count += 1;
        self.sum += loss;
        self.squares += loss * loss;
    }

    fn mean(self) -> f64 {
        self.sum / self.count as f64
    }

    /// The standard error of the mean; `None` for fewer than two tokens.
    fn error(self) -> Option<f64> {
        if self.count < 2 {
            return None;
        }
        let variance = self.squares / self.count as f64 - self.mean() * self.mean();
        Some((variance.max(0.0) / self.count as f64).sqrt())
    }

    /// One line with the perplexity and its error.
    fn text(self) -> String {
        let (loss, perplexity) = (self.mean(), self.mean().exp());
        match self.error() {
            Some(error) => {
                format!("perplexity {perplexity:.6} ± {:.6} · loss {loss:.6} per token", perplexity * error)
            }
            None => format!("perplexity {perplexity:.6} · loss {loss:.6} · one token has no standard error"),
        }
    }
}

impl Command for Perplexity {
    const NAME: &'static str = "perplexity";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let setup = common.load_options();
        let tokenizer = setup.tokenizer(program);
        let file = read(command)?;
        let texts = match &command.separator {
            Some(line) => split(&file, line),
            None => vec![file.trim_end_matches('\n').to_owned()],
        };
        let mut sequences = Vec::new();
        for text in &texts {
            let mut ids = tokenizer.encode(text, true)?;
            if let Some(begin) = program.info.bos.filter(|begin| ids.first() != Some(begin)) {
                ids.insert(0, begin);
            }
            if command.append_eos {
                let end = program.info.eos.first();
                ids.push(*end.ok_or_else(|| {
                    Error::usage("this model has no end-of-text token: remove --append-eos")
                })?);
            }
            sequences.push(ids);
        }
        let total: usize = sequences.iter().map(|ids| ids.len().saturating_sub(1)).sum();
        if total == 0 {
            return Err(Error::usage("the file contains fewer than two tokens: nothing to evaluate").into());
        }
        let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
        let window = longest.min(ORDINARY_WINDOW).min(program.info.context as usize).max(2);
        let mut engine = setup.engine(program, Some(window))?;
        if engine.context() < 2 {
            return Err(Error::usage(
                "a context of one token has nothing to evaluate: use --ctx-size 2 or more",
            )
            .into());
        }
        let (mut losses, mut progress) = (Losses::default(), Progress::new("evaluating"));
        interrupt::watch();
        let start = Instant::now();
        for ids in &sequences {
            measure(&mut engine, ids, &mut losses, &mut |count| progress.at(count, total))?;
            if interrupt::interrupted() {
                progress.clear();
                log_info(&"interrupted");
                return Err(CommandExit::Interrupted);
            }
        }
        progress.clear();
        if !losses.sum.is_finite() {
            return Err(
                Error::runtime("the model produced NaN logits: run `verify` to check the weights").into()
            );
        }
        let seconds = start.elapsed().as_secs_f64();
        let (loss, error) = (losses.mean(), losses.error());
        if command.json {
            print_json(&json!({
                "texts": texts.len(),
                "tokens": losses.count,
                "loss": loss,
                "loss_error": error,
                "perplexity": loss.exp(),
                "bits_per_byte": losses.sum / std::f64::consts::LN_2 / texts.iter().map(String::len).sum::<usize>() as f64,
                "context": engine.context(),
                "seconds": seconds,
            }))?;
        } else {
            print(&format!("{}\n", losses.text()))?;
            log_info(&format!(
                "{} texts · {} tokens, {:.1} tok/s · context {} · {}",
                texts.len(),
                losses.count,
                losses.count as f64 / seconds,
                engine.context(),
                engine.device().describe(),
            ));
        }
        Ok(true)
    }
}

fn read(command: &Perplexity) -> Result<String, Error> {
    let path = &command.file;
    if path.as_os_str() == "-" {
        return crate::cli::commands::generate::read_prompt("-");
    }
    std::fs::read_to_string(path).map_err(|error| Error::usage(format!("{}: {error}", path.display())))
}

/// Splits the file at lines equal to `separator`. Empty lines around a text are removed.
fn split(file: &str, separator: &str) -> Vec<String> {
    let mut texts = vec![String::new()];
    for line in file.lines() {
        match texts.last_mut() {
            Some(text) if line.trim() != separator.trim() => {
                text.push_str(line);
                text.push('\n');
            }
            _ => texts.push(String::new()),
        }
    }
    let texts = texts.iter().map(|text| text.trim_matches('\n').to_owned());
    texts.filter(|text| !text.is_empty()).collect()
}

/// Adds the loss of every token but the first. Stops early when interrupted.
fn measure<D: Device>(
    engine: &mut Engine<D>,
    ids: &[u32],
    losses: &mut Losses,
    progress: &mut dyn FnMut(usize),
) -> Result<(), Error> {
    let window = engine.context() as usize;
    let mut start = 0;
    // Tokens before this index are evaluated, or are the first.
    let mut evaluated = 1;
    while evaluated < ids.len() {
        let end = ids.len().min(start + window);
        engine.truncate(0, 0);
        let mut at = start;
        // The last token has no target.
        for chunk in ids[start..end - 1].chunks(engine.info().prefill_chunk as usize) {
            let has_targets = at + chunk.len() + 1 > evaluated;
            let want = if has_targets { Output::AllLogits } else { Output::Nothing };
            for (row, logits) in engine.run_tokens(0, chunk, want)?.logits.iter().enumerate() {
                let next = at + row + 1;
                if next >= evaluated {
                    losses.add(log_sum_exp(logits) - f64::from(logits[ids[next] as usize]));
                }
            }
            at += chunk.len();
            progress(losses.count);
            if interrupt::interrupted() {
                return Ok(());
            }
        }
        evaluated = end;
        start = end - window.div_ceil(2).min(end);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_has_no_standard_error() {
        let mut losses = Losses::default();
        losses.add(2.0);
        assert_eq!(losses.error(), None);
        assert!(losses.text().ends_with("one token has no standard error") && !losses.text().contains('±'));
        losses.add(4.0);
        assert_eq!(losses.error(), Some(0.5_f64.sqrt()));
        assert!(losses.text().starts_with("perplexity 20.085537 ± 14.20"), "{}", losses.text());
    }

    #[test]
    fn texts_are_split_at_separators() {
        for (file, texts) in [
            ("", &[] as &[&str]),
            ("a\nb\n", &["a\nb"]),
            ("a\n\n* * *\n\nb\n\nc\n* * *\n", &["a", "b\n\nc"]),
            ("* * *\n* * *\n a * * * b", &[" a * * * b"]),
        ] {
            assert_eq!(split(file, "* * *"), texts, "{file:?}");
        }
    }
}
