//! Experts in their seats: finds those that a layer asks for, and has the others read.
//!
//! A dispatch that binds a layer's experts asks for those that it needs. It may wait for all of them, or take whoever is there while
//! others are read. Whom the next layer will probably ask for ([`crate::offload::lookahead`]) is read ahead, while the disk has nothing else to do.
//! No seat changes hands while it is being read to, so no read ever writes where somebody else sits.

pub(crate) mod disk_bandwidth;
#[cfg(test)]
pub(crate) mod tests;

use crate::device::offload_stats::CacheStats;
use crate::offload::cache_layout::CacheLayout;
use crate::offload::direct_io::Source;
use crate::offload::eviction::{Expert, SlotTable};
use crate::offload::io_pool::{IoPool, Priority, ReadId, ReadRequest};
use crate::offload::repack::{RepackJob, Repacking};
use crate::offload::usage::UsageStats;
use crate::offload::{ExpertStage, ExpertWeights};
use memmap2::MmapMut;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// What the region is a whole number of: the largest pages that systems have, so that nobody else's memory lies in its last one.
const PAGE: usize = 16384;

/// A plane that is bound: whose it is, and where it is in the first seat.
#[derive(Clone, Copy, Debug)]
pub struct BoundPlane {
    /// The layer, of those that have experts.
    pub layer: usize,
    /// Which matrices it is of.
    pub half: ExpertStage,
    /// Where it lies in the weight file.
    plane: usize,
    /// Where in the region that of the first seat begins.
    pub offset: usize,
    /// The same, as an address.
    pub start: *mut u8,
    /// Bytes to the end of that of the last seat.
    pub bytes: usize,
}

/// A seat that may still be read to.
struct PendingRead {
    ticket: ReadId,
    class: usize,
    seat: usize,
    /// Who will sit there; none if nobody wants it any more.
    expert: Option<Expert>,
}

/// The region of seats, and who fills it.
pub struct ExpertCache {
    layers: Vec<ExpertWeights>,
    room: CacheLayout,
    // Before the region that they write to, so that they end before it goes.
    readers: IoPool,
    region: MmapMut,
    seats: Vec<SlotTable>,
    /// The layer that has a plane, and of which matrices it is, by where it lies in the weight file.
    planes: HashMap<usize, (usize, ExpertStage)>,
    /// How the device wants some planes, by where they lie in the weight file.
    arrangements: HashMap<usize, Repacking>,
    source: Arc<dyn Source>,
    /// Reads that may not be done.
    coming: Vec<PendingRead>,
    /// Reads that have been asked for.
    tickets: ReadId,
    /// Those of a layer that nobody asked for before it: they lie as they came from the file.
    fresh: Vec<Expert>,
    counts: CacheStats,
    habits: Option<UsageStats>,
}

impl ExpertCache {
    /// Takes the region, and reads the experts that every row has. The device wants some planes in an order of its own, by where they
    /// lie in the weight file.
    pub fn new(
        layers: &[ExpertWeights],
        room: CacheLayout,
        source: Arc<dyn Source>,
        arrangements: HashMap<usize, Repacking>,
    ) -> Result<ExpertCache, String> {
        let region = MmapMut::map_anon(room.bytes().max(1).next_multiple_of(PAGE))
            .map_err(|error| format!("no memory for experts, {} bytes: {error}", room.bytes()))?;
        #[cfg(target_os = "linux")]
        let _ = region.advise(memmap2::Advice::HugePage);
        let mut planes = HashMap::new();
        for (layer, stacks) in layers.iter().enumerate() {
            planes.extend(stacks.inner.iter().map(|plane| (plane.offset, (layer, ExpertStage::Inner))));
            planes.extend(stacks.sum.iter().map(|plane| (plane.offset, (layer, ExpertStage::Sum))));
        }
        let mut streamed = ExpertCache {
            planes,
            arrangements,
            seats: room.classes.iter().map(|class| SlotTable::new(class.seats)).collect(),
            readers: IoPool::new(source.clone())?,
            layers: layers.to_vec(),
            room,
            region,
            source,
            coming: Vec::new(),
            tickets: 0,
            fresh: Vec::new(),
            counts: CacheStats::default(),
            habits: None,
        };
        for (layer, stacks) in layers.iter().enumerate() {
            let every_row: Vec<usize> = (stacks.experts - stacks.shared..stacks.experts).collect();
            streamed.seat(layer, &every_row)?;
            for expert in every_row {
                streamed.seats[streamed.room.class_of[layer]].keep((layer, expert));
            }
        }
        streamed.settle()?;
        streamed.counts = CacheStats::default();
        Ok(streamed)
    }

