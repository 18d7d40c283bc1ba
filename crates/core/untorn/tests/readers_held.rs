//! Readers hold their commits beside everything that owners do, read copies of files and heaps, and are other users.

mod common;

use common::child_process::{ChildProcess, path_text};
use common::shown_files::*;
use common::*;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use untorn::heap::{Heap, HeapVec};
use untorn::offline::{self, RecoverOptions};
use untorn::{Error, File, Reader, Readers, Store, StoreOptions};
use untorn_testkit::NOBODY;

/// Longer than any test takes: only a broken program waits this long.
const LONG: Duration = Duration::from_secs(120);

fn open(path: &Path) -> Store {
    StoreOptions::new().create(true).background(false).open(path).expect("open")
}

/// The names in the undo directory, sorted.
fn kept(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir.join(".untorn/undo")).into_iter().flatten();
    let mut names: Vec<String> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "names" || kept_names(dir) > 0);
    names.sort();
    names
}

/// How many files are kept.
fn kept_names(dir: &Path) -> usize {
    std::fs::read_dir(dir.join(".untorn/undo/names")).map_or(0, |names| names.count())
}

#[test]
fn a_held_commit_stays_and_the_owner_goes_on() {
    let dir = directory();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    assert_eq!(store.status().held, [snapshot.lsn()]);
    assert_eq!(offline::inspect(dir.path()).unwrap().held, [snapshot.lsn()]);
    store.checkpoint().unwrap();
    assert!(kept(dir.path()).iter().all(|name| !name.starts_with("old.")), "nothing was overwritten yet");
    for n in 0..5u8 {
        commit(&store, "a", &[n; 5000]);
        store.checkpoint().unwrap();
        assert_eq!(shown(&snapshot, "a").unwrap(), b"one");
    }
    assert!(store.status().kept_bytes > 0);
    // One version of each range is enough for one reader.
    assert_eq!(kept(dir.path()).iter().filter(|name| name.starts_with("old.")).count(), 1, "{:?}", kept(dir.path()));
    // The hold ends with its last handle.
    let file = snapshot.open("a").unwrap();
    drop(snapshot);
    assert_eq!(store.status().held.len(), 1, "a file of the snapshot is there");
    store.checkpoint().unwrap();
    let mut bytes = [0; 3];
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"one");
    drop(file);
    assert!(store.status().held.is_empty());
    commit(&store, "a", b"two");
    store.checkpoint().unwrap();
    assert_eq!(kept(dir.path()), [""; 0], "nobody needs anything");
    assert_eq!(store.status().kept_bytes, 0);
    store.close().unwrap();
}

/// The log that a held commit needs is in a segment to which the owner wrote on behind the checkpoint, and is killed. The
/// next owner knows only the later records in it.
#[test]
fn a_commit_that_is_held_across_a_kill_keeps_its_log() {
    for before in [1, 2, 5] {
        let dir = directory();
        let mut owner = ChildProcess::owning(dir.path());
        owner.ok(&["create", "a"]);
        for n in 0..before {
            owner.commit("a", &format!("version {n}"));
        }
        owner.commit("a", "held");
        let reader = Reader::open(dir.path()).unwrap();
        // Its log is read when it is shown.
        let snapshot = reader.snapshot().unwrap();
        owner.commit("a", "newer");
        owner.ok(&["checkpoint"]);
        owner.commit("a", "later");
        owner.kill();
        let store = StoreOptions::new().background(false).journal_bytes(64 << 10).open(dir.path()).unwrap();
        for n in 0..30 {
            store.checkpoint().unwrap();
            commit(&store, "a", &[n; 3000]);
        }
        assert_same(&shown(&snapshot, "a").unwrap(), &text("held", "a"), "the held commit");
    }
}

