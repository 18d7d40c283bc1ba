//! One writer and many readers: the view of a reader beside a living owner, and of a store that nobody has open.

mod common;

use common::child_process::{ChildProcess, close_clean_with, path_text};
use common::shown_files::*;
use common::*;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;
use untorn::__private::StoreSteps;
use untorn::reader::{Change, ChangeKind, Commit, Follow, Followed};
use untorn::{FailureClass, Reader, Store, StoreOptions};

const LIMIT: Duration = Duration::from_secs(60);

fn open(path: &Path) -> Store {
    StoreOptions::new().create(true).background(false).open(path).expect("open")
}

/// Names, kinds, sizes, modes and times of change of everything below a directory.
fn listing(dir: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = path.symlink_metadata().unwrap();
        let changed = (meta.ctime(), meta.ctime_nsec());
        lines.push(format!("{} {} {:o} {changed:?}", path.display(), meta.len(), meta.mode()));
        if meta.is_dir() {
            lines.extend(listing(&path));
        }
    }
    lines.sort();
    lines
}

#[test]
fn a_reader_sees_what_is_committed_and_nothing_else() {
    let dir = directory();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.read("a").unwrap(), b"one");
    let file = store.open_file("a").unwrap();
    file.write_all_at(b"two, longer", 0).unwrap();
    assert_eq!(reader.read("a").unwrap(), b"one", "nothing uncommitted");
    file.commit().unwrap();
    assert_eq!(reader.read("a").unwrap(), b"two, longer");
    store.checkpoint().unwrap();
    assert_eq!(reader.read("a").unwrap(), b"two, longer");
    commit(&store, "a", b"3");
    assert_eq!(reader.read("a").unwrap(), b"3");
    store.close().unwrap();
    assert_eq!(reader.read("a").unwrap(), b"3", "after the owner has closed");
    refused(reader.read("b"), &["io"]);
}

/// An applied file that nobody uses is a plain file, which other programs may edit, and no commit describes their
/// edits.
#[test]
fn a_refresh_does_not_show_what_was_applied_over_a_file_that_is_plain_again() {
    let dir = directory();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    let mut snapshot = reader.snapshot().unwrap();
    store.checkpoint().unwrap();
    std::fs::write(dir.path().join("a"), b"edited").unwrap();
    snapshot.refresh().unwrap();
    let mut bytes = [0; 6];
    assert_eq!(snapshot.open("a").unwrap().read_at(&mut bytes, 0).unwrap(), 6);
    assert_eq!((&bytes, reader.read("a").unwrap()), (b"edited", b"edited".to_vec()));
}

/// This process's descriptors of files below a directory.
fn descriptors_below(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|to| to.starts_with(dir)).map(|to| to.display().to_string()).collect()
}

/// A reader without a snapshot keeps no spill file open, whose space a checkpoint frees.
#[test]
fn spill_files_are_closed_with_the_snapshot() {
    let dir = directory();
    let store = open(dir.path());
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(&vec![7; 20 << 20], 0).and_then(|()| file.commit()).unwrap();
    // The snapshot shows none of these bytes.
    file.set_len(0).and_then(|()| file.commit()).unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    assert_eq!(shown(&reader.snapshot().unwrap(), "a").unwrap(), b"");
    store.checkpoint().unwrap();
    let spills: Vec<_> = descriptors_below(dir.path()).into_iter().filter(|to| to.contains("/spill.")).collect();
    assert_eq!(spills, [""; 0]);
    store.close().unwrap();
}

/// Each snapshot goes on from the log that the one before has read, with the descriptors of that one.
#[test]
fn many_snapshots_need_no_more_descriptors() {
    let dir = directory();
    let store = StoreOptions::new().create(true).background(false).open(dir.path()).unwrap();
    commit(&store, "a", b"0");
    let reader = Reader::open(dir.path()).unwrap();
    let descriptors = || descriptors_below(dir.path()).len();
    let mut before = 0;
    for n in 1..300 {
        commit(&store, "a", format!("{n}").as_bytes());
        let snapshot = reader.snapshot().unwrap();
        assert_eq!(shown(&snapshot, "a").unwrap(), format!("{n}").as_bytes());
        if n == 10 {
            before = descriptors();
        }
        if n % 70 == 0 {
            store.checkpoint().unwrap();
        }
    }
    let after = descriptors();
    assert!(after <= before + 4, "{before} descriptors after ten snapshots, {after} after 300");
    store.close().unwrap();
}

