//! Experts that are read from disk while a pass goes on: the pass ends where the host has to know who was chosen, and goes on when
//! those are in memory.
//!
//! Seats lie in memory that the host and the GPU share (`experts`). Where a kernel is bound to a plane of experts it finds the seats
//! of that plane, and where it is bound to the model's seats, words of the device's own, which say where those experts are that a
//! dispatch is for. A dispatch that reads matrices which are multiplied first waits for all before it; the host reads the
//! routes, has who is missing fetched and writes the words. The dispatch that reads the second matrices finds those of the same
//! experts beside them. With the routes come the logits of the next layer's router, which is shown what this layer's is
//! ([`RouterLookahead`]), and while the GPU goes on, whom they speak of is read.
//!
//! Where rows have more experts than there are seats, the same dispatch is made several times, each time with some of the
//! experts; what belongs to others a kernel leaves alone. So every result is written once, by the same operations as if all were in memory.

use crate::device::Device;
use crate::device::{Binding, Buffer, Span};
use crate::gpu::metal::MetalDevice;
use crate::gpu::metal::buffers::{Mapped, Place, Region};
use crate::gpu::metal::encoder::{Dispatch, Encoding};
use crate::model::{Arena, Layout};
use crate::offload::{BoundPlane, CacheStats, ExpertCache, ExpertStage, ExpertWeights, RouterLookahead};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice};
use std::collections::BTreeSet;
use std::ops::Range;

/// Which of the device's own words a kernel finds in the place of the model's seats.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum SlotTableWrite {
    /// Nobody has one: for who only chooses. What others are being read to meanwhile is left alone.
    Nobody,
    /// Those that a dispatch is for have theirs.
    Seated,
    /// Nothing of seats, and what is written are logits of the next layer.
    Logits,
}

/// Experts that are read from disk, and where.
pub(crate) struct ExpertStreaming {
    /// Over the memory of seats, so it is dropped before that is.
    seats: Region,
    /// What kernels are told: as many words for each way of telling.
    words: Region,
    /// Bytes of those.
    bytes: usize,
    /// Where the model has what these stand in for.
    model: Span<u32>,
    experts: ExpertCache,
    /// Logits of the next layer, and what is known of it.
    logits: Region,
    foresight: Option<RouterLookahead>,
    /// The layer whose rows were asked last who their experts are, and what they said, in order.
    asked: Option<(usize, Vec<Vec<usize>>)>,
    /// The layer and its experts that the words tell of.
    seated: Option<(usize, Vec<usize>)>,
}

/// What is left of a file of `length` bytes where experts are not shown.
pub(crate) fn without_experts(layers: &[ExpertWeights], length: usize) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut from = 0;
    for Range { start, end } in ExpertWeights::places(layers) {
        if start > from {
            parts.push(from..start);
        }
        from = end;
    }
    parts.push(from..length);
    parts.retain(|part| !part.is_empty());
    parts
}

impl ExpertStreaming {
    /// Shows the GPU where experts have seats.
    pub(crate) fn new(
        device: &ProtocolObject<dyn MTLDevice>,
        layout: &Layout,
        mut experts: ExpertCache,
    ) -> Result<ExpertStreaming, String> {
        let (start, length) = experts.region();
        let (name, longest) = ("seats of experts", experts.longest());
        let parts = &[Range { start: 0, end: length }];
        // SAFETY: the memory is of `experts`, which is dropped after the region. What is read ahead goes to seats of nobody whom the layer
        // has that is computed, and all else is read while no pass is on its way.
        let seats = unsafe { Region::over(device, Mapped { name, start, length, parts, longest })? };
        let bytes = layout.seats.bytes.next_multiple_of(Arena::ALIGNMENT);
        let words = Region::own(device, 2 * bytes, "words of seats")?;
        let (memory, _) = words.place(0, 2 * bytes)?;
        // SAFETY: shared buffers have contents, of so many bytes.
        unsafe { std::ptr::write_bytes(memory.contents().cast::<u8>().as_ptr(), 0xff, 2 * bytes) };
        let most = experts.layers().iter().map(RouterLookahead::most_logits).max().unwrap_or(0);
        let logits = Region::own(device, most * size_of::<f32>(), "logits of a next layer")?;
        let (foresight, asked, seated) = (None, None, None);
        Ok(ExpertStreaming {
            seats,
            words,
            bytes,
            model: layout.seats,
            experts,
            logits,
            foresight,
            asked,
            seated,
        })
    }

