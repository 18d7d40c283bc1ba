//! Transactions over some files of a tree, one rule after the other. For all programs and all crashes see `crashes.rs`.

mod common;
use common::*;
use std::sync::Arc;
use untorn_crashlab::{Cut, Options, SimDisk};
use untorn_tree::*;

const EBUSY: Result<()> = Err(Errno(libc::EBUSY));

#[test]
fn a_crash_finds_all_files_or_none() {
    let (disk, clock, tree) = new_tree();
    let inos = ["a", "b", "c"].map(|called| synced(&tree, called, b"old"));
    let txn = tree.begin(7, false).unwrap();
    for ino in inos {
        tree.write(ino, 0, b"new").unwrap();
        tree.add(txn, ino).unwrap();
    }
    disk.record();
    tree.commit(txn, false, &Clean).unwrap();
    let mut found = [0, 0];
    for (n, snapshot) in disk.recorded().iter().enumerate() {
        for cut in [Cut::Nothing, Cut::Everything, Cut::Seed(n as u64), Cut::Seed(n as u64 + 1000)] {
            let after = open(&snapshot.power_cut(cut).disk, &clock);
            let all = ["a", "b", "c"].map(|called| contents_of(&after, called));
            assert!(all == [b"old"; 3] || all == [b"new"; 3], "{n} {cut}: {all:?}");
            found[usize::from(all[0] == b"new")] += 1;
        }
    }
    assert!(found.iter().all(|times| *times > 0), "{found:?}");
}

/// Transactions that are committed together stay apart.
#[test]
fn a_crash_finds_all_transactions_of_a_commit_or_none() {
    for mode in [CommitMode::Sync, CommitMode::Close, CommitMode::Write, CommitMode::Store] {
        let (disk, clock) = (SimDisk::new(Options::default()), Arc::new(TestClock::default()));
        let tree = open_with(&disk, &clock, mode).unwrap();
        let names = ["a", "b", "c"];
        let inos = names.map(|called| synced(&tree, called, b"old"));
        let txns = inos.map(|ino| {
            let txn = tree.begin(7, true).unwrap();
            tree.add(txn, ino).unwrap();
            tree.write(ino, 0, b"new").unwrap();
            txn
        });
        disk.record();
        tree.commit_together(&txns, &Clean).unwrap();
        let mut found = [0, 0];
        for (n, snapshot) in disk.recorded().iter().enumerate() {
            for cut in [Cut::Nothing, Cut::Everything, Cut::Seed(n as u64), Cut::Seed(n as u64 + 1000)] {
                let after = open(&snapshot.power_cut(cut).disk, &clock);
                let all = names.map(|called| contents_of(&after, called));
                assert!(all == [b"old"; 3] || all == [b"new"; 3], "{mode:?} {n} {cut}: {all:?}");
                found[usize::from(all[0] == b"new")] += 1;
            }
        }
        assert!(found.iter().all(|times| *times > 0), "{mode:?} {found:?}");
        let stranger = tree.begin(9, false).unwrap();
        for ino in inos {
            assert_eq!(tree.add(stranger, ino), EBUSY, "{mode:?}: it goes on");
        }
        // Each goes on alone: one is committed, one aborted, and the end of its opening aborts the third.
        inos.iter().for_each(|ino| tree.write(*ino, 0, b"six").unwrap());
        tree.commit(txns[0], false, &Clean).unwrap();
        assert_eq!(tree.abort(txns[1], true, &Clean), Ok(true));
        assert_eq!(tree.commit_together(&txns, &Clean), Err(Errno(libc::ENOENT)), "one has ended");
        tree.end_opening(7).into_iter().for_each(|txn| tree.leave(txn, &Clean));
        tree.sync_all(&Clean).unwrap();
        let tree = reopen(&disk, &clock, tree);
        assert_eq!(names.map(|called| contents_of(&tree, called)), [b"six", b"new", b"new"], "{mode:?}");
    }
}

/// One of them cannot be committed: none is, and all go on.
#[test]
fn a_failed_write_of_one_keeps_back_all_that_are_committed_together() {
    for mode in [CommitMode::Sync, CommitMode::Store] {
        let (disk, clock) = (SimDisk::new(Options::default()), Arc::new(TestClock::default()));
        let tree = open_with(&disk, &clock, mode).unwrap();
        let inos = ["a", "b"].map(|called| synced(&tree, called, b"old"));
        let txns = inos.map(|ino| {
            let txn = tree.begin(7, false).unwrap();
            tree.add(txn, ino).unwrap();
            tree.write(ino, 0, b"new").unwrap();
            txn
        });
        assert_eq!(tree.commit_together(&txns, &FailingOf(inos[1])), Err(Errno(libc::EIO)));
        tree.sync_names(&Clean).unwrap();
        assert_eq!(contents_of(&open(&disk.fork(), &clock), "a"), b"old", "{mode:?}");
        assert_eq!(tree.abort(txns[1], true, &Clean), Ok(true));
        tree.write(inos[1], 0, b"six").unwrap();
        tree.commit_together(&txns, &Clean).unwrap();
        let tree = reopen(&disk, &clock, tree);
        assert_eq!((contents_of(&tree, "a"), contents_of(&tree, "b")), (b"new".to_vec(), b"six".to_vec()));
    }
}