#[test]
fn a_snapshot_stays_as_it_is() {
    let dir = directory();
    let store = open(dir.path());
    commit(&store, "a", &text("one", "a"));
    commit(&store, "b", &text("one", "b"));
    let reader = Reader::open(dir.path()).unwrap();
    let mut snapshot = reader.snapshot().unwrap();
    let a = snapshot.open("a").unwrap();
    commit(&store, "a", b"two");
    commit(&store, "b", b"two");
    let mut bytes = vec![0; TEXT_BYTES];
    assert_eq!(a.read_at(&mut bytes, 0).unwrap(), TEXT_BYTES);
    assert_same(&bytes, &text("one", "a"), "opened before");
    assert_eq!(snapshot.open("b").unwrap().read_at(&mut bytes, 0).unwrap(), TEXT_BYTES);
    assert_same(&bytes, &text("one", "b"), "opened after");
    for n in 0..3 {
        store.checkpoint().unwrap();
        assert_eq!(a.len().unwrap(), TEXT_BYTES as u64, "checkpoint {n}");
        assert_same(&shown(&snapshot, "a").unwrap(), &text("one", "a"), "opened anew");
        assert_same(&shown(&snapshot, "b").unwrap(), &text("one", "b"), "opened anew");
        commit(&store, "a", &vec![n; 3 * TEXT_BYTES]);
        commit(&store, "b", &[n; 10]);
    }
    let before = snapshot.lsn();
    let late = reader.snapshot().unwrap();
    snapshot.refresh().unwrap();
    assert!(snapshot.lsn() > before);
    assert_eq!(snapshot.metadata("b").unwrap().len, 10);
    store.close().unwrap();
    assert_eq!(late.metadata("b").unwrap().len, 10, "looked at after the close only");
    let store = open(dir.path());
    commit(&store, "b", b"another");
    store.close().unwrap();
    assert_eq!(shown(&late, "b").unwrap(), [2; 10], "beside the next owner");
    assert_same(&a.len().unwrap().to_le_bytes(), &(TEXT_BYTES as u64).to_le_bytes(), "the first one");
    drop((a, late, snapshot));
}

#[test]
fn names_are_of_one_moment() {
    let dir = directory();
    let store = open(dir.path());
    for name in ["a", "b", "c"] {
        commit(&store, name, name.as_bytes());
    }
    store.checkpoint().unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    assert_eq!(snapshot.list("").unwrap(), ["a", "b", "c"]);
    let b = snapshot.open("b").unwrap();
    let mut txn = store.begin();
    txn.rename("a", "d").unwrap();
    txn.unlink("b").unwrap();
    txn.mkdir("e", 0o755).unwrap();
    txn.commit().unwrap();
    assert_eq!(snapshot.list("").unwrap(), ["a", "b", "c"]);
    assert_eq!(shown(&snapshot, "a").unwrap(), b"a");
    let mut byte = [0];
    b.read_at(&mut byte, 0).unwrap();
    assert_eq!(&byte, b"b", "a file that was opened before it was unlinked");
    let snapshot = reader.snapshot().unwrap();
    assert_eq!(snapshot.list("").unwrap(), ["c", "d", "e"]);
    assert_eq!(snapshot.list("e").unwrap(), Vec::<&str>::new());
    assert!(snapshot.metadata("e").unwrap().is_directory);
    assert_eq!(snapshot.metadata("e").unwrap().mode, 0o755);
    assert_eq!(reader.read("d").unwrap(), b"a");
    for gone in ["a", "b"] {
        refused_with_errno(reader.read(gone), rustix::io::Errno::NOENT.raw_os_error());
    }
    refused(reader.read(".untorn/journal/header"), &["invalid"]);
    refused(reader.read("../a"), &["invalid"]);
    refused(reader.read("e"), &["io"]);
    store.close().unwrap();
}

