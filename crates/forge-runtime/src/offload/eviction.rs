//! Who sits where: experts of some layers in the seats of their class.
//!
//! Whoever has been asked for keeps its seat until all others have been asked for since: the least recently used goes first. But where
//! layers ask for so many that not all have seats, as in a chunk of a prompt, they are swept through in turn: whoever was not asked
//! for longest is just who will be asked for next, and so who was asked for last goes first.

use std::collections::HashMap;

/// An expert of a layer.
pub(crate) type Expert = (usize, usize);

/// The seats of one class.
#[derive(Clone, Debug)]
pub(crate) struct SlotTable {
    of: HashMap<Expert, usize>,
    seats: Vec<CacheSlot>,
    /// Counts what was asked for.
    clock: u64,
    /// Whether layers ask for more than there are seats.
    sweeps: bool,
    kept: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct CacheSlot {
    expert: Option<Expert>,
    /// When it was asked for last, or was expected to be.
    asked: u64,
    /// When it had been asked for last before somebody expected it to be, until its layer asks.
    before: Option<u64>,
    /// Whether it is in the device's order.
    is_arranged: bool,
    /// Whether it may still be read: then nobody else can have the seat.
    is_coming: bool,
    /// Whether it was read ahead, and its layer has not asked for anybody since.
    is_foreseen: bool,
}

/// Asked for this late, an expert is never the one that goes.
const ALWAYS: u64 = u64::MAX;

impl SlotTable {
    /// So many seats, all of them free.
    pub(crate) fn new(count: usize) -> SlotTable {
        SlotTable {
            of: HashMap::new(),
            seats: vec![CacheSlot::default(); count],
            clock: 0,
            sweeps: false,
            kept: 0,
        }
    }

    /// Seats that experts may lose.
    pub(crate) fn changing(&self) -> usize {
        self.seats.len() - self.kept
    }

    /// The seat of an expert, if it has one.
    pub(crate) fn of(&self, expert: Expert) -> Option<usize> {
        self.of.get(&expert).copied()
    }

    /// Begins to ask for experts: those asked for until the next time have their seats together. `others` ask for as many in turn.
    pub(crate) fn begin(&mut self, experts: usize, others: usize) {
        self.clock += 1;
        self.sweeps = experts * (1 + others) > self.changing();
    }

    /// Asks for an expert: whether it was foreseen, if it has a seat, and it stays.
    pub(crate) fn ask(&mut self, expert: Expert) -> Option<bool> {
        let seat = self.of(expert)?;
        let seat = &mut self.seats[seat];
        seat.asked = seat.asked.max(self.clock);
        seat.before = None;
        Some(std::mem::take(&mut seat.is_foreseen))
    }

    /// Takes note that a layer has asked: whoever was expected and not asked for is as if nobody had expected it, and who
    /// was foreseen in vain goes first.
    pub(crate) fn has_asked(&mut self, layer: usize) {
        for seat in self.seats.iter_mut().filter(|seat| seat.expert.is_some_and(|expert| expert.0 == layer)) {
            if let Some(before) = seat.before.take() {
                seat.asked = before;
                seat.is_foreseen = false;
            }
        }
    }

    /// Has an expert stay that may be asked for, if it has a seat.
    pub(crate) fn hold(&mut self, expert: Expert) -> bool {
        let Some(seat) = self.of(expert) else { return false };
        let seat = &mut self.seats[seat];
        if seat.asked < self.clock {
            seat.before.get_or_insert(seat.asked);
            seat.asked = self.clock;
        }
        true
    }

    /// A seat for an expert that has none and may be asked for.
    pub(crate) fn foresee(&mut self, expert: Expert) -> Option<usize> {
        let seat = self.take(expert)?;
        self.seats[seat].before = Some(0);
        self.seats[seat].is_foreseen = true;
        Some(seat)
    }

    /// Notes that what is read to a seat is in memory.
    pub(crate) fn has_come(&mut self, seat: usize) {
        self.seats[seat].is_coming = false;
    }

