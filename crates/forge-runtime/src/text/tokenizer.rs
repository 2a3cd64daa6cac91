//! Text to token ids and back: the tokenizer, a detokenizer that never splits characters, and stop strings that
//! end a generation.
//!
//! A file that is no tokenizer, or one that contradicts itself, makes the library that reads it panic as often as it makes it
//! say so, and some of that only shows in a text. Both become failures here.

use crate::error::{Error, panic_message};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use tokenizers::Tokenizer as HfTokenizer;

/// The model's tokenizer, shared by its clones: read, or being read.
#[derive(Clone)]
pub struct Tokenizer {
    read: Arc<OnceLock<Result<HfTokenizer, Error>>>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`.
    pub fn read(path: &Path) -> Result<Tokenizer, Error> {
        let text = Tokenizer { read: Arc::new(read(path).into()) };
        text.tokenizer().map(|_| text.clone())
    }

    /// Reads it on a thread beside: it has many thousand entries, and whoever opens a model has other things to do. Who needs it first
    /// waits for it, and is told if it cannot be used.
    pub fn being_read(path: PathBuf) -> Tokenizer {
        let text = Tokenizer { read: Arc::default() };
        let reader = text.clone();
        let reads = move || {
            let _ = reader.read.set(read(&path));
        };
        let begun = thread::Builder::new().name("tokenizer".to_owned()).spawn(reads.clone());
        begun.map_or_else(|_| reads(), drop);
        text
    }

    /// Why the bytes of a `tokenizer.json` cannot be used, if they cannot: what [`Tokenizer::read`] would say of them.
    pub fn check(bytes: &[u8]) -> Result<(), String> {
        usable(|| HfTokenizer::from_bytes(bytes)).map(drop)
    }

    /// Waits until it is read.
    pub fn ready(&self) -> Result<(), Error> {
        self.tokenizer().map(drop)
    }

    fn tokenizer(&self) -> Result<&HfTokenizer, Error> {
        self.read.wait().as_ref().map_err(Error::clone)
    }

    /// The ids of `text`: with the special ids that the tokenizer adds to a text, or without them, as what a chat
    /// template has rendered is encoded. Special tokens that stand in the text are recognised either way.
    pub fn encode(&self, text: &str, specials: bool) -> Result<Vec<u32>, Error> {
        let tokenizer = self.tokenizer()?;
        let encoding = guarded(|| tokenizer.encode_fast(text, specials))
            .map_err(|error| Error::runtime(format!("the text cannot be tokenized: {error}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids`, special ids left out.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        let tokenizer = self.tokenizer()?;
        guarded(|| tokenizer.decode(ids, true))
            .map_err(|error| Error::runtime(format!("ids cannot be made text: {error}")))
    }

    /// The text of `tokens`, special ones as they are written.
    pub fn decode_with_special(&self, tokens: &[u32]) -> Result<String, Error> {
        let tokenizer = self.tokenizer()?;
        guarded(|| tokenizer.decode(tokens, false))
            .map_err(|error| Error::runtime(format!("the tokens cannot be decoded: {error}")))
    }

    /// The texts of tokens that control the model, such as those between the turns of a conversation.
    pub fn control_texts(&self) -> Result<Vec<String>, Error> {
        let added = self.tokenizer()?.get_added_vocabulary().get_added_tokens_decoder();
        Ok(added.values().filter(|token| token.special).map(|token| token.content.clone()).collect())
    }

    /// Tokenizer that grows id by id.
    pub fn stream(&self) -> Detokenizer {
        Detokenizer { text: self.clone(), ids: Vec::new(), start: 0, given: String::new() }
    }
}

fn read(path: &Path) -> Result<HfTokenizer, Error> {
    usable(|| HfTokenizer::from_file(path))
        .map_err(|error| Error::runtime(format!("{}: cannot be used: {error}", path.display())))
}

