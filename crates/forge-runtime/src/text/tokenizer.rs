//! The tokenizer, a streaming detokenizer that never splits characters, and stop strings.
//!
//! The tokenizers library may panic on an invalid or inconsistent file, sometimes only while encoding. This
//! module turns panics into errors.

use forge_device::error::{Error, panic_message};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use tokenizers::Tokenizer as HfTokenizer;

/// The model's tokenizer. Clones share it; it may still be loading.
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

    /// Reads the bytes of a `tokenizer.json`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Tokenizer, String> {
        let tokenizer = usable(|| HfTokenizer::from_bytes(bytes))?;
        Ok(Tokenizer { read: Arc::new(OnceLock::from(Ok(tokenizer))) })
    }

    /// Loads the file on another thread, because it takes a while. The first use waits for it and returns the
    /// error if it cannot be used.
    pub fn read_in_background(path: PathBuf) -> Tokenizer {
        let text = Tokenizer { read: Arc::default() };
        let reader = text.clone();
        let reads = move || {
            let _ = reader.read.set(read(&path));
        };
        let begun = thread::Builder::new().name("tokenizer".to_owned()).spawn(reads.clone());
        begun.map_or_else(|_| reads(), drop);
        text
    }

    /// Checks the bytes of a `tokenizer.json`; the error is that of [`Tokenizer::read`].
    pub fn check(bytes: &[u8]) -> Result<(), String> {
        usable(|| HfTokenizer::from_bytes(bytes)).map(drop)
    }

    /// Waits until the file is loaded.
    pub fn wait_ready(&self) -> Result<(), Error> {
        self.tokenizer().map(drop)
    }

    fn tokenizer(&self) -> Result<&HfTokenizer, Error> {
        self.read.wait().as_ref().map_err(Error::clone)
    }

    /// The token ids of `text`. `specials` adds the special tokens that the tokenizer puts around a text.
    /// Text rendered by a chat template has them already. Special tokens within the text are recognized
    /// either way.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, Error> {
        let tokenizer = self.tokenizer()?;
        let encoding = guarded(|| tokenizer.encode_fast(text, add_special_tokens))
            .map_err(|error| Error::runtime(format!("the text cannot be tokenized: {error}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids`, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        let tokenizer = self.tokenizer()?;
        guarded(|| tokenizer.decode(ids, true))
            .map_err(|error| Error::runtime(format!("the tokens cannot be decoded: {error}")))
    }

    /// The text of `tokens`, with special tokens.
    pub fn decode_with_special(&self, tokens: &[u32]) -> Result<String, Error> {
        let tokenizer = self.tokenizer()?;
        guarded(|| tokenizer.decode(tokens, false))
            .map_err(|error| Error::runtime(format!("the tokens cannot be decoded: {error}")))
    }

    /// The texts of special tokens, such as those around the messages of a chat.
    pub fn control_texts(&self) -> Result<Vec<String>, Error> {
        let added = self.tokenizer()?.get_added_vocabulary().get_added_tokens_decoder();
        Ok(added.values().filter(|token| token.special).map(|token| token.content.clone()).collect())
    }

    /// A streaming detokenizer.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer { text: self.clone(), ids: Vec::new(), start: 0, given: String::new() }
    }
}

fn read(path: &Path) -> Result<HfTokenizer, Error> {
    usable(|| HfTokenizer::from_file(path))
        .map_err(|error| Error::runtime(format!("{}: cannot be used: {error}", path.display())))
}

/// Disables padding and truncation, which are for training batches.
fn usable(read: impl FnOnce() -> tokenizers::Result<HfTokenizer>) -> Result<HfTokenizer, String> {
    let mut tokenizer = guarded(read)?;
    // A prompt is never padded or truncated.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
    Ok(tokenizer)
}

/// Calls the library and converts a panic to an error.
fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(panic) => Err(panic_message(&*panic).to_owned()),
    }
}

/// A streaming detokenizer: returns text as soon as its characters are complete.
///
/// The text of a token depends on the tokens before it, because of leading spaces and multi-byte characters.
/// Each token is therefore decoded together with the tokens of the last returned text. These are kept as a
/// whole, because some tokenizers decode bytes only from the start of a character.
#[derive(Clone)]
pub struct Detokenizer {
    text: Tokenizer,
    /// The tokens of the last returned text, then the pending tokens.
    ids: Vec<u32>,
    /// The index of the first pending token.
    start: usize,
    /// The text of the tokens before it.
    given: String,
}

impl Detokenizer {
    /// Adds a token and returns the new text; empty while a character is incomplete.
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

    /// Returns the remaining text: an incomplete character as the tokenizer decodes it.
    pub fn finish(self) -> Result<String, Error> {
        Ok(rest(&self.text.decode(&self.ids)?, &self.given))
    }
}

/// The part of `text` after `given`.
fn rest(text: &str, given: &str) -> String {
    match text.strip_prefix(given) {
        Some(rest) => rest.to_owned(),
        // The tokenizer changed earlier text: skip as many bytes, up to the next character boundary.
        None => {
            let start = (given.len()..=text.len()).find(|&at| text.is_char_boundary(at));
            start.map_or_else(String::new, |at| text[at..].to_owned())
        }
    }
}

/// Holds back text that may be the start of a stop string.
pub struct StopStrings {
    strings: Vec<String>,
    held: String,
}

impl StopStrings {
    /// Stops before the first of `strings`; empty strings are ignored.
    pub fn new(strings: Vec<String>) -> StopStrings {
        StopStrings {
            strings: strings.into_iter().filter(|string| !string.is_empty()).collect(),
            held: String::new(),
        }
    }

    /// Adds text. Returns what may be shown now, and whether a stop string was found.
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

    /// Returns the text held back, at the end of the output.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// The length in bytes of the longest suffix of `text` that is a prefix of `stop`.
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
