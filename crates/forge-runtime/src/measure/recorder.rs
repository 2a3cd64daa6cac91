//! A device that computes nothing and writes down what it is told: the passes of a real run, for a simulator to
//! replay. What is read from it is zero.

use crate::device::{Binding, Buffer, Device, Kernel, Pass, Schedule};
use crate::model::Layout;
use serde_json::{Value, json};

/// The recording, as it grows.
pub struct Recorder {
    sizes: [usize; 4],
    writes: Vec<Value>,
    passes: Vec<Value>,
    cores: u32,
}

impl Recorder {
    /// A device with a weight file of `weights` bytes and buffers of `layout`'s sizes, and so many cores.
    pub fn new(weights: usize, layout: &Layout, cores: u32) -> Recorder {
        Recorder {
            sizes: [weights, layout.state.bytes(), layout.scratch_bytes, layout.rows_bytes],
            writes: Vec::new(),
            passes: Vec::new(),
            cores,
        }
    }

    /// How many passes there are.
    pub fn passes(&self) -> usize {
        self.passes.len()
    }

    /// Names the pass number `pass`.
    pub fn label(&mut self, pass: usize, label: &str) {
        self.passes[pass]["label"] = json!(label);
    }

    /// Says what the last read of the last pass was for.
    pub fn explain_read(&mut self, what: Value) {
        let reads = self.passes.last_mut().and_then(|pass| pass["reads"].as_array_mut());
        if let Some(read) = reads.and_then(|reads| reads.last_mut()) {
            read["what"] = what;
        }
    }

    /// The whole recording.
    pub fn finish(self) -> Value {
        let [weights, state, scratch, rows] = self.sizes;
        json!({
            "buffers": {
                "weights": { "file": "weights.safetensors", "bytes": weights },
                "state": { "bytes": state },
                "scratch": { "bytes": scratch },
                "rows": { "bytes": rows },
            },
            "passes": self.passes,
        })
    }
}

impl Device for Recorder {
    fn describe(&self) -> String {
        "recorder".to_owned()
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        self.writes.push(json!({ "buffer": buffer.name(), "offset": offset, "words": words }));
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        bytes.fill(0);
        if let Some(reads) = self.passes.last_mut().and_then(|pass| pass["reads"].as_array_mut()) {
            reads.push(json!({ "buffer": buffer.name(), "offset": offset, "bytes": bytes.len() }));
        }
    }

    fn run(&mut self, _program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        let mut notes = Notes { commands: Vec::new(), cores: self.cores };
        encode(&mut notes);
        self.passes.push(json!({
            "label": "",
            "writes": std::mem::take(&mut self.writes),
            "commands": notes.commands,
            "reads": [],
        }));
        Ok(())
    }
}

/// A pass, as it is encoded.
struct Notes {
    commands: Vec<Value>,
    cores: u32,
}

impl Pass for Notes {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]) {
        let bindings: Vec<Value> = bindings
            .iter()
            .map(|binding| {
                json!({
                    "buffer": binding.buffer.name(),
                    "offset": binding.offset,
                    "bytes": binding.bytes,
                    "written": binding.written,
                })
            })
            .collect();
        self.commands.push(json!({ "dispatch": {
            "kernel": kernel.name,
            "bindings": bindings,
            "scalars": scalars,
            "groups": groups,
            "threads": kernel.threads,
        }}));
    }

    fn cores(&self) -> u32 {
        self.cores
    }

    // So little that everything which can be shared out is.
    fn least_share(&self, planned: u32) -> u32 {
        planned.min(32)
    }

    // As few as are not a few any more.
    fn unfolds_from(&self, planned: u32) -> Option<u32> {
        Some(planned.min(17))
    }

    fn barrier(&mut self) {
        self.commands.push(json!({ "barrier": {} }));
    }
}
