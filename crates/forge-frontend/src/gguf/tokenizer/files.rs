//! Translates metadata to tokenizer.json; `special_tokens` writes tokenizer_config.json and
//! generation_config.json.
//!
//! Three vocabulary types are supported: byte-level BPE (`gpt2`), with the splits of `pretokenizer`, SentencePiece
//! pieces with scores and byte fallback (`llama`), whose merges `merges` derives, and BPE on characters with byte
//! fallback (`gemma4`).

use crate::checkpoint::files::MemoryCheckpoint;
use crate::gguf::metadata::Metadata;
use crate::gguf::tokenizer::merges::{Pieces, merges};
use crate::gguf::tokenizer::pretokenizer;
use crate::gguf::tokenizer::pretokenizer::{NAMES, PreTokenizer};
use crate::gguf::tokenizer::vocabulary::{KEYS, Kind, Vocabulary};
use serde_json::{Map, Value, json};

/// Replaces a space in SentencePiece pieces.
const SPACE: char = '\u{2581}';

/// The tokenizer files; empty for a model without a vocabulary.
pub(crate) fn files(metadata: &Metadata) -> MemoryCheckpoint {
    let mut files = MemoryCheckpoint::default();
    let mut add =
        |name: &str, value: Value| files.0.insert(name.to_owned(), format!("{value:#}\n").into_bytes());
    let key = |name: &str| format!("{KEYS}{name}");
    // A copy in another format, and keys of other vocabulary types.
    metadata.mark_inert("tokenizer.huggingface.json");
    let model = metadata.word(&key("model"));
    if !matches!(model, None | Some("none" | "no_vocab")) {
        let Some(vocabulary) = Vocabulary::read(metadata) else { return files };
        let tokenizer = match model {
            Some("gpt2") => vocabulary.byte_level_bpe(),
            Some("llama") => vocabulary.sentencepiece_bpe(),
            Some("gemma4") => vocabulary.character_bpe(),
            _ => {
                metadata.reject(&key("model"), "expected gpt2, llama or gemma4");
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

impl Vocabulary<'_> {
    /// The post-processor that adds BOS and EOS as the file says.
    fn post_processor(&self, begins: bool) -> Value {
        let adds_token = |name: &str, usual: bool, token: Option<usize>, id: &str| {
            let key = format!("{KEYS}{name}");
            let is_added = self.metadata.flag(&key).unwrap_or(usual);
            if is_added && token.is_none() {
                self.metadata.fault(format!("{key} is set, but {KEYS}{id} names no token"), &[]);
            }
            token.filter(|_| is_added)
        };
        let begin = adds_token("add_bos_token", begins, self.begin, "bos_token_id");
        let end = adds_token("add_eos_token", false, self.end, "eos_token_id");
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

    /// Byte-level BPE.
    fn byte_level_bpe(&self) -> Option<Value> {
        let metadata = self.metadata;
        let name = format!("{KEYS}pre");
        let named = metadata.word(&name).unwrap_or_else(|| {
            metadata.note(format!(
                "the file has no {name}: using llama.cpp's default pre-tokenizer, which may differ from the model's"
            ));
            pretokenizer::DEFAULT
        });
        let Some(from_name) = pretokenizer::from_name(named) else {
            metadata.reject(&name, &format!("expected one of {NAMES}"));
            return None;
        };
        let PreTokenizer { normalizer, cut, whole_tokens, begins } = from_name;
        metadata.allow_only(
            &format!("{KEYS}add_space_prefix"),
            false,
            "byte-level BPE with a leading space is unsupported",
        );
        metadata.mark_inert(&format!("{KEYS}scores"));
        let ids = self.ids()?;
        let pairs = self.merges(&ids)?;
        let bytes =
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        Some(self.tokenizer_json(
            [normalizer, cut, self.post_processor(begins), bytes],
            json!({
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": whole_tokens, "vocab": ids, "merges": pairs,
            }),
        ))
    }

    /// The pairs of tokens that are merged, in order.
    fn merges(&self, ids: &Map<String, Value>) -> Option<Vec<[&str; 2]>> {
        let metadata = self.metadata;
        let key = format!("{KEYS}merges");
        let merges = metadata.words(&key).or_else(|| metadata.missing(&key))?;
        let mut pairs = Vec::new();
        for merge in merges {
            // The first token may itself begin with a space.
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
                    metadata.fault(format!("{key}: {merge:?} does not join two tokens into a token"), &[]);
                    return None;
                }
            }
        }
        Some(pairs)
    }

    /// The token for text without a token.
    fn unknown(&self) -> Option<&str> {
        self.used().find(|(_, _, kind)| *kind == Kind::Unknown).map(|(_, token, _)| token)
    }

    /// BPE on characters with merges in the file: spaces are replaced, and characters without a token are bytes.
    fn character_bpe(&self) -> Option<Value> {
        let metadata = self.metadata;
        let prefix = format!("{KEYS}add_space_prefix");
        metadata.allow_only(&prefix, false, "expected no leading space");
        // Merges have the order.
        metadata.mark_inert(&format!("{KEYS}scores"));
        let unknown = self.token("unknown_token_id").map(|id| self.tokens[id]).or_else(|| self.unknown());
        let ids = self.ids()?;
        let pairs = self.merges(&ids)?;
        let space = SPACE.to_string();
        let back = json!({"type": "Replace", "pattern": {"String": space}, "content": " "});
        let decoders = [back, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        Some(self.tokenizer_json(
            [
                json!({"type": "Replace", "pattern": {"String": " "}, "content": space}),
                json!({"type": "Split", "pattern": {"Regex": "\\n+"}, "behavior": "Isolated", "invert": false}),
                self.post_processor(true),
                json!({"type": "Sequence", "decoders": decoders}),
            ],
            json!({
                "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                "vocab": ids, "merges": pairs,
            }),
        ))
    }

    /// SentencePiece pieces.
    fn sentencepiece_bpe(&self) -> Option<Value> {
        let metadata = self.metadata;
        let pre = format!("{KEYS}pre");
        if metadata.word(&pre).is_some_and(|name| name != "default") {
            metadata.reject(&pre, "pre-tokenizers are unsupported for SentencePiece vocabularies");
        }
        metadata.mark_inert(&format!("{KEYS}merges"));
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
                format!("{key} of {}: all pieces have the same score", metadata.file),
                &[
                    "the merge order is unknown: the file was converted without the model's tokenizer.model",
                    "compile the original model, or convert it again with its tokenizer.model",
                ],
            );
            return None;
        };
        let unknown = self.unknown();
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
        Some(self.tokenizer_json(
            [
                json!({"type": "Sequence", "normalizers": before}),
                Value::Null,
                self.post_processor(true),
                json!({"type": "Sequence", "decoders": after}),
            ],
            json!({
                "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                "vocab": ids, "merges": pairs,
            }),
        ))
    }

    fn tokenizer_json(&self, [normalizer, cut, post_processor, decoder]: [Value; 4], model: Value) -> Value {
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.added(),
            "normalizer": normalizer, "pre_tokenizer": cut, "post_processor": post_processor, "decoder": decoder,
            "model": model,
        })
    }
}
