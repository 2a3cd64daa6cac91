//! The slot table of the expert cache: which expert is in which slot, and which is evicted.
//!
//! Eviction is LRU. When the layers together request more experts than there are slots, as in prefill,
//! eviction is MRU: layers run in order, so the least recently used expert is the next one needed.

use std::collections::HashMap;

/// A layer and an expert of it.
pub(crate) type Expert = (usize, usize);

/// The slots of one class.
#[derive(Clone, Debug)]
pub(crate) struct SlotTable {
    slot_by_expert: HashMap<Expert, usize>,
    slots: Vec<CacheSlot>,
    /// The number of requests so far.
    clock: u64,
    /// Whether eviction is MRU: layers request more experts than there are slots.
    is_mru: bool,
    pinned: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct CacheSlot {
    expert: Option<Expert>,
    /// The request that used it last, or for which it was prefetched.
    last_used: u64,
    /// `last_used` before a prefetch, until its layer's next request.
    last_used_before_prefetch: Option<u64>,
    /// Whether it is repacked.
    is_repacked: bool,
    /// Whether a read into it may be in flight; the slot cannot be reassigned.
    is_loading: bool,
    /// Whether it was prefetched and its layer has made no request since.
    is_prefetched: bool,
}

/// The `last_used` of pinned experts.
const PINNED: u64 = u64::MAX;

impl SlotTable {
    /// A table of empty slots.
    pub(crate) fn new(count: usize) -> SlotTable {
        SlotTable {
            slot_by_expert: HashMap::new(),
            slots: vec![CacheSlot::default(); count],
            clock: 0,
            is_mru: false,
            pinned: 0,
        }
    }

    /// Number of slots that are not pinned.
    pub(crate) fn evictable(&self) -> usize {
        self.slots.len() - self.pinned
    }

    /// The slot of an expert, if it is cached.
    pub(crate) fn slot_of(&self, expert: Expert) -> Option<usize> {
        self.slot_by_expert.get(&expert).copied()
    }

    /// Starts a request. The experts of one request do not evict each other. `others`: layers of this class
    /// that request as many experts in turn.
    pub(crate) fn begin_request(&mut self, experts: usize, others: usize) {
        self.clock += 1;
        self.is_mru = experts * (1 + others) > self.evictable();
    }

    /// Looks an expert up and marks it as used. Returns whether it was prefetched; `None` if it is not
    /// cached.
    pub(crate) fn lookup(&mut self, expert: Expert) -> Option<bool> {
        let slot = self.slot_of(expert)?;
        let slot = &mut self.slots[slot];
        slot.last_used = slot.last_used.max(self.clock);
        slot.last_used_before_prefetch = None;
        Some(std::mem::take(&mut slot.is_prefetched))
    }

    /// Ends the request of a layer. Prefetched experts that were not requested get their previous age back,
    /// so wasted prefetches are evicted first.
    pub(crate) fn end_request(&mut self, layer: usize) {
        for slot in self.slots.iter_mut().filter(|slot| slot.expert.is_some_and(|expert| expert.0 == layer)) {
            if let Some(before) = slot.last_used_before_prefetch.take() {
                slot.last_used = before;
                slot.is_prefetched = false;
            }
        }
    }

    /// Protects a cached expert from eviction until its layer's next request. Returns whether it is cached.
    pub(crate) fn pin_until_used(&mut self, expert: Expert) -> bool {
        let Some(slot) = self.slot_of(expert) else { return false };
        let slot = &mut self.slots[slot];
        if slot.last_used < self.clock {
            slot.last_used_before_prefetch.get_or_insert(slot.last_used);
            slot.last_used = self.clock;
        }
        true
    }

    /// Allocates a slot for a prefetch.
    pub(crate) fn allocate_prefetch(&mut self, expert: Expert) -> Option<usize> {
        let slot = self.allocate(expert)?;
        self.slots[slot].last_used_before_prefetch = Some(0);
        self.slots[slot].is_prefetched = true;
        Some(slot)
    }

    /// Marks the read into a slot as done.
    pub(crate) fn mark_loaded(&mut self, slot: usize) {
        self.slots[slot].is_loading = false;
    }

