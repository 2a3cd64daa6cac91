//! The runtime's source, file by file, as it was when this compiler was built.

/// Paths within `src/runtime`, and their text.
pub(crate) const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/runtime_files.rs"));