#[test]
fn of_a_killed_owner_everything_acknowledged_is_read_and_nothing_is_changed() {
    let dir = directory();
    let mut process = ChildProcess::owning(dir.path());
    process.ok(&["create", "a"]);
    process.commit("a", "one");
    process.ok(&["checkpoint"]);
    process.commit("a", "two");
    let reader = Reader::open(dir.path()).unwrap();
    assert_same(&reader.read("a").unwrap(), &text("two", "a"), "beside the owner");
    let snapshot = reader.snapshot().unwrap();
    let mut follow = reader.follow().unwrap();
    process.commit("a", "two");
    assert!(matches!(follow.next_within(LIMIT).unwrap(), Some(Followed::Commit(_))), "beside the owner");
    process.ok(&["fill", "a", "uncommitted"]);
    process.kill();
    let before = listing(dir.path());
    assert_eq!(follow.next_within(Duration::from_millis(5)).unwrap(), None, "without an owner");
    assert_same(&reader.read("a").unwrap(), &text("two", "a"), "without an owner");
    let another = Reader::open(dir.path()).unwrap();
    assert_same(&another.read("a").unwrap(), &text("two", "a"), "by a reader that never saw the owner");
    let mut bytes = vec![0; TEXT_BYTES];
    snapshot.open("a").unwrap().read_at(&mut bytes, 0).unwrap();
    assert_same(&bytes, &text("two", "a"), "by a snapshot of the owner that was killed");
    assert_eq!(listing(dir.path()), before, "nothing is made, changed or removed");
    let closed = another.snapshot().unwrap();
    let store = open(dir.path());
    assert_same(&shown(&snapshot, "a").unwrap(), &text("two", "a"), "beside the next owner");
    assert_same(&shown(&closed, "a").unwrap(), &text("two", "a"), "beside the next owner");
    assert_same(&another.read("a").unwrap(), &text("two", "a"), "after the next owner has opened it");
    assert_eq!(follow.next_within(Duration::from_millis(5)).unwrap(), None, "nothing was committed");
    commit(&store, "b", b"new");
    match follow.next_within(LIMIT).unwrap() {
        Some(Followed::Commit(commit)) => assert_eq!(commit.changes[0].path, Path::new("b")),
        other => panic!("{other:?}"),
    }
    store.close().unwrap();
}

#[test]
fn an_ordinary_user_reads_without_the_right_to_write() {
    let dir = directory();
    let mut process = ChildProcess::start();
    if is_root() {
        std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
        process.ok(&["become", "65534"]);
    }
    process.ok(&["open", path_text(dir.path())]);
    process.ok(&["create", "a"]);
    process.commit("a", "one");
    // Root may read any user's store, also beside its owner.
    let reader = Reader::open(dir.path()).unwrap();
    assert_same(&reader.read("a").unwrap(), &text("one", "a"), "another user's");
    process.kill();
    // All modes read-only, as on a file system that is mounted read-only.
    let files = ["a", ".untorn/readers", ".untorn/lock", ".untorn/journal/header"];
    files.iter().for_each(|file| set_mode(dir.path().join(file), 0o400));
    set_mode(dir.path(), 0o500);
    let mut process = ChildProcess::start();
    if is_root() {
        process.ok(&["become", "65534"]);
    }
    process.ok(&["reader", path_text(dir.path())]);
    assert_eq!(process.ok(&["show", "a"]).as_bytes(), &text("one", "a")[..20]);
    set_mode(dir.path(), 0o700);
}

#[test]
fn class_process_tells_readers_nothing_until_it_is_closed() {
    let dir = directory();
    let store = StoreOptions::new().create(true).class(FailureClass::Process).open(dir.path()).unwrap();
    commit(&store, "a", b"one");
    let why = refused(Reader::open(dir.path()), &["unsupported"]).to_string();
    assert!(why.contains("class `process`") && why.contains("after it was closed"), "{why}");
    store.close().unwrap();
    assert_eq!(Reader::open(dir.path()).unwrap().read("a").unwrap(), b"one");
}

