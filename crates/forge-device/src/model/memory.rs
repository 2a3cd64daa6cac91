//! Memory needed by a model, and memory of the machine.
//!
//! iOS ends an app that uses more memory than its limit, which is lower than the machine's memory. There,
//! [`available`] is what is left of that limit.

use crate::error::Error;
use crate::model::layout::Layout;
use crate::weights::WeightFile;

/// Memory use of a loaded model in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The weight file, or the part of it that is kept in memory.
    pub weights: u64,
    /// The expert cache, if experts are streamed.
    pub experts: u64,
    /// KV caches and recurrent states.
    pub state: u64,
    /// Scratch, and the buffer of batch inputs and outputs.
    pub arena: u64,
}

impl Memory {
    /// The memory use of a model with this layout.
    pub fn of(weights: &WeightFile, layout: &Layout) -> Memory {
        Memory {
            weights: weights.bytes() as u64,
            experts: 0,
            state: layout.state.bytes() as u64,
            arena: (layout.scratch_bytes + layout.rows_bytes) as u64,
        }
    }

    /// The same with experts on disk and an expert cache of `cache_bytes` bytes.
    pub fn with_expert_cache(self, layout: &Layout, cache_bytes: u64) -> Memory {
        let experts: usize = layout.experts.iter().map(|stacks| stacks.records.bytes).sum();
        Memory { weights: self.weights - experts as u64, experts: cache_bytes, ..self }
    }

    /// The total in bytes.
    pub fn total(self) -> u64 {
        self.weights + self.experts + self.state + self.arena
    }

    /// An error if a GPU may use less memory than needed. Passes of such a model would fail, or move memory in
    /// and out.
    pub fn check_gpu(self, gpu: &GpuMemory, context: u32, slots: u32) -> Result<(), Error> {
        /// Memory that the system and other programs take of the GPU's, in MiB.
        const OTHERS: u64 = 512;
        if self.total() <= gpu.bytes {
            return Ok(());
        }
        let remedy = raise_gpu_limit(cfg!(target_os = "ios"), self.total().div_ceil(1 << 20) + OTHERS);
        Err(Error::usage(format!(
            "not enough GPU memory: {} may use {} ({} bytes) without paging; {}; use a smaller --ctx-size or fewer \
             --slots, or, if the machine has more memory, {remedy}",
            gpu.name,
            format_bytes(gpu.bytes),
            gpu.bytes,
            self.needs(context, slots),
        )))
    }

    /// The parts of the needed memory, for errors.
    fn needs(self, context: u32, slots: u32) -> String {
        let of = if slots == 1 { String::new() } else { format!(" in {slots} slots") };
        format!(
            "a context of {context}{of} needs {} ({} bytes): {} bytes of weights, {} of KV cache and state, {} of scratch",
            format_bytes(self.total()),
            self.total(),
            self.weights + self.experts,
            self.state,
            self.arena,
        )
    }

    /// An error if the machine has less memory than needed, or if this process may use less.
    pub fn check(self, context: u32, slots: u32) -> Result<(), Error> {
        self.check_process(left_of_process_limit(), context, slots)?;
        let Some(machine) = physical() else { return Ok(()) };
        if self.total() <= machine {
            return Ok(());
        }
        Err(Error::usage(format!(
            "not enough memory: this machine has {} ({machine} bytes); {}; use a smaller --ctx-size or fewer --slots",
            format_bytes(machine),
            self.needs(context, slots),
        )))
    }

    /// An error if `left` bytes are left of this process's memory limit and more are needed. The mapped weight
    /// file is counted as if all of it were in memory.
    fn check_process(self, left: Option<u64>, context: u32, slots: u32) -> Result<(), Error> {
        let Some(left) = left.filter(|left| self.total() > *left) else { return Ok(()) };
        Err(Error::usage(format!(
            "not enough memory: this app may use {} ({left} bytes) more; {}; use a smaller --ctx-size or fewer --slots, \
             or sign the app with the entitlement {MEMORY_ENTITLEMENT}",
            format_bytes(left),
            self.needs(context, slots),
        )))
    }
}

/// The entitlement that raises the memory limit of an iOS app, on devices that support it.
const MEMORY_ENTITLEMENT: &str = "com.apple.developer.kernel.increased-memory-limit";

/// How to raise the memory limit of an Apple GPU to `mebibytes`.
fn raise_gpu_limit(is_ios: bool, mebibytes: u64) -> String {
    match is_ios {
        true => format!("sign the app with the entitlement {MEMORY_ENTITLEMENT}"),
        false => {
            format!("raise the limit until the next restart: sudo sysctl iogpu.wired_limit_mb={mebibytes}")
        }
    }
}

/// Memory of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// Name of the device.
    pub name: String,
    /// Bytes that it may use.
    pub bytes: u64,
}

/// Formats bytes with a unit: `1.17 GB`.
pub fn format_bytes(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 99.95 { 0 } else { 2 };
    format!("{value:.decimals$} {}", units[unit])
}

/// Physical memory in bytes, or the cgroup limit if that is lower; `None` if unknown.
#[cfg(target_os = "linux")]
pub fn physical() -> Option<u64> {
    let machine = meminfo("MemTotal:")?;
    Some(machine.min(cgroup_limit().unwrap_or(u64::MAX)))
}

