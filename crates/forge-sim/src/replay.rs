//! Replay: executes a recording in the kernel checker, with the same dispatches and data in the same order.

use crate::check::checker::Counters;
use crate::check::fault::Fault;
use crate::check::traffic::Traffic;
use crate::compile::program::Program;
use crate::memory::buffers::{Bound, BufferId};
use crate::recording::{Command, Dispatch, Pass, ReadKind, Recording};
use crate::sample::{Sample, Samples};
use crate::sim::Sim;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The source of the weights.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'w> {
    /// A file.
    File(&'w Path),
    /// Bytes in memory.
    Bytes(&'w [u8]),
}

/// The replay of a recording.
pub struct Replay<'p> {
    sim: Sim<'p>,
    recording: &'p Recording,
    buffers: BTreeMap<&'p str, BufferId>,
    samples: Option<Samples>,
    traffic: Option<Vec<Counted<'p>>>,
}

/// A dispatch of the current pass with its counted traffic. Layers differ in the values of their weights, not in the
/// accessed addresses, so equal dispatches of a pass are counted once.
struct Counted<'p> {
    dispatch: &'p Dispatch,
    traffic: Traffic,
}

impl Counted<'_> {
    fn is_like(&self, dispatch: &Dispatch) -> bool {
        let launch = |dispatch: &Dispatch| (dispatch.groups, dispatch.threads);
        let sizes =
            |dispatch: &Dispatch| dispatch.bindings.iter().map(|binding| binding.bytes).collect::<Vec<_>>();
        (&self.dispatch.kernel, &self.dispatch.scalars, launch(self.dispatch), sizes(self.dispatch))
            == (&dispatch.kernel, &dispatch.scalars, launch(dispatch), sizes(dispatch))
    }
}

/// Values that the host read after a pass.
#[derive(Clone, Debug, Serialize)]
pub struct Values {
    /// Meaning of the values.
    pub what: Option<ReadKind>,
    /// The values as f32.
    pub values: Vec<f32>,
}

/// A barrier command of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayedBarrier {
    /// Index of the pass.
    pub pass: usize,
    /// Index of the command in the pass.
    pub command: usize,
    /// Whether two dispatches would conflict without it.
    pub required: bool,
}

/// The result of a replay.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Faults that the checker found.
    pub faults: Vec<Fault>,
    /// Counters of each kernel.
    pub counters: BTreeMap<String, Counters>,
    /// Values that the host read.
    #[serde(skip)]
    pub reads: Vec<Values>,
    /// All barrier commands, with whether each was required.
    #[serde(skip)]
    pub waits: Vec<ReplayedBarrier>,
    /// Number of executed dispatches.
    pub steps: usize,
    /// The aborted dispatch, if any.
    pub stopped: Option<String>,
}

impl<'p> Replay<'p> {
    /// Creates the recording's buffers.
    pub fn new(
        program: &'p Program,
        recording: &'p Recording,
        weights: Weights<'_>,
    ) -> io::Result<Replay<'p>> {
        let mut sim = Sim::new(program)?;
        let mut buffers = BTreeMap::new();
        for (name, size) in &recording.buffers {
            let id = match (&size.file, weights) {
                (None, _) => sim.memory.unwritten(size.bytes)?,
                (Some(_), Weights::File(path)) => sim.memory.file(path)?,
                (Some(_), Weights::Bytes(bytes)) => sim.memory.constant(bytes)?,
            };
            if sim.memory.size(id) != size.bytes {
                let message = format!(
                    "`{name}` has {} bytes, but the recording has {}",
                    sim.memory.size(id),
                    size.bytes
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            buffers.insert(name.as_str(), id);
        }
        Ok(Replay { sim, recording, buffers, samples: None, traffic: None })
    }

    /// Keeps the inputs of some dispatches of each kernel, for mutation testing.
    pub fn sampling(&mut self, samples: Samples) {
        self.samples = Some(samples);
    }

    /// Enables memory traffic counters. Equal dispatches of a pass are counted once.
    pub fn counting_traffic(&mut self) {
        self.traffic = Some(Vec::new());
    }

    /// The kept dispatches.
    pub fn into_samples(self) -> Vec<Sample> {
        self.samples.map(Samples::finish).unwrap_or_default()
    }

    /// Executes the recording. `progress` is called with the numbers of completed passes and commands.
    pub fn run(&mut self, progress: &mut dyn FnMut(usize, usize)) -> Report {
        let mut report = Report::default();
        let mut done = 0;
        'passes: for (number, pass) in self.recording.passes.iter().enumerate() {
            self.host_writes(pass);
            if let Some(counted) = &mut self.traffic {
                counted.clear();
            }
            for (index, command) in pass.commands.iter().enumerate() {
                match command {
                    Command::Barrier(_) => {
                        self.sim.barrier();
                        report.waits.push(ReplayedBarrier { pass: number, command: index, required: false });
                    }
                    Command::Dispatch(dispatch) => {
                        report.steps += 1;
                        if !self.dispatch(dispatch) && self.sim.stopped() {
                            report.stopped = Some(format!(
                                "command {index} of pass {number} ({}): `{}` was aborted",
                                pass.label, dispatch.kernel
                            ));
                            break 'passes;
                        }
                    }
                }
                done += 1;
                progress(number, done);
            }
            self.sim.fence();
            self.host_reads(pass, &mut report);
        }
        for (wait, required) in report.waits.iter_mut().zip(self.sim.required_barriers()) {
            wait.required = *required;
        }
        report.faults = self.sim.take_faults();
        report.counters = self.sim.counters().clone();
        report
    }

