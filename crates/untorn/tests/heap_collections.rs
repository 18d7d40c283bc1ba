//! Collections that tell of their changes by themselves: sections of live heaps undo them, heaps with the tracker `told`
//! commit them, and the program names none of their bytes.

mod common;

use common::*;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use untorn::Tracker;
use untorn::heap::{Heap, HeapBTreeMap, HeapOptions, HeapString, Storable};

/// What is in the heap.
#[derive(Storable)]
#[repr(C)]
struct Root<'h> {
    map: HeapBTreeMap<'h, u64, HeapString<'h>>,
    text: HeapString<'h>,
}

/// What the heap should have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    map: BTreeMap<u64, String>,
    text: String,
}

#[allow(clippy::mut_from_ref, reason = "one thread uses the heap")]
fn root(heap: &Heap) -> &mut Root<'_> {
    let root = heap
        .root_or("root", |alloc| Root { map: HeapBTreeMap::new_in(alloc), text: HeapString::new_in(alloc) })
        .expect("a root");
    // SAFETY: this thread alone uses the root.
    unsafe { &mut *root.as_ptr() }
}

fn seen(root: &Root<'_>) -> Model {
    let map: BTreeMap<u64, String> = root.map.iter().map(|(key, value)| (*key, value.to_string())).collect();
    assert_eq!(map.len(), root.map.len());
    assert!(map.keys().all(|key| root.map.contains_key(key)), "found by iterating, and not by looking");
    Model { map, text: root.text.to_string() }
}

/// One change, in the heap and in the model.
fn change(root: &mut Root<'_>, model: &mut Model, rng: &mut Rng, keys: u64) {
    let alloc = root.map.allocator();
    let key = rng.u64(0..keys);
    let value = "value ".repeat(rng.usize(0..4));
    match rng.u32(0..100) {
        // Grows and shrinks in turns: nodes are split, merged, and lend each other entries from both sides.
        n if n < if rng.u64(0..keys) > model.map.len() as u64 { 55 } else { 30 } => {
            let old = root.map.insert(key, HeapString::from_str_in(&value, alloc));
            assert_eq!(old.map(|old| old.to_string()), model.map.insert(key, value));
        }
        0..80 => {
            // Keys that are there, mostly.
            let key = model.map.range(key..).next().map_or(key, |(key, _)| *key);
            let old = root.map.remove(&key);
            assert_eq!(old.map(|old| old.to_string()), model.map.remove(&key));
        }
        80..90 => {
            if let (Some(ours), Some(theirs)) = (root.map.get_mut(&key), model.map.get_mut(&key)) {
                ours.push_str("more");
                ours.make_ascii_uppercase();
                *theirs = format!("{theirs}more").to_ascii_uppercase();
            }
        }
        90..94 => {
            root.text.push_str(&value);
            model.text.push_str(&value);
        }
        94..97 => {
            let len = rng.usize(0..=model.text.len());
            root.text.truncate(len);
            model.text.truncate(len);
        }
        97 => {
            root.text.make_ascii_uppercase();
            model.text.make_ascii_uppercase();
        }
        98 if rng.u32(0..20) == 0 => {
            root.map.clear();
            model.map.clear();
        }
        _ => {
            root.text.clear();
            model.text.clear();
        }
    }
}

/// How large maps become: one node, two levels, three levels.
const KEYS: [u64; 3] = [40, 400, 4000];

fn full(heap: &Heap, keys: u64, rng: &mut Rng) -> Model {
    let mut model = Model::default();
    for key in (0..keys).filter(|_| rng.bool()) {
        root(heap).map.insert(key, HeapString::from_str_in("first", heap.allocator()));
        model.map.insert(key, "first".to_owned());
    }
    heap.commit().expect("commit");
    model
}

/// A section that is aborted, or within which its process ends, has changed nothing; one that ends, everything.
#[test]
fn sections_undo_what_collections_did() {
    let live = |path: &Path| HeapOptions::new().live(true).address_space(256 << 20).open(path).expect("open");
    let seed = seed();
    for keys in KEYS {
        let rng = &mut Rng::with_seed(seed ^ keys);
        let dir = directory();
        let path = dir.path().join("heap");
        let mut model = full(&live(&path), keys, rng);
        let (mut aborted, mut left) = (0, 0);
        for round in 0..30 {
            // A thread that ends within a section leaves the heap as a killed process does.
            let ends = std::thread::scope(|scope| {
                let (path, model, rng, aborted) = (&path, &mut model, &mut *rng, &mut aborted);
                let work = scope.spawn(move || {
                    let heap = live(path);
                    assert_eq!(seen(root(&heap)), *model, "round {round}, opened");
                    for _ in 0..rng.u32(1..6) {
                        let section = heap.section().expect("a section");
                        let mut next = model.clone();
                        for _ in 0..rng.u32(1..60) {
                            change(root(&heap), &mut next, rng, keys);
                        }
                        match rng.u32(0..6) {
                            0 | 1 => {
                                // SAFETY: nothing of the section is used.
                                unsafe { section.abort() }.expect("abort");
                                assert_eq!(seen(root(&heap)), *model, "round {round}, aborted");
                                *aborted += 1;
                            }
                            2 => {
                                std::mem::forget(section);
                                return true;
                            }
                            _ => *model = next,
                        }
                    }
                    false
                });
                work.join().expect("a thread")
            });
            left += u32::from(ends);
        }
        let heap = live(&path);
        assert_eq!(seen(root(&heap)), model);
        assert!(aborted > 2 && left > 2, "{aborted} aborted, {left} left");
        heap.close().expect("close");
        let report = untorn::offline::check_heap(&path, &|_, _| {}).expect("check");
        assert_eq!((report.problems, report.leaks.expect("looked for").count), (Vec::new(), 0));
    }
}

/// Its check refuses a commit if bytes had changed that nobody told of.
#[test]
fn the_tracker_told_needs_nothing_else() {
    let told = |path: &Path| HeapOptions::new().tracker(Tracker::Told).debug_told(true).open(path).expect("open");
    let seed = seed();
    for keys in KEYS {
        let rng = &mut Rng::with_seed(seed ^ keys);
        let dir = directory();
        let path = dir.path().join("heap");
        let mut model = full(&told(&path), keys, rng);
        for round in 0..6 {
            let heap = told(&path);
            assert_eq!(seen(root(&heap)), model, "round {round}, opened");
            for _ in 0..20 {
                let mut next = model.clone();
                for _ in 0..rng.u32(1..20) {
                    change(root(&heap), &mut next, rng, keys);
                }
                if rng.u32(0..4) == 0 {
                    // SAFETY: nothing that was made since the commit is used.
                    unsafe { heap.rollback() }.expect("rollback");
                    assert_eq!(seen(root(&heap)), model, "round {round}, rolled back");
                } else {
                    heap.commit().expect("commit");
                    model = next;
                }
            }
        }
        assert_eq!(seen(root(&told(&path))), model);
    }
}
