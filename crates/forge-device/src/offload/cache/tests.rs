//! Tests of the expert cache with a simulated disk whose bytes encode their offset.

use crate::device::{Buffer, Span};
use crate::offload::cache::expert_cache::*;
use crate::offload::{CacheLayout, CacheStats, ExpertWeights, Repacking, Source, UsageStats};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of each plane of an expert, and of a padded record.
const INNER: usize = 96;
const SUM: usize = 40;
const RECORD: usize = 160;

/// A disk whose bytes encode their offset. Reads beyond the value fail; 0 means that the file has changed.
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
        if self.0.load(Ordering::Relaxed) > 0 { Ok(()) } else { Err("the file has changed".to_owned()) }
    }
}

/// Two layers of 6 experts, the last one shared; a row has 2 routed experts.
fn layers() -> Vec<ExpertWeights> {
    let routes = Span::new(Buffer::Scratch, 0, 0);
    let layer = |start: usize| {
        let plane =
            |first: usize, bytes: usize| Span::new(Buffer::Weights, start + first, 5 * RECORD + bytes);
        let (inner, sum) = (vec![plane(0, INNER)], vec![plane(INNER, SUM)]);
        let records = Span::new(Buffer::Weights, start, 6 * RECORD);
        ExpertWeights {
            experts: 6,
            experts_per_token: 3,
            shared: 1,
            records,
            gate_up: inner,
            down: sum,
            routes,
            router: Vec::new(),
        }
    };
    vec![layer(11), layer(11 + 6 * RECORD)]
}

/// A cache with this many slots.
fn cache(slots: usize) -> (ExpertCache, Arc<Disk>) {
    repacking(slots, HashMap::new())
}

/// The same with planes that the device repacks.
fn repacking(slots: usize, arrangements: HashMap<usize, Repacking>) -> (ExpertCache, Arc<Disk>) {
    let disk = Arc::new(Disk(AtomicU64::new(u64::MAX)));
    let layout = CacheLayout::new(&layers(), (slots * RECORD) as u64).unwrap();
    assert_eq!(layout.slots(), slots);
    (ExpertCache::new(&layers(), layout, disk.clone(), arrangements).unwrap(), disk)
}

/// Fetches experts of a layer, both stages, and compares the slots with the disk.
fn fetch(streamed: &mut ExpertCache, layer: usize, experts: &[usize]) -> Result<(), String> {
    let stacks = &layers()[layer];
    for plane in stacks.planes() {
        let bound = streamed.plane_at(plane.offset).expect("it is one of its planes");
        let mut slots = vec![u32::MAX; 6];
        streamed.fetch(bound, experts, &mut slots)?;
        let bytes = stacks.byte_range(plane).len();
        for expert in experts {
            let start = slots[*expert] as usize * RECORD;
            assert!(start + bytes <= bound.bytes);
            // SAFETY: all reads are done.
            let found = unsafe { std::slice::from_raw_parts(bound.start.add(start), bytes) };
            let from = (plane.offset + expert * RECORD) as u64;
            assert!(found.iter().zip(from..).all(|(found, at)| *found == byte(at)), "{layer} {expert}");
        }
    }
    Ok(())
}

#[test]
fn fetched_experts_are_complete_and_cached() {
    let (mut streamed, _) = cache(5);
    assert!(streamed.plane_at(10).is_none());
    for (layer, experts, found) in [
        (0, vec![0, 3, 5], 0),
        (1, vec![4, 5], 0),
        (0, vec![3, 0], 2),
        (1, vec![1, 4], 1),
        (0, vec![3, 2], 1),
    ] {
        let before = streamed.stats();
        fetch(&mut streamed, layer, &experts).unwrap();
        let counts = streamed.stats().since(&before);
        let requested = experts.iter().filter(|expert| **expert != 5).count() as u64;
        assert_eq!((counts.requests, counts.hits), (requested, found), "{layer} {experts:?}");
        assert_eq!(counts.read_bytes, (requested - found) * RECORD as u64, "{layer} {experts:?}");
    }
}

