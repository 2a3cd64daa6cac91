//! Probabilities of ids, as OpenAI's clients expect to be told of them.

use crate::serve::tools::token_bytes::TokenBytes;
use crate::session::generation::Logprobs;
use crate::text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// What is told of ids. Of the first of a text nobody says how probable it was.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens(pub(crate) Vec<(u32, Option<Logprobs>)>);

impl Tokens {
    /// Of a chat completion.
    pub(crate) fn of_chat(&self, text: &Tokenizer, bytes: &TokenBytes) -> Value {
        let entry = |id: u32, logprob: f32| {
            let (token, bytes) = match bytes.of(id) {
                Some(bytes) => (String::from_utf8_lossy(bytes).into_owned(), json!(bytes)),
                None => (text.decode_with_special(&[id]).unwrap_or_default(), Value::Null),
            };
            json!({ "token": token, "logprob": finite(logprob), "bytes": bytes })
        };
        let content = self.0.iter().map(|(id, logprobs)| {
            let Some(logprobs) = logprobs else { return Value::Null };
            let mut of_id = entry(*id, logprobs.chosen);
            of_id["top_logprobs"] = logprobs.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
            of_id
        });
        json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
    }

    /// Of a plain one.
    pub(crate) fn of_plain(&self, text: &Tokenizer) -> Value {
        let token = |id: u32| text.decode(&[id]).unwrap_or_default();
        let top = |logprobs: &Logprobs| -> Map<String, Value> {
            logprobs.top.iter().map(|&(id, logprob)| (token(id), json!(finite(logprob)))).collect()
        };
        let mut end = 0;
        let offsets: Vec<usize> = self
            .0
            .iter()
            .map(|(id, _)| {
                let start = end;
                end += token(*id).chars().count();
                start
            })
            .collect();
        let known = || self.0.iter().map(|(_, logprobs)| logprobs.as_ref());
        json!({
            "tokens": self.0.iter().map(|(id, _)| token(*id)).collect::<Vec<_>>(),
            "token_logprobs": known().map(|it| it.map(|it| finite(it.chosen))).collect::<Vec<_>>(),
            "top_logprobs": known().map(|it| it.map(top)).collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}

/// JSON has no infinity; OpenAI writes this for what cannot be.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