/// Cut, grown, zeroed, rewritten, removed and made anew: a snapshot of each state shows that state.
#[test]
fn each_reader_sees_its_own_commit() {
    let dir = directory();
    let store = StoreOptions::new().create(true).background(false).journal_bytes(256 << 10).open(dir.path()).unwrap();
    let seed = untorn_testkit::seed();
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let reader = Reader::open({
        commit(&store, "f", &[0; 30_000]);
        dir.path()
    })
    .unwrap();
    let mut contents = vec![0; 30_000];
    let mut snapshots = Vec::new();
    for n in 1..120u8 {
        let file = store.open_or_create_file("f").unwrap();
        match rng.u8(..6) {
            0 => {
                let len = rng.usize(..60_000);
                file.set_len(len as u64).unwrap();
                contents.resize(len, 0);
            }
            1 => {
                drop(file);
                let mut txn = store.begin();
                txn.unlink("f").unwrap();
                contents = vec![n; rng.usize(..9000)];
                txn.create("f", 0o600).unwrap().write_all_at(&contents, 0).unwrap();
                txn.commit().unwrap();
                snapshots.push((reader.snapshot().unwrap(), contents.clone()));
                continue;
            }
            2 => {
                let at = rng.usize(..=contents.len());
                let len = rng.usize(..10_000).min(contents.len() - at);
                file.zero(at as u64, len as u64).unwrap();
                contents[at..at + len].fill(0);
            }
            _ => {
                let at = rng.usize(..=contents.len());
                let bytes = vec![n; rng.usize(1..20_000)];
                file.write_all_at(&bytes, at as u64).unwrap();
                contents.resize(contents.len().max(at + bytes.len()), 0);
                contents[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        file.commit().unwrap();
        if rng.u8(..3) == 0 {
            store.checkpoint().unwrap();
        }
        if rng.bool() {
            snapshots.push((reader.snapshot().unwrap(), contents.clone()));
        }
        if snapshots.len() > 20 {
            let gone = rng.usize(..snapshots.len());
            snapshots.swap_remove(gone);
        }
        if let Some((one, expected)) = rng.choice(&snapshots) {
            assert_same(&shown(one, "f").unwrap(), expected, &format!("commit {} after {n}", one.lsn()));
        }
    }
    for (snapshot, expected) in &snapshots {
        assert_same(&shown(snapshot, "f").unwrap(), expected, &format!("commit {}", snapshot.lsn()));
        let copy = tempfile::tempfile().unwrap();
        snapshot.open("f").unwrap().copy_to(&copy, &mut |_| {}).unwrap();
        assert_same(&std::fs::read(format!("/proc/self/fd/{}", copy.as_raw_fd())).unwrap(), expected, "the copy");
    }
    snapshots.clear();
    commit(&store, "f", b"last");
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    assert_eq!(kept(dir.path()), [""; 0]);
    store.close().unwrap();
}

#[test]
fn names_are_those_of_the_commit_that_is_held() {
    let dir = directory();
    let store = open(dir.path());
    let mut txn = store.begin();
    txn.mkdir("d", 0o750).unwrap();
    txn.commit().unwrap();
    for name in ["gone", "replaced", "moved", "same", "d/inside"] {
        commit(&store, name, name.as_bytes());
    }
    store.checkpoint().unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let mut txn = store.begin();
    txn.unlink("gone").unwrap();
    txn.create("new", 0o600).unwrap().write_all_at(b"new", 0).unwrap();
    txn.commit().unwrap();
    store.rename("moved", "replaced").unwrap();
    let mut txn = store.begin();
    txn.unlink("d/inside").unwrap();
    txn.rmdir("d").unwrap();
    txn.mkdir("e", 0o700).unwrap();
    txn.rename("same", "e/same").unwrap();
    txn.create("same", 0o644).unwrap().write_all_at(b"another", 0).unwrap();
    txn.commit().unwrap();
    assert_eq!(snapshot.list("").unwrap(), ["d", "gone", "moved", "replaced", "same"]);
    assert_eq!(snapshot.list("d").unwrap(), ["inside"]);
    for name in ["gone", "replaced", "moved", "same", "d/inside"] {
        assert_eq!(shown(&snapshot, name).unwrap(), name.as_bytes(), "{name}");
    }
    for name in ["new", "e", "e/same"] {
        refused_with_errno(snapshot.metadata(name), libc::ENOENT);
    }
    assert_eq!(snapshot.metadata("same").unwrap().len, 4);
    assert_eq!(kept_names(dir.path()), 5);
    assert_eq!(store.list("").unwrap(), ["e", "new", "replaced", "same"], "the owner's");
    let mode = snapshot.metadata("moved").unwrap().mode;
    let mut txn = store.begin();
    txn.chmod("new", 0o640).unwrap();
    txn.chmod("replaced", 0o640).unwrap();
    txn.commit().unwrap();
    assert_eq!(snapshot.metadata("moved").unwrap().mode, mode);
    assert_eq!(snapshot.metadata("d").unwrap().mode, 0o750);
    assert_eq!(shown(&snapshot, "moved").unwrap(), b"moved");
    // Kept names do not count as second names of the files.
    commit(&store, "e/same", b"changed");
    store.checkpoint().unwrap();
    commit(&store, "e/same", b"changed again");
    assert_eq!(shown(&snapshot, "same").unwrap(), b"same");
    store.close().unwrap();
    let store = open(dir.path());
    commit(&store, "e/same", b"by the next owner");
    store.checkpoint().unwrap();
    assert_eq!(shown(&snapshot, "same").unwrap(), b"same");
    drop(snapshot);
    commit(&store, "e/same", b"last");
    store.checkpoint().unwrap();
    assert_eq!(kept(dir.path()), [""; 0]);
    store.close().unwrap();
}

/// A reader may read kept files, so a file is not kept if the directories above it are closed to readers.
#[test]
fn what_directories_keep_closed_is_not_kept() {
    let dir = directory();
    set_mode(dir.path(), 0o755);
    let store = StoreOptions::new().create(true).background(false).readers(Readers::All).open(dir.path()).unwrap();
    for (name, mode) in [("open", 0o755), ("private", 0o700)] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        set_mode(dir.path().join(name), mode);
        commit(&store, &format!("{name}/file"), b"contents");
    }
    // The log has nothing any more, which a reader could read in any case.
    store.checkpoint().unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let mut txn = store.begin();
    txn.unlink("open/file").and_then(|()| txn.unlink("private/file")).and_then(|()| txn.commit()).unwrap();
    assert_eq!(kept_names(dir.path()), 1);
    assert_eq!(shown(&snapshot, "open/file").unwrap(), b"contents");
    refused(shown(&snapshot, "private/file"), &["file-not-kept"]);
}

/// Another directory counts as equally open only if it has the same group.
#[test]
fn what_directories_of_another_group_keep_closed_is_not_kept() {
    if !two_users() {
        return;
    }
    let dir = directory();
    set_mode(dir.path(), 0o750);
    let options = StoreOptions::new().create(true).background(false);
    let store = options.readers(Readers::Group).open(dir.path()).unwrap();
    let own = std::fs::metadata(dir.path().join(".untorn")).unwrap().gid();
    let undo = dir.path().join(".untorn/undo");
    for (name, mode, group) in
        [("own", 0o750, own), ("open", 0o755, own + 1), ("secret", 0o750, own + 1), ("listed", 0o750, own)]
    {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        chown(&path, None, Some(group)).unwrap();
        set_mode(&path, mode);
        commit(&store, &format!("{name}/file"), b"contents");
    }
    // Version 2; then the entries for the owner, one more user, the group, the mask (the limit for all but the owner),
    // and others.
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 0, OTHER), (4, 5, u32::MAX), (16, 5, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(id.to_le_bytes()));
    }
    let name = "system.posix_acl_access";
    let flags = rustix::fs::XattrFlags::empty();
    let has_lists = rustix::fs::setxattr(dir.path().join("listed"), name, &list, flags).is_ok();
    store.checkpoint().unwrap();
    let snapshot = Reader::open(dir.path()).unwrap().snapshot().unwrap();
    let mut txn = store.begin();
    for name in ["own", "open", "secret", "listed"] {
        txn.unlink(format!("{name}/file")).unwrap();
    }
    txn.commit().unwrap();
    assert_eq!(kept_names(dir.path()), if has_lists { 2 } else { 3 });
    assert_eq!(shown(&snapshot, "own/file").unwrap(), b"contents");
    assert_eq!(shown(&snapshot, "open/file").unwrap(), b"contents");
    refused(shown(&snapshot, "secret/file"), &["file-not-kept"]);
    // Users that are allowed only now had no part in that decision.
    offline::set_readers(dir.path(), Readers::All).unwrap();
    assert_eq!(std::fs::metadata(undo.join("names")).unwrap().mode() & 0o777, 0o750);
}

