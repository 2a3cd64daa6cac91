//! Memory that the GPU sees: mapped memory, which is never copied, and memory of its own.
//!
//! What the model calls a buffer is a [`Region`] here. It lies in one of Metal's buffers; or, where a mapping is longer than
//! those may be, in several over it, which overlap so far that whatever is bound lies in one of them. Of a mapping parts may be
//! left out, which no buffer shows then.

use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::NSError;
use objc2_metal::{
    MTLBuffer, MTLCommandQueue, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor, MTLResourceOptions,
};
use std::ops::Range;
use std::ptr::NonNull;

/// What buffers over mapped memory have to be a whole number of.
const PAGE: usize = 16384;

type Memory = Retained<ProtocolObject<dyn MTLBuffer>>;

/// One of Metal's buffers, and which of its bytes something begins with.
pub(crate) type Place<'a> = (&'a ProtocolObject<dyn MTLBuffer>, usize);

/// Bytes that the GPU sees.
pub(crate) struct Region {
    /// What it holds.
    name: &'static str,
    /// In the order of where they begin; what begins before the next one lies whole in the one before it.
    views: Vec<View>,
    /// All bytes, as the model counts them.
    length: usize,
}

/// One of Metal's buffers, and which byte it begins with.
struct View {
    start: usize,
    memory: Memory,
}

/// Mapped memory, which begins on a page and ends on one, whatever its length is: it is the device's for as long as the GPU sees it.
#[derive(Clone, Copy)]
pub(crate) struct Mapped<'a> {
    /// What it holds.
    pub(crate) name: &'static str,
    pub(crate) start: *mut u8,
    pub(crate) length: usize,
    /// What of it is shown, in order.
    pub(crate) parts: &'a [Range<usize>],
    /// The most bytes that are bound at once.
    pub(crate) longest: usize,
}

impl Region {
    /// Mapped memory.
    ///
    /// # Safety
    /// It has to be there for as long as the region, and nobody changes what a pass on its way reads.
    pub(crate) unsafe fn over(
        device: &ProtocolObject<dyn MTLDevice>,
        mapped: Mapped<'_>,
    ) -> Result<Region, String> {
        let Mapped { name, start, length, parts, longest } = mapped;
        let most = device.maxBufferLength() / PAGE * PAGE;
        let view = |from: usize, length: usize| -> Result<View, String> {
            // SAFETY: it lies inside the mapping.
            let start = NonNull::new(unsafe { start.add(from) }).ok_or(format!("{name}: no memory"))?;
            // SAFETY: it starts on a page and ends on one; no kernel writes it, and of the rest there is the caller's promise.
            let memory = unsafe {
                device.newBufferWithBytesNoCopy_length_options_deallocator(
                    start.cast(),
                    length,
                    MTLResourceOptions::StorageModeShared,
                    None,
                )
            };
            let memory =
                memory.ok_or_else(|| format!("Metal gave no buffer over {length} bytes of {name}"))?;
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
                    "{name}: {longest} bytes at once, and this GPU takes buffers of at most {most}"
                ));
            }
            for from in (first..end).step_by(stride) {
                views.push(view(from, (end - from).min(most))?);
            }
        }
        Ok(Region { name, views, length })
    }

    /// Memory of its own.
    pub(crate) fn own(
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
        Ok(Region { name, views: vec![View { start: 0, memory }], length })
    }

    /// The buffer that has these bytes, and where in it they begin.
    pub(crate) fn place(&self, offset: usize, bytes: usize) -> Result<Place<'_>, String> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.length) {
            return Err(format!("bytes {offset}..+{bytes} of {}, which has {}", self.name, self.length));
        }
        let after = self.views.partition_point(|view| view.start <= offset);
        let shown = after.checked_sub(1).map(|view| &self.views[view]);
        let (memory, offset) =
            shown.map(|view| (&*view.memory, offset - view.start)).ok_or("bytes before all that is shown")?;
        if offset + bytes > memory.length() {
            return Err(format!("{bytes} bytes of {}, which end in another of Metal's buffers", self.name));
        }
        Ok((memory, offset))
    }
}

/// Has the system keep all of it where the GPU finds it, for as long as there is the queue, rather than ask of each pass what
/// it uses. Systems before macOS 15 ask.
pub(crate) fn keep_resident(
    device: &ProtocolObject<dyn MTLDevice>,
    queue: &ProtocolObject<dyn MTLCommandQueue>,
    regions: &[&Region],
) -> Result<(), String> {
    if !device.respondsToSelector(sel!(newResidencySetWithDescriptor:error:)) {
        return Ok(());
    }
    let explain =
        |error: Retained<NSError>| format!("Metal keeps nothing resident: {}", error.localizedDescription());
    let set =
        device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new()).map_err(explain)?;
    for view in regions.iter().flat_map(|region| &region.views) {
        set.addAllocation(ProtocolObject::from_ref(&*view.memory));
    }
    set.commit();
    set.requestResidency();
    queue.addResidencySet(&set);
    Ok(())
}
