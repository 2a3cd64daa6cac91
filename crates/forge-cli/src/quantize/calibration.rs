//! `--calibrate` and `--imatrix`: activation statistics for quantization, over a text or from a file of
//! llama.cpp.
//!
//! The reference evaluates the checkpoint's own weights on the text, in sequences of at most
//! [`SEQUENCE_TOKENS`] tokens that start with the BOS token, as llama.cpp's `imatrix` does. A checkpoint
//! without a tokenizer takes a file of token ids.

use crate::arguments::CompileArguments;
use crate::checkpoint::Directory;
use crate::compile::text_files;
use crate::error::Error;
use crate::terminal;
use forge_frontend::LoadedCheckpoint;
use forge_ir::units::grouped;
use forge_ir::{Graph, ImportanceMatrix};
use forge_runtime::text::tokenizer::Tokenizer;
use forge_weights::CheckpointWeights;
use std::path::Path;
use std::time::Instant;

/// Maximum length of a sequence.
const SEQUENCE_TOKENS: usize = 512;

/// Activation statistics.
pub(crate) struct Calibration {
    pub(crate) statistics: ImportanceMatrix,
    /// The tokens that they are from; empty if they are from a file.
    pub(crate) sequences: Vec<Vec<u32>>,
}

/// The activation statistics that the options ask for; `None` without such an option.
pub(crate) fn collect(
    arguments: &CompileArguments,
    opened: &LoadedCheckpoint,
    checkpoint: &Directory,
) -> Result<Option<Calibration>, Error> {
    if let Some(path) = &arguments.imatrix {
        let statistics = read(path, &opened.graph, checkpoint)?;
        return Ok(Some(Calibration { statistics, sequences: Vec::new() }));
    }
    let Some(path) = &arguments.calibrate else { return Ok(None) };
    let started = Instant::now();
    let sequences = sequences(path, arguments.calibrate_tokens as usize, opened, checkpoint)?;
    let tokens: usize = sequences.iter().map(Vec::len).sum();
    let graph = &opened.graph;
    let weights = CheckpointWeights::new(graph, |tensor, offset, out| {
        opened.tensors.read(checkpoint, tensor, offset, out)
    });
    let bar = terminal::steps_bar("Collecting", tokens as u64);
    let statistics = forge_reference::calibrate(graph, &weights, &sequences, &mut |done| {
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let statistics = statistics
        .map_err(|fault| Error::Faults { faults: vec![fault], root: checkpoint.root().to_owned() })?;
    terminal::stage(
        "Collecting",
        &format!(
            "{} tokens of {}, activation statistics of {} matrices   {:.1} s",
            grouped(tokens as u64),
            path.display(),
            statistics.len(),
            started.elapsed().as_secs_f64(),
        ),
    );
    Ok(Some(Calibration { statistics, sequences }))
}

/// The activation statistics of a file of llama.cpp.
fn read(path: &Path, graph: &Graph, checkpoint: &Directory) -> Result<ImportanceMatrix, Error> {
    let bytes = std::fs::read(path).map_err(|error| Error::read(path, &error))?;
    let found = forge_frontend::read_imatrix(&path.display().to_string(), bytes, graph)
        .map_err(|fault| Error::Faults { faults: vec![fault], root: checkpoint.root().to_owned() })?;
    let unused = match &found.unused[..] {
        [] => String::new(),
        [first, ..] => format!("; {} entries match no matrix, such as {first}", found.unused.len()),
    };
    let (count, file) = (found.statistics.len(), path.display());
    terminal::stage("Reading", &format!("{file}: activation statistics of {count} matrices{unused}"));
    Ok(found.statistics)
}

/// The first `most` tokens of the text, as sequences.
fn sequences(
    path: &Path,
    most: usize,
    opened: &LoadedCheckpoint,
    checkpoint: &Directory,
) -> Result<Vec<Vec<u32>>, Error> {
    let graph = &opened.graph;
    let bytes = std::fs::read(path).map_err(|error| Error::read(path, &error))?;
    let wrong = |what: String| Error::usage(format!("--calibrate {}: {what}", path.display()));
    let text = String::from_utf8(bytes).map_err(|_| wrong("not UTF-8 text".to_owned()))?;
    let (tokens, begin) = match text_files::tokenizer(checkpoint, opened)? {
        Some(tokenizer) => (encode(&tokenizer, &text, most).map_err(wrong)?, begin(&tokenizer, graph)),
        None => (token_ids(&text).map_err(wrong)?, graph.model.specials.begin),
    };
    if let Some(id) = tokens.iter().find(|id| **id as usize >= graph.model.vocabulary) {
        return Err(wrong(format!("token {id} is outside the vocabulary of {}", graph.model.vocabulary)));
    }
    let tokens = &tokens[..tokens.len().min(most)];
    if tokens.is_empty() {
        return Err(wrong("no tokens".to_owned()));
    }
    let length = SEQUENCE_TOKENS.min(graph.model.context).saturating_sub(usize::from(begin.is_some())).max(1);
    let sequence = |tokens: &[u32]| begin.into_iter().chain(tokens.iter().copied()).collect();
    Ok(tokens.chunks(length).map(sequence).collect())
}

/// At least the first `most` tokens of a text, if it has as many. A long text is not tokenized as a whole.
fn encode(tokenizer: &Tokenizer, text: &str, most: usize) -> Result<Vec<u32>, String> {
    // A token is rarely longer.
    const BYTES_PER_TOKEN: usize = 16;
    let end = most.saturating_mul(BYTES_PER_TOKEN);
    let end = (end..text.len()).find(|end| text.is_char_boundary(*end)).unwrap_or(text.len());
    tokenizer.encode(&text[..end], false).map_err(|error| error.to_string())
}

/// The token that sequences start with.
fn begin(tokenizer: &Tokenizer, graph: &Graph) -> Option<u32> {
    let specials = tokenizer.encode("", true).unwrap_or_default();
    graph.model.specials.begin.or_else(|| specials.first().copied())
}

/// Token ids separated by spaces, line breaks or commas.
fn token_ids(text: &str) -> Result<Vec<u32>, String> {
    let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    let id = |word: &str| {
        word.parse().map_err(|_| {
            format!("{word:?} is not a token id; a checkpoint without a tokenizer needs a file of token ids")
        })
    };
    words.map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_token_ids() {
        assert_eq!(token_ids("1, 2\n3 44,5"), Ok(vec![1, 2, 3, 44, 5]));
        assert!(token_ids("1 two").is_err_and(|why| why.contains("\"two\"")));
    }
}