    /// Invalidates a slot with a read in flight. It is free when the read is done.
    pub(crate) fn invalidate(&mut self, slot: usize) {
        let is_loading = self.slots[slot].is_loading;
        if let Some(expert) = self.slots[slot].expert {
            self.remove(expert);
        }
        self.slots[slot].is_loading = is_loading;
    }

    /// Allocates a slot for an expert that is not cached: a free one, or that of the evicted expert. `None`
    /// if all slots are in use by this request or have reads in flight.
    pub(crate) fn allocate(&mut self, expert: Expert) -> Option<usize> {
        let all = self.slots.iter().enumerate();
        let others = all.filter(|(_, slot)| slot.last_used < self.clock && !slot.is_loading);
        let order = |slot: &CacheSlot| match slot.expert {
            None => 0,
            // A wasted prefetch was never used.
            Some(_) if slot.last_used == 0 => 0,
            Some(_) if self.is_mru => self.clock - slot.last_used,
            Some(_) => slot.last_used,
        };
        let (slot, oldest) = others.min_by_key(|(_, slot)| order(slot))?;
        if let Some(other) = oldest.expert {
            self.slot_by_expert.remove(&other);
        }
        self.slot_by_expert.insert(expert, slot);
        self.slots[slot] = CacheSlot {
            expert: Some(expert),
            last_used: self.clock,
            is_loading: true,
            ..CacheSlot::default()
        };
        Some(slot)
    }

    /// Pins a cached expert.
    pub(crate) fn pin(&mut self, expert: Expert) {
        if let Some(slot) = self.slot_of(expert) {
            self.slots[slot].last_used = PINNED;
            self.pinned += 1;
        }
    }

    /// Whether a cached expert is repacked.
    pub(crate) fn is_repacked(&self, expert: Expert) -> bool {
        self.slot_of(expert).is_some_and(|slot| self.slots[slot].is_repacked)
    }

    /// Marks a cached expert as repacked. Returns its slot if it was not.
    pub(crate) fn mark_repacked(&mut self, expert: Expert) -> Option<usize> {
        let slot = self.slot_of(expert)?;
        let was = std::mem::replace(&mut self.slots[slot].is_repacked, true);
        (!was).then_some(slot)
    }

