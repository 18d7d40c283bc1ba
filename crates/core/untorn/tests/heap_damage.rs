//! Damaged heaps: any contents of the file, and any stores over the metadata while it is open, lead to an error or to
//! success, never to a panic or a signal. The work runs in a second process, so that a signal can be reported.

mod common;

use common::*;
use fastrand::Rng;
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use untorn::heap::{Heap, HeapOptions};
use untorn::offline::{check_heap, dump_heap};
use untorn::{Error, FailureClass, StoreOptions};

const DIR: &str = "UNTORN_TEST_DAMAGE_DIR";
const SEGMENT: usize = 4 << 20;
const CHUNK: usize = 64 << 10;
const METADATA: usize = CHUNK;
const IMAGES: u64 = 120;

fn quiet(_: u64, _: u64) {}

fn options() -> HeapOptions {
    // These tests are not about power cuts.
    HeapOptions::new().create(false).store(StoreOptions::default().class(FailureClass::Process))
}

/// Sound heaps, with their allocations: one of small blocks, one with large allocations, one with a huge allocation in
/// the middle.
fn make(dir: &Path, n: usize) -> Vec<usize> {
    let heap = options().create(true).open(dir.join(n.to_string())).expect("create");
    let sizes: &[(usize, usize)] = match n {
        0 => &[(10, 30), (100, 700), (1000, 70), (30_000, 5)],
        1 => &[(48, 20), (100_000, 3), (700, 20), (1_000_000, 4), (300_000, 2)],
        _ => &[(64, 50), (9_000_000, 1), (5000, 40), (4_000_000, 1), (200_000, 3)],
    };
    let mut blocks = Vec::new();
    for (bytes, count) in sizes {
        let layout = Layout::from_size_align(*bytes, 8).expect("a layout");
        blocks.extend((0..*count).map(|_| heap.allocate(layout).expect("allocate")));
    }
    heap.set_root("first", Some(blocks[0].cast::<u64>())).expect("root");
    heap.set_root("second", Some(blocks[1].cast::<[u8; 8]>())).expect("root");
    for pair in blocks.windows(2) {
        // SAFETY: blocks of 10 bytes at least.
        unsafe { pair[0].cast::<NonNull<u8>>().write_unaligned(pair[1]) };
    }
    heap.commit().expect("commit");
    let base = heap.memory().0.as_ptr() as usize;
    heap.close().expect("close");
    blocks.into_iter().map(|block| block.as_ptr() as usize - base).collect()
}

/// Writes a file with these contents, and holes for zeros.
fn put(path: &Path, bytes: &[u8]) {
    let file = fs::File::create(path).expect("create");
    file.set_len(bytes.len() as u64).expect("size");
    for (n, page) in bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
        file.write_all_at(page, n as u64 * 4096).expect("write");
    }
}

/// A number that is likely to be wrong.
fn absurd(rng: &mut Rng) -> u64 {
    let some = [0, 1, 2, 3, 4, 40, 41, 63, 64, 65, 1 << 16, 1 << 22, u64::from(u32::MAX), 1 << 42, 1 << 63, u64::MAX];
    match rng.u32(..3) {
        0 => some[rng.usize(..some.len())],
        1 => some[rng.usize(..some.len())].wrapping_add(rng.u64(..8)).wrapping_sub(4),
        _ => rng.u64(..) >> rng.u32(..64),
    }
}

fn sum(image: &mut [u8]) {
    let sum = untorn_journal::format::crc64(&image[..40]);
    image[40..48].copy_from_slice(&sum.to_le_bytes());
}

