//! Asynchronous commits.

mod common;

use common::*;
use untorn::{Store, StoreOptions};

/// A store that writes asynchronous commits only within calls.
fn open_quiet(dir: &std::path::Path) -> Store {
    StoreOptions::new().create(true).background(false).open(dir).unwrap()
}

#[test]
fn a_refused_commit_of_a_file_without_handles_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "before").unwrap();
    let store = open_quiet(dir.path());
    let file = store.open_file("f").unwrap();
    file.write_all_at(b"refused", 0).unwrap();
    let ticket = file.commit_async().unwrap();
    file.close().unwrap();
    // The first commit of a file in an epoch checks whether another program changed the file.
    std::fs::write(&path, "somebody else's").unwrap();
    refused(ticket.wait(), &["conflict"]);
    let file = store.open_file("f").unwrap();
    assert_eq!(contents(&file), b"somebody else's");
    file.append(b" and ours").unwrap();
    file.commit().unwrap();
    file.close().unwrap();
    store.close().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody else's and ours");
}

/// One overlay per commit: reads go through all of them, in a thread with a small stack.
#[test]
fn thousands_of_commits_on_their_way_are_readable() {
    for background in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreOptions::new().create(true).background(background).open(dir.path()).unwrap();
        let file = store.open_or_create_file("f").unwrap();
        let work = std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
            let mut last = None;
            for n in 0..20_000u64 {
                file.write_all_at(&n.to_le_bytes(), 8 * (n % 100)).unwrap();
                last = Some(file.commit_async().unwrap());
            }
            assert_eq!(file.len().unwrap(), 800);
            assert_eq!(contents(&file)[..8], 19_900u64.to_le_bytes());
            last.expect("a ticket").wait().unwrap();
        });
        work.unwrap().join().unwrap();
        store.close().unwrap();
        let bytes = std::fs::read(dir.path().join("f")).unwrap();
        assert_eq!(bytes[792..], 19_999u64.to_le_bytes());
    }
}

/// Dropping the last handle, of any kind, finishes the commit, and the store is free at once.
#[test]
fn a_ticket_does_not_keep_the_store_open() {
    for background in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut tickets = Vec::new();
        for n in 0..10_u8 {
            // Without `wait`: an open store would be busy.
            let store = StoreOptions::new().create(true).background(background).open(dir.path()).unwrap();
            let file = store.open_or_create_file("f").unwrap();
            assert_eq!(contents(&file).len(), usize::from(n));
            file.append(&[n]).unwrap();
            tickets.push(file.commit_async().unwrap());
            let mut txn = store.begin();
            txn.create(format!("g{n}"), 0o600).unwrap();
            tickets.push(txn.commit_async().unwrap());
            if n % 2 == 0 {
                drop((file, store));
            } else {
                drop(store);
                file.close().unwrap();
            }
        }
        for ticket in &tickets {
            assert!(matches!(ticket.poll(), Some(Ok(()))), "{ticket:?}");
            ticket.wait().unwrap();
        }
        assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!((0..10).all(|n| dir.path().join(format!("g{n}")).exists()));
    }
}

#[test]
fn a_ticket_does_not_keep_a_standalone_file_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let mut tickets = Vec::new();
    for n in 0..4_u8 {
        let file = untorn::File::open_or_create(&path).unwrap();
        file.append(&[n]).unwrap();
        tickets.push(file.commit_async().unwrap());
        drop(file);
    }
    tickets.iter().for_each(|ticket| ticket.wait().unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), [0, 1, 2, 3]);
}

/// The ticket of a commit that its store could not finish returns the error.
#[test]
fn a_ticket_of_a_closed_store_tells_why_its_commit_failed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "before").unwrap();
    let store = open_quiet(dir.path());
    let file = store.open_file("f").unwrap();
    file.write_all_at(b"refused", 0).unwrap();
    let ticket = file.commit_async().unwrap();
    std::fs::write(&path, "somebody else's").unwrap();
    drop((file, store));
    refused(ticket.wait(), &["conflict"]);
    refused(ticket.poll().unwrap(), &["conflict"]);
}

/// Each name leads to the file of the last commit, whether or not that commit is written yet.
#[test]
fn a_name_is_that_of_the_last_commit_even_if_nobody_waited_for_it() {
    for background in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreOptions::new().create(true).background(background).open(dir.path()).unwrap();
        for (name, text) in [("a", b"AAAA"), ("b", b"BBBB"), ("c", b"CCCC"), ("d", b"DDDD")] {
            let file = store.open_or_create_file(name).unwrap();
            file.append(text).unwrap();
            file.commit().unwrap();
        }
        let mut txn = store.begin();
        txn.rename("a", "b").unwrap();
        let renamed = txn.commit_async().unwrap();
        let file = store.open_file("b").unwrap();
        assert_eq!(contents(&file), b"AAAA");
        file.write_all_at(b"NEW!", 0).unwrap();
        file.commit().unwrap();
        refused_with_errno(store.open_file("a"), libc::ENOENT);
        renamed.wait().unwrap();

        let mut txn = store.begin();
        txn.unlink("c").unwrap();
        let unlinked = txn.commit_async().unwrap();
        refused_with_errno(store.open_file("c"), libc::ENOENT);
        unlinked.wait().unwrap();

        // A name that is reused, in one transaction and in two.
        let mut txn = store.begin();
        txn.rename("d", "c").unwrap();
        let made = txn.create("d", 0o600).unwrap();
        made.append(b"made").unwrap();
        let first = txn.commit_async().unwrap();
        let mut txn = store.begin();
        txn.rename("c", "e").unwrap();
        let second = txn.commit_async().unwrap();
        assert_eq!(contents(&store.open_or_create_file("d").unwrap()), b"made");
        assert_eq!(contents(&store.open_or_create_file("e").unwrap()), b"DDDD");
        let new = store.open_or_create_file("c").unwrap();
        assert_eq!(new.len().unwrap(), 0);
        first.wait().unwrap();
        second.wait().unwrap();

        // The mode that a pending commit sets.
        let mut txn = store.begin();
        txn.chmod("d", 0o400).unwrap();
        let changed = txn.commit_async().unwrap();
        if !is_root() {
            drop(made);
            refused_with_errno(store.open_file("d"), libc::EACCES);
        }
        changed.wait().unwrap();
        store.close().unwrap();
        assert_eq!(std::fs::read(dir.path().join("b")).unwrap(), b"NEW!");
    }
}

/// A refused commit of names has changed no name.
#[test]
fn the_name_of_a_refused_commit_is_that_of_the_commit_before() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_quiet(dir.path());
    for name in ["a", "b"] {
        let file = store.open_or_create_file(name).unwrap();
        file.append(name.as_bytes()).unwrap();
        file.commit().unwrap();
    }
    let mut txn = store.begin();
    txn.rename("a", "b").unwrap();
    let mut earlier = store.begin();
    earlier.unlink("a").unwrap();
    let (earlier, refused_one) = (earlier.commit_async().unwrap(), txn.commit_async().unwrap());
    assert_eq!(contents(&store.open_file("b").unwrap()), b"b");
    earlier.wait().unwrap();
    refused_with_errno(refused_one.wait(), libc::ENOENT);
    store.close().unwrap();
}