/// Takes or tests a lock of a whole file; returns the kind of the lock that is in the way.
fn lock(file: &std::fs::File, command: libc::c_int, kind: libc::c_int) -> libc::c_int {
    // SAFETY: zero is a value of every field.
    let mut all: libc::flock = unsafe { std::mem::zeroed() };
    all.l_type = kind as libc::c_short;
    // SAFETY: a descriptor that is open, and a lock that is read and written.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut all) }, 0);
    all.l_type.into()
}

/// Locks a whole file, as any program that may read it can.
fn lock_as_a_reader(path: &Path) -> std::fs::File {
    let file = std::fs::File::open(path).unwrap();
    lock(&file, libc::F_OFD_SETLK, libc::F_RDLCK);
    file
}

/// Locks that readers can take keep no owner out, and readers cannot open the file that owners lock.
#[test]
fn who_locks_the_lock_file_keeps_nobody_out() {
    let dir = directory();
    set_mode(dir.path(), 0o755);
    let options = || StoreOptions::new().create(true).background(false).readers(Readers::All);
    options().open(dir.path()).unwrap().close().unwrap();
    let of_store = |name: &str| dir.path().join(".untorn").join(name);
    assert_eq!((mode(of_store("lock")), mode(of_store("owner"))), (0o644, 0o600));
    offline::set_readers(dir.path(), Readers::Group).unwrap();
    offline::set_readers(dir.path(), Readers::All).unwrap();
    assert_eq!((mode(of_store("lock")), mode(of_store("owner"))), (0o644, 0o600), "whatever is changed");
    let locked = lock_as_a_reader(&of_store("lock"));
    assert_eq!(offline::inspect(dir.path()).unwrap().owner, None, "nobody who may know has it open");
    let store = options().open(dir.path()).unwrap();
    commit(&store, "a", b"one");
    assert_eq!(Reader::open(dir.path()).unwrap().read("a").unwrap(), b"one");
    refused(options().open(dir.path()), &["busy"]);
    store.close().unwrap();
    drop(locked);
    // Two owners exclude each other, and are visible, also to programs that see only the lock file.
    let store = options().open(dir.path()).unwrap();
    let shown = std::fs::File::open(of_store("lock")).unwrap();
    assert_eq!(lock(&shown, libc::F_OFD_GETLK, libc::F_WRLCK), libc::F_RDLCK);
    store.close().unwrap();
}

/// Other objects in the place of the lock files are reported, and left alone.
#[test]
fn what_is_no_lock_file_is_told() {
    let dir = directory();
    Store::open_or_create(dir.path()).unwrap().close().unwrap();
    for name in ["owner", "lock"] {
        let path = dir.path().join(".untorn").join(name);
        let away = dir.path().join(name);
        std::fs::rename(&path, &away).unwrap();
        std::fs::create_dir(&path).unwrap();
        let why = refused(Store::open_or_create(dir.path()), &["foreign"]).to_string();
        assert!(why.contains("Remove it"), "{why}");
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(&away, &path).unwrap();
        refused(Store::open_or_create(dir.path()), &["foreign"]);
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&away, &path).unwrap();
    }
    Store::open_or_create(dir.path()).unwrap().close().unwrap();
}

/// A reader may lock any part of the page. One that locks all of it costs the owner space, and nothing else.
#[test]
fn who_locks_the_whole_page_holds_nobody_up() {
    let dir = directory();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    let _locked = lock_as_a_reader(&dir.path().join(".untorn/readers"));
    for n in 0..40u8 {
        commit(&store, "a", &[n; 9000]);
        store.checkpoint().unwrap();
    }
    assert_eq!(store.status().held, [0], "every commit");
    assert_same(&Reader::open(dir.path()).unwrap().read("a").unwrap(), &[39; 9000], "the last one");
    store.close().unwrap();
}

/// Kept data takes room on the disk until its reader is gone, and no longer.
#[test]
fn what_was_kept_goes_with_its_reader() {
    let dir = directory();
    let store = StoreOptions::new().create(true).open(dir.path()).unwrap();
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let mut txn = store.begin();
    txn.unlink("a").unwrap();
    txn.commit().unwrap();
    assert_eq!(kept_names(dir.path()), 1);
    drop(snapshot);
    eventually(LONG, "an idle store removes kept data", || kept(dir.path()).is_empty());
    store.close().unwrap();
}