/// Stores wrong values over metadata.
fn spoil(metadata: &mut [u8], rng: &mut Rng) {
    for _ in 0..rng.usize(1..12) {
        match rng.u32(..5) {
            // A descriptor: its kind, count, or number of bytes.
            0 | 1 => {
                let at = 4096 + rng.usize(..64) * 64 + [0, 4, 8][rng.usize(..3)];
                let value = if rng.bool() { rng.u64(..5) } else { absurd(rng) };
                metadata[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
            }
            // Bitmaps.
            2 => {
                let at = 8192 + rng.usize(..64 * 64) * 8;
                metadata[at..at + 8].copy_from_slice(&absurd(rng).to_le_bytes());
            }
            // Roots.
            3 => {
                let at = 40960 + rng.usize(..3 * 24) * 8;
                metadata[at..at + 8].copy_from_slice(&absurd(rng).to_le_bytes());
            }
            _ => {
                let at = rng.usize(4096..metadata.len());
                metadata[at] ^= 1 << rng.u32(..8);
            }
        }
    }
    if rng.u32(..8) == 0 {
        let page = 4096 * rng.usize(1..metadata.len() / 4096);
        metadata[page..page + 4096].fill_with(|| rng.u8(..));
    }
}

fn damage(image: &mut Vec<u8>, rng: &mut Rng) {
    let segments = image.len() / SEGMENT;
    match rng.u32(..10) {
        0 => {
            // A wrong header with a valid checksum.
            let field = [16, 24, 32][rng.usize(..3)];
            let old = u64::from_le_bytes(image[field..field + 8].try_into().expect("eight"));
            let new = if rng.bool() { absurd(rng) } else { old.wrapping_add(absurd(rng).wrapping_mul(4096)) };
            image[field..field + 8].copy_from_slice(&new.to_le_bytes());
            sum(image);
        }
        1 => {
            let len = if rng.bool() { rng.usize(..image.len()) } else { rng.usize(..=segments) * SEGMENT };
            image.truncate(len);
            if len >= 48 && rng.bool() {
                image[32..40].copy_from_slice(&((len / SEGMENT) as u64).to_le_bytes());
                sum(image);
            }
        }
        2 => {
            let more = rng.usize(1..3);
            let filled = if rng.bool() { rng.u8(..) } else { 0 };
            image.resize(image.len() + more * SEGMENT, filled);
            if rng.bool() {
                image[32..40].copy_from_slice(&((segments + more) as u64).to_le_bytes());
                sum(image);
            }
        }
        3 if segments > 1 => {
            // Swaps the metadata of two segments, except for the header.
            let (a, b) = (rng.usize(..segments), rng.usize(..segments));
            let head = image[..4096].to_vec();
            for at in 0..METADATA {
                image.swap(a * SEGMENT + at, b * SEGMENT + at);
            }
            image[..4096].copy_from_slice(&head);
        }
        _ => {
            let segment = rng.usize(..segments);
            spoil(&mut image[segment * SEGMENT..][..METADATA], rng);
        }
    }
}

/// Checks an outcome: a damaged heap may return only some errors.
fn outcome<T>(result: Result<T, Error>, sound: bool, what: &str) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(e) => {
            assert!(!sound || e.kind() != "corrupt", "{what}: called sound, and then {e}");
            assert!(
                ["corrupt", "invalid", "no-memory", "layout-changed"].contains(&e.kind()),
                "{what}: {}: {e}",
                e.kind()
            );
            None
        }
    }
}

/// Uses a heap as a program would.
fn exercise(heap: &Heap, blocks: &[usize], sound: bool, rng: &mut Rng) {
    let (base, len) = heap.memory();
    let mut new: BTreeMap<usize, (usize, NonNull<u8>)> = BTreeMap::new();
    for _ in 0..rng.usize(..150) {
        match rng.u32(..20) {
            0..8 => {
                let bytes = match rng.u32(..40) {
                    0..30 => rng.usize(..2000),
                    30..36 => rng.usize(..40_000),
                    36..39 => rng.usize(..600_000),
                    _ => rng.usize(4_000_000..10_000_000),
                };
                let layout = Layout::from_size_align(bytes, 1 << rng.u32(..13)).expect("a layout");
                let Some(block) = outcome(heap.allocate(layout), sound, "allocate") else { continue };
                let start = block.as_ptr() as usize - base.as_ptr() as usize;
                assert!(start % SEGMENT >= METADATA || bytes > SEGMENT, "metadata was given out");
                let before = new.range(..start + bytes.max(1)).next_back();
                assert!(before.is_none_or(|(at, (bytes, _))| at + bytes <= start), "given out twice");
                // SAFETY: it was allocated just now.
                unsafe { block.write_bytes(0xee, bytes.min(5000)) };
                new.insert(start, (bytes.max(1), block));
            }
            8..10 => {
                let Some(start) = new.keys().nth(rng.usize(..new.len().max(1))).copied() else { continue };
                let (_, block) = new.remove(&start).expect("there");
                // SAFETY: nobody uses it.
                outcome(unsafe { heap.free(block) }, sound, "free");
            }
            10..15 => {
                // An earlier allocation, or an address near it, but none that this run uses.
                let at = blocks[rng.usize(..blocks.len())] + if rng.bool() { 0 } else { rng.usize(..SEGMENT) };
                let near = new.range(..=at).next_back().map(|(start, (bytes, _))| start + bytes);
                if at < len && near.is_none_or(|end| end <= at) && !new.contains_key(&at) {
                    // SAFETY: inside the heap.
                    let address = unsafe { base.add(at) };
                    outcome(heap.size_of(address), sound, "size_of");
                    // SAFETY: nobody uses it.
                    outcome(unsafe { heap.free(address) }, sound, "free");
                }
            }
            15 => {
                outcome(heap.root::<u64>("first"), sound, "root");
                outcome(heap.root_info("second"), sound, "root_info");
                outcome(heap.root_or("third", |_| 7u64), sound, "root_or");
                heap.roots();
            }
            16 => {
                let any = new.values().next().map(|(_, block)| block.cast::<u8>());
                outcome(heap.set_root(["first", "second", "new"][rng.usize(..3)], any), sound, "set_root");
            }
            17 => _ = outcome(heap.check(&quiet), sound, "check"),
            18 => _ = outcome(heap.commit(), sound, "commit"),
            _ => {
                // SAFETY: nothing that was allocated since is used.
                outcome(unsafe { heap.rollback() }, sound, "rollback");
                return;
            }
        }
    }
}