/// A tokenizer as a program uses it.
fn usable(read: impl FnOnce() -> tokenizers::Result<HfTokenizer>) -> Result<HfTokenizer, String> {
    let mut tokenizer = guarded(read)?;
    // Of batches for training: a prompt is taken as it is, whole and with nothing behind it.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
    Ok(tokenizer)
}

/// What the library gives, or why it does not, be it by a panic.
fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(panic) => Err(panic_message(&*panic).to_owned()),
    }
}

/// Ids that become text as soon as they are whole characters.
///
/// What an id adds to a text depends on the ids before it (a leading space, bytes of one character), so it is
/// decoded behind the ids that gave text last. Those are kept whole: some tokenizers decode a run of bytes only
/// if it does not begin within a character.
#[derive(Clone)]
pub struct Detokenizer {
    text: Tokenizer,
    /// The ids that gave text last, and those that have given none yet.
    ids: Vec<u32>,
    /// Where the latter begin.
    start: usize,
    /// The text of the former.
    given: String,
}

impl Detokenizer {
    /// What `id` adds; nothing while a character is incomplete.
    pub fn push(&mut self, id: u32) -> Result<String, Error> {
        self.ids.push(id);
        let text = self.text.decode(&self.ids)?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        let added = rest(&text, &self.given);
        if !added.is_empty() {
            self.ids.drain(..self.start);
            self.start = self.ids.len();
            self.given = self.text.decode(&self.ids)?;
        }
        Ok(added)
    }

    /// What is left when no more ids come: an incomplete character, as the tokenizer writes it.
    pub fn finish(self) -> Result<String, Error> {
        Ok(rest(&self.text.decode(&self.ids)?, &self.given))
    }
}

/// What `text` has beyond `given`.
fn rest(text: &str, given: &str) -> String {
    match text.strip_prefix(given) {
        Some(rest) => rest.to_owned(),
        // A tokenizer that rewrites what it has given: keep the length, at the next whole character.
        None => {
            let start = (given.len()..=text.len()).find(|&at| text.is_char_boundary(at));
            start.map_or_else(String::new, |at| text[at..].to_owned())
        }
    }
}

/// Holds text back while it may be the beginning of a stop string.
pub struct StopStrings {
    strings: Vec<String>,
    held: String,
}

impl StopStrings {
    /// Ends text before the first of `strings`.
    pub fn new(strings: Vec<String>) -> StopStrings {
        StopStrings {
            strings: strings.into_iter().filter(|string| !string.is_empty()).collect(),
            held: String::new(),
        }
    }

    /// The text that may be shown now, and whether a stop string has been met.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let met = self.strings.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = met {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.strings.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, held), false)
    }

    /// What was held back, when no more text comes.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest end of `text` that `stop` begins with.
fn overlap(text: &str, stop: &str) -> usize {
    stop.char_indices()
        .map(|(at, _)| at)
        .skip(1)
        .filter(|&at| text.ends_with(&stop[..at]))
        .last()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_strings_end_text_and_are_never_shown() {
        let cases: [(&[&str], &[&str], &str, bool); 7] = [
            (&[], &["ab", "cd"], "abcd", false),
            (&["END"], &["one E", "N", "D two"], "one ", true),
            (&["END"], &["one E", "N", "E two"], "one ENE two", false),
            (&["ab", "bc"], &["xabc"], "x", true),
            (&["bcd", "b"], &["ab"], "a", true),
            (&["\u{e9}\u{e8}"], &["caf\u{e9}", "\u{e8}!"], "caf", true),
            (&["aab"], &["aa", "ab"], "a", true),
        ];
        for (stops, pieces, shown, stopped) in cases {
            let mut filter = StopStrings::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
            let (mut text, mut met) = (String::new(), false);
            for piece in pieces {
                let (more, end) = filter.push(piece);
                text.push_str(&more);
                if end {
                    met = true;
                    break;
                }
            }
            if !met {
                text.push_str(&filter.take());
            }
            assert_eq!((text.as_str(), met), (shown, stopped), "{stops:?} {pieces:?}");
        }
    }
}
