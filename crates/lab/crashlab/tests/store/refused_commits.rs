//! Commits that are refused or fail, and the commits behind them.

use crate::checkpoint::open_with_surprise;
use crate::fixture::{contents, roomy};
use std::panic::{AssertUnwindSafe, catch_unwind};
use untorn::__private::{StoreSteps, sync_point};
use untorn::{Error, Outcome};
use untorn_crashlab::{Failed, Fault, On, Profile, What};

/// Two commits of one file, the second without changes of its own: it must write the changes that the first took and
/// could not write, or refuse.
#[test]
fn a_commit_does_not_rely_on_one_that_failed() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    let file = store.open_or_create_file("a").unwrap();
    file.write_at(b"acknowledged", 0).unwrap();
    let first = file.commit_async().unwrap();
    // A change of names keeps the two from sharing a group.
    let mut between = store.begin();
    between.chmod("a", 0o640).unwrap();
    drop(between.commit_async().unwrap());
    let second = file.commit_async().unwrap();
    disk.fail(Fault { on: On::Write, after: 0, times: 1, what: What::Errno(libc::EIO) });
    assert!(matches!(second.wait(), Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. })));
    assert!(first.wait().is_err());
    let third = file.commit();
    assert!(matches!(third, Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. })), "{third:?}");
}

/// A flush fails: by the commits' places in the log, the next opening tells which of them happened.
#[test]
fn the_next_opening_tells_whether_a_commit_of_unknown_outcome_happened() {
    let mut happened = [0, 0];
    for (how, after) in
        [Failed::Lost, Failed::Half, Failed::Landed].into_iter().flat_map(|how| (0..6).map(move |n| (how, n)))
    {
        let when = format!("{how:?}, flush {after}");
        let disk = roomy::disk(Profile::AnyPosix);
        let store = roomy::open(&disk);
        let file = store.open_or_create_file("a").unwrap();
        let tickets = [1u8, 2, 3].map(|nth| {
            file.write_all_at(&[nth; 5000], 0).unwrap();
            let ticket = store.submit_unwritten(&[&file]).unwrap();
            assert_eq!(ticket.lsn(), None, "{when}");
            ticket
        });
        disk.fail(Fault { on: On::Sync, after, times: 1, what: What::Writeback(how) });
        let unknown = |ticket: &untorn::Ticket| match ticket.wait() {
            Err(Error::SyncFailed { outcome, .. }) => outcome == Outcome::UnknownUntilReopened,
            _ => false,
        };
        let is_unknown = unknown(&tickets[2]);
        disk.clear_faults();
        if !is_unknown {
            continue;
        }
        let places = tickets.each_ref().map(|ticket| ticket.lsn().expect("it may be there"));
        assert!(places.is_sorted(), "{when}: {places:?}");
        disk.kill();
        drop((file, store));
        let snapshot = disk.snapshot();
        let cuts = snapshot.cuts(32, 1).into_iter().map(|cut| snapshot.power_cut(cut).disk);
        for after in cuts.chain([disk.fork()]) {
            let store = roomy::open(&after);
            let (last, found) = (store.status().lsn, contents(&store.open_file("a").unwrap()));
            let there = places.iter().filter(|place| **place <= last).count();
            assert_eq!(found.first().copied().unwrap_or(0), there as u8, "{when}: {places:?}, {last}");
            happened[usize::from(there > 0)] += 1;
        }
    }
    assert!(happened.iter().all(|n| *n > 0), "{happened:?}");
}

#[test]
fn a_commit_takes_over_what_one_before_it_could_not_do() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    let file = store.open_or_create_file("a").unwrap();
    // Many pieces: their list goes into a spill file, for which there is no room the first time.
    for i in 0..4000u64 {
        file.write_all_at(b"x", i * 2).unwrap();
    }
    let first = file.commit_async().unwrap();
    let second = file.commit_async().unwrap();
    let create = Fault { on: On::Name, after: 0, times: 2, what: What::Errno(libc::ENOSPC) };
    disk.fail(create);
    let (first, second) = (first.wait(), second.wait());
    assert!(first.is_err());
    if second.is_ok() {
        assert_eq!(roomy::recovered(&disk).get("a").unwrap().len(), 7999);
    }
}