fn damaged(dir: &Path, blocks: &[Vec<usize>], seed: u64) {
    let rng = &mut Rng::with_seed(seed);
    let kind = rng.usize(..blocks.len());
    let mut image = plain(dir.join(kind.to_string()));
    let while_open = rng.u32(..3) == 0;
    if !while_open {
        damage(&mut image, rng);
    }
    // Each image in a file of its own: some file systems flush a file that is truncated and rewritten.
    let dir = tempfile::tempdir_in(dir).expect("a directory");
    let path = dir.path().join("damaged");
    put(&path, &image);
    let allowed = ["corrupt", "foreign", "newer-version"];
    let report = match check_heap(&path, &quiet) {
        Ok(report) => report,
        Err(e) => {
            assert!(allowed.contains(&e.kind()), "{}: {e}", e.kind());
            let opened = options().open(&path);
            assert!(image.is_empty() || opened.is_err(), "opened, and never looked at");
            return;
        }
    };
    assert!(!while_open || report.is_sound(), "{:?}", report.problems);
    assert_eq!(dump_heap(&path, &quiet).expect("dump").problems, report.problems);
    let heap = match options().open(&path) {
        Ok(heap) => heap,
        Err(e) => {
            assert!(!report.is_sound() || e.kind() != "corrupt", "called sound, and then {e}");
            assert!(allowed.contains(&e.kind()) || ["invalid", "no-memory"].contains(&e.kind()), "{}: {e}", e.kind());
            return;
        }
    };
    exercise(&heap, &blocks[kind], report.is_sound(), rng);
    if while_open {
        // A stray store by the program, between two operations.
        let (base, len) = heap.memory();
        let segment = rng.usize(..len / SEGMENT);
        let mut metadata = vec![0; METADATA];
        let at = heap.file().read_at(&mut metadata, (segment * SEGMENT) as u64).expect("read");
        assert_eq!(at, METADATA);
        spoil(&mut metadata, rng);
        if rng.bool() {
            metadata[32..40].copy_from_slice(&absurd(rng).to_le_bytes());
        }
        mapping::unprotect(&heap);
        // SAFETY: inside the heap; the effect on the allocator is the subject of this test.
        unsafe { base.add(segment * SEGMENT).copy_from(NonNull::from(&metadata[0]), METADATA) };
        exercise(&heap, &blocks[kind], false, rng);
    }
    // Even a sound heap may fail here: a root may point to a freed block.
    // SAFETY: nobody uses the heap any more.
    let collected = outcome(unsafe { heap.collect(&quiet) }, false, "collect").is_some();
    outcome(heap.commit(), false, "commit");
    assert!(!collected || heap.check(&quiet).expect("check").is_sound(), "a collection of a sound heap leaves it so");
    heap.close().expect("close");
}

/// A directory in memory, if heaps can be there.
fn fast_directory() -> tempfile::TempDir {
    match tempfile::tempdir_in("/dev/shm") {
        Ok(dir) if Heap::open_or_create(dir.path().join("try")).is_ok() => dir,
        _ => directory(),
    }
}

#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    // SAFETY: ends a process that hangs, by a signal that the parent reports.
    unsafe { libc::alarm(300) };
    let first = seed();
    let blocks: Vec<_> = (0..3).map(|n| make(&dir, n)).collect();
    let images = std::env::var("UNTORN_HEAP_IMAGES").map_or(IMAGES, |text| text.parse().expect("a number"));
    for seed in first..first + images {
        println!("image {seed}");
        damaged(&dir, &blocks, seed);
    }
}

#[test]
fn damaged_heaps_are_refused_or_served() {
    let dir = fast_directory();
    let output = untorn_testkit::again!("child").env(DIR, dir.path()).output().expect("a second process");
    if output.status.success() {
        return;
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let image = said.lines().rev().find(|line| line.contains("image ")).unwrap_or("making the heaps");
    let seed = image.rsplit(' ').next().unwrap_or_default();
    panic!(
        "{image} failed (signal {:?}); UNTORN_TEST_SEED={seed} UNTORN_HEAP_IMAGES=1 repeats it:\n{}",
        output.status.signal(),
        String::from_utf8_lossy(&output.stderr)
    );
}
