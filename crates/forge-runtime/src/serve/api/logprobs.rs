//! Log probabilities in OpenAI's format.

use crate::serve::tools::token_bytes::TokenBytes;
use crate::session::generation::Logprobs;
use crate::text::tokenizer::{Detokenizer, Tokenizer};
use serde_json::{Map, Value, json};

/// Tokens with their log probabilities. The first token of a sequence has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens(pub(crate) Vec<Token>);

/// A token with its log probabilities, if known.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) id: u32,
    pub(crate) logprobs: Option<Logprobs>,
    /// Characters of the text before it.
    pub(crate) offset: usize,
}

/// Counts the characters before each token of a text.
#[derive(Clone)]
pub(crate) struct Offsets {
    stream: Detokenizer,
    end: usize,
}

impl Offsets {
    pub(crate) fn new(text: &Tokenizer) -> Offsets {
        Offsets { stream: text.detokenizer(), end: 0 }
    }

    /// The offset of the next token.
    pub(crate) fn push(&mut self, id: u32) -> usize {
        let start = self.end;
        self.end += self.stream.push(id).unwrap_or_default().chars().count();
        start
    }
}

impl Tokens {
    /// The `logprobs` of a chat completion.
    pub(crate) fn of_chat(&self, text: &Tokenizer, bytes: &TokenBytes) -> Value {
        let entry = |id: u32, logprob: f32| {
            let (token, bytes) = match bytes.of(id) {
                Some(bytes) => (String::from_utf8_lossy(bytes).into_owned(), json!(bytes)),
                None => (text.decode_with_special(&[id]).unwrap_or_default(), Value::Null),
            };
            json!({ "token": token, "logprob": finite(logprob), "bytes": bytes })
        };
        let content = self.0.iter().map(|Token { id, logprobs, .. }| {
            let Some(logprobs) = logprobs else { return Value::Null };
            let mut of_id = entry(*id, logprobs.chosen);
            of_id["top_logprobs"] = logprobs.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
            of_id
        });
        json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
    }

    /// The `logprobs` of a plain completion. The top tokens are keys of an object, so they are written
    /// unambiguously: a special token by its text, incomplete characters as OpenAI writes them,
    /// `bytes:\xe2\x80`. The chosen token is always included.
    pub(crate) fn of_plain(&self, text: &Tokenizer, bytes: &TokenBytes) -> Value {
        let token = |id: u32| match bytes.of(id) {
            Some(bytes) => std::str::from_utf8(bytes).map_or_else(|_| escaped(bytes), str::to_owned),
            None => text.decode_with_special(&[id]).unwrap_or_default(),
        };
        let top = |id: u32, logprobs: &Logprobs| -> Map<String, Value> {
            let all = [(id, logprobs.chosen)].into_iter().chain(logprobs.top.iter().copied());
            all.map(|(id, logprob)| (token(id), json!(finite(logprob)))).collect()
        };
        let tokens = &self.0;
        let known =
            || tokens.iter().map(|token| token.logprobs.as_ref().map(|logprobs| (token.id, logprobs)));
        json!({
            "tokens": tokens.iter().map(|it| token(it.id)).collect::<Vec<_>>(),
            "token_logprobs": known().map(|it| it.map(|(_, it)| finite(it.chosen))).collect::<Vec<_>>(),
            "top_logprobs": known().map(|it| it.map(|(id, it)| top(id, it))).collect::<Vec<_>>(),
            "text_offset": tokens.iter().map(|token| token.offset).collect::<Vec<_>>(),
        })
    }
}

/// The notation for bytes that are not UTF-8.
fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold("bytes:".to_owned(), |text, byte| format!("{text}\\x{byte:02x}"))
}

/// Replaces minus infinity, which JSON lacks, as OpenAI does.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
