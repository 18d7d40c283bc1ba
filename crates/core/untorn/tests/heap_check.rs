//! Checks of heaps: contents, leaks, the state after a kill, damage.

mod common;

use common::*;
use fastrand::Rng;
use std::alloc::Layout;
use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::ptr::NonNull;
use untorn::Store;
use untorn::heap::{Heap, HeapChunk, HeapOptions, HeapReport};
use untorn::offline::{check_heap, collect_heap, dump_heap};

fn quiet(_: u64, _: u64) {}

/// A zeroed block.
fn block(heap: &Heap, bytes: usize) -> *mut u8 {
    let block = heap.allocate(Layout::from_size_align(bytes, 8).expect("a layout")).expect("allocate").as_ptr();
    let bytes = heap.size_of(NonNull::new(block).expect("an address")).expect("size");
    // SAFETY: an allocation of this many bytes.
    unsafe { block.write_bytes(0, bytes) };
    block
}

/// Stores a pointer at a byte offset of a block.
fn link(from: *mut u8, at: usize, to: *mut u8) {
    // SAFETY: the tests stay within their blocks.
    unsafe { from.add(at).cast::<*mut u8>().write_unaligned(to) };
}

/// A block with this many pointers, as a root.
fn table(heap: &Heap, name: &str, entries: usize) -> *mut u8 {
    let table = block(heap, entries * 8);
    heap.set_root(name, NonNull::new(table)).expect("root");
    table
}

fn leaks(report: &HeapReport) -> (u64, u64) {
    let leaks = report.leaks.as_ref().expect("looked for");
    (leaks.count, leaks.bytes)
}

fn lost(report: &HeapReport) -> BTreeSet<u64> {
    report.leaks.as_ref().expect("looked for").largest.iter().map(|leak| leak.address).collect()
}

/// Random blocks of all sizes: exactly those whose pointers are removed are reported as leaks.
#[test]
fn what_no_root_reaches_has_leaked() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::open_or_create(&path).expect("create");
    let entries = 2000;
    let all = table(&heap, "all", entries);
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    for n in 0..entries {
        let bytes = match rng.u32(..100) {
            0..90 => rng.usize(8..600),
            90..98 => rng.usize(600..33_000),
            98 => rng.usize(33_000..300_000),
            _ if n % 500 == 7 => rng.usize(4 << 20..10 << 20),
            _ => 8,
        };
        let new = block(&heap, bytes);
        if rng.u32(..4) == 0 {
            gone.push(new);
        } else {
            // From the table, or from a block that is kept: to any place in the new block, or right behind it if
            // nothing begins there.
            let inside = rng.usize(..bytes);
            let free_entry = || link(all, n * 8, new.wrapping_add(inside));
            match kept.last() {
                Some((last, 16.., false)) if rng.bool() => {
                    link(*last, 3, new);
                    let last = kept.len() - 1;
                    kept[last].2 = true;
                }
                _ => free_entry(),
            }
            kept.push((new, bytes, false));
        }
    }
    let report = heap.check(&quiet).expect("check");
    assert!(report.is_sound(), "seed {seed}: {:?}", report.problems);
    let taken = |block: &*mut u8| heap.size_of(NonNull::new(*block).expect("an address")).expect("size") as u64;
    let wanted = (gone.len() as u64, gone.iter().map(taken).sum());
    assert_eq!(leaks(&report), wanted, "seed {seed}");
    let mut sizes: Vec<u64> = gone.iter().map(taken).collect();
    sizes.sort_by_key(|bytes| std::cmp::Reverse(*bytes));
    let largest = report.leaks.as_ref().expect("looked for").largest.iter().map(|leak| leak.bytes);
    assert_eq!(largest.collect::<Vec<_>>(), sizes[..20], "seed {seed}");

    let used: u64 = report.classes.iter().map(|class| class.used).sum();
    assert_eq!(used + report.large.count + report.huge.count, 1 + entries as u64);
    assert_eq!(report.chunks.len() as u64 * 65536, report.heap_bytes);
    let free = report.chunks.iter().filter(|chunk| **chunk == HeapChunk::Free).count() as u64;
    assert_eq!(report.free_bytes, free * 65536);

    // After a collection exactly these blocks are free, and a rollback brings them back.
    heap.commit().expect("commit");
    // SAFETY: nobody uses the leaked blocks.
    assert_eq!(leaks(&unsafe { heap.collect(&quiet) }.expect("collect")), wanted);
    for block in &gone {
        refused(heap.size_of(NonNull::new(*block).expect("an address")), &["invalid"]);
    }
    for (block, ..) in &kept {
        heap.size_of(NonNull::new(*block).expect("an address")).expect("still there");
    }
    assert_eq!(leaks(&heap.check(&quiet).expect("check")), (0, 0));
    // SAFETY: nothing that was allocated since is used.
    unsafe { heap.rollback() }.expect("rollback");
    assert_eq!(leaks(&heap.check(&quiet).expect("check")), wanted);
    heap.close().expect("close");
    assert_eq!(leaks(&collect_heap(&path, &quiet).expect("collect")), wanted);
    let after = check_heap(&path, &quiet).expect("check");
    assert_eq!((leaks(&after), after.is_sound()), ((0, 0), true), "{:?}", after.problems);
}

