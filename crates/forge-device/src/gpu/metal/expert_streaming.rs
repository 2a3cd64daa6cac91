//! Expert streaming on Metal: the GPU waits where the host needs the routing results, and continues when the
//! experts are in memory.
//!
//! Cache slots are in memory that host and GPU share. A binding of an expert plane resolves to the slots of
//! that plane. A binding of the model's slot table resolves to the device's own table, which maps experts to
//! slots for one dispatch.
//!
//! Before a dispatch that reads the first matrices of experts, the GPU signals a shared event: the routes are
//! written. Then it waits for the event's next value. The host reads the routes, fetches missing experts,
//! writes the table and sets that value. It does so when it has committed the commands up to the next layer's
//! routes, so that the GPU finds them ready. The dispatch for the second matrices finds its experts in the
//! same slots.
//!
//! The routes come with the logits of the next layer's router on this layer's input ([`RouterLookahead`]).
//! The experts they predict are prefetched while the GPU continues.
//!
//! If rows may have more experts than there are slots, or with `FORGE_METAL_EVENTS=0`, the pass ends before the
//! dispatch. The host waits for it, and repeats the dispatch as often as needed, each time with some of the
//! experts. A kernel skips work for experts without a slot. Every result is therefore written once, with the
//! same operations as if all experts were resident.

use crate::device::Device;
use crate::device::{Binding, Buffer, Span};
use crate::gpu::metal::buffers::{Mapped, Place, Region};
use crate::gpu::metal::device::MetalDevice;
use crate::gpu::metal::encoder::{Dispatch, Encoding};
use crate::model::{Arena, Layout};
use crate::offload::{BoundPlane, CacheStats, ExpertCache, ExpertStage, ExpertWeights, RouterLookahead};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLCommandBuffer, MTLDevice, MTLEvent, MTLSharedEvent};
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

/// The variable that disables shared events, with value 0.
const EVENTS: &str = "FORGE_METAL_EVENTS";

/// How long to wait for the shared event before looking for an error of the GPU, in milliseconds.
const EVENT_TIMEOUT: u64 = 100;

