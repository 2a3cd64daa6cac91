//! Changes that break a checkpoint.

use crate::common::Raw;
use forge_frontend::MemoryCheckpoint;

pub(crate) const CONFIG: &str = "config.json";

pub(crate) type Change = fn(&mut MemoryCheckpoint);

pub(crate) fn text(files: &mut MemoryCheckpoint, file: &str, text: &str) {
    files.0.insert(file.to_owned(), text.as_bytes().to_vec());
}

pub(crate) fn find<'a>(all: &'a mut [Raw], name: &str) -> &'a mut Raw {
    all.iter_mut().find(|tensor| tensor.name == name).unwrap()
}

pub(crate) const K: &str = "model.layers.1.self_attn.k_proj.weight";

/// Sets a key of the configuration; `null` removes it.
macro_rules! set {
    ($($key:literal: $value:tt),+) => {
        |files| edit(files, CONFIG, |config| {
            $(config[$key] = json!($value);)+
            config.as_object_mut().unwrap().retain(|_, value| value != "REMOVE");
        })
    };
}

pub(crate) use set;
