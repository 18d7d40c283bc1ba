//! Tests that every call of stores and files does its job, without a crash. Transactions are in `txn.rs`, wrong
//! arguments in `bad_input.rs`.

mod common;

use common::*;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use untorn::heap::{Heap, HeapOptions};
use untorn::{Error, FailureClass, File, FileOptions, Reader, Store, StoreOptions};

#[test]
fn a_committed_file_is_there_after_reopening() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_eq!(fs::canonicalize(store.path()).unwrap(), fs::canonicalize(dir.path()).unwrap());
    let file = store.open_or_create_file("a").unwrap();
    assert_eq!(file.path(), Path::new("a"));
    assert_eq!(file.store().path(), store.path());
    file.write_all_at(&text("one", "a"), 0).unwrap();
    file.commit().unwrap();
    assert_same(&contents(&file), &text("one", "a"), "before closing");
    file.close().unwrap();
    store.close().unwrap();
    assert_same(&plain(dir.path().join("a")), &text("one", "a"), "for other programs, after closing");

    let store = Store::open_or_create(dir.path()).unwrap();
    assert_same(&stored(&store, "a"), &text("one", "a"), "after reopening");
}

#[test]
fn reads_see_own_uncommitted_writes_and_others_do_not() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(&text("old", "a"), 0).unwrap();
    file.commit().unwrap();
    store.checkpoint().unwrap();

    file.write_all_at(b"changed", 4093).unwrap();
    let mut wanted = text("old", "a");
    wanted[4093..4100].copy_from_slice(b"changed");
    assert_same(&contents(&file), &wanted, "through the handle");
    let mut across = [0; 9];
    assert_eq!(file.read_at(&mut across, 4092).unwrap(), 9);
    assert_eq!(across, wanted[4092..4101]);
    assert_same(&plain(dir.path().join("a")), &text("old", "a"), "nothing uncommitted may reach the file");
}

#[test]
fn a_read_is_short_only_at_the_end() {
    let dir = directory();
    let file = Store::open_or_create(dir.path()).unwrap().open_or_create_file("a").unwrap();
    file.write_all_at(&[7; 5000], 0).unwrap();
    let mut bytes = [0; 100];
    assert_eq!(file.read_at(&mut bytes, 4950).unwrap(), 50);
    assert_eq!(file.read_at(&mut bytes, 5000).unwrap(), 0);
    assert_eq!(file.read_at(&mut bytes, 1 << 40).unwrap(), 0);
    assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
}

#[test]
fn several_handles_are_one_view() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let first = store.open_or_create_file("a").unwrap();
    let second = store.open_file("a").unwrap();
    let third = first.try_clone().unwrap();
    first.write_all_at(b"first ", 0).unwrap();
    assert_eq!(second.append(b"second ").unwrap(), 6);
    assert_eq!(third.append(b"third").unwrap(), 13);
    for handle in [&first, &second, &third] {
        assert_same(&contents(handle), b"first second third", "each handle sees all");
    }
    second.commit().unwrap();
    third.write_all_at(b"lost", 0).unwrap();
    first.rollback().unwrap();
    assert_same(&contents(&third), b"first second third", "one handle rolls all of it back");
}

#[test]
fn threads_share_a_handle() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let file = &file;
            scope.spawn(move || {
                for i in 0..50u64 {
                    file.write_all_at(&[thread + 1; 64], (i * 4 + u64::from(thread)) * 64).unwrap();
                    file.commit().unwrap();
                }
            });
        }
    });
    drop(file);
    store.close().unwrap();
    let found = plain(dir.path().join("a"));
    assert_eq!(found.len(), 4 * 50 * 64);
    for (i, block) in found.chunks(64).enumerate() {
        assert_eq!(block, [(i % 4) as u8 + 1; 64], "block {i}");
    }
}

#[test]
fn closing_discards_what_was_not_committed() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(b"kept", 0).unwrap();
    file.commit().unwrap();

    file.append(b" and lost").unwrap();
    let other = file.try_clone().unwrap();
    file.close().unwrap();
    assert_same(&contents(&other), b"kept and lost", "another handle keeps the changes alive");
    other.close().unwrap();
    assert_same(&stored(&store, "a"), b"kept", "after the last handle closed");

    let file = store.open_file("a").unwrap();
    file.append(b" and lost").unwrap();
    drop(file);
    assert_same(&stored(&store, "a"), b"kept", "after the last handle was dropped");

    let file = store.open_file("a").unwrap();
    file.append(b" and lost").unwrap();
    store.close().unwrap();
    assert_same(&plain(dir.path().join("a")), b"kept", "after the store closed under the handle");
}

