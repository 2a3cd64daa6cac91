//! A device that records passes for the kernel checker, without computing anything. All reads return zeros.

use forge_device::device::{Binding, Buffer, Device, Kernel, Pass, Schedule};
use forge_device::model::Layout;
use serde_json::{Value, json};

/// A recording in progress.
pub struct Recorder {
    sizes: [usize; 4],
    writes: Vec<Value>,
    passes: Vec<Value>,
    cores: u32,
}

impl Recorder {
    /// A device for a weight file of `weights` bytes and buffers of this layout. `cores` is the number of GPU
    /// cores it reports.
    pub fn new(weights: usize, layout: &Layout, cores: u32) -> Recorder {
        Recorder {
            sizes: [weights, layout.state.bytes(), layout.scratch_bytes, layout.rows_bytes],
            writes: Vec::new(),
            passes: Vec::new(),
            cores,
        }
    }

    /// The number of passes.
    pub fn passes(&self) -> usize {
        self.passes.len()
    }

    /// Sets the label of a pass.
    pub fn label(&mut self, pass: usize, label: &str) {
        self.passes[pass]["label"] = json!(label);
    }

    /// Describes the purpose of the last read.
    pub fn describe_read(&mut self, what: Value) {
        let reads = self.passes.last_mut().and_then(|pass| pass["reads"].as_array_mut());
        if let Some(read) = reads.and_then(|reads| reads.last_mut()) {
            read["what"] = what;
        }
    }

    /// The complete recording.
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

    fn decodes_batches(&self) -> bool {
        true
    }

    fn run(&mut self, _program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        let mut pass = RecordedPass { commands: Vec::new(), cores: self.cores };
        encode(&mut pass);
        self.passes.push(json!({
            "label": "",
            "writes": std::mem::take(&mut self.writes),
            "commands": pass.commands,
            "reads": [],
        }));
        Ok(())
    }
}

/// The commands of a pass, as they are encoded.
struct RecordedPass {
    commands: Vec<Value>,
    cores: u32,
}

impl Pass for RecordedPass {
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

    fn gpu_cores(&self) -> u32 {
        self.cores
    }

    // A low minimum, so that KV caches are split whenever possible.
    fn min_kv_split(&self, planned: u32) -> u32 {
        planned.min(32)
    }

    // The smallest batch above the small-batch kernels.
    fn mla_expand_min_rows(&self, planned: u32) -> Option<u32> {
        Some(planned.min(17))
    }

    fn barrier(&mut self) {
        self.commands.push(json!({ "barrier": {} }));
    }
}
