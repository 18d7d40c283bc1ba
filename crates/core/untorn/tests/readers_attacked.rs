//! Attacks on a reader and on the files that it reads: absurd values in the readers' page, pipes and links in the place
//! of files, stores that are removed or replaced, forks, many readers. A reader returns an error that says so, or shows
//! one commit.

mod common;

use common::child_process::{ChildProcess, path_text};
use common::shown_files::*;
use common::*;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use untorn::{Error, Reader, Store, StoreOptions};
use untorn_journal::undo::page::{Cell, PAGE_CELL_BYTES, PAGE_CELLS_AT, PAGE_HEAD_BYTES, PageHead, encode_cell};

/// Longer than any test takes: only a broken program waits this long.
const LONG: Duration = Duration::from_secs(120);
const CELLS: [Cell; 4] = [Cell::Durable, Cell::Named, Cell::Kept, Cell::GivenUp];

fn open(path: &Path) -> Store {
    StoreOptions::new().create(true).background(false).open(path).expect("open")
}

/// Opens a reader and reads a file; anything may be at the path.
fn read(path: &Path) -> untorn::Result<Vec<u8>> {
    let path = path.to_owned();
    within(LONG, "reading", move || Reader::open(path)?.read("a"))
}

/// Puts something in the place of a file that was moved away.
type Plant = fn(&Path, &Path);

fn pipe(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

/// A readers' page may have any contents, also with valid checksums: the reader shows the last commit and nothing else,
/// or returns an error.
#[test]
fn absurd_pages_show_nothing_else() {
    let dir = directory();
    let mut owner = ChildProcess::start();
    owner.ok(&["open", path_text(dir.path())]);
    owner.ok(&["create", "a"]);
    owner.commit("a", "one");
    let (page, wanted) = (dir.path().join(".untorn/readers"), text("one", "a"));
    let good = std::fs::read(&page).unwrap();
    let (head, _) = PageHead::decode(good[..PAGE_HEAD_BYTES].try_into().unwrap()).unwrap();
    let with_cell = |cell: Cell, lsn: u64| {
        let mut bytes = good.clone();
        let at = PAGE_CELLS_AT + cell as usize * PAGE_CELL_BYTES;
        bytes[at..at + PAGE_CELL_BYTES].copy_from_slice(&encode_cell(cell, lsn));
        bytes
    };
    let with_head = |head: PageHead| [&head.encode(), &good[PAGE_HEAD_BYTES..]].concat();
    let mut absurd: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0xff; 200],
        good[..PAGE_HEAD_BYTES].to_vec(),
        with_head(PageHead { pid: 1, ..head }),
        with_head(PageHead { store: [7; 16], ..head }),
        with_head(PageHead { boot: [7; 16], ..head }),
        with_head(PageHead { place: (0, 0), ..head }),
        with_head(PageHead { chain: 0, ..head }),
    ];
    absurd.extend([0, 1, 1 << 48].map(|lsn| with_cell(Cell::Durable, lsn)));
    absurd.extend(CELLS.map(|cell| with_cell(cell, u64::MAX)));
    // If the page claims a lower durable LSN, readers cannot tell that the owner has made more durable.
    let less = [0, 1].map(|lsn| with_cell(Cell::Durable, lsn));
    for bytes in absurd {
        std::fs::write(&page, &bytes).unwrap();
        let reader = match Reader::open(dir.path()) {
            Ok(reader) => reader,
            Err(
                Error::Busy { .. } | Error::SnapshotExpired { .. } | Error::Conflict { .. } | Error::Corrupt { .. },
            ) => {
                continue;
            }
            Err(e) => panic!("{e:?}"),
        };
        match reader.read("a") {
            Ok(found) if less.contains(&bytes) => assert!(found.is_empty()),
            Err(Error::Io { .. }) if less.contains(&bytes) => {}
            Ok(found) => assert_same(&found, &wanted, "beside an absurd page"),
            Err(Error::SnapshotExpired { .. } | Error::Corrupt { .. } | Error::Conflict { .. }) => {}
            Err(e) => panic!("{e:?}"),
        }
        let _ = reader.follow_from(u64::MAX).map(drop);
        let _ = reader.snapshot().and_then(|snapshot| snapshot.list(""));
        let _ = reader.wait_for(u64::MAX, Duration::from_millis(1));
        let _ = reader.follow().and_then(|mut follow| follow.next_within(Duration::from_millis(1)));
    }
    std::fs::write(&page, &good).unwrap();
    assert_same(&read(dir.path()).unwrap(), &wanted, "once the page is as it was");
    owner.ok(&["close"]);
    assert_same(&read(dir.path()).unwrap(), &wanted, "after a close");
}

