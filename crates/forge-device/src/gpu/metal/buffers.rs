//! GPU-visible memory: no-copy buffers over mapped memory, and allocated buffers.
//!
//! A model buffer is a [`Region`]. It is one Metal buffer, or several overlapping ones if a mapping exceeds
//! Metal's maximum buffer length. The overlap ensures that every binding is within one buffer. Parts of a
//! mapping can be left out; then no buffer covers them.

use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBuffer, MTLCommandQueue, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor, MTLResource,
    MTLResourceOptions,
};
use std::ops::Range;
use std::ptr::NonNull;

/// Alignment of no-copy buffers in bytes.
const PAGE: usize = 16384;

type Memory = Retained<ProtocolObject<dyn MTLBuffer>>;

/// A residency set.
pub(crate) type ResidencySet = Retained<ProtocolObject<dyn MTLResidencySet>>;

/// A Metal buffer and an offset in it.
pub(crate) type Place<'a> = (&'a ProtocolObject<dyn MTLBuffer>, usize);

/// A model buffer in GPU-visible memory.
pub(crate) struct Region {
    /// Name for errors.
    name: &'static str,
    /// Sorted by start. A binding that begins before the next view is entirely in the previous one.
    views: Vec<View>,
    /// Length in bytes, as the model counts them.
    length: usize,
}

/// A Metal buffer, and the offset of its first byte in the region.
struct View {
    start: usize,
    memory: Memory,
}

/// Page-aligned mapped memory, which must stay valid while the GPU uses it. Pages are whole, whatever the
/// length.
#[derive(Clone, Copy)]
pub(crate) struct Mapped<'a> {
    /// Name for errors.
    pub(crate) name: &'static str,
    pub(crate) start: *mut u8,
    pub(crate) length: usize,
    /// The covered ranges, in order.
    pub(crate) parts: &'a [Range<usize>],
    /// The largest binding in bytes.
    pub(crate) longest: usize,
}

impl Region {
    /// Creates no-copy buffers over mapped memory.
    ///
    /// # Safety
    /// The memory must outlive the region, and bytes that a pass in flight reads must not change.
    pub(crate) unsafe fn over(
        device: &ProtocolObject<dyn MTLDevice>,
        mapped: Mapped<'_>,
    ) -> Result<Region, String> {
        let Mapped { name, start, length, parts, longest } = mapped;
        let most = device.maxBufferLength() / PAGE * PAGE;
        let view = |from: usize, length: usize| -> Result<View, String> {
            // SAFETY: the address is within the mapping.
            let start = NonNull::new(unsafe { start.add(from) }).ok_or(format!("{name}: no memory"))?;
            // SAFETY: the range is page-aligned and no kernel writes it; the rest is the caller's contract.
            let memory = unsafe {
                device.newBufferWithBytesNoCopy_length_options_deallocator(
                    start.cast(),
                    length,
                    MTLResourceOptions::StorageModeShared,
                    None,
                )
            };
            let memory = memory
                .ok_or_else(|| format!("cannot create a Metal buffer over {length} bytes of {name}"))?;
            memory.setLabel(Some(&NSString::from_str(name)));
            Ok(View { start: from, memory })
        };
        let mut views = Vec::new();
        for part in parts {
            let (first, end) = (part.start / PAGE * PAGE, part.end.next_multiple_of(PAGE));
            let stride = match end - first <= most {
                true => (end - first).max(PAGE),
                false => most.saturating_sub(longest.next_multiple_of(PAGE)),
            };
            if stride == 0 {
                return Err(format!(
                    "{name}: a binding of {longest} bytes exceeds this GPU's buffer limit of {most} bytes"
                ));
            }
            for from in (first..end).step_by(stride) {
                views.push(view(from, (end - from).min(most))?);
            }
        }
        Ok(Region { name, views, length })
    }

    /// Allocates a buffer.
    pub(crate) fn own(
        device: &ProtocolObject<dyn MTLDevice>,
        length: usize,
        name: &'static str,
    ) -> Result<Region, String> {
        let most = device.maxBufferLength();
        if length > most {
            return Err(format!("{name}: {length} bytes exceed this GPU's buffer limit of {most} bytes"));
        }
        let memory = device
            .newBufferWithLength_options(length.max(16), MTLResourceOptions::StorageModeShared)
            .ok_or_else(|| format!("Metal cannot allocate {length} bytes for {name}"))?;
        memory.setLabel(Some(&NSString::from_str(name)));
        Ok(Region { name, views: vec![View { start: 0, memory }], length })
    }

    /// The Metal buffer that contains a range, and the offset in it.
    pub(crate) fn place(&self, offset: usize, bytes: usize) -> Result<Place<'_>, String> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.length) {
            return Err(format!(
                "bytes {offset}..+{bytes} are out of range: {} has {} bytes",
                self.name, self.length
            ));
        }
        let after = self.views.partition_point(|view| view.start <= offset);
        let shown = after.checked_sub(1).map(|view| &self.views[view]);
        let (memory, offset) = shown
            .map(|view| (&*view.memory, offset - view.start))
            .ok_or("the range is not mapped for the GPU")?;
        if offset + bytes > memory.length() {
            return Err(format!("{bytes} bytes of {} cross the end of a Metal buffer", self.name));
        }
        Ok((memory, offset))
    }
}

/// Makes all regions resident while the queue exists, instead of tracking residency per pass. Before macOS
/// 15 and iOS 18 there are no residency sets, and in virtual machines they cannot be created: Metal then tracks
/// residency per pass.
pub(crate) fn keep_resident(
    device: &ProtocolObject<dyn MTLDevice>,
    queue: &ProtocolObject<dyn MTLCommandQueue>,
    regions: &[&Region],
) -> Option<ResidencySet> {
    if !device.respondsToSelector(sel!(newResidencySetWithDescriptor:error:)) {
        return None;
    }
    let set = device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new()).ok()?;
    for view in regions.iter().flat_map(|region| &region.views) {
        set.addAllocation(ProtocolObject::from_ref(&*view.memory));
    }
    set.commit();
    set.requestResidency();
    queue.addResidencySet(&set);
    Some(set)
}
