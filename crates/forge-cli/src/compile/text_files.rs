//! Files that are copied into the crate: tokenizer, chat template and generation configuration.
//!
//! They are validated with the runtime's own parsers, so a crate that compiles can load them.

use crate::checkpoint::Directory;
use crate::compile::plan::PlannedModel;
use crate::error::Error;
use crate::terminal;
use forge_frontend::{Checkpoint, LoadedCheckpoint};
use forge_ir::Diagnostic;
use forge_runtime::error::Error as RuntimeError;
use forge_runtime::sampling::sampler::SamplingParams;
use forge_runtime::text::chat_template::Template;
use forge_runtime::text::tokenizer::Tokenizer;
use std::fmt::Display;
use std::io;

const TOKENIZER: &str = "tokenizer.json";
const GENERATION: &str = "generation_config.json";

/// Names of the files that a crate may contain.
pub(crate) const ALL: [&str; 5] =
    [TOKENIZER, "tokenizer_config.json", GENERATION, "chat_template.jinja", "chat_template.json"];

/// Contents of such a file, or `None` if the checkpoint has none.
pub(crate) fn text(planned: &PlannedModel, file: &str) -> Result<Option<Vec<u8>>, Error> {
    let PlannedModel { checkpoint, opened, .. } = planned;
    read(checkpoint, opened, file).map_err(|error| Error::read(&checkpoint.root().join(file), &error))
}

/// The checkpoint's tokenizer, or `None` if it has none.
pub(crate) fn tokenizer(
    checkpoint: &Directory,
    opened: &LoadedCheckpoint,
) -> Result<Option<Tokenizer>, Error> {
    let path = checkpoint.root().join(TOKENIZER);
    let bytes = read(checkpoint, opened, TOKENIZER).map_err(|error| Error::read(&path, &error))?;
    let tokenizer = bytes.map(|bytes| Tokenizer::from_bytes(&bytes)).transpose();
    tokenizer.map_err(|why| Error::other(format!("{}: cannot be used: {why}", path.display())))
}

/// Reads a file embedded in or converted from the checkpoint, or else a file next to the weights.
fn read(checkpoint: &Directory, opened: &LoadedCheckpoint, file: &str) -> io::Result<Option<Vec<u8>>> {
    if opened.unusable.iter().any(|name| name == file) {
        return Ok(None);
    }
    let held = &opened.texts;
    // Files next to a GGUF file do not belong to its model.
    let is_held = held.0.contains_key(file) || held.0.contains_key("config.json");
    let source: &dyn Checkpoint = if is_held { held } else { checkpoint };
    let filled = || {
        let mut bytes = vec![0; source.len(file)? as usize];
        source.read(file, 0, &mut bytes).map(|()| bytes)
    };
    match filled() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Rejects an unusable tokenizer or generation configuration. Warns if the tokenizer is missing or the chat
/// template is unusable, because parts of the program work without them.
pub(crate) fn check(planned: &PlannedModel) -> Result<(), Error> {
    let mut faults = Vec::new();
    match text(planned, TOKENIZER)? {
        Some(bytes) => faults.extend(Tokenizer::check(&bytes).err().map(|why| {
            Diagnostic::new("F0201", format!("{TOKENIZER} cannot be used: {why}"))
                .note("download it again, or remove it: without a tokenizer the program takes token ids instead of text")
        })),
        None => {
            terminal::more(
                "the checkpoint has no tokenizer.json or tekken.json: the program takes token ids instead of text",
            );
        }
    }
    if let Some(bytes) = text(planned, GENERATION)? {
        faults.extend(SamplingParams::from_generation_config(&bytes).err().map(|why| {
            Diagnostic::new("F0204", format!("{GENERATION}: {why}"))
                .note("fix or remove the key: without it the program uses default sampling")
        }));
    }
    if !faults.is_empty() {
        return Err(Error::Faults { faults, root: planned.checkpoint.root().to_owned() });
    }
    if let Err(why) = template(planned) {
        terminal::warning(&format!(
            "`chat` and `serve` will fail, and `generate` will not apply a chat template: {why}"
        ));
    }
    Ok(())
}

/// The chat template that the program will load: a separate file, or a field of tokenizer_config.json.
fn template(planned: &PlannedModel) -> Result<Option<Template>, RuntimeError> {
    Template::find(|file| {
        let unreadable =
            |error: &dyn Display| RuntimeError::runtime(format!("{file} cannot be read: {error}"));
        let PlannedModel { checkpoint, opened, .. } = planned;
        let bytes = read(checkpoint, opened, file).map_err(|error| unreadable(&error))?;
        bytes.map(String::from_utf8).transpose().map_err(|error| unreadable(&error))
    })
}

/// Whether the checkpoint has a usable chat template.
pub(crate) fn has_chat_template(planned: &PlannedModel) -> bool {
    matches!(template(planned), Ok(Some(_)))
}
