//! The texts that a program reads as they are: its tokenizer, its chat template and how ids are drawn.
//!
//! What a program would refuse is refused here, by the very code that it reads them with.

use crate::compile::Planned;
use crate::error::Error;
use crate::terminal;
use forge_frontend::Checkpoint;
use forge_ir::Diagnostic;
use forge_runtime::error::Error as Trouble;
use forge_runtime::sampling::sampler::SamplingParams;
use forge_runtime::text::chat_template::Template;
use forge_runtime::text::tokenizer::Tokenizer;
use std::fmt::Display;
use std::io;

const TOKENIZER: &str = "tokenizer.json";
const GENERATION: &str = "generation_config.json";

/// All of them, by the names of their files, and which of them a program is given.
pub(crate) const ALL: [&str; 5] =
    [TOKENIZER, "tokenizer_config.json", GENERATION, "chat_template.jinja", "chat_template.json"];

/// A text of the checkpoint.
pub(crate) fn text(planned: &Planned, file: &str) -> Result<Option<Vec<u8>>, Error> {
    read(planned, file).map_err(|error| Error::read(&planned.checkpoint.root().join(file), &error))
}

/// One that a GGUF file has in it or that was converted, or a file beside the weights.
fn read(planned: &Planned, file: &str) -> io::Result<Option<Vec<u8>>> {
    let Planned { checkpoint, opened, .. } = planned;
    if opened.unusable.iter().any(|name| name == file) {
        return Ok(None);
    }
    let held = &opened.texts;
    // What lies beside a GGUF file is not of its model.
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

/// Refuses a tokenizer and settings that no program could use, and says that there is no tokenizer, or that a chat template
/// cannot be used, which is not needed for everything.
pub(crate) fn check(planned: &Planned) -> Result<(), Error> {
    let mut faults = Vec::new();
    match text(planned, TOKENIZER)? {
        Some(bytes) => faults.extend(Tokenizer::check(&bytes).err().map(|why| {
            Diagnostic::new("F0201", format!("{TOKENIZER} cannot be used: {why}"))
                .note("fetch it again, or take it away: a program without a tokenizer takes ids, not text")
        })),
        None => {
            terminal::more(
                "the checkpoint has no tokenizer.json and no tekken.json: the program will take ids, not text",
            );
        }
    }
    if let Some(bytes) = text(planned, GENERATION)? {
        faults.extend(SamplingParams::configured(&bytes).err().map(|why| {
            Diagnostic::new("F0204", format!("{GENERATION}: {why}"))
                .note("correct the key or take it away: without it ids are drawn as is usual")
        }));
    }
    if !faults.is_empty() {
        return Err(Error::Faults { faults, root: planned.checkpoint.root().to_owned() });
    }
    if let Err(why) = template(planned) {
        terminal::warning(&format!(
            "the program will refuse `chat` and `serve`, and `generate` will take text as it is: {why}"
        ));
    }
    Ok(())
}

/// The chat template as the program will have it: in a file of its own, or in its tokenizer's configuration.
fn template(planned: &Planned) -> Result<Option<Template>, Trouble> {
    Template::find(|file| {
        let unreadable = |error: &dyn Display| Trouble::runtime(format!("{file} cannot be read: {error}"));
        let bytes = read(planned, file).map_err(|error| unreadable(&error))?;
        bytes.map(String::from_utf8).transpose().map_err(|error| unreadable(&error))
    })
}

/// Whether the checkpoint has a chat template that can be used.
pub(crate) fn converses(planned: &Planned) -> bool {
    matches!(template(planned), Ok(Some(_)))
}
