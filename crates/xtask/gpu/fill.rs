//! `programs fill FOLDER`: creates a weight file with random values, to measure speed.
//!
//! The input is `FOLDER/weights.header`, the header of a weight file, and the output
//! `FOLDER/weights.safetensors`. Values are of a magnitude at which activations neither vanish nor overflow,
//! in any format. Quants are arbitrary.

use forge_runtime::error::Error;
use serde_json::{Map, Value};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a thread writes in one call.
const PIECE: u64 = 32 << 20;

pub fn main() -> Result<u8, Error> {
    let folder = std::env::args().nth(2).ok_or_else(|| Error::usage("which folder?"))?;
    fill(Path::new(&folder)).map_err(|error| Error::runtime(format!("{folder}: {error}")))?;
    Ok(0)
}

fn fill(folder: &Path) -> std::io::Result<()> {
    let header = std::fs::read(folder.join("weights.header"))?;
    let text = String::from_utf8_lossy(&header[8..]);
    let tensors: Map<String, Value> = serde_json::from_str(text.trim_end())?;
    let mut places: Vec<(u64, u64, Kind)> = Vec::new();
    for (name, tensor) in tensors.iter().filter(|(name, _)| *name != "__metadata__") {
        let at = |end: usize| tensor["data_offsets"][end].as_u64().unwrap_or(0) + header.len() as u64;
        places.push((at(0), at(1), Kind::of(name, tensor)));
    }
    let file = File::create(folder.join("weights.safetensors"))?;
    file.write_all_at(&header, 0)?;
    let pieces: Vec<(u64, u64, Kind)> = places
        .iter()
        .flat_map(|&(begin, end, kind)| {
            (begin..end).step_by(PIECE as usize).map(move |at| (at, end.min(at + PIECE), kind))
        })
        .collect();
    let next = AtomicU64::new(0);
    let work = || -> std::io::Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(begin, end, kind)) = pieces.get(index as usize) else { return Ok(()) };
            file.write_all_at(&kind.numbers(index, (end - begin) as usize), begin)?;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let begun: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        begun.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })
}

/// Masks for eight random bytes: `keep` selects random bits (signs and low mantissa bits), and `set` sets
/// exponents, so that magnitudes are between a power of two and the next.
#[derive(Clone, Copy)]
struct Kind {
    keep: u64,
    set: u64,
}

impl Kind {
    fn of(name: &str, tensor: &Value) -> Kind {
        let is_vector = tensor["shape"].as_array().is_some_and(|shape| shape.len() == 1);
        let four = |keep: u64, set: u64| Kind { keep: keep * 0x0001_0001_0001_0001, set: set * 0x0001_0001_0001_0001 };
        let two = |keep: u64, set: u64| Kind { keep: keep * 0x0000_0001_0000_0001, set: set * 0x0000_0001_0000_0001 };
        match tensor["dtype"].as_str() {
            // Scales of quants from 2^-12, float weights from 2^-6, norm weights from 0.5.
            Some("F16") if name.ends_with(".scales") => four(0x83ff, 0x0c00),
            Some("F16") => four(0x83ff, 0x2400),
            Some("BF16") if name.ends_with(".scales") => four(0x807f, 0x3980),
            Some("BF16") => four(0x807f, 0x3c80),
            Some("F32") if is_vector => two(0x007f_ffff, 0x3f00_0000),
            Some("F32") => two(0x807f_ffff, 0x3c80_0000),
            _ => Kind { keep: u64::MAX, set: 0 },
        }
    }

    /// Pseudorandom values of this size in bytes, determined by the seed.
    fn numbers(self, seed: u64, bytes: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0xd134_2543_de82_ef95) | 1;
        let mut numbers = Vec::with_capacity(bytes + 8);
        while numbers.len() < bytes {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            numbers.extend((((mixed ^ (mixed >> 31)) & self.keep) | self.set).to_le_bytes());
        }
        numbers.truncate(bytes);
        numbers
    }
}
