//! From metadata to the files that say how text becomes tokens: tokenizer.json, tokenizer_config.json with the chat template,
//! and generation_config.json with the tokens that begin a text and end an answer.
//!
//! Two kinds of vocabularies are known: merges of bytes (`gpt2`), whose texts are cut as `pretokenizer` says, and scored
//! pieces with single bytes for what has no piece (`llama`), whose merges are made by `merges`.

use super::merges::{Pieces, merges};
use super::metadata::Metadata;
use super::pretokenizer::{self, Cutting, NAMES};
use crate::checkpoint::Memory;
use serde_json::{Map, Value, json};

/// What a token is for.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
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

const KEYS: &str = "tokenizer.ggml.";

/// What stands for a space in scored pieces.
const SPACE: char = '\u{2581}';

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

/// The files; none for a model without a vocabulary.
pub(super) fn files(metadata: &Metadata) -> Memory {
    let mut files = Memory::default();
    let mut add =
        |name: &str, value: Value| files.0.insert(name.to_owned(), format!("{value:#}\n").into_bytes());
    let key = |name: &str| format!("{KEYS}{name}");
    // What another program made the rest of, and what is of other vocabularies.
    metadata.pass("tokenizer.huggingface.json");
    let model = metadata.word(&key("model"));
    if !matches!(model, None | Some("none" | "no_vocab")) {
        let Some(vocabulary) = Vocabulary::read(metadata) else { return files };
        let tokenizer = match model {
            Some("gpt2") => vocabulary.of_bytes(),
            Some("llama") => vocabulary.of_pieces(),
            _ => {
                metadata.refuse(&key("model"), "forge knows the vocabularies gpt2 and llama");
                None
            }
        };
        if let Some(tokenizer) = tokenizer {
            add("tokenizer.json", tokenizer);
        }
        add("tokenizer_config.json", vocabulary.configuration());
        add("generation_config.json", vocabulary.generation());
    }
    files
}

