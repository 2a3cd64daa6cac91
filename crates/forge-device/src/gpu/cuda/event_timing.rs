//! GPU timing of launches, with events on the stream.

use crate::gpu::cuda::cuda_graph::LaunchList;
use crate::gpu::cuda::driver::{Address, Driver, Handle, call};
use std::ptr::null_mut;

/// Timing events, destroyed on drop.
struct Clock<'a> {
    driver: &'a Driver,
    stream: Handle,
    events: Vec<Handle>,
}

impl Clock<'_> {
    /// Records an event after all work submitted so far.
    fn note(&mut self) -> Result<(), String> {
        /// `CU_EVENT_DEFAULT`
        const TIMED: u32 = 0;
        let (driver, mut event) = (self.driver, null_mut());
        // SAFETY: the driver writes a handle, and the stream is the device's.
        unsafe {
            call!(driver, cuEventCreate, &mut event, TIMED)?;
            self.events.push(event);
            call!(driver, cuEventRecord, event, self.stream)
        }
    }

    /// Seconds from the first event to each event, once all have been reached.
    fn times(&self) -> Result<Vec<f64>, String> {
        let driver = self.driver;
        let Some((first, last)) = self.events.first().zip(self.events.last()) else { return Ok(Vec::new()) };
        // SAFETY: the events are this clock's and on one stream.
        unsafe { call!(driver, cuEventSynchronize, *last)? };
        let since_first = |event: &Handle| {
            let mut milliseconds = 0.0;
            // SAFETY: as above; the driver writes a number.
            unsafe { call!(driver, cuEventElapsedTime, &mut milliseconds, *first, *event)? };
            Ok(f64::from(milliseconds) / 1e3)
        };
        self.events.iter().map(since_first).collect()
    }
}

impl Drop for Clock<'_> {
    fn drop(&mut self) {
        for event in &self.events {
            // SAFETY: nothing uses the events any more; errors are ignored.
            let _ = unsafe { (self.driver.cuEventDestroy_v2)(*event) };
        }
    }
}

/// Begin and end time of each launch list in seconds. The lists are launched twice: during the first run the
/// host gets ahead of the GPU, so that the second run contains no host time.
pub(crate) fn time_launches(
    driver: &Driver,
    stream: Handle,
    stretches: &[LaunchList],
) -> Result<Vec<[f64; 2]>, String> {
    for launches in stretches {
        launches.start(driver, stream)?;
    }
    let mut clock = Clock { driver, stream, events: Vec::new() };
    clock.note()?;
    for launches in stretches {
        launches.start(driver, stream)?;
        clock.note()?;
    }
    Ok(clock.times()?.windows(2).map(|pair| [pair[0], pair[1]]).collect())
}

/// Memory bandwidth of device-to-device copies in bytes per second, reads plus writes, the fastest of some
/// runs. None if GPU memory is too small.
pub(crate) fn copy_bandwidth(driver: &Driver, stream: Handle) -> Result<Option<f64>, String> {
    /// Larger than the caches.
    const BYTES: usize = 512 << 20;
    const COPIES: usize = 8;
    let mut pieces: [Address; 2] = [0; 2];
    // SAFETY: the driver writes an address of that many bytes.
    let is_allocated = pieces.iter_mut().all(|piece| unsafe { (driver.cuMemAlloc_v2)(piece, BYTES) } == 0);
    let mut clock = Clock { driver, stream, events: Vec::new() };
    let mut measure = || {
        clock.note()?;
        for _ in 0..COPIES {
            // SAFETY: both buffers have that many bytes.
            unsafe { call!(driver, cuMemcpyDtoDAsync_v2, pieces[1], pieces[0], BYTES, stream)? };
            clock.note()?;
        }
        let times = clock.times()?;
        let best = times.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
        Ok(2.0 * BYTES as f64 / best)
    };
    let measured = if is_allocated { measure().map(Some) } else { Ok(None) };
    for piece in pieces.into_iter().filter(|piece| *piece != 0) {
        // SAFETY: the copies have ended.
        let _ = unsafe { (driver.cuMemFree_v2)(piece) };
    }
    measured
}