    /// What the GPU sees.
    pub(crate) fn regions(&self) -> [&Region; 3] {
        [&self.seats, &self.words, &self.logits]
    }

    /// What has been read so far.
    pub(crate) fn counts(&self) -> CacheStats {
        self.experts.counts()
    }

    /// Bytes a second that the disk gives. No pass is on its way.
    pub(crate) fn disk_speed(&mut self) -> Result<f64, String> {
        self.seated = None;
        self.experts.disk_speed()
    }

    /// What is bound in the place of seats, of a plane of experts or of logits; none if it is none of these.
    pub(crate) fn place(&self, binding: &Binding, told: SlotTableWrite) -> Option<Result<Place<'_>, String>> {
        if told == SlotTableWrite::Logits {
            return binding.written.then(|| self.logits.place(0, binding.bytes));
        }
        if (binding.buffer, binding.offset) == (self.model.buffer, self.model.offset) {
            let first = if told == SlotTableWrite::Seated { self.bytes } else { 0 };
            return Some(self.words.place(first, binding.bytes));
        }
        let bound = self.bound(binding)?;
        Some(self.seats.place(bound.offset, bound.bytes))
    }

    /// The plane of experts that is bound, if one is.
    pub(crate) fn bound(&self, binding: &Binding) -> Option<BoundPlane> {
        (binding.buffer == Buffer::Weights).then(|| self.experts.bound(binding.offset)).flatten()
    }

    /// Has those read whom the next layer will probably ask for. What showed it to that layer's router has been waited for.
    fn read_ahead(&mut self) -> Result<(), String> {
        let Some(foresight) = self.foresight.take() else { return Ok(()) };
        let count = foresight.bindings[foresight.logits].bytes / size_of::<f32>();
        let (memory, offset) = self.logits.place(0, count * size_of::<f32>())?;
        // SAFETY: shared buffers have contents, of so many numbers, and no pass that writes them is on its way.
        let logits = unsafe {
            std::slice::from_raw_parts(memory.contents().cast::<u8>().add(offset).cast().as_ptr(), count)
        };
        let likely = foresight.likeliest(self.experts.stacks(foresight.layer), logits);
        self.experts.expect(foresight.layer, &likely)
    }

    /// The experts of each time that a dispatch is made. Where it reads routes a row is computed as a whole, when all of its experts have
    /// seats; rows of other experts are not, so no row is twice. Else rows are taken expert by expert.
    fn rounds(&self, bound: BoundPlane, reads_routes: bool) -> Vec<Vec<usize>> {
        let Some((_, rows)) = &self.asked else { return Vec::new() };
        let stacks = self.experts.stacks(bound.layer);
        let first_shared = stacks.experts - stacks.shared;
        let all: BTreeSet<usize> = rows.iter().flatten().copied().collect();
        let (open, shared): (Vec<usize>, Vec<usize>) = all.iter().partition(|it| **it < first_shared);
        let at_once = self.experts.at_once(bound.layer);
        if open.len() <= at_once {
            return vec![all.into_iter().collect()];
        }
        if reads_routes {
            return rows.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        }
        open.chunks(at_once).map(|some| [some, &shared].concat()).collect()
    }
}

impl MetalDevice {
    /// The plane of experts that a dispatch reads, if they are streamed.
    pub(crate) fn experts_of(&self, bindings: &[Binding]) -> Option<BoundPlane> {
        let streaming = self.streaming.as_ref()?;
        bindings.iter().find_map(|binding| streaming.bound(binding))
    }

    /// What rows have said of their experts, of each in order.
    fn routes(&self, stacks: &ExpertWeights, rows: usize) -> Vec<Vec<usize>> {
        let (routes, chosen) = (stacks.routes, stacks.chosen);
        let words = self.bytes(routes.buffer, routes.offset, rows * 2 * chosen * size_of::<u32>());
        // SAFETY: they are as many words, and no pass is on its way.
        let words = unsafe { std::slice::from_raw_parts(words.cast::<u32>().as_ptr(), rows * 2 * chosen) };
        let experts = |row: &[u32]| -> Vec<usize> {
            let mut experts: Vec<usize> = row[..chosen].iter().map(|expert| *expert as usize).collect();
            experts.sort_unstable();
            experts.dedup();
            experts
        };
        words.chunks_exact(2 * chosen).map(experts).collect()
    }
}

