//! Converts Mistral's `tekken.json` to `tokenizer.json`.
//!
//! The file lists the tokens of a byte-level BPE tokenizer by rank. tiktoken merges the two adjacent tokens
//! whose concatenation has the lowest rank. `tokenizer.json` lists merges instead: every split of a token
//! into two other tokens, ordered by the rank of the token. Special tokens have the first ids; the id of any
//! other token is its rank plus the number of special tokens.

use crate::checkpoint::files;
use crate::checkpoint::files::{Checkpoint, MemoryCheckpoint, exists};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forge_ir::Diagnostic;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

const FILE: &str = "tekken.json";
const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

/// The beginning-of-text token.
const BEGIN: &str = "<s>";

/// Special token names for files that do not list them.
const DEFAULT_SPECIAL_TOKENS: [&str; 20] = [
    "<unk>",
    BEGIN,
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Versions whose files may lack the list of special tokens.
const VERSIONS_WITHOUT_SPECIAL_TOKENS: [&str; 4] = ["v1", "v2", "v3", "v7"];

/// The tokenizer files for a checkpoint with `tekken.json` and no `tokenizer.json`; empty for other
/// checkpoints. `vocabulary` is the model's vocabulary size.
pub(crate) fn files(checkpoint: &dyn Checkpoint, vocabulary: usize) -> Result<MemoryCheckpoint, Diagnostic> {
    let mut files = MemoryCheckpoint::default();
    if exists(checkpoint, TOKENIZER)? {
        return Ok(files);
    }
    let Some(text) = files::text(checkpoint, FILE)? else { return Ok(files) };
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| Diagnostic::new("F0201", format!("{FILE} is not valid JSON: {error}")))?;
    drop(text);
    let tekken = Tekken::read(&value, vocabulary)?;
    files.0.insert(TOKENIZER.to_owned(), tekken.tokenizer().to_string().into_bytes());
    if !exists(checkpoint, CONFIG)? {
        files.0.insert(CONFIG.to_owned(), format!("{:#}\n", tekken.configuration()).into_bytes());
    }
    Ok(files)
}

/// The error for an invalid value.
fn fault(key: &str, what: &str) -> Diagnostic {
    Diagnostic::new("F0204", format!("{FILE}: {key} {what}"))
        .note("download the file again, or remove it: without a tokenizer the program takes token ids instead of text")
}

fn word<'a>(value: &'a Value, key: &str) -> Result<&'a str, Diagnostic> {
    value.as_str().ok_or_else(|| fault(key, "must be a string"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value], Diagnostic> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| fault(key, "must be a list"))
}

/// Parsed contents of the file.
struct Tekken<'a> {
    /// Regular expression that splits text before merging.
    pattern: &'a str,
    /// Names of the special tokens, by id.
    specials: Vec<String>,
    /// Bytes of the other tokens, by rank.
    tokens: Vec<Vec<u8>>,
}

impl<'a> Tekken<'a> {
    fn read(value: &'a Value, vocabulary: usize) -> Result<Tekken<'a>, Diagnostic> {
        let config = &value["config"];
        let count = |name: &str| {
            let count = config[name].as_u64().filter(|count| *count <= vocabulary as u64);
            let what = format!("must be a number up to {vocabulary}, the model's vocabulary size");
            count.map(|count| count as usize).ok_or_else(|| fault(&format!("config.{name}"), &what))
        };
        let pattern = word(&config["pattern"], "config.pattern")?;
        let (all, special) = (count("default_vocab_size")?, count("default_num_special_tokens")?);
        let specials = specials(value, special)?;
        let entries = list(&value["vocab"], "vocab")?;
        let token_count =
            all.checked_sub(special).filter(|token_count| (256..=entries.len()).contains(token_count));
        let Some(token_count) = token_count else {
            let what = format!(
                "has {} tokens, inconsistent with default_vocab_size {all} and default_num_special_tokens {special}: \
                 the difference has to be 256 or more, and no more than there are tokens",
                entries.len()
            );
            return Err(fault("vocab", &what));
        };
        let tokens = entries[..token_count].iter().enumerate().map(|(rank, entry)| token(rank, entry));
        let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
        let tekken = Tekken { pattern, specials, tokens };
        tekken.check_distinct()?;
        Ok(tekken)
    }

    /// Rejects duplicate tokens: `tokenizer.json` has one id per token.
    fn check_distinct(&self) -> Result<(), Diagnostic> {
        let mut ranks = HashMap::new();
        for (rank, bytes) in self.tokens.iter().enumerate() {
            if let Some(other) = ranks.insert(written(bytes), rank) {
                return Err(fault(&format!("vocab[{rank}]"), &format!("has the bytes of vocab[{other}]")));
            }
        }
        for (id, name) in self.specials.iter().enumerate() {
            if let Some(rank) = ranks.get(name) {
                let what = format!("has the same text as the special token {id}, {name:?}");
                return Err(fault(&format!("vocab[{rank}]"), &what));
            }
        }
        Ok(())
    }

    /// All splits of tokens into two other tokens, ordered by the rank of the token, then by the ranks of the
    /// two.
    fn merges(&self) -> Vec<[&[u8]; 2]> {
        let ranks: HashMap<&[u8], usize> =
            self.tokens.iter().enumerate().map(|(rank, bytes)| (bytes.as_slice(), rank)).collect();
        let mut merges = Vec::new();
        for token in &self.tokens {
            let parts = (1..token.len()).map(|at| token.split_at(at));
            let ranked = parts
                .filter_map(|(left, right)| Some(([ranks.get(left)?, ranks.get(right)?], [left, right])));
            let mut splits: Vec<_> = ranked.collect();
            splits.sort_unstable();
            merges.extend(splits.into_iter().map(|(_, parts)| parts));
        }
        merges
    }

    fn tokenizer(&self) -> Value {
        let names = self.specials.iter().cloned().chain(self.tokens.iter().map(|token| written(token)));
        let ids: Map<String, Value> = names.enumerate().map(|(id, name)| (name, json!(id))).collect();
        let merges: Vec<Value> = self.merges().into_iter().map(|parts| json!(parts.map(written))).collect();
        let added: Vec<Value> = self.specials.iter().enumerate().map(|(id, name)| added(id, name)).collect();
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": self.pattern}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            ]},
            "post_processor": self.begin(),
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                // tiktoken does not merge a piece of text that is a token as a whole.
                "ignore_merges": true, "vocab": ids, "merges": merges,
            },
        })
    }

    /// The post-processor that prepends [`BEGIN`], as mistral-common does; null if there is no such token.
    fn begin(&self) -> Value {
        let Some(id) = self.specials.iter().position(|name| name == BEGIN) else { return Value::Null };
        let special = |text: usize| json!({"SpecialToken": {"id": BEGIN, "type_id": text}});
        let sequence = |name: &str, text: usize| json!({"Sequence": {"id": name, "type_id": text}});
        json!({
            "type": "TemplateProcessing",
            "single": [special(0), sequence("A", 0)],
            "pair": [special(0), sequence("A", 0), special(1), sequence("B", 1)],
            "special_tokens": {BEGIN: {"id": BEGIN, "ids": [id], "tokens": [BEGIN]}},
        })
    }

    /// tokenizer_config.json: names of special tokens, for chat templates.
    fn configuration(&self) -> Value {
        let mut config = json!({
            "clean_up_tokenization_spaces": false, "tokenizer_class": "PreTrainedTokenizerFast",
        });
        let names =
            [("bos_token", BEGIN), ("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")];
        for (key, name) in names {
            if self.specials.iter().any(|special| special == name) {
                config[key] = json!(name);
            }
        }
        config
    }
}

