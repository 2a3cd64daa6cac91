//! The expert cache: looks experts up and reads the missing ones.
//!
//! A dispatch that binds a layer's experts requests those that it needs. It may wait for all of them, or
//! compute each as it arrives. The experts that the next layer will probably request
//! ([`crate::offload::lookahead`]) are prefetched while the disk is idle. A slot is never reassigned while a
//! read into it is in flight.

use crate::device::offload_stats::CacheStats;
use crate::offload::cache_layout::CacheLayout;
use crate::offload::direct_io::Source;
use crate::offload::eviction::{Expert, SlotTable};
use crate::offload::expert_weights::{ExpertStage, ExpertWeights};
use crate::offload::io_pool::{IoPool, Priority, ReadId, ReadRequest};
use crate::offload::repack::{RepackJob, Repacking};
use crate::offload::usage::UsageStats;
use memmap2::MmapMut;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The cache's size is a multiple of this: the largest page size in use, so that no other allocation shares
/// its last page.
const PAGE: usize = 16384;

/// A plane bound by a dispatch, with its location in the first slot.
#[derive(Clone, Copy, Debug)]
pub struct BoundPlane {
    /// The MoE layer index.
    pub layer: usize,
    /// The stage that the plane belongs to.
    pub stage: ExpertStage,
    /// Its offset in the weight file.
    plane: usize,
    /// Its offset in the first slot, relative to the cache.
    pub offset: usize,
    /// The same as an address.
    pub start: *mut u8,
    /// Bytes from there to the end of the plane in the last slot.
    pub bytes: usize,
}

/// A slot with a read that may be in flight.
pub(super) struct PendingRead {
    pub(super) ticket: ReadId,
    class: usize,
    slot: usize,
    /// The expert being read; `None` if the prefetch was cancelled.
    expert: Option<Expert>,
}

/// The expert cache: slots, eviction state and I/O threads.
pub struct ExpertCache {
    pub(super) layers: Vec<ExpertWeights>,
    pub(super) layout: CacheLayout,
    // Declared before the memory that the threads write to, so that they end before it is unmapped.
    pub(super) io_pool: IoPool,
    region: MmapMut,
    pub(super) slot_tables: Vec<SlotTable>,
    /// The layer and stage of each plane, by its offset in the weight file.
    planes: HashMap<usize, (usize, ExpertStage)>,
    /// The planes that the device repacks, by their offset in the weight file.
    repackings: HashMap<usize, Repacking>,
    source: Arc<dyn Source>,
    /// Reads that may be in flight.
    pub(super) pending: Vec<PendingRead>,
    /// The number of reads so far, used as the next read id.
    next_ticket: ReadId,
    /// Experts missed by the current layer: they are in file order.
    missed: Vec<Expert>,
    pub(super) stats: CacheStats,
    usage: Option<UsageStats>,
}

impl ExpertCache {
    /// Allocates the cache and reads the shared experts. `arrangements` are the planes that the device
    /// repacks, by their offset in the weight file.
    pub fn new(
        layers: &[ExpertWeights],
        layout: CacheLayout,
        source: Arc<dyn Source>,
        arrangements: HashMap<usize, Repacking>,
    ) -> Result<ExpertCache, String> {
        let region = MmapMut::map_anon(layout.bytes().max(1).next_multiple_of(PAGE)).map_err(|error| {
            format!("cannot allocate {} bytes for the expert cache: {error}", layout.bytes())
        })?;
        #[cfg(target_os = "linux")]
        let _ = region.advise(memmap2::Advice::HugePage);
        let mut planes = HashMap::new();
        for (layer, stacks) in layers.iter().enumerate() {
            planes.extend(stacks.gate_up.iter().map(|plane| (plane.offset, (layer, ExpertStage::GateUp))));
            planes.extend(stacks.down.iter().map(|plane| (plane.offset, (layer, ExpertStage::Down))));
        }
        let mut cache = ExpertCache {
            planes,
            repackings: arrangements,
            slot_tables: layout.classes.iter().map(|class| SlotTable::new(class.slots)).collect(),
            io_pool: IoPool::new(source.clone())?,
            layers: layers.to_vec(),
            layout,
            region,
            source,
            pending: Vec::new(),
            next_ticket: 0,
            missed: Vec::new(),
            stats: CacheStats::default(),
            usage: None,
        };
        for (layer, stacks) in layers.iter().enumerate() {
            let shared: Vec<usize> = (stacks.experts - stacks.shared..stacks.experts).collect();
            cache.ensure_cached(layer, &shared)?;
            for expert in shared {
                cache.slot_tables[cache.layout.class_of[layer]].pin((layer, expert));
            }
        }
        cache.drain()?;
        cache.stats = CacheStats::default();
        Ok(cache)
    }

