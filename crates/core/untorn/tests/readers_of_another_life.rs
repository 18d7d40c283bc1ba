//! Readers beside an owner that fails, and the next one.

mod common;

use common::*;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;
use untorn::__private::OpenStoreOn;
use untorn::reader::{ChangeKind, Followed};
use untorn::{Reader, StoreOptions};

/// Longer than any test here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// A commit that failed, and is not in the log, is not shown as the next commit when the store is opened again.
#[test]
fn what_was_copied_of_another_life_is_no_commit() {
    // The descriptors of all stores of the process are replaced.
    if !untorn_testkit::is_alone!("what_was_copied_of_another_life_is_no_commit") {
        return;
    }
    let dir = directory();
    let options = || StoreOptions::new().create(true).background(false).sizes(8 << 20, 1 << 20, 64 << 10).page(true);
    // The log cannot be written, because its descriptors now refer to another file.
    let fails = |file: &untorn::File| {
        let other = fs::File::open("/dev/null").unwrap();
        let numbers = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
        for number in numbers.map(|name| name.to_str().unwrap().parse::<i32>().unwrap()).collect::<Vec<_>>() {
            let of = fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
            if of.to_string_lossy().contains("/journal/segment.") {
                // SAFETY: the library checks whether its descriptors are still its own.
                assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
            }
        }
        assert!(file.commit().is_err());
    };
    let store = options().open(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    for n in 0..30u8 {
        file.write_all_at(&[n; 3000], 0).and_then(|()| file.commit()).unwrap();
    }
    let reader = Reader::open(dir.path()).unwrap();
    let mut follow = reader.follow().unwrap();
    file.write_all_at(&[99; 3000], 0).unwrap();
    fails(&file);
    drop((file, store));
    let store = options().open(dir.path()).unwrap();
    assert_eq!(follow.next_within(Duration::from_millis(50)).unwrap(), None);
    let before = reader.snapshot().unwrap();
    let other = store.open_or_create_file("b").unwrap();
    let Some(Followed::Commit(commit)) = follow.next_within(LIMIT).unwrap() else { panic!("the file that was made") };
    assert_eq!(&*commit.changes[0].path, Path::new("b"));
    assert!(matches!(commit.changes[0].kind, ChangeKind::Created(_)));
    let mut byte = [0];
    let snapshot = reader.snapshot().unwrap();
    assert!(snapshot.lsn() > before.lsn() && snapshot.open("b").is_ok());
    snapshot.open("a").unwrap().read_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [29]);
    other.write_all_at(b"b", 0).and_then(|()| other.commit()).unwrap();
    assert!(matches!(follow.next_within(LIMIT).unwrap(), Some(Followed::Commit(_))));
    assert_eq!(reader.read("b").unwrap(), b"b");
    store.close().unwrap();
}