/// Available memory in bytes; `None` if unknown.
#[cfg(target_os = "linux")]
pub fn available() -> Option<u64> {
    let machine = meminfo("MemAvailable:")?;
    let group = cgroup_limit().map(|limit| limit.saturating_sub(cgroup_used().unwrap_or(0)));
    Some(machine.min(group.unwrap_or(u64::MAX)))
}

/// Available memory in bytes: what is left of this process's limit; `None` if unknown.
#[cfg(target_os = "ios")]
pub fn available() -> Option<u64> {
    left_of_process_limit()
}

/// Bytes that this process may use before the system ends it; `None` if no limit is known, as in a simulator.
#[cfg(target_os = "ios")]
fn left_of_process_limit() -> Option<u64> {
    unsafe extern "C" {
        fn os_proc_available_memory() -> usize;
    }
    // SAFETY: the function takes no arguments and exists from iOS 13 on.
    let left = unsafe { os_proc_available_memory() };
    (left > 0).then_some(left as u64)
}

/// Only iOS limits the memory of a process and reports what is left of it.
#[cfg(not(target_os = "ios"))]
fn left_of_process_limit() -> Option<u64> {
    None
}

/// Available memory in bytes: free and inactive pages; `None` if unknown.
#[cfg(all(target_vendor = "apple", not(target_os = "ios")))]
pub fn available() -> Option<u64> {
    /// `HOST_VM_INFO64`, and its number of 32-bit words.
    const HOST_VM_INFO64: i32 = 4;
    const WORDS: usize = 38;
    unsafe extern "C" {
        static vm_page_size: usize;
        fn mach_host_self() -> u32;
        fn host_statistics64(host: u32, what: i32, words: *mut u32, count: *mut u32) -> i32;
    }
    let (mut words, mut count) = ([0_u32; WORDS], WORDS as u32);
    // SAFETY: `words` has `count` words; `vm_page_size` is set before a program starts.
    let (status, page) = unsafe {
        (host_statistics64(mach_host_self(), HOST_VM_INFO64, words.as_mut_ptr(), &mut count), vm_page_size)
    };
    let [free, _active, inactive, ..] = words.map(u64::from);
    (status == 0).then_some((free + inactive) * page as u64)
}

/// Available memory is unknown on this system.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
pub fn available() -> Option<u64> {
    None
}

/// The cgroup memory limit in bytes, if there is one.
#[cfg(target_os = "linux")]
fn cgroup_limit() -> Option<u64> {
    std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?.trim().parse().ok()
}

/// Anonymous memory of the cgroup in bytes. Page cache can be reclaimed and is not counted.
#[cfg(target_os = "linux")]
fn cgroup_used() -> Option<u64> {
    let table = std::fs::read_to_string("/sys/fs/cgroup/memory.stat").ok()?;
    table.lines().find_map(|line| line.strip_prefix("anon "))?.trim().parse().ok()
}

/// A value of /proc/meminfo in bytes.
#[cfg(target_os = "linux")]
fn meminfo(name: &str) -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Physical memory in bytes; `None` if unknown.
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
    // SAFETY: the name is null-terminated, and `hw.memsize` is 8 bytes, as large as `bytes`.
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

/// Physical memory is unknown on this system.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
pub fn physical() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_are_readable() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (375_123_456, "375 MB"),
            (1_319_000_000, "1.32 GB"),
            (999_600_000, "1.00 GB"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
    }

    #[test]
    fn rejects_models_larger_than_the_gpus_memory() {
        let gpu = GpuMemory { name: "Apple M1".to_owned(), bytes: 6 << 30 };
        let memory = Memory { weights: 6 << 30, experts: 0, state: 0, arena: 0 };
        assert_eq!(memory.check_gpu(&gpu, 4096, 1), Ok(()));
        let memory = Memory { state: 1, ..memory };
        let message = memory.check_gpu(&gpu, 4096, 2).unwrap_err().to_string();
        let limit = 6 * 1024 + 1 + 512;
        for part in ["Apple M1 may use 6.44 GB", "4096 in 2 slots", &format!("iogpu.wired_limit_mb={limit}")]
        {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn errors_on_ios_name_the_entitlement() {
        let memory = Memory { weights: 3 << 30, experts: 0, state: 1, arena: 0 };
        for left in [None, Some(memory.total()), Some(u64::MAX)] {
            assert_eq!(memory.check_process(left, 4096, 1), Ok(()));
        }
        let message = memory.check_process(Some(3 << 30), 4096, 1).unwrap_err().to_string();
        for part in ["may use 3.22 GB (3221225472 bytes) more", "needs 3.22 GB", MEMORY_ENTITLEMENT] {
            assert!(message.contains(part), "{message}");
        }
        let remedy = raise_gpu_limit(true, 3584);
        assert!(remedy.contains(MEMORY_ENTITLEMENT) && !remedy.contains("sysctl"), "{remedy}");
    }

    #[test]
    fn rejects_models_larger_than_memory() {
        let memory = Memory { weights: 1 << 60, experts: 0, state: 2, arena: 3 };
        if physical().is_some() {
            let message = memory.check(4096, 2).unwrap_err().to_string();
            assert!(message.contains(&((1_u64 << 60) + 5).to_string()), "{message}");
        }
        assert_eq!(Memory { weights: 1, experts: 0, state: 2, arena: 3 }.check(1, 1), Ok(()));
    }
}
