//! Limits on the freed memory that the allocator keeps.

/// Makes glibc's allocator return most freed memory to the system.
///
/// By default its thresholds grow with the largest block that was freed, up to 64 MiB for each thread that
/// ever ran. Grammars are compiled on threads of their own, so a server would grow by some hundred megabytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn limit_retained_memory() {
    use std::ffi::c_int;
    const M_TRIM_THRESHOLD: c_int = -1;
    const M_MMAP_THRESHOLD: c_int = -3;
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    // SAFETY: sets two sizes in bytes, which affect only when memory is returned.
    unsafe {
        mallopt(M_MMAP_THRESHOLD, 4 << 20);
        mallopt(M_TRIM_THRESHOLD, 8 << 20);
    }
}

/// Other allocators return freed memory by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn limit_retained_memory() {}
