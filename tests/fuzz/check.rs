//! The checks of each kind of file: the code of the compiler and its programs that reads it, as far as it
//! gets.

use forge_frontend::{Checkpoint, DummyWeights, LoadedCheckpoint, MemoryCheckpoint, Options, read_model};
use forge_ir::Diagnostic;
use forge_planner::{Quant, Workload};
use forge_runtime::text::chat_template::{Conversation, Message, Template};
use forge_runtime::text::tokenizer::Tokenizer;
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Reads a checkpoint. The places of diagnostics must be inside their files.
fn read(checkpoint: &dyn Checkpoint) -> Option<LoadedCheckpoint> {
    match read_model(checkpoint, &Options::default()) {
        Ok(opened) => Some(opened),
        Err(faults) => {
            assert!(!faults.is_empty(), "a rejection has a diagnostic");
            faults.iter().for_each(|fault| assert_span_is_valid(checkpoint, fault));
            None
        }
    }
}

fn assert_span_is_valid(checkpoint: &dyn Checkpoint, fault: &Diagnostic) {
    let Some(place) = &fault.place else { return };
    let mut bytes = vec![0; checkpoint.len(&place.file).unwrap() as usize];
    checkpoint.read(&place.file, 0, &mut bytes).unwrap();
    assert!(std::str::from_utf8(&bytes).unwrap().get(place.span.clone()).is_some(), "{fault}");
}

/// A configuration alone, and with dummy tensors of the shapes that it needs; planned if `is_planned`.
pub(crate) fn config(bytes: &[u8], is_planned: bool) {
    read(&MemoryCheckpoint(BTreeMap::from([("config.json".to_owned(), bytes.to_vec())])));
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(shapes) = DummyWeights::new(text, &Options::default()) else { return };
    let opened = read(&shapes).expect("the tensors are those of the graph");
    if is_planned {
        plan(&opened);
    }
}

/// The stages after reading that need no weight values.
fn plan(opened: &LoadedCheckpoint) {
    let graph = &opened.graph;
    for quant in ["keep", "q4_0"] {
        let options =
            forge_planner::Options { quant: Quant::from_name(quant).unwrap(), ..Default::default() };
        if let Ok(plan) = forge_planner::plan(graph, &options) {
            plan.counts(Workload::decode(1));
            let _ = plan.weight_bytes();
        }
    }
}

/// A small file next to a valid configuration.
pub(crate) fn config_with_file(file: &str, bytes: &[u8]) {
    let config = include_bytes!("../models/llama3_rope/config.json");
    read(&MemoryCheckpoint(BTreeMap::from([
        ("config.json".to_owned(), config.to_vec()),
        (file.to_owned(), bytes.to_vec()),
    ])));
}

/// A model with one of its files replaced.
pub(crate) fn with(model: &MemoryCheckpoint, file: &str, bytes: &[u8]) {
    let mut files = model.clone();
    files.0.insert(file.to_owned(), bytes.to_vec());
    read_whole(&files);
}

/// A GGUF file, which is a complete model.
pub(crate) fn gguf(bytes: &[u8]) {
    read_whole(&MemoryCheckpoint(BTreeMap::from([("model.gguf".to_owned(), bytes.to_vec())])));
}

/// Reads a checkpoint, and the last byte of every tensor.
fn read_whole(files: &MemoryCheckpoint) {
    let Some(opened) = read(files) else { return };
    let mut number = [0];
    for tensor in opened.tensors.iter().filter(|tensor| tensor.bytes > 0) {
        opened.tensors.read(files, &tensor.name, tensor.bytes - 1, &mut number).unwrap();
    }
}

/// A model with another safetensors header, followed by as many bytes of data as the model has.
pub(crate) fn header(model: &MemoryCheckpoint, bytes: &[u8]) {
    const FILE: &str = "model.safetensors";
    let own = &model.0[FILE];
    let length = u64::from_le_bytes(*own.first_chunk().unwrap()) as usize;
    with(model, FILE, &[bytes, &own[8 + length..]].concat());
}

/// A tokenizer: texts to ids, and ids to text.
pub(crate) fn tokenizer(path: &Path) {
    let Ok(text) = Tokenizer::read(path) else { return };
    let long = "Once upon a time \u{e9}\u{1f98a}  there was\n\n a fox".repeat(20);
    for text_in in
        ["", " ", "a", "Hello, world! 12345", "<s>\u{2581}</s><|im_start|>", "\u{301}\u{0}\u{feff}", &long]
    {
        for specials in [false, true] {
            if let Ok(ids) = text.encode(text_in, specials) {
                let _ = text.decode(&ids);
            }
        }
    }
    let mut stream = text.detokenizer();
    for id in (0..40).chain([255, 499, 500, 511, u32::MAX]) {
        let _ = stream.push(id);
    }
    let _ = stream.finish();
}

/// A `tekken.json` in a model without `tokenizer.json`, and the tokenizer made from it.
pub(crate) fn tekken(model: &MemoryCheckpoint, folder: &Path, bytes: &[u8]) {
    let mut files = model.clone();
    files.0.insert("tekken.json".to_owned(), bytes.to_vec());
    let Some(opened) = read(&files) else { return };
    let path = folder.join("converted.json");
    std::fs::write(&path, &opened.texts.0["tokenizer.json"]).unwrap();
    tokenizer(&path);
}

/// The chat template in a directory.
pub(crate) fn template(folder: &Path) {
    let Ok(Some(template)) = Template::read(folder) else { return };
    let call = json!({"type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, null]}}});
    let messages: Vec<Message> = serde_json::from_value(json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi\n\u{e9} "},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3", "name": "f"},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]))
    .unwrap();
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
    let mut variables = Map::new();
    variables.insert("enable_thinking".to_owned(), json!(false));
    let plain = Conversation::new(&messages[..2]);
    let whole = Conversation {
        messages: &messages,
        tools: &tools,
        variables: &variables,
        add_generation_prompt: false,
    };
    for conversation in [plain, whole] {
        let _ = template.render(&conversation);
    }
}
