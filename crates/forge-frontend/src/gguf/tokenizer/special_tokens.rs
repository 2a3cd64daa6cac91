//! Translates metadata to tokenizer_config.json and generation_config.json: special tokens, chat templates,
//! BOS and EOS, and the recommended sampling parameters.

use crate::gguf::tokenizer::vocabulary::{KEYS, Kind, Vocabulary};
use serde_json::{Value, json};

/// Tokens of these names that are no text count as EOS, in addition to those that the file names, if a chat
/// template ends turns with them.
const END_OF_TURN_TOKENS: [&str; 14] = [
    "[EOS]",
    "[EOT]",
    "<end_of_turn>",
    "<turn|>",
    "<|call|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<|return|>",
    "<|tool_response>",
];

/// Ends a message and not a turn, if the vocabulary has the others (gpt-oss).
const END_OF_MESSAGE: (&str, [&str; 2]) = ("<|end|>", ["<|call|>", "<|return|>"]);

impl Vocabulary<'_> {
    /// tokenizer_config.json: special tokens and chat templates.
    pub(crate) fn configuration(&self) -> Value {
        let text = |id: Option<usize>| id.map(|id| self.tokens[id]);
        let unknown = self.token("unknown_token_id");
        let mut config = json!({
            "bos_token": text(self.begin), "eos_token": text(self.end), "unk_token": text(unknown),
            "clean_up_tokenization_spaces": false, "tokenizer_class": "PreTrainedTokenizerFast",
        });
        let others: Vec<String> = self.metadata.keys("tokenizer.chat_template.").map(str::to_owned).collect();
        // A list of the templates' names.
        self.metadata.mark_inert("tokenizer.chat_templates");
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

    /// generation_config.json: BOS, all EOS tokens, and sampling parameters.
    pub(crate) fn generation(&self) -> Value {
        let named = ["eot_token_id", "eom_token_id"].map(|name| self.token(name));
        let template = self.metadata.word("tokenizer.chat_template").unwrap_or_default();
        let (message, others) = END_OF_MESSAGE;
        let has_messages = others.iter().all(|other| self.tokens.contains(other));
        let written = self.used().filter(|(_, token, kind)| {
            matches!(kind, Kind::Control | Kind::Added)
                && END_OF_TURN_TOKENS.contains(token)
                && template.contains(token)
                && !(has_messages && *token == message)
        });
        let mut ends: Vec<usize> = Vec::new();
        let listed = self.metadata.tokens(&format!("{KEYS}eos_token_ids")).unwrap_or_default();
        let listed = listed.into_iter().map(|id| id as usize).filter(|id| *id < self.tokens.len());
        let written = written.map(|(id, ..)| id);
        for id in self.end.into_iter().chain(listed).chain(named.into_iter().flatten()).chain(written) {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        let mut config = json!({"bos_token_id": self.begin, "eos_token_id": ends});
        self.sampling(&mut config);
        config
    }

    /// `general.sampling.*` under the names of generation_config.json.
    fn sampling(&self, config: &mut Value) {
        let metadata = self.metadata;
        let number = |name: &str| metadata.number(&format!("general.sampling.{name}"));
        for (name, as_key) in [
            ("temp", "temperature"),
            ("top_p", "top_p"),
            ("min_p", "min_p"),
            ("penalty_repeat", "repetition_penalty"),
        ] {
            if let Some(number) = number(name) {
                // The file has f32 values: 0.7 is meant, not the nearest f32.
                let shortest = (number as f32).to_string().parse::<f64>();
                config[as_key] = json!(shortest.unwrap_or(number));
            }
        }
        if let Some(count) = metadata.count("general.sampling.top_k") {
            config["top_k"] = json!(count);
        }
        if config["temperature"] == json!(0.0) {
            config["do_sample"] = json!(false);
        }
        // Unsupported samplers are reported in a note.
        for (name, off) in [("xtc_probability", 0.0), ("mirostat", 0.0)] {
            if number(name).is_some_and(|number| number != off) {
                metadata
                    .note(format!("general.sampling.{name} is unsupported: the program samples without it"));
            }
        }
    }
}