/// Somebody puts a directory, a link, a pipe or nothing in the place of Untorn's files, or of the data.
#[test]
fn what_is_no_file_is_told_and_nobody_waits() {
    for owned in [true, false] {
        let dir = directory();
        let mut owner = ChildProcess::start();
        owner.ok(&["open", path_text(dir.path())]);
        owner.ok(&["create", "a"]);
        owner.commit("a", "one");
        if !owned {
            owner.kill();
        }
        let wanted = text("one", "a");
        let away = dir.path().join("away");
        for name in ["readers", "lock", "owner", "journal/header", "journal/segment.0", "journal", "../a"] {
            let path = dir.path().join(".untorn").join(name);
            std::fs::rename(&path, &away).unwrap();
            let planted: [(&str, Plant); 4] = [
                ("a directory", |path, _| std::fs::create_dir(path).unwrap()),
                ("a link", |path, away| symlink(away, path).unwrap()),
                ("a pipe", |path, _| pipe(path)),
                ("nothing", |_, _| {}),
            ];
            for (what, plant) in planted {
                plant(&path, &away);
                match read(dir.path()) {
                    // If the journal was removed, there is none: the file is as the next opening would leave it.
                    Ok(found) if !owned && what == "nothing" && name.starts_with("journal") => {
                        assert!(found.is_empty())
                    }
                    Ok(found) => assert_same(&found, &wanted, &format!("{what} for {name}, owned: {owned}")),
                    Err(e) => assert!(!e.to_string().is_empty() && !matches!(e, Error::NoMemory { .. }), "{e}"),
                }
                match what {
                    "a directory" => std::fs::remove_dir(&path).unwrap(),
                    "nothing" => {}
                    _ => std::fs::remove_file(&path).unwrap(),
                }
            }
            std::fs::rename(&away, &path).unwrap();
        }
        assert_same(&read(dir.path()).unwrap(), &wanted, "once everything is back");
    }
}

/// A file that is larger than memory is refused, and can be read in pieces.
#[test]
fn a_file_that_is_too_large_is_read_in_pieces() {
    let dir = directory();
    let store = open(dir.path());
    let file = store.open_or_create_file("a").unwrap();
    let end = 1 << 40;
    file.set_len(end).and_then(|()| file.write_all_at(b"end", end - 3)).and_then(|()| file.commit()).unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let a = snapshot.open("a").unwrap();
    let mut bytes = [9; 8];
    assert_eq!(a.read_at(&mut bytes, end - 5).unwrap(), 5);
    assert_eq!(&bytes[..5], b"\0\0end");
    for offset in [end, end + 1, u64::MAX / 2, u64::MAX] {
        assert_eq!(a.read_at(&mut bytes, offset).unwrap(), 0, "{offset}");
    }
    assert_eq!(a.read_at(&mut [], 0).unwrap(), 0);
    store.close().unwrap();
}

/// A reader does not show another store in the place of its own as if it were the same.
#[test]
fn a_store_that_is_removed_or_replaced_is_not_mixed_with_another() {
    let top = directory();
    let dir = top.path().join("store");
    std::fs::create_dir(&dir).unwrap();
    let mut owner = ChildProcess::start();
    owner.ok(&["open", path_text(&dir)]);
    for name in ["a", "b"] {
        owner.ok(&["create", name]);
        owner.commit(name, "one");
    }
    let reader = Reader::open(&dir).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let a = snapshot.open("a").unwrap();
    // Everything in the store is removed under its owner, and another store is made there.
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
    }
    let old = |found: untorn::Result<Vec<u8>>, what: &str| match found {
        Ok(found) => assert_same(&found, &text("one", "b"), what),
        Err(Error::Io { .. } | Error::SnapshotEnded { .. } | Error::Conflict { .. } | Error::Busy { .. }) => {}
        // The page is there, and the files that it names are not.
        Err(Error::Corrupt { .. } | Error::FileNotKept { .. } | Error::NeedsJournal { .. }) => {}
        Err(e) => panic!("{what}: {e:?}"),
    };
    old(shown(&snapshot, "b"), "removed");
    owner.kill();
    let store = open(&dir);
    commit(&store, "a", b"of another store");
    commit(&store, "b", b"of another store");
    store.checkpoint().unwrap();
    for round in 0..3 {
        old(shown(&snapshot, "b"), &format!("replaced, {round}"));
        let mut bytes = vec![0; TEXT_BYTES];
        if let Ok(n) = a.read_at(&mut bytes, 0) {
            assert_same(&bytes[..n], &text("one", "a"), "a file that is open");
        }
    }
    // The reader shows the other store, or returns an error. It shows no state older than the last one that it showed.
    match reader.read("b") {
        Ok(found) => assert_eq!(found, b"of another store"),
        Err(e) => assert!(matches!(e, Error::Conflict { .. }), "{e:?}"),
    }
    assert_eq!(Reader::open(&dir).unwrap().read("b").unwrap(), b"of another store");
    store.close().unwrap();
    // The directory itself is removed, and another one gets its name.
    let reader = Reader::open(&dir).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    std::fs::create_dir(&dir).unwrap();
    let store = open(&dir);
    commit(&store, "b", b"of a third one");
    assert!(
        matches!(reader.read("b"), Err(Error::Io { .. } | Error::Conflict { .. })),
        "of the directory that is gone"
    );
    assert_eq!(Reader::open(&dir).unwrap().read("b").unwrap(), b"of a third one");
    store.close().unwrap();
}