/// A reader that is stopped holds its commit for ever, and nobody waits for it.
#[test]
fn a_stopped_reader_holds_its_commit() {
    let dir = directory();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    let mut child = ChildProcess::start();
    child.ok(&["hold", path_text(dir.path())]);
    assert_eq!(child.ok(&["show-held", "a"]), "one");
    child.signal(Signal::STOP);
    for n in 0..20 {
        commit(&store, "a", format!("{n}").as_bytes());
        store.checkpoint().unwrap();
    }
    store.close().unwrap();
    open(dir.path()).close().unwrap();
    let store = open(dir.path());
    commit(&store, "a", b"another");
    store.checkpoint().unwrap();
    child.signal(Signal::CONT);
    assert_eq!(child.ok(&["show-held", "a"]), "one");
    child.kill();
    commit(&store, "a", b"last");
    store.checkpoint().unwrap();
    assert_eq!(kept(dir.path()), [""; 0]);
    store.close().unwrap();
}

/// Without space for readers, a snapshot lasts until the next checkpoint.
#[test]
fn without_space_nothing_is_kept() {
    let dir = directory();
    let store = StoreOptions::new().create(true).background(false).readers_space(0).open(dir.path()).unwrap();
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    for n in 0..3u8 {
        let snapshot = reader.snapshot().unwrap();
        let before = shown(&snapshot, "a").unwrap();
        commit(&store, "a", &[n; 100]);
        assert_eq!(shown(&snapshot, "a").unwrap(), before);
        store.checkpoint().unwrap();
        let why = refused(shown(&snapshot, "a"), &["snapshot-expired"]).to_string();
        assert!(why.contains("given up for space") && why.contains("readers_space"), "{why}");
        assert_eq!(shown(&reader.snapshot().unwrap(), "a").unwrap(), [n; 100], "a new one");
    }
    store.close().unwrap();
}

/// A range that is larger than the limit ends the snapshots that need it, and no byte of it is copied.
#[test]
fn a_range_beyond_the_limit_is_not_copied() {
    let dir = directory();
    let options = StoreOptions::new().create(true).background(false).journal_bytes(256 << 10).readers_space(512 << 10);
    let store = options.open(dir.path()).unwrap();
    commit(&store, "a", b"one");
    commit(&store, "large", &[7; 3 << 20]);
    store.checkpoint().unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    commit(&store, "a", b"two");
    store.checkpoint().unwrap();
    assert_eq!(shown(&snapshot, "a").unwrap(), b"one");
    let large = store.open_file("large").unwrap();
    large.set_len(1).unwrap();
    large.commit().unwrap();
    let last = reader.snapshot().unwrap();
    store.checkpoint().unwrap();
    let why = refused(shown(&snapshot, "large"), &["snapshot-expired"]).to_string();
    assert!(why.contains("given up for space"), "{why}");
    assert_eq!(kept(dir.path()), [""; 0], "nothing is kept for a snapshot that ended");
    assert_eq!(shown(&last, "large").unwrap(), [7], "a snapshot of the newest commit goes on");
    store.close().unwrap();
}

/// A checkpoint forgets files that nobody uses, and a later opening numbers them anew: old bytes belong to the inode.
#[test]
fn files_that_are_forgotten_and_numbered_anew_are_held() {
    let dir = directory();
    let store = open(dir.path());
    let name = |n: usize| format!("f{n}");
    (0..20).for_each(|n| commit(&store, &name(n), name(n).repeat(100).as_bytes()));
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let mut rng = fastrand::Rng::with_seed(untorn_testkit::seed());
    for round in 0..30 {
        let mut order: Vec<usize> = (0..20).collect();
        rng.shuffle(&mut order);
        order[..5].iter().for_each(|n| commit(&store, &name(*n), format!("{round} of {n}").as_bytes()));
        store.checkpoint().unwrap();
        assert_eq!(store.status().open_files, 0, "a checkpoint forgets them");
    }
    for n in 0..20 {
        assert_same(&shown(&snapshot, &name(n)).unwrap(), name(n).repeat(100).as_bytes(), &name(n));
    }
    store.close().unwrap();
}

/// Beyond the limit the oldest reader is given up, and the others go on.
#[test]
fn the_oldest_reader_is_given_up_first() {
    let dir = directory();
    let options = StoreOptions::new().create(true).background(false).journal_bytes(64 << 10).readers_space(1);
    let store = options.open(dir.path()).unwrap();
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    let oldest = reader.snapshot().unwrap();
    let (mut newest, mut last) = (reader.snapshot().unwrap(), 0);
    for n in 1..30u8 {
        commit(&store, "a", &[n; 20_000]);
        store.checkpoint().unwrap();
        newest = reader.snapshot().unwrap();
        assert_same(&shown(&newest, "a").unwrap(), &[n; 20_000], "the newest one");
        assert!(store.status().kept_bytes <= 2 * (64 << 10), "{} bytes are kept", store.status().kept_bytes);
        last = n;
    }
    assert_same(&shown(&newest, "a").unwrap(), &[last; 20_000], "the newest one");
    assert_eq!(shown(&oldest, "a").unwrap(), b"one", "nothing else was held meanwhile");
    // With a reader of each commit, some version of the file has to go.
    let mut readers = vec![(oldest, b"one".to_vec())];
    for n in 100..130u8 {
        commit(&store, "a", &[n; 20_000]);
        readers.push((reader.snapshot().unwrap(), vec![n; 20_000]));
        store.checkpoint().unwrap();
    }
    let shown: Vec<bool> = readers
        .iter()
        .map(|(snapshot, expected)| match shown(snapshot, "a") {
            Ok(found) => {
                assert_same(&found, expected, "one that is kept");
                true
            }
            Err(e) => {
                assert!(matches!(e, Error::SnapshotExpired { .. }), "{e}");
                false
            }
        })
        .collect();
    assert!(shown.is_sorted() && !shown[0] && shown[29] && shown[30], "the oldest first: {shown:?}");
    store.close().unwrap();
}