    /// Takes a seat away from whoever is being read to it: it is free when that is done.
    pub(crate) fn vacate(&mut self, seat: usize) {
        let is_coming = self.seats[seat].is_coming;
        if let Some(expert) = self.seats[seat].expert {
            self.forget(expert);
        }
        self.seats[seat].is_coming = is_coming;
    }

    /// A seat for an expert that has none and is going to be read: a free one, or that of whoever goes first. None if all have been
    /// asked for since the beginning, or are being read.
    pub(crate) fn take(&mut self, expert: Expert) -> Option<usize> {
        let all = self.seats.iter().enumerate();
        let others = all.filter(|(_, seat)| seat.asked < self.clock && !seat.is_coming);
        let order = |seat: &CacheSlot| match seat.expert {
            None => 0,
            // Whoever was foreseen in vain was never asked for.
            Some(_) if seat.asked == 0 => 0,
            Some(_) if self.sweeps => self.clock - seat.asked,
            Some(_) => seat.asked,
        };
        let (seat, oldest) = others.min_by_key(|(_, seat)| order(seat))?;
        if let Some(other) = oldest.expert {
            self.of.remove(&other);
        }
        self.of.insert(expert, seat);
        self.seats[seat] =
            CacheSlot { expert: Some(expert), asked: self.clock, is_coming: true, ..CacheSlot::default() };
        Some(seat)
    }

    /// Has an expert keep its seat for ever.
    pub(crate) fn keep(&mut self, expert: Expert) {
        if let Some(seat) = self.of(expert) {
            self.seats[seat].asked = ALWAYS;
            self.kept += 1;
        }
    }

    /// Whether an expert that has a seat is in the device's order.
    pub(crate) fn is_arranged(&self, expert: Expert) -> bool {
        self.of(expert).is_some_and(|seat| self.seats[seat].is_arranged)
    }

    /// The seat of an expert, if it has one and is in the file's order: from now on it is in the device's.
    pub(crate) fn arrange(&mut self, expert: Expert) -> Option<usize> {
        let seat = self.of(expert)?;
        let was = std::mem::replace(&mut self.seats[seat].is_arranged, true);
        (!was).then_some(seat)
    }

