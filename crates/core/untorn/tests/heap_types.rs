//! The collections of a heap, and types of the program's own in it.

mod common;

use common::*;
use std::collections::BTreeMap;
use untorn::heap::{Heap, HeapBTreeMap, HeapBox, HeapMap, HeapString, HeapVec, Storable};

/// The data of the tests.
#[derive(Storable)]
#[repr(C)]
struct Library<'h> {
    names: HeapMap<'h, HeapString<'h>, u32>,
    empty: HeapMap<'h, u64, u64>,
    shelves: HeapVec<'h, Shelf<'h>>,
    first: Option<HeapBox<'h, Link<'h>>>,
    point: Point,
}

#[derive(Storable)]
#[repr(C)]
struct Link<'h> {
    value: u64,
    next: Option<HeapBox<'h, Link<'h>>>,
}

#[derive(Debug, PartialEq, Storable)]
#[repr(C)]
enum Shelf<'h> {
    Named(HeapString<'h>),
    Numbered { number: u32, wide: bool },
    Empty,
}

#[derive(Clone, Copy, Debug, PartialEq, Storable)]
#[repr(C)]
struct Point(u32, u32);

#[test]
fn collections_are_found_again() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::open_or_create(&path).expect("create");
    let alloc = heap.allocator();
    let root = heap.root_or("library", |alloc| Library {
        names: HeapMap::new_in(alloc),
        empty: HeapMap::new_in(alloc),
        shelves: HeapVec::new_in(alloc),
        first: None,
        point: Point(1, 2),
    });
    // SAFETY: this thread alone uses it, and not after the heap is closed.
    let library = unsafe { &mut *root.expect("root").as_ptr() };
    let mut model = BTreeMap::new();
    for n in 0..3000u32 {
        let name = format!("name {}", n * 7 % 1000);
        model.insert(name.clone(), n);
        library.names.insert(HeapString::from_str_in(&name, alloc), n);
        if n % 3 == 0 {
            let gone = format!("name {}", n * 11 % 1000);
            assert_eq!(library.names.remove(gone.as_str()), model.remove(&gone));
        }
    }
    library.shelves.push(Shelf::Named(HeapString::from_str_in("fiction", alloc)));
    library.shelves.push(Shelf::Numbered { number: 3, wide: true });
    library.shelves.push(Shelf::Empty);
    let last = HeapBox::new_in(Link { value: 2, next: None }, alloc);
    library.first = Some(HeapBox::new_in(Link { value: 1, next: Some(last) }, alloc));
    heap.commit().expect("commit");
    heap.close().expect("close");

    // In another process, the constants of the program are at other addresses; a child must find this one's data.
    let out = untorn_testkit::again!("child").env(CHILD, &path).output().expect("run");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    let sum: u64 = model.values().map(|value| u64::from(*value)).sum();
    assert!(text.contains(&format!("{} names, {sum}", model.len())), "{text}");
}

const CHILD: &str = "UNTORN_TEST_TYPES";

#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let heap = Heap::open(path).expect("open");
    let root = heap.root::<Library<'_>>("library").expect("look").expect("a root");
    // SAFETY: this thread alone uses it, and not after the heap is closed.
    let library = unsafe { &mut *root.as_ptr() };
    let sum: u64 = library.names.values().map(|value| u64::from(*value)).sum();
    let found = library.names.keys().all(|name| library.names.contains_key(name.as_str()));
    assert!(found, "a key is there and is not found");
    assert_eq!(library.empty.get(&5), None);
    library.empty.insert(5, 6);
    assert_eq!(library.empty[&5], 6);
    library.empty.clear();
    assert_eq!(library.shelves[0], Shelf::Named(HeapString::from_str_in("fiction", heap.allocator())));
    assert_eq!(library.shelves[1], Shelf::Numbered { number: 3, wide: true });
    assert_eq!((&library.shelves[2], library.point), (&Shelf::Empty, Point(1, 2)));
    let values = std::iter::successors(library.first.as_ref(), |link| link.next.as_ref()).map(|link| link.value);
    assert_eq!(values.collect::<Vec<_>>(), [1, 2]);
    println!("{} names, {sum}", library.names.len());
    heap.commit().expect("commit");
}

/// Compares the ordered map with that of the standard library, with rollbacks; nothing leaks.
#[test]
fn the_ordered_map_is_as_the_standard_librarys() {
    let seed = seed();
    let mut rng = fastrand::Rng::with_seed(seed);
    let dir = directory();
    let heap = Heap::open_or_create(dir.path().join("heap")).expect("create");
    let alloc = heap.allocator();
    let root = heap.root_or("map", HeapBTreeMap::<u32, HeapString<'_>>::new_in).expect("root");
    // SAFETY: this thread alone uses it, and not after the heap is closed.
    let map = unsafe { &mut *root.as_ptr() };
    let mut model = BTreeMap::new();
    heap.commit().expect("commit");
    let mut committed = model.clone();
    for step in 0..40_000 {
        let key = rng.u32(..if step % 7 == 0 { 100 } else { 6000 });
        let grows = (step / 8000) % 2 == 0;
        match rng.u32(..100) {
            n if n < if grows { 60 } else { 25 } => {
                let old = map.insert(key, HeapString::from_str_in(&step.to_string(), alloc));
                let expected = model.insert(key, step.to_string());
                assert_eq!(old.as_deref(), expected.as_deref(), "seed {seed}, step {step}");
            }
            98 => {
                let from = map.iter_from(&key).take(50).map(|(key, value)| (*key, value.to_string()));
                let expected = model.range(key..).take(50).map(|(key, value)| (*key, value.clone()));
                assert!(from.eq(expected), "seed {seed}, step {step}");
            }
            99 if step % 5 == 0 => {
                heap.commit().expect("commit");
                committed.clone_from(&model);
            }
            99 if step % 5 == 1 => {
                // SAFETY: only the root, which is older than the commit, leads to the map.
                unsafe { heap.rollback() }.expect("rollback");
                model.clone_from(&committed);
            }
            _ => {
                let removed = map.remove(&key);
                assert_eq!(removed.as_deref(), model.remove(&key).as_deref(), "seed {seed}, step {step}");
            }
        }
        assert_eq!(map.len(), model.len());
        if step % 1000 == 0 {
            let same = map.iter().map(|(key, value)| (*key, value.as_str()));
            assert!(same.eq(model.iter().map(|(key, value)| (*key, value.as_str()))), "seed {seed}, step {step}");
            assert_eq!(map.last_key_value().map(|(key, _)| key), model.keys().next_back());
            assert_eq!(map.get(&key).map(HeapString::as_str), model.get(&key).map(String::as_str));
        }
    }
    assert_eq!(heap.check(&|_, _| {}).expect("check").leaks.expect("looked for").count, 0);
    for key in model.keys() {
        map.remove(key).expect("a key");
    }
    assert!(map.is_empty() && map.iter().next().is_none() && map.iter_from(&0).next().is_none());
}
