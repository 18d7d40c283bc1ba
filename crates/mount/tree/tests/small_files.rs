//! Small files lie in the pack, without an object each: allocating and freeing room, and files that grow.

mod common;
use common::*;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use untorn::__private::OpenStoreOn;
use untorn_crashlab::{Cut, Fault, On, SimDisk, What};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_tree::*;

const LIMIT: usize = 64 << 10;
const EIO: Result<()> = Err(Errno(libc::EIO));

fn sized(size: usize) -> Change {
    Change { size: Some(size as u64), ..Change::default() }
}

/// Number of objects in the store as of the last commit.
fn objects(disk: &SimDisk) -> usize {
    let copy = disk.fork();
    copy.kill();
    let store = store_options(&copy).open_on(copy.process(), StoreDir::of_directory(), "".into()).unwrap();
    store.list("obj/0").unwrap().len()
}

/// The tree after a kill now.
fn killed(disk: &SimDisk, clock: &Arc<TestClock>) -> StoreTree {
    let copy = disk.fork();
    copy.kill();
    open(&copy, clock)
}

fn remove(tree: &StoreTree, called: &str) {
    let ino = tree.lookup(ROOT, name(called)).unwrap().ino;
    tree.unlink(ROOT, name(called)).unwrap();
    tree.forget(ino, 2);
}

#[test]
fn small_files_have_no_objects() {
    let (disk, clock, tree) = new_tree();
    for n in 0..100 {
        let ino = file(&tree, &format!("{n}"));
        tree.write(ino, 0, &vec![n as u8; 1 + n * 600]).unwrap();
        if n % 3 == 0 {
            tree.sync(ino, &Clean).unwrap();
        }
    }
    tree.sync_all(&Clean).unwrap();
    assert_eq!(objects(&disk), 0);
    let tree = reopen(&disk, &clock, tree);
    for n in 0..100 {
        assert_eq!(contents_of(&tree, &format!("{n}")), vec![n as u8; 1 + n * 600]);
        assert_eq!(tree.lookup(ROOT, name(&format!("{n}"))).unwrap().blocks, (1 + n as u64 * 600).div_ceil(512));
    }
    (0..100).for_each(|n| remove(&tree, &format!("{n}")));
    tree.sync_names(&Clean).unwrap();
    assert!(tree.pack_is_as_rows_say().unwrap());
    let tree = reopen(&disk, &clock, tree);
    assert!(tree.read_dir(ROOT, 0, 9).unwrap().is_empty() && tree.pack_is_as_rows_say().unwrap());
}

/// Uncommitted changes of a file are in no commit of another one, in the middle of the same pack.
#[test]
fn a_commit_has_nothing_uncommitted_of_other_files() {
    let (disk, clock, tree) = new_tree();
    let [a, b] = ["a", "b"].map(|called| synced(&tree, called, &[1; 5000]));
    tree.write(a, 100, &[2; 100]).unwrap();
    tree.write(b, 4999, &[3; 2000]).unwrap();
    tree.sync(b, &Clean).unwrap();
    let found = killed(&disk, &clock);
    assert_eq!(contents_of(&found, "a"), [1; 5000]);
    assert_eq!(contents_of(&found, "b"), [&[1; 4999][..], &[3; 2000]].concat());
    // Neither are changes to a file since its commit.
    let c = file(&tree, "c");
    tree.write(c, 0, b"whole").unwrap();
    tree.rename((ROOT, name("c")), (ROOT, name("d")), RenameFlags::Replace, &Clean).unwrap();
    tree.write(c, 0, b"other").unwrap();
    tree.sync(b, &Clean).unwrap();
    assert_eq!(contents_of(&killed(&disk, &clock), "d"), b"whole");
    assert_eq!(contents_of(&tree, "d"), b"other");
}

