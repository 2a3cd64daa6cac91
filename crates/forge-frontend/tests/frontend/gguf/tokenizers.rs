//! Vocabularies, tokenizers, special tokens and sampling parameters of GGUF files.

use crate::common::read;
use crate::gguf::file::File;
use crate::gguf::{FILES, bytes, diagnostics, memory, opened};
use forge_frontend::{LoadedCheckpoint, Options};
use serde_json::Value;
use tokenizers::Tokenizer;

fn json(path: &str) -> Value {
    serde_json::from_slice(&bytes(path)).unwrap()
}

fn tokenizer(opened: &LoadedCheckpoint) -> Tokenizer {
    Tokenizer::from_bytes(&opened.texts.0["tokenizer.json"]).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn gguf_tokenizer_matches_the_original_tokenizer() {
    for (name, base) in FILES {
        let tokenizer = tokenizer(&opened(name));
        let golden = json(&format!("models/{base}/tokenizer_golden.json"));
        for entry in golden["texts"].as_array().unwrap() {
            let text = entry["text"].as_str().unwrap();
            let with = tokenizer.encode(text, true).unwrap();
            assert_eq!(with.get_ids(), ids(&entry["ids"]), "{name}: {text:?}");
            let without = tokenizer.encode(text, false).unwrap();
            assert_eq!(without.get_ids(), ids(&entry["ids_no_special"]), "{name}: {text:?}");
            let decoded = tokenizer.decode(&ids(&entry["ids"]), true).unwrap();
            assert_eq!(decoded, entry["decoded"].as_str().unwrap(), "{name}");
        }
        for chat in golden["chats"].as_array().unwrap() {
            let rendered = tokenizer.encode(chat["rendered"].as_str().unwrap(), false).unwrap();
            assert_eq!(rendered.get_ids(), ids(&chat["ids"]), "{name}");
        }
    }
}

#[test]
fn merges_match_sentencepiece() {
    for (name, family) in [
        ("mistral-q5_0", "mistral"),
        ("mixtral-q4_0", "mixtral"),
        ("gemma2-q5_1", "gemma2"),
        ("gemma3-q4_1", "gemma3"),
    ] {
        let tokenizer = tokenizer(&opened(name));
        for entry in json(&format!("gguf/{family}.pieces.json")).as_array().unwrap() {
            let text = entry["text"].as_str().unwrap();
            let found = tokenizer.encode(text, false).unwrap();
            assert_eq!(found.get_ids(), ids(&entry["ids"]), "{name}: {text:?}");
        }
    }
}

#[test]
fn reads_chat_template_and_special_tokens() {
    for (name, base) in FILES {
        let opened = opened(name);
        let config: Value = serde_json::from_slice(&opened.texts.0["tokenizer_config.json"]).unwrap();
        let original = json(&format!("models/{base}/tokenizer_config.json"));
        let separate = || {
            let template = bytes(&format!("models/{base}/chat_template.jinja"));
            Value::from(String::from_utf8(template).unwrap())
        };
        let template = original.get("chat_template").cloned().unwrap_or_else(separate);
        assert_eq!(config["chat_template"], template, "{name}");
        for key in ["bos_token", "eos_token", "unk_token"] {
            assert_eq!(config[key], original[key], "{name}: {key}");
        }
        let given = json(&format!("models/{base}/config.json"));
        let specials = &opened.graph.model.specials;
        let begin = given.get("bos_token_id").filter(|id| !id.is_null());
        assert_eq!(specials.begin.map(Value::from), begin.cloned(), "{name}");
        assert_eq!(Value::from(specials.end[0]), given["eos_token_id"], "{name}");
    }
}

#[test]
fn reads_all_eog_tokens() {
    let mut file = File::parse(&bytes("gguf/llama-q4_0.gguf"));
    let list = [4_u32.to_le_bytes().to_vec(), 2_u64.to_le_bytes().to_vec()].concat();
    let ids = [5_u32, 9].map(u32::to_le_bytes).concat();
    file.set("tokenizer.ggml.eos_token_ids", 9, &[list, ids].concat());
    let end = read(&memory(file.write())).unwrap().graph.model.specials.end.clone();
    assert!(end.contains(&5) && end.contains(&9), "{end:?}");
}

/// Renames tokens of a file, the last ones of its vocabulary, and sets their type and a template with all of them.
fn rename(file: &mut File, names: &[&str], kind: u32) {
    let (_, _, list) = file.values.iter().find(|value| value.0 == "tokenizer.ggml.tokens").unwrap().clone();
    let (mut rest, mut texts) = (&list[12..], Vec::new());
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        texts.push(rest[8..8 + length].to_vec());
        rest = &rest[8 + length..];
    }
    let first = texts.len() - names.len();
    for (text, name) in texts[first..].iter_mut().zip(names) {
        *text = name.as_bytes().to_vec();
    }
    let texts = texts.into_iter().map(|text| [&(text.len() as u64).to_le_bytes()[..], &text].concat());
    file.set("tokenizer.ggml.tokens", 9, &[list[..12].to_vec(), texts.collect::<Vec<_>>().concat()].concat());
    let kinds = file.values.iter_mut().find(|value| value.0 == "tokenizer.ggml.token_type").unwrap();
    let of_named = kinds.2.len() - 4 * names.len();
    kinds.2[of_named..].as_chunks_mut::<4>().0.fill(kind.to_le_bytes());
    file.set_text("tokenizer.chat_template", &names.concat());
}

