//! A process with a limit on memory: calls that need more fail, nothing is lost, and the process goes on.

mod common;

use common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::alloc::Layout;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use untorn::heap::{Heap, HeapOptions};
use untorn::{Gate, MapOptions, Result, Store, TrackerKind};

const MODE: &str = "UNTORN_TEST_NO_MEMORY";
const PLACE: &str = "UNTORN_TEST_PLACE";
const MIB: usize = 1 << 20;
/// The size of the caller's data: small enough for the journal itself, and more than the memory limit allows.
const BYTES: usize = 8 * MIB;

/// Runs `work` while this process may have only `more` additional bytes of memory.
fn limited<T>(more: usize, work: impl FnOnce() -> T) -> T {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let before = getrlimit(Resource::As);
    let limit = pages * rustix::param::page_size() as u64 + more as u64;
    setrlimit(Resource::As, Rlimit { current: Some(limit), maximum: before.maximum }).unwrap();
    let done = work();
    setrlimit(Resource::As, before).unwrap();
    done
}

/// Asserts that the call succeeded, or was refused for lack of memory. Returns whether it was refused.
#[track_caller]
fn is_refused<T>(done: Result<T>) -> bool {
    let done = done.map_err(|e| assert_eq!((e.kind(), e.to_string().contains("memory")), ("no-memory", true), "{e}"));
    REFUSED.fetch_add(u32::from(done.is_err()), Relaxed);
    done.is_err()
}