/// A hold belongs to its reader: a forked child or a started program has no part in it.
#[test]
fn a_hold_ends_with_its_reader_whatever_it_has_begun() {
    let dir = directory();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    let mut reader = ChildProcess::start();
    reader.ok(&["hold", path_text(dir.path())]);
    let sleeper: i32 = reader.ok(&["fork"]).parse().unwrap();
    assert_eq!(store.status().held.len(), 1);
    reader.kill();
    eventually(LONG, "a forked child holds nothing", || store.status().held.is_empty());
    // SAFETY: signals a process that the test made.
    unsafe { libc::kill(sleeper, libc::SIGKILL) };
    let held = Reader::open(dir.path()).unwrap().snapshot().unwrap();
    let mut program = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    assert_eq!(store.status().held.len(), 1);
    drop(held);
    assert!(store.status().held.is_empty(), "a program that was begun meanwhile holds nothing");
    program.kill().and_then(|()| program.wait()).unwrap();
    store.close().unwrap();
}

/// In a process without standard streams, descriptors 0, 1 and 2 are those of the reader.
#[test]
fn reader_without_standard_streams() {
    let Some(path) = std::env::var_os("UNTORN_TEST_STREAMLESS") else { return };
    // SAFETY: nothing in this process uses them from now on.
    (0..3).for_each(|fd| _ = unsafe { libc::close(fd) });
    let read = || {
        let snapshot = Reader::open(&path)?.snapshot()?;
        let found = shown(&snapshot, "a")?;
        drop(snapshot);
        Ok::<bool, Error>(found == b"one")
    };
    // SAFETY: ends this process at once.
    unsafe { libc::_exit(if matches!(read(), Ok(true)) { 17 } else { 18 }) };
}

#[test]
fn a_reader_needs_no_standard_streams() {
    let dir = directory();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    for owned in [true, false] {
        let mut command = untorn_testkit::again!("reader_without_standard_streams");
        command.env("UNTORN_TEST_STREAMLESS", dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
        assert_eq!(command.status().unwrap().code(), Some(17), "owned: {owned}");
        if owned {
            store.clone().close().unwrap();
        }
    }
}

/// Readers in one process, which is also the owner's, have locks of their own.
#[test]
fn very_many_readers_hold_what_each_has_read() {
    const READERS: usize = 200;
    let dir = directory();
    let store = open(dir.path());
    let mut held = Vec::new();
    for n in 0..READERS {
        commit(&store, "a", &[n as u8; 100]);
        // Two of the same commit: the end of one does not end the other.
        for _ in 0..=usize::from(n % 10 == 0) {
            held.push((n, Reader::open(dir.path()).unwrap().snapshot().unwrap()));
        }
    }
    assert_eq!(store.status().held.len(), READERS);
    for step in [3, 2] {
        for (n, snapshot) in held.iter().step_by(step) {
            assert_eq!(shown(snapshot, "a").unwrap(), [*n as u8; 100], "commit {n}");
        }
    }
    commit(&store, "a", b"newer");
    while let Some((n, snapshot)) = held.pop() {
        if n % 20 == 0 {
            store.checkpoint().unwrap();
            commit(&store, "a", b"newer still");
        }
        assert_eq!(shown(&snapshot, "a").unwrap(), [n as u8; 100], "commit {n}, beside checkpoints");
    }
    assert!(store.status().held.is_empty());
    store.close().unwrap();
}

/// Threads share a reader, a snapshot and its files, while others replace the snapshot.
#[test]
fn threads_share_a_reader() {
    let dir = directory();
    let store = StoreOptions::new().create(true).journal_bytes(128 << 10).open(dir.path()).unwrap();
    commit(&store, "a", &[0; 8192]);
    let reader = Reader::open(dir.path()).unwrap();
    let (stop, whole) = (AtomicBool::new(false), AtomicU64::new(0));
    let shared = parking_lot::Mutex::new(std::sync::Arc::new(reader.snapshot().unwrap()));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (reader, shared, stop, whole) = (&reader, &shared, &stop, &whole);
            scope.spawn(move || {
                let mut last = 0;
                while !stop.load(SeqCst) {
                    let snapshot = shared.lock().clone();
                    let found = shown(&snapshot, "a");
                    match &found {
                        Ok(bytes) => {
                            assert!(bytes.len() == 8192 && bytes.iter().all(|byte| *byte == bytes[0]), "a mixture");
                            whole.fetch_add(1, SeqCst);
                        }
                        Err(e) => panic!("{e}"),
                    }
                    match thread {
                        0 | 1 => {
                            let newer = reader.snapshot().unwrap();
                            assert!(newer.lsn() >= last);
                            last = newer.lsn();
                            *shared.lock() = std::sync::Arc::new(newer);
                        }
                        _ => _ = snapshot.check(),
                    }
                }
            });
        }
        let file = store.open_file("a").unwrap();
        for n in 1..400u32 {
            file.write_all_at(&[n as u8; 8192], 0).and_then(|()| file.commit()).unwrap();
        }
        stop.store(true, SeqCst);
    });
    assert!(whole.load(SeqCst) > 0);
    store.close().unwrap();
}

