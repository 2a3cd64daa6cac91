//! Experts in their seats: finds those that a layer asks for, and has the others read.
//!
//! A dispatch that binds a layer's experts asks for those that it needs. It may wait for all of them, or take whoever is there while
//! others are read. Whom the next layer will probably ask for ([`super::foresight`]) is read ahead, while the disk has nothing else to do.
//! No seat changes hands while it is being read to, so no read ever writes where somebody else sits.

use super::arrangement::{Arrangement, Unarranged};
use super::counts::Counts;
use super::habits::Habits;
use super::readers::{Read, Readers, Ticket, When};
use super::room::Room;
use super::seats::{Expert, Seats};
use super::source::Source;
use super::{Half, Stacks};
use memmap2::MmapMut;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the region is a whole number of: the largest pages that systems have, so that nobody else's memory lies in its last one.
const PAGE: usize = 16384;

/// A plane that is bound: whose it is, and where it is in the first seat.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The layer, of those that have experts.
    pub layer: usize,
    /// Which matrices it is of.
    pub half: Half,
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
struct Coming {
    ticket: Ticket,
    class: usize,
    seat: usize,
    /// Who will sit there; none if nobody wants it any more.
    expert: Option<Expert>,
}

/// The region of seats, and who fills it.
pub struct Streamed {
    layers: Vec<Stacks>,
    room: Room,
    // Before the region that they write to, so that they end before it goes.
    readers: Readers,
    region: MmapMut,
    seats: Vec<Seats>,
    /// The layer that has a plane, and of which matrices it is, by where it lies in the weight file.
    planes: HashMap<usize, (usize, Half)>,
    /// How the device wants some planes, by where they lie in the weight file.
    arrangements: HashMap<usize, Arrangement>,
    source: Arc<dyn Source>,
    /// Reads that may not be done.
    coming: Vec<Coming>,
    /// Reads that have been asked for.
    tickets: Ticket,
    /// Those of a layer that nobody asked for before it: they lie as they came from the file.
    fresh: Vec<Expert>,
    counts: Counts,
    habits: Option<Habits>,
}

