//! Collections that log their own changes: sections of live heaps undo them, and heaps with the tracker `explicit` commit
//! them, while the program declares none of their bytes.

mod common;

use common::child_process::{killed_after_pause, kills, output_after};
use common::*;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use untorn::TrackerKind;
use untorn::heap::{Heap, HeapBTreeMap, HeapOptions, HeapString, LiveStart, SectionLock, Storable};

/// The contents of the heap.
#[derive(Storable)]
#[repr(C)]
struct Root<'h> {
    map: HeapBTreeMap<'h, u64, HeapString<'h>>,
    text: HeapString<'h>,
}

/// The expected contents of the heap.
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
        // The map grows and shrinks in turns, so that nodes are split, merged, and lend each other entries from both
        // sides.
        n if n < if rng.u64(0..keys) > model.map.len() as u64 { 55 } else { 30 } => {
            let old = root.map.insert(key, HeapString::from_str_in(&value, alloc));
            assert_eq!(old.map(|old| old.to_string()), model.map.insert(key, value));
        }
        0..80 => {
            // Mostly existing keys.
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

/// Sizes of maps: one node, two levels, three levels.
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

/// A section that is aborted, or within which its process ends, has changed nothing; one that ends has changed
/// everything.
#[test]
fn sections_undo_what_collections_did() {
    let live =
        |path: &Path| HeapOptions::new().create(true).live(true).address_space(256 << 20).open(path).expect("open");
    let seed = seed();
    for keys in KEYS {
        let rng = &mut Rng::with_seed(seed ^ keys);
        let dir = directory();
        let path = dir.path().join("heap");
        let mut model = full(&live(&path), keys, rng);
        let (mut aborted, mut left) = (0, 0);
        for round in 0..30 {
            // A thread that ends within a section leaves the heap in the state after a kill.
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

/// A thread's data in the heap, and the number of its sections.
#[derive(Storable)]
#[repr(C)]
struct Part<'h> {
    root: Root<'h>,
    done: u64,
}

const THREADS: usize = 2;
const KILLED: &str = "UNTORN_TEST_KILLED_COLLECTIONS";
const PLACE: &str = "UNTORN_TEST_PLACE";

#[allow(clippy::mut_from_ref, reason = "one thread uses each part")]
fn part(heap: &Heap, thread: usize) -> &mut Part<'_> {
    let empty = |alloc| Root { map: HeapBTreeMap::new_in(alloc), text: HeapString::new_in(alloc) };
    let part = heap.root_or(&format!("part {thread}"), |alloc| Part { root: empty(alloc), done: 0 }).expect("a root");
    // SAFETY: one thread alone uses it.
    unsafe { &mut *part.as_ptr() }
}

/// Makes the changes of the part's next section, in the heap or in a model.
fn change_next(part: &mut Part<'_>, model: &mut Model, seed: u64, thread: usize) {
    let rng = &mut Rng::with_seed(seed ^ (part.done << 8) ^ thread as u64);
    for _ in 0..rng.u32(1..300) {
        change(&mut part.root, model, rng, 400);
    }
}

/// In a second process: runs sections of two threads, until it is killed.
#[test]
fn killed_child() {
    let Some(seed) = std::env::var(KILLED).ok().and_then(|seed| seed.parse().ok()) else { return };
    let place = std::env::var_os(PLACE).expect("a place");
    let heap = &HeapOptions::new().create(true).live(true).address_space(256 << 20).open(place).expect("open");
    let locks = [(); THREADS].map(|()| SectionLock::new());
    let _parts = [0, 1].map(|thread| part(heap, thread));
    println!("\nready");
    std::thread::scope(|scope| {
        for (thread, lock) in locks.iter().enumerate() {
            scope.spawn(move || {
                let part = part(heap, thread);
                let mut model = seen(&part.root);
                loop {
                    let section = heap.section_with(lock).expect("a section");
                    change_next(part, &mut model, seed, thread);
                    *section.modify(&mut part.done).expect("a number") += 1;
                    let done = part.done;
                    drop(section);
                    // Printing takes longer than a section.
                    if done.is_multiple_of(16) {
                        println!("did {thread} {done}");
                    }
                }
            });
        }
    });
}

/// Sections that change collections, killed at any moment: after each kill the heap has exactly the changes of the
/// sections that it counts, and it counts those that were acknowledged.
#[test]
fn a_kill_leaves_collections_whole() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let (path, other) = (dir.path().join("heap"), dir.path().join("other"));
    // A heap with the same changes and without kills.
    let shadow = HeapOptions::new().create(true).address_space(256 << 20).open(other).expect("open");
    let mut models = [(); THREADS].map(|()| Model::default());
    let rounds = kills(15);
    let mut undone = 0;
    for round in 0..rounds {
        let mut command = untorn_testkit::again!("killed_child");
        command.env(KILLED, seed.to_string()).env(PLACE, &path).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a child");
        let out = output_after(&mut child, "ready", &format!("seed {seed}, round {round}"));
        let pause = Duration::from_micros(rng.u64(..12_000));
        let mut acknowledged = [0; THREADS];
        for (thread, done) in killed_after_pause(child, out, pause) {
            acknowledged[thread] = done;
        }
        let heap = HeapOptions::new().create(true).live(true).address_space(256 << 20).open(&path).expect("open");
        let what = format!("seed {seed}, round {round}");
        let live = heap.live().expect("a live heap");
        assert_eq!(live.start, LiveStart::WentOn, "{what}");
        undone += live.undone;
        for (thread, model) in models.iter_mut().enumerate() {
            let (found, shadow) = (part(&heap, thread), part(&shadow, thread));
            assert!(found.done >= acknowledged[thread], "{what}: {} of {acknowledged:?}", found.done);
            while shadow.done < found.done {
                change_next(shadow, model, seed, thread);
                shadow.done += 1;
            }
            assert_eq!(seen(&found.root), *model, "{what}, thread {thread} after {} sections", found.done);
        }
        let report = heap.check(&|_, _| {}).expect("check");
        assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
        assert!(report.leaks.expect("looked for").count <= THREADS as u64, "{what}");
        // SAFETY: nobody has a pointer to the leaked blocks.
        unsafe { heap.collect(&|_, _| {}) }.expect("collect");
    }
    let done = [0, 1].map(|thread| part(&shadow, thread).done);
    println!("seed {seed}: {rounds} kills, {done:?} sections, {undone} undone");
    Heap::open(&path).expect("open").close().expect("close");
}

/// The debug check refuses a commit if any byte changed without having been declared.
#[test]
fn the_tracker_told_needs_nothing_else() {
    let told = |path: &Path| {
        HeapOptions::new().create(true).tracker(TrackerKind::Explicit).debug_unmarked(true).open(path).expect("open")
    };
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