/// A reader that has read a commit reads the next one behind it. It does not read the whole log again, which begins
/// with the header.
#[test]
fn who_follows_reads_on() {
    let dir = directory();
    let store = StoreOptions::new().create(true).background(false).open(dir.path()).unwrap();
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    let mut follow = reader.follow().unwrap();
    let header = dir.path().join(".untorn/journal/header");
    let away = dir.path().join("header");
    std::fs::rename(&header, &away).unwrap();
    let file = store.open_file("a").unwrap();
    for n in 0..5u8 {
        file.write_at(&[n], 0).and_then(|_| file.commit()).unwrap();
        let followed = follow.next_within(LIMIT);
        assert!(matches!(followed, Ok(Some(Followed::Commit(_)))), "commit {n}: {followed:?}");
    }
    std::fs::rename(&away, &header).unwrap();
    store.close().unwrap();
}

#[test]
fn commits_are_followed_in_order() {
    let dir = directory();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    let mut follow = reader.follow().unwrap();
    assert_eq!(follow.next_within(Duration::from_millis(5)).unwrap(), None);
    let file = store.open_file("a").unwrap();
    file.write_all_at(b"two", 3).and_then(|()| file.commit()).unwrap();
    store.rename("a", "b").unwrap();
    let mut next = || next_commit(&mut follow);
    let first = next();
    assert_eq!(first.changes.len(), 2, "{first:?}");
    assert!(first.changes.iter().all(|change| change.path == Path::new("a")));
    assert_eq!(first.changes[0].kind, ChangeKind::Written(3..6));
    let second = next();
    assert_eq!(second.changes[0].kind, ChangeKind::Renamed("b".into()));
    assert!(second.lsn > first.lsn);
    assert!(reader.wait_for(second.lsn, LIMIT).unwrap());
    assert!(!reader.wait_for(second.lsn + 1, Duration::from_millis(5)).unwrap());
    // The file is cut and grown again: the old bytes are zeros.
    let file = store.open_file("b").unwrap();
    file.set_len(4).and_then(|()| file.zero(3, 1)).and_then(|()| file.set_len(9)).unwrap();
    file.commit().unwrap();
    let cut = next();
    let kinds: Vec<ChangeKind> = cut.changes.into_iter().map(|change| change.kind).collect();
    assert_eq!(kinds, [ChangeKind::Zeroed(3..9), ChangeKind::Resized(9)]);
    commit(&store, "c", b"made");
    let created = next();
    assert!(matches!(created.changes[0].kind, ChangeKind::Created(_)));
    next();
    // A checkpoint leaves the applied records in place until the space is reused.
    let mut late = reader.follow().unwrap();
    commit(&store, "c", b"1");
    assert!(store.write_durable_mark().unwrap());
    assert!(reader.wait_for(store.status().lsn, LIMIT).unwrap(), "a number of no commit was told");
    store.checkpoint().unwrap();
    assert!(matches!(follow.next_within(LIMIT).unwrap(), Some(Followed::Commit(_))));
    assert_eq!(follow.next_within(Duration::from_millis(5)).unwrap(), None, "a durable mark is no commit");
    // The log stays for a follower.
    let before = late.lsn();
    for n in 0..100u8 {
        commit(&store, "c", &[n; 4000]);
        store.checkpoint().unwrap();
    }
    store.close().unwrap();
    let lsn = next_commit(&mut late).lsn;
    assert_eq!(lsn, before + 1);
    let followed = std::iter::from_fn(|| late.next_within(Duration::from_millis(5)).unwrap());
    let commits = followed.filter(|followed| matches!(followed, Followed::Commit(_))).count();
    assert_eq!(commits, 100, "of each commit once");
}

