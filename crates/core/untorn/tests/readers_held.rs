//! Readers that hold a commit, read copies of files and heaps, and are other users than the owner.

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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};
use untorn::heap::{Heap, HeapVec};
use untorn::offline::{self, RecoverOptions};
use untorn::{Error, File, Reader, Readers, Store, StoreOptions};
use untorn_testkit::NOBODY;

/// Longer than any test takes: only a broken program waits this long.
const LONG: Duration = Duration::from_secs(120);

fn open(path: &Path, leases: Duration) -> Store {
    StoreOptions::new().create(true).background(false).leases(leases).open(path).expect("open")
}

/// A call that must wait until a lease ends.
struct Waiting<T> {
    thread: JoinHandle<T>,
    done: Arc<AtomicBool>,
}

impl<T: Send + 'static> Waiting<T> {
    fn new(act: impl FnOnce() -> T + Send + 'static) -> Waiting<T> {
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        let act = move || {
            let result = act();
            flag.store(true, SeqCst);
            result
        };
        Waiting { thread: spawn(act), done }
    }

    fn is_done(&self) -> bool {
        self.done.load(SeqCst)
    }

    fn join(self) -> T {
        self.thread.join().expect("no panic")
    }
}

#[test]
fn a_checkpoint_waits_for_who_holds_an_older_commit() {
    let dir = directory();
    let store = open(dir.path(), LONG);
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.held_snapshot().unwrap();
    assert!(snapshot.is_held());
    assert_eq!(store.status().held, [snapshot.lsn()]);
    assert_eq!(offline::inspect(dir.path()).unwrap().held, [snapshot.lsn()]);
    store.checkpoint().unwrap();
    commit(&store, "a", b"two");
    let owner = store.clone();
    let checkpoint = Waiting::new(move || owner.checkpoint());
    for _ in 0..20 {
        assert_eq!(shown(&snapshot, "a").unwrap(), b"one");
        commit(&store, "b", b"commits go on");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!checkpoint.is_done());
    snapshot.release();
    checkpoint.join().unwrap();
    expired(shown(&snapshot, "a"));
    assert!(store.status().held.is_empty());
    // A lease ends with its last handle.
    let snapshot = reader.held_snapshot().unwrap();
    let file = snapshot.open("a").unwrap();
    drop(snapshot);
    assert_eq!(store.status().held.len(), 1, "a file of the snapshot is there");
    drop(file);
    assert!(store.status().held.is_empty());
    store.close().unwrap();
}

#[test]
fn names_are_those_of_the_commit_that_is_held() {
    let dir = directory();
    let store = open(dir.path(), LONG);
    let mut txn = store.begin();
    txn.mkdir("d", 0o750).unwrap();
    txn.commit().unwrap();
    for name in ["gone", "replaced", "moved", "same", "d/inside"] {
        commit(&store, name, name.as_bytes());
    }
    store.checkpoint().unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.held_snapshot().unwrap();
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
    assert_eq!(std::fs::read_dir(dir.path().join(".untorn/parked")).unwrap().count(), 3);
    assert_eq!(store.list("").unwrap(), ["e", "new", "replaced", "same"], "the owner's");
    // The log has no mode of a file that was only changed by its mode.
    let mut txn = store.begin();
    txn.chmod("new", 0o640).unwrap();
    txn.chmod("replaced", 0o640).unwrap();
    txn.commit().unwrap();
    expired(snapshot.metadata("moved"));
    assert_eq!(shown(&snapshot, "moved").unwrap(), b"moved");
    drop(snapshot);
    store.checkpoint().unwrap();
    assert!(!dir.path().join(".untorn/parked").exists());
    store.close().unwrap();
}

/// A reader may read parked files, so a file is not parked if the directories above it are closed to readers.
#[test]
fn what_directories_keep_closed_is_not_parked() {
    let dir = directory();
    set_mode(dir.path(), 0o755);
    let store =
        StoreOptions::new().create(true).background(false).leases(LONG).readers(Readers::All).open(dir.path()).unwrap();
    for (name, mode) in [("open", 0o755), ("private", 0o700)] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        set_mode(dir.path().join(name), mode);
        commit(&store, &format!("{name}/file"), b"contents");
    }
    // The log has nothing any more, which a reader could read in any case.
    store.checkpoint().unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.held_snapshot().unwrap();
    let mut txn = store.begin();
    txn.unlink("open/file").and_then(|()| txn.unlink("private/file")).and_then(|()| txn.commit()).unwrap();
    assert_eq!(std::fs::read_dir(dir.path().join(".untorn/parked")).unwrap().count(), 1);
    assert_eq!(shown(&snapshot, "open/file").unwrap(), b"contents");
    expired(shown(&snapshot, "private/file"));
}

