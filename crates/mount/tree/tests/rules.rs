//! Rules of commits, one by one. For all programs and all crashes see `crashes.rs`.

mod common;
use common::*;
use std::sync::Arc;
use untorn::__private::OpenStoreOn;
use untorn_crashlab::{Failed, Fault, On, SimDisk, What};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_tree::*;

const EIO: Result<()> = Err(Errno(libc::EIO));

#[test]
fn a_link_of_a_synced_file_never_commits_half_a_transaction() {
    let (disk, clock, tree) = new_tree();
    synced(&tree, "db", b"whole");
    // The table stores that the file was synced, so the next owner knows it.
    let tree = reopen(&disk, &clock, tree);
    let db = tree.lookup(ROOT, name("db")).unwrap().ino;
    tree.open(db, true).unwrap();
    tree.write(db, 0, b"half!").unwrap();
    tree.link(db, ROOT, name("db.bak"), &Clean).unwrap();
    tree.sync_names(&Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(contents_of(&tree, "db.bak"), b"whole");
}

/// A commit leaves out a file without a name, even if a program syncs it.
#[test]
fn a_file_that_was_synced_without_a_name_comes_whole_with_its_name() {
    let (disk, clock, tree) = new_tree();
    let unnamed = tree.make_unnamed(ME, ROOT, 0o600).unwrap().ino;
    tree.open(unnamed, true).unwrap();
    tree.write(unnamed, 0, b"whole").unwrap();
    tree.sync(unnamed, &Clean).unwrap();
    tree.link(unnamed, ROOT, name("a"), &Clean).unwrap();
    tree.sync_names(&Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(contents_of(&tree, "a"), b"whole");
}

#[test]
fn a_commit_by_the_timer_is_no_sync() {
    let (disk, clock, tree) = new_tree();
    let a = file(&tree, "a");
    tree.write(a, 0, b"first").unwrap();
    clock.pass(6);
    tree.tick(&Clean);
    tree.write(a, 0, b"final").unwrap();
    tree.rename((ROOT, name("a")), (ROOT, name("b")), RenameFlags::Replace, &Clean).unwrap();
    tree.sync_names(&Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(contents_of(&tree, "b"), b"final");
}

#[test]
fn the_timer_commits_after_its_time_and_waits() {
    let (disk, clock, tree) = new_tree();
    let (a, held) = (file(&tree, "a"), synced(&tree, "held", b"whole"));
    tree.write(a, 0, b"all").unwrap();
    tree.write(held, 0, b"half!").unwrap();
    clock.pass(4);
    tree.tick(&Clean);
    let before = open(&disk.fork(), &clock);
    assert!(before.lookup(ROOT, name("a")).map_or(true, |a| a.size == 0), "too early");
    // The end of an opening restarts the timer's period.
    tree.open(a, true).unwrap();
    tree.release(a, true);
    clock.pass(4);
    tree.tick(&Clean);
    let before = open(&disk.fork(), &clock);
    assert_eq!(contents_of(&before, "a"), b"", "too early after the release");
    clock.pass(31);
    tree.tick(&Clean);
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(contents_of(&tree, "a"), b"all");
    assert_eq!(contents_of(&tree, "held"), b"whole", "a program has it open");
}

#[test]
fn a_poisoned_file_is_committed_by_nothing_until_it_is_empty() {
    let (disk, clock, tree) = new_tree();
    let a = synced(&tree, "a", b"whole");
    tree.write(a, 0, b"holes").unwrap();
    assert_eq!(tree.sync(a, &Failing), EIO);
    assert_eq!(tree.sync(a, &Clean), EIO, "the second time, too");
    assert_eq!(tree.rename((ROOT, name("a")), (ROOT, name("b")), RenameFlags::Replace, &Clean), EIO);
    assert_eq!(tree.link(a, ROOT, name("b"), &Clean).map(drop), EIO);
    tree.release(a, true);
    clock.pass(40);
    tree.tick(&Clean);
    assert_eq!(tree.sync_all(&Clean), EIO, "all is not committed");
    let other = open(&disk.fork(), &clock);
    assert_eq!(contents_of(&other, "a"), b"whole");
    tree.set_attributes(a, &Change { size: Some(0), ..Change::default() }).unwrap();
    tree.write(a, 0, b"anew").unwrap();
    tree.sync(a, &Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(contents_of(&tree, "a"), b"anew");
}

#[test]
fn several_files_are_committed_as_one() {
    let (disk, clock, tree) = new_tree();
    let (a, b) = (file(&tree, "a"), file(&tree, "b"));
    tree.write(a, 0, b"a").unwrap();
    tree.write(b, 0, b"b").unwrap();
    tree.sync_files(&[a, b], &Clean).unwrap();
    let tree = reopen(&disk, &clock, tree);
    assert_eq!((contents_of(&tree, "a"), contents_of(&tree, "b")), (b"a".to_vec(), b"b".to_vec()));
}

#[test]
fn close_mode_commits_at_the_end_of_the_last_writer() {
    let disk = SimDisk::new(untorn_crashlab::Options::default());
    let clock = Arc::new(TestClock::default());
    let tree = open_with(&disk, &clock, CommitMode::Close).unwrap();
    let a = file(&tree, "a");
    tree.open(a, true).unwrap();
    tree.open(a, true).unwrap();
    tree.write(a, 0, b"all").unwrap();
    tree.release(a, true);
    tree.tick(&Clean);
    assert!(open(&disk.fork(), &clock).lookup(ROOT, name("a")).is_err(), "somebody still writes");
    tree.release(a, true);
    tree.tick(&Clean);
    assert_eq!(contents_of(&open(&disk.fork(), &clock), "a"), b"all");
}

#[test]
fn write_mode_commits_every_write_and_name() {
    let disk = SimDisk::new(untorn_crashlab::Options::default());
    let clock = Arc::new(TestClock::default());
    let tree = open_with(&disk, &clock, CommitMode::Write).unwrap();
    let now = || open(&disk.fork(), &clock);
    let a = file(&tree, "a");
    assert_eq!(contents_of(&now(), "a"), b"");
    tree.open(a, true).unwrap();
    tree.write(a, 0, b"one").unwrap();
    assert_eq!(contents_of(&now(), "a"), b"one");
    tree.set_attributes(a, &Change { size: Some(2), mode: Some(0o600), ..Change::default() }).unwrap();
    assert_eq!(contents_of(&now(), "a"), b"on");
    assert_eq!(now().lookup(ROOT, name("a")).unwrap().mode, 0o600);
    tree.rename((ROOT, name("a")), (ROOT, name("b")), RenameFlags::Replace, &Clean).unwrap();
    assert_eq!(contents_of(&now(), "b"), b"on");
    // Contents that lack unknown bytes are not committed, even if later writes succeed.
    assert_eq!(tree.sync(a, &Failing), EIO);
    assert_eq!(tree.write(a, 0, b"torn"), EIO);
    tree.sync_names(&Clean).unwrap();
    assert_eq!(contents_of(&now(), "b"), b"on");
    tree.unlink(ROOT, name("b")).unwrap();
    assert!(now().lookup(ROOT, name("b")).is_err());
}

#[test]
fn store_mode_commits_everything_at_a_sync_and_nothing_before() {
    let disk = SimDisk::new(untorn_crashlab::Options::default());
    let clock = Arc::new(TestClock::default());
    let tree = open_with(&disk, &clock, CommitMode::Store).unwrap();
    let now = || open(&disk.fork(), &clock);
    let [a, b] = ["a", "b"].map(|called| file(&tree, called));
    [a, b].iter().for_each(|ino| tree.open(*ino, true).unwrap());
    tree.write(a, 0, b"one").unwrap();
    tree.write(b, 0, b"one").unwrap();
    tree.sync(b, &Clean).unwrap();
    assert_eq!((contents_of(&now(), "a"), contents_of(&now(), "b")), (b"one".to_vec(), b"one".to_vec()));
    // A rename, the close of a writer, time, a new object, and many files cause no commit.
    tree.write(a, 0, b"two").unwrap();
    tree.rename((ROOT, name("a")), (ROOT, name("b")), RenameFlags::Replace, &Clean).unwrap();
    tree.release(a, true);
    clock.pass(60);
    tree.tick(&Clean);
    for n in 0..5000 {
        let many = file(&tree, &format!("many{n}"));
        if n % 9 == 0 {
            tree.write(many, 0, b"x").unwrap();
        }
    }
    let before = now();
    assert_eq!((contents_of(&before, "a"), contents_of(&before, "b")), (b"one".to_vec(), b"one".to_vec()));
    assert!(before.lookup(ROOT, name("many0")).is_err());
    drop(before);
    // A name in a commit gets its first contents.
    let c = file(&tree, "c");
    tree.sync_names(&Clean).unwrap();
    tree.write(c, 0, b"three").unwrap();
    tree.unlink(ROOT, name("b")).unwrap();
    tree.prepare_end(&Clean).unwrap();
    assert_eq!((contents_of(&now(), "b"), contents_of(&now(), "c")), (b"two".to_vec(), b"".to_vec()), "b was open");
    tree.release(b, true);
    tree.prepare_end(&Clean).unwrap();
    assert_eq!(contents_of(&now(), "c"), b"three");
    assert!(now().lookup(ROOT, name("b")).is_err());
    // Contents that lack unknown bytes block every commit.
    tree.open(c, true).unwrap();
    assert_eq!(tree.sync_names(&Failing), EIO);
    let d = file(&tree, "d");
    assert_eq!(tree.sync(d, &Clean), EIO);
    tree.set_attributes(c, &Change { size: Some(0), ..Change::default() }).unwrap();
    tree.sync(d, &Clean).unwrap();
    assert_eq!(contents_of(&now(), "c"), b"");
}

/// Numbers of two directories of objects are in use, and no commit has an inode of either.
#[test]
fn after_a_crash_no_object_is_left_of_what_no_sync_committed() {
    let (disk, clock, _) = new_tree_of_objects();
    disk.kill();
    let tree = open_with(&disk, &clock, CommitMode::Store).unwrap();
    for n in 0..4200 {
        let ino = file(&tree, &format!("{n}"));
        if n % 100 == 0 {
            tree.write(ino, 0, b"x").unwrap();
        }
    }
    disk.kill();
    drop(tree);
    open(&disk, &clock).close(&Clean).unwrap();
    let store = store_options(&disk).open_on(disk.process(), StoreDir::of_directory(), "".into()).unwrap();
    for dir in ["obj/0", "obj/1"] {
        assert_eq!(store.list(dir).unwrap(), Vec::<std::ffi::OsString>::new(), "{dir}");
    }
}

#[test]
fn after_a_failed_commit_nothing_is_acknowledged() {
    let (disk, clock, tree) = new_tree();
    let a = synced(&tree, "a", b"before");
    tree.write(a, 0, b"during").unwrap();
    disk.fail(Fault { on: On::Sync, after: 0, times: 1, what: What::Writeback(Failed::Lost) });
    assert!(tree.sync(a, &Clean).is_err());
    disk.clear_faults();
    assert_eq!(tree.sync(a, &Clean), EIO);
    assert_eq!(tree.sync_names(&Clean), EIO);
    assert_eq!(tree.make(ME, ROOT, name("b"), Kind::File, 0o600, 0).map(drop), EIO);
    let tree = reopen(&disk, &clock, tree);
    assert!([&b"before"[..], b"during"].contains(&&contents_of(&tree, "a")[..]));
    synced(&tree, "b", b"after");
}

#[test]
fn many_files_without_a_writer_are_committed_early() {
    let (disk, clock, tree) = new_tree();
    for n in 0..600 {
        let ino = file(&tree, &format!("{n}"));
        tree.write(ino, 0, b"x").unwrap();
    }
    tree.tick(&Clean);
    let tree = reopen(&disk, &clock, tree);
    assert_eq!(contents_of(&tree, "500"), b"x");
    assert!(tree.lookup(ROOT, name("599")).is_err());
}

/// The kernel's cache of a mapped file that nobody syncs.
struct Mapped<'a> {
    tree: &'a StoreTree,
    ino: Ino,
    write_backs: std::sync::atomic::AtomicUsize,
}

impl KernelCache for Mapped<'_> {
    fn write_back(&self, ino: Ino) -> Result<()> {
        assert_eq!(ino, self.ino);
        self.write_backs.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        self.tree.write(ino, 0, b"later")
    }
}

#[test]
fn what_is_written_back_by_the_clock_is_not_committed() {
    let (disk, clock, tree) = new_tree();
    let a = synced(&tree, "a", b"first");
    let (kernel, after) = (Mapped { tree: &tree, ino: a, write_backs: 0.into() }, std::time::Duration::from_secs(30));
    let flushes = || kernel.write_backs.load(std::sync::atomic::Ordering::SeqCst);
    clock.pass(29);
    tree.write_back_after(after, &kernel);
    assert_eq!((flushes(), tree.status().unwrap().oldest), (0, None));
    clock.pass(1);
    tree.write_back_after(after, &kernel);
    assert_eq!((flushes(), contents(&tree, a)), (1, b"later".to_vec()));
    clock.pass(29);
    tree.write_back_after(after, &kernel);
    tree.tick(&Clean);
    let status = tree.status().unwrap();
    assert_eq!((flushes(), status.uncommitted), (1, 1));
    assert_eq!(status.oldest, Some(std::time::Duration::from_secs(29)));
    clock.pass(1);
    tree.write_back_after(after, &kernel);
    assert_eq!(flushes(), 2);
    tree.release(a, true);
    clock.pass(100);
    tree.write_back_after(after, &kernel);
    assert_eq!(flushes(), 2, "nobody has it open for writing");
    assert_eq!(contents_of(&open(&disk.fork(), &clock), "a"), b"first", "only syncs, and the timer, commit");
}

#[test]
fn a_table_whose_numbers_cannot_be_is_damage() {
    // The next number and the limit, in the head of the table.
    for (next, limit) in [(2u64, 0u64), (9000, 4096), (2, 4096)] {
        let (disk, clock, tree) = new_tree();
        file(&tree, "f");
        tree.close(&Clean).unwrap();
        let store = store_options(&disk).open_on(disk.process(), StoreDir::of_directory(), "".into()).unwrap();
        let table = store.open_file("table").unwrap();
        table.write_all_at(&next.to_le_bytes(), 16).unwrap();
        table.write_all_at(&limit.to_le_bytes(), 24).unwrap();
        table.commit().unwrap();
        table.close().unwrap();
        store.close().unwrap();
        let opened = open_with(&disk, &clock, CommitMode::Sync);
        assert_eq!(opened.map(drop).unwrap_err().kind(), "corrupt", "{next} of {limit}");
    }
}