/// A changed part is written in place; contents that no longer fit move.
#[test]
fn contents_change_in_their_place_and_move() {
    let (disk, clock, tree) = new_tree();
    let a = synced(&tree, "a", &[1; 3000]);
    let mut expected = vec![1; 3000];
    for (n, (at, len, size)) in
        [(10, 20, 3000), (2990, 100, 3090), (0, 1, 3090), (4095, 1, 4096), (4096, 9, 4105), (60_000, 5000, 65_000)]
            .into_iter()
            .enumerate()
    {
        let stamp = n as u8 + 2;
        tree.write(a, at as u64, &vec![stamp; len]).unwrap();
        expected.resize(size, 0);
        expected[at..at + len].fill(stamp);
        tree.sync(a, &Clean).unwrap();
        assert_eq!(contents(&tree, a), expected);
        assert_eq!(contents_of(&killed(&disk, &clock), "a"), expected, "step {n}");
    }
    for size in [64_000, 5000, 100, 4000, 0, 70] {
        tree.set_attributes(a, &sized(size)).unwrap();
        expected.resize(size, 0);
        assert_eq!(contents(&tree, a), expected);
        tree.sync(a, &Clean).unwrap();
        assert_eq!(contents_of(&killed(&disk, &clock), "a"), expected, "{size} bytes");
        assert!(tree.pack_is_as_rows_say().unwrap());
    }
    // Shorter, longer and shorter again within one commit: the bytes in between are zeros.
    tree.write(a, 0, &[7; 70]).unwrap();
    tree.sync(a, &Clean).unwrap();
    for size in [10, 60, 50] {
        tree.set_attributes(a, &sized(size)).unwrap();
    }
    tree.write(a, 40, &[8; 2]).unwrap();
    tree.sync(a, &Clean).unwrap();
    let expected = [&[7; 10][..], &[0; 30], &[8; 2], &[0; 8]].concat();
    assert_eq!(contents_of(&killed(&disk, &clock), "a"), expected);
    // Bytes that were cut off are still in the extent, and become zeros when the file is longer again.
    let b = synced(&tree, "b", &[1; 3000]);
    tree.set_attributes(b, &sized(2500)).unwrap();
    tree.sync(b, &Clean).unwrap();
    tree.write(b, 2900, &[2; 10]).unwrap();
    tree.sync(b, &Clean).unwrap();
    let expected = [&[1; 2500][..], &[0; 400], &[2; 10]].concat();
    assert_eq!(contents_of(&killed(&disk, &clock), "b"), expected);
    assert_eq!(objects(&disk), 0);
}

/// Beyond the limit a file gets an object, which has all bytes from that commit on, and none before.
#[test]
fn a_file_that_grows_gets_an_object_with_its_commit() {
    for len in [LIMIT, 700] {
        let (disk, clock, tree) = new_tree();
        let a = synced(&tree, "a", &vec![1; len]);
        let was = vec![1; len];
        let grow = || tree.write(a, LIMIT as u64, &[2; 1000]).unwrap();
        let grown = [&was[..], &vec![0; LIMIT - len], &[2; 1000]].concat();
        // Its object exists, and no commit has its contents.
        grow();
        let b = synced(&tree, "b", b"b");
        assert_eq!(objects(&disk), 1);
        assert_eq!((contents(&tree, a), contents_of(&killed(&disk, &clock), "a")), (grown.clone(), was.clone()));
        // Aborting a transaction takes the object back.
        let txn = tree.begin(1, false).unwrap();
        tree.add(txn, a).unwrap();
        tree.abort(txn, false, &Clean).unwrap();
        assert_eq!(contents(&tree, a), was);
        tree.write(a, 0, &[1; 9]).unwrap();
        tree.sync(a, &Clean).unwrap();
        // So does a kill.
        grow();
        tree.sync(b, &Clean).unwrap();
        let tree = reopen(&disk, &clock, tree);
        assert_eq!(contents_of(&tree, "a"), was);
        assert!(tree.pack_is_as_rows_say().unwrap());
        tree.write(a, LIMIT as u64, &[2; 1000]).unwrap();
        tree.sync(a, &Clean).unwrap();
        assert_eq!((contents(&tree, a), contents_of(&killed(&disk, &clock), "a")), (grown.clone(), grown.clone()));
        assert!(tree.pack_is_as_rows_say().unwrap(), "its room in the pack is free");
        // The file keeps the object when it shrinks.
        tree.set_attributes(a, &sized(10)).unwrap();
        tree.sync(a, &Clean).unwrap();
        let found = killed(&disk, &clock);
        assert_eq!((contents_of(&found, "a"), objects(&disk)), (grown[..10].to_vec(), 1));
        remove(&found, "a");
        found.sync_names(&Clean).unwrap();
        assert!(found.pack_is_as_rows_say().unwrap());
    }
}

/// There is no room for the bytes that would make the file large: it is poisoned, and otherwise unchanged.
#[test]
fn a_file_that_cannot_grow_keeps_what_it_has() {
    let mut failures = 0;
    for (on, after) in [On::Write, On::Size, On::Name].into_iter().flat_map(|on| (0..6).map(move |after| (on, after))) {
        let (disk, clock, tree) = new_tree();
        let a = synced(&tree, "a", &[1; 60_000]);
        tree.write(a, 10, &[2; 10]).unwrap();
        disk.fail(Fault { on, after, times: 1, what: What::Errno(libc::ENOSPC) });
        let refused = tree.write(a, 60_000, &vec![3; 4 << 20]);
        disk.clear_faults();
        let as_before = [&[1; 10][..], &[2; 10], &[1; 59_980]].concat();
        let found = contents(&tree, a);
        assert_eq!(found[..60_000], as_before, "{on:?} after {after}");
        if refused.is_err() {
            failures += 1;
            assert_eq!((found.len(), tree.sync(a, &Clean)), (60_000, EIO));
            assert_eq!(contents_of(&killed(&disk, &clock), "a"), [1; 60_000]);
            tree.set_attributes(a, &sized(0)).unwrap();
            tree.write(a, 0, &as_before).unwrap();
        }
        tree.sync(a, &Clean).unwrap();
        assert_eq!(contents_of(&killed(&disk, &clock), "a")[..60_000], as_before);
        assert!(tree.pack_is_as_rows_say().unwrap());
    }
    assert!(failures > 0, "it could grow each time");
}