/// Another directory counts as equally open only if it has the same group.
#[test]
fn what_directories_of_another_group_keep_closed_is_not_parked() {
    if !two_users() {
        return;
    }
    let dir = directory();
    set_mode(dir.path(), 0o750);
    let options = StoreOptions::new().create(true).background(false).leases(LONG);
    let store = options.readers(Readers::Group).open(dir.path()).unwrap();
    let own = std::fs::metadata(dir.path().join(".untorn")).unwrap().gid();
    let parked = dir.path().join(".untorn/parked");
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
    let snapshot = Reader::open(dir.path()).unwrap().held_snapshot().unwrap();
    let mut txn = store.begin();
    for name in ["own", "open", "secret", "listed"] {
        txn.unlink(format!("{name}/file")).unwrap();
    }
    txn.commit().unwrap();
    assert_eq!(std::fs::read_dir(&parked).unwrap().count(), if has_lists { 2 } else { 3 });
    assert_eq!(shown(&snapshot, "own/file").unwrap(), b"contents");
    assert_eq!(shown(&snapshot, "open/file").unwrap(), b"contents");
    expired(shown(&snapshot, "secret/file"));
    // Users that are allowed only now had no part in that decision.
    offline::set_readers(dir.path(), Readers::All).unwrap();
    assert_eq!(std::fs::metadata(&parked).unwrap().mode() & 0o777, 0o750);
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
    let options = || StoreOptions::new().create(true).background(false).leases(Duration::ZERO).readers(Readers::All);
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

/// A reader may lock any part of the page: a lock of all of it does not count as a lease.
#[test]
fn who_locks_the_whole_page_holds_nobody_up() {
    let dir = directory();
    let store = open(dir.path(), Duration::ZERO);
    commit(&store, "a", b"one");
    let _locked = lock_as_a_reader(&dir.path().join(".untorn/readers"));
    commit(&store, "a", b"two");
    assert!(store.status().held.len() <= 1000);
    store.checkpoint().unwrap();
    store.close().unwrap();
}

/// Parked files take room on the disk until their reader is gone, and no longer.
#[test]
fn what_was_parked_goes_with_its_reader() {
    let dir = directory();
    let store = StoreOptions::new().create(true).leases(LONG).open(dir.path()).unwrap();
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.held_snapshot().unwrap();
    let mut txn = store.begin();
    txn.unlink("a").unwrap();
    txn.commit().unwrap();
    let parked = dir.path().join(".untorn/parked");
    assert_eq!(std::fs::read_dir(&parked).unwrap().count(), 1);
    drop(snapshot);
    eventually(LONG, "an idle store removes what is parked", || !parked.exists());
    store.close().unwrap();
}

#[test]
fn a_lease_is_bounded_and_a_stopped_reader_holds_nothing_beyond() {
    let dir = directory();
    let store = open(dir.path(), Duration::from_millis(200));
    commit(&store, "a", b"one");
    let mut child = ChildProcess::start();
    child.ok(&["hold", path_text(dir.path())]);
    assert_eq!(child.ok(&["show-held", "a"]), "one");
    child.signal(Signal::STOP);
    commit(&store, "a", b"two");
    let begun = Instant::now();
    store.checkpoint().unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(200), "it waits as long as it promises");
    assert!(begun.elapsed() < LONG);
    // The lease still exists, but is ignored by checkpoints, closing, and the next owner.
    for n in 0..20 {
        commit(&store, "a", format!("{n}").as_bytes());
        store.checkpoint().unwrap();
    }
    store.close().unwrap();
    open(dir.path(), LONG).close().unwrap();
    let store = open(dir.path(), LONG);
    child.signal(Signal::CONT);
    child.refused(&["show-held", "a"], &["snapshot-expired"]);
    store.close().unwrap();
}

#[test]
fn who_waits_for_nobody_waits_for_nobody() {
    let dir = directory();
    let store = open(dir.path(), Duration::ZERO);
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.held_snapshot().unwrap();
    commit(&store, "a", b"two");
    store.checkpoint().unwrap();
    expired(shown(&snapshot, "a"));
    store.close().unwrap();
}