/// A follower that comes late gets every commit that is still in the log, and learns which are not.
#[test]
fn commits_are_followed_from_any_place() {
    let dir = directory();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    let reader = Reader::open(dir.path()).unwrap();
    let from = reader.snapshot().unwrap().lsn();
    for n in 0..5u8 {
        commit(&store, "a", &[n; 100]);
    }
    let mut follow = reader.follow_from(from).unwrap();
    for n in 1..=5 {
        assert_eq!(follow.lsn(), from + n - 1);
        assert_eq!(next_commit(&mut follow).lsn, from + n);
    }
    assert_eq!(follow.lsn(), from + 5);
    assert_eq!(follow.next_within(Duration::from_millis(5)).unwrap(), None);
    refused(reader.follow_from(from + 6), &["conflict"]);
    refused(reader.follow_from(u64::MAX), &["conflict"]);
    drop(follow);
    // Nobody follows, so the log is reused.
    for n in 0..100u8 {
        commit(&store, "a", &[n; 4000]);
        store.checkpoint().unwrap();
    }
    match reader.follow_from(from).unwrap().next_within(LIMIT).unwrap() {
        Some(Followed::Missed { first_lsn, last_lsn }) => assert!(first_lsn == from + 1 && last_lsn > from + 99),
        other => panic!("{other:?}"),
    }
    store.close().unwrap();
}

/// The index of the log is not flushed and may hold anything: readers believe only entries that continue the log.
#[test]
fn an_index_of_other_records_is_not_believed() {
    let (dir, other) = (directory(), directory());
    let commits = |dir: &Path, fill: u8| {
        let store = open(dir);
        for n in 0..20u8 {
            commit(&store, "a", &[fill, n].repeat(3000));
        }
        store
    };
    let (store, another) = (commits(dir.path(), 7), commits(other.path(), 8));
    let wanted = [7, 19].repeat(3000);
    let indexes = |dir: &Path| {
        let names = std::fs::read_dir(dir.join(".untorn/journal")).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("index.")).collect::<Vec<_>>()
    };
    let good: Vec<_> = indexes(dir.path()).into_iter().map(|path| (std::fs::read(&path).unwrap(), path)).collect();
    assert!(!good.is_empty());
    let others: Vec<u8> = indexes(other.path()).into_iter().flat_map(|path| std::fs::read(path).unwrap()).collect();
    type Damage<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
    let damages: [(&str, Damage); 6] = [
        ("empty", &|_| Vec::new()),
        ("cut", &|bytes| bytes[..bytes.len() / 2].to_vec()),
        ("another store's", &|_| others.clone()),
        ("flipped", &|bytes| bytes.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at % 97 == 5)).collect()),
        ("twice", &|bytes| [bytes, bytes].concat()),
        ("without its beginning", &|bytes| bytes[bytes.len() / 3..].to_vec()),
    ];
    for (damage, damaged) in damages {
        for (bytes, path) in &good {
            std::fs::write(path, damaged(bytes)).unwrap();
        }
        assert_same(&Reader::open(dir.path()).unwrap().read("a").unwrap(), &wanted, damage);
    }
    for (bytes, path) in &good {
        std::fs::write(path, bytes).unwrap();
    }
    // Without the segments' contents, the index alone shows the names and lengths.
    let reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.snapshot().unwrap().metadata("a").unwrap().len, 6000);
    drop(another);
    store.close().unwrap();
}

fn next_commit(follow: &mut Follow) -> Commit {
    match follow.next_within(LIMIT).unwrap() {
        Some(Followed::Commit(commit)) => commit,
        other => panic!("{other:?}"),
    }
}

/// All bytes of the only range that a commit wrote to this file.
#[track_caller]
fn written<'a>(commit: &'a Commit, name: &str) -> (&'a Change, Vec<u8>) {
    let is_it = |change: &&Change| change.path == Path::new(name) && matches!(change.kind, ChangeKind::Written(_));
    let found: Vec<&Change> = commit.changes.iter().filter(is_it).collect();
    let [change] = found[..] else { panic!("{commit:?}") };
    let ChangeKind::Written(range) = &change.kind else { unreachable!() };
    let mut bytes = vec![0xaa; (range.end - range.start) as usize];
    assert_eq!(change.read_at(&mut bytes, range.start).unwrap(), bytes.len());
    (change, bytes)
}

