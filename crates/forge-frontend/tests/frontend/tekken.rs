//! `tekken.json`: the converted `tokenizer.json` encodes texts like mistral-common, and broken files have
//! diagnostics.

use crate::common::{edit, model, read};
use forge_frontend::{LoadedCheckpoint, MemoryCheckpoint};
use serde_json::{Value, json};
use tokenizers::Tokenizer;

const TEKKEN: &str = "tekken.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

fn bytes(file: &str) -> Vec<u8> {
    let path = format!("{}/../../tests/tekken/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A model with `tekken.json` instead of `tokenizer.json`.
fn checkpoint() -> MemoryCheckpoint {
    let mut files = model("mistral");
    files.0.remove(TOKENIZER);
    files.0.remove(TOKENIZER_CONFIG);
    files.0.insert(TEKKEN.to_owned(), bytes(TEKKEN));
    files
}

fn opened(change: impl FnOnce(&mut Value)) -> LoadedCheckpoint {
    let mut files = checkpoint();
    edit(&mut files, TEKKEN, change);
    read(&files).unwrap_or_else(|faults| panic!("{faults:#?}"))
}

fn tokenizer(opened: &LoadedCheckpoint) -> Tokenizer {
    Tokenizer::from_bytes(&opened.texts.0[TOKENIZER]).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn tokenizes_like_mistral_common() {
    let tokenizer = tokenizer(&opened(|_| {}));
    let golden: Value = serde_json::from_slice(&bytes("golden.json")).unwrap();
    for entry in golden["texts"].as_array().unwrap() {
        let text = entry["text"].as_str().unwrap();
        let with = tokenizer.encode(text, true).unwrap();
        assert_eq!(with.get_ids(), ids(&entry["ids"]), "{text:?}");
        let without = tokenizer.encode(text, false).unwrap();
        assert_eq!(without.get_ids(), ids(&entry["ids_no_special"]), "{text:?}");
        let decoded = tokenizer.decode(&ids(&entry["ids"]), true).unwrap();
        assert_eq!(decoded, entry["decoded"].as_str().unwrap());
    }
    for entry in golden["rendered"].as_array().unwrap() {
        let text = entry["text"].as_str().unwrap();
        let encoded = tokenizer.encode(text, false).unwrap();
        assert_eq!(encoded.get_ids(), ids(&entry["ids"]), "{text:?}");
    }
}

#[test]
fn names_special_tokens_for_chat_templates() {
    let opened = opened(|_| {});
    let config: Value = serde_json::from_slice(&opened.texts.0[TOKENIZER_CONFIG]).unwrap();
    let name = |key: &str| config[key].as_str();
    assert_eq!(name("bos_token"), Some("<s>"));
    assert_eq!(name("eos_token"), Some("</s>"));
    assert_eq!(opened.notes, ["the checkpoint has no tokenizer.json: converting tekken.json"]);
}

#[test]
fn files_of_early_versions_have_default_special_tokens() {
    let unlisted = |version: &'static str| {
        move |tekken: &mut Value| {
            tekken.as_object_mut().unwrap().remove("special_tokens");
            tekken["config"]["version"] = json!(version);
        }
    };
    let tokenizer = tokenizer(&opened(unlisted("v3")));
    for (id, name) in
        [(0, "<unk>"), (1, "<s>"), (9, "[TOOL_CALLS]"), (19, "[TOOL_CONTENT]"), (20, "<SPECIAL_20>")]
    {
        assert_eq!(tokenizer.id_to_token(id).as_deref(), Some(name));
    }
    let message = fault(unlisted("v11"));
    assert!(
        message.contains("tekken.json: special_tokens is missing, and version v11 requires it"),
        "{message}"
    );
}

#[test]
fn has_no_bos_if_the_file_has_none() {
    let tokenizer = tokenizer(&opened(|tekken| tekken["special_tokens"][1]["token_str"] = json!("<start>")));
    assert_eq!(
        tokenizer.encode("a", true).unwrap().get_ids(),
        tokenizer.encode("a", false).unwrap().get_ids()
    );
}

#[test]
fn tokenizer_json_takes_precedence_over_tekken_json() {
    let mut files = checkpoint();
    let own = model("mistral").0;
    files.0.insert(TOKENIZER_CONFIG.to_owned(), own[TOKENIZER_CONFIG].clone());
    let converted: Vec<String> = read(&files).unwrap().texts.0.into_keys().collect();
    assert_eq!(converted, [TOKENIZER]);
    files.0.insert(TOKENIZER.to_owned(), own[TOKENIZER].clone());
    files.0.insert(TEKKEN.to_owned(), b"not read".to_vec());
    assert!(read(&files).unwrap().texts.0.is_empty());
}

fn fault(change: impl FnOnce(&mut Value)) -> String {
    let mut files = checkpoint();
    edit(&mut files, TEKKEN, change);
    read(&files).expect_err("the change breaks the file").iter().map(|fault| format!("{fault}\n")).collect()
}

#[test]
fn reports_the_invalid_key_of_tekken_json() {
    let mut files = checkpoint();
    files.0.insert(TEKKEN.to_owned(), b"{\"config\": ".to_vec());
    let message = read(&files).unwrap_err()[0].to_string();
    assert!(message.contains("tekken.json is not valid JSON"), "{message}");

    type Change = fn(&mut Value);
    let cases: [(Change, &str); 13] = [
        (|tekken| *tekken = json!([]), "config.pattern must be a string"),
        (|tekken| tekken["config"]["pattern"] = json!(1), "config.pattern must be a string"),
        (
            |tekken| tekken["config"]["default_vocab_size"] = json!(513),
            "config.default_vocab_size must be a number up to 512, the model's vocabulary size",
        ),
        (
            |tekken| tekken["config"]["default_num_special_tokens"] = json!(-1),
            "config.default_num_special_tokens must be a number",
        ),
        (
            |tekken| tekken["config"]["default_num_special_tokens"] = json!(7),
            "special_tokens has 8 tokens; config.default_num_special_tokens allows 7",
        ),
        (
            |tekken| tekken["special_tokens"][2]["rank"] = json!(9),
            "special_tokens must have the ranks 0, 1, 2",
        ),
        (
            |tekken| tekken["special_tokens"][2]["token_str"] = json!("<s>"),
            "special_tokens has \"<s>\" twice, at the ranks 1 and 2",
        ),
        (
            |tekken| tekken["special_tokens"][2]["token_str"] = json!("a"),
            "vocab[97] has the same text as the special token 2, \"a\"",
        ),
        (|tekken| tekken["vocab"] = json!([]), "vocab has 0 tokens, inconsistent with default_vocab_size"),
        (|tekken| tekken["vocab"][300]["rank"] = json!(299), "vocab[300].rank must be 300"),
        (|tekken| tekken["vocab"][300]["token_bytes"] = json!("?"), "vocab[300].token_bytes is not base64"),
        (|tekken| tekken["vocab"][3]["token_bytes"] = json!("BB=="), "vocab[3].token_bytes is not base64"),
        (
            |tekken| tekken["vocab"][3]["token_bytes"] = json!("BA=="),
            "vocab[3].token_bytes must be the byte 3",
        ),
    ];
    for (change, expected) in cases {
        let message = fault(change);
        assert!(message.contains(&format!("tekken.json: {expected}")), "{expected}\n{message}");
    }
    let message = fault(|tekken| tekken["vocab"][300] = json!({"rank": 300, "token_bytes": "YQ=="}));
    assert!(message.contains("tekken.json: vocab[300] has the bytes of vocab[97]"), "{message}");
}
