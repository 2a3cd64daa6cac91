//! The vocabulary of a GGUF file: tokens, their types, special tokens, and tokenizer keys without effect.

use crate::gguf::metadata::Metadata;
use serde_json::{Map, Value, json};

/// The type of a token.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Normal,
    /// Stands for text without a token.
    Unknown,
    /// Control token, never part of text.
    Control,
    /// Matched in text before splitting and merging.
    Added,
    /// A table row without a token.
    Unused,
    /// A single byte.
    Byte,
}

/// Prefix of tokenizer keys.
pub(crate) const KEYS: &str = "tokenizer.ggml.";

/// The tokens of a file.
pub(crate) struct Vocabulary<'a> {
    pub(crate) metadata: &'a Metadata,
    pub(crate) tokens: Vec<&'a str>,
    kinds: Vec<Kind>,
    pub(crate) begin: Option<usize>,
    pub(crate) end: Option<usize>,
}

impl<'a> Vocabulary<'a> {
    pub(crate) fn read(metadata: &'a Metadata) -> Option<Vocabulary<'a>> {
        let key = |name: &str| format!("{KEYS}{name}");
        let tokens = metadata.words(&key("tokens")).or_else(|| metadata.missing(&key("tokens")))?;
        let kinds = metadata.numbers(&key("token_type")).unwrap_or_else(|| vec![1.0; tokens.len()]);
        if kinds.len() != tokens.len() {
            let tokens = tokens.len();
            metadata
                .fault(format!("{} has {} values for {tokens} tokens", key("token_type"), kinds.len()), &[]);
            return None;
        }
        let kinds = kinds.into_iter().map(|kind| match kind as i64 {
            1 => Some(Kind::Normal),
            2 => Some(Kind::Unknown),
            3 => Some(Kind::Control),
            4 => Some(Kind::Added),
            5 => Some(Kind::Unused),
            6 => Some(Kind::Byte),
            _ => None,
        });
        let Some(kinds) = kinds.collect() else {
            metadata.fault(format!("{} has an unknown token type", key("token_type")), &[]);
            return None;
        };
        for (name, why) in [
            ("add_sep_token", "separator tokens are unsupported"),
            ("remove_extra_whitespaces", "whitespace removal is unsupported"),
            ("normalizer.lowercase", "lowercasing is unsupported"),
            ("normalizer.strip_accents", "accent stripping is unsupported"),
        ] {
            metadata.allow_only(&key(name), false, why);
        }
        // For text pairs, masking or padding, which causal models do not use.
        for name in [
            "padding_token_id",
            "seperator_token_id",
            "cls_token_id",
            "mask_token_id",
            "prefix_token_id",
            "suffix_token_id",
            "middle_token_id",
            "fim_pre_token_id",
            "fim_suf_token_id",
            "fim_mid_token_id",
            "fim_pad_token_id",
            "fim_rep_token_id",
            "fim_sep_token_id",
        ] {
            metadata.mark_inert(&key(name));
        }
        let mut vocabulary = Vocabulary { metadata, tokens, kinds, begin: None, end: None };
        vocabulary.begin = vocabulary.token("bos_token_id");
        vocabulary.end = vocabulary.token("eos_token_id");
        vocabulary.token("unknown_token_id");
        Some(vocabulary)
    }

    /// The token named by a key.
    pub(crate) fn token(&self, name: &str) -> Option<usize> {
        let key = format!("{KEYS}{name}");
        let id = self.metadata.count(&key)?;
        if id < self.tokens.len() as u64 {
            return Some(id as usize);
        }
        self.metadata.reject(&key, &format!("there are {} tokens", self.tokens.len()));
        None
    }

    /// Tokens with their ids, without unused rows.
    pub(crate) fn used(&self) -> impl Iterator<Item = (usize, &'a str, Kind)> {
        let all = self.tokens.iter().zip(&self.kinds).enumerate();
        all.map(|(id, (token, kind))| (id, *token, *kind))
            .filter(|(id, token, kind)| *kind != Kind::Unused || *token != format!("[PAD{id}]"))
    }

    /// Ids by token. Duplicate tokens are an error, because text can map to only one of the ids.
    pub(crate) fn ids(&self) -> Option<Map<String, Value>> {
        let mut ids = Map::new();
        for (id, token, _) in self.used() {
            if let Some(other) = ids.insert(token.to_owned(), json!(id)) {
                self.metadata.fault(format!("tokens {other} and {id} are both {token:?}"), &[]);
                return None;
            }
        }
        Some(ids)
    }

    /// Tokens that are matched in text before splitting.
    pub(crate) fn added(&self) -> Vec<Value> {
        let is_added = |kind: Kind| matches!(kind, Kind::Control | Kind::Added | Kind::Unknown);
        self.used()
            .filter(|(_, token, kind)| is_added(*kind) && !token.is_empty())
            .map(|(id, token, kind)| {
                json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": kind != Kind::Added,
                })
            })
            .collect()
    }
}