/// Small reads, most of which make no check of their own, beside frequent checkpoints: each successful read is of the
/// commit of its snapshot.
#[test]
fn small_reads_beside_checkpoints_are_of_one_commit() {
    const PAGES: u64 = 64;
    let dir = directory();
    let store = StoreOptions::new().create(true).background(false).open(dir.path()).unwrap();
    let write = |n: u32| commit(&store, "a", &n.to_le_bytes().repeat(PAGES as usize * 1024));
    write(0);
    let (stop, shown) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (dir, stop, shown) = (dir.path(), &stop, &shown);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let reader = Reader::open(dir).unwrap();
                while !stop.load(SeqCst) {
                    let mut first = None;
                    let mut read = |file: &untorn::reader::SnapshotFile| {
                        let mut page = [0; 4096];
                        file.read_at(&mut page, random.u64(..PAGES) * 4096)?;
                        Ok::<_, Error>(page)
                    };
                    let mut all = || {
                        let file = reader.snapshot()?.open("a")?;
                        for _ in 0..20_000 {
                            let page = read(&file)?;
                            let number = &*first.get_or_insert_with(|| page[..4].to_vec());
                            assert!(page.chunks(4).all(|four| four == number), "a mixture");
                            shown.fetch_add(1, SeqCst);
                        }
                        Ok::<_, Error>(())
                    };
                    all().unwrap();
                }
            });
        }
        for n in 1..300 {
            write(n);
            store.checkpoint().unwrap();
        }
        stop.store(true, SeqCst);
    });
    assert!(shown.load(SeqCst) > 0);
    store.close().unwrap();
}

/// On a file system that is mounted read-only, a reader shows the state that a killed owner left, and writes nothing.
#[test]
fn a_read_only_mount_shows_what_a_killed_owner_left() {
    let dir = directory();
    let place = dir.path().join("disk");
    std::fs::create_dir(&place).unwrap();
    let Some(disk) = Mount::ext4(24 << 20, &place) else { return };
    let mut owner = ChildProcess::owning(disk.path());
    owner.ok(&["create", "a"]);
    owner.commit("a", "one");
    owner.ok(&["checkpoint"]);
    owner.commit("a", "two");
    owner.kill();
    disk.remount("ro");
    assert_same(&read(disk.path()).unwrap(), &text("two", "a"), "read-only");
    let held = Reader::open(disk.path()).unwrap().snapshot().unwrap();
    assert_same(&shown(&held, "a").unwrap(), &text("two", "a"), "read-only, and held");
    assert_eq!(&Reader::open(disk.path()).unwrap().map("a").unwrap()[..], &text("two", "a")[..]);
}