/// The tokens of a file.
struct Vocabulary<'a> {
    metadata: &'a Metadata,
    tokens: Vec<&'a str>,
    kinds: Vec<Kind>,
    begin: Option<usize>,
    end: Option<usize>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Option<Vocabulary<'a>> {
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
    fn token(&self, name: &str) -> Option<usize> {
        let key = format!("{KEYS}{name}");
        let id = self.metadata.count(&key)?;
        if id < self.tokens.len() as u64 {
            return Some(id as usize);
        }
        self.metadata.refuse(&key, &format!("there are {} tokens", self.tokens.len()));
        None
    }

    /// The tokens that are in a vocabulary, with their ids: all but rows that were filled up.
    fn used(&self) -> impl Iterator<Item = (usize, &'a str, Kind)> {
        let all = self.tokens.iter().zip(&self.kinds).enumerate();
        all.map(|(id, (token, kind))| (id, *token, *kind))
            .filter(|(id, token, kind)| *kind != Kind::Unused || *token != format!("[PAD{id}]"))
    }

    /// Ids by token. A token given twice has two ids, of which a text can have but one.
    fn ids(&self) -> Option<Map<String, Value>> {
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
    fn added(&self) -> Vec<Value> {
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

    /// What is put around a text: the token that begins it, and the one that ends it, as the file says.
    fn around(&self, begins: bool) -> Value {
        let asked = |name: &str, usual: bool, token: Option<usize>, id: &str| {
            let key = format!("{KEYS}{name}");
            let is_added = self.metadata.flag(&key).unwrap_or(usual);
            if is_added && token.is_none() {
                self.metadata.fault(format!("{key} asks for a token that {KEYS}{id} does not name"), &[]);
            }
            token.filter(|_| is_added)
        };
        let begin = asked("add_bos_token", begins, self.begin, "bos_token_id");
        let end = asked("add_eos_token", false, self.end, "eos_token_id");
        let special =
            |id: usize, text: usize| json!({"SpecialToken": {"id": self.tokens[id], "type_id": text}});
        let of = |name: &str, text: usize| {
            let before = begin.map(|id| special(id, text));
            let after = end.map(|id| special(id, text));
            let itself = json!({"Sequence": {"id": name, "type_id": text}});
            before.into_iter().chain([itself]).chain(after).collect::<Vec<_>>()
        };
        let pair = [of("A", 0), of("B", 1)].concat();
        let mut tokens = Map::new();
        for id in begin.into_iter().chain(end) {
            let token = self.tokens[id];
            tokens.insert(token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]}));
        }
        json!({
            "type": "TemplateProcessing", "single": of("A", 0), "pair": pair,
            "special_tokens": tokens,
        })
    }

    /// Merges of bytes.
    fn of_bytes(&self) -> Option<Value> {
        let metadata = self.metadata;
        let name = format!("{KEYS}pre");
        let Some(cutting) = metadata.word(&name).and_then(pretokenizer::cutting) else {
            metadata.refuse(&name, &format!("forge does not know how it cuts texts; it knows {NAMES}"));
            return None;
        };
        let Cutting { normalizer, cut, whole_tokens, begins } = cutting;
        metadata.only(
            &format!("{KEYS}add_space_prefix"),
            false,
            "forge knows merges of bytes without a space before a text",
        );
        metadata.pass(&format!("{KEYS}scores"));
        let key = format!("{KEYS}merges");
        let merges = metadata.words(&key).or_else(|| metadata.missing(&key))?;
        let ids = self.ids()?;
        let mut pairs = Vec::new();
        for merge in merges {
            // A token may begin with the space that divides the two.
            let divide = merge.char_indices().skip(1).find(|(_, character)| *character == ' ');
            let pair = divide.map(|(at, _)| [&merge[..at], &merge[at + 1..]]);
            match pair {
                Some(pair)
                    if pair.iter().all(|part| ids.contains_key(*part))
                        && ids.contains_key(&pair.concat()) =>
                {
                    pairs.push(pair);
                }
                _ => {
                    metadata
                        .fault(format!("{key} has {merge:?}, which are no two tokens that make one"), &[]);
                    return None;
                }
            }
        }
        let bytes =
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        Some(self.whole(
            [normalizer, cut, self.around(begins), bytes],
            json!({
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": whole_tokens, "vocab": ids, "merges": pairs,
            }),
        ))
    }

    /// Scored pieces.
    fn of_pieces(&self) -> Option<Value> {
        let metadata = self.metadata;
        let pre = format!("{KEYS}pre");
        if metadata.word(&pre).is_some_and(|name| name != "default") {
            metadata.refuse(&pre, "forge knows scored pieces of texts that are not cut alone");
        }
        metadata.pass(&format!("{KEYS}merges"));
        let key = format!("{KEYS}scores");
        let scores = metadata.numbers(&key).or_else(|| metadata.missing(&key))?;
        if scores.len() != self.tokens.len() {
            metadata
                .fault(format!("{key} has {} values for {} tokens", scores.len(), self.tokens.len()), &[]);
            return None;
        }
        let ids = self.ids()?;
        let normal = self.used().filter(|(_, _, kind)| *kind == Kind::Normal);
        let pieces: Pieces<'_> = normal.map(|(id, token, _)| (token, (id, scores[id]))).collect();
        let Some(pairs) = merges(&pieces) else {
            metadata.fault(
                format!("{key} of {} gives all pieces one score", metadata.file),
                &[
                    "which are joined first is not known then: the file was made without the model's tokenizer.model",
                    "compile the original model, or convert it again with its tokenizer.model beside it",
                ],
            );
            return None;
        };
        let unknown = self.used().find(|(_, _, kind)| *kind == Kind::Unknown).map(|(_, token, _)| token);
        let space = SPACE.to_string();
        let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": space});
        let back = json!({"type": "Replace", "pattern": {"String": space}, "content": " "});
        let (mut before, mut after) =
            (Vec::new(), vec![back, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]);
        if metadata.flag(&format!("{KEYS}add_space_prefix")).unwrap_or(true) {
            before.push(json!({"type": "Prepend", "prepend": space}));
            after.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        before.push(spaces);
        Some(self.whole(
            [
                json!({"type": "Sequence", "normalizers": before}),
                Value::Null,
                self.around(true),
                json!({"type": "Sequence", "decoders": after}),
            ],
            json!({
                "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                "vocab": ids, "merges": pairs,
            }),
        ))
    }

    fn whole(&self, [normalizer, cut, around, decoder]: [Value; 4], model: Value) -> Value {
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.added(),
            "normalizer": normalizer, "pre_tokenizer": cut, "post_processor": around, "decoder": decoder,
            "model": model,
        })
    }

    /// tokenizer_config.json: texts of special tokens, and chat templates.
    fn configuration(&self) -> Value {
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
    fn generation(&self) -> Value {
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