impl Encoding<'_> {
    /// Encodes a dispatch that reads experts, with those that its rows have in memory.
    pub(crate) fn streamed(&mut self, dispatch: Dispatch<'_>, bound: BoundPlane) -> Result<(), String> {
        let streaming = self.streaming()?;
        let stacks = streaming.experts.stacks(bound.layer).clone();
        let is_known = streaming.asked.as_ref().is_some_and(|(layer, _)| *layer == bound.layer);
        let routes = |it: &&Binding| (it.buffer, it.offset) == (stacks.routes.buffer, stacks.routes.offset);
        let routes = dispatch.bindings.iter().find(routes);
        if bound.half == ExpertStage::Inner || !is_known {
            streaming.asked = None;
            if routes.is_some_and(|routes| routes.written) {
                // Every threadgroup chooses by itself, and the first one says whom.
                self.encode(Dispatch { groups: [1; 3], ..dispatch }, Some(SlotTableWrite::Nobody))?;
            }
            self.settle()?;
            let rows = *dispatch.scalars.first().ok_or("it has no rows")? as usize;
            let said = self.device.routes(&stacks, rows);
            if let Some(expert) = said.iter().flatten().find(|expert| **expert >= stacks.experts) {
                return Err(format!("a row is routed to expert {expert} of {}", stacks.experts));
            }
            self.streaming()?.asked = Some((bound.layer, said));
        }
        for experts in self.streaming()?.rounds(bound, routes.is_some()) {
            self.seat(bound, experts)?;
            self.encode(dispatch, Some(SlotTableWrite::Seated))?;
        }
        if bound.half == ExpertStage::Inner { self.streaming()?.read_ahead() } else { Ok(()) }
    }

    /// Where a dispatch is of a router, encodes the same for that of the next layer.
    pub(crate) fn foresee(&mut self, dispatch: Dispatch<'_>) -> Result<(), String> {
        let Some(streaming) = &self.device.streaming else { return Ok(()) };
        let rows = dispatch.scalars.first().map_or(0, |rows| *rows as usize);
        let Some(foresight) = RouterLookahead::of(streaming.experts.layers(), dispatch.bindings, rows) else {
            return Ok(());
        };
        let dispatch = Dispatch { bindings: &foresight.bindings, ..dispatch };
        self.encode(dispatch, Some(SlotTableWrite::Logits))?;
        self.streaming()?.foresight = Some(foresight);
        Ok(())
    }

    /// Has some experts fetched, and kernels told where they are.
    fn seat(&mut self, bound: BoundPlane, experts: Vec<usize>) -> Result<(), String> {
        let streaming = self.streaming()?;
        let wanted = Some((bound.layer, experts));
        if bound.half == ExpertStage::Sum && streaming.seated == wanted {
            // All of them was fetched for the dispatch before.
            return Ok(());
        }
        // Seats change hands, and words are written over.
        self.settle()?;
        let streaming = self.streaming()?;
        streaming.seated = None;
        let experts = wanted.as_ref().map_or(&[][..], |(_, experts)| experts);
        let mut words = vec![u32::MAX; streaming.experts.experts(bound.layer)];
        streaming.experts.fetch(bound, experts, &mut words)?;
        let (memory, offset) = streaming.words.place(streaming.bytes, words.len() * size_of::<u32>())?;
        // SAFETY: the buffer has as many words there, and no pass that reads them is on its way.
        unsafe {
            let to = memory.contents().cast::<u8>().add(offset).cast::<u32>();
            std::ptr::copy_nonoverlapping(words.as_ptr(), to.as_ptr(), words.len());
        }
        streaming.seated = wanted;
        Ok(())
    }

    /// Waits for all that is encoded.
    fn settle(&mut self) -> Result<(), String> {
        self.commit();
        self.device.wait(0)
    }

    fn streaming(&mut self) -> Result<&mut ExpertStreaming, String> {
        self.device.streaming.as_mut().ok_or("experts are not streamed".to_owned())
    }
}
