//! Expert streaming on Metal: a pass stops where the host needs the routing results, and continues when the
//! experts are in memory.
//!
//! Cache slots are in memory that host and GPU share. A binding of an expert plane resolves to the slots of
//! that plane. A binding of the model's slot table resolves to the device's own table, which maps experts to
//! slots for one dispatch. A dispatch that reads the first matrices of experts first waits for all earlier
//! work. The host then reads the routes, fetches missing experts and writes the table. The dispatch for the
//! second matrices finds them in the same slots.
//!
//! The routes come with the logits of the next layer's router on this layer's input ([`RouterLookahead`]).
//! The experts they predict are prefetched while the GPU continues.
//!
//! If rows have more experts than there are slots, the dispatch is repeated, each time with some of the
//! experts. A kernel skips work for experts without a slot. Every result is therefore written once, with the
//! same operations as if all experts were resident.

use crate::device::Device;
use crate::device::{Binding, Buffer, Span};
use crate::gpu::metal::buffers::{Mapped, Place, Region};
use crate::gpu::metal::device::MetalDevice;
use crate::gpu::metal::encoder::{Dispatch, Encoding};
use crate::model::{Arena, Layout};
use crate::offload::{BoundPlane, CacheStats, ExpertCache, ExpertStage, ExpertWeights, RouterLookahead};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice};
use std::collections::BTreeSet;
use std::ops::Range;

/// Which slot table, or lookahead buffer, a dispatch is bound to.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum SlotTableWrite {
    /// An empty slot table, for a dispatch that only routes. Slots that are being filled are not touched.
    Empty,
    /// The table of the experts that the dispatch computes.
    Current,
    /// No table; the output is the next layer's router logits.
    Logits,
}

/// Expert cache and GPU-visible slot tables.
pub(crate) struct ExpertStreaming {
    /// Covers the cache's memory, so it is dropped first.
    slots: Region,
    /// Two slot tables: the empty one and the current one.
    tables: Region,
    /// Bytes per table.
    bytes: usize,
    /// The model's span that the tables replace.
    model: Span<u32>,
    experts: ExpertCache,
    /// Router logits of the next layer, and the lookahead that writes them.
    logits: Region,
    lookahead: Option<RouterLookahead>,
    /// The last layer whose routes were read, and the sorted experts of each row.
    routed: Option<(usize, Vec<Vec<usize>>)>,
    /// The layer and experts in the current slot table.
    current: Option<(usize, Vec<usize>)>,
}

