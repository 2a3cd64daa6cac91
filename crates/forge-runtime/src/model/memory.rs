//! How much memory the machine has, and what the model will take of it.

use crate::error::Error;
use crate::model::Layout;
use crate::weights::WeightFile;

/// Memory of a running model, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The weight file, or what of it is in memory.
    pub weights: u64,
    /// Seats of experts that are streamed from disk.
    pub experts: u64,
    /// What slots remember.
    pub state: u64,
    /// Scratch, and what the host says of a batch.
    pub arena: u64,
}

impl Memory {
    /// What a model with this layout takes.
    pub fn of(weights: &WeightFile, layout: &Layout) -> Memory {
        Memory {
            weights: weights.bytes() as u64,
            experts: 0,
            state: layout.state.bytes() as u64,
            arena: (layout.scratch_bytes + layout.rows_bytes) as u64,
        }
    }

    /// The same where experts have seats and are streamed from disk.
    pub fn with_seats(self, layout: &Layout, seats: u64) -> Memory {
        let experts: usize = layout.experts.iter().map(|stacks| stacks.records.bytes).sum();
        Memory { weights: self.weights - experts as u64, experts: seats, ..self }
    }

    /// All of it.
    pub fn total(self) -> u64 {
        self.weights + self.experts + self.state + self.arena
    }

    /// An error if the machine has less.
    pub fn check(self, context: u32, slots: u32) -> Result<(), Error> {
        let Some(machine) = physical() else { return Ok(()) };
        if self.total() <= machine {
            return Ok(());
        }
        let of = if slots == 1 { String::new() } else { format!(" in {slots} slots") };
        Err(Error::usage(format!(
            "this machine has {} of memory ({machine} bytes), and a context of {context}{of} takes {} ({} bytes): \
             {} weights, {} state and {} scratch bytes; ask for a shorter --ctx-size or fewer --slots",
            human(machine),
            human(self.total()),
            self.total(),
            self.weights + self.experts,
            self.state,
            self.arena,
        )))
    }
}

/// Bytes for people: `1.17 GB`.
pub fn human(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 99.95 { 0 } else { 2 };
    format!("{value:.decimals$} {}", units[unit])
}

/// Bytes of memory of this machine, or of the group of processes that this one is confined to; `None` if the system
/// does not tell.
#[cfg(target_os = "linux")]
pub fn physical() -> Option<u64> {
    let machine = line_of_meminfo("MemTotal:")?;
    Some(machine.min(group_limit().unwrap_or(u64::MAX)))
}

/// Bytes of memory that programs could have; `None` if the system does not tell.
#[cfg(target_os = "linux")]
pub fn available() -> Option<u64> {
    let machine = line_of_meminfo("MemAvailable:")?;
    let group = group_limit().map(|limit| limit.saturating_sub(group_taken().unwrap_or(0)));
    Some(machine.min(group.unwrap_or(u64::MAX)))
}

/// Bytes of memory that programs could have: pages that nobody has, and those that nobody has touched lately; `None` if the system
/// does not tell.
#[cfg(target_vendor = "apple")]
pub fn available() -> Option<u64> {
    /// What is asked for, and how many words the system says of it.
    const OF_PAGES: i32 = 4;
    const WORDS: usize = 38;
    unsafe extern "C" {
        static vm_page_size: usize;
        fn mach_host_self() -> u32;
        fn host_statistics64(host: u32, what: i32, words: *mut u32, count: *mut u32) -> i32;
    }
    let (mut words, mut count) = ([0_u32; WORDS], WORDS as u32);
    // SAFETY: there is room for as many words as `count` says; the size of pages is set before a program begins.
    let (status, page) = unsafe {
        (host_statistics64(mach_host_self(), OF_PAGES, words.as_mut_ptr(), &mut count), vm_page_size)
    };
    let [free, _active, inactive, ..] = words.map(u64::from);
    (status == 0).then_some((free + inactive) * page as u64)
}

/// Bytes of memory that programs could have: unknown here.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
pub fn available() -> Option<u64> {
    None
}

/// Bytes that the group of processes may have, if it is confined.
#[cfg(target_os = "linux")]
fn group_limit() -> Option<u64> {
    std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?.trim().parse().ok()
}

/// Bytes of it that are taken, and not by files, whose pages can be let go.
#[cfg(target_os = "linux")]
fn group_taken() -> Option<u64> {
    let table = std::fs::read_to_string("/sys/fs/cgroup/memory.stat").ok()?;
    table.lines().find_map(|line| line.strip_prefix("anon "))?.trim().parse().ok()
}

/// Bytes that a line of the system's table of memory says.
#[cfg(target_os = "linux")]
fn line_of_meminfo(name: &str) -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Bytes of memory of this machine; `None` if the system does not tell.
#[cfg(target_vendor = "apple")]
pub fn physical() -> Option<u64> {
    use std::ffi::{c_char, c_int, c_void};
    unsafe extern "C" {
        fn sysctlbyname(
            name: *const c_char,
            old: *mut c_void,
            old_bytes: *mut usize,
            new: *mut c_void,
            new_bytes: usize,
        ) -> c_int;
    }
    let (mut bytes, mut size) = (0_u64, size_of::<u64>());
    // SAFETY: the name ends with a zero, and `hw.memsize` is 8 bytes, which is what `bytes` has room for.
    let status = unsafe {
        sysctlbyname(
            c"hw.memsize".as_ptr(),
            std::ptr::from_mut(&mut bytes).cast(),
            &mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    (status == 0).then_some(bytes)
}

/// Bytes of memory of this machine: unknown here.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
pub fn physical() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_well() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (375_123_456, "375 MB"),
            (1_319_000_000, "1.32 GB"),
            (999_600_000, "1.00 GB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn a_model_larger_than_the_machine_is_refused() {
        let memory = Memory { weights: 1 << 60, experts: 0, state: 2, arena: 3 };
        if physical().is_some() {
            let message = memory.check(4096, 2).unwrap_err().to_string();
            assert!(message.contains(&((1_u64 << 60) + 5).to_string()), "{message}");
        }
        assert_eq!(Memory { weights: 1, experts: 0, state: 2, arena: 3 }.check(1, 1), Ok(()));
    }
}