#[test]
fn tokens_that_end_a_turn_end_generation() {
    let ends = |names: &[&'static str], kind| {
        let mut file = File::parse(&bytes("gguf/qwen3_moe-q4_0.gguf"));
        rename(&mut file, names, kind);
        let opened = read(&memory(file.write())).unwrap_or_else(|faults| panic!("{faults:#?}"));
        let first = opened.graph.model.vocabulary - names.len();
        let end = &opened.graph.model.specials.end;
        let is_end =
            |(at, name): (usize, &&'static str)| end.contains(&((first + at) as u32)).then_some(*name);
        names.iter().enumerate().filter_map(is_end).collect::<Vec<_>>()
    };
    let (control, added, normal) = (3, 4, 1);
    assert_eq!(ends(&["<|end|>", "<|message|>"], control), ["<|end|>"]);
    // gpt-oss ends messages within a turn.
    let harmony = ["<|end|>", "<|message|>", "<|return|>", "<|call|>"];
    assert_eq!(ends(&harmony, control), ["<|return|>", "<|call|>"]);
    assert_eq!(ends(&["<turn|>", "<|turn>", "<|tool_response>"], added), ["<turn|>", "<|tool_response>"]);
    assert_eq!(ends(&["[EOT]", "[EOS]"], control), ["[EOT]", "[EOS]"]);
    assert!(ends(&["[EOT]", "[EOS]"], normal).is_empty());
}

/// The pre-tokenization of a text by a byte-level BPE file with another `tokenizer.ggml.pre`.
fn pieces(pre: Option<&str>, text: &str) -> Vec<String> {
    let mut file = File::parse(&bytes("gguf/llama-q4_0.gguf"));
    match pre {
        Some(pre) => file.set_text("tokenizer.ggml.pre", pre),
        None => file.remove("tokenizer.ggml.pre"),
    }
    let opened = read(&memory(file.write())).unwrap_or_else(|faults| panic!("{faults:#?}"));
    let tokenizer = tokenizer(&opened);
    let mut cut = tokenizers::PreTokenizedString::from(text);
    tokenizers::PreTokenizer::pre_tokenize(tokenizer.get_pre_tokenizer().unwrap(), &mut cut).unwrap();
    let splits = cut.get_splits(tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
    splits.into_iter().map(|(_, (start, end), _)| text[start..end].to_owned()).collect()
}

#[test]
fn pre_tokenizer_matches_the_named_one() {
    let cases: [(Option<&str>, &str, &[&str]); 16] = [
        (Some("default"), "it's $12,345", &["it", "'", "s", " ", "$", "12", ",", "345"]),
        (None, "it's $12,345", &["it", "'", "s", " ", "$", "12", ",", "345"]),
        (Some("default"), "12345678", &["123", "456", "78"]),
        (Some("smaug-bpe"), "I'LL 12345", &["I", "'LL", " ", "123", "45"]),
        (Some("falcon3"), "I'LL 12345", &["I", "'LL", " ", "123", "45"]),
        (Some("deepseek-coder"), "a 12 b.\n", &["a", " ", "1", "2", " b", ".", "\n"]),
        (Some("deepseek-llm"), "Ab 12 .c\n", &["Ab", " ", "12", " .", "c", "\n"]),
        (Some("qwen35"), "e\u{301}a 12", &["e\u{301}a", " ", "1", "2"]),
        (Some("llama4"), "HelloWorld 1234", &["Hello", "World", " ", "123", "4"]),
        (Some("kimi-k2"), "Hello你好World 1234 it's", &["Hello", "你好", "World", " ", "123", "4", " it's"]),
        (Some("kimi-k2"), "a./\n\nb", &["a", "./\n\n", "b"]),
        (Some("seed-coder"), "a 12.\n\nb", &["a", " ", "1", "2", ".", "\n\n", "b"]),
        (Some("minicpm5"), "I'LL 12345", &["I", "'LL", " ", "123", "45"]),
        (Some("superbpe"), "in 1234567 days", &["in ", "1", "234", "567", " days"]),
        (Some("tiny_aya"), "HelloWorld 1234567", &["Hello", "World", " ", "1", "234", "567"]),
        (Some("youtu"), "HelloWorld 12한국 it's", &["Hello", "World", " ", "1", "2", "한국", " it's"]),
    ];
    for (pre, text, expected) in cases {
        assert_eq!(pieces(pre, text), expected, "{pre:?}: {text:?}");
    }
}

#[test]
fn rejects_vocabularies_with_constant_scores() {
    let mut file = File::parse(&bytes("gguf/mistral-q5_0.gguf"));
    let scores = file.values.iter_mut().find(|value| value.0 == "tokenizer.ggml.scores").unwrap();
    // The kind and the count of the list stay.
    scores.2[12..].as_chunks_mut::<4>().0.iter_mut().for_each(|score| *score = (-1000.0_f32).to_le_bytes());
    let diagnostics = diagnostics(&file, &Options::default());
    assert!(
        diagnostics.contains("all pieces have the same score") && diagnostics.contains("tokenizer.model"),
        "{diagnostics}"
    );
}

#[test]
fn reads_recommended_sampling_parameters() {
    let mut file = File::parse(&bytes("gguf/llama-q4_0.gguf"));
    let config = |file: &File| -> Value {
        let opened = read(&memory(file.write())).unwrap();
        serde_json::from_slice(&opened.texts.0["generation_config.json"]).unwrap()
    };
    let found = config(&file);
    assert_eq!(
        [&found["temperature"], &found["top_k"], &found["top_p"]],
        [&Value::from(0.7), &Value::from(20), &Value::from(0.9)]
    );
    file.set("general.sampling.temp", 6, &0.0_f32.to_le_bytes());
    file.set("general.sampling.min_p", 6, &0.05_f32.to_le_bytes());
    file.set("general.sampling.penalty_repeat", 6, &1.1_f32.to_le_bytes());
    let found = config(&file);
    assert_eq!([&found["do_sample"], &found["min_p"]], [&Value::from(false), &Value::from(0.05)]);
    assert_eq!(found["repetition_penalty"], 1.1);
}
