//! The limits of a process and their effects on a store: descriptors (`RLIMIT_NOFILE`), and the size of files
//! (`RLIMIT_FSIZE`).

mod common;

use common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::time::Duration;
use untorn::{FailureClass, Store, StoreOptions};

fn limit(resource: Resource, bytes: Option<u64>) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
}

/// Takes all descriptors except for this many.
fn leave_descriptors(left: usize) -> Vec<File> {
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken.truncate(taken.len() - left);
    taken
}

/// With any number of free descriptors, the store is left free, and no file is taken for another program's.
#[test]
fn a_lack_of_descriptors_is_called_that() {
    if !untorn_testkit::is_alone!("a_lack_of_descriptors_is_called_that") {
        return;
    }
    limit(Resource::Nofile, Some(128));
    for state in ["none", "closed", "killed"] {
        for wait in [false, true].into_iter().take(if state == "none" { 2 } else { 1 }) {
            let mut opened = 0;
            for left in (1..=14).rev() {
                let dir = directory();
                let path = dir.path().to_owned();
                match state {
                    "none" => {}
                    "closed" => Store::open_or_create(&path).unwrap().close().unwrap(),
                    _ => {
                        let store = Store::open_or_create(&path).unwrap();
                        let file = store.open_or_create_file("a").unwrap();
                        file.append(b"committed").unwrap();
                        file.commit().unwrap();
                        // Simulates a kill: nothing is closed, and the locks are gone.
                        let copy = directory();
                        run("cp", ["-a", path.join(".").to_str().unwrap(), copy.path().to_str().unwrap()]);
                        store.close().unwrap();
                        std::fs::remove_dir_all(&path).unwrap();
                        std::fs::rename(copy.path(), &path).unwrap();
                    }
                }
                let taken = leave_descriptors(left);
                let what = format!("{state}, {left} descriptors left, wait {wait}");
                let store = within(Duration::from_secs(60), &what, {
                    let path = path.clone();
                    move || StoreOptions::new().create(true).wait(wait).background(false).open(path)
                });
                match &store {
                    Ok(_) => opened += 1,
                    Err(e) => assert_eq!((e.kind(), e.os_error()), ("io", Some(libc::EMFILE)), "{what}: {e}"),
                }
                if let Ok(store) = &store {
                    match store.open_or_create_file("b").and_then(|file| file.append(b"b").and_then(|_| file.commit()))
                    {
                        Ok(()) => {}
                        Err(e) => assert!(e.os_error() == Some(libc::EMFILE), "{what}: {e}"),
                    }
                }
                drop((taken, store));
                let store = Store::open_or_create(&path).unwrap_or_else(|e| panic!("{what}, then: {e}"));
                if state == "killed" {
                    assert_eq!(stored(&store, "a"), b"committed", "{what}");
                }
                store.close().unwrap();
            }
            assert!(opened > 0, "{state}");
        }
    }
}

/// A limit below the present length of a journal segment, or below its header: the commit did not happen, its outcome
/// is known, and the store goes on under another limit.
#[test]
fn a_limit_below_a_segment_is_no_space() {
    if !untorn_testkit::is_alone!("a_limit_below_a_segment_is_no_space") {
        return;
    }
    for class in [FailureClass::Power, FailureClass::Process] {
        for bytes in [0, 4095, 5000, 8192, 20_000, 60_000, 100_000] {
            let dir = directory();
            let store = StoreOptions::new().create(true).class(class).background(false).open(dir.path()).unwrap();
            let (a, b) = (store.open_or_create_file("a").unwrap(), store.open_or_create_file("b").unwrap());
            let mut wanted = Vec::new();
            let mut refusals = 0;
            for round in 0..24_u8 {
                // After some rounds, most of the segment is beyond the limit.
                limit(Resource::Fsize, if round % 3 == 1 { Some(bytes) } else { None });
                let text = [round; 3000];
                let done = a.write_all_at(&text, 0).and_then(|()| b.write_all_at(&text, 0));
                match done.and_then(|()| store.syncv(&[&a, &b])) {
                    Ok(()) => wanted = text.to_vec(),
                    Err(e) => {
                        assert!(["no-space", "io"].contains(&e.kind()), "{bytes}: {e}");
                        assert!(e.kind() == "no-space" || e.os_error() == Some(libc::EFBIG), "{bytes}: {e}");
                        assert!(round % 3 == 1, "{bytes}: without a limit: {e}");
                        refusals += 1;
                        a.rollback().unwrap();
                        b.rollback().unwrap();
                    }
                }
                if round == 15 {
                    let _ = store.checkpoint();
                }
                assert!(!wanted.is_empty() && contents(&a) == wanted && contents(&b) == wanted, "{bytes}, {round}");
            }
            assert!(refusals > 0 || bytes >= 8192, "{bytes}: {refusals}");
            limit(Resource::Fsize, None);
            drop((a, b));
            store.close().unwrap();
            assert!(plain(dir.path().join("a")) == wanted && plain(dir.path().join("b")) == wanted, "{bytes}");
            Store::open_or_create(dir.path()).unwrap().close().unwrap();
        }
    }
}

/// The limit stays, and there is no other segment: no commit is lost, and closing returns the error.
#[test]
fn a_store_is_closed_under_a_limit() {
    if !untorn_testkit::is_alone!("a_store_is_closed_under_a_limit") {
        return;
    }
    for bytes in [0, 4096, 20_000, 100_000] {
        let dir = directory();
        let store = Store::open_or_create(dir.path()).unwrap();
        let a = store.open_or_create_file("a").unwrap();
        for round in 0..30 {
            a.write_all_at(&[round; 5000], 0).unwrap();
            a.commit().unwrap();
        }
        limit(Resource::Fsize, Some(bytes));
        let done = a.write_all_at(&[99; 5000], 0).and_then(|()| a.commit());
        let last = if done.is_ok() { 99 } else { 29 };
        drop(a);
        if let Err(e) = store.close() {
            assert!(e.kind() == "no-space" || e.os_error() == Some(libc::EFBIG), "{bytes}: {e}");
        }
        limit(Resource::Fsize, None);
        let store = Store::open_or_create(dir.path()).unwrap();
        assert!(stored(&store, "a") == [last; 5000], "{bytes}, {last}");
        store.close().unwrap();
    }
}

/// A former bug: closing kept all files open until the flush, so the last ones kept their marks.
#[test]
fn a_close_clears_the_marks_of_more_files_than_there_are_descriptors() {
    if !untorn_testkit::is_alone!("a_close_clears_the_marks_of_more_files_than_there_are_descriptors") {
        return;
    }
    limit(Resource::Nofile, Some(96));
    let dir = directory();
    let store = StoreOptions::new().create(true).background(false).open(dir.path()).unwrap();
    let mut txn = store.begin();
    for n in 0..300 {
        let file = txn.create(format!("f{n}"), 0o600).unwrap();
        file.append(b"contents").unwrap();
    }
    txn.commit().unwrap();
    store.close().unwrap();
    let report = untorn::offline::inspect(dir.path()).unwrap();
    assert!(report.clean && report.left_marks.is_empty(), "{report:?}");
    // Moved away, a file with a mark would be refused.
    let elsewhere = directory();
    for n in 0..300 {
        let path = elsewhere.path().join(format!("f{n}"));
        std::fs::copy(dir.path().join(format!("f{n}")), &path).unwrap();
        run("cp", ["-a", dir.path().join(format!("f{n}")).to_str().unwrap(), path.to_str().unwrap()]);
        let file = untorn::File::open(&path).unwrap();
        assert_eq!(file.len().unwrap(), 8);
    }
}