    /// Counts who is asked for, and begins with those that were before, as many as have seats; says how many of how many bytes have
    /// been read.
    pub fn with_habits(
        mut self,
        habits: UsageStats,
        told: &mut dyn FnMut(usize, usize),
    ) -> Result<ExpertCache, String> {
        let mut likely: Vec<Vec<usize>> = vec![Vec::new(); self.layers.len()];
        for (class, seats) in self.seats.iter().enumerate() {
            let experts = habits.likeliest(|layer| self.room.class_of[layer] == class).into_iter();
            for (layer, expert) in experts.take(seats.changing()) {
                likely[layer].push(expert);
            }
        }
        let bytes: Vec<usize> =
            likely.iter().zip(&self.layers).map(|(some, stacks)| some.len() * stacks.record()).collect();
        for (layer, experts) in likely.iter().enumerate() {
            told(bytes[..layer].iter().sum(), bytes.iter().sum());
            self.seat(layer, experts)?;
        }
        self.settle()?;
        self.counts = CacheStats::default();
        self.habits = Some(habits);
        Ok(self)
    }

    /// What has been counted so far.
    pub fn counts(&self) -> CacheStats {
        self.counts
    }

    /// What lies in seats of the plane of experts that begins at `offset` of the weight file; none if none does.
    pub fn bound(&self, offset: usize) -> Option<BoundPlane> {
        let &(layer, half) = self.planes.get(&offset)?;
        let (stacks, class) = (&self.layers[layer], &self.room.classes[self.room.class_of[layer]]);
        let plane = stacks.planes().find(|plane| plane.offset == offset)?;
        let place = stacks.place(plane);
        let first = class.start + place.start;
        // SAFETY: the room lies inside the region.
        let start = unsafe { self.region.as_ptr().cast_mut().add(first) };
        let bytes = (class.seats - 1) * class.record + place.len();
        Some(BoundPlane { layer, half, plane: offset, offset: first, start, bytes })
    }

    /// Where the region is, which is whole pages, and how long.
    pub fn region(&mut self) -> (*mut u8, usize) {
        (self.region.as_mut_ptr(), self.region.len())
    }

    /// The most bytes that seats of one size have.
    pub fn longest(&self) -> usize {
        self.room.classes.iter().map(|class| class.seats * class.record).max().unwrap_or(0)
    }

    /// All layers that have experts.
    pub fn layers(&self) -> &[ExpertWeights] {
        &self.layers
    }

    /// The matrices of a layer's experts.
    pub fn stacks(&self, layer: usize) -> &ExpertWeights {
        &self.layers[layer]
    }

    /// Experts of a layer that there are.
    pub fn experts(&self, layer: usize) -> usize {
        self.layers[layer].experts
    }

    /// Seats that a layer's experts may have, with others.
    pub fn seats(&self, layer: usize) -> usize {
        self.room.classes[self.room.class_of[layer]].seats
    }

    /// Experts of a layer that can have seats at once, beside those that every row has.
    pub fn at_once(&self, layer: usize) -> usize {
        self.seats[self.room.class_of[layer]].changing()
    }

    /// Has what is bound of some experts of a layer in memory, and says which seats it is in: `seats[expert]`. They are at most
    /// [`Streamed::at_once`] beside those that every row has, each once.
    pub fn fetch(&mut self, bound: BoundPlane, experts: &[usize], seats: &mut [u32]) -> Result<(), String> {
        for piece in self.ask(bound, experts, seats)? {
            // SAFETY: what is found in its seat is not being read, and nobody else is bound to it yet.
            unsafe { piece.arrange(&mut Vec::new()) };
        }
        let mut coming = experts.to_vec();
        while !coming.is_empty() {
            self.arrived(bound, &mut coming)?;
        }
        Ok(())
    }