/// A panic in the thread that writes a batch: the other commits in it fail, later ones too, and nobody waits for ever.
#[test]
fn a_panic_while_commits_are_written_fails_all_of_them() {
    for call in ["write_at", "sync_data"] {
        let disk = roomy::disk(Profile::Ext4);
        let (store, arm) = open_with_surprise(&disk, roomy::options(), call, |_| panic!("a surprise"));
        let files = ["a", "b"].map(|name| store.open_or_create_file(name).unwrap());
        for file in &files {
            file.write_all_at(b"old", 0).unwrap();
            file.commit().unwrap();
            file.write_all_at(b"new", 0).unwrap();
        }
        let other = files[0].commit_async().unwrap();
        arm(0);
        assert!(catch_unwind(AssertUnwindSafe(|| files[1].commit())).is_err(), "{call}: it panics");
        let failed = |result| matches!(result, Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. }));
        assert!(failed(other.wait()), "{call}: in the same batch");
        assert!(matches!(files[0].commit(), Err(Error::SyncFailed { .. })), "{call}: later");
        drop((files, arm));
        assert!(store.close().is_err(), "{call}: no clean close");
        let after = roomy::recovered(&disk);
        for name in ["a", "b"] {
            assert!([&b"old"[..], b"new"].contains(&&*after.get(name).unwrap()), "{call}, {name}");
        }
    }
}

/// A part of a group is written, and the rest fails before the flush: the written part may come back, so no error may
/// deny that.
#[test]
fn what_was_written_and_not_flushed_is_not_called_refused() {
    for blocks in 0..4 {
        let disk = roomy::disk(Profile::Ext4);
        let store = roomy::open(&disk);
        let (a, b) = (store.open_or_create_file("a").unwrap(), store.open_or_create_file("b").unwrap());
        for size in 0..blocks {
            a.set_len(size).unwrap();
            a.commit().unwrap();
        }
        store.checkpoint().unwrap();
        // The record leaves too few bytes in its blocks for any other record.
        a.set_len(8000).unwrap();
        a.commit().unwrap();
        a.write_at(&[1; 3950], 0).unwrap();
        let small = a.commit_async().unwrap();
        (0..4000u64).for_each(|i| b.write_all_at(b"x", i * 2).unwrap());
        let large = b.commit_async().unwrap();
        let sync =
            Fault { on: On::SyncPoint(sync_point::SPILL_CONTENTS), after: 0, times: 1, what: What::Errno(libc::EIO) };
        disk.fail(sync);
        let small = small.wait();
        assert!(large.wait().is_err());
        let kept = roomy::recovered(&disk).get("a").unwrap_or_default().first() == Some(&1);
        match small {
            Err(Error::SyncFailed { outcome: Outcome::NotCommitted, .. }) => assert!(!kept, "{blocks}: it came back"),
            Err(Error::SyncFailed { .. }) => {}
            done => panic!("{done:?}"),
        }
    }
}

#[test]
fn a_commit_behind_the_removal_of_its_file_is_refused() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    let (a, b) = (store.open_or_create_file("a").unwrap(), store.open_or_create_file("b").unwrap());
    let mut removal = store.begin();
    removal.unlink("a").unwrap();
    let removed = removal.commit_async().unwrap();
    a.write_at(b"too late", 0).unwrap();
    let late = a.commit_async().unwrap();
    b.write_at(b"kept", 0).unwrap();
    b.commit().unwrap();
    removed.wait().unwrap();
    assert!(matches!(late.wait(), Err(Error::Io { .. })), "the file is gone");
    let after = roomy::recovered(&disk);
    assert!(after.get("a").is_err());
    assert_eq!(after.get("b").unwrap(), b"kept");
}

#[test]
fn a_commit_behind_a_failed_creation_of_its_file_is_refused() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    let mut first = store.begin();
    let mut second = store.begin();
    let _x = first.create("x", 0o600).unwrap();
    let y = second.create("x", 0o600).unwrap();
    let first = first.commit_async().unwrap();
    let second = second.commit_async().unwrap();
    y.write_at(b"nowhere", 0).unwrap();
    let third = y.commit_async().unwrap();
    first.wait().unwrap();
    assert!(second.wait().is_err(), "the name is taken");
    assert!(third.wait().is_err(), "the file never came to be");
    assert_eq!(roomy::recovered(&disk).get("x").unwrap(), b"");
}