    fn host_writes(&mut self, pass: &Pass) {
        for write in &pass.writes {
            let bytes: Vec<u8> = write.words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let Some(buffer) = self.buffers.get(write.buffer.as_str()) else {
                self.sim.reject("host", 0, format!("there is no buffer `{}`", write.buffer));
                continue;
            };
            if !self.sim.memory.write(*buffer, write.offset, &bytes) {
                let (offset, count) = (write.offset, bytes.len());
                self.sim.reject(
                    "host",
                    0,
                    format!(
                        "the host writes {count} bytes at {offset}, beyond the end of `{}`",
                        write.buffer
                    ),
                );
            }
        }
    }

    fn dispatch(&mut self, dispatch: &'p Dispatch) -> bool {
        let mut bindings = Vec::with_capacity(dispatch.bindings.len());
        for binding in &dispatch.bindings {
            let Some(buffer) = self.buffers.get(binding.buffer.as_str()) else {
                self.sim.reject(&dispatch.kernel, 0, format!("there is no buffer `{}`", binding.buffer));
                return false;
            };
            let (offset, bytes, written) = (binding.offset, binding.bytes, binding.written);
            bindings.push(Bound { buffer: *buffer, offset, bytes, written });
        }
        let sample = match &mut self.samples {
            Some(samples) => samples.take(&mut self.sim.memory, dispatch, &bindings),
            None => None,
        };
        let (scalars, groups) = (&dispatch.scalars, dispatch.groups);
        let counted = self.traffic.as_ref().and_then(|all| all.iter().find(|one| one.is_like(dispatch)));
        let known = counted.map(|counted| counted.traffic);
        self.sim.count_traffic(self.traffic.is_some() && known.is_none());
        let ran =
            self.sim.dispatch_with(&dispatch.kernel, &bindings, scalars, groups, Some(dispatch.threads));
        match (&mut self.traffic, known) {
            (Some(all), None) if ran => all.push(Counted { dispatch, traffic: self.sim.traffic() }),
            (_, Some(traffic)) if ran => self.sim.add_traffic(&dispatch.kernel, traffic),
            _ => {}
        }
        if let (Some(samples), Some(sample)) = (&mut self.samples, sample) {
            samples.keep(sample);
        }
        ran
    }

    fn host_reads(&mut self, pass: &Pass, report: &mut Report) {
        for read in &pass.reads {
            let found = self.buffers.get(read.buffer.as_str());
            let end = read.offset.checked_add(read.bytes);
            let Some((buffer, end)) =
                found.zip(end).filter(|(buffer, end)| *end <= self.sim.memory.size(**buffer))
            else {
                self.sim.reject("host", 0, format!("the host reads beyond the end of `{}`", read.buffer));
                continue;
            };
            if !self.sim.memory.written(*buffer, read.offset, read.bytes) {
                let message = format!(
                    "after pass `{}` the host reads {} bytes at byte {} of `{}`, which is not completely written",
                    pass.label, read.bytes, read.offset, read.buffer
                );
                self.sim.report_uninitialized_read(message);
            }
            let bytes = &self.sim.memory.contents(*buffer)[read.offset..end];
            let values =
                bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            report.reads.push(Values { what: read.what.clone(), values: values.collect() });
        }
    }
}