#[test]
fn nothing_but_its_commit_has_what_it_writes() {
    let (disk, clock, tree) = new_tree();
    let (a, b) = (synced(&tree, "a", b"old"), file(&tree, "b"));
    let txn = tree.begin(7, false).unwrap();
    tree.add(txn, a).unwrap();
    tree.add(txn, b).unwrap();
    tree.add(txn, b).unwrap();
    tree.write(a, 0, b"half a transaction").unwrap();
    tree.write(b, 0, b"half").unwrap();
    assert_eq!(tree.sync(a, &Clean), EBUSY);
    assert_eq!(tree.sync_files(&[a, b], &Clean), EBUSY);
    assert_eq!(tree.rename((ROOT, name("b")), (ROOT, name("a")), RenameFlags::Replace, &Clean), EBUSY);
    assert_eq!(tree.link(b, ROOT, name("c"), &Clean).map(drop), EBUSY, "its contents would be committed");
    tree.link(a, ROOT, name("d"), &Clean).unwrap();
    tree.release(a, true);
    tree.sync_names(&Clean).unwrap();
    tree.sync_all(&Clean).unwrap();
    clock.pass(60);
    tree.tick(&Clean);
    let other = tree.begin(7, false).unwrap();
    assert_eq!(tree.add(other, a), EBUSY);
    assert_eq!(tree.add(other, ROOT), Err(Errno(libc::EINVAL)));
    let now = open(&disk.fork(), &clock);
    assert_eq!((contents_of(&now, "a"), contents_of(&now, "b")), (b"old".to_vec(), b"".to_vec()));
    drop(now);
    tree.commit(txn, false, &Clean).unwrap();
    assert_eq!(tree.commit(txn, false, &Clean), Err(Errno(libc::ENOENT)), "it is over");
    let tree = reopen(&disk, &clock, tree);
    assert_eq!((contents_of(&tree, "a"), contents_of(&tree, "b")), (b"half a transaction".to_vec(), b"half".to_vec()));
}

