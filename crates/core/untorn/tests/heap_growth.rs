//! Heaps that are given more address space than they were made with, and options that do not fit a heap.

mod common;

use common::child_process::kills;
use common::stepping::{killed_at_call, stop, traced};
use common::*;
use fastrand::Rng;
use std::alloc::Layout;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::ptr::NonNull;
use untorn::heap::{Heap, HeapOptions, LiveStart};
use untorn::{Error, Reader};

const MODE: &str = "UNTORN_TEST_GROWTH";
const PLACE: &str = "UNTORN_TEST_PLACE";
const MIB: u64 = 1 << 20;

fn of(mib: u64) -> HeapOptions {
    HeapOptions::new().create(true).address_space(mib * MIB)
}

fn space_of(heap: &Heap) -> u64 {
    heap.stats().unwrap().address_space_bytes / MIB
}

/// Allocates blocks of 3 MiB, each the root of its number, until there is no room.
fn fill(heap: &Heap) -> (usize, Error) {
    let have = heap.roots().len();
    for n in have.. {
        match heap.allocate(Layout::from_size_align(3 << 20, 8).unwrap()) {
            Ok(block) => {
                // SAFETY: allocated just now.
                unsafe { block.cast::<u64>().write(n as u64) };
                heap.set_root(&format!("block{n}"), Some(block.cast::<u64>())).unwrap();
            }
            Err(e) => return (n, e),
        }
    }
    unreachable!()
}

fn number(heap: &Heap, n: usize) -> u64 {
    let root: NonNull<u64> = heap.root(&format!("block{n}")).unwrap().expect("a root");
    // SAFETY: a root of this type.
    unsafe { root.read() }
}

#[track_caller]
fn is_whole(heap: &Heap, blocks: usize) {
    assert_eq!(heap.roots().len(), blocks);
    (0..blocks).for_each(|n| assert_eq!(number(heap, n), n as u64));
    let report = heap.check(&|_, _| {}).unwrap();
    assert!(report.is_sound() && report.leaks.unwrap().count == 0, "{:?}", report.problems);
}

/// In a second process: runs the mode in the environment.
#[test]
fn growth_child() {
    let Some(mode) = std::env::var_os(MODE) else { return };
    let place = PathBuf::from(std::env::var_os(PLACE).expect("a place"));
    if mode == "grow" || mode == "fill" {
        let heap = of(16).open(&place).unwrap();
        if mode == "fill" {
            fill(&heap);
        }
        heap.commit().unwrap();
        return heap.close().unwrap();
    }
    if let Some(mode) = mode.to_str().and_then(|mode| mode.strip_prefix("stepped ")) {
        traced();
        let heap = of(16).live(mode == "live").open(&place).unwrap();
        assert_eq!(space_of(&heap), 16);
        stop();
    }
    let is_live = mode == "live";
    let heap = of(16).live(is_live).open(&place).unwrap();
    assert_eq!(space_of(&heap), 16);
    let (blocks, _) = fill(&heap);
    if is_live {
        // SAFETY: blocks that were allocated since the last cut are not used any more.
        unsafe { heap.rollback() }.unwrap();
        is_whole(&heap, 2);
        assert_eq!((space_of(&heap), fill(&heap).0), (16, blocks));
    }
    // SAFETY: ends this process, like a kill.
    unsafe { libc::raise(libc::SIGKILL) };
}

fn killed(mode: &str, place: &Path) {
    let status = untorn_testkit::again!("growth_child").env(MODE, mode).env(PLACE, place).output().unwrap();
    assert_eq!(status.status.signal(), Some(libc::SIGKILL), "{}", String::from_utf8_lossy(&status.stderr));
}

fn done(mode: &str, place: &Path) {
    let child = untorn_testkit::again!("growth_child").env(MODE, mode).env(PLACE, place).output().unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

/// The advice in the error of a full heap works.
#[test]
fn a_full_heap_gets_more_address_space() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = of(8).open(&path).unwrap();
    let (blocks, e) = fill(&heap);
    let text = e.to_string();
    assert!(e.kind() == "no-memory" && blocks == 2, "{blocks}: {text}");
    assert!(
        text.contains("heap is full") && text.contains("8 MiB") && text.contains("larger `address_space`"),
        "{text}"
    );
    heap.commit().unwrap();
    let base = heap.memory().0;
    heap.close().unwrap();

    let heap = of(16).open(&path).unwrap();
    assert_eq!((heap.memory().0, space_of(&heap)), (base, 16));
    is_whole(&heap, 2);
    let (blocks, e) = fill(&heap);
    assert!(blocks == 4 && e.to_string().contains("16 MiB"), "{blocks}: {e}");
    // The new address space stays after a rollback and after a kill, even if nothing else was committed.
    // SAFETY: blocks that were allocated since the last commit are not used any more.
    unsafe { heap.rollback() }.unwrap();
    is_whole(&heap, 2);
    assert_eq!((space_of(&heap), fill(&heap).0), (16, 4));
    drop(heap);
    killed("usual", &path);
    let heap = Heap::open(&path).unwrap();
    assert_eq!(space_of(&heap), 16);
    is_whole(&heap, 2);
    fill(&heap);
    heap.commit().unwrap();
    heap.close().unwrap();
    // Asking for the present address space is no change.
    let heap = of(16).open(&path).unwrap();
    is_whole(&heap, 4);
}