#[test]
fn the_next_owner_waits_for_readers_of_what_was_left() {
    let dir = directory();
    let mut owner = ChildProcess::owning(dir.path());
    owner.ok(&["create", "a"]);
    owner.commit("a", "one");
    let reader = Reader::open(dir.path()).unwrap();
    let beside = reader.held_snapshot().unwrap();
    owner.kill();
    let without = reader.held_snapshot().unwrap();
    let path = dir.path().to_owned();
    let next = Waiting::new(move || open(&path, LONG).close());
    for held in [Some(beside), Some(without), None] {
        for snapshot in held.iter() {
            for _ in 0..10 {
                assert_same(&shown(snapshot, "a").unwrap(), &text("one", "a"), "held");
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(!next.is_done());
        }
    }
    next.join().unwrap();
    assert_same(&reader.read("a").unwrap(), &text("one", "a"), "after it");
}

#[test]
fn a_closed_store_is_held_against_opening_and_ejecting() {
    let dir = directory();
    let store = open(dir.path(), LONG);
    commit(&store, "a", b"one");
    store.close().unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let acts: [fn(&Path); 3] = [
        |path| open(path, LONG).close().unwrap(),
        |path| drop(offline::recover(path, &RecoverOptions::default(), &|_, _| {}).unwrap()),
        |path| drop(offline::eject(path, &|_, _| {}).unwrap()),
    ];
    for act in acts {
        let snapshot = reader.held_snapshot().unwrap();
        assert_eq!(offline::inspect(dir.path()).unwrap().held, [snapshot.lsn()]);
        let path = dir.path().to_owned();
        let next = Waiting::new(move || act(&path));
        for _ in 0..10 {
            assert_eq!(shown(&snapshot, "a").unwrap(), b"one");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!next.is_done());
        snapshot.release();
        next.join();
        expired(shown(&snapshot, "a"));
    }
    assert!(!dir.path().join(".untorn").exists());
    refused_with_errno(reader.read("a"), libc::ENOENT);
    assert_eq!(plain(dir.path().join("a")), b"one");
}

/// The store was opened since. A lease that is refused protects nothing that was not held before.
#[test]
fn a_lease_that_is_refused_changes_nothing() {
    let dir = directory();
    let store = open(dir.path(), LONG);
    for name in ["a", "b"] {
        commit(&store, name, b"old");
    }
    store.close().unwrap();
    let snapshot = Reader::open(dir.path()).unwrap().snapshot().unwrap();
    assert_eq!(shown(&snapshot, "a").unwrap(), b"old");
    let store = open(dir.path(), LONG);
    let mut txn = store.begin();
    for (made, name) in [("new a", "a"), ("new b", "b")] {
        txn.create(made, 0o600).unwrap().write_all_at(b"new", 0).unwrap();
        txn.rename(made, name).unwrap();
    }
    txn.commit().unwrap();
    expired(snapshot.hold());
    expired(snapshot.check());
    expired(shown(&snapshot, "b"));
}

/// A lease that was waited for and broken is not waited for again, neither by the next opening nor by any later one.
#[test]
fn a_lease_of_a_closed_store_is_broken_once() {
    let dir = directory();
    let store = open(dir.path(), LONG);
    commit(&store, "a", b"one");
    store.close().unwrap();
    let snapshot = Reader::open(dir.path()).unwrap().held_snapshot().unwrap();
    open(dir.path(), Duration::from_millis(20)).close().unwrap();
    let since = Instant::now();
    for _ in 0..2 {
        open(dir.path(), LONG).close().unwrap();
    }
    // Each opening would wait that long.
    assert!(since.elapsed() < LONG, "openings waited {:?} for a broken lease", since.elapsed());
    expired(snapshot.check());
}

/// The next owner has the lock by then, and waits: a reader with a lease on a commit of the last owner reads on in its
/// log.
#[test]
fn names_are_undone_while_the_next_owner_waits() {
    let dir = directory();
    let mut owner = ChildProcess::owning(dir.path());
    for name in ["a", "b"] {
        owner.ok(&["create", name]);
        owner.commit(name, "one");
    }
    owner.ok(&["checkpoint"]);
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.held_snapshot().unwrap();
    owner.ok(&["txn", "unlink:a"]);
    owner.kill();
    let path = dir.path().to_owned();
    let next = Waiting::new(move || open(&path, LONG).close());
    let own = std::process::id().to_string();
    while std::fs::read_to_string(dir.path().join(".untorn/lock")).unwrap().trim() != own {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_same(&shown(&snapshot, "a").unwrap(), &text("one", "a"), "removed");
    assert_eq!(snapshot.list("").unwrap(), ["a", "b"]);
    refused_with_errno(snapshot.list("nothing"), libc::ENOENT);
    refused_with_errno(snapshot.open("b").and_then(|_| snapshot.list("b")), libc::ENOTDIR);
    assert!(!next.is_done());
    drop(snapshot);
    next.join().unwrap();
}

#[test]
fn closing_waits_for_readers_and_gives_out_no_lease() {
    let dir = directory();
    let store = open(dir.path(), LONG);
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.held_snapshot().unwrap();
    commit(&store, "a", b"two");
    let closing = Waiting::new(move || store.close());
    for _ in 0..10 {
        assert_eq!(shown(&snapshot, "a").unwrap(), b"one");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!closing.is_done());
    expired(reader.held_snapshot());
    drop(snapshot);
    closing.join().unwrap();
    assert_eq!(reader.read("a").unwrap(), b"two");
}

#[test]
fn maps_are_of_one_commit_and_are_refreshed() {
    let dir = directory();
    let store = open(dir.path(), LONG);
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
    assert!(store.status().held.is_empty(), "the lease ends with the copy");
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
    assert_eq!(other.ok(&["show-held", "a"]).as_bytes(), &text("one", "a")[..20], "a parked file");
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

/// A member of the group reads and takes leases; another user can do neither.
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
    let store = open(&here, LONG);
    commit(&store, "a", b"one");
    let reader = Reader::open(&here).unwrap();
    let mut snapshot = reader.held_snapshot().unwrap();
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

/// On a full disk a lease is waited for as long as was promised, and no longer; no commit is lost.
#[test]
fn a_lease_on_a_full_disk_is_bounded() {
    let dir = directory();
    let place = dir.path().join("disk");
    std::fs::create_dir(&place).unwrap();
    let Some(disk) = Mount::ext4(24 << 20, &place) else { return };
    let options = StoreOptions::new().create(true).journal_bytes(1 << 20).leases(Duration::from_millis(300));
    let store = options.open(disk.path()).unwrap();
    commit(&store, "a", b"one");
    let reader = Reader::open(disk.path()).unwrap();
    let snapshot = reader.held_snapshot().unwrap();
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
    }
    // The lease has expired: a read says so, or shows the held commit.
    match shown(&snapshot, "a") {
        Ok(found) => assert_eq!(found, b"one"),
        Err(e) => assert!(matches!(e, Error::SnapshotExpired { .. }), "{e}"),
    }
    drop(snapshot);
    drop(ballast);
    make_room(&disk.path().join("ballast"));
    store.close().unwrap();
    assert_eq!(std::fs::read(disk.path().join("a")).unwrap(), last);
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
    let store = open(&data, LONG);
    commit(&store, "a", b"one");
    let reader = Reader::open(&bound).unwrap();
    let snapshot = reader.held_snapshot().unwrap();
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
    let store = open(&lower, LONG);
    commit(&store, "a", b"one");
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let Some(_overlay) = Mount::new(&["-t", "overlay", "overlay", "-o", &options], &merged) else { return };
    let why = refused(Reader::open(&merged), &["unsupported"]).to_string();
    assert!(why.contains("overlay") && why.contains("bind mount"), "{why}");
    store.close().unwrap();
    let reader = Reader::open(&merged).unwrap();
    assert_eq!(reader.read("a").unwrap(), b"one", "closed");
    let store = open(&lower, LONG);
    refused(reader.read("a"), &["unsupported"]);
    store.close().unwrap();
    // Readers in the overlay see an owner in the overlay.
    let store = open(&merged, LONG);
    commit(&store, "a", b"two");
    let reader = Reader::open(&merged).unwrap();
    let snapshot = reader.held_snapshot().unwrap();
    commit(&store, "a", b"three");
    assert_eq!(shown(&snapshot, "a").unwrap(), b"two");
    drop(snapshot);
    assert_eq!(reader.read("a").unwrap(), b"three");
    store.close().unwrap();
}
