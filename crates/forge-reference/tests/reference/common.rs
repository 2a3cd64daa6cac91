//! The test models with their reference logits, and plans to pack them.

use forge_frontend::{LoadedCheckpoint, MemoryCheckpoint, Options, read_model};
use forge_ir::{Apply, Format, Graph, Layout, Op, Packed, ValueId, Weight, WeightId, WeightRows};
use forge_weights::{CheckpointWeights, PackedFile};
use safetensors::SafeTensors;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};

/// A model with its expected logits.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) files: MemoryCheckpoint,
    pub(crate) opened: LoadedCheckpoint,
    pub(crate) golden: Value,
}

/// All models of the repository's tests/models and of this crate. The latter cover features that the
/// end-to-end models lack, such as f16 weights, shards, odd widths, and linear RoPE scaling.
pub(crate) fn cases() -> Vec<Case> {
    let folders = [folder("../../tests/models"), folder("tests/models")];
    folders.iter().flat_map(|folder| cases_in(folder)).collect()
}

/// All models of the repository's tests/odd, with the logits of two sequences.
pub(crate) fn odd_cases() -> Vec<Case> {
    cases_in(&folder("../../tests/odd"))
}

/// A directory, relative to this crate.
pub(crate) fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn cases_in(folder: &Path) -> Vec<Case> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut models: Vec<PathBuf> = entries.filter(|path| path.join("golden.safetensors").is_file()).collect();
    models.sort();
    models.iter().map(|model| case(model)).collect()
}

fn case(folder: &Path) -> Case {
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let files = std::fs::read_dir(folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        (name(&path), std::fs::read(path).unwrap())
    });
    open_case(name(folder), MemoryCheckpoint(files.collect()))
}

fn open_case(name: String, files: MemoryCheckpoint) -> Case {
    let golden = files.0.get("golden.json").map(|text| serde_json::from_slice(text).unwrap());
    let options = Options { name: name.clone(), ..Options::default() };
    let opened = read_model(&files, &options).unwrap_or_else(|faults| panic!("{name}: {faults:#?}"));
    Case { name, files, opened, golden: golden.unwrap_or_default() }
}

impl Case {
    /// The model with its weights in another type of four bytes, if they are in bf16; otherwise unchanged.
    pub(crate) fn rewritten(&self, dtype: &str, convert: impl Fn(u16) -> u32) -> Case {
        let mut files = self.files.clone();
        let Some(whole) = files.0.get_mut("model.safetensors") else {
            return open_case(self.name.clone(), files);
        };
        let file = SafeTensors::deserialize(whole).unwrap();
        let (mut entries, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, view) in file.iter() {
            let begin = data.len();
            let dtype = if view.dtype() == safetensors::Dtype::BF16 {
                let halves = view.data().as_chunks::<2>().0.iter();
                data.extend(halves.flat_map(|half| convert(u16::from_le_bytes(*half)).to_le_bytes()));
                dtype.to_owned()
            } else {
                data.extend_from_slice(view.data());
                format!("{:?}", view.dtype())
            };
            let offsets = [begin, data.len()];
            entries.insert(
                name.to_owned(),
                serde_json::json!({"dtype": dtype, "shape": view.shape(), "data_offsets": offsets}),
            );
        }
        let header = Value::from(entries).to_string();
        *whole = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        open_case(self.name.clone(), files)
    }

    /// The weights as the checkpoint has them.
    pub(crate) fn stored(&self) -> impl WeightRows + '_ {
        CheckpointWeights::new(&self.opened.graph, |tensor, offset, out| {
            self.opened.tensors.read(&self.files, tensor, offset, out)
        })
    }

    /// Tokens under a key of a sequence.
    pub(crate) fn tokens(&self, sequence: usize, key: &str) -> Vec<u32> {
        let tokens = self.golden["sequences"][sequence][key].as_array().unwrap();
        tokens.iter().map(|token| token.as_u64().unwrap() as u32).collect()
    }

    /// The sequences in golden.safetensors: two or three.
    pub(crate) fn texts(&self) -> std::ops::Range<usize> {
        let file = SafeTensors::deserialize(&self.files.0["golden.safetensors"]).unwrap();
        0..file.names().iter().filter(|name| name.starts_with("last_")).count()
    }

    /// The tokens of a sequence, from golden.json or golden.safetensors.
    pub(crate) fn ids(&self, text: usize) -> Vec<u32> {
        if !self.golden.is_null() {
            return self.tokens(text, "ids");
        }
        let file = SafeTensors::deserialize(&self.files.0["golden.safetensors"]).unwrap();
        let bytes = file.tensor(&format!("ids_{text}")).unwrap().data();
        bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
    }

    /// A tensor of golden.safetensors, cut into rows of a vocabulary.
    pub(crate) fn logits(&self, tensor: &str) -> Vec<Vec<f32>> {
        let file = SafeTensors::deserialize(&self.files.0["golden.safetensors"]).unwrap();
        let bytes = file.tensor(tensor).unwrap().data();
        let numbers: Vec<f32> =
            bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        numbers.chunks(self.opened.graph.model.vocabulary).map(<[f32]>::to_vec).collect()
    }

    /// The standard deviation of all logits.
    pub(crate) fn deviation(&self) -> f64 {
        self.golden["logit_std"].as_f64().unwrap()
    }
}