/// The number of calls that were refused in this process.
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// In a second process, with this many bytes for each step.
#[test]
fn limited_child() {
    let Some(mode) = std::env::var_os(MODE) else { return };
    let dir = PathBuf::from(std::env::var_os(PLACE).expect("a place"));
    let (mode, more) = mode.to_str().unwrap().split_once(' ').unwrap();
    let more = more.parse().unwrap();
    match mode {
        "file" => file(&dir, more),
        "read" => read(&dir, more),
        "map" => map(&dir, more, None),
        "told" => map(&dir, more, Some(TrackerKind::Explicit)),
        "heap" => heap(more, &HeapOptions::new().create(true).address_space(64 << 20).open(dir.join("heap")).unwrap()),
        "live" => heap(
            more,
            &HeapOptions::new().create(true).live(true).address_space(64 << 20).open(dir.join("heap")).unwrap(),
        ),
        "gate" => gate(&dir, more),
        "killed" => {
            let store = Store::open_or_create(&dir).unwrap();
            let file = store.open_or_create_file("file").unwrap();
            file.write_all_at(&vec![7; BYTES], 0).unwrap();
            file.commit().unwrap();
            // SAFETY: ends this process.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        other => panic!("{other}"),
    }
    println!("\nrefused {}", REFUSED.load(Relaxed));
}

fn file(dir: &Path, more: usize) {
    let store = Store::open_or_create(dir).unwrap();
    let file = store.open_or_create_file("file").unwrap();
    let bytes = vec![7; BYTES];
    let refused = limited(more, || is_refused(file.write_all_at(&bytes, 0)));
    assert_eq!(file.len().unwrap(), if refused { 0 } else { BYTES as u64 });
    assert!(refused || more > BYTES, "a write without the memory for it");
    file.write_all_at(&bytes, 0).unwrap();
    let refused = limited(more, || is_refused(file.commit()));
    assert!(refused || more > BYTES, "a commit without the memory for it");
    file.commit().unwrap();
    // A second overlay, into which the first is merged.
    file.write_all_at(&bytes[..BYTES / 2], 100).unwrap();
    limited(more, || is_refused(file.commit()));
    limited(more, || is_refused(store.checkpoint()));
    file.commit().unwrap();
    store.checkpoint().unwrap();
    assert!(contents(&file) == bytes);
    drop(file);
    store.close().unwrap();
}

fn read(dir: &Path, more: usize) {
    let store = Store::open_or_create(dir).unwrap();
    let file = store.open_file("file").unwrap();
    let mut byte = [0];
    limited(more, || is_refused(file.read_exact_at(&mut byte, BYTES as u64 / 2)));
    limited(more, || is_refused(store.checkpoint()));
    file.read_exact_at(&mut byte, BYTES as u64 / 2).unwrap();
    assert_eq!(byte, [7]);
    store.checkpoint().unwrap();
    assert!(contents(&file) == vec![7; BYTES]);
}

fn map(dir: &Path, more: usize, tracker: Option<TrackerKind>) {
    let store = Store::open_or_create(dir).unwrap();
    let file = store.open_or_create_file("file").unwrap();
    file.set_len(BYTES as u64).unwrap();
    file.commit().unwrap();
    let options = MapOptions::new().address_space(BYTES as u64);
    let map = file.map_with(&tracker.map_or(options, |tracker| options.tracker(tracker))).unwrap();
    let bytes = vec![7; BYTES];
    for round in 0..2 {
        map.store(&bytes, 0).unwrap();
        if tracker == Some(TrackerKind::Explicit) {
            map.mark_dirty(map.as_ptr(), BYTES).unwrap();
        }
        match round {
            0 => {
                limited(more, || is_refused(map.rollback()));
                map.rollback().unwrap();
                assert!(contents(&file) == vec![0; BYTES]);
            }
            _ => {
                limited(more, || is_refused(map.msync()));
                map.msync().unwrap();
            }
        }
    }
    assert!(contents(&file) == bytes);
}

fn heap(more: usize, heap: &Heap) {
    let block = heap.allocate(Layout::from_size_align(BYTES, 8).unwrap()).unwrap();
    // SAFETY: allocated just now.
    unsafe { block.as_ptr().write_bytes(7, BYTES) };
    heap.set_root("block", Some(block)).unwrap();
    limited(more, || is_refused(heap.commit()));
    heap.commit().unwrap();
    // SAFETY: as above.
    unsafe { block.as_ptr().write_bytes(8, BYTES) };
    // SAFETY: nobody uses anything that was allocated since.
    limited(more, || is_refused(unsafe { heap.rollback() }));
    // SAFETY: as above.
    unsafe { heap.rollback() }.unwrap();
    // SAFETY: an allocation of this many bytes.
    assert!(unsafe { std::slice::from_raw_parts(block.as_ptr(), BYTES) } == vec![7; BYTES]);
    limited(more, || is_refused(heap.check(&|_, _| {})));
    assert!(heap.check(&|_, _| {}).unwrap().is_sound());
}

fn gate(dir: &Path, more: usize) {
    let gate = Gate::with_bytes_max(BYTES).unwrap();
    let output = gate.output(std::fs::File::create(dir.join("out")).unwrap().into());
    let bytes = vec![7; BYTES];
    let refused = limited(more, || is_refused(output.write(&bytes, None)));
    assert!(refused || more > BYTES);
    output.write(&bytes, None).unwrap();
    gate.drain().unwrap();
    let written = std::fs::metadata(dir.join("out")).unwrap().len();
    assert_eq!(written, if refused { BYTES } else { 2 * BYTES } as u64);
}

/// Runs children with more and more memory, until there is enough.
fn with_more_and_more(mode: &str, prepare: impl Fn(&Path)) {
    let mut refused = Vec::new();
    for more in [MIB, 2 * MIB, 5 * MIB, 9 * MIB, 14 * MIB, 18 * MIB, 40 * MIB, 400 * MIB] {
        let dir = directory();
        prepare(dir.path());
        let mut child = untorn_testkit::again!("limited_child");
        // No large block comes from memory that the allocator has reserved or kept.
        child.env("MALLOC_ARENA_MAX", "1").env("MALLOC_MMAP_THRESHOLD_", "65536");
        let child = child.env(MODE, format!("{mode} {more}")).env(PLACE, dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{mode} with {more} bytes: {}: {said}", child.status);
        let told = String::from_utf8_lossy(&child.stdout);
        let number = told.lines().find_map(|line| line.strip_prefix("refused ")?.parse::<u32>().ok());
        refused.push(number.expect("the number of refused calls"));
    }
    println!("{mode}: {refused:?} calls refused");
    // Reading what a killed process has committed takes less than a MiB.
    assert_eq!(refused[0] > 0, mode != "read", "{mode}: {refused:?} calls refused");
    assert_eq!(refused.last(), Some(&0), "{mode}: {refused:?} calls refused");
}

#[test]
fn files_of_a_process_with_little_memory() {
    with_more_and_more("file", |_| {});
}

#[test]
fn commits_in_the_journal_of_a_process_with_little_memory() {
    with_more_and_more("read", |dir| {
        let mut child = untorn_testkit::again!("limited_child");
        let killed = child.env(MODE, "killed 0").env(PLACE, dir).output().unwrap();
        assert_eq!(killed.status.signal(), Some(libc::SIGKILL));
    });
}

#[test]
fn maps_of_a_process_with_little_memory() {
    with_more_and_more("map", |_| {});
    with_more_and_more("told", |_| {});
}

#[test]
fn heaps_of_a_process_with_little_memory() {
    with_more_and_more("heap", |_| {});
    with_more_and_more("live", |_| {});
}

#[test]
fn outputs_of_a_process_with_little_memory() {
    with_more_and_more("gate", |_| {});
}
