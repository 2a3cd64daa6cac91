//! Recordings that dispatch a spec with buffers of exactly the required size and plausible contents
//! ([`inputs`]).

pub(crate) mod experts;
mod inputs;

use forge_kernels::spec::Rows;
use forge_kernels::{Instance, Spec, assemble, render};
use forge_oracle::Random;
use forge_sim::Recording;
use forge_sim::recording::{Binding, BufferSize, Command, Dispatch, Pass, Write};
use inputs::{Content, capacity};
use std::collections::BTreeMap;

/// A kernel, and its dispatches with their rows.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) spec: Spec,
    pub(crate) launches: Vec<Launch>,
}

/// Rows of a batch: the position of each. All are of slot 1, except that the last `others` are of slot 0.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) positions: Vec<u32>,
    pub(crate) others: usize,
    pub(crate) splits: u32,
    /// The tile of positions, for kernels that process positions tile by tile.
    pub(crate) kv_range: [u32; 2],
    /// Whether the kernel appends its rows to the cache, if it can.
    pub(crate) appends: bool,
}

pub(crate) const CONTEXT: usize = 72;
const SLOTS: usize = 2;

impl Launch {
    /// `rows` rows that end at `last`.
    pub(crate) fn rows(rows: u32, last: u32) -> Launch {
        Launch {
            positions: (last + 1 - rows..=last).collect(),
            others: 0,
            splits: 1,
            kv_range: [0, last + 1],
            appends: true,
        }
    }

    /// All rows are in the cache.
    pub(crate) fn appended(self) -> Launch {
        Launch { appends: false, ..self }
    }

    pub(crate) fn split(self, splits: u32) -> Launch {
        Launch { splits, ..self }
    }

    pub(crate) fn kv_range(self, begin: u32, end: u32) -> Launch {
        Launch { kv_range: [begin, end], ..self }
    }

    /// The last `others` rows belong to another slot, from position 0.
    pub(crate) fn mixed(mut self, others: usize) -> Launch {
        let first = self.positions.len() - others;
        for (index, position) in self.positions[first..].iter_mut().enumerate() {
            *position = index as u32;
        }
        Launch { others, ..self }
    }
}

/// The Metal source of all cases, its recording, and the weights.
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) recording: Recording,
    pub(crate) weights: Vec<u8>,
}

/// Records the dispatches of every case, each in a separate pass.
pub(crate) fn script(cases: &[Case]) -> Script {
    let instances: Vec<Instance> = cases
        .iter()
        .enumerate()
        .map(|(index, case)| {
            render(&format!("kernel_{index}"), &case.spec).unwrap_or_else(|error| panic!("{error:?}"))
        })
        .collect();
    let mut script = Writer::default();
    for (case, instance) in cases.iter().zip(&instances) {
        for launch in &case.launches {
            script.launch(case, instance, launch);
        }
    }
    let sizes = [("weights", true, script.weights.len()), ("scratch", false, script.end)];
    let buffers = sizes
        .map(|(name, file, bytes)| {
            (name.to_owned(), BufferSize { file: file.then(|| name.to_owned()), bytes })
        })
        .into_iter()
        .collect::<BTreeMap<_, _>>();
    Script {
        text: assemble(&instances, "Kernels under test."),
        recording: Recording { buffers, passes: script.passes },
        weights: script.weights,
    }
}

#[derive(Default)]
struct Writer {
    weights: Vec<u8>,
    end: usize,
    passes: Vec<Pass>,
    random: Random,
}

impl Writer {
    fn launch(&mut self, case: &Case, instance: &Instance, launch: &Launch) {
        let rows = launch.positions.len();
        let mut writes = Vec::new();
        let mut bindings = Vec::new();
        for buffer in &instance.decl.buffers {
            let content = self.content(&case.spec, &buffer.name, rows, launch);
            let written = buffer.written;
            bindings.push(match content {
                Content::Weights(bytes) => {
                    let offset = self.weights.len().next_multiple_of(64);
                    self.weights.resize(offset, 0xff);
                    self.weights.extend_from_slice(&bytes);
                    Binding { buffer: "weights".to_owned(), offset, bytes: bytes.len(), written }
                }
                Content::Words(words) => {
                    let offset = self.reserve(words.len() * 4);
                    let bytes = words.len() * 4;
                    writes.push(Write { buffer: "scratch".to_owned(), offset, words });
                    Binding { buffer: "scratch".to_owned(), offset, bytes, written }
                }
                Content::Parts(bytes, parts) => {
                    let offset = self.reserve(bytes);
                    writes.extend(parts.into_iter().map(|(at, words)| Write {
                        buffer: "scratch".to_owned(),
                        offset: offset + at,
                        words,
                    }));
                    Binding { buffer: "scratch".to_owned(), offset, bytes, written }
                }
                Content::Unwritten(bytes) => {
                    let offset = self.reserve(bytes);
                    Binding { buffer: "scratch".to_owned(), offset, bytes, written }
                }
            });
        }
        let capacity = capacity(ring_of(&case.spec)) as u32;
        let context = CONTEXT as u32;
        let values: Vec<(&str, u32)> = vec![
            ("rows", rows as u32),
            ("context", context),
            ("capacity", capacity),
            ("splits", launch.splits),
            ("split_positions", 4),
            ("appends", u32::from(launch.appends)),
            ("first", 5),
            ("begin", launch.kv_range[0]),
            ("end", launch.kv_range[1]),
        ];
        let scalar =
            |name: &String| values.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value);
        let scalars = instance.decl.scalars.iter().map(scalar).collect();
        let groups = [0, 1, 2].map(|axis| instance.decl.grid[axis].eval(&values).unwrap_or(0));
        let dispatch = Dispatch {
            kernel: instance.name.clone(),
            bindings,
            scalars,
            groups,
            threads: instance.decl.threads,
        };
        let commands = vec![Command::Dispatch(dispatch)];
        self.passes.push(Pass { label: instance.name.clone(), writes, commands, reads: Vec::new() });
    }

    fn reserve(&mut self, bytes: usize) -> usize {
        let offset = self.end.next_multiple_of(64);
        self.end = offset + bytes;
        offset
    }
}

/// The ring size of a kernel's cache.
fn ring_of(spec: &Spec) -> Option<usize> {
    match spec {
        Spec::Append(append) => append.ring,
        Spec::RopeAppend(rope) => rope.ring,
        Spec::AttendSplit(attend) | Spec::AttendTiled(attend) => attend.op.ring,
        _ => None,
    }
}

/// A row count for a matmul of this batch-size class, which fills no tile.
pub(crate) fn rows_for(rows: Rows) -> Vec<Launch> {
    match rows {
        Rows::One => vec![Launch::rows(1, 0)],
        Rows::Two => vec![Launch::rows(2, 1)],
        Rows::Four => vec![Launch::rows(5, 4)],
        Rows::Eight => vec![Launch::rows(7, 6)],
        Rows::Sixteen => vec![Launch::rows(13, 12)],
        Rows::Few => vec![Launch::rows(1, 0), Launch::rows(13, 12)],
        Rows::Many => vec![Launch::rows(17, 16), Launch::rows(70, 69)],
    }
}