#[test]
fn the_bytes_of_a_commit_are_read_after_later_ones() {
    let dir = directory();
    let store = open(dir.path());
    commit(&store, "a", b"0123456789");
    let mut follow = Reader::open(dir.path()).unwrap().follow().unwrap();
    let file = store.open_file("a").unwrap();
    for bytes in [b"one", b"two"] {
        file.write_all_at(bytes, 4).and_then(|()| file.commit()).unwrap();
    }
    file.set_len(0).and_then(|()| file.set_len(9)).and_then(|()| file.commit()).unwrap();
    let [first, second, cut] = std::array::from_fn(|_| next_commit(&mut follow));
    for n in 0..50u8 {
        commit(&store, "a", &[n; 4000]);
        store.checkpoint().unwrap();
    }
    let (change, one) = written(&first, "a");
    assert_eq!(one, b"one");
    assert_eq!(written(&second, "a").1, b"two");
    assert_eq!(change, written(&second, "a").0, "they say the same, whatever the bytes");
    // A part of the bytes; the rest of them; none at the end; none elsewhere.
    let mut buf = [b'?'; 8];
    assert_eq!(change.read_at(&mut buf[..1], 5).unwrap(), 1);
    assert_eq!(change.read_at(&mut buf[1..], 6).unwrap(), 1);
    assert_eq!(&buf[..3], b"ne?");
    assert_eq!(change.read_at(&mut buf, 7).unwrap(), 0);
    for offset in [0, 3, 8, u64::MAX] {
        refused(change.read_at(&mut buf, offset), &["invalid"]);
    }
    // A zeroed range reads as zeros; a change of length has no bytes.
    let (zeros, length) = (&cut.changes[0], &cut.changes[1]);
    assert_eq!((&zeros.kind, &length.kind), (&ChangeKind::Zeroed(0..9), &ChangeKind::Resized(9)));
    assert_eq!(zeros.read_at(&mut buf, 2).unwrap(), 7);
    assert_eq!(buf[..7], [0; 7]);
    refused(length.read_at(&mut buf, 0), &["invalid"]);
    store.close().unwrap();
}

/// The bytes of a large commit are in a spill file, which a checkpoint removes.
#[test]
fn the_bytes_of_a_large_commit_outlast_their_file() {
    let dir = directory();
    let store = open(dir.path());
    let file = store.open_or_create_file("a").unwrap();
    file.commit().unwrap();
    let spills = || {
        let entries = std::fs::read_dir(dir.path().join(".untorn/journal")).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.to_str().unwrap().contains("/spill.")).collect::<Vec<_>>()
    };
    let contents = |seed: u64| {
        let mut bytes = vec![0; 20 << 20];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        bytes
    };
    let mut follow = Reader::open(dir.path()).unwrap().follow().unwrap();
    let mut commit_large = |seed| {
        file.write_all_at(&contents(seed), 5).and_then(|()| file.commit()).unwrap();
        next_commit(&mut follow)
    };
    let first = commit_large(1);
    assert_eq!(spills().len(), 1, "it is beside the log");
    let second = commit_large(2);
    store.checkpoint().unwrap();
    assert_eq!(spills().len(), 0, "the checkpoint removed it");
    let third = commit_large(3);
    let (change, bytes) = written(&first, "a");
    assert!(bytes == contents(1));
    let mut part = [0; 1000];
    assert_eq!(change.read_at(&mut part, 5 + 12_345).unwrap(), 1000);
    assert!(part == contents(1)[12_345..][..1000]);
    assert!(written(&second, "a").1 == contents(2));
    // Bytes that do not match the commit are not returned, and neither are bytes next to them.
    let spill = std::fs::OpenOptions::new().read(true).write(true).open(&spills()[0]).unwrap();
    let mut byte = [0];
    spill.read_exact_at(&mut byte, 9_000_000).unwrap();
    spill.write_all_at(&[!byte[0]], 9_000_000).unwrap();
    let is_written = |change: &&Change| matches!(change.kind, ChangeKind::Written(_));
    let why = refused(third.changes.iter().find(is_written).unwrap().read_at(&mut part, 5), &["corrupt"]);
    assert!(why.to_string().contains(dir.path().to_str().unwrap()), "{why}");
    spill.write_all_at(&byte, 9_000_000).unwrap();
    assert!(written(&third, "a").1 == contents(3));
    store.close().unwrap();
}