/// Files and directories of other users and groups, in a store that its group may read. A member of the group sees the
/// files that its rights allow, and gets an error for the others. Reading through the store shows nobody more than the
/// owner has allowed.
#[test]
fn a_member_of_the_group_meets_files_of_others() {
    const OWNER: u32 = 65533;
    const MEMBER: u32 = 65534;
    const STRANGER: u32 = 65532;
    const GROUP: u32 = 4242;
    if !is_root() {
        return skipped("needs root (to act as two users)");
    }
    let dir = directory();
    let own = |path: PathBuf, user: u32, group: u32, bits: u32| {
        std::os::unix::fs::chown(&path, Some(user), Some(group)).unwrap();
        set_mode(path, bits);
    };
    own(dir.path().to_owned(), OWNER, GROUP, 0o2750);
    let mut owner = ChildProcess::start();
    owner.ok(&["become", &OWNER.to_string(), &GROUP.to_string()]);
    owner.ok(&["open", path_text(dir.path()), "readers=group"]);
    for (name, bits) in [("shared", "640"), ("private", "600"), ("foreign", "644")] {
        owner.ok(&["create", name, bits]);
        owner.commit(name, "one");
    }
    owner.ok(&["txn", "mkdir:closed:700"]);
    owner.ok(&["create", "closed/file", "644"]);
    owner.commit("closed/file", "one");
    owner.ok(&["checkpoint"]);
    own(dir.path().join("foreign"), OWNER, STRANGER, 0o640);
    let mut member = ChildProcess::start();
    member.ok(&["become", &MEMBER.to_string(), &GROUP.to_string()]);
    member.ok(&["reader", path_text(dir.path())]);
    assert_eq!(member.ok(&["show", "shared"]).as_bytes(), &text("one", "shared")[..20]);
    for name in ["private", "foreign", "closed/file"] {
        let why = member.refused(&["show", name], &["io"]).message;
        assert!(why.contains("Permission denied"), "{name}: {why}");
    }
    // A reader of the log sees all files in it, even files that it may not open directly. It does not see files that
    // are not in the log.
    owner.commit("shared", "two");
    assert_eq!(member.ok(&["show", "shared"]).as_bytes(), &text("two", "shared")[..20]);
    let mut stranger = ChildProcess::start();
    stranger.ok(&["become", &STRANGER.to_string()]);
    stranger.refused(&["reader", path_text(dir.path())], &["io", "untrusted"]);
    // The store directory gets another group, which the member is not in.
    own(dir.path().join(".untorn"), OWNER, STRANGER, 0o750);
    member.refused(&["show", "shared"], &["io", "untrusted"]);
    own(dir.path().join(".untorn"), OWNER, GROUP, 0o750);
    assert_eq!(member.ok(&["show", "shared"]).as_bytes(), &text("two", "shared")[..20]);
    // Others may write to it, so nobody trusts it.
    own(dir.path().join(".untorn"), OWNER, GROUP, 0o770);
    member.refused(&["show", "shared"], &["untrusted"]);
    own(dir.path().join(".untorn"), OWNER, GROUP, 0o750);
    owner.ok(&["close"]);
    assert_eq!(member.ok(&["show", "shared"]).as_bytes(), &text("two", "shared")[..20]);
}

/// Salvage and recovery beside readers: existing snapshots stay right, and later reads show the new state.
#[test]
fn readers_outlive_a_salvage() {
    let dir = directory();
    let mut owner = ChildProcess::owning(dir.path());
    owner.ok(&["create", "a"]);
    owner.commit("a", "one");
    owner.ok(&["checkpoint"]);
    owner.commit("a", "two");
    owner.commit("a", "three");
    owner.kill();
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let a = snapshot.open("a").unwrap();
    // The last record but one is damaged: it was durable, as a later one says. An idle owner writes durable marks, too,
    // so the record may be in the second segment.
    let place = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(20).rposition(|found| found == &text("two", "a")[..20])
    };
    let segments = ["segment.0", "segment.1"].map(|name| dir.path().join(".untorn/journal").join(name));
    let found = segments.iter().filter(|path| path.exists()).find_map(|path| Some((path, place(path)?)));
    let (path, at) = found.expect("the record");
    let segment = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    segment.write_all_at(b"damage", at as u64).unwrap();
    let damaged = reader.read("a");
    assert!(!matches!(&damaged, Ok(found) if *found == text("one", "a")), "damage is not passed over");
    let options = untorn::offline::RecoverOptions { salvage: true, ..Default::default() };
    untorn::offline::recover(dir.path(), &options, &|_, _| {}).unwrap();
    let mut found = vec![0; TEXT_BYTES];
    refused(a.read_at(&mut found, 0), &["snapshot-ended"]);
    let now = reader.read("a");
    assert!(now.is_ok() || matches!(now, Err(Error::Conflict { .. })), "{now:?}");
    Reader::open(dir.path()).unwrap().read("a").unwrap();
}