/// The ranges of a file of `length` bytes without the experts.
pub(crate) fn without_experts(layers: &[ExpertWeights], length: usize) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut from = 0;
    for Range { start, end } in ExpertWeights::record_ranges(layers) {
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
    /// Creates GPU buffers over the cache slots, and slot tables.
    pub(crate) fn new(
        device: &ProtocolObject<dyn MTLDevice>,
        layout: &Layout,
        mut experts: ExpertCache,
    ) -> Result<ExpertStreaming, String> {
        let (start, length) = experts.region();
        let (name, longest) = ("expert cache slots", experts.largest_class_bytes());
        let parts = &[Range { start: 0, end: length }];
        // SAFETY: `experts` owns the memory and is dropped after the region. Prefetches go to slots that the
        // current layer does not use, and all other reads happen while no pass is in flight.
        let slots = unsafe { Region::over(device, Mapped { name, start, length, parts, longest })? };
        let bytes = layout.expert_slots.bytes.next_multiple_of(Arena::ALIGNMENT);
        let tables = Region::own(device, 2 * bytes, "expert slot tables")?;
        let (memory, _) = tables.place(0, 2 * bytes)?;
        // SAFETY: shared buffers have contents, of that many bytes.
        unsafe { std::ptr::write_bytes(memory.contents().cast::<u8>().as_ptr(), 0xff, 2 * bytes) };
        let most = experts.layers().iter().map(RouterLookahead::max_logits).max().unwrap_or(0);
        let logits = Region::own(device, most * size_of::<f32>(), "lookahead logits")?;
        let (lookahead, routed, current) = (None, None, None);
        Ok(ExpertStreaming {
            slots,
            tables,
            bytes,
            model: layout.expert_slots,
            experts,
            logits,
            lookahead,
            routed,
            current,
        })
    }

    /// All GPU-visible regions.
    pub(crate) fn regions(&self) -> [&Region; 3] {
        [&self.slots, &self.tables, &self.logits]
    }

    /// The cache counters.
    pub(crate) fn stats(&self) -> CacheStats {
        self.experts.stats()
    }

    /// Measured disk bandwidth in bytes per second; no pass may be in flight.
    pub(crate) fn measure_disk_bandwidth(&mut self) -> Result<f64, String> {
        self.current = None;
        self.experts.measure_disk_bandwidth()
    }

    /// Resolves a binding of a slot table, an expert plane or lookahead logits; none for other bindings.
    pub(crate) fn place(
        &self,
        binding: &Binding,
        table: SlotTableWrite,
    ) -> Option<Result<Place<'_>, String>> {
        if table == SlotTableWrite::Logits {
            return binding.written.then(|| self.logits.place(0, binding.bytes));
        }
        if (binding.buffer, binding.offset) == (self.model.buffer, self.model.offset) {
            let first = if table == SlotTableWrite::Current { self.bytes } else { 0 };
            return Some(self.tables.place(first, binding.bytes));
        }
        let bound = self.bound(binding)?;
        Some(self.slots.place(bound.offset, bound.bytes))
    }

    /// The expert plane that is bound, if any.
    pub(crate) fn bound(&self, binding: &Binding) -> Option<BoundPlane> {
        (binding.buffer == Buffer::Weights).then(|| self.experts.plane_at(binding.offset)).flatten()
    }

    /// Prefetches the experts predicted for the next layer. The lookahead dispatch has completed.
    fn prefetch_predicted(&mut self) -> Result<(), String> {
        let Some(lookahead) = self.lookahead.take() else { return Ok(()) };
        let count = lookahead.bindings[lookahead.logits].bytes / size_of::<f32>();
        let (memory, offset) = self.logits.place(0, count * size_of::<f32>())?;
        // SAFETY: shared buffers have contents, of that many elements, and no pass that writes them is in
        // flight.
        let logits = unsafe {
            std::slice::from_raw_parts(memory.contents().cast::<u8>().add(offset).cast().as_ptr(), count)
        };
        let likely = lookahead.predict(self.experts.weights_of(lookahead.layer), logits);
        self.experts.prefetch(lookahead.layer, &likely)
    }

    /// The experts for each repetition of a dispatch. If the dispatch reads routes, a row is computed at
    /// once, when all of its experts have slots. Other rows are skipped, so no row is computed twice.
    /// Otherwise work is split by expert.
    fn expert_batches(&self, bound: BoundPlane, reads_routes: bool) -> Vec<Vec<usize>> {
        let Some((_, rows)) = &self.routed else { return Vec::new() };
        let stacks = self.experts.weights_of(bound.layer);
        let first_shared = stacks.experts - stacks.shared;
        let all: BTreeSet<usize> = rows.iter().flatten().copied().collect();
        let (open, shared): (Vec<usize>, Vec<usize>) = all.iter().partition(|it| **it < first_shared);
        let capacity = self.experts.capacity(bound.layer);
        if open.len() <= capacity {
            return vec![all.into_iter().collect()];
        }
        if reads_routes {
            return rows.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        }
        open.chunks(capacity).map(|some| [some, &shared].concat()).collect()
    }
}

impl MetalDevice {
    /// The expert plane that a dispatch reads, if experts are streamed.
    pub(crate) fn experts_of(&self, bindings: &[Binding]) -> Option<BoundPlane> {
        let streaming = self.streaming.as_ref()?;
        bindings.iter().find_map(|binding| streaming.bound(binding))
    }

