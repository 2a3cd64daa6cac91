//! The bytes of each token. A token may be an incomplete character.

use llguidance::token_bytes_from_tokenizer_json;
use llguidance::toktrie::TokTrie;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The bytes of the tokens in `tokenizer.json`, loaded on first use.
pub(crate) struct TokenBytes {
    tokenizer: PathBuf,
    vocabulary: u32,
    read: OnceLock<Result<Vec<Vec<u8>>, String>>,
}

impl TokenBytes {
    pub(crate) fn new(tokenizer: PathBuf, vocabulary: u32) -> TokenBytes {
        TokenBytes { tokenizer, vocabulary, read: OnceLock::new() }
    }

    /// The bytes of all tokens as llguidance expects them: special tokens have a marker before their text.
    /// Loads the file on first use.
    pub(crate) fn all(&self) -> Result<&[Vec<u8>], String> {
        let read = self.read.get_or_init(|| {
            let text = std::fs::read(&self.tokenizer).map_err(|error| error.to_string())?;
            let tokenizer: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
            let mut bytes = token_bytes_from_tokenizer_json(&tokenizer).map_err(|error| error.to_string())?;
            // Tokens that the head has and the tokenizer lacks have no bytes.
            bytes.resize(self.vocabulary as usize, Vec::new());
            Ok(bytes)
        });
        read.as_deref().map_err(String::clone)
    }

    /// The bytes of a token, or the text of a special token; `None` if unknown.
    pub(crate) fn of(&self, token: u32) -> Option<&[u8]> {
        let bytes = self.all().ok()?.get(token as usize)?;
        Some(bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes))
    }
}