/// The next owner keeps the data that its predecessor kept, also if that was killed, and in a store that nobody had open.
#[test]
fn held_commits_outlive_their_owners() {
    let dir = directory();
    let mut owner = ChildProcess::owning(dir.path());
    for name in ["a", "b"] {
        owner.ok(&["create", name]);
        owner.commit(name, "one");
    }
    let reader = Reader::open(dir.path()).unwrap();
    let first = reader.snapshot().unwrap();
    owner.ok(&["checkpoint"]);
    owner.commit("a", "two");
    owner.ok(&["checkpoint"]);
    let second = reader.snapshot().unwrap();
    owner.ok(&["txn", "unlink:b"]);
    owner.kill();
    let without = reader.snapshot().unwrap();
    let check = |owner: &str| {
        for (snapshot, version) in [(&first, "one"), (&second, "two"), (&without, "two")] {
            assert_same(&shown(snapshot, "a").unwrap(), &text(version, "a"), owner);
        }
        for snapshot in [&first, &second] {
            assert_same(&shown(snapshot, "b").unwrap(), &text("one", "b"), owner);
            assert_eq!(snapshot.list("").unwrap(), ["a", "b"], "{owner}");
        }
        assert_eq!(without.list("").unwrap(), ["a"], "{owner}");
        refused_with_errno(first.list("nothing"), libc::ENOENT);
        refused_with_errno(first.open("b").and_then(|_| first.list("b")), libc::ENOTDIR);
    };
    check("nobody has it open");
    let mut owner = ChildProcess::owning(dir.path());
    check("the next owner");
    owner.ok(&["file", "a"]);
    owner.commit("a", "three");
    owner.ok(&["checkpoint"]);
    check("after a checkpoint");
    owner.ok(&["create", "b"]);
    owner.commit("b", "four");
    owner.kill();
    offline::recover(dir.path(), &RecoverOptions::default(), &|_, _| {}).unwrap();
    check("after a recovery");
    let store = open(dir.path());
    commit(&store, "a", b"five");
    store.close().unwrap();
    check("after a close");
    drop((first, second, without));
    open(dir.path()).close().unwrap();
    assert_eq!(kept(dir.path()), [""; 0]);
}

/// A store that nobody had opened since the boot has a page of that boot, or none.
#[test]
fn a_closed_store_is_held_against_opening() {
    for page in ["of another boot", "missing", "of an older version", "garbage"] {
        let dir = directory();
        let store = open(dir.path());
        commit(&store, "a", b"one");
        store.close().unwrap();
        let path = dir.path().join(".untorn/readers");
        match page {
            "missing" => std::fs::remove_file(&path).unwrap(),
            "garbage" => std::fs::write(&path, vec![0x5a; 4096]).unwrap(),
            _ => {
                let mut bytes = std::fs::read(&path).unwrap();
                if page == "of another boot" {
                    bytes[40] ^= 1;
                } else {
                    bytes[8] = 1;
                }
                let crc = untorn_journal::format::crc64(&bytes[..88]);
                bytes[88..96].copy_from_slice(&crc.to_le_bytes());
                std::fs::write(&path, bytes).unwrap();
            }
        }
        let reader = Reader::open(dir.path()).unwrap();
        let snapshot = reader.snapshot().unwrap();
        assert_eq!(shown(&snapshot, "a").unwrap(), b"one", "{page}");
        let store = open(dir.path());
        if page == "missing" {
            // There is nothing to lock.
            refused(shown(&snapshot, "a"), &["snapshot-ended"]);
        }
        for n in 0..3u8 {
            commit(&store, "a", &[n; 9000]);
            store.checkpoint().unwrap();
            if page != "missing" {
                assert_eq!(shown(&snapshot, "a").unwrap(), b"one", "{page}");
            }
        }
        assert_same(&reader.read("a").unwrap(), &[2; 9000], page);
        store.close().unwrap();
    }
}

/// The end of a snapshot is told, and everything read before stays right.
#[test]
fn a_snapshot_ends_with_its_store() {
    let dir = directory();
    let acts: [fn(&Path); 3] = [
        |path| drop(offline::eject(path, &|_, _| {}).unwrap()),
        |path| {
            let options = StoreOptions::new().class(untorn::FailureClass::Process);
            options.open(path).unwrap().close().unwrap();
        },
        |path| {
            // An older copy of the journal.
            std::fs::remove_dir_all(path.join(".untorn/journal")).unwrap();
            std::fs::rename(path.join("journal"), path.join(".untorn/journal")).unwrap();
            open(path).close().unwrap();
        },
    ];
    for (n, act) in acts.into_iter().enumerate() {
        let store = open(dir.path());
        commit(&store, "a", b"zero");
        store.close().unwrap();
        run("cp", [Path::new("-a"), &dir.path().join(".untorn/journal"), &dir.path().join("journal")]);
        let store = open(dir.path());
        commit(&store, "a", b"one");
        store.close().unwrap();
        let snapshot = Reader::open(dir.path()).unwrap().snapshot().unwrap();
        assert_eq!(shown(&snapshot, "a").unwrap(), b"one");
        act(dir.path());
        refused(shown(&snapshot, "a"), &["snapshot-ended"]);
        refused(snapshot.list(""), &["snapshot-ended"]);
        refused(snapshot.check(), &["snapshot-ended"]);
        if n == 0 {
            assert!(!dir.path().join(".untorn").exists());
            assert_eq!(plain(dir.path().join("a")), b"one");
        }
        let _ = std::fs::remove_dir_all(dir.path().join("journal"));
    }
}

