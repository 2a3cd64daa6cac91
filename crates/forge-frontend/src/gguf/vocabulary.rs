//! The tokens of a GGUF file: what each is written as and what it is for, the ones with a meaning of their own, and the keys
//! about them that forge knows to be without effect.

use crate::gguf::metadata::Metadata;
use serde_json::{Map, Value, json};

/// What a token is for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Normal,
    /// What stands for text that has no token.
    Unknown,
    /// Never written in a text.
    Control,
    /// Found in texts before anything is cut or merged.
    Added,
    /// A row of the table that no token has.
    Unused,
    /// A single byte.
    Byte,
}

/// What the keys of the tokenizer begin with.
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
            metadata
                .fault(format!("{} has a kind of token that forge does not know", key("token_type")), &[]);
            return None;
        };
        for (name, why) in [
            ("add_sep_token", "forge adds no token between texts"),
            ("remove_extra_whitespaces", "forge leaves spaces as they are"),
            ("normalizer.lowercase", "forge leaves capitals as they are"),
            ("normalizer.strip_accents", "forge leaves accents as they are"),
        ] {
            metadata.only(&key(name), false, why);
        }
        // Of texts in pairs, with gaps, or filled up to one length, which models of text do not see.
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
            metadata.pass(&key(name));
        }
        let mut vocabulary = Vocabulary { metadata, tokens, kinds, begin: None, end: None };
        vocabulary.begin = vocabulary.token("bos_token_id");
        vocabulary.end = vocabulary.token("eos_token_id");
        vocabulary.token("unknown_token_id");
        Some(vocabulary)
    }

    /// The token that a key names.
    pub(crate) fn token(&self, name: &str) -> Option<usize> {
        let key = format!("{KEYS}{name}");
        let id = self.metadata.count(&key)?;
        if id < self.tokens.len() as u64 {
            return Some(id as usize);
        }
        self.metadata.refuse(&key, &format!("there are {} tokens", self.tokens.len()));
        None
    }

    /// The tokens that are in a vocabulary, with their ids: all but rows that were filled up.
    pub(crate) fn used(&self) -> impl Iterator<Item = (usize, &'a str, Kind)> {
        let all = self.tokens.iter().zip(&self.kinds).enumerate();
        all.map(|(id, (token, kind))| (id, *token, *kind))
            .filter(|(id, token, kind)| *kind != Kind::Unused || *token != format!("[PAD{id}]"))
    }

    /// Ids by token. A token given twice has two ids, of which a text can have but one.
    pub(crate) fn ids(&self) -> Option<Map<String, Value>> {
        let mut ids = Map::new();
        for (id, token, _) in self.used() {
            if let Some(other) = ids.insert(token.to_owned(), json!(id)) {
                self.metadata.fault(format!("the tokens {other} and {id} are both {token:?}"), &[]);
                return None;
            }
        }
        Some(ids)
    }

    /// Tokens that are found in a text before it is cut.
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