    /// Takes the seat of an expert away: nobody knows what lies there.
    pub(crate) fn forget(&mut self, expert: Expert) {
        if let Some(seat) = self.of.remove(&expert) {
            self.seats[seat] = CacheSlot::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for some experts of a layer at once, and tells who was there.
    fn ask(seats: &mut SlotTable, experts: &[usize]) -> Vec<usize> {
        seats.begin(experts.len(), 0);
        let there: Vec<usize> = experts.iter().copied().filter(|&it| seats.ask((0, it)).is_some()).collect();
        for expert in experts.iter().filter(|it| !there.contains(it)) {
            let seat = seats.take((0, *expert)).unwrap();
            seats.has_come(seat);
        }
        there
    }

    #[test]
    fn who_was_not_asked_for_longest_loses_the_seat() {
        let mut seats = SlotTable::new(3);
        assert!(ask(&mut seats, &[1, 2]).is_empty());
        assert!(ask(&mut seats, &[3]).is_empty());
        assert_eq!(ask(&mut seats, &[1]), [1]);
        assert!(ask(&mut seats, &[4]).is_empty(), "in the place of 2");
        assert_eq!(ask(&mut seats, &[1, 3, 4]), [1, 3, 4]);
    }

    #[test]
    fn of_layers_that_are_swept_through_some_are_found() {
        // Three layers of four experts, and seats for seven.
        let mut seats = SlotTable::new(7);
        let mut found = Vec::new();
        for layer in (0..3).cycle().take(9) {
            seats.begin(4, 2);
            let there = (0..4).filter(|&expert| seats.ask((layer, expert)).is_some()).count();
            for expert in 0..4 {
                if seats.of((layer, expert)).is_none() {
                    let seat = seats.take((layer, expert)).expect("four are not too many");
                    seats.has_come(seat);
                }
            }
            found.push(there);
        }
        // Three seats are left to those who are not asked for: theirs is found whenever it is their turn.
        assert_eq!(found, [0, 0, 0, 3, 0, 3, 0, 3, 0]);
    }

    #[test]
    fn who_is_expected_in_vain_is_as_if_nobody_had_expected_it() {
        let mut seats = SlotTable::new(3);
        for expert in [1, 2] {
            ask(&mut seats, &[expert]);
        }
        assert!(seats.hold((0, 1)));
        let third = seats.foresee((0, 3)).expect("there is a free seat");
        seats.has_come(third);
        seats.begin(1, 0);
        assert_eq!(seats.ask((0, 2)), Some(false));
        seats.has_asked(0);
        // First the one who was never asked for, then the one whose turn was longest ago.
        for (expert, goes) in [(4, 3), (5, 1)] {
            seats.begin(1, 0);
            assert_eq!(seats.of((0, expert)), None);
            let seat = seats.take((0, expert)).expect("somebody can go");
            seats.has_come(seat);
            assert_eq!(seats.of((0, goes)), None, "{goes} goes for {expert}");
        }
        assert!(seats.of((0, 2)).is_some());
    }

    #[test]
    fn who_is_foreseen_in_vain_goes_first_where_layers_sweep() {
        let mut seats = SlotTable::new(3);
        ask(&mut seats, &[1, 2]);
        let third = seats.foresee((1, 3)).expect("there is a free seat");
        seats.has_come(third);
        seats.begin(1, 3);
        seats.has_asked(1);
        assert_eq!(seats.take((1, 4)), Some(third));
    }

    #[test]
    fn experts_asked_for_together_do_not_displace_one_another() {
        let mut seats = SlotTable::new(2);
        ask(&mut seats, &[1, 2]);
        seats.begin(2, 0);
        assert!(seats.ask((0, 1)).is_some() && seats.take((0, 3)).is_some());
        assert_eq!(seats.take((0, 4)), None);
        assert_eq!((seats.of((0, 2)), seats.of((1, 1))), (None, None));
    }

    #[test]
    fn who_is_kept_stays_and_who_is_forgotten_has_no_seat() {
        let mut seats = SlotTable::new(3);
        ask(&mut seats, &[9, 1]);
        seats.keep((0, 9));
        assert_eq!(seats.changing(), 2);
        for expert in 2..20 {
            ask(&mut seats, &[expert % 9]);
        }
        assert!(seats.of((0, 9)).is_some());
        ask(&mut seats, &[1]);
        seats.forget((0, 1));
        assert!(ask(&mut seats, &[1]).is_empty());
        assert!(seats.of((0, 9)).is_some());
    }

    #[test]
    fn who_is_foreseen_sits_where_nobody_is_asked_for_and_who_is_being_read_stays() {
        let mut seats = SlotTable::new(3);
        ask(&mut seats, &[1, 2]);
        ask(&mut seats, &[1]);
        assert!(seats.hold((0, 2)) && !seats.hold((0, 3)));
        let third = seats.foresee((0, 3)).expect("there is a free seat");
        assert_eq!(seats.foresee((0, 4)), None, "the others were asked for, or are held");
        seats.begin(1, 0);
        assert_eq!([3, 3, 1, 5].map(|it| seats.ask((0, it))), [Some(true), Some(false), Some(false), None]);
        seats.begin(2, 0);
        for expert in [4, 5] {
            seats.take((0, expert)).expect("1 and 2 can go");
        }
        assert_eq!(seats.take((0, 6)), None, "3 is being read");
        seats.vacate(third);
        assert_eq!(
            [seats.take((0, 6)), seats.of((0, 3))],
            [None; 2],
            "it has no seat, and is being read still"
        );
        seats.has_come(third);
        assert_eq!(seats.foresee((0, 6)), Some(third));
        seats.has_asked(1);
        seats.has_asked(0);
        assert_eq!(seats.ask((0, 6)), Some(false), "its layer did not ask when it was foreseen");
    }
}
