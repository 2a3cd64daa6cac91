//! Memory that the GPU sees: mapped files, which are never copied, and buffers of its own.

use memmap2::Mmap;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResourceOptions};
use std::ptr::NonNull;

/// What buffers over mapped memory have to be a whole number of.
const PAGE: usize = 16384;

pub(super) type Memory = Retained<ProtocolObject<dyn MTLBuffer>>;

/// A buffer over mapped memory.
pub(super) fn over(device: &ProtocolObject<dyn MTLDevice>, map: &Mmap) -> Result<Memory, String> {
    let length = map.len().next_multiple_of(PAGE);
    check_length(device, length, "the weights")?;
    let start = NonNull::new(map.as_ptr().cast_mut().cast()).ok_or("the weight file is empty")?;
    // SAFETY: mappings start on pages and end on pages, whatever the length of the file; the device keeps the map
    // for as long as the buffer, and no kernel writes it.
    unsafe {
        device.newBufferWithBytesNoCopy_length_options_deallocator(
            start,
            length,
            MTLResourceOptions::StorageModeShared,
            None,
        )
    }
    .ok_or_else(|| format!("Metal gave no buffer over the weights, {length} bytes"))
}

/// A buffer of its own.
pub(super) fn memory(
    device: &ProtocolObject<dyn MTLDevice>,
    bytes: usize,
    what: &str,
) -> Result<Memory, String> {
    check_length(device, bytes, what)?;
    device
        .newBufferWithLength_options(bytes.max(16), MTLResourceOptions::StorageModeShared)
        .ok_or_else(|| format!("Metal gave no memory for {what}, {bytes} bytes"))
}

fn check_length(device: &ProtocolObject<dyn MTLDevice>, bytes: usize, what: &str) -> Result<(), String> {
    let most = device.maxBufferLength();
    if bytes > most {
        return Err(format!("{what}: {bytes} bytes, and this GPU takes buffers of at most {most}"));
    }
    Ok(())
}