#[test]
fn the_bytes_of_another_process_are_read_after_its_end() {
    let dir = directory();
    let mut process = ChildProcess::owning(dir.path());
    process.ok(&["create", "a"]);
    let mut follow = Reader::open(dir.path()).unwrap().follow().unwrap();
    process.commit("a", "one");
    process.commit("a", "two");
    let first = next_commit(&mut follow);
    assert_same(&written(&first, "a").1, &text("one", "a"), "beside the owner");
    process.kill();
    let second = next_commit(&mut follow);
    assert_same(&written(&second, "a").1, &text("two", "a"), "after it was killed");
    close_clean_with(dir.path(), &["a"], "three");
    assert_same(&written(&first, "a").1, &text("one", "a"), "after the next one");
}

#[test]
fn a_standalone_file_is_read_beside_its_owner() {
    let dir = directory();
    let path = dir.path().join("settings");
    let file = untorn::File::open_or_create(&path).unwrap();
    file.write_all_at(b"dark", 0).and_then(|()| file.commit()).unwrap();
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.read("settings").unwrap(), b"dark");
    refused(reader.read("other"), &["invalid"]);
    assert_eq!(reader.snapshot().unwrap().list("").unwrap(), ["settings"]);
}

#[test]
fn what_is_no_store_and_what_was_copied_is_refused() {
    let dir = directory();
    refused(Reader::open(dir.path()), &["io"]);
    refused(Reader::open(dir.path().join("nothing")), &["io"]);
    let store = open(dir.path());
    commit(&store, "a", b"one");
    store.checkpoint().unwrap();
    commit(&store, "a", b"two");
    run("cp", [Path::new("-a"), &dir.path().join("a"), &dir.path().join("copy")]);
    let reader = Reader::open(dir.path()).unwrap();
    refused(reader.read("copy"), &["needs-its-journal"]);
    // A copy of the whole store counts as a store whose owner was killed; its readers' page does not matter.
    let copy = directory();
    let whole = copy.path().join("store");
    run("cp", [Path::new("-a"), dir.path(), &whole]);
    let of_copy = Reader::open(&whole).unwrap();
    assert_eq!(of_copy.read("a").unwrap(), b"two");
    commit(&store, "a", b"three");
    store.checkpoint().unwrap();
    assert_eq!(of_copy.read("a").unwrap(), b"two");
    assert_eq!(reader.read("a").unwrap(), b"three");
    store.close().unwrap();
}

#[test]
fn readers_beside_a_busy_owner_see_whole_commits() {
    let dir = directory();
    let store = StoreOptions::new().create(true).journal_bytes(256 << 10).open(dir.path()).unwrap();
    for name in ["a", "b"] {
        commit(&store, name, &0u64.to_le_bytes().repeat(4000));
    }
    let path = dir.path().to_owned();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let number = |bytes: &[u8]| {
        let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(bytes.len(), 32_000);
        assert!(bytes.chunks(8).all(|b| b == first.to_le_bytes()), "a mixture within a file");
        first
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let reader = Reader::open(&path).unwrap();
                let (mut last, mut reads) = (0, 0);
                while !stop.load(std::sync::atomic::Ordering::SeqCst) || reads == 0 {
                    let both = reader.with_snapshot(|snapshot| {
                        let read = |name| {
                            let file = snapshot.open(name)?;
                            let mut bytes = vec![0; file.len()? as usize];
                            file.read_at(&mut bytes, 0)?;
                            Ok(bytes)
                        };
                        Ok((read("a")?, read("b")?))
                    });
                    let (a, b) = both.unwrap();
                    let (a, b) = (number(&a), number(&b));
                    assert_eq!(a, b, "a mixture of commits");
                    assert!(a >= last, "backwards: {a} after {last}");
                    (last, reads) = (a, reads + 1);
                }
            });
        }
        for n in 1..60u64 {
            let files = ["a", "b"].map(|name| store.open_file(name).unwrap());
            for file in &files {
                file.write_all_at(&n.to_le_bytes().repeat(4000), 0).unwrap();
            }
            store.syncv(&[&files[0], &files[1]]).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    store.close().unwrap();
}