#[test]
fn an_aborted_one_leaves_the_files_as_of_their_last_commits() {
    let (disk, clock, tree) = new_tree();
    let (a, b, c) = (synced(&tree, "a", b"old"), synced(&tree, "b", b"long contents"), file(&tree, "c"));
    let txn = tree.begin(7, false).unwrap();
    for ino in [a, b, c] {
        tree.add(txn, ino).unwrap();
    }
    tree.write(a, 0, b"newer and longer").unwrap();
    tree.set_attributes(b, &Change { size: Some(2), ..Change::default() }).unwrap();
    tree.write(c, 5000, b"first").unwrap();
    // The gap of an unknown failed write goes with the rest.
    assert_eq!(tree.commit(txn, false, &Failing), Err(Errno(libc::EIO)));
    tree.abort(txn, false, &Clean).unwrap();
    let all = |tree: &StoreTree| ["a", "b", "c"].map(|called| contents_of(tree, called));
    let expected = [b"old".to_vec(), b"long contents".to_vec(), b"".to_vec()];
    assert_eq!(all(&tree), expected);
    tree.sync_files(&[a, b, c], &Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(all(&tree), expected);
}

#[test]
fn a_dissolved_one_takes_nothing_away() {
    let (disk, clock, tree) = new_tree();
    let a = synced(&tree, "a", b"old");
    let txn = tree.begin(7, false).unwrap();
    tree.add(txn, a).unwrap();
    tree.write(a, 0, b"new").unwrap();
    tree.dissolve(txn);
    tree.sync(a, &Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(contents_of(&tree, "a"), b"new");
}

#[test]
fn a_removed_file_leaves_its_transaction() {
    let (disk, clock, tree) = new_tree();
    let (a, b) = (synced(&tree, "a", b"old"), synced(&tree, "b", b"old"));
    let txn = tree.begin(7, false).unwrap();
    for ino in [a, b] {
        tree.add(txn, ino).unwrap();
        tree.write(ino, 0, b"new").unwrap();
    }
    tree.unlink(ROOT, name("a")).unwrap();
    tree.release(a, true);
    tree.forget(a, 100);
    tree.commit(txn, false, &Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert!(tree.lookup(ROOT, name("a")).is_err());
    assert_eq!(contents_of(&tree, "b"), b"new");
}

/// With `--commit=store` one poisoned file blocks every commit, and ends no transaction.
#[test]
fn one_that_another_file_keeps_back_goes_on() {
    let disk = SimDisk::new(Options::default());
    let clock = Arc::new(TestClock::default());
    let tree = open_with(&disk, &clock, CommitMode::Store).unwrap();
    let [a, b, bad] = ["a", "b", "bad"].map(|called| synced(&tree, called, b"old"));
    tree.release(bad, true);
    let txn = tree.begin(7, false).unwrap();
    for ino in [a, b] {
        tree.add(txn, ino).unwrap();
        tree.write(ino, 0, b"new").unwrap();
    }
    tree.write(bad, 0, b"holes").unwrap();
    tree.open(bad, true).unwrap();
    let eio = Err(Errno(libc::EIO));
    assert_eq!(tree.commit(txn, false, &FailingOf(bad)), eio);
    assert_eq!(tree.commit(txn, false, &Clean), eio, "it is poisoned");
    assert_eq!(tree.sync(a, &Clean), EBUSY, "it goes on");
    assert_eq!(contents_of(&open(&disk.fork(), &clock), "a"), b"old");
    tree.set_attributes(bad, &Change { size: Some(0), ..Change::default() }).unwrap();
    tree.commit(txn, false, &Clean).unwrap();
    tree.sync(a, &Clean).unwrap();
    // A poisoned file of a transaction blocks no other commit.
    let txn = tree.begin(7, false).unwrap();
    tree.add(txn, a).unwrap();
    tree.write(a, 0, b"torn").unwrap();
    assert_eq!(tree.commit(txn, false, &FailingOf(a)), eio);
    tree.write(b, 0, b"newer").unwrap();
    tree.sync(b, &Clean).unwrap();
    tree.abort(txn, false, &Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!((contents_of(&tree, "a"), contents_of(&tree, "b")), (b"new".to_vec(), b"newer".to_vec()));
    assert_eq!(contents_of(&tree, "bad"), b"");
}

/// The transaction keeps its files: no other transaction gets one in between, and later changes are discarded like
/// earlier ones.
#[test]
fn one_that_chains_goes_on_with_its_files() {
    for mode in [CommitMode::Sync, CommitMode::Store] {
        let (disk, clock) = (SimDisk::new(Options::default()), Arc::new(TestClock::default()));
        let tree = open_with(&disk, &clock, mode).unwrap();
        let a = synced(&tree, "a", b"old");
        let txn = tree.begin(7, false).unwrap();
        tree.add(txn, a).unwrap();
        tree.write(a, 0, b"one").unwrap();
        tree.commit(txn, true, &Clean).unwrap();
        let other = tree.begin(9, false).unwrap();
        assert_eq!(tree.add(other, a), EBUSY);
        if mode == CommitMode::Sync {
            assert_eq!(tree.sync(a, &Clean), EBUSY);
        }
        tree.write(a, 0, b"two").unwrap();
        assert_eq!(tree.abort(txn, true, &Clean), Ok(true));
        assert_eq!(tree.abort(txn, true, &Clean), Ok(false), "nothing is uncommitted");
        assert_eq!(contents_of(&tree, "a"), b"one");
        assert_eq!(tree.add(other, a), EBUSY);
        tree.write(a, 0, b"six").unwrap();
        tree.commit(txn, true, &Clean).unwrap();
        tree.write(a, 0, b"half").unwrap();
        let tree = reopen(&disk, &clock, tree);
        assert_eq!(contents_of(&tree, "a"), b"six", "{mode:?}");
    }
}

/// A rename or link that would have to commit changes of the transaction is refused; if there are none, the file gets
/// its name.
#[test]
fn a_file_gets_names_between_the_commits_of_its_transaction() {
    let (disk, clock, tree) = new_tree();
    synced(&tree, "b", b"replaced");
    let a = file(&tree, "a");
    let txn = tree.begin(7, false).unwrap();
    tree.add(txn, a).unwrap();
    tree.write(a, 0, b"new").unwrap();
    let rename = |from, to| tree.rename((ROOT, name(from)), (ROOT, name(to)), RenameFlags::Replace, &Clean);
    assert_eq!(rename("a", "b"), EBUSY);
    assert_eq!(tree.link(a, ROOT, name("c"), &Clean).map(drop), EBUSY);
    tree.commit(txn, true, &Clean).unwrap();
    rename("a", "b").unwrap();
    tree.write(a, 0, b"half").unwrap();
    tree.sync_names(&Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(contents_of(&tree, "b"), b"new");
    assert!(tree.lookup(ROOT, name("a")).is_err());
}