#[test]
fn maps_are_of_one_commit_and_are_refreshed() {
    let dir = directory();
    let store = open(dir.path());
    let large = vec![7; (5 << 20) + 123];
    commit(&store, "large", &large);
    commit(&store, "empty", b"");
    store.checkpoint().unwrap();
    let file = store.open_file("large").unwrap();
    file.write_all_at(&[8; 5000], 1 << 20).unwrap();
    file.commit().unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let mut map = reader.map("large").unwrap();
    let mut wanted = large.clone();
    wanted[1 << 20..][..5000].fill(8);
    assert_same(&map, &wanted, "under what waits");
    assert!(store.status().held.is_empty(), "the snapshot ends with the copy");
    assert!(!map.refresh().unwrap(), "nothing new");
    file.set_len(9).and_then(|()| file.commit()).unwrap();
    store.checkpoint().unwrap();
    assert_same(&map, &wanted, "as it was");
    assert!(map.refresh().unwrap());
    assert_eq!(&map[..], [7; 9]);
    store.close().unwrap();
    assert_eq!(&map[..], [7; 9]);
    assert_eq!(&reader.map("empty").unwrap()[..], b"");
    refused_with_errno(reader.map("none"), libc::ENOENT);
    std::fs::remove_dir_all(dir.path().join(".untorn")).unwrap();
    refused_with_errno(map.refresh(), libc::ENOENT);
    assert_eq!(&map[..], [7; 9]);
}

/// In a second process: the owner of a heap, which pushes a number for each line that it reads.
#[test]
fn owner_of_a_heap() {
    let Some(path) = std::env::var_os("UNTORN_TEST_HEAP") else { return };
    let live = std::env::var_os("UNTORN_TEST_HEAP_LIVE").is_some();
    let heap = untorn::heap::HeapOptions::new().create(true).live(live).address_space(64 << 20).open(path).unwrap();
    let numbers = heap.root_or("numbers", HeapVec::<u64>::new_in).unwrap();
    // SAFETY: this thread alone uses the root.
    let numbers = unsafe { &mut *numbers.as_ptr() };
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "store" => numbers.push(0),
            more => {
                (0..more.parse().unwrap()).for_each(|_| numbers.push(numbers.len() as u64));
                heap.commit().unwrap();
            }
        }
        println!("\ndone {}", numbers.len());
    }
}

