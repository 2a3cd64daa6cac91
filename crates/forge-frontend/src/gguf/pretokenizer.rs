//! How a text is cut before its pieces are merged: what models' tokenizers do, by the names that llama.cpp gives them.
//!
//! A name stands for the tokenizer of the model that it was first seen with. What is here is that tokenizer's; a name that
//! is not here is refused, since ids of a text that is cut otherwise are others.

use serde_json::{Value, json};

/// What a tokenizer does before it merges, and whether a piece of text that is a token as a whole is not merged.
pub(super) struct Cutting {
    pub(super) normalizer: Value,
    pub(super) cut: Value,
    pub(super) whole_tokens: bool,
    /// Whether the token that begins a text is added when the file does not say.
    pub(super) begins: bool,
}

/// Words with an apostrophe's ending, numbers of up to three digits, signs with the lines they end.
const THREE_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with numbers of one digit.
const ONE_DIGIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Words are cut where small letters are followed by capitals; numbers of one digit.
const CASES_ONE_DIGIT: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with endings after an apostrophe, and numbers of up to three digits.
const CASES_THREE_DIGITS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// After numbers and Chinese and Japanese signs: words with a sign before them, words with a space, signs.
const WORDS: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

/// The cutting of a name.
pub(super) fn cutting(name: &str) -> Option<Cutting> {
    let plain = |cut: Value| Cutting { normalizer: Value::Null, cut, whole_tokens: false, begins: false };
    let digits = || json!({"type": "Digits", "individual_digits": true});
    let composed = || json!({"type": "NFC"});
    Some(match name {
        "gpt-2" | "olmo" => plain(bytes(true)),
        "smollm" | "starcoder" | "refact" => plain(sequence(&[digits(), bytes(true)])),
        "command-r" => Cutting { normalizer: composed(), ..plain(sequence(&[digits(), bytes(true)])) },
        "llama-bpe" | "llama3" | "llama-v3" => {
            Cutting { whole_tokens: true, begins: true, ..plain(split(&[THREE_DIGITS])) }
        }
        "dbrx" | "chatglm-bpe" => plain(split(&[THREE_DIGITS])),
        "glm4" => Cutting { whole_tokens: true, ..plain(split(&[THREE_DIGITS])) },
        "qwen2" => Cutting { normalizer: composed(), ..plain(split(&[ONE_DIGIT])) },
        "deepseek-r1-qwen" | "hunyuan" => plain(split(&[ONE_DIGIT])),
        "tekken" => Cutting { whole_tokens: true, begins: true, ..plain(split(&[CASES_ONE_DIGIT])) },
        "gpt-4o" => plain(split(&[CASES_THREE_DIGITS])),
        "deepseek-v3" | "hunyuan-dense" => {
            plain(split(&[r"\p{N}{1,3}", "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+", WORDS]))
        }
        _ => return None,
    })
}

/// The names there are, for people.
pub(super) const NAMES: &str = "chatglm-bpe, command-r, dbrx, deepseek-r1-qwen, deepseek-v3, glm4, gpt-2, gpt-4o, hunyuan, \
                                hunyuan-dense, llama-bpe, olmo, qwen2, refact, smollm, starcoder and tekken";

/// Bytes as characters; the text is cut into words first, or was cut before.
fn bytes(cut: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": cut})
}

fn sequence(parts: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": parts})
}

/// Cuts by one pattern after the other, then bytes as characters.
fn split(patterns: &[&str]) -> Value {
    let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    sequence(&patterns.iter().map(split).chain([bytes(false)]).collect::<Vec<_>>())
}