#[test]
fn commit_on_close_is_opt_in() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.set_commit_on_close(true);
    file.append(b"kept").unwrap();
    file.close().unwrap();
    assert_same(&stored(&store, "a"), b"kept", "after close");

    let file = store.open_file("a").unwrap();
    file.set_commit_on_close(true);
    file.set_commit_on_close(false);
    file.append(b" and lost").unwrap();
    file.close().unwrap();
    assert_same(&stored(&store, "a"), b"kept", "after close, when switched off again");
}

#[test]
fn rollback_brings_back_contents_and_size() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.rollback().unwrap();
    file.write_all_at(&text("old", "a"), 0).unwrap();
    file.commit().unwrap();
    // First while the commit may be only in the journal, then when it is in the file.
    for _ in 0..2 {
        file.set_len(100).unwrap();
        file.write_all_at(b"far out", 100_000).unwrap();
        file.zero(0, 50).unwrap();
        file.rollback().unwrap();
        assert_same(&contents(&file), &text("old", "a"), "after rollback");
        file.commit().unwrap();
        assert_same(&contents(&file), &text("old", "a"), "after an empty commit");
        store.checkpoint().unwrap();
    }
    assert_same(&plain(dir.path().join("a")), &text("old", "a"), "for other programs");
}

#[test]
fn append_tells_where() {
    let dir = directory();
    let file = Store::open_or_create(dir.path()).unwrap().open_or_create_file("a").unwrap();
    let mut wanted = Vec::new();
    for i in 0..300u32 {
        let line = format!("line {i}\n").repeat(i as usize % 7);
        assert_eq!(file.append(line.as_bytes()).unwrap(), wanted.len() as u64);
        wanted.extend_from_slice(line.as_bytes());
        if i % 50 == 0 {
            file.commit().unwrap();
        }
    }
    assert_same(&contents(&file), &wanted, "all appended lines");
}

#[test]
fn truncate_shrinks_and_grows_with_zeros() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(&text("old", "a"), 0).unwrap();
    file.commit().unwrap();

    // The bytes that were cut off must not come back when the file grows again: in one commit …
    file.set_len(5000).unwrap();
    file.set_len(9000).unwrap();
    let mut wanted = text("old", "a");
    wanted.truncate(5000);
    wanted.resize(9000, 0);
    assert_same(&contents(&file), &wanted, "before the commit");
    file.commit().unwrap();
    store.checkpoint().unwrap();
    assert_same(&plain(dir.path().join("a")), &wanted, "cut and grown in one commit");

    // … and over several.
    file.set_len(4000).unwrap();
    file.commit().unwrap();
    file.write_all_at(b"end", 7000).unwrap();
    file.commit().unwrap();
    wanted.truncate(4000);
    wanted.resize(7000, 0);
    wanted.extend_from_slice(b"end");
    assert_same(&contents(&file), &wanted, "cut, then written past the end");
    file.set_len(0).unwrap();
    assert_eq!(file.len().unwrap(), 0);
    file.rollback().unwrap();
    drop(file);
    store.close().unwrap();
    assert_same(&plain(dir.path().join("a")), &wanted, "cut and grown in two commits");
}

#[test]
fn zero_clears_and_extends() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(&[9; 20_000], 0).unwrap();
    file.commit().unwrap();
    file.zero(4000, 9000).unwrap();
    file.write_all_at(b"island", 8000).unwrap();
    file.zero(19_990, 110).unwrap();
    file.zero(123, 0).unwrap();
    let mut wanted = vec![9; 19_990];
    wanted[4000..13_000].fill(0);
    wanted[8000..8006].copy_from_slice(b"island");
    wanted.resize(20_100, 0);
    assert_same(&contents(&file), &wanted, "before the commit");
    file.commit().unwrap();
    drop(file);
    store.close().unwrap();
    assert_same(&plain(dir.path().join("a")), &wanted, "after closing");
}

#[test]
fn syncv_commits_many_files() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let files: Vec<File> = (0..20).map(|i| store.open_or_create_file(format!("f{i}")).unwrap()).collect();
    for (i, file) in files.iter().enumerate() {
        file.write_all_at(&text("one", &i.to_string()), 0).unwrap();
    }
    let before = store.status().commits;
    store.syncv(&files.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(store.status().commits, before + 1, "one commit for all of them");
    // Naming a file twice is harmless; naming none makes no commit.
    files[0].append(b"twice").unwrap();
    store.syncv(&[&files[0], &files[0]]).unwrap();
    store.syncv(&[]).unwrap();
    // A file that is not named is not committed.
    files[1].append(b"uncommitted").unwrap();
    store.syncv(&[&files[2]]).unwrap();
    drop(files);
    store.close().unwrap();
    assert_eq!(plain(dir.path().join("f0")).len(), TEXT_BYTES + 5);
    for i in 1..20 {
        assert_same(&plain(dir.path().join(format!("f{i}"))), &text("one", &i.to_string()), "after closing");
    }
}