    /// Enables usage counting, and loads the most used experts of earlier runs. `on_progress` gets the bytes read so
    /// far and in total.
    pub fn with_usage(
        mut self,
        usage: UsageStats,
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ExpertCache, String> {
        let mut likely: Vec<Vec<usize>> = vec![Vec::new(); self.layers.len()];
        for (class, slots) in self.slot_tables.iter().enumerate() {
            let experts = usage.most_used(|layer| self.layout.class_of[layer] == class).into_iter();
            for (layer, expert) in experts.take(slots.evictable()) {
                likely[layer].push(expert);
            }
        }
        let bytes: Vec<usize> = likely
            .iter()
            .zip(&self.layers)
            .map(|(some, stacks)| some.len() * stacks.record_bytes())
            .collect();
        for (layer, experts) in likely.iter().enumerate() {
            on_progress(bytes[..layer].iter().sum(), bytes.iter().sum());
            self.ensure_cached(layer, experts)?;
        }
        self.drain()?;
        self.stats = CacheStats::default();
        self.usage = Some(usage);
        Ok(self)
    }

    /// The statistics so far.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    /// The binding of the expert plane at `offset` in the weight file; `None` if it is no expert plane.
    pub fn plane_at(&self, offset: usize) -> Option<BoundPlane> {
        let &(layer, half) = self.planes.get(&offset)?;
        let (stacks, class) = (&self.layers[layer], &self.layout.classes[self.layout.class_of[layer]]);
        let plane = stacks.planes().find(|plane| plane.offset == offset)?;
        let place = stacks.byte_range(plane);
        let first = class.start + place.start;
        // SAFETY: the class lies inside the region.
        let start = unsafe { self.region.as_ptr().cast_mut().add(first) };
        let bytes = (class.slots - 1) * class.record_bytes + place.len();
        Some(BoundPlane { layer, stage: half, plane: offset, offset: first, start, bytes })
    }

    /// Address and length of the cache, in whole pages.
    pub fn region(&mut self) -> (*mut u8, usize) {
        (self.region.as_mut_ptr(), self.region.len())
    }

    /// Bytes of the largest class.
    pub fn largest_class_bytes(&self) -> usize {
        self.layout.classes.iter().map(|class| class.slots * class.record_bytes).max().unwrap_or(0)
    }

    /// All MoE layers.
    pub fn layers(&self) -> &[ExpertWeights] {
        &self.layers
    }

    /// The expert matrices of a layer.
    pub fn weights_of(&self, layer: usize) -> &ExpertWeights {
        &self.layers[layer]
    }

    /// Number of experts of a layer.
    pub fn experts(&self, layer: usize) -> usize {
        self.layers[layer].experts
    }

    /// Number of slots that a layer shares with others of its class.
    pub fn slots(&self, layer: usize) -> usize {
        self.layout.classes[self.layout.class_of[layer]].slots
    }

    /// Number of routed experts of a layer that can be cached at once.
    pub fn capacity(&self, layer: usize) -> usize {
        self.slot_tables[self.layout.class_of[layer]].evictable()
    }

    /// Loads the bound plane of some experts of a layer, waits for all, and writes their slots to
    /// `slots[expert]`. At most [`ExpertCache::capacity`] routed experts, without duplicates.
    pub fn fetch(&mut self, bound: BoundPlane, experts: &[usize], slots: &mut [u32]) -> Result<(), String> {
        for piece in self.request(bound, experts, slots)? {
            // SAFETY: an expert that was found is not being read, and no kernel uses it yet.
            unsafe { piece.run(&mut Vec::new()) };
        }
        let mut remaining = experts.to_vec();
        while !remaining.is_empty() {
            self.wait_any(bound, &mut remaining)?;
        }
        Ok(())
    }

    /// Requests experts without waiting for reads in flight; [`ExpertCache::wait_any`] waits for them. The
    /// returned repack jobs have to run before the experts that are ready are used.
    pub fn request(
        &mut self,
        bound: BoundPlane,
        experts: &[usize],
        slots: &mut [u32],
    ) -> Result<Vec<RepackJob>, String> {
        if bound.stage == ExpertStage::GateUp {
            self.missed.clear();
        }
        self.with_stall_time(|cache| cache.ensure_cached(bound.layer, experts))?;
        if bound.stage == ExpertStage::GateUp {
            let stacks = &self.layers[bound.layer];
            let kept = stacks.experts - stacks.shared;
            let chosen = experts.iter().copied().filter(|expert| *expert < kept);
            let requested = chosen.clone().count();
            self.stats.requests += requested as u64;
            self.stats.hits += (requested - self.missed.len()) as u64;
            self.stats.miss_bytes += (self.missed.len() * stacks.record_bytes()) as u64;
            if let Some(usage) = &mut self.usage {
                usage.record(bound.layer, chosen);
            }
        }
        let class = &self.slot_tables[self.layout.class_of[bound.layer]];
        for expert in experts {
            let slot = class.slot_of((bound.layer, *expert));
            slots[*expert] = slot.ok_or("a requested expert has no cache slot")? as u32;
        }
        Ok(self.repack_jobs(bound.layer, experts))
    }

    /// Whether the bound plane of a cached expert is repacked.
    pub fn is_repacked(&self, bound: BoundPlane, expert: usize) -> bool {
        let slots = &self.slot_tables[self.layout.class_of[bound.layer]];
        self.repackings.contains_key(&bound.plane) && slots.is_repacked((bound.layer, expert))
    }

    /// Repack jobs for cached experts in file order. They are marked as repacked.
    fn repack_jobs(&mut self, layer: usize, experts: &[usize]) -> Vec<RepackJob> {
        let index = self.layout.class_of[layer];
        let (class, stacks, region) =
            (&self.layout.classes[index], &self.layers[layer], self.region.as_mut_ptr());
        let planes = stacks.planes();
        let planes =
            planes.filter_map(|plane| Some((stacks.byte_range(plane), *self.repackings.get(&plane.offset)?)));
        let planes: Vec<_> = planes.collect();
        let mut repack_jobs = Vec::new();
        let is_loaded = |it: &Expert| !self.missed.contains(it) && self.ticket(*it).is_none();
        let loaded: Vec<Expert> = experts.iter().map(|expert| (layer, *expert)).filter(is_loaded).collect();
        for expert in loaded {
            let Some(slot) = self.slot_tables[index].mark_repacked(expert) else { continue };
            for (place, arrangement) in &planes {
                let first = class.start + slot * class.record_bytes + place.start;
                // SAFETY: the slot lies inside the region.
                let pieces = unsafe { RepackJob::split(region.add(first), place.len(), *arrangement) };
                repack_jobs.extend(pieces);
            }
        }
        repack_jobs
    }

    /// Waits until at least one of the requested experts is loaded. Removes the loaded ones from `remaining`
    /// and returns them.
    pub fn wait_any(&mut self, bound: BoundPlane, remaining: &mut Vec<usize>) -> Result<Vec<usize>, String> {
        loop {
            self.collect_completed();
            let ticket = |expert: &usize| self.ticket((bound.layer, *expert));
            let (left, ready) = remaining.iter().partition(|expert| ticket(expert).is_some());
            *remaining = left;
            if !Vec::is_empty(&ready) || remaining.is_empty() {
                return Ok(ready);
            }
            let tickets: Vec<ReadId> = remaining.iter().filter_map(ticket).collect();
            self.with_stall_time(|cache| cache.io_pool.wait_for_any(&tickets))?;
        }
    }

    /// Runs what may wait for the disk, and counts the stall time.
    fn with_stall_time(
        &mut self,
        wait: impl FnOnce(&mut ExpertCache) -> Result<(), String>,
    ) -> Result<(), String> {
        let start = Instant::now();
        let outcome = wait(self);
        self.stats.stall_time += start.elapsed();
        outcome.map_err(|what| self.fail(what))
    }

    /// The read id of an expert, if its read may be in flight.
    pub(super) fn ticket(&self, expert: Expert) -> Option<ReadId> {
        self.pending.iter().find(|read| read.expert == Some(expert)).map(|read| read.ticket)
    }

    /// Removes completed reads.
    pub(super) fn collect_completed(&mut self) {
        let ExpertCache { pending, io_pool, slot_tables, .. } = self;
        pending.retain(|PendingRead { ticket, class, slot, .. }| {
            let is_loaded = io_pool.is_loaded(*ticket);
            if is_loaded {
                slot_tables[*class].mark_loaded(*slot);
            }
            !is_loaded
        });
    }

    /// Allocates slots for experts of a layer that are not cached, and reads them.
    fn ensure_cached(&mut self, layer: usize, experts: &[usize]) -> Result<(), String> {
        let index = self.layout.class_of[layer];
        let others = self.layout.class_of.iter().filter(|class| **class == index).count() - 1;
        self.slot_tables[index].begin_request(experts.len(), others);
        let mut missing = Vec::new();
        for expert in experts.iter().map(|expert| (layer, *expert)) {
            match self.slot_tables[index].lookup(expert) {
                None => missing.push(expert),
                Some(false) => (),
                Some(true) => {
                    self.stats.prefetch_hits += 1;
                    self.missed.push(expert);
                    if let Some(ticket) = self.ticket(expert) {
                        self.io_pool.promote(ticket);
                    }
                }
            }
        }
        self.cancel_prefetches(layer);
        self.slot_tables[index].end_request(layer);
        if missing.is_empty() {
            return Ok(());
        }
        self.source.check()?;
        self.collect_completed();
        // One expert after another, so that the first can be computed while the second is read.
        for expert in missing {
            let slot = match self.slot_tables[index].allocate(expert) {
                Some(slot) => slot,
                None => {
                    // A slot with a read in flight can be evicted when the read is done.
                    self.drain()?;
                    self.slot_tables[index]
                        .allocate(expert)
                        .ok_or("a layer requests more experts than there are cache slots")?
                }
            };
            self.read(expert, slot, Priority::Demand);
            self.missed.push(expert);
        }
        Ok(())
    }

    /// Prefetches experts of a layer, most likely first, when no other reads are queued. Experts of the
    /// current request are not evicted.
    pub fn prefetch(&mut self, layer: usize, likely: &[usize]) -> Result<(), String> {
        let index = self.layout.class_of[layer];
        let likely = likely.iter().map(|expert| (layer, *expert));
        let missing: Vec<Expert> =
            likely.filter(|expert| !self.slot_tables[index].pin_until_used(*expert)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.source.check()?;
        for expert in missing {
            let Some(slot) = self.slot_tables[index].allocate_prefetch(expert) else { break };
            self.read(expert, slot, Priority::Prefetch);
        }
        Ok(())
    }

    /// Starts the read of an expert.
    pub(super) fn read(&mut self, expert: Expert, slot: usize, when: Priority) {
        let (layer, number) = expert;
        let (index, ticket) = (self.layout.class_of[layer], self.next_ticket);
        let class = &self.layout.classes[index];
        let bytes = class.record_bytes;
        let from = (self.layers[layer].records.offset + number * bytes) as u64;
        // SAFETY: the slot lies inside the region.
        let to = unsafe { self.region.as_mut_ptr().add(class.start + slot * bytes) };
        self.next_ticket += 1;
        self.stats.read_bytes += bytes as u64;
        self.pending.push(PendingRead { ticket, class: index, slot, expert: Some(expert) });
        // SAFETY: no kernel uses the evicted expert any more, and the new one is not used before its read is
        // done.
        unsafe {
            self.io_pool.submit(ReadRequest { ticket, file_offset: from, destination: to, bytes }, when)
        };
    }

    /// Cancels prefetches for a layer that have not started.
    fn cancel_prefetches(&mut self, layer: usize) {
        let is_of_layer = |read: &&mut PendingRead| read.expert.is_some_and(|expert| expert.0 == layer);
        for PendingRead { ticket, class, slot, expert } in self.pending.iter_mut().filter(is_of_layer) {
            let bytes = self.io_pool.cancel(*ticket);
            if bytes > 0 {
                self.stats.read_bytes -= bytes as u64;
                self.slot_tables[*class].invalidate(*slot);
                *expert = None;
            }
        }
    }

    /// Waits for all reads.
    pub(super) fn drain(&mut self) -> Result<(), String> {
        self.io_pool.drain()?;
        self.collect_completed();
        Ok(())
    }

    /// Invalidates all experts being read, because their content is undefined.
    pub(super) fn fail(&mut self, what: String) -> String {
        // Later failures add nothing to the first.
        let _ = self.io_pool.drain();
        for PendingRead { class, slot, .. } in std::mem::take(&mut self.pending) {
            self.slot_tables[class].invalidate(slot);
            self.slot_tables[class].mark_loaded(slot);
        }
        format!("experts cannot be read: {what}")
    }
}