impl Streamed {
    /// Takes the region, and reads the experts that every row has. The device wants some planes in an order of its own, by where they
    /// lie in the weight file.
    pub fn new(
        layers: &[Stacks],
        room: Room,
        source: Arc<dyn Source>,
        arrangements: HashMap<usize, Arrangement>,
    ) -> Result<Streamed, String> {
        let region = MmapMut::map_anon(room.bytes().max(1).next_multiple_of(PAGE))
            .map_err(|error| format!("no memory for experts, {} bytes: {error}", room.bytes()))?;
        #[cfg(target_os = "linux")]
        let _ = region.advise(memmap2::Advice::HugePage);
        let mut planes = HashMap::new();
        for (layer, stacks) in layers.iter().enumerate() {
            planes.extend(stacks.inner.iter().map(|plane| (plane.offset, (layer, Half::Inner))));
            planes.extend(stacks.sum.iter().map(|plane| (plane.offset, (layer, Half::Sum))));
        }
        let mut streamed = Streamed {
            planes,
            arrangements,
            seats: room.classes.iter().map(|class| Seats::new(class.seats)).collect(),
            readers: Readers::new(source.clone())?,
            layers: layers.to_vec(),
            room,
            region,
            source,
            coming: Vec::new(),
            tickets: 0,
            fresh: Vec::new(),
            counts: Counts::default(),
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
        streamed.counts = Counts::default();
        Ok(streamed)
    }

    /// Counts who is asked for, and begins with those that were before, as many as have seats; says how many of how many bytes have
    /// been read.
    pub fn with_habits(
        mut self,
        habits: Habits,
        told: &mut dyn FnMut(usize, usize),
    ) -> Result<Streamed, String> {
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
        self.counts = Counts::default();
        self.habits = Some(habits);
        Ok(self)
    }

    /// What has been counted so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What lies in seats of the plane of experts that begins at `offset` of the weight file; none if none does.
    pub fn bound(&self, offset: usize) -> Option<Bound> {
        let &(layer, half) = self.planes.get(&offset)?;
        let (stacks, class) = (&self.layers[layer], &self.room.classes[self.room.class_of[layer]]);
        let plane = stacks.planes().find(|plane| plane.offset == offset)?;
        let place = stacks.place(plane);
        let first = class.start + place.start;
        // SAFETY: the room lies inside the region.
        let start = unsafe { self.region.as_ptr().cast_mut().add(first) };
        let bytes = (class.seats - 1) * class.record + place.len();
        Some(Bound { layer, half, plane: offset, offset: first, start, bytes })
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
    pub fn layers(&self) -> &[Stacks] {
        &self.layers
    }

    /// The matrices of a layer's experts.
    pub fn stacks(&self, layer: usize) -> &Stacks {
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
    pub fn fetch(&mut self, bound: Bound, experts: &[usize], seats: &mut [u32]) -> Result<(), String> {
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
        bound: Bound,
        experts: &[usize],
        seats: &mut [u32],
    ) -> Result<Vec<Unarranged>, String> {
        if bound.half == Half::Inner {
            self.fresh.clear();
        }
        self.waiting(|streamed| streamed.seat(bound.layer, experts))?;
        if bound.half == Half::Inner {
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
    pub fn is_arranged(&self, bound: Bound, expert: usize) -> bool {
        let seats = &self.seats[self.room.class_of[bound.layer]];
        self.arrangements.contains_key(&bound.plane) && seats.is_arranged((bound.layer, expert))
    }

    /// What is in the file's order of those experts who are in their seats. It counts as arranged from now on.
    fn unarranged(&mut self, layer: usize, experts: &[usize]) -> Vec<Unarranged> {
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
                let pieces = unsafe { Unarranged::pieces(region.add(first), place.len(), *arrangement) };
                unarranged.extend(pieces);
            }
        }
        unarranged
    }

    /// Takes those from some experts who were asked for that are in memory, waiting until one is.
    pub fn arrived(&mut self, bound: Bound, coming: &mut Vec<usize>) -> Result<Vec<usize>, String> {
        loop {
            self.note_who_has_come();
            let ticket = |expert: &usize| self.ticket((bound.layer, *expert));
            let (left, here) = coming.iter().partition(|expert| ticket(expert).is_some());
            *coming = left;
            if !Vec::is_empty(&here) || coming.is_empty() {
                return Ok(here);
            }
            let tickets: Vec<Ticket> = coming.iter().filter_map(ticket).collect();
            self.waiting(|streamed| streamed.readers.wait_for_any(&tickets))?;
        }
    }

    /// Does what may wait for the disk, and counts how long it does.
    fn waiting(&mut self, wait: impl FnOnce(&mut Streamed) -> Result<(), String>) -> Result<(), String> {
        let start = Instant::now();
        let outcome = wait(self);
        self.counts.stalled += start.elapsed();
        outcome.map_err(|what| self.fail(what))
    }

    /// The read of an expert, if it may not be done.
    fn ticket(&self, expert: Expert) -> Option<Ticket> {
        self.coming.iter().find(|coming| coming.expert == Some(expert)).map(|coming| coming.ticket)
    }

    /// Forgets reads that are done.
    fn note_who_has_come(&mut self) {
        let Streamed { coming, readers, seats, .. } = self;
        coming.retain(|Coming { ticket, class, seat, .. }| {
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
            self.read(expert, seat, When::Now);
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
            self.read(expert, seat, When::Ahead);
        }
        Ok(())
    }

    /// Has an expert read to its seat.
    fn read(&mut self, expert: Expert, seat: usize, when: When) {
        let (layer, number) = expert;
        let (index, ticket) = (self.room.class_of[layer], self.tickets);
        let class = &self.room.classes[index];
        let bytes = class.record;
        let from = (self.layers[layer].records.offset + number * bytes) as u64;
        // SAFETY: the seat lies inside the region.
        let to = unsafe { self.region.as_mut_ptr().add(class.start + seat * bytes) };
        self.tickets += 1;
        self.counts.bytes += bytes as u64;
        self.coming.push(Coming { ticket, class: index, seat, expert: Some(expert) });
        // SAFETY: whoever had the seat is not bound any more, and who has it now is waited for.
        unsafe { self.readers.ask(Read { ticket, from, to, bytes }, when) };
    }

    /// Takes back what is read ahead for a layer, as far as it has not begun.
    fn take_back(&mut self, layer: usize) {
        let of_layer = |coming: &&mut Coming| coming.expert.is_some_and(|expert| expert.0 == layer);
        for Coming { ticket, class, seat, expert } in self.coming.iter_mut().filter(of_layer) {
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
        for Coming { class, seat, .. } in std::mem::take(&mut self.coming) {
            self.seats[class].vacate(seat);
            self.seats[class].has_come(seat);
        }
        format!("experts cannot be read: {what}")
    }

    /// Bytes a second that are read where nothing else is done, for half a second. A few experts lose their seats to it.
    pub fn disk_speed(&mut self) -> Result<f64, String> {
        /// Experts that are read at once, at most.
        const DEEP: usize = 12;
        const LONG: Duration = Duration::from_millis(500);
        self.settle()?;
        let mut absent = VecDeque::new();
        for (layer, stacks) in self.layers.iter().enumerate() {
            let seats = &mut self.seats[self.room.class_of[layer]];
            for expert in (0..stacks.experts - stacks.shared).map(|expert| (layer, expert)) {
                if seats.of(expert).is_none() || absent.len() < 2 * DEEP {
                    seats.forget(expert);
                    absent.push_back(expert);
                }
            }
        }
        self.seats.iter_mut().for_each(|seats| seats.begin(1, 0));
        let (start, before) = (Instant::now(), self.counts);
        let mut reading: Vec<Expert> = Vec::new();
        while start.elapsed() < LONG {
            while reading.len() < DEEP
                && let Some(&expert) = absent.front()
                && let Some(seat) = self.seats[self.room.class_of[expert.0]].take(expert)
            {
                self.read(expert, seat, When::Now);
                reading.extend(absent.pop_front());
            }
            let tickets: Vec<Ticket> = self.coming.iter().map(|coming| coming.ticket).collect();
            self.readers.wait_for_any(&tickets)?;
            self.note_who_has_come();
            // They make room for the next.
            let (left, come): (Vec<_>, Vec<_>) =
                reading.into_iter().partition(|expert| self.ticket(*expert).is_some());
            reading = left;
            for expert in come {
                self.seats[self.room.class_of[expert.0]].forget(expert);
                absent.push_back(expert);
            }
        }
        self.settle()?;
        let seconds = start.elapsed().as_secs_f64();
        for expert in reading {
            self.seats[self.room.class_of[expert.0]].forget(expert);
        }
        let bytes = self.counts.bytes - before.bytes;
        self.counts = before;
        Ok(bytes as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::device::{Buffer, Span};
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Bytes of experts of each plane, and of all with what fills a record up.
    const INNER: usize = 96;
    const SUM: usize = 40;
    const RECORD: usize = 160;

    /// A disk whose bytes tell where they are; it is broken from some byte on, or has been changed if that is 0.
    struct Disk(AtomicU64);

    fn byte(at: u64) -> u8 {
        (at * 7 % 253) as u8
    }

    impl Source for Disk {
        fn read(&self, from: u64, to: &mut [u8]) -> Result<(), String> {
            if from + to.len() as u64 > self.0.load(Ordering::Relaxed) {
                return Err("the disk is broken".to_owned());
            }
            to.iter_mut().zip(from..).for_each(|(to, at)| *to = byte(at));
            Ok(())
        }

        fn check(&self) -> Result<(), String> {
            if self.0.load(Ordering::Relaxed) > 0 { Ok(()) } else { Err("it has been changed".to_owned()) }
        }
    }

    /// Two layers of 6 experts, the last of which every row has; a row chooses 2.
    fn layers() -> Vec<Stacks> {
        let routes = Span::new(Buffer::Scratch, 0, 0);
        let layer = |start: usize| {
            let plane =
                |first: usize, bytes: usize| Span::new(Buffer::Weights, start + first, 5 * RECORD + bytes);
            let (inner, sum) = (vec![plane(0, INNER)], vec![plane(INNER, SUM)]);
            let records = Span::new(Buffer::Weights, start, 6 * RECORD);
            Stacks { experts: 6, chosen: 3, shared: 1, records, inner, sum, routes, router: Vec::new() }
        };
        vec![layer(11), layer(11 + 6 * RECORD)]
    }

    /// With seats for so many experts.
    fn streamed(seats: usize) -> (Streamed, Arc<Disk>) {
        arranged(seats, HashMap::new())
    }

    /// The same, of which the device wants some planes in an order of its own.
    fn arranged(seats: usize, arrangements: HashMap<usize, Arrangement>) -> (Streamed, Arc<Disk>) {
        let disk = Arc::new(Disk(AtomicU64::new(u64::MAX)));
        let room = Room::new(&layers(), (seats * RECORD) as u64).unwrap();
        assert_eq!(room.seats(), seats);
        (Streamed::new(&layers(), room, disk.clone(), arrangements).unwrap(), disk)
    }

    /// Has experts fetched for a layer, both halves, and compares what is in their seats with the disk.
    fn fetch(streamed: &mut Streamed, layer: usize, experts: &[usize]) -> Result<(), String> {
        let stacks = &layers()[layer];
        for plane in stacks.planes() {
            let bound = streamed.bound(plane.offset).expect("it is one of its planes");
            let mut seats = vec![u32::MAX; 6];
            streamed.fetch(bound, experts, &mut seats)?;
            let bytes = stacks.place(plane).len();
            for expert in experts {
                let seat = seats[*expert] as usize * RECORD;
                assert!(seat + bytes <= bound.bytes);
                // SAFETY: all reads are done.
                let found = unsafe { std::slice::from_raw_parts(bound.start.add(seat), bytes) };
                let from = (plane.offset + expert * RECORD) as u64;
                assert!(found.iter().zip(from..).all(|(found, at)| *found == byte(at)), "{layer} {expert}");
            }
        }
        Ok(())
    }

    #[test]
    fn whoever_is_fetched_is_whole_and_who_was_lately_is_not_read_again() {
        let (mut streamed, _) = streamed(5);
        assert!(streamed.bound(10).is_none());
        for (layer, experts, found) in [
            (0, vec![0, 3, 5], 0),
            (1, vec![4, 5], 0),
            (0, vec![3, 0], 2),
            (1, vec![1, 4], 1),
            (0, vec![3, 2], 1),
        ] {
            let before = streamed.counts();
            fetch(&mut streamed, layer, &experts).unwrap();
            let counts = streamed.counts().since(&before);
            let asked = experts.iter().filter(|expert| **expert != 5).count() as u64;
            assert_eq!((counts.asked, counts.found), (asked, found), "{layer} {experts:?}");
            assert_eq!(counts.bytes, (asked - found) * RECORD as u64, "{layer} {experts:?}");
        }
    }

    #[test]
    fn whoever_is_found_again_is_arranged_once() {
        let layers = layers();
        let backwards = Arrangement { bytes: 8, arrange: |some, _| some.reverse() };
        let arrangements = layers[0].planes().map(|plane| (plane.offset, backwards)).collect();
        let (mut streamed, _) = arranged(5, arrangements);
        let mut fetched = |layer: usize, expert: usize| {
            let [first, plane] = [layers[layer].inner[0], layers[layer].sum[0]];
            let [first, bound] =
                [first, plane].map(|plane| streamed.bound(plane.offset).expect("it is one of its planes"));
            let mut seats = vec![u32::MAX; 6];
            for bound in [first, bound] {
                streamed.fetch(bound, &[expert], &mut seats).unwrap();
            }
            let seat = seats[expert] as usize * RECORD;
            // SAFETY: all reads are done.
            let found = unsafe { std::slice::from_raw_parts(bound.start.add(seat), SUM).to_vec() };
            let mut wanted: Vec<u8> =
                (0..SUM).map(|at| byte((plane.offset + expert * RECORD + at) as u64)).collect();
            let is_arranged = streamed.is_arranged(bound, expert);
            if is_arranged {
                wanted.chunks_mut(8).for_each(|some| some.reverse());
            }
            assert_eq!(found, wanted, "expert {expert} of layer {layer}");
            is_arranged
        };
        // Three seats are of those that not every row has. The other layer is wanted as it is.
        for (layer, expert, is_arranged) in [
            (0, 1, false),
            (1, 2, false),
            (0, 1, true),
            (0, 1, true),
            (1, 2, false),
            (0, 3, false),
            (0, 4, false),
            (0, 1, false),
        ] {
            assert_eq!(fetched(layer, expert), is_arranged, "{expert} of {layer}");
        }
    }

    #[test]
    fn a_run_begins_with_those_who_were_asked_for_most() {
        let folder = tempfile::tempdir().unwrap();
        let habits = || Habits::beside(&folder.path().join("weights.safetensors"), &layers());
        let mut told = Vec::new();
        let begin = |told: &mut Vec<(usize, usize)>| {
            streamed(5).0.with_habits(habits(), &mut |done, all| told.push((done, all))).unwrap()
        };
        let mut first = begin(&mut told);
        assert_eq!(told, [(0, 0); 2], "nobody knows anything yet");
        for experts in [[1, 4, 5], [4, 0, 5], [2, 3, 5]] {
            fetch(&mut first, 1, &experts).unwrap();
        }
        fetch(&mut first, 0, &[3, 5]).unwrap();
        drop(first);
        // Five seats, two of which are of those that every row has; of the others 4 of layer 1 was asked for most.
        told.clear();
        let mut second = begin(&mut told);
        assert_eq!(told, [(0, 3 * RECORD), (RECORD, 3 * RECORD)]);
        assert_eq!(second.counts(), Counts::default());
        for (layer, experts, found) in [(1, [4, 0], 2), (0, [3, 5], 1)] {
            let before = second.counts();
            fetch(&mut second, layer, &experts).unwrap();
            assert_eq!(second.counts().since(&before).found, found, "{layer} {experts:?}");
        }
    }

    #[test]
    fn whoever_is_there_need_not_wait_for_the_others() {
        let (mut streamed, disk) = streamed(5);
        let bound = streamed.bound(layers()[0].sum[0].offset).expect("it is one of its planes");
        let mut seats = vec![u32::MAX; 6];
        streamed.ask(bound, &[0, 3, 5], &mut seats).unwrap();
        let (mut coming, mut here) = (vec![0, 3, 5], Vec::new());
        while !coming.is_empty() {
            let some = streamed.arrived(bound, &mut coming).unwrap();
            assert!(!some.is_empty(), "somebody is waited for");
            here.extend(some);
        }
        here.sort_unstable();
        assert_eq!(here, [0, 3, 5]);
        disk.0.store(1, Ordering::Relaxed);
        streamed.ask(bound, &[4, 3], &mut seats).unwrap();
        let mut coming = vec![4, 3];
        assert_eq!(streamed.arrived(bound, &mut coming).unwrap(), [3], "it has its seat already");
        let failed = streamed.arrived(bound, &mut coming);
        assert_eq!(failed.unwrap_err(), "experts cannot be read: the disk is broken");
    }

    #[test]
    fn whoever_is_expected_is_read_before_anybody_asks_and_is_no_find() {
        let (mut streamed, disk) = streamed(7);
        fetch(&mut streamed, 0, &[0, 1, 5]).unwrap();
        // Of five seats that change hands three are not theirs.
        let before = streamed.counts();
        streamed.expect(1, &[3, 0, 2, 4]).unwrap();
        streamed.settle().unwrap();
        let record = RECORD as u64;
        let read = |streamed: &Streamed| streamed.counts().since(&before);
        assert_eq!(read(&streamed), Counts { bytes: 3 * record, ..Counts::default() });
        // What is there needs no disk.
        disk.0.store(1, Ordering::Relaxed);
        fetch(&mut streamed, 1, &[0, 3, 5]).unwrap();
        let wanted = Counts { asked: 2, wanted: 2 * record, bytes: 3 * record, ..Counts::default() };
        assert_eq!(Counts { stalled: Duration::ZERO, ..read(&streamed) }, wanted);
        fetch(&mut streamed, 0, &[0, 1, 5]).expect("nobody had to go who was asked for last");
        disk.0.store(u64::MAX, Ordering::Relaxed);
        fetch(&mut streamed, 1, &[4, 1, 5]).unwrap();
        fetch(&mut streamed, 1, &[2, 3, 5]).unwrap();
    }

    #[test]
    fn a_disk_that_fails_meanwhile_is_told_to_whoever_waits_next() {
        let (mut streamed, disk) = streamed(7);
        fetch(&mut streamed, 0, &[0, 1, 5]).unwrap();
        disk.0.store(1, Ordering::Relaxed);
        streamed.expect(1, &[3, 2]).unwrap();
        let message = fetch(&mut streamed, 1, &[3, 4, 5]).unwrap_err();
        assert_eq!(message, "experts cannot be read: the disk is broken");
        disk.0.store(u64::MAX, Ordering::Relaxed);
        for experts in [[3, 4, 5], [2, 0, 5]] {
            fetch(&mut streamed, 1, &experts).unwrap();
        }
    }

    #[test]
    fn a_disk_that_fails_is_told_and_what_was_being_read_is_read_anew() {
        let (mut streamed, disk) = streamed(5);
        fetch(&mut streamed, 0, &[0, 1]).unwrap();
        // Somewhere in the last but one: those before it can be read.
        disk.0.store((11 + 4 * RECORD + INNER) as u64, Ordering::Relaxed);
        let message = fetch(&mut streamed, 0, &[0, 4]).unwrap_err();
        assert_eq!(message, "experts cannot be read: the disk is broken");
        fetch(&mut streamed, 0, &[0, 2]).unwrap();
        disk.0.store(u64::MAX, Ordering::Relaxed);
        fetch(&mut streamed, 0, &[4, 0, 5]).unwrap();
    }

    #[test]
    fn a_file_that_was_changed_is_not_read() {
        let (mut streamed, disk) = streamed(5);
        fetch(&mut streamed, 1, &[0, 1]).unwrap();
        disk.0.store(0, Ordering::Relaxed);
        assert_eq!(fetch(&mut streamed, 1, &[2]).unwrap_err(), "experts cannot be read: it has been changed");
        fetch(&mut streamed, 1, &[0, 1, 5]).unwrap();
    }

    #[test]
    fn the_speed_of_the_disk_is_measured_and_leaves_whole_experts() {
        let (mut streamed, _) = streamed(5);
        let before = streamed.counts();
        assert!(streamed.disk_speed().unwrap() > 0.0);
        assert_eq!(streamed.counts(), before);
        for experts in [[0, 1, 5], [2, 3, 5]] {
            fetch(&mut streamed, 0, &experts).unwrap();
            fetch(&mut streamed, 1, &experts).unwrap();
        }
    }
}