#[test]
fn tickets_tell_when_a_commit_is_durable() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let a = store.open_or_create_file("a").unwrap();
    let b = store.open_or_create_file("b").unwrap();
    a.append(b"1").unwrap();
    let ticket = a.commit_async().unwrap();
    ticket.wait().unwrap();
    assert!(matches!(ticket.poll(), Some(Ok(()))), "what was waited for is done");

    a.append(b"2").unwrap();
    let ticket = a.commit_async().unwrap();
    eventually(Duration::from_secs(60), "poll", || ticket.poll().is_some());
    ticket.poll().unwrap().unwrap();

    // The batch is fixed when the call returns; later writes are not in it.
    a.append(b"3").unwrap();
    b.append(b"3").unwrap();
    let ticket = store.syncv_async(&[&a, &b]).unwrap();
    a.append(b"4").unwrap();
    ticket.wait().unwrap();
    a.rollback().unwrap();
    assert_same(&contents(&a), b"123", "later changes are rolled back, the batch stays");

    // A dropped ticket cancels nothing, and a later commit covers it.
    b.append(b"5").unwrap();
    drop(b.commit_async().unwrap());
    a.append(b"5").unwrap();
    a.commit().unwrap();
    drop((a, b));
    store.close().unwrap();
    assert_same(&plain(dir.path().join("a")), b"1235", "after closing");
    assert_same(&plain(dir.path().join("b")), b"35", "after closing");
}

#[test]
fn after_a_checkpoint_files_are_plain_and_whole() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    for version in ["one", "two", "three"] {
        file.write_all_at(&text(version, "a"), 0).unwrap();
        file.commit().unwrap();
        store.checkpoint().unwrap();
        assert_same(&plain(dir.path().join("a")), &text(version, "a"), "after the checkpoint");
        assert_same(&contents(&file), &text(version, "a"), "through the handle");
    }
    let status = store.status();
    assert_eq!(status.journal_bytes_pending, 0);
    assert!(status.checkpoints >= 3, "{status:?}");
}

#[test]
fn a_commit_may_be_larger_than_the_journal() {
    let dir = directory();
    let store = StoreOptions::new().create(true).journal_bytes(64 << 10).open(dir.path()).unwrap();
    let file = store.open_or_create_file("big").unwrap();
    let mut wanted: Vec<u8> = (0..8u32 << 20).map(|i| (i / 1000) as u8).collect();
    for (i, part) in wanted.chunks(300_000).enumerate() {
        file.write_all_at(part, i as u64 * 300_000).unwrap();
    }
    file.commit().unwrap();
    assert_same(&contents(&file), &wanted, "after the commit");
    wanted[5_000_000..5_000_010].fill(1);
    file.write_all_at(&[1; 10], 5_000_000).unwrap();
    file.commit().unwrap();
    assert!(
        store.status().journal_bytes_allocated <= 1 << 20,
        "the journal stays within its size: {:?}",
        store.status()
    );
    drop(file);
    store.close().unwrap();
    assert_same(&plain(dir.path().join("big")), &wanted, "after closing");
    let left: u64 = picture(&dir.path().join(".untorn")).len() as u64;
    assert!(left < 20, "spill files are deleted when they are no longer needed: {left} names left");
}

#[test]
fn options_of_a_file() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let create = FileOptions::new().create(true).mode(0o640);
    let file = create.open_in(&store, "a").unwrap();
    assert_eq!(mode(dir.path().join("a")), 0o640 & !umask(), "the mode less the umask, at once");
    file.append(b"contents").unwrap();
    file.commit().unwrap();
    // An existing file is opened, and its mode left alone.
    let again = FileOptions::new().create(true).mode(0o600).open_in(&store, "a").unwrap();
    assert_same(&contents(&again), b"contents", "opened again");
    assert_eq!(mode(dir.path().join("a")), 0o640 & !umask());
    refused_with_errno(create.create_new(true).open_in(&store, "a"), libc::EEXIST);
    refused_with_errno(FileOptions::default().open_in(&store, "b"), libc::ENOENT);

    let reader = FileOptions::new().read_only(true).open_in(&store, "a").unwrap();
    assert_same(&contents(&reader), b"contents", "a read-only handle reads");
    for result in [reader.write_all_at(b"x", 0), reader.append(b"x").map(drop), reader.set_len(0), reader.zero(0, 1)] {
        assert!(result.is_err(), "a read-only handle does not write");
    }
    assert_same(&contents(&file), b"contents", "nothing was written");
    drop((file, again, reader));

    let truncated = FileOptions::new().truncate(true).open_in(&store, "a").unwrap();
    assert_eq!(truncated.len().unwrap(), 0);
    drop(truncated);
    assert_same(&stored(&store, "a"), b"contents", "the truncation was not committed");
}

