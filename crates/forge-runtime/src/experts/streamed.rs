//! Experts in their seats: finds those that a layer asks for, and has the others read.
//!
//! A dispatch that binds a layer's experts asks for those that it needs. It may wait for all of them, or take whoever is there while
//! others are read. Before a seat changes hands all reads are done, so none ever writes where somebody else sits.

use super::arrangement::{Arrangement, Unarranged};
use super::counts::Counts;
use super::habits::Habits;
use super::readers::{Read, Readers};
use super::room::Room;
use super::seats::Seats;
use super::source::Source;
use super::{Half, Stacks};
use memmap2::MmapMut;
use std::collections::HashMap;
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
    /// Experts whose reads may not be done.
    unsettled: Vec<(usize, usize)>,
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
            unsettled: Vec::new(),
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
        self.waiting(|streamed| streamed.readers.settle())
    }

    /// The same, of experts who may be on their way for a while: [`Streamed::arrived`] waits for them. What is given back has to be
    /// arranged before those who are there are multiplied.
    pub fn ask(
        &mut self,
        bound: Bound,
        experts: &[usize],
        seats: &mut [u32],
    ) -> Result<Vec<Unarranged>, String> {
        let mut found = 0;
        self.waiting(|streamed| {
            found = streamed.seat(bound.layer, experts)?;
            Ok(())
        })?;
        if bound.half == Half::Inner {
            let kept = self.layers[bound.layer].experts - self.layers[bound.layer].shared;
            let chosen = experts.iter().copied().filter(|expert| *expert < kept);
            let asked = chosen.clone().count();
            if let Some(habits) = &mut self.habits {
                habits.ask(bound.layer, chosen);
            }
            self.counts.asked += asked as u64;
            self.counts.found += (found + asked - experts.len()) as u64;
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
        for expert in experts.iter().map(|expert| (layer, *expert)).filter(|it| !self.unsettled.contains(it))
        {
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
        // Reads are numbered as those who are not settled.
        let read = |it: &Streamed, expert| it.unsettled.iter().position(|one| *one == (bound.layer, expert));
        loop {
            let reads: Vec<_> = coming.iter().map(|expert| read(self, *expert)).collect();
            let has_come = |read: &Option<usize>| read.is_none_or(|it| self.readers.has_come(it));
            let mut come = reads.iter().map(has_come);
            let (here, left) = coming.iter().partition(|_| come.next().unwrap_or(false));
            *coming = left;
            if !Vec::is_empty(&here) || coming.is_empty() {
                return Ok(here);
            }
            let reads: Vec<usize> = reads.into_iter().flatten().collect();
            self.waiting(|streamed| streamed.readers.wait_for_any(&reads))?;
        }
    }

    /// Does what may wait for the disk, and counts how long it does.
    fn waiting(&mut self, wait: impl FnOnce(&mut Streamed) -> Result<(), String>) -> Result<(), String> {
        let start = Instant::now();
        let outcome = wait(self);
        self.counts.stalled += start.elapsed();
        outcome.map_err(|what| self.fail(what))
    }

    /// Gives seats to those of some experts of a layer that have none, and has them read; says how many had one.
    fn seat(&mut self, layer: usize, experts: &[usize]) -> Result<usize, String> {
        let index = self.room.class_of[layer];
        let others = self.room.class_of.iter().filter(|class| **class == index).count() - 1;
        self.seats[index].begin(experts.len(), others);
        let missing: Vec<usize> = {
            let seats = &mut self.seats[index];
            experts.iter().copied().filter(|expert| seats.ask((layer, *expert)).is_none()).collect()
        };
        if missing.is_empty() {
            return Ok(experts.len());
        }
        // Seats change hands: nobody may be writing there.
        self.settle()?;
        self.source.check()?;
        let mut taken = Vec::with_capacity(missing.len());
        for expert in &missing {
            let seat = self.seats[index].take((layer, *expert));
            taken.push(seat.ok_or("a layer asks for more experts than there are seats")?);
            self.unsettled.push((layer, *expert));
        }
        let (class, stacks, region) =
            (&self.room.classes[index], &self.layers[layer], self.region.as_mut_ptr());
        // Expert by expert, so that the first can be multiplied while the second is read.
        let read = |(number, (expert, seat)): (usize, (&usize, &usize))| {
            let bytes = class.record;
            let from = (stacks.records.offset + expert * bytes) as u64;
            // SAFETY: the seat lies inside the region.
            let to = unsafe { region.add(class.start + seat * bytes) };
            Read { expert: number, from, to, bytes }
        };
        self.counts.bytes += (missing.len() * class.record) as u64;
        let reads = missing.iter().zip(&taken).enumerate().map(read);
        // SAFETY: whoever had these seats is not bound any more, and who has them now is waited for.
        unsafe { self.readers.ask(reads) };
        Ok(experts.len() - missing.len())
    }

    /// Waits for all reads.
    fn settle(&mut self) -> Result<(), String> {
        self.readers.settle()?;
        self.unsettled.clear();
        Ok(())
    }

    /// Whoever was being read has no seat: what lies there is not known.
    fn fail(&mut self, what: String) -> String {
        // What fails after the first failure adds nothing to it.
        let _ = self.readers.settle();
        for (layer, expert) in std::mem::take(&mut self.unsettled) {
            self.seats[self.room.class_of[layer]].forget((layer, expert));
        }
        format!("experts cannot be read: {what}")
    }

    /// Bytes a second that are read where nothing else is done: experts of all layers, until a second has passed. They take
    /// the seats of others.
    pub fn disk_speed(&mut self) -> Result<f64, String> {
        self.settle()?;
        self.seats.iter_mut().for_each(Seats::forget_all);
        let (start, before) = (Instant::now(), self.counts);
        for layer in (0..self.layers.len()).cycle() {
            let open = self.layers[layer].experts - self.layers[layer].shared;
            let some: Vec<usize> = (0..open.min(self.at_once(layer))).collect();
            self.seat(layer, &some)?;
            if start.elapsed() > Duration::from_secs(1) {
                break;
            }
            // They are read again when it is their turn again.
            if layer + 1 == self.layers.len() {
                self.settle()?;
                self.seats.iter_mut().for_each(Seats::forget_all);
            }
        }
        self.settle()?;
        let speed = (self.counts.bytes - before.bytes) as f64 / start.elapsed().as_secs_f64();
        self.counts = before;
        Ok(speed)
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
            Stacks { experts: 6, chosen: 3, shared: 1, records, inner, sum, routes }
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
            let plane = layers[layer].planes().nth(1).expect("it has two");
            let bound = streamed.bound(plane.offset).expect("it is one of its planes");
            let mut seats = vec![u32::MAX; 6];
            streamed.fetch(bound, &[expert], &mut seats).unwrap();
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