#[test]
fn cached_experts_are_repacked_once() {
    let layers = layers();
    let backwards = Repacking { group_bytes: 8, repack: |some, _| some.reverse() };
    let arrangements = layers[0].planes().map(|plane| (plane.offset, backwards)).collect();
    let (mut streamed, _) = repacking(5, arrangements);
    let mut fetched = |layer: usize, expert: usize| {
        let [first, plane] = [layers[layer].gate_up[0], layers[layer].down[0]];
        let [first, bound] =
            [first, plane].map(|plane| streamed.plane_at(plane.offset).expect("it is one of its planes"));
        let mut slots = vec![u32::MAX; 6];
        for bound in [first, bound] {
            streamed.fetch(bound, &[expert], &mut slots).unwrap();
        }
        let start = slots[expert] as usize * RECORD;
        // SAFETY: all reads are done.
        let found = unsafe { std::slice::from_raw_parts(bound.start.add(start), SUM).to_vec() };
        let mut wanted: Vec<u8> =
            (0..SUM).map(|at| byte((plane.offset + expert * RECORD + at) as u64)).collect();
        let is_arranged = streamed.is_repacked(bound, expert);
        if is_arranged {
            wanted.chunks_mut(8).for_each(|some| some.reverse());
        }
        assert_eq!(found, wanted, "expert {expert} of layer {layer}");
        is_arranged
    };
    // Three slots are for routed experts. The other layer is not repacked.
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
fn the_most_used_experts_are_loaded_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let usage = || UsageStats::load(&folder.path().join("weights.safetensors"), &layers());
    let mut progress = Vec::new();
    let begin = |progress: &mut Vec<(usize, usize)>| {
        cache(5).0.with_usage(usage(), &mut |done, all| progress.push((done, all))).unwrap()
    };
    let mut first = begin(&mut progress);
    assert_eq!(progress, [(0, 0); 2], "there are no counts yet");
    for experts in [[1, 4, 5], [4, 0, 5], [2, 3, 5]] {
        fetch(&mut first, 1, &experts).unwrap();
    }
    fetch(&mut first, 0, &[3, 5]).unwrap();
    drop(first);
    // Five slots, two of them for shared experts. Of the routed experts, expert 4 of layer 1 was used most.
    progress.clear();
    let mut second = begin(&mut progress);
    assert_eq!(progress, [(0, 3 * RECORD), (RECORD, 3 * RECORD)]);
    assert_eq!(second.stats(), CacheStats::default());
    for (layer, experts, found) in [(1, [4, 0], 2), (0, [3, 5], 1)] {
        let before = second.stats();
        fetch(&mut second, layer, &experts).unwrap();
        assert_eq!(second.stats().since(&before).hits, found, "{layer} {experts:?}");
    }
}

#[test]
fn loaded_experts_do_not_wait_for_the_others() {
    let (mut streamed, disk) = cache(5);
    let bound = streamed.plane_at(layers()[0].down[0].offset).expect("it is one of its planes");
    let mut slots = vec![u32::MAX; 6];
    streamed.request(bound, &[0, 3, 5], &mut slots).unwrap();
    let (mut coming, mut here) = (vec![0, 3, 5], Vec::new());
    while !coming.is_empty() {
        let some = streamed.wait_any(bound, &mut coming).unwrap();
        assert!(!some.is_empty(), "at least one expert has arrived");
        here.extend(some);
    }
    here.sort_unstable();
    assert_eq!(here, [0, 3, 5]);
    disk.0.store(1, Ordering::Relaxed);
    streamed.request(bound, &[4, 3], &mut slots).unwrap();
    let mut coming = vec![4, 3];
    assert_eq!(streamed.wait_any(bound, &mut coming).unwrap(), [3], "it is cached");
    let failed = streamed.wait_any(bound, &mut coming);
    assert_eq!(failed.unwrap_err(), "experts cannot be read: the disk is broken");
}