#[test]
fn a_live_heap_gets_more_address_space() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = of(8).live(true).open(&path).unwrap();
    fill(&heap);
    heap.commit().unwrap();
    drop(heap);
    killed("live", &path);
    let heap = HeapOptions::new().create(true).live(true).open(&path).unwrap();
    assert_eq!((heap.live().unwrap().start, space_of(&heap)), (LiveStart::WentOn, 16));
    is_whole(&heap, 4);
    drop(heap);
    // Also for an opening that brings the memory's changes into the file.
    let heap = of(32).open(&path).unwrap();
    assert_eq!(space_of(&heap), 32);
    is_whole(&heap, 4);
    assert_eq!(fill(&heap).0, 8);
}

/// An opening that enlarges a heap is killed before or after a system call; some calls are chosen. Then the heap has
/// its old or its new address space, in memory and after a rollback.
#[test]
fn a_heap_that_gets_more_may_be_killed_at_any_call() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    for mode in ["live", "usual"] {
        let is_live = mode == "live";
        let killed = |stops: u64| {
            let dir = directory();
            let path = dir.path().join("heap");
            let heap = of(8).live(is_live).open(&path).unwrap();
            fill(&heap);
            heap.commit().unwrap();
            drop(heap);
            let mut child = untorn_testkit::again!("growth_child");
            child.env(MODE, format!("stepped {mode}")).env(PLACE, &path).stdout(Stdio::piped());
            let all = killed_at_call(&mut child, stops)?;
            let what = format!("seed {seed}, {mode}, killed at stop {stops}");
            let heap =
                HeapOptions::new().create(true).live(is_live).open(&path).unwrap_or_else(|e| panic!("{what}: {e}"));
            let space = space_of(&heap);
            assert!([8, 16].contains(&space), "{what}: {space}");
            // SAFETY: blocks that were allocated since the last commit are not used any more.
            unsafe { heap.rollback() }.unwrap();
            is_whole(&heap, 2);
            assert_eq!((space_of(&heap), fill(&heap).0 as u64), (space, space / 4), "{what}");
            heap.commit().unwrap();
            drop(heap);
            is_whole(&HeapOptions::new().create(true).open(&path).unwrap(), (space / 4) as usize);
            Some((all, space))
        };
        let Some((all, space)) = killed(u64::MAX) else { return skipped("cannot trace a child here") };
        assert!(space == 16 && all > 20, "{space} MiB, {all} stops");
        let rounds = kills(12).min(all);
        // One call in each part of the opening.
        let spaces = (0..rounds).map(|round| killed(all * round / rounds + rng.u64(..all / rounds)));
        let spaces: Vec<u64> = spaces.map(|killed| killed.expect("a child that was traced").1).collect();
        println!("seed {seed}: {mode}, {all} stops: {spaces:?}");
    }
}

/// Options that do not fit the heap are errors, which name the heap's own values.
#[test]
fn options_that_disagree_with_the_heap_are_refused() {
    let dir = directory();
    let path = dir.path().join("heap");
    let address = (18usize << 40) + (1 << 30);
    let heap = of(64).address(address).open(&path).unwrap();
    fill(&heap);
    heap.commit().unwrap();
    heap.close().unwrap();
    for is_live in [false, true] {
        let of = |mib| of(mib).live(is_live);
        let text = refused(of(32).open(&path), &["invalid"]).to_string();
        assert!(text.contains("64 MiB") && text.contains("32 MiB") && text.contains("`address_space`"), "{text}");
        let text = refused(of(64).address(address + (4 << 20)).open(&path), &["invalid"]).to_string();
        assert!(text.contains(&format!("{address:#x}")) && text.contains("`address`"), "{text}");
        let text = refused(of(14 << 20).open(&path), &["invalid"]).to_string();
        assert!(text.contains("at most") && text.contains("`address_space`"), "{text}");
        refused(HeapOptions::new().create(true).address_space(u64::MAX).live(is_live).open(&path), &["invalid"]);
    }
    let heap = of(63).address(address).open(&path).unwrap();
    assert_eq!((heap.memory().0.as_ptr() as usize, space_of(&heap)), (address, 64));
    // The addresses behind it belong to another heap.
    let other = dir.path().join("other");
    of(64).address(address + (64 << 20)).open(&other).unwrap().close().unwrap();
    heap.close().unwrap();
    let other = Heap::open(&other).unwrap();
    let text = refused(of(128).open(&path), &["invalid"]).to_string();
    assert!(text.contains("64 MiB") && text.contains("128 MiB"), "{text}");
    let heap = of(64).open(&path).unwrap();
    assert_eq!(space_of(&heap), 64);
    drop((heap, other));
    assert_eq!(space_of(&of(128).open(&path).unwrap()), 128);
}

/// Readers continue with a heap until it outgrows the addresses that they have mapped; then they get an error.
#[test]
fn readers_go_on_with_a_heap_that_grows() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = of(8).open(&path).unwrap();
    fill(&heap);
    heap.commit().unwrap();
    heap.close().unwrap();
    let reader = Reader::open(&path).unwrap();
    let mut copy = reader.heap("heap").unwrap();
    done("grow", &path);
    assert!(copy.refresh().unwrap());
    assert_eq!(copy.roots().len(), 2);
    done("fill", &path);
    let e = refused(copy.refresh(), &["conflict"]).to_string();
    assert!(e.contains("open it again"), "{e}");
    assert_eq!(copy.roots().len(), 2, "as before");
    drop(copy);
    assert_eq!(reader.heap("heap").unwrap().roots().len(), 4);
}
