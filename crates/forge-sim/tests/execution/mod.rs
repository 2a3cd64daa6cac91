//! Kernels of specs as one program, each executed by itself with inputs by name.

#![allow(dead_code)]

use forge_kernels::{Instance, Spec, assemble, render};
use forge_msl::for_language;
use forge_sim::{Counters, Program, Sim};

/// The contents of a kernel's buffer.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    F32(&'a [f32]),
    U32(&'a [u32]),
    Bytes(&'a [u8]),
    /// Bytes that a kernel writes.
    Uninitialized(usize),
}

/// Kernels compiled as one program, by index.
pub(crate) struct Kernels {
    instances: Vec<Instance>,
    pub(crate) program: Program,
}

impl Kernels {
    pub(crate) fn of(specs: impl IntoIterator<Item = Spec>) -> Kernels {
        Kernels::of_language(specs, 300)
    }

    /// As this version of Metal's language sees them.
    pub(crate) fn of_language(specs: impl IntoIterator<Item = Spec>, version: u32) -> Kernels {
        let instance = |(index, spec): (usize, Spec)| {
            render(&format!("kernel_{index}"), &spec).unwrap_or_else(|error| panic!("{error}: {spec:?}"))
        };
        let instances: Vec<Instance> = specs.into_iter().enumerate().map(instance).collect();
        let text = for_language(&assemble(&instances, ""), version);
        let program = Program::compile(&text).unwrap_or_else(|error| panic!("{error}"));
        Kernels { instances, program }
    }

    /// Names of the buffers that a kernel writes, in the order of its results.
    pub(crate) fn written(&self, index: usize) -> Vec<String> {
        let buffers = &self.instances[index].decl.buffers;
        buffers.iter().filter(|buffer| buffer.written).map(|buffer| buffer.name.clone()).collect()
    }

    /// Runs kernel `index` and returns the contents of its writable buffers, in order. Inputs that it does not
    /// have are ignored.
    pub(crate) fn run(
        &self,
        index: usize,
        scalars: &[(&str, usize)],
        inputs: &[(&str, Input<'_>)],
    ) -> Vec<Vec<u8>> {
        let input = |buffer: &str| inputs.iter().find(|(name, _)| *name == buffer).map(|(_, input)| *input);
        self.run_with(index, scalars, |buffer| {
            input(buffer).unwrap_or_else(|| panic!("nothing for {buffer}"))
        })
    }

    /// The same with inputs by a function of the buffer's name.
    pub(crate) fn run_with<'a>(
        &self,
        index: usize,
        scalars: &[(&str, usize)],
        input_of: impl Fn(&str) -> Input<'a>,
    ) -> Vec<Vec<u8>> {
        self.run_counted(index, scalars, input_of).0
    }

    /// The same, with the counters of the dispatch. A GPU has none.
    pub(crate) fn run_counted<'a>(
        &self,
        index: usize,
        scalars: &[(&str, usize)],
        input_of: impl Fn(&str) -> Input<'a>,
    ) -> (Vec<Vec<u8>>, Counters) {
        let Instance { name, spec, decl, .. } = &self.instances[index];
        let mut sim = Sim::new(&self.program).unwrap_or_else(|error| panic!("{error}"));
        let (mut written, mut bindings) = (Vec::new(), Vec::new());
        for buffer in &decl.buffers {
            let id = match input_of(&buffer.name) {
                Input::F32(numbers) => sim.memory.floats(numbers),
                Input::U32(words) => sim.memory.words(words),
                Input::Bytes(bytes) => sim.memory.bytes(bytes),
                Input::Uninitialized(bytes) => sim.memory.unwritten(bytes),
            };
            let id = id.unwrap_or_else(|error| panic!("{error}"));
            written.extend(buffer.written.then_some(id));
            bindings.push(if buffer.written { id.write() } else { id.read() });
        }
        let scalars: Vec<(&str, u32)> = scalars.iter().map(|&(name, value)| (name, value as u32)).collect();
        let value = |name: &String| {
            scalars.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name}")).1
        };
        let values: Vec<u32> = decl.scalars.iter().map(value).collect();
        let groups = decl.grid.each_ref().map(|axis| axis.eval(&scalars).unwrap_or(0));
        sim.dispatch(name, &bindings, &values, groups);
        assert!(sim.faults().is_empty(), "{scalars:?} of {spec:?}: {:?}", sim.faults());
        let written = written.into_iter().map(|id| sim.memory.contents(id).to_vec()).collect();
        (written, sim.counters().get(name).copied().unwrap_or_default())
    }
}

pub(crate) fn to_f32(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|v| f32::from_le_bytes([v[0], v[1], v[2], v[3]])).collect()
}

pub(crate) fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|v| u32::from_le_bytes([v[0], v[1], v[2], v[3]])).collect()
}