/// The umask of this process, without changing it.
fn umask() -> u32 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let bits = text.lines().find_map(|line| line.strip_prefix("Umask:")).expect("a line Umask");
    u32::from_str_radix(bits.trim(), 8).unwrap()
}

#[test]
fn a_closed_store_answers_closed() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let clone = store.clone();
    let file = store.open_or_create_file("a").unwrap();
    let txn = store.begin();
    store.close().unwrap();
    refused(file.read_at(&mut [0; 4], 0), &["closed"]);
    refused(file.write_all_at(b"x", 0), &["closed"]);
    refused(file.len(), &["closed"]);
    refused(file.commit(), &["closed"]);
    refused(clone.open_file("a"), &["closed"]);
    refused(clone.open_or_create_file("b"), &["closed"]);
    refused(clone.checkpoint(), &["closed"]);
    refused(txn.commit(), &["closed"]);
    // The next owner can open the store.
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_eq!(stored(&store, "a").len(), 0);
}

#[test]
fn a_dropped_store_closes_by_itself() {
    let dir = directory();
    let file = Store::open_or_create(dir.path()).unwrap().open_or_create_file("a").unwrap();
    file.append(b"kept").unwrap();
    file.commit().unwrap();
    // The file handle alone keeps the store alive.
    refused(Store::open_or_create(dir.path()), &["busy"]);
    drop(file);
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_same(&stored(&store, "a"), b"kept", "after reopening");
}

#[test]
fn a_lone_file_needs_no_store() {
    let dir = directory();
    let path = dir.path().join("foo.db");
    refused_with_errno(File::open(&path), libc::ENOENT);
    assert!(picture(dir.path()).is_empty(), "opening what is not there makes nothing");

    let file = File::open_or_create(&path).unwrap();
    file.append(b"one").unwrap();
    file.commit().unwrap();
    assert!(dir.path().join("foo.db.untorn").is_dir());
    file.append(b"lost").unwrap();
    file.close().unwrap();
    assert_same(&plain(&path), b"one", "after closing");

    // Two standalone files in one directory are independent.
    let file = File::open(&path).unwrap();
    let other = File::open_or_create(dir.path().join("bar.db")).unwrap();
    assert_same(&contents(&file), b"one", "after reopening");
    file.write_all_at(b"two", 0).unwrap();
    other.append(b"other").unwrap();
    file.commit().unwrap();
    other.commit().unwrap();
    refused(file.store().syncv(&[&file, &other]), &["invalid", "foreign"]);
    drop((file, other));
    assert_same(&plain(&path), b"two", "after closing");
    assert_same(&plain(dir.path().join("bar.db")), b"other", "after closing");
}

#[test]
fn an_existing_file_is_taken_as_it_is() {
    let dir = directory();
    fs::create_dir(dir.path().join("sub")).unwrap();
    let path = dir.path().join("sub/a");
    fs::write(&path, text("plain", "a")).unwrap();
    set_mode(&path, 0o604);
    let inode = fs::metadata(&path).unwrap().ino();

    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_file("sub/a").unwrap();
    assert_same(&contents(&file), &text("plain", "a"), "as it was");
    file.write_all_at(b"changed", 0).unwrap();
    file.commit().unwrap();
    drop(file);
    store.close().unwrap();
    let mut wanted = text("plain", "a");
    wanted[..7].copy_from_slice(b"changed");
    assert_same(&plain(&path), &wanted, "after closing");
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((mode(&path), meta.ino()), (0o604, inode), "changed in place: same file, same mode");
}

