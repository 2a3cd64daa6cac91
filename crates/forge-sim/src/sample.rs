//! Samples: single dispatches of a replay with their inputs, which can be executed again in isolation. Mutation tests of a
//! kernel run on them in milliseconds.

use crate::check::fault::Fault;
use crate::compile::program::Program;
use crate::memory::buffers::{Bound, Memory};
use crate::recording::Dispatch;
use crate::sim::Sim;
use std::collections::HashMap;
use std::io;
use std::ops::Range;

/// The input of one binding.
#[derive(Clone, Debug)]
struct SampledBinding {
    bytes: Vec<u8>,
    /// The initialized ranges; `None` for a constant buffer.
    initialized_ranges: Option<Vec<Range<usize>>>,
    written: bool,
    /// An earlier binding of the same bytes, if any.
    same_as: Option<usize>,
}

/// A dispatch with its inputs.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Name of the kernel.
    pub kernel: String,
    given: Vec<SampledBinding>,
    scalars: Vec<u32>,
    groups: [u32; 3],
    threads: u32,
}

/// The result of running a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Faults that the checker found.
    pub faults: Vec<Fault>,
    /// Contents of max_per_kernel writable binding after the dispatch.
    pub left: Vec<Vec<u8>>,
}

/// Collects samples of max_per_kernel kernel that differ in scalars or threadgroups.
#[derive(Debug)]
pub struct Samples {
    max_per_kernel: usize,
    max_bytes: usize,
    kept: HashMap<String, Vec<Sample>>,
}

impl Samples {
    /// Keeps at most `max_per_kernel` samples of a kernel, none with more than `max_bytes` bytes of input.
    pub fn new(max_per_kernel: usize, max_bytes: usize) -> Samples {
        Samples { max_per_kernel, max_bytes, kept: HashMap::new() }
    }

    /// The sample of a dispatch before it runs; `None` if it is not needed.
    pub(crate) fn take(
        &mut self,
        memory: &mut Memory,
        dispatch: &Dispatch,
        bindings: &[Bound],
    ) -> Option<Sample> {
        let kept = self.kept.entry(dispatch.kernel.clone()).or_default();
        let known = |sample: &Sample| sample.scalars == dispatch.scalars && sample.groups == dispatch.groups;
        let bytes: usize = bindings.iter().map(|bound| bound.bytes).sum();
        if kept.len() >= self.max_per_kernel || kept.iter().any(known) || bytes > self.max_bytes {
            return None;
        }
        let mut given: Vec<SampledBinding> = Vec::new();
        for (index, bound) in bindings.iter().enumerate() {
            let end =
                bound.offset.checked_add(bound.bytes).filter(|end| *end <= memory.size(bound.buffer))?;
            let same_as = bindings[..index].iter().position(|other| {
                (other.buffer, other.offset, other.bytes) == (bound.buffer, bound.offset, bound.bytes)
            });
            given.push(SampledBinding {
                bytes: memory.contents(bound.buffer)[bound.offset..end].to_vec(),
                initialized_ranges: memory.initialized_ranges(bound.buffer, bound.offset, bound.bytes),
                written: bound.written,
                same_as,
            });
        }
        Some(Sample {
            kernel: dispatch.kernel.clone(),
            given,
            scalars: dispatch.scalars.clone(),
            groups: dispatch.groups,
            threads: dispatch.threads,
        })
    }

    pub(crate) fn keep(&mut self, sample: Sample) {
        self.kept.entry(sample.kernel.clone()).or_default().push(sample);
    }

    pub(crate) fn finish(self) -> Vec<Sample> {
        let mut all: Vec<Sample> = self.kept.into_values().flatten().collect();
        all.sort_by(|a, b| (&a.kernel, a.groups, &a.scalars).cmp(&(&b.kernel, b.groups, &b.scalars)));
        all
    }
}

impl Sample {
    /// Runs the dispatch with the kernel of the same name in `program`. `limit` is the maximum number of accesses.
    pub fn run(&self, program: &Program, limit: u64) -> io::Result<Outcome> {
        let mut sim = Sim::new(program)?;
        sim.limit(limit);
        let mut bindings: Vec<Bound> = Vec::new();
        for given in &self.given {
            let id = match (given.same_as, &given.initialized_ranges) {
                (Some(earlier), _) => bindings[earlier].buffer,
                (None, None) => sim.memory.constant(&given.bytes)?,
                (None, Some(ranges)) => {
                    let id = sim.memory.unwritten(given.bytes.len())?;
                    for range in ranges {
                        sim.memory.write(id, range.start, &given.bytes[range.clone()]);
                    }
                    id
                }
            };
            bindings.push(if given.written { id.write() } else { id.read() });
        }
        sim.dispatch_with(&self.kernel, &bindings, &self.scalars, self.groups, Some(self.threads));
        let left = bindings
            .iter()
            .filter(|bound| bound.written)
            .map(|bound| sim.memory.contents(bound.buffer).to_vec())
            .collect();
        Ok(Outcome { faults: sim.take_faults(), left })
    }
}