/// Tests one by one which words count as pointers.
#[test]
fn pointers_that_count() {
    let dir = directory();
    let heap = Heap::open_or_create(dir.path().join("heap")).expect("create");
    let from = table(&heap, "from", 4);
    let row: Vec<*mut u8> = (0..4).map(|_| block(&heap, 640)).collect();
    assert!(row.windows(2).all(|two| two[0].wrapping_add(640) == two[1]), "blocks in a row");
    let reached = |at: usize, to: *mut u8| {
        // SAFETY: the table has 32 bytes.
        unsafe { from.write_bytes(0, 32) };
        link(from, at, to);
        let lost = lost(&heap.check(&quiet).expect("check"));
        row.iter().map(|block| !lost.contains(&(*block as u64))).collect::<Vec<_>>()
    };
    assert_eq!(reached(0, std::ptr::null_mut()), [false; 4]);
    assert_eq!(reached(8, row[1]), [false, true, false, false], "the start of one is not the end of another");
    assert_eq!(reached(5, row[1].wrapping_add(639)), [false, true, false, false], "inside, and not aligned");
    assert_eq!(reached(0, row[3].wrapping_add(640)), [false, false, false, true], "right behind it");
    assert_eq!(reached(0, row[3].wrapping_add(641)), [false; 4], "farther");
    // Through each other, in a circle.
    link(row[0], 630, row[2]);
    link(row[2], 0, row[0]);
    assert_eq!(reached(24, row[2]), [true, false, true, false]);
    assert_eq!(reached(0, row[3]), [false, false, false, true], "a circle that nothing points into");
    // The last bytes of a large allocation, across the pieces in which it is read.
    let large = block(&heap, 3 << 20);
    link(large, (1 << 20) - 3, row[0]);
    link(large, (3 << 20) - 8, row[1]);
    assert_eq!(reached(0, large.wrapping_add(2 << 20)), [true, true, true, false]);
}

const CHILD: &str = "UNTORN_TEST_HEAP";

/// Leaks three blocks in a committed heap and one uncommitted block; then waits to be killed.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let heap = Heap::open_or_create(PathBuf::from(path)).expect("create");
    let all = table(&heap, "all", 100);
    for n in 0..100 {
        link(all, n * 8, block(&heap, 1000));
    }
    heap.commit().expect("commit");
    for n in 0..3 {
        link(all, n * 8, std::ptr::null_mut());
    }
    heap.commit().expect("commit");
    link(all, 50 * 8, std::ptr::null_mut());
    println!("ready");
    std::thread::park();
}

#[test]
fn a_killed_programs_heap_is_looked_at_as_recovery_would_leave_it() {
    let dir = directory();
    let path = dir.path().join("heap");
    // Made here, so that its address does not collide with other tests' heaps.
    Heap::open_or_create(&path).expect("create").close().expect("close");
    let mut child = untorn_testkit::again!("child").env(CHILD, &path).stdout(Stdio::piped()).spawn().expect("spawn");
    let lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("ready")), "the child ended early");
    let e = refused(check_heap(&path, &quiet), &["busy"]);
    assert!(e.to_string().contains(&child.id().to_string()), "{e}");
    refused(collect_heap(&path, &quiet), &["busy"]);
    child.kill().expect("kill");
    child.wait().expect("wait");

    let before = picture(dir.path());
    let report = check_heap(&path, &quiet).expect("check");
    assert!(report.is_sound(), "{:?}", report.problems);
    assert_eq!(leaks(&report).0, 3);
    assert_eq!(dump_heap(&path, &quiet).expect("dump").leaks, None);
    assert_eq!(picture(dir.path()), before, "looking changes nothing");
    assert_eq!(leaks(&collect_heap(&path, &quiet).expect("collect")).0, 3);
    assert_eq!(leaks(&check_heap(&path, &quiet).expect("check")).0, 0);
}

#[test]
fn heaps_in_stores_and_without_any() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).expect("store");
    let mut txn = store.begin();
    txn.mkdir("sub", 0o755).expect("mkdir");
    txn.commit().expect("commit");
    let heap = HeapOptions::new().create(true).open_in(&store, "sub/heap").expect("heap");
    let all = table(&heap, "all", 10);
    link(all, 0, block(&heap, 100));
    block(&heap, 100);
    heap.commit().expect("commit");
    let path = dir.path().join("sub/heap");
    refused(check_heap(&path, &quiet), &["busy"]);
    heap.close().expect("close");
    store.close().expect("close");
    assert_eq!(leaks(&check_heap(&path, &quiet).expect("check")).0, 1);
    assert_eq!(leaks(&collect_heap(&path, &quiet).expect("collect")).0, 1);
    assert_eq!(leaks(&check_heap(&path, &quiet).expect("check")).0, 0);
    assert!(!dir.path().join("sub/heap.untorn").exists(), "no second store");

    let copy = directory();
    let path = copy.path().join("copy");
    std::fs::write(&path, plain(dir.path().join("sub/heap"))).expect("write");
    assert!(check_heap(&path, &quiet).expect("check").is_sound());
    std::fs::write(&path, b"no heap").expect("write");
    refused(check_heap(&path, &quiet), &["foreign"]);
    refused_with_errno(check_heap(Path::new("/nowhere/heap"), &quiet), libc::ENOENT);
    refused(check_heap(dir.path(), &quiet), &["invalid", "io"]);
}