/// Room is allocated again in the commit that frees it: a crash finds one of the two files, complete.
#[test]
fn room_is_given_again_in_the_same_commit() {
    let (disk, clock, tree) = new_tree();
    // Each version has its own length, so that bytes of another version would show.
    let version = |n: u8| vec![n; 5000 + 10 * usize::from(n)];
    let first = synced(&tree, "a", &version(1));
    tree.release(first, true);
    tree.forget(first, 1);
    disk.record();
    for n in 2..20 {
        let new = file(&tree, "new");
        tree.write(new, 0, &version(n)).unwrap();
        tree.rename((ROOT, name("new")), (ROOT, name("a")), RenameFlags::Replace, &Clean).unwrap();
        tree.forget(new, 1);
        // Several commits are on their way at a time.
        if n % 3 == 0 {
            tree.sync_names(&Clean).unwrap();
        }
    }
    for (n, snapshot) in disk.recorded().iter().enumerate() {
        for cut in [Cut::Nothing, Cut::Everything, Cut::Seed(n as u64), Cut::Seed(n as u64 + 1)] {
            let found = open(&snapshot.power_cut(cut).disk, &clock);
            let bytes = contents_of(&found, "a");
            assert!(bytes == version(bytes[0]), "crash {n}, {cut}: {} bytes of version {}", bytes.len(), bytes[0]);
        }
    }
    tree.close(&Clean).unwrap();
    assert!(disk.get("pack").unwrap().len() <= 8192, "one extent was enough");
}

/// Uncommitted contents of small files are in memory, up to a limit; beyond it files get objects, and lose nothing.
#[test]
fn uncommitted_small_files_take_a_bounded_memory() {
    let disk = SimDisk::new(untorn_crashlab::Options::default());
    let clock = Arc::new(TestClock::default());
    let tree = open_with(&disk, &clock, CommitMode::Store).unwrap();
    for n in 0..600 {
        let ino = file(&tree, &format!("{n}"));
        tree.open(ino, true).unwrap();
        tree.write(ino, 0, &vec![n as u8; LIMIT]).unwrap();
    }
    tree.sync_names(&Clean).unwrap();
    assert_eq!(objects(&disk), 600 - (32 << 20) / LIMIT);
    // Now there is room in memory again.
    let more = file(&tree, "more");
    tree.write(more, 0, &[9; LIMIT]).unwrap();
    tree.sync_names(&Clean).unwrap();
    assert_eq!(objects(&disk), 600 - (32 << 20) / LIMIT);
    let found = killed(&disk, &clock);
    (0..600).for_each(|n| assert_eq!(contents_of(&found, &format!("{n}")), vec![n as u8; LIMIT]));
    assert_eq!(contents_of(&found, "more"), [9; LIMIT]);
}

/// Removed files leave no room occupied below, except less than a block between files that stay.
#[test]
fn room_without_files_is_given_back_to_the_file_system() {
    let temp = tempfile::tempdir().unwrap();
    let open = || {
        let store = StoreTree::store_options().create(true).open(temp.path()).unwrap();
        StoreTree::open(store, tree_options(&Arc::default(), CommitMode::Sync)).unwrap()
    };
    let taken = || std::fs::metadata(temp.path().join("pack")).unwrap().blocks() * 512;
    let tree = open();
    for n in 0..200 {
        let ino = file(&tree, &format!("{n}"));
        tree.write(ino, 0, &[1; 40_000]).unwrap();
    }
    tree.close(&Clean).unwrap();
    assert!(taken() >= 8_000_000);
    let tree = open();
    (1..200).for_each(|n| remove(&tree, &format!("{n}")));
    tree.close(&Clean).unwrap();
    assert!(taken() <= 1 << 20, "{} bytes for one file", taken());
    assert_eq!(contents_of(&open(), "0"), [1; 40_000]);
}

/// Faults, some of which make the store refuse a commit of 20 KB, which goes to a spill file.
fn faults() -> impl Iterator<Item = Fault> {
    let calls = [On::Write, On::Size, On::Name, On::Attribute].into_iter();
    let of = |on| (0..4).map(move |after| Fault { on, after, times: 1, what: What::Errno(libc::ENOSPC) });
    calls.flat_map(of)
}

