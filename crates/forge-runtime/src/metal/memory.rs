//! Memory that the GPU sees: a mapped file, which is never copied, and memory of its own.
//!
//! What the model calls a buffer is a [`Region`] here. It lies in one of Metal's buffers; or, where a file is longer than
//! those may be, in several over the same mapping, which overlap so far that whatever is bound lies in one of them.

use memmap2::Mmap;
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::NSError;
use objc2_metal::{
    MTLBuffer, MTLCommandQueue, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor, MTLResourceOptions,
};
use std::ptr::NonNull;

/// What buffers over mapped memory have to be a whole number of.
const PAGE: usize = 16384;

type Memory = Retained<ProtocolObject<dyn MTLBuffer>>;

/// Bytes that the GPU sees.
pub(super) struct Region {
    /// What it holds.
    name: &'static str,
    views: Vec<Memory>,
    /// Where a view begins, a multiple of this; one view has all bytes, or what begins before the next lies in it whole.
    stride: usize,
    /// All bytes, as the model counts them.
    length: usize,
}

impl Region {
    /// A mapped file, of which no more than `longest` bytes are bound at once.
    pub(super) fn over(
        device: &ProtocolObject<dyn MTLDevice>,
        map: &Mmap,
        longest: usize,
    ) -> Result<Region, String> {
        let (start, length) = (map.as_ptr().cast_mut(), map.len().next_multiple_of(PAGE));
        let most = device.maxBufferLength() / PAGE * PAGE;
        let stride = match length <= most {
            true => length.max(PAGE),
            false => most.saturating_sub(longest.next_multiple_of(PAGE)),
        };
        if stride == 0 {
            return Err(format!("a weight of {longest} bytes, and this GPU takes buffers of at most {most}"));
        }
        let view = |from: usize| {
            let length = (length - from).min(most);
            // SAFETY: it lies inside the mapping.
            let start = NonNull::new(unsafe { start.add(from) }).ok_or("the weight file is empty")?;
            // SAFETY: mappings start on pages and end on pages, whatever the length of the file; the device keeps the map
            // for as long as the buffer, and no kernel writes it.
            unsafe {
                device.newBufferWithBytesNoCopy_length_options_deallocator(
                    start.cast(),
                    length,
                    MTLResourceOptions::StorageModeShared,
                    None,
                )
            }
            .ok_or_else(|| format!("Metal gave no buffer over {length} bytes of the weights"))
        };
        let views: Result<_, String> = (0..length).step_by(stride).map(view).collect();
        Ok(Region { name: "weights", views: views?, stride, length: map.len() })
    }

    /// Memory of its own.
    pub(super) fn own(
        device: &ProtocolObject<dyn MTLDevice>,
        length: usize,
        name: &'static str,
    ) -> Result<Region, String> {
        let most = device.maxBufferLength();
        if length > most {
            return Err(format!("{name}: {length} bytes, and this GPU takes buffers of at most {most}"));
        }
        let memory = device
            .newBufferWithLength_options(length.max(16), MTLResourceOptions::StorageModeShared)
            .ok_or_else(|| format!("Metal gave no memory for {name}, {length} bytes"))?;
        Ok(Region { name, views: vec![memory], stride: length.max(1), length })
    }

    /// The buffer that has these bytes, and where in it they begin.
    pub(super) fn place(
        &self,
        offset: usize,
        bytes: usize,
    ) -> Result<(&ProtocolObject<dyn MTLBuffer>, usize), String> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.length) {
            return Err(format!("bytes {offset}..+{bytes} of {}, which has {}", self.name, self.length));
        }
        let view = (offset / self.stride).min(self.views.len() - 1);
        let (memory, offset) = (&*self.views[view], offset - view * self.stride);
        if offset + bytes > memory.length() {
            return Err(format!("{bytes} bytes of {}, which end in another of Metal's buffers", self.name));
        }
        Ok((memory, offset))
    }
}

/// Has the system keep all of it where the GPU finds it, for as long as there is the queue, rather than ask of each pass what
/// it uses. Systems before macOS 15 ask.
pub(super) fn keep_resident(
    device: &ProtocolObject<dyn MTLDevice>,
    queue: &ProtocolObject<dyn MTLCommandQueue>,
    regions: &[Region],
) -> Result<(), String> {
    if !device.respondsToSelector(sel!(newResidencySetWithDescriptor:error:)) {
        return Ok(());
    }
    let explain =
        |error: Retained<NSError>| format!("Metal keeps nothing resident: {}", error.localizedDescription());
    let set =
        device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new()).map_err(explain)?;
    for memory in regions.iter().flat_map(|region| &region.views) {
        set.addAllocation(ProtocolObject::from_ref(&**memory));
    }
    set.commit();
    set.requestResidency();
    queue.addResidencySet(&set);
    Ok(())
}