/// The experts of a layer that the GPU waits for.
pub(crate) struct ExpertRequest {
    bound: BoundPlane,
    rows: usize,
    /// The lookahead whose logits come with the routes.
    lookahead: Option<RouterLookahead>,
    /// Value of the shared event when the routes are written. The host sets the next one.
    routed: u64,
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
    /// Has an odd value while the GPU waits for experts.
    event: Retained<ProtocolObject<dyn MTLSharedEvent>>,
    uses_events: bool,
    /// Value of the event after the last request.
    event_value: u64,
    request: Option<ExpertRequest>,
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
        // current layer does not use. All other reads happen while the GPU is idle or waits for the event.
        let slots = unsafe { Region::over(device, Mapped { name, start, length, parts, longest })? };
        let bytes = layout.expert_slots.bytes.next_multiple_of(Arena::ALIGNMENT);
        let tables = Region::own(device, 2 * bytes, "expert slot tables")?;
        let (memory, _) = tables.place(0, 2 * bytes)?;
        // SAFETY: shared buffers have contents, of that many bytes.
        unsafe { std::ptr::write_bytes(memory.contents().cast::<u8>().as_ptr(), 0xff, 2 * bytes) };
        let most = experts.layers().iter().map(RouterLookahead::max_logits).max().unwrap_or(0);
        let logits = Region::own(device, most * size_of::<f32>(), "lookahead logits")?;
        let event = device.newSharedEvent().ok_or("cannot create a Metal shared event")?;
        let uses_events = std::env::var_os(EVENTS).is_none_or(|value| value != "0");
        let (lookahead, routed, current, request, event_value) = (None, None, None, None, 0);
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
            event,
            uses_events,
            event_value,
            request,
        })
    }

    /// The shared event, as command buffers use it.
    pub(crate) fn event(&self) -> &ProtocolObject<dyn MTLEvent> {
        ProtocolObject::from_ref(&*self.event)
    }

    /// Whether the GPU waits for the experts of a layer.
    fn is_requested(&self, layer: usize) -> bool {
        self.request.as_ref().is_some_and(|request| request.bound.layer == layer)
    }

    /// Whether the GPU can wait for the experts of these rows: there are slots for all of them, whatever they choose.
    fn can_request(&self, layer: usize, rows: usize) -> bool {
        let stacks = self.experts.weights_of(layer);
        self.uses_events
            && (rows * stacks.routed_per_token()).min(stacks.experts - stacks.shared)
                <= self.experts.capacity(layer)
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

    /// The experts predicted for the next layer. The lookahead dispatch has completed.
    fn predicted(&self, lookahead: &RouterLookahead) -> Result<Vec<usize>, String> {
        let count = lookahead.bindings[lookahead.logits].bytes / size_of::<f32>();
        let (memory, offset) = self.logits.place(0, count * size_of::<f32>())?;
        // SAFETY: shared buffers have contents, of that many elements. The GPU is idle or waits for the event.
        let logits = unsafe {
            std::slice::from_raw_parts(memory.contents().cast::<u8>().add(offset).cast().as_ptr(), count)
        };
        Ok(lookahead.predict(self.experts.weights_of(lookahead.layer), logits))
    }

    /// Fetches some experts and writes the current slot table.
    fn fetch(&mut self, bound: BoundPlane, experts: Vec<usize>) -> Result<(), String> {
        self.current = None;
        let mut words = vec![u32::MAX; self.experts.experts(bound.layer)];
        self.experts.fetch(bound, &experts, &mut words)?;
        let (memory, offset) = self.tables.place(self.bytes, words.len() * size_of::<u32>())?;
        // SAFETY: the table has that many words. The GPU is idle or waits for the event.
        unsafe {
            let to = memory.contents().cast::<u8>().add(offset).cast::<u32>();
            std::ptr::copy_nonoverlapping(words.as_ptr(), to.as_ptr(), words.len());
        }
        self.current = Some((bound.layer, experts));
        Ok(())
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

    /// Waits until the GPU has written the routes of a request.
    fn wait_for_routes(&self, routed: u64) -> Result<(), String> {
        let streaming = self.streaming.as_ref().ok_or("experts are not streamed")?;
        while !streaming.event.waitUntilSignaledValue_timeoutMS(routed, EVENT_TIMEOUT) {
            // After an error the GPU does not signal.
            if self.underway.iter().any(|submitted| submitted.commands.error().is_some()) {
                return Err("the GPU did not finish a pass".to_owned());
            }
        }
        Ok(())
    }

    /// The chosen experts of each row, sorted.
    fn routes(&self, stacks: &ExpertWeights, rows: usize) -> Result<Vec<Vec<usize>>, String> {
        let (routes, chosen) = (stacks.routes, stacks.experts_per_token);
        let words = self.bytes(routes.buffer, routes.offset, rows * 2 * chosen * size_of::<u32>());
        // SAFETY: the range is in bounds, and the GPU is idle or waits for the event.
        let words = unsafe { std::slice::from_raw_parts(words.cast::<u32>().as_ptr(), rows * 2 * chosen) };
        let experts = |row: &[u32]| -> Vec<usize> {
            let mut experts: Vec<usize> = row[..chosen].iter().map(|expert| *expert as usize).collect();
            experts.sort_unstable();
            experts.dedup();
            experts
        };
        let rows: Vec<Vec<usize>> = words.chunks_exact(2 * chosen).map(experts).collect();
        match rows.iter().flatten().find(|expert| **expert >= stacks.experts) {
            Some(expert) => {
                Err(format!("a row is routed to expert {expert}, but there are {} experts", stacks.experts))
            }
            None => Ok(rows),
        }
    }
}

impl Encoding<'_> {
    /// Encodes a dispatch that reads experts. The experts of its rows are fetched before it runs.
    pub(crate) fn streamed(&mut self, dispatch: Dispatch<'_>, bound: BoundPlane) -> Result<(), String> {
        let streaming = self.streaming()?;
        if bound.stage == ExpertStage::Down && streaming.is_requested(bound.layer) {
            return self.encode(dispatch, Some(SlotTableWrite::Current));
        }
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
            let rows = *dispatch.scalars.first().ok_or("the dispatch has no row count")? as usize;
            if self.streaming()?.can_request(bound.layer, rows) {
                self.request_experts(bound, rows)?;
                return self.encode(dispatch, Some(SlotTableWrite::Current));
            }
            self.finish_commands()?;
            self.streaming()?.routed = Some((bound.layer, self.device.routes(&stacks, rows)?));
        }
        for experts in self.streaming()?.expert_batches(bound, routes.is_some()) {
            self.write_slot_table(bound, experts)?;
            self.encode(dispatch, Some(SlotTableWrite::Current))?;
        }
        if bound.stage == ExpertStage::GateUp
            && let Some(lookahead) = self.streaming()?.lookahead.take()
        {
            let likely = self.streaming()?.predicted(&lookahead)?;
            self.streaming()?.experts.prefetch(lookahead.layer, &likely)?;
        }
        Ok(())
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

    /// Lets the commands that follow wait for the experts of these rows. Serves the previous request, whose commands
    /// are committed now.
    fn request_experts(&mut self, bound: BoundPlane, rows: usize) -> Result<(), String> {
        let streaming = self.streaming()?;
        let routed = streaming.event_value + 1;
        streaming.event_value = routed + 1;
        let request = ExpertRequest { bound, rows, lookahead: streaming.lookahead.take(), routed };
        self.commit_and_signal(routed)?;
        self.serve_request()?;
        self.streaming()?.request = Some(request);
        Ok(())
    }

    /// Fetches the requested experts, if any, and lets the GPU continue, also after an error.
    pub(crate) fn serve_request(&mut self) -> Result<(), String> {
        let request = self.device.streaming.as_mut().and_then(|streaming| streaming.request.take());
        let Some(request) = request else { return Ok(()) };
        let likely = self.fetch_requested(&request);
        let streaming = self.streaming()?;
        streaming.event.setSignaledValue(request.routed + 1);
        match request.lookahead.zip(likely?) {
            Some((lookahead, likely)) => streaming.experts.prefetch(lookahead.layer, &likely),
            None => Ok(()),
        }
    }

    /// Reads the routes of a request, fetches the experts and writes the slot table. Returns the experts predicted for
    /// the next layer. The next layer's commands overwrite routes and logits, so all of this comes before the
    /// signal.
    fn fetch_requested(&mut self, request: &ExpertRequest) -> Result<Option<Vec<usize>>, String> {
        let ExpertRequest { bound, rows, lookahead, routed } = request;
        self.device.wait_for_routes(*routed)?;
        let stacks = self.streaming()?.experts.weights_of(bound.layer).clone();
        let experts: BTreeSet<usize> = self.device.routes(&stacks, *rows)?.into_iter().flatten().collect();
        let streaming = self.streaming()?;
        streaming.fetch(*bound, experts.into_iter().collect())?;
        lookahead.as_ref().map(|lookahead| streaming.predicted(lookahead)).transpose()
    }

    /// Fetches some experts and writes the slot table, while the GPU is idle.
    fn write_slot_table(&mut self, bound: BoundPlane, experts: Vec<usize>) -> Result<(), String> {
        let in_table = self.streaming()?.current.as_ref();
        if bound.stage == ExpertStage::Down
            && in_table.is_some_and(|(layer, current)| (*layer, current) == (bound.layer, &experts))
        {
            // The previous dispatch already fetched complete expert records.
            return Ok(());
        }
        // Slots are reassigned and the table is overwritten.
        self.finish_commands()?;
        self.streaming()?.fetch(bound, experts)
    }

    /// Commits and waits for everything encoded.
    fn finish_commands(&mut self) -> Result<(), String> {
        self.commit();
        self.serve_request()?;
        self.device.wait(0)
    }

    fn streaming(&mut self) -> Result<&mut ExpertStreaming, String> {
        self.device.streaming.as_mut().ok_or("experts are not streamed".to_owned())
    }
}