/// The store refuses such a commit. A later commit that only makes something in the store must not include either half
/// of it.
#[test]
fn what_is_made_in_the_store_brings_nothing_of_a_commit_that_was_refused() {
    let mut refused = 0;
    for (n, fault) in faults().enumerate() {
        let (disk, clock, tree) = new_tree();
        let z = synced(&tree, "z", b"z");
        // Both files move.
        let [a, b] = ["a", "b"].map(|called| synced(&tree, called, b"old"));
        tree.write(a, 0, &[7; 10_000]).unwrap();
        tree.write(b, 0, &[8; 10_000]).unwrap();
        disk.fail(fault);
        tree.rename((ROOT, name("a")), (ROOT, name("b")), RenameFlags::Exchange, &Clean).unwrap();
        disk.clear_faults();
        refused += tree.status().unwrap().deferred;
        assert!(tree.pack_is_as_rows_say().unwrap());
        // Makes an object, and a directory for objects.
        tree.write(z, LIMIT as u64, b"z").unwrap();
        for k in 0..if n == 0 { 4200 } else { 0 } {
            file(&tree, &format!("{k}"));
        }
        tree.write_back().unwrap();
        let found = killed(&disk, &clock);
        let found = ["a", "b"].map(|called| contents_of(&found, called));
        let (old, new) = ([b"old"; 2].map(|bytes| bytes.to_vec()), [vec![8; 10_000], vec![7; 10_000]]);
        assert!(found == old || found == new, "fault {n}: {} and {} bytes", found[0].len(), found[1].len());
        tree.sync(z, &Clean).unwrap();
        let found = killed(&disk, &clock);
        assert_eq!(["a", "b"].map(|called| contents_of(&found, called)), new);
    }
    assert!(refused > 0, "no such commit was refused");
}

/// The store refuses a sync: its changes stay uncommitted, and are in no commit of another file.
#[test]
fn nothing_of_a_refused_sync_is_in_another_commit() {
    let mut refused = 0;
    for fault in faults() {
        let (disk, clock, tree) = new_tree();
        let [a, b] = ["a", "b"].map(|called| synced(&tree, called, &[1; 10_000]));
        let before = [a, b].iter().all(|ino| tree.write(*ino, 0, &[2; 10_000]).is_ok());
        disk.fail(fault);
        let done = tree.sync_files(&[a, b], &Clean);
        let was_asked_for = tree.status().unwrap().uncommitted == 0;
        disk.clear_faults();
        if tree.status().unwrap().failed {
            // A failed write of the log itself is final.
            continue;
        }
        synced(&tree, "c", b"c");
        let found = killed(&disk, &clock);
        let expected = if was_asked_for { [2; 10_000] } else { [1; 10_000] };
        refused += usize::from(!was_asked_for);
        assert!(before && (done.is_ok() || !was_asked_for || done == Err(Errno(libc::ENOSPC))));
        ["a", "b"].iter().for_each(|called| assert!(contents_of(&found, called) == expected, "{called}"));
        tree.sync_files(&[a, b], &Clean).unwrap();
        assert!(contents_of(&killed(&disk, &clock), "b") == [2; 10_000]);
    }
    assert!(refused > 0, "no sync was refused");
}

/// Readers without the lock, while extents are allocated to other files.
#[test]
fn readers_never_see_another_files_bytes() {
    let temp = tempfile::tempdir().unwrap();
    let store = StoreTree::store_options().create(true).open(temp.path()).unwrap();
    let tree = StoreTree::open(store, tree_options(&Arc::default(), CommitMode::Sync)).unwrap();
    let [a, b] = ["a", "b"].map(|called| synced(&tree, called, &vec![called.as_bytes()[0]; 3000]));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..400 {
                for (ino, of) in [(a, b'a'), (b, b'b')] {
                    // Alternates between two sizes of extents.
                    let len = if n % 2 == 0 { 9000 } else { 3000 };
                    tree.set_attributes(ino, &sized(len)).unwrap();
                    tree.write(ino, 0, &vec![of; len]).unwrap();
                    tree.sync(ino, &Clean).unwrap();
                }
            }
            ends.store(true, SeqCst);
        });
        for (ino, of) in [(a, b'a'), (b, b'b')] {
            let (tree, ends) = (&tree, &ends);
            scope.spawn(move || {
                while !ends.load(SeqCst) {
                    let mut bytes = [0; 9000];
                    let len = tree.read(ino, 0, &mut bytes).unwrap();
                    assert!(bytes[..len].iter().all(|byte| *byte == of || *byte == 0), "another file's bytes");
                    assert!(bytes[..3000].iter().all(|byte| *byte == of), "less than there was at any time");
                }
            });
        }
    });
    assert_eq!(tree.sync(a, &Failing), EIO);
}