    /// The same, of experts who may be on their way for a while: [`Streamed::arrived`] waits for them. What is given back has to be
    /// arranged before those who are there are multiplied.
    pub fn ask(
        &mut self,
        bound: BoundPlane,
        experts: &[usize],
        seats: &mut [u32],
    ) -> Result<Vec<RepackJob>, String> {
        if bound.half == ExpertStage::Inner {
            self.fresh.clear();
        }
        self.waiting(|streamed| streamed.seat(bound.layer, experts))?;
        if bound.half == ExpertStage::Inner {
            let stacks = &self.layers[bound.layer];
            let kept = stacks.experts - stacks.shared;
            let chosen = experts.iter().copied().filter(|expert| *expert < kept);
            let asked = chosen.clone().count();
            self.counts.asked += asked as u64;
            self.counts.found += (asked - self.fresh.len()) as u64;
            self.counts.wanted += (self.fresh.len() * stacks.record()) as u64;
            if let Some(habits) = &mut self.habits {
                habits.ask(bound.layer, chosen);
            }
        }
        let class = &self.seats[self.room.class_of[bound.layer]];
        for expert in experts {
            let seat = class.of((bound.layer, *expert));
            seats[*expert] = seat.ok_or("an expert that is read has no seat")? as u32;
        }
        Ok(self.unarranged(bound.layer, experts))
    }

    /// Whether what is bound of an expert that has a seat is in the device's order.
    pub fn is_arranged(&self, bound: BoundPlane, expert: usize) -> bool {
        let seats = &self.seats[self.room.class_of[bound.layer]];
        self.arrangements.contains_key(&bound.plane) && seats.is_arranged((bound.layer, expert))
    }

    /// What is in the file's order of those experts who are in their seats. It counts as arranged from now on.
    fn unarranged(&mut self, layer: usize, experts: &[usize]) -> Vec<RepackJob> {
        let index = self.room.class_of[layer];
        let (class, stacks, region) =
            (&self.room.classes[index], &self.layers[layer], self.region.as_mut_ptr());
        let planes = stacks.planes();
        let planes =
            planes.filter_map(|plane| Some((stacks.place(plane), *self.arrangements.get(&plane.offset)?)));
        let planes: Vec<_> = planes.collect();
        let mut unarranged = Vec::new();
        let is_there = |it: &Expert| !self.fresh.contains(it) && self.ticket(*it).is_none();
        let there: Vec<Expert> = experts.iter().map(|expert| (layer, *expert)).filter(is_there).collect();
        for expert in there {
            let Some(seat) = self.seats[index].arrange(expert) else { continue };
            for (place, arrangement) in &planes {
                let first = class.start + seat * class.record + place.start;
                // SAFETY: the seat lies inside the region.
                let pieces = unsafe { RepackJob::pieces(region.add(first), place.len(), *arrangement) };
                unarranged.extend(pieces);
            }
        }
        unarranged
    }

    /// Takes those from some experts who were asked for that are in memory, waiting until one is.
    pub fn arrived(&mut self, bound: BoundPlane, coming: &mut Vec<usize>) -> Result<Vec<usize>, String> {
        loop {
            self.note_who_has_come();
            let ticket = |expert: &usize| self.ticket((bound.layer, *expert));
            let (left, here) = coming.iter().partition(|expert| ticket(expert).is_some());
            *coming = left;
            if !Vec::is_empty(&here) || coming.is_empty() {
                return Ok(here);
            }
            let tickets: Vec<ReadId> = coming.iter().filter_map(ticket).collect();
            self.waiting(|streamed| streamed.readers.wait_for_any(&tickets))?;
        }
    }

    /// Does what may wait for the disk, and counts how long it does.
    fn waiting(&mut self, wait: impl FnOnce(&mut ExpertCache) -> Result<(), String>) -> Result<(), String> {
        let start = Instant::now();
        let outcome = wait(self);
        self.counts.stalled += start.elapsed();
        outcome.map_err(|what| self.fail(what))
    }

    /// The read of an expert, if it may not be done.
    fn ticket(&self, expert: Expert) -> Option<ReadId> {
        self.coming.iter().find(|coming| coming.expert == Some(expert)).map(|coming| coming.ticket)
    }

    /// Forgets reads that are done.
    fn note_who_has_come(&mut self) {
        let ExpertCache { coming, readers, seats, .. } = self;
        coming.retain(|PendingRead { ticket, class, seat, .. }| {
            let has_come = readers.has_come(*ticket);
            if has_come {
                seats[*class].has_come(*seat);
            }
            !has_come
        });
    }