/// Damage by hand: each kind is reported with its place, and leaks and collections are refused.
#[test]
fn damage_is_told_with_its_place() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::open_or_create(&path).expect("create");
    let all = table(&heap, "all", 100);
    link(all, 0, block(&heap, 100));
    link(all, 8, block(&heap, 200_000));
    link(all, 16, block(&heap, 5_000_000));
    heap.set_root("second", NonNull::new(all)).expect("root");
    heap.commit().expect("commit");
    heap.close().expect("close");
    let good = plain(&path);
    // Chunks: 1 has the table, 2 the small block, 3 to 6 the large one; segments 1 and 2 the huge one.
    let descriptor = |index: usize| 4096 + index * 64;
    let bitmap = |index: usize| 4096 + 4096 + index * 512;
    let root = |index: usize| 40960 + index * 192;
    let huge = (4 << 20) + descriptor(1);
    let base = u64::from_le_bytes(good[16..24].try_into().expect("eight"));
    let number = |n: u64| n.to_le_bytes().to_vec();
    let cases: Vec<(&str, usize, Vec<u8>, &str)> = vec![
        ("a checksum", 40, vec![1], "header is invalid"),
        ("an unknown use", descriptor(2), vec![9], "segment 0, chunk 2: its descriptor is invalid"),
        ("a class that is none", descriptor(2) + 4, vec![41], "segment 0, chunk 2"),
        ("something behind a descriptor", descriptor(2) + 60, vec![1], "segment 0, chunk 2"),
        ("a block beyond the last", bitmap(2) + 511, vec![0x80], "bits are set for blocks that it does not have"),
        ("a bit of a free chunk", bitmap(40), vec![1], "segment 0, chunk 40: bits are set for blocks"),
        ("a part of nothing", descriptor(20), vec![3], "segment 0, chunk 20: marked as a part"),
        ("a part that is missing", descriptor(5), vec![0], "segment 0, chunk 5: overlaps an allocation of 4 chunks"),
        ("blocks in a large one", descriptor(6), vec![1], "segment 0, chunk 6: overlaps"),
        ("a large one without its end", descriptor(3) + 4, vec![3], "segment 0, chunk 6: marked as a part"),
        ("beyond the end", huge + 4, vec![3], "3 segments reach beyond the heap's end"),
        ("blocks in a huge one", (4 << 20) + descriptor(9), vec![1], "segment 1, chunk 9: overlaps"),
        (
            "a root out of the heap",
            root(0) + 176,
            number(base + (1 << 33)),
            "root 0, \"all\": it points out of the heap",
        ),
        ("a root before it", root(0) + 176, number(16), "it points out of the heap"),
        ("a root to free memory", root(0) + 176, number(base + (50 << 16)), "memory that is not allocated"),
        ("a root to metadata", root(0) + 176, number(base), "memory that is not allocated"),
        ("a root that is not aligned", root(0) + 160, vec![64], "root 0, \"all\": its fingerprint"),
        ("two of one name", root(1), b"all\0\0\0".to_vec(), "root 1, \"all\": root 0 has the same name"),
        ("a name that is no text", root(1), vec![0xff], "its name is invalid"),
    ];
    for (what, at, bytes, told) in cases {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(&bytes);
        assert_ne!(bad, good, "{what}: nothing was damaged");
        std::fs::write(&path, &bad).expect("write");
        let report = check_heap(&path, &quiet).expect("check");
        assert!(report.problems.iter().any(|problem| problem.contains(told)), "{what}: {:?}", report.problems);
        assert_eq!(report.leaks, None, "{what}");
        let e = refused(collect_heap(&path, &quiet), &["corrupt"]);
        assert!(e.to_string().contains("`untorn check heap`"), "{what}: {e}");
        assert_eq!(plain(&path), bad, "{what}: nothing was changed");
    }
    for bytes in [good.len() - 1, good.len() - (4 << 20), 4 << 20, 100, 0] {
        std::fs::write(&path, &good[..bytes]).expect("write");
        if let Ok(report) = check_heap(&path, &quiet) {
            assert!(!report.is_sound(), "{bytes} bytes of it");
        }
    }
    std::fs::write(&path, &good).expect("write");
    assert!(check_heap(&path, &quiet).expect("check").is_sound());
}