    /// The chosen experts of each row, sorted.
    fn routes(&self, stacks: &ExpertWeights, rows: usize) -> Vec<Vec<usize>> {
        let (routes, chosen) = (stacks.routes, stacks.experts_per_token);
        let words = self.bytes(routes.buffer, routes.offset, rows * 2 * chosen * size_of::<u32>());
        // SAFETY: the range is in bounds, and no pass is in flight.
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
    /// Encodes a dispatch that reads experts, after fetching the experts of its rows.
    pub(crate) fn streamed(&mut self, dispatch: Dispatch<'_>, bound: BoundPlane) -> Result<(), String> {
        let streaming = self.streaming()?;
        let stacks = streaming.experts.weights_of(bound.layer).clone();
        let is_known = streaming.routed.as_ref().is_some_and(|(layer, _)| *layer == bound.layer);
        let routes = |it: &&Binding| (it.buffer, it.offset) == (stacks.routes.buffer, stacks.routes.offset);
        let routes = dispatch.bindings.iter().find(routes);
        if bound.stage == ExpertStage::GateUp || !is_known {
            streaming.routed = None;
            if routes.is_some_and(|routes| routes.written) {
                // Every threadgroup routes by itself, and the first one writes the routes.
                self.encode(Dispatch { groups: [1; 3], ..dispatch }, Some(SlotTableWrite::Empty))?;
            }
            self.finish_commands()?;
            let rows = *dispatch.scalars.first().ok_or("the dispatch has no row count")? as usize;
            let row_experts = self.device.routes(&stacks, rows);
            if let Some(expert) = row_experts.iter().flatten().find(|expert| **expert >= stacks.experts) {
                return Err(format!(
                    "a row is routed to expert {expert}, but there are {} experts",
                    stacks.experts
                ));
            }
            self.streaming()?.routed = Some((bound.layer, row_experts));
        }
        for experts in self.streaming()?.expert_batches(bound, routes.is_some()) {
            self.write_slot_table(bound, experts)?;
            self.encode(dispatch, Some(SlotTableWrite::Current))?;
        }
        if bound.stage == ExpertStage::GateUp { self.streaming()?.prefetch_predicted() } else { Ok(()) }
    }

    /// For a router dispatch, also encodes the next layer's router on the same input.
    pub(crate) fn encode_lookahead(&mut self, dispatch: Dispatch<'_>) -> Result<(), String> {
        let Some(streaming) = &self.device.streaming else { return Ok(()) };
        let rows = dispatch.scalars.first().map_or(0, |rows| *rows as usize);
        let Some(lookahead) = RouterLookahead::of(streaming.experts.layers(), dispatch.bindings, rows) else {
            return Ok(());
        };
        let dispatch = Dispatch { bindings: &lookahead.bindings, ..dispatch };
        self.encode(dispatch, Some(SlotTableWrite::Logits))?;
        self.streaming()?.lookahead = Some(lookahead);
        Ok(())
    }

    /// Fetches some experts and writes the slot table.
    fn write_slot_table(&mut self, bound: BoundPlane, experts: Vec<usize>) -> Result<(), String> {
        let streaming = self.streaming()?;
        let wanted = Some((bound.layer, experts));
        if bound.stage == ExpertStage::Down && streaming.current == wanted {
            // The previous dispatch already fetched complete expert records.
            return Ok(());
        }
        // Slots are reassigned and the table is overwritten.
        self.finish_commands()?;
        let streaming = self.streaming()?;
        streaming.current = None;
        let experts = wanted.as_ref().map_or(&[][..], |(_, experts)| experts);
        let mut words = vec![u32::MAX; streaming.experts.experts(bound.layer)];
        streaming.experts.fetch(bound, experts, &mut words)?;
        let (memory, offset) = streaming.tables.place(streaming.bytes, words.len() * size_of::<u32>())?;
        // SAFETY: the table has that many words, and no pass that reads them is in flight.
        unsafe {
            let to = memory.contents().cast::<u8>().add(offset).cast::<u32>();
            std::ptr::copy_nonoverlapping(words.as_ptr(), to.as_ptr(), words.len());
        }
        streaming.current = wanted;
        Ok(())
    }

    /// Commits and waits for everything encoded.
    fn finish_commands(&mut self) -> Result<(), String> {
        self.commit();
        self.device.wait(0)
    }

    fn streaming(&mut self) -> Result<&mut ExpertStreaming, String> {
        self.device.streaming.as_mut().ok_or("experts are not streamed".to_owned())
    }
}
