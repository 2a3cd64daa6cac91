//! Tokenization and detokenization with two kinds of real tokenizers, streamed and at once.

mod support;

use forge_runtime::text::tokenizer::{StopStrings, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models");
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn oracle(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/llama").join(file)
}

/// A tokenizer whose words begin with a marker for the preceding space, and which encodes unknown characters
/// as bytes.
fn sentence_pieces() -> Tokenizer {
    let mut vocabulary = serde_json::Map::new();
    let words = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let pieces = ["\u{2581}", "a", "b", "c", "d", "\u{2581}a", "bc", "\u{2581}\u{2581}"].map(str::to_owned);
    for (id, word) in words.chain(bytes).chain(pieces).enumerate() {
        vocabulary.insert(word, json!(id));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "\u{2581}" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" },
        ]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "\u{2581}" }, "content": " " },
            { "type": "ByteFallback" },
            { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
        ]},
        "model": {
            "type": "BPE", "vocab": vocabulary, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "merges": [["\u{2581}", "a"], ["b", "c"], ["\u{2581}", "\u{2581}"]],
        },
    });
    std::fs::write(file.path(), tokenizer.to_string()).unwrap();
    Tokenizer::read(file.path()).unwrap()
}

/// The streamed text pieces of token ids.
fn pieces(text: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut stream = text.detokenizer();
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    pieces
}

#[test]
fn tokenizers_match_hugging_face() {
    for model in models() {
        let text = Tokenizer::read(&model.join("tokenizer.json")).unwrap();
        let golden: Value =
            serde_json::from_slice(&std::fs::read(model.join("tokenizer_golden.json")).unwrap()).unwrap();
        let cases = golden["texts"].as_array().unwrap();
        assert!(cases.len() > 10);
        for case in cases {
            let encode = |specials| text.encode(case["text"].as_str().unwrap(), specials).unwrap();
            let ids = encode(true);
            assert_eq!(json!(ids), case["ids"], "{}: {case}", model.display());
            assert_eq!(json!(encode(false)), case["ids_no_special"], "{}: {case}", model.display());
            let decoded = case["decoded"].as_str().unwrap();
            assert_eq!(text.decode(&ids).unwrap(), decoded);
            assert_eq!(pieces(&text, &ids).concat(), decoded, "{}: {case}", model.display());
        }
    }
}

#[test]
fn streams_emit_whole_characters() {
    for text in [Tokenizer::read(&oracle("tokenizer.json")).unwrap(), sentence_pieces()] {
        let ids = text.encode("\u{20ac}\u{20ac}\u{1f600}!", true).unwrap();
        let pieces: Vec<String> = pieces(&text, &ids).into_iter().filter(|piece| !piece.is_empty()).collect();
        assert_eq!(pieces, ["\u{20ac}", "\u{20ac}", "\u{1f600}", "!"]);
        // An incomplete character at the end of the sequence is emitted as it is.
        let mut stream = text.detokenizer();
        let cut = &ids[..ids.len() - 2];
        let shown: String = cut.iter().map(|&id| stream.push(id).unwrap()).collect();
        assert_eq!(shown, "\u{20ac}\u{20ac}");
        assert!(stream.finish().unwrap().starts_with(char::REPLACEMENT_CHARACTER));
    }
}

proptest! {
    #[test]
    fn streamed_pieces_form_the_whole_text(words in "([a-d \u{e9}\u{20ac}\u{1f600}\n]|\\PC){0,40}") {
        for text in [Tokenizer::read(&oracle("tokenizer.json")).unwrap(), sentence_pieces()] {
            let ids = text.encode(&words, true).unwrap();
            prop_assert_eq!(pieces(&text, &ids).concat(), text.decode(&ids).unwrap());
        }
    }

    #[test]
    fn text_ends_before_the_first_stop_string(
        text in "[ab\u{e9}]{0,30}",
        stops in proptest::collection::vec("[ab\u{e9}]{1,4}", 0..3),
        cuts in proptest::collection::vec(0_usize..30, 0..6),
    ) {
        let first = stops.iter().filter_map(|stop| text.find(stop.as_str())).min();
        let mut bounds: Vec<usize> = cuts.into_iter().filter(|&cut| text.is_char_boundary(cut)).collect();
        bounds.extend([0, text.len()]);
        bounds.sort_unstable();
        let mut filter = StopStrings::new(stops);
        let (mut shown, mut met) = (String::new(), false);
        for bound in bounds.windows(2) {
            let (piece, end) = filter.push(&text[bound[0]..bound[1]]);
            shown.push_str(&piece);
            if end {
                met = true;
                break;
            }
        }
        if !met {
            shown.push_str(&filter.take());
        }
        prop_assert_eq!(met, first.is_some());
        // A longer stop string may begin earlier and end later than a shorter one that ends the text.
        prop_assert!(text.starts_with(&shown));
        if let Some(first) = first {
            prop_assert!(shown.len() >= first || !met);
        } else {
            prop_assert_eq!(shown, text);
        }
    }
}

#[test]
fn waiting_for_a_broken_tokenizer_is_an_error() {
    let text = Tokenizer::read_in_background(oracle("tokenizer.json"));
    let ids = text.encode("a text", false).unwrap();
    assert_eq!((text.decode(&ids).unwrap().trim(), text.wait_ready()), ("a text", Ok(())));

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{").unwrap();
    let text = Tokenizer::read_in_background(file.path().to_owned());
    let told = [
        text.encode("a", false).unwrap_err(),
        text.decode(&[1]).unwrap_err(),
        text.wait_ready().unwrap_err(),
    ];
    for told in told {
        assert_eq!(told, Tokenizer::read(file.path()).err().unwrap());
        assert!(
            told.to_string().starts_with(&format!("{}: cannot be used: ", file.path().display())),
            "{told}"
        );
    }
}
