//! Pre-tokenizers by the names that llama.cpp gives them: how text is split before BPE merges.
//!
//! A name stands for the tokenizer of the model that introduced it. Unlisted names are rejected, because
//! another split gives other tokens. A file without a name, as before May 2024, is split as llama.cpp does by
//! default.

use serde_json::{Value, json};

/// How text is split before merges, and whether a piece that is a token as a whole skips merging.
pub(crate) struct PreTokenizer {
    pub(crate) normalizer: Value,
    pub(crate) cut: Value,
    pub(crate) whole_tokens: bool,
    /// Whether BOS is added if the file does not say.
    pub(crate) begins: bool,
}

/// Words with contractions, numbers of up to three digits, punctuation with following newlines.
const THREE_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with single digits.
const ONE_DIGIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Words split where lower case is followed by upper case; single digits.
const CASES_ONE_DIGIT: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with contractions, and numbers of up to three digits.
const CASES_THREE_DIGITS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with single digits.
const CASES_AND_CONTRACTIONS_ONE_DIGIT: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Like [`CASES_THREE_DIGITS`], with Chinese characters apart and without slashes after punctuation.
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Like [`ONE_DIGIT`], with punctuation without newlines.
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Runs of Korean, of East Asian punctuation, of Bopomofo, and of Chinese and Japanese.
const YOUTU_SCRIPTS: &str = "[\u{ac00}-\u{d7a3}\u{3131}-\u{318e}]+|[\u{ff01}\u{2026}\u{201c}\u{201d}\u{2018}\u{2019}\u{2014}\u{ff1a}\u{ff1b}\u{ff0c}\u{3001}-\u{303f}\u{fe30}-\u{fe4f}]+|[\u{3105}-\u{312f}]+|[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";

/// Applied after numbers and Chinese and Japanese characters: words with leading punctuation, words with a
/// space, punctuation.
const WORDS: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

/// Like [`ONE_DIGIT`], with combining marks as part of words.
const MARKS_ONE_DIGIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// llama.cpp's name for files without one.
pub(crate) const DEFAULT: &str = "default";

/// llama.cpp's patterns for unknown tokenizers, applied in order.
const UNKNOWN_TOKENIZER: [&str; 4] = [
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    "[0-9][0-9][0-9]",
];

/// Chinese, Japanese and Korean characters in the first DeepSeek tokenizers.
const EAST_ASIAN: &str = "[\u{4e00}-\u{9fa5}\u{0800}-\u{4e00}\u{ac00}-\u{d7ff}]+";

/// Punctuation of the first DeepSeek tokenizer: ASCII and full-width forms.
const DEEPSEEK_SIGNS: &str =
    "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+";

/// Letters of the first DeepSeek tokenizer: cased letters of its version of Unicode.
const DEEPSEEK_LETTERS: &str = "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+";

/// The pre-tokenizer of that name.
pub(crate) fn from_name(name: &str) -> Option<PreTokenizer> {
    let plain =
        |cut: Value| PreTokenizer { normalizer: Value::Null, cut, whole_tokens: false, begins: false };
    let digits = || json!({"type": "Digits", "individual_digits": true});
    let composed = || json!({"type": "NFC"});
    Some(match name {
        "gpt-2" | "olmo" | "exaone4" | "a.x-4.0" | "gigachat" | "granite-docling" | "mellum" | "trillion" => {
            plain(bytes(true))
        }
        "smollm" | "starcoder" | "refact" | "minerva-7b" => plain(sequence(&[digits(), bytes(true)])),
        "command-r" => PreTokenizer { normalizer: composed(), ..plain(sequence(&[digits(), bytes(true)])) },
        DEFAULT => plain(split(&UNKNOWN_TOKENIZER)),
        "deepseek-llm" => {
            plain(split(&["[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_SIGNS, r"\s+$", EAST_ASIAN, r"\p{N}+"]))
        }
        "deepseek-coder" => plain(split(&["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, r"\p{N}"])),
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" => {
            PreTokenizer { whole_tokens: true, begins: true, ..plain(split(&[THREE_DIGITS])) }
        }
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => plain(split(&[THREE_DIGITS])),
        "glm4" | "glm5" => PreTokenizer { whole_tokens: true, ..plain(split(&[THREE_DIGITS])) },
        "qwen2" => PreTokenizer { normalizer: composed(), ..plain(split(&[ONE_DIGIT])) },
        "qwen35" => PreTokenizer { normalizer: composed(), ..plain(split(&[MARKS_ONE_DIGIT])) },
        "deepseek-r1-qwen" | "hunyuan" | "kormo" | "megrez" | "solar-open" => plain(split(&[ONE_DIGIT])),
        "seed-coder" => plain(split(&[SEED_CODER])),
        "minicpm5" => PreTokenizer { whole_tokens: true, ..plain(split(&[r"\p{N}{1,3}", THREE_DIGITS])) },
        "superbpe" => plain(split(&[r"\p{N}+", r"(?=(\d{3})+(?!\d))"])),
        "kimi-k2" => plain(split(&[KIMI_K2])),
        "tiny_aya" => plain(split(&[r"\d{1,3}(?=(?:\d{3})*\b)", CASES_THREE_DIGITS])),
        "youtu" => PreTokenizer {
            whole_tokens: true,
            ..plain(split(&[YOUTU_SCRIPTS, CASES_AND_CONTRACTIONS_ONE_DIGIT]))
        },
        "tekken" => PreTokenizer { whole_tokens: true, begins: true, ..plain(split(&[CASES_ONE_DIGIT])) },
        "gpt-4o" | "llama4" | "kanana2" => plain(split(&[CASES_THREE_DIGITS])),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => {
            plain(split(&[r"\p{N}{1,3}", "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+", WORDS]))
        }
        _ => return None,
    })
}

/// All names, for messages.
pub(crate) const NAMES: &str = "a.x-4.0, chatglm-bpe, command-r, dbrx, deepseek-coder, deepseek-llm, deepseek-r1-qwen, \
                                deepseek-v3, default, exaone4, falcon3, gigachat, glm4, glm5, gpt-2, gpt-4o, \
                                granite-docling, hunyuan, hunyuan-dense, joyai-llm, kanana2, kimi-k2, kormo, llama-bpe, \
                                llama4, megrez, mellum, midm-2.0, minerva-7b, minicpm5, olmo, pixtral, qwen2, qwen35, \
                                refact, seed-coder, smaug-bpe, smollm, solar-open, starcoder, superbpe, tekken, \
                                tiny_aya, trillion and youtu";

/// Byte-level alphabet; if `cut`, with its default split.
fn bytes(cut: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": cut})
}

fn sequence(parts: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": parts})
}

/// Splits by the patterns in order, then byte-level alphabet.
fn split(patterns: &[&str]) -> Value {
    let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    sequence(&patterns.iter().map(split).chain([bytes(false)]).collect::<Vec<_>>())
}
