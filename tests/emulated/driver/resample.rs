//! Repeated sampling from the same logits: the dispatch that sampled the last token is submitted repeatedly, with other random
//! numbers.

use forge_runtime::device::{Binding, Device, Schedule};
use forge_runtime::sampling::device_sampling::{DeviceSampling, TokenWeights};
use forge_runtime::measure::capture::CapturingDevice;

/// The tokens that host and device select for each draw, from the logits of the last token.
pub fn resample(capturing: &mut CapturingDevice<Box<dyn Device>>, draws: &[DeviceSampling]) -> Result<Vec<[u32; 2]>, String> {
    let notes = capturing.take().into_iter().flat_map(|pass| pass.dispatches);
    let drawing = notes.filter(|note| note.kernel.buffers.contains(&"draws")).last();
    let drawing = drawing.ok_or("nothing has been drawn")?;
    let binding = |name: &str| {
        let place = drawing.kernel.buffers.iter().position(|buffer| *buffer == name);
        place.map(|place| drawing.bindings[place]).ok_or(format!("{} has no {name}", drawing.kernel.name))
    };
    let [logits, words, id] = [binding("logits")?, binding("draws")?, binding("ids")?];
    let device = capturing.device();
    let logits: Vec<f32> = read(device, logits).into_iter().map(f32::from_bits).collect();
    let mut weights = TokenWeights::default();
    let choose = |draw: &DeviceSampling| {
        let bytes: Vec<u8> = draw.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        device.write(words.buffer, words.offset, &bytes);
        device.run(Schedule::Decode, &mut |pass| drawing.encode(pass))?;
        Ok([weights.draw(&logits, draw), read(device, id)[0]])
    };
    draws.iter().map(choose).collect()
}

fn read(device: &mut Box<dyn Device>, Binding { buffer, offset, bytes, .. }: Binding) -> Vec<u32> {
    let mut read = vec![0; bytes];
    device.read(buffer, offset, &mut read);
    read.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}