#[test]
fn prefetched_experts_are_read_early_and_are_not_hits() {
    let (mut streamed, disk) = cache(7);
    fetch(&mut streamed, 0, &[0, 1, 5]).unwrap();
    // Three of the five routed slots are free for prefetch.
    let before = streamed.stats();
    streamed.prefetch(1, &[3, 0, 2, 4]).unwrap();
    streamed.drain().unwrap();
    let record = RECORD as u64;
    let read = |streamed: &ExpertCache| streamed.stats().since(&before);
    assert_eq!(read(&streamed), CacheStats { read_bytes: 3 * record, ..CacheStats::default() });
    // Cached experts need no disk.
    disk.0.store(1, Ordering::Relaxed);
    fetch(&mut streamed, 1, &[0, 3, 5]).unwrap();
    let wanted = CacheStats {
        requests: 2,
        prefetch_hits: 2,
        miss_bytes: 2 * record,
        read_bytes: 3 * record,
        ..CacheStats::default()
    };
    assert_eq!(CacheStats { stall_time: Duration::ZERO, ..read(&streamed) }, wanted);
    fetch(&mut streamed, 0, &[0, 1, 5]).expect("experts of the last request are not evicted");
    disk.0.store(u64::MAX, Ordering::Relaxed);
    fetch(&mut streamed, 1, &[4, 1, 5]).unwrap();
    fetch(&mut streamed, 1, &[2, 3, 5]).unwrap();
}

#[test]
fn a_failed_prefetch_is_an_error_of_the_next_request() {
    let (mut streamed, disk) = cache(7);
    fetch(&mut streamed, 0, &[0, 1, 5]).unwrap();
    disk.0.store(1, Ordering::Relaxed);
    streamed.prefetch(1, &[3, 2]).unwrap();
    let message = fetch(&mut streamed, 1, &[3, 4, 5]).unwrap_err();
    assert_eq!(message, "experts cannot be read: the disk is broken");
    disk.0.store(u64::MAX, Ordering::Relaxed);
    for experts in [[3, 4, 5], [2, 0, 5]] {
        fetch(&mut streamed, 1, &experts).unwrap();
    }
}

#[test]
fn a_failed_read_is_an_error_and_is_repeated_later() {
    let (mut streamed, disk) = cache(5);
    fetch(&mut streamed, 0, &[0, 1]).unwrap();
    // The failure is in the last but one expert; those before it can be read.
    disk.0.store((11 + 4 * RECORD + INNER) as u64, Ordering::Relaxed);
    let message = fetch(&mut streamed, 0, &[0, 4]).unwrap_err();
    assert_eq!(message, "experts cannot be read: the disk is broken");
    fetch(&mut streamed, 0, &[0, 2]).unwrap();
    disk.0.store(u64::MAX, Ordering::Relaxed);
    fetch(&mut streamed, 0, &[4, 0, 5]).unwrap();
}

#[test]
fn changed_files_are_not_read() {
    let (mut streamed, disk) = cache(5);
    fetch(&mut streamed, 1, &[0, 1]).unwrap();
    disk.0.store(0, Ordering::Relaxed);
    assert_eq!(fetch(&mut streamed, 1, &[2]).unwrap_err(), "experts cannot be read: the file has changed");
    fetch(&mut streamed, 1, &[0, 1, 5]).unwrap();
}

#[test]
fn the_disk_bandwidth_test_leaves_complete_experts() {
    let (mut streamed, disk) = cache(5);
    disk.0.store(1, Ordering::Relaxed);
    assert_eq!(streamed.measure_disk_bandwidth().unwrap_err(), "experts cannot be read: the disk is broken");
    disk.0.store(u64::MAX, Ordering::Relaxed);
    let before = streamed.stats();
    assert!(streamed.measure_disk_bandwidth().unwrap() > 0.0);
    assert_eq!(streamed.stats(), before);
    for experts in [[0, 1, 5], [2, 3, 5]] {
        fetch(&mut streamed, 0, &experts).unwrap();
        fetch(&mut streamed, 1, &experts).unwrap();
    }
}
