//! The recording of a run: what a generated program asked of its device, pass by pass. The program writes it
//! (`record`), [`crate::Replay`] carries it out.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// The device's buffers, by name.
    pub buffers: BTreeMap<String, BufferSize>,
    /// In order. The host waits for each before the next.
    pub passes: Vec<Pass>,
}

/// A buffer of the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferSize {
    /// The file that it shows, where it shows one; nothing writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Its bytes.
    pub bytes: usize,
}

/// One submission to the device, what the host wrote before it, and what it read after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// For people.
    pub label: String,
    /// Before it.
    pub writes: Vec<Write>,
    /// In order.
    pub commands: Vec<Command>,
    /// After it.
    pub reads: Vec<Read>,
}

/// Words that the host writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Name of the buffer.
    pub buffer: String,
    /// First byte.
    pub offset: usize,
    /// The words.
    pub words: Vec<u32>,
}

/// What a device is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Run a kernel.
    Dispatch(Dispatch),
    /// Let everything after see what everything before wrote.
    Barrier(Barrier),
}

/// See [`Command::Barrier`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Barrier {}

/// A kernel's launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    /// Its name.
    pub kernel: String,
    /// In the order of its buffers.
    pub bindings: Vec<Binding>,
    /// In the order of its struct.
    pub scalars: Vec<u32>,
    /// Threadgroups in x, y, z.
    pub groups: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: u32,
}

/// A range of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Name of the buffer.
    pub buffer: String,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub bytes: usize,
    /// Whether the kernel may write it.
    pub written: bool,
}

/// What the host reads after a pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Read {
    /// Name of the buffer.
    pub buffer: String,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub bytes: usize,
    /// What it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<What>,
}

/// What the host reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Logits of a position of a sequence.
    Logits(Place),
    /// Something else.
    #[serde(untagged)]
    Other(serde_json::Value),
}

/// Where in the run a row of logits belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Number of the sequence.
    pub sequence: usize,
    /// Position in it.
    pub position: usize,
}

impl Recording {
    /// Reads the JSON.
    pub fn parse(json: &str) -> Result<Recording, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// Dispatches and barriers of all passes.
    pub fn steps(&self) -> usize {
        self.passes.iter().map(|pass| pass.commands.len()).sum()
    }
}
