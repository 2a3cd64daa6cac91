//! Kernels of norms, RoPE, attention and elementwise functions against plain f64. The kernel checker must
//! find no faults.

mod append;
mod attend;
mod latents;
mod mla_expanded;
mod norms;
mod prologue;
mod recurrent;
mod shape;
mod shapes;

use forge_kernels::{Instance, Spec, assemble, render};
use forge_ops::{Format, LongContext, Pairing, RopeParameters};
use forge_sim::{Program, Sim};
use half::f16;

/// Positions of a slot.
pub(crate) const CONTEXT: usize = 160;
/// Slots of a cache.
pub(crate) const SLOTS: usize = 2;

/// Reproducible pseudorandom numbers between -1 and 1.
pub(crate) struct Random(u32);

impl Random {
    pub(crate) fn number(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// The contents of a buffer, or the number of bytes that a kernel writes.
pub(crate) enum Input<'a> {
    F32(&'a [f32]),
    U32(&'a [u32]),
    /// Initial contents of a buffer that is read and written.
    Bytes(&'a [u8]),
    Uninitialized(usize),
}

/// Kernels compiled as one program, by index.
pub(crate) struct Kernels {
    pub(crate) instances: Vec<Instance>,
    pub(crate) program: Program,
}

impl Kernels {
    pub(crate) fn of(specs: impl IntoIterator<Item = Spec>) -> Kernels {
        let instances: Vec<Instance> = specs
            .into_iter()
            .enumerate()
            .map(|(i, spec)| render(&format!("kernel_{i}"), &spec).unwrap_or_else(|error| panic!("{error}")))
            .collect();
        let program = Program::compile(&assemble(&instances, "")).unwrap_or_else(|error| panic!("{error}"));
        Kernels { instances, program }
    }

    /// Runs kernel `index` and returns the contents of its writable buffers, in order.
    pub(crate) fn run(
        &self,
        index: usize,
        scalars: &[(&str, usize)],
        inputs: &[(&str, Input<'_>)],
    ) -> Vec<Vec<u8>> {
        let instance = &self.instances[index];
        let mut sim = Sim::new(&self.program).unwrap_or_else(|error| panic!("{error}"));
        let mut written = Vec::new();
        let mut bindings = Vec::new();
        for buffer in &instance.decl.buffers {
            let (_, content) = inputs
                .iter()
                .find(|(name, _)| *name == buffer.name)
                .unwrap_or_else(|| panic!("nothing for {}", buffer.name));
            let id = match content {
                Input::F32(numbers) => sim.memory.floats(numbers),
                Input::U32(words) => sim.memory.words(words),
                Input::Bytes(bytes) => sim.memory.bytes(bytes),
                Input::Uninitialized(bytes) => sim.memory.unwritten(*bytes),
            };
            let id = id.unwrap_or_else(|error| panic!("{error}"));
            if buffer.written {
                written.push(id);
            }
            bindings.push(if buffer.written { id.write() } else { id.read() });
        }
        let scalars: Vec<(&str, u32)> = scalars.iter().map(|&(name, value)| (name, value as u32)).collect();
        let value = |name: &String| {
            scalars.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name}")).1
        };
        let values: Vec<u32> = instance.decl.scalars.iter().map(value).collect();
        let groups = [0, 1, 2].map(|axis| instance.decl.grid[axis].eval(&scalars).unwrap_or(0));
        sim.dispatch(&instance.name, &bindings, &values, groups);
        assert!(sim.faults().is_empty(), "{:?}: {:?}", instance.spec, sim.faults());
        written.into_iter().map(|id| sim.memory.contents(id).to_vec()).collect()
    }
}

pub(crate) fn to_f32(bytes: &[u8], format: Format) -> Vec<f32> {
    match format {
        Format::F16 => bytes.chunks_exact(2).map(|v| f16::from_le_bytes([v[0], v[1]]).to_f32()).collect(),
        _ => bytes.chunks_exact(4).map(|v| f32::from_le_bytes([v[0], v[1], v[2], v[3]])).collect(),
    }
}

pub(crate) fn bytes_of(numbers: &[f32], format: Format) -> Vec<u8> {
    match format {
        Format::F16 => numbers.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        _ => numbers.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

pub(crate) fn to_f64(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().copied().map(f64::from).collect()
}

/// Compares values, with a tolerance relative to those expected. Equal infinities are equal.
pub(crate) fn compare(what: &dyn std::fmt::Debug, found: &[f32], expected: &[f64], error: f64) {
    assert_eq!(found.len(), expected.len(), "{what:?}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(*found) - expected).abs();
        assert!(
            f64::from(*found) == *expected || off <= error * expected.abs().max(1.0),
            "{what:?}: number {index} is {found}, not {expected}"
        );
    }
}

pub(crate) fn rope_parameters(pairs: usize, pairing: Pairing, magnitude: f32) -> RopeParameters {
    let frequencies = (0..pairs).map(|k| 10_000f32.powf(-(k as f32) / pairs as f32)).collect();
    RopeParameters { frequencies, pairing, magnitude, long: None }
}

/// RoPE with other frequencies for contexts beyond this length.
pub(crate) fn long(original_context: usize) -> RopeParameters {
    let plain = rope_parameters(8, Pairing::Half, 1.25);
    let frequencies = plain.frequencies.iter().map(|frequency| frequency / 7.0).collect();
    RopeParameters { long: Some(LongContext::LongRope { original_context, frequencies }), ..plain }
}

/// RoPE with dynamic scaling for contexts beyond this length.
pub(crate) fn with_attention_factor(original_context: usize) -> RopeParameters {
    RopeParameters {
        long: Some(LongContext::DynamicNtk { original_context, factor: 3.5 }),
        ..rope_parameters(8, Pairing::Half, 1.0)
    }
}

pub(crate) fn normed(x: &[f64], gain: Option<&[f32]>, epsilon: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
    x.iter().enumerate().map(|(i, v)| v * factor * gain.map_or(1.0, |gain| f64::from(gain[i]))).collect()
}

pub(crate) fn rotated(head: &[f64], rope: &RopeParameters, position: u32) -> Vec<f64> {
    let pairs = rope.frequencies.len();
    let mut rotated = head.to_vec();
    for (k, frequency) in rope.within(CONTEXT).iter().enumerate() {
        let (one, other) = match rope.pairing {
            Pairing::Half => (k, k + pairs),
            Pairing::Interleaved => (2 * k, 2 * k + 1),
        };
        let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
        let magnitude = f64::from(rope.magnitude);
        rotated[one] = (head[one] * cosine - head[other] * sine) * magnitude;
        rotated[other] = (head[other] * cosine + head[one] * sine) * magnitude;
    }
    rotated
}
