//! A recording of a generated program's device commands, pass by pass. The program's `record` command writes it;
//! [`crate::Replay`] executes it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The recorded run of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// The device buffers by name.
    pub buffers: BTreeMap<String, BufferSize>,
    /// The passes in order. The host waits for each before the next.
    pub passes: Vec<Pass>,
}

/// A device buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferSize {
    /// The file that it maps, if any; such a buffer is constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Size in bytes.
    pub bytes: usize,
}

/// One submission to the device, with the host's writes before it and reads after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// Description of the pass.
    pub label: String,
    /// Host writes before the pass.
    pub writes: Vec<Write>,
    /// Device commands in order.
    pub commands: Vec<Command>,
    /// Host reads after the pass.
    pub reads: Vec<Read>,
}

/// A write of u32 words by the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Name of the buffer.
    pub buffer: String,
    /// Offset of the first byte.
    pub offset: usize,
    /// The words.
    pub words: Vec<u32>,
}

/// A device command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Runs a kernel.
    Dispatch(Dispatch),
    /// Orders all commands after it behind all commands before it.
    Barrier(Barrier),
}

/// The arguments of [`Command::Barrier`]: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Barrier {}

/// A kernel launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    /// Name of the kernel.
    pub kernel: String,
    /// Bindings in the order of the kernel's buffers.
    pub bindings: Vec<Binding>,
    /// Scalars in the order of the kernel's scalar struct.
    pub scalars: Vec<u32>,
    /// Threadgroups in x, y, z.
    pub groups: [u32; 3],
    /// Threads per threadgroup.
    pub threads: u32,
}

/// A binding: a byte range of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Name of the buffer.
    pub buffer: String,
    /// Offset of the first byte.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// Whether the kernel may write it.
    pub written: bool,
}

/// A read by the host after a pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Read {
    /// Name of the buffer.
    pub buffer: String,
    /// Offset of the first byte.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// Meaning of the bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<ReadKind>,
}

/// The meaning of bytes that the host reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadKind {
    /// Logits of one position of a sequence.
    Logits(TokenPosition),
    /// Any other data, by name.
    #[serde(untagged)]
    Other(serde_json::Value),
}

/// The sequence and position of a row of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenPosition {
    /// Index of the sequence.
    pub sequence: usize,
    /// Position in the sequence.
    pub position: usize,
}

impl Recording {
    /// Parses the JSON of a recording.
    pub fn parse(json: &str) -> Result<Recording, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// Number of dispatches and barriers of all passes.
    pub fn steps(&self) -> usize {
        self.passes.iter().map(|pass| pass.commands.len()).sum()
    }
}
