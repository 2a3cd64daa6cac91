//! From metadata to tokenizer_config.json and generation_config.json: texts of special tokens, chat templates, and the tokens
//! that begin a text and end an answer.

use super::vocabulary::{Kind, Vocabulary};
use serde_json::{Value, json};

/// Control tokens of these names end a turn where a chat template writes them, beside the tokens that the file names.
const ENDS_OF_TURNS: [&str; 8] = [
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|im_end|>",
];

impl Vocabulary<'_> {
    /// tokenizer_config.json: texts of special tokens, and chat templates.
    pub(super) fn configuration(&self) -> Value {
        let text = |id: Option<usize>| id.map(|id| self.tokens[id]);
        let unknown = self.token("unknown_token_id");
        let mut config = json!({
            "bos_token": text(self.begin), "eos_token": text(self.end), "unk_token": text(unknown),
            "clean_up_tokenization_spaces": false, "tokenizer_class": "PreTrainedTokenizerFast",
        });
        let others: Vec<String> = self.metadata.keys("tokenizer.chat_template.").map(str::to_owned).collect();
        // A list of their names.
        self.metadata.pass("tokenizer.chat_templates");
        let named = |key: &String| {
            let name = key.trim_start_matches("tokenizer.chat_template.");
            self.metadata.word(key).map(|template| json!({"name": name, "template": template}))
        };
        let others: Vec<Value> = others.iter().filter_map(named).collect();
        match self.metadata.word("tokenizer.chat_template") {
            Some(template) if others.is_empty() => config["chat_template"] = json!(template),
            Some(template) => {
                let first = json!({"name": "default", "template": template});
                config["chat_template"] = [first].into_iter().chain(others).collect();
            }
            None => {}
        }
        config
    }

    /// generation_config.json: the tokens that begin a text, and all that end an answer.
    pub(super) fn generation(&self) -> Value {
        let named = ["eot_token_id", "eom_token_id"].map(|name| self.token(name));
        let template = self.metadata.word("tokenizer.chat_template").unwrap_or_default();
        let written = self.used().filter(|(_, token, kind)| {
            *kind == Kind::Control && ENDS_OF_TURNS.contains(token) && template.contains(token)
        });
        let mut ends: Vec<usize> = Vec::new();
        for id in self.end.into_iter().chain(named.into_iter().flatten()).chain(written.map(|(id, ..)| id)) {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        json!({"bos_token_id": self.begin, "eos_token_id": ends})
    }
}