    /// Removes an expert whose content is undefined.
    pub(crate) fn remove(&mut self, expert: Expert) {
        if let Some(slot) = self.slot_by_expert.remove(&expert) {
            self.slots[slot] = CacheSlot::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests some experts of a layer, and returns those that were cached.
    fn request(slots: &mut SlotTable, experts: &[usize]) -> Vec<usize> {
        slots.begin_request(experts.len(), 0);
        let cached: Vec<usize> =
            experts.iter().copied().filter(|&it| slots.lookup((0, it)).is_some()).collect();
        for expert in experts.iter().filter(|it| !cached.contains(it)) {
            let slot = slots.allocate((0, *expert)).unwrap();
            slots.mark_loaded(slot);
        }
        cached
    }

    #[test]
    fn the_least_recently_used_expert_is_evicted() {
        let mut slots = SlotTable::new(3);
        assert!(request(&mut slots, &[1, 2]).is_empty());
        assert!(request(&mut slots, &[3]).is_empty());
        assert_eq!(request(&mut slots, &[1]), [1]);
        assert!(request(&mut slots, &[4]).is_empty(), "2 is evicted");
        assert_eq!(request(&mut slots, &[1, 3, 4]), [1, 3, 4]);
    }

    #[test]
    fn sequential_requests_beyond_the_capacity_have_hits() {
        // Three layers of four experts, and seven slots.
        let mut slots = SlotTable::new(7);
        let mut found = Vec::new();
        for layer in (0..3).cycle().take(9) {
            slots.begin_request(4, 2);
            let cached = (0..4).filter(|&expert| slots.lookup((layer, expert)).is_some()).count();
            for expert in 0..4 {
                if slots.slot_of((layer, expert)).is_none() {
                    let slot = slots.allocate((layer, expert)).expect("four fit");
                    slots.mark_loaded(slot);
                }
            }
            found.push(cached);
        }
        // Three slots keep experts of other layers, which are found at their next request.
        assert_eq!(found, [0, 0, 0, 3, 0, 3, 0, 3, 0]);
    }

    #[test]
    fn wasted_prefetches_do_not_change_the_order_of_eviction() {
        let mut slots = SlotTable::new(3);
        for expert in [1, 2] {
            request(&mut slots, &[expert]);
        }
        assert!(slots.pin_until_used((0, 1)));
        let third = slots.allocate_prefetch((0, 3)).expect("there is a free slot");
        slots.mark_loaded(third);
        slots.begin_request(1, 0);
        assert_eq!(slots.lookup((0, 2)), Some(false));
        slots.end_request(0);
        // First the expert that was never requested, then the least recently used.
        for (expert, goes) in [(4, 3), (5, 1)] {
            slots.begin_request(1, 0);
            assert_eq!(slots.slot_of((0, expert)), None);
            let slot = slots.allocate((0, expert)).expect("one can be evicted");
            slots.mark_loaded(slot);
            assert_eq!(slots.slot_of((0, goes)), None, "{goes} is evicted for {expert}");
        }
        assert!(slots.slot_of((0, 2)).is_some());
    }

    #[test]
    fn wasted_prefetches_are_evicted_first_under_mru() {
        let mut slots = SlotTable::new(3);
        request(&mut slots, &[1, 2]);
        let third = slots.allocate_prefetch((1, 3)).expect("there is a free slot");
        slots.mark_loaded(third);
        slots.begin_request(1, 3);
        slots.end_request(1);
        assert_eq!(slots.allocate((1, 4)), Some(third));
    }

    #[test]
    fn experts_of_one_request_do_not_evict_each_other() {
        let mut slots = SlotTable::new(2);
        request(&mut slots, &[1, 2]);
        slots.begin_request(2, 0);
        assert!(slots.lookup((0, 1)).is_some() && slots.allocate((0, 3)).is_some());
        assert_eq!(slots.allocate((0, 4)), None);
        assert_eq!((slots.slot_of((0, 2)), slots.slot_of((1, 1))), (None, None));
    }

    #[test]
    fn pinned_experts_stay_and_removed_ones_are_not_cached() {
        let mut slots = SlotTable::new(3);
        request(&mut slots, &[9, 1]);
        slots.pin((0, 9));
        assert_eq!(slots.evictable(), 2);
        for expert in 2..20 {
            request(&mut slots, &[expert % 9]);
        }
        assert!(slots.slot_of((0, 9)).is_some());
        request(&mut slots, &[1]);
        slots.remove((0, 1));
        assert!(request(&mut slots, &[1]).is_empty());
        assert!(slots.slot_of((0, 9)).is_some());
    }

    #[test]
    fn prefetches_use_idle_slots_and_reads_in_flight_are_not_evicted() {
        let mut slots = SlotTable::new(3);
        request(&mut slots, &[1, 2]);
        request(&mut slots, &[1]);
        assert!(slots.pin_until_used((0, 2)) && !slots.pin_until_used((0, 3)));
        let third = slots.allocate_prefetch((0, 3)).expect("there is a free slot");
        assert_eq!(slots.allocate_prefetch((0, 4)), None, "the others are in use or protected");
        slots.begin_request(1, 0);
        assert_eq!(
            [3, 3, 1, 5].map(|it| slots.lookup((0, it))),
            [Some(true), Some(false), Some(false), None]
        );
        slots.begin_request(2, 0);
        for expert in [4, 5] {
            slots.allocate((0, expert)).expect("1 and 2 can be evicted");
        }
        assert_eq!(slots.allocate((0, 6)), None, "3 is being read");
        slots.invalidate(third);
        assert_eq!(
            [slots.allocate((0, 6)), slots.slot_of((0, 3))],
            [None; 2],
            "it is invalid, and its read is in flight"
        );
        slots.mark_loaded(third);
        assert_eq!(slots.allocate_prefetch((0, 6)), Some(third));
        slots.end_request(1);
        slots.end_request(0);
        assert_eq!(slots.lookup((0, 6)), Some(false), "its layer's request came before it was prefetched");
    }
}