#[test]
fn a_heap_is_read_at_its_own_address_while_its_owner_goes_on() {
    for live in [false, true] {
        let dir = directory();
        let path = dir.path().join("heap");
        let mut command = untorn_testkit::again!("owner_of_a_heap");
        command.env("UNTORN_TEST_HEAP", &path).stdin(Stdio::piped()).stdout(Stdio::piped());
        if live {
            command.env("UNTORN_TEST_HEAP_LIVE", "1");
        }
        let mut child = command.spawn().unwrap();
        let (mut input, mut output) =
            (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        let mut tell = |line: &str| {
            writeln!(input, "{line}").unwrap();
            output.find(|line| line.as_ref().unwrap().starts_with("done")).expect("a reply").unwrap();
        };
        tell("3");
        let reader = Reader::open(&path).unwrap();
        let mut heap = reader.heap("heap").unwrap();
        let numbers = |heap: &untorn::heap::ReadHeap| heap.root::<HeapVec<u64>>("numbers").unwrap().unwrap().to_vec();
        assert_eq!(numbers(&heap), [0, 1, 2]);
        tell("store");
        assert!(!heap.refresh().unwrap(), "nothing was committed: of a live heap this is its last cut");
        tell("200000");
        assert_eq!(numbers(&heap), [0, 1, 2], "as it was");
        assert!(heap.refresh().unwrap());
        let now = numbers(&heap);
        assert_eq!((now.len(), now[3], now[200_003]), (200_004, 0, 200_003), "it has grown");
        assert_eq!(heap.roots()[0].name, "numbers");
        refused(heap.root::<HeapVec<u32>>("numbers"), &["layout-changed"]);
        assert!(heap.root::<u64>("none").unwrap().is_none());
        let taken = refused(reader.heap("heap"), &["invalid"]).to_string();
        assert!(taken.contains("something else, perhaps another copy"), "{taken}");
        drop(heap);
        drop(input);
        let _ = child.kill();
        child.wait().unwrap();
        let heap = reader.heap("heap").unwrap();
        assert_eq!(numbers(&heap).len(), 200_004, "after a kill");
        drop(heap);
        let own = Heap::open(&path).unwrap();
        let taken = refused(reader.heap("heap"), &["invalid"]).to_string();
        assert!(taken.contains("the heap itself"), "{taken}");
        own.close().unwrap();
        std::fs::write(dir.path().join("other"), "no heap").unwrap();
        File::open(dir.path().join("other")).unwrap();
        let other = Reader::open(dir.path().join("other")).unwrap();
        assert!(matches!(other.heap("other"), Err(Error::Foreign { .. } | Error::Corrupt { .. })));
    }
}

const OTHER: u32 = 65533;

fn two_users() -> bool {
    if !is_root() {
        skipped("needs root (to act as two users)");
    }
    is_root()
}

fn process_of(uid: u32) -> ChildProcess {
    let mut process = ChildProcess::start();
    process.ok(&["become", &uid.to_string()]);
    process
}

#[test]
fn others_read_where_the_owner_lets_them() {
    if !two_users() {
        return;
    }
    let dir = directory();
    set_mode(dir.path(), 0o755);
    chown(dir.path(), Some(OTHER), Some(OTHER)).unwrap();
    let mut owner = process_of(OTHER);
    owner.ok(&["open", path_text(dir.path()), "readers=all"]);
    owner.ok(&["create", "a", "644"]);
    owner.commit("a", "one");
    let store = dir.path().join(".untorn");
    assert_eq!((mode(&store), mode(store.join("journal"))), (0o755, 0o755));
    let open_to_all = |name: &str| assert_eq!(mode(store.join(name)), 0o644, "{name}");
    ["lock", "readers", "journal/header", "journal/segment.0"].into_iter().for_each(open_to_all);
    let mut other = process_of(NOBODY);
    other.ok(&["hold", path_text(dir.path())]);
    assert_eq!(other.ok(&["show-held", "a"]).as_bytes(), &text("one", "a")[..20]);
    owner.ok(&["txn", "unlink:a", "create:b:644"]);
    assert_eq!(other.ok(&["show-held", "a"]).as_bytes(), &text("one", "a")[..20], "a kept file");
    other.refused(&["open", path_text(dir.path())], &["untrusted"]);
    other.ok(&["release"]);
    // A living owner makes new files, and then the owner's setting changes.
    let mut process = process_of(OTHER);
    process.ok(&["readers", path_text(dir.path()), "owner"]);
    assert_eq!((mode(&store), mode(store.join("lock"))), (0o700, 0o600));
    let mut late = process_of(NOBODY);
    let why = late.refused(&["hold", path_text(dir.path())], &["untrusted"]).message;
    assert!(why.contains("untorn readers"), "{why}");
    process.ok(&["readers", path_text(dir.path()), "group"]);
    assert_eq!((mode(&store), mode(store.join("journal/header"))), (0o750, 0o640));
    late.refused(&["hold", path_text(dir.path())], &["untrusted", "io"]);
    late.refused(&["readers", path_text(dir.path()), "all"], &["untrusted", "io"]);
    process.ok(&["readers", path_text(dir.path()), "all"]);
    owner.commit("b", "two");
    late.ok(&["hold", path_text(dir.path())]);
    assert_eq!(late.ok(&["show-held", "b"]).as_bytes(), &text("two", "b")[..20]);
    late.ok(&["release"]);
    owner.ok(&["close"]);
    late.ok(&["hold", path_text(dir.path())]);
}

/// A member of the group reads and holds snapshots; another user can do neither.
#[test]
fn a_member_of_the_group_reads() {
    if !two_users() {
        return;
    }
    const GROUP: u32 = 4242;
    let dir = directory();
    set_mode(dir.path(), 0o750);
    chown(dir.path(), Some(OTHER), Some(GROUP)).unwrap();
    let mut owner = ChildProcess::start();
    owner.ok(&["become", &OTHER.to_string(), &GROUP.to_string()]);
    owner.ok(&["open", path_text(dir.path()), "readers=group"]);
    owner.ok(&["create", "a", "640"]);
    owner.commit("a", "one");
    let mut member = ChildProcess::start();
    member.ok(&["become", &NOBODY.to_string(), &GROUP.to_string()]);
    member.ok(&["hold", path_text(dir.path())]);
    assert_eq!(member.ok(&["show-held", "a"]).as_bytes(), &text("one", "a")[..20]);
    owner.commit("a", "two");
    owner.ok(&["txn", "unlink:a"]);
    assert_eq!(member.ok(&["show-held", "a"]).as_bytes(), &text("one", "a")[..20], "before both");
    member.refused(&["open", path_text(dir.path())], &["untrusted"]);
    process_of(NOBODY).refused(&["hold", path_text(dir.path())], &["untrusted", "io"]);
    member.ok(&["release"]);
    owner.ok(&["close"]);
    member.ok(&["hold", path_text(dir.path())]);
}

/// A store that is renamed while it is held goes on, and so does the holder.
#[test]
fn a_store_that_is_moved_is_held_all_the_same() {
    let dir = directory();
    let (here, there) = (dir.path().join("here"), dir.path().join("there"));
    let store = open(&here);
    commit(&store, "a", b"one");
    let reader = Reader::open(&here).unwrap();
    let mut snapshot = reader.snapshot().unwrap();
    std::fs::rename(&here, &there).unwrap();
    commit(&store, "a", b"two");
    let mut txn = store.begin();
    txn.unlink("a").and_then(|()| txn.commit()).unwrap();
    assert_eq!(shown(&snapshot, "a").unwrap(), b"one");
    assert_eq!(offline::inspect(&there).unwrap().held, [snapshot.lsn()], "seen by its new name");
    snapshot.refresh().unwrap();
    assert!(shown(&snapshot, "a").is_err());
    drop(snapshot);
    store.close().unwrap();
    assert!(std::fs::read_dir(&there).unwrap().all(|entry| entry.unwrap().file_name() == ".untorn"));
}

/// On a full disk readers are given up before a commit fails; nobody waits, and no commit is lost.
#[test]
fn readers_on_a_full_disk_are_given_up() {
    let dir = directory();
    let place = dir.path().join("disk");
    std::fs::create_dir(&place).unwrap();
    let Some(disk) = Mount::ext4(24 << 20, &place) else { return };
    let store = StoreOptions::new().create(true).journal_bytes(1 << 20).open(disk.path()).unwrap();
    commit(&store, "a", b"one");
    let reader = Reader::open(disk.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let mut ballast = std::fs::File::create(disk.path().join("ballast")).unwrap();
    while ballast.write(&[1; 4096]).is_ok_and(|n| n > 0) {}
    let _ = ballast.sync_all();
    let file = store.open_file("a").unwrap();
    let mut last = b"one".to_vec();
    for n in 0..600u32 {
        let contents = format!("{n:04}").repeat(1000);
        match file.write_all_at(contents.as_bytes(), 0).and_then(|()| file.commit()) {
            Ok(()) => last = contents.into_bytes(),
            Err(e) => assert!(matches!(e, Error::NoSpace { .. }), "{e}"),
        }
        if n % 50 == 0 {
            match shown(&snapshot, "a") {
                Ok(found) => assert_eq!(found, b"one"),
                Err(e) => assert!(matches!(e, Error::SnapshotExpired { .. }), "{e}"),
            }
            // After a commit without room, nobody can take a snapshot before one that has room.
            match reader.read("a") {
                Ok(found) => assert_eq!(found, last),
                Err(e) => assert!(matches!(e, Error::SnapshotExpired { .. }), "{e}"),
            }
        }
    }
    drop(snapshot);
    drop(ballast);
    make_room(&disk.path().join("ballast"));
    let last = b"room".repeat(1000);
    file.write_all_at(&last, 0).and_then(|()| file.commit()).unwrap();
    assert_eq!(reader.read("a").unwrap(), last, "with room again");
    drop(file);
    store.close().unwrap();
    assert_eq!(std::fs::read(disk.path().join("a")).unwrap(), last);
}

/// Without a place for the old names, readers get an error, not the new files.
#[test]
fn names_that_cannot_be_kept_end_the_snapshots() {
    let dir = directory();
    let store = open(dir.path());
    commit(&store, "a", b"old");
    store.checkpoint().unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let undo = dir.path().join(".untorn/undo");
    std::fs::remove_dir_all(&undo).unwrap_or_default();
    std::fs::write(&undo, "in the way").unwrap();
    let mut txn = store.begin();
    txn.rename("a", "b").and_then(|()| txn.commit()).unwrap();
    commit(&store, "a", b"new");
    store.checkpoint().unwrap_or_default();
    let found = shown(&snapshot, "a");
    assert!(matches!(found, Err(Error::SnapshotExpired { .. })), "{found:?}");
    std::fs::remove_file(&undo).unwrap();
    commit(&store, "a", b"newer");
    assert_eq!(reader.read("a").unwrap(), b"newer");
    assert_eq!(reader.read("b").unwrap(), b"old");
}

/// A user cannot plant a store for readers in a directory of another user.
#[test]
fn a_planted_store_is_shown_to_nobody() {
    if !two_users() {
        return;
    }
    let planted = directory();
    let store = StoreOptions::new().create(true).readers(Readers::All).open(planted.path()).unwrap();
    commit(&store, "a", b"what he likes");
    store.close().unwrap();
    run("chown", ["-R".as_ref(), "65534:65534".as_ref(), planted.path().as_os_str()]);
    let shared = directory();
    chown(shared.path(), Some(OTHER), Some(OTHER)).unwrap();
    set_mode(shared.path(), 0o1777);
    std::fs::rename(planted.path().join(".untorn"), shared.path().join(".untorn")).unwrap();
    std::fs::write(shared.path().join("a"), "plain").unwrap();
    assert_eq!(std::fs::metadata(shared.path().join(".untorn")).unwrap().uid(), NOBODY);
    let mut victim = process_of(OTHER);
    victim.refused(&["hold", path_text(shared.path())], &["untrusted"]);
    // The same holds for root, which is the user of this process.
    refused(Reader::open(shared.path()).map(drop), &["untrusted"]);
}

#[test]
fn a_directory_that_is_bind_mounted_read_only_is_read_and_held() {
    let dir = directory();
    let (data, bound) = (dir.path().join("data"), dir.path().join("bound"));
    [&data, &bound].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let Some(mount) = Mount::new(&["--bind", path_text(&data)], &bound) else { return };
    mount.remount("bind,ro");
    let store = open(&data);
    commit(&store, "a", b"one");
    let reader = Reader::open(&bound).unwrap();
    let snapshot = reader.snapshot().unwrap();
    assert_eq!(store.status().held, [snapshot.lsn()], "the same file, whatever the mount");
    let mut txn = store.begin();
    txn.unlink("a").unwrap();
    txn.commit().unwrap();
    assert_eq!(shown(&snapshot, "a").unwrap(), b"one");
    drop(snapshot);
    commit(&store, "b", b"two");
    assert_eq!(&reader.map("b").unwrap()[..], b"two");
    store.close().unwrap();
    assert_eq!(reader.read("b").unwrap(), b"two");
    drop((reader, mount));
}

/// An overlay shows the files of a living owner, but neither its locks nor its changes reliably.
#[test]
fn an_overlay_over_a_store_that_is_open_is_refused() {
    let dir = directory();
    let top = dir.path().join("tmpfs");
    std::fs::create_dir(&top).unwrap();
    let Some(_tmpfs) = Mount::new(&["-t", "tmpfs", "none"], &top) else { return };
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| top.join(name));
    [&lower, &upper, &work, &merged].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let store = open(&lower);
    commit(&store, "a", b"one");
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let Some(_overlay) = Mount::new(&["-t", "overlay", "overlay", "-o", &options], &merged) else { return };
    let why = refused(Reader::open(&merged), &["unsupported"]).to_string();
    assert!(why.contains("overlay") && why.contains("bind mount"), "{why}");
    store.close().unwrap();
    let reader = Reader::open(&merged).unwrap();
    assert_eq!(reader.read("a").unwrap(), b"one", "closed");
    let store = open(&lower);
    refused(reader.read("a"), &["unsupported"]);
    store.close().unwrap();
    // Readers in the overlay see an owner in the overlay.
    let store = open(&merged);
    commit(&store, "a", b"two");
    let reader = Reader::open(&merged).unwrap();
    let snapshot = reader.snapshot().unwrap();
    commit(&store, "a", b"three");
    assert_eq!(shown(&snapshot, "a").unwrap(), b"two");
    drop(snapshot);
    assert_eq!(reader.read("a").unwrap(), b"three");
    store.close().unwrap();
}