/// A plan like the planner's: Q, K and V joined, gate and up interleaved.
pub(crate) fn plan(graph: &Graph, format: Format) -> Vec<Packed> {
    let mut plan: Vec<Packed> = Vec::new();
    let mut add = |name: String, layout: Layout, parts: Vec<WeightId>| {
        if parts.is_empty() || plan.iter().any(|packed| packed.parts == parts) {
            return;
        }
        // Without a second weight, interleaves with zeros.
        let layout = if parts.len() == 1 { Layout::Rows } else { layout };
        let weights = || parts.iter().map(|part| &graph.weights[part.0]);
        let is_matrix = weights().any(Weight::is_matrix);
        let length = |weight: &Weight| if is_matrix { weight.rows() } else { weight.columns() };
        let mut shape = vec![weights().map(length).sum()];
        shape.extend(weights().next().filter(|_| is_matrix).map(Weight::columns));
        let format = if shape.len() == 2 { format } else { Format::F32 };
        plan.push(Packed { name, format, shape, layout, parts, gain: None, records: None });
    };
    for (index, apply) in graph.applications().enumerate() {
        let parts = |names: &[&str]| -> Vec<WeightId> {
            names.iter().filter_map(|name| bound(graph, apply, name)).collect()
        };
        let joint = [
            ("qkv", Layout::Rows, vec!["query", "key", "value"]),
            ("qkv_bias", Layout::Rows, vec!["query_bias", "key_bias", "value_bias"]),
            ("gate_up", Layout::Alternate, vec!["gate", "up"]),
            ("routed_gate_up", Layout::Alternate, vec!["routed_gate", "routed_up"]),
            ("gate_up_bias", Layout::Alternate, vec!["gate_bias", "up_bias"]),
        ];
        let taken: Vec<&str> = joint.iter().flat_map(|(_, _, parts)| parts).copied().collect();
        for (name, layout, names) in &joint {
            add(format!("{index}.{name}"), *layout, parts(names));
        }
        for param in &graph.body(apply).params {
            if !taken.contains(&param.name.as_str()) {
                add(format!("{index}.{}", param.name), Layout::Rows, parts(&[&param.name]));
            }
        }
    }
    plan
}

/// A plan with norm weights folded into the following matrices, where these are the only readers and are not
/// shared.
pub(crate) fn folded(graph: &Graph, mut plan: Vec<Packed>) -> Vec<Packed> {
    let bindings = |weight: WeightId| {
        graph.applications().flat_map(|apply| &apply.weights).filter(|bound| **bound == weight).count()
    };
    for apply in graph.applications() {
        let body = graph.body(apply);
        for (index, node) in body.nodes.iter().enumerate() {
            let Op::RmsNorm { gain: Some(gain), parts: 1, .. } = node.op else { continue };
            let readers = body.nodes.iter().filter(|node| node.inputs.contains(&ValueId(index + 1)));
            let matrices: Option<Vec<WeightId>> = readers
                .map(|reader| match reader.op {
                    Op::Linear { weight, .. } => apply.weight(body, weight),
                    _ => None,
                })
                .collect();
            let Some(matrices) = matrices.filter(|all| all.iter().all(|weight| bindings(*weight) == 1))
            else {
                continue;
            };
            let gain = apply.weight(body, gain).unwrap();
            plan.retain(|packed| packed.parts != [gain]);
            let is_folded =
                |packed: &&mut Packed| matrices.iter().any(|weight| packed.parts.contains(weight));
            plan.iter_mut().filter(is_folded).for_each(|packed| packed.gain = Some(gain));
        }
    }
    plan
}

fn bound(graph: &Graph, apply: &Apply, name: &str) -> Option<WeightId> {
    let body = graph.body(apply);
    let param = body.params.iter().position(|param| param.name == name)?;
    apply.weight(body, forge_ir::ParamId(param))
}

/// The weight file of a plan.
pub(crate) fn pack(case: &Case, plan: &[Packed]) -> (Vec<u8>, forge_weights::Summary) {
    let mut file = Vec::new();
    let summary =
        forge_weights::write(&case.opened.graph, plan, &case.stored(), &mut file, &mut |_| {}).unwrap();
    (file, summary)
}

/// The weights as a file in memory has them.
pub(crate) fn open<'a>(graph: &'a Graph, plan: &'a [Packed], file: &'a [u8]) -> impl WeightRows + 'a {
    let read = move |offset: u64, out: &mut [u8]| {
        let from = file.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    PackedFile::open(graph, plan, read).unwrap()
}

/// The standard deviation of a position's logits.
pub(crate) fn deviation(logits: &[f32]) -> f64 {
    let mean = logits.iter().map(|x| f64::from(*x)).sum::<f64>() / logits.len() as f64;
    let squares = logits.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>();
    (squares / logits.len() as f64).sqrt()
}

/// The largest difference; infinite for NaN.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs()));
    differences.fold(0.0, |far, x| if x.is_nan() || x > far { x } else { far })
}
