//! The tokenizer of a random model.

use serde_json::{Map, Value, json};

/// A tokenizer of any vocabulary size: one token per byte, two special tokens, and filler words.
pub(super) fn tokenizer(config: &Value) -> Value {
    let size = config["vocab_size"].as_u64().unwrap_or(512) as usize;
    // Byte-level tokenizers represent each byte as a printable character.
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut spare = 256;
    let mut vocabulary = Map::new();
    for byte in 0..256u32 {
        let code = if printable(byte) { byte } else { spare };
        spare += u32::from(!printable(byte));
        vocabulary.insert(char::from_u32(code).unwrap_or(' ').to_string(), Value::from(byte));
    }
    for id in 258..size {
        vocabulary.insert(format!("Ġword{id}"), Value::from(id));
    }
    let special = |id: usize, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [special(256, "<|begin|>"), special(257, "<|end|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [256], "tokens": ["<|begin|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary, "merges": []},
    })
}