#[test]
fn status_counts() {
    let dir = directory();
    let store = StoreOptions::new().create(true).journal_bytes(1 << 20).full_page(true).open(dir.path()).unwrap();
    let start = store.status();
    assert_eq!((start.class, start.full_page, start.journal_bytes_max), (FailureClass::Power, true, 1 << 20));
    assert!(!start.store_id.is_empty());
    assert_eq!(start.open_files, 0);
    let file = store.open_or_create_file("a").unwrap();
    let before = store.status();
    for i in 0..10u64 {
        file.write_all_at(&text("one", "a")[..1000], i * 1000).unwrap();
        file.commit().unwrap();
    }
    let status = store.status();
    assert_eq!(status.commits, before.commits + 10);
    // A durable mark, written when the journal is idle, has an LSN, too.
    assert!((10..=20).contains(&(status.lsn - before.lsn)), "{status:?}");
    assert_eq!(status.open_files, 1);
    assert!((1..=10).contains(&(status.commit_groups - before.commit_groups)));
    assert!(status.bytes_written >= before.bytes_written + 10_000, "{status:?}");
    assert!(status.journal_bytes_written >= before.journal_bytes_written + 10_000, "{status:?}");
    assert!(status.failed.is_none() && status.quarantined.is_empty(), "{status:?}");
    assert_eq!(status.recovered.commits, 0, "nothing was to be recovered");

    // An empty commit costs nothing.
    file.commit().unwrap();
    let idle = store.status();
    assert_eq!((idle.commits, idle.journal_bytes_written), (status.commits, status.journal_bytes_written));
    drop(file);
    let id = status.store_id;
    store.close().unwrap();
    assert_eq!(Store::open_or_create(dir.path()).unwrap().status().store_id, id, "a store keeps its id");
}

#[test]
fn small_stays_small() {
    let dir = directory();
    let path = dir.path().join("small");
    fs::write(&path, [1; 1024]).unwrap();
    let file = File::open(&path).unwrap();
    file.write_all_at(&[2; 1024], 0).unwrap();
    file.commit().unwrap();
    let home = dir.path().join("small.untorn");
    let blocks =
        |dir: &Path| -> u64 { fs::read_dir(dir).unwrap().map(|e| e.unwrap().metadata().unwrap().blocks()).sum() };
    let bytes = (blocks(&home) + blocks(&home.join("journal"))) * 512;
    assert!((1..=128 << 10).contains(&bytes), "a store for a small file takes {bytes} bytes");
    let syncs = file.store().status().syncs;
    assert!(syncs <= 20, "opening and one commit took {syncs} syncs");
}

#[test]
fn create_off_makes_nothing() {
    let dir = directory();
    let missing = |opened: Result<(), Error>| {
        let Err(e @ Error::Io { .. }) = opened else { panic!("a missing store or file was opened") };
        assert_eq!(e.os_error(), Some(libc::ENOENT));
        assert!(e.to_string().contains("`create`"), "{e}");
    };
    let options = StoreOptions::new().create(false);
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    for store in [dir.path(), &a] {
        missing(options.open(store).map(drop));
        missing(Store::open(store).map(drop));
    }
    missing(File::open(&a).map(drop));
    missing(FileOptions::new().store(StoreOptions::new().create(true)).open(&a).map(drop));
    missing(Heap::open(&a).map(drop));
    refused_with_errno(Reader::open(&a), libc::ENOENT);
    assert!(picture(dir.path()).is_empty(), "nothing was made");
    let store = Store::open_or_create(dir.path()).unwrap();
    missing(store.open_file("a").map(drop));
    missing(HeapOptions::new().open_in(&store, "a").map(drop));
    store.close().unwrap();
    options.open(dir.path()).unwrap();
    // A standalone file exists without its store.
    fs::write(&b, "old").unwrap();
    File::open(&b).unwrap().close().unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"old");
}

#[test]
fn errors_name_the_path() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let Err(e @ Error::Io { .. }) = store.open_file("no such file") else {
        panic!("a missing store or file was opened")
    };
    assert!(e.to_string().contains("no such file"), "{e}");
}

/// The file's name is given to another file while a handle of the first is open: the store is in use by the second.
#[test]
fn a_standalone_store_stays_open_for_the_file_that_has_the_name_now() {
    let dir = directory();
    let path = dir.path().join("f");
    let first = File::open_or_create(&path).unwrap();
    let store = first.store();
    let mut txn = store.begin();
    txn.unlink("f").unwrap();
    txn.commit().unwrap();
    let second = store.open_or_create_file("f").unwrap();
    second.write_all_at(b"second", 0).unwrap();
    drop(store);
    drop(first);
    second.commit().unwrap();
    second.close().unwrap();
    assert_eq!(plain(&path), b"second");
    assert!(File::open(&path).is_ok(), "the store is closed");
}
