//! Experts in their seats, read from a disk whose bytes tell where they are.

use crate::device::{Buffer, Span};
use crate::offload::cache::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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
fn layers() -> Vec<ExpertWeights> {
    let routes = Span::new(Buffer::Scratch, 0, 0);
    let layer = |start: usize| {
        let plane =
            |first: usize, bytes: usize| Span::new(Buffer::Weights, start + first, 5 * RECORD + bytes);
        let (inner, sum) = (vec![plane(0, INNER)], vec![plane(INNER, SUM)]);
        let records = Span::new(Buffer::Weights, start, 6 * RECORD);
        ExpertWeights { experts: 6, chosen: 3, shared: 1, records, inner, sum, routes, router: Vec::new() }
    };
    vec![layer(11), layer(11 + 6 * RECORD)]
}

/// With seats for so many experts.
fn streamed(seats: usize) -> (ExpertCache, Arc<Disk>) {
    arranged(seats, HashMap::new())
}

/// The same, of which the device wants some planes in an order of its own.
fn arranged(seats: usize, arrangements: HashMap<usize, Repacking>) -> (ExpertCache, Arc<Disk>) {
    let disk = Arc::new(Disk(AtomicU64::new(u64::MAX)));
    let room = CacheLayout::new(&layers(), (seats * RECORD) as u64).unwrap();
    assert_eq!(room.seats(), seats);
    (ExpertCache::new(&layers(), room, disk.clone(), arrangements).unwrap(), disk)
}

/// Has experts fetched for a layer, both halves, and compares what is in their seats with the disk.
fn fetch(streamed: &mut ExpertCache, layer: usize, experts: &[usize]) -> Result<(), String> {
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
    let backwards = Repacking { bytes: 8, arrange: |some, _| some.reverse() };
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
    let habits = || UsageStats::beside(&folder.path().join("weights.safetensors"), &layers());
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
    assert_eq!(second.counts(), CacheStats::default());
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
    let read = |streamed: &ExpertCache| streamed.counts().since(&before);
    assert_eq!(read(&streamed), CacheStats { bytes: 3 * record, ..CacheStats::default() });
    // What is there needs no disk.
    disk.0.store(1, Ordering::Relaxed);
    fetch(&mut streamed, 1, &[0, 3, 5]).unwrap();
    let wanted =
        CacheStats { asked: 2, foreseen: 2, wanted: 2 * record, bytes: 3 * record, ..CacheStats::default() };
    assert_eq!(CacheStats { stalled: Duration::ZERO, ..read(&streamed) }, wanted);
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
    let (mut streamed, disk) = streamed(5);
    disk.0.store(1, Ordering::Relaxed);
    assert_eq!(streamed.disk_speed().unwrap_err(), "experts cannot be read: the disk is broken");
    disk.0.store(u64::MAX, Ordering::Relaxed);
    let before = streamed.counts();
    assert!(streamed.disk_speed().unwrap() > 0.0);
    assert_eq!(streamed.counts(), before);
    for experts in [[0, 1, 5], [2, 3, 5]] {
        fetch(&mut streamed, 0, &experts).unwrap();
        fetch(&mut streamed, 1, &experts).unwrap();
    }
}