    /// Gives seats to those of some experts of a layer that have none, and has them read.
    fn seat(&mut self, layer: usize, experts: &[usize]) -> Result<(), String> {
        let index = self.room.class_of[layer];
        let others = self.room.class_of.iter().filter(|class| **class == index).count() - 1;
        self.seats[index].begin(experts.len(), others);
        let mut missing = Vec::new();
        for expert in experts.iter().map(|expert| (layer, *expert)) {
            match self.seats[index].ask(expert) {
                None => missing.push(expert),
                Some(false) => (),
                Some(true) => {
                    self.counts.foreseen += 1;
                    self.fresh.push(expert);
                    if let Some(ticket) = self.ticket(expert) {
                        self.readers.urge(ticket);
                    }
                }
            }
        }
        self.take_back(layer);
        self.seats[index].has_asked(layer);
        if missing.is_empty() {
            return Ok(());
        }
        self.source.check()?;
        self.note_who_has_come();
        // Expert by expert, so that the first can be multiplied while the second is read.
        for expert in missing {
            let seat = match self.seats[index].take(expert) {
                Some(seat) => seat,
                None => {
                    // Whoever is being read can go when that is done.
                    self.settle()?;
                    self.seats[index]
                        .take(expert)
                        .ok_or("a layer asks for more experts than there are seats")?
                }
            };
            self.read(expert, seat, Priority::Now);
            self.fresh.push(expert);
        }
        Ok(())
    }

    /// Has those of some experts of a layer read that have no seat, the likeliest first, where nothing else is to be read: they may be
    /// asked for next. None of those who were asked for last loses its seat.
    pub fn expect(&mut self, layer: usize, likely: &[usize]) -> Result<(), String> {
        let index = self.room.class_of[layer];
        let likely = likely.iter().map(|expert| (layer, *expert));
        let missing: Vec<Expert> = likely.filter(|expert| !self.seats[index].hold(*expert)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.source.check()?;
        for expert in missing {
            let Some(seat) = self.seats[index].foresee(expert) else { break };
            self.read(expert, seat, Priority::Ahead);
        }
        Ok(())
    }

    /// Has an expert read to its seat.
    fn read(&mut self, expert: Expert, seat: usize, when: Priority) {
        let (layer, number) = expert;
        let (index, ticket) = (self.room.class_of[layer], self.tickets);
        let class = &self.room.classes[index];
        let bytes = class.record;
        let from = (self.layers[layer].records.offset + number * bytes) as u64;
        // SAFETY: the seat lies inside the region.
        let to = unsafe { self.region.as_mut_ptr().add(class.start + seat * bytes) };
        self.tickets += 1;
        self.counts.bytes += bytes as u64;
        self.coming.push(PendingRead { ticket, class: index, seat, expert: Some(expert) });
        // SAFETY: whoever had the seat is not bound any more, and who has it now is waited for.
        unsafe { self.readers.ask(ReadRequest { ticket, from, to, bytes }, when) };
    }

    /// Takes back what is read ahead for a layer, as far as it has not begun.
    fn take_back(&mut self, layer: usize) {
        let of_layer = |coming: &&mut PendingRead| coming.expert.is_some_and(|expert| expert.0 == layer);
        for PendingRead { ticket, class, seat, expert } in self.coming.iter_mut().filter(of_layer) {
            let bytes = self.readers.take_back(*ticket);
            if bytes > 0 {
                self.counts.bytes -= bytes as u64;
                self.seats[*class].vacate(*seat);
                *expert = None;
            }
        }
    }

    /// Waits for all reads.
    fn settle(&mut self) -> Result<(), String> {
        self.readers.settle()?;
        self.note_who_has_come();
        Ok(())
    }

    /// Whoever was being read has no seat: what lies there is not known.
    fn fail(&mut self, what: String) -> String {
        // What fails after the first failure adds nothing to it.
        let _ = self.readers.settle();
        for PendingRead { class, seat, .. } in std::mem::take(&mut self.coming) {
            self.seats[class].vacate(seat);
            self.seats[class].has_come(seat);
        }
        format!("experts cannot be read: {what}")
    }
}
