//! Carries out a recording: the same dispatches on the same bytes in the same order, under the referee.

use crate::checker::Counters;
use crate::fault::Fault;
use crate::memory::{Bound, BufferId};
use crate::program::Program;
use crate::recording::{Command, Dispatch, Pass, Recording, What};
use crate::sample::{Sample, Samples};
use crate::sim::Sim;
use crate::traffic::Traffic;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Where the weight file's bytes are.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'w> {
    /// In this file.
    File(&'w Path),
    /// Here.
    Bytes(&'w [u8]),
}

/// A recording that is being carried out.
pub struct Replay<'p> {
    sim: Sim<'p>,
    recording: &'p Recording,
    buffers: BTreeMap<&'p str, BufferId>,
    samples: Option<Samples>,
    traffic: Option<Vec<Counted<'p>>>,
}

/// A dispatch of the running pass whose traffic was counted. Layers differ in their weights' bytes, not in which of
/// them they touch: a dispatch that is launched as one before it counts as that.
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

/// What the host read after a pass.
#[derive(Clone, Debug, Serialize)]
pub struct Values {
    /// What it is.
    pub what: Option<What>,
    /// As numbers.
    pub values: Vec<f32>,
}

/// A barrier command of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// Number of the pass.
    pub pass: usize,
    /// Number of the command in it.
    pub command: usize,
    /// Whether two dispatches would conflict if it were not there.
    pub needed: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// What the referee found.
    pub faults: Vec<Fault>,
    /// What each kernel did.
    pub counters: BTreeMap<String, Counters>,
    /// What the host read.
    #[serde(skip)]
    pub reads: Vec<Values>,
    /// Every barrier command, and whether it was needed.
    #[serde(skip)]
    pub waits: Vec<Wait>,
    /// Dispatches carried out.
    pub steps: usize,
    /// Where it could not go on, if it could not.
    pub stopped: Option<String>,
}

impl<'p> Replay<'p> {
    /// Makes the recording's buffers.
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
                    "`{name}` has {} bytes and the recording says {}",
                    sim.memory.size(id),
                    size.bytes
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            buffers.insert(name.as_str(), id);
        }
        Ok(Replay { sim, recording, buffers, samples: None, traffic: None })
    }

    /// Keeps what some dispatches of each kernel were given, for faults to be planted in it.
    pub fn sampling(&mut self, samples: Samples) {
        self.samples = Some(samples);
    }

    /// Counts how kernels use device memory. Of the equal dispatches of a pass the first is counted for all.
    pub fn counting_traffic(&mut self) {
        self.traffic = Some(Vec::new());
    }

    /// The dispatches that were kept.
    pub fn into_samples(self) -> Vec<Sample> {
        self.samples.map(Samples::finish).unwrap_or_default()
    }

    /// Carries the recording out. `progress` is told passes and commands done so far.
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
                        report.waits.push(Wait { pass: number, command: index, needed: false });
                    }
                    Command::Dispatch(dispatch) => {
                        report.steps += 1;
                        if !self.dispatch(dispatch) && self.sim.stopped() {
                            report.stopped = Some(format!(
                                "command {index} of pass {number} ({}): `{}` could not go on",
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
        for (wait, needed) in report.waits.iter_mut().zip(self.sim.needed()) {
            wait.needed = *needed;
        }
        report.faults = self.sim.take_faults();
        report.counters = self.sim.counters().clone();
        report
    }

    fn host_writes(&mut self, pass: &Pass) {
        for write in &pass.writes {
            let bytes: Vec<u8> = write.words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let Some(buffer) = self.buffers.get(write.buffer.as_str()) else {
                self.sim.refuse("host", 0, format!("there is no buffer `{}`", write.buffer));
                continue;
            };
            if !self.sim.memory.write(*buffer, write.offset, &bytes) {
                let (offset, count) = (write.offset, bytes.len());
                self.sim.refuse(
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
                self.sim.refuse(&dispatch.kernel, 0, format!("there is no buffer `{}`", binding.buffer));
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
            self.sim.dispatch_with(&dispatch.kernel, &bindings, scalars, groups, Some(dispatch.threads), &[]);
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
                self.sim.refuse("host", 0, format!("the host reads beyond the end of `{}`", read.buffer));
                continue;
            };
            if !self.sim.memory.written(*buffer, read.offset, read.bytes) {
                let message = format!(
                    "after pass `{}` the host reads {} bytes at byte {} of `{}`, which nothing has written whole",
                    pass.label, read.bytes, read.offset, read.buffer
                );
                self.sim.unwritten_read(message);
            }
            let bytes = &self.sim.memory.contents(*buffer)[read.offset..end];
            let values =
                bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            report.reads.push(Values { what: read.what.clone(), values: values.collect() });
        }
    }
}