/// Names of special tokens by id: those of the file, then placeholders up to `count`.
fn specials(value: &Value, count: usize) -> Result<Vec<String>, Diagnostic> {
    const KEY: &str = "special_tokens";
    let mut names: Vec<String> = match &value[KEY] {
        Value::Null => {
            let version = word(&value["config"]["version"], "config.version")?;
            if !VERSIONS_WITHOUT_SPECIAL_TOKENS.contains(&version) {
                return Err(fault(KEY, &format!("is missing, and version {version} requires it")));
            }
            DEFAULT_SPECIAL_TOKENS.map(str::to_owned).into()
        }
        listed => {
            let named = list(listed, KEY)?.iter().enumerate().map(|(at, entry)| {
                let rank = entry["rank"].as_u64();
                let rank = rank.ok_or_else(|| fault(&format!("{KEY}[{at}].rank"), "must be a number"))?;
                Ok((rank, word(&entry["token_str"], &format!("{KEY}[{at}].token_str"))?.to_owned()))
            });
            let mut named = named.collect::<Result<Vec<_>, Diagnostic>>()?;
            named.sort();
            if named.iter().enumerate().any(|(id, (rank, _))| *rank != id as u64) {
                return Err(fault(KEY, "must have the ranks 0, 1, 2 and so on, each once"));
            }
            named.into_iter().map(|(_, name)| name).collect()
        }
    };
    if names.len() > count {
        let what = format!("has {} tokens; config.default_num_special_tokens allows {count}", names.len());
        return Err(fault(KEY, &what));
    }
    names.extend((names.len()..count).map(|id| format!("<SPECIAL_{id}>")));
    let mut seen = HashMap::new();
    for (id, name) in names.iter().enumerate() {
        if name.is_empty() {
            return Err(fault(KEY, &format!("has an empty name at rank {id}")));
        }
        if let Some(other) = seen.insert(name, id) {
            return Err(fault(KEY, &format!("has {name:?} twice, at the ranks {other} and {id}")));
        }
    }
    Ok(names)
}

/// The bytes of a vocabulary entry.
fn token(rank: usize, entry: &Value) -> Result<Vec<u8>, Diagnostic> {
    let key = |name: &str| format!("vocab[{rank}].{name}");
    if entry["rank"].as_u64() != Some(rank as u64) {
        return Err(fault(&key("rank"), &format!("must be {rank}")));
    }
    let bytes = STANDARD.decode(word(&entry["token_bytes"], &key("token_bytes"))?);
    let bytes = bytes.map_err(|error| fault(&key("token_bytes"), &format!("is not base64: {error}")))?;
    match u8::try_from(rank) {
        Ok(byte) if bytes != [byte] => Err(fault(&key("token_bytes"), &format!("must be the byte {byte}"))),
        _ if bytes.is_empty() => Err(fault(&key("token_bytes"), "is empty")),
        _ => Ok(bytes),
    }
}

fn added(id: usize, name: &str) -> Value {
    json!({
        "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    })
}

/// Bytes in the alphabet of byte-level BPE: printable Latin-1 characters represent themselves, the other
/// bytes are characters from U+0100 on.
fn written(bytes: &[u8]) -> String {
    let character = |byte: &u8| match *byte {
        byte @ 0..=0x20 => char::from_u32(0x100 + u32::from(byte)),
        byte @ 0x7f..=0xa0 => char::from_u32(0x121 + u32::from(byte - 0x7f)),
        0xad => Some('\u{143}'),
        byte => Some(char::from(byte)),
    };
    bytes.iter().filter_map(character).collect()
}
