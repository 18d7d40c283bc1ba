//! A tree on the simulated disk, and a clock that tests set.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use untorn::__private::OpenStoreOn;
use untorn::StoreOptions;
use untorn_crashlab::SimDisk;
use untorn_journal::directories::store_dir::StoreDir;
use untorn_tree::*;

/// A kernel without dirty pages.
pub struct Clean;

impl KernelCache for Clean {
    fn write_back(&self, _: Ino) -> Result<()> {
        Ok(())
    }
}

/// A kernel whose writes fail.
pub struct Failing;

impl KernelCache for Failing {
    fn write_back(&self, _: Ino) -> Result<()> {
        Err(Errno(libc::EIO))
    }
}

/// A kernel whose writes of one file fail.
pub struct FailingOf(pub Ino);

impl KernelCache for FailingOf {
    fn write_back(&self, ino: Ino) -> Result<()> {
        if ino == self.0 { Err(Errno(libc::EIO)) } else { Ok(()) }
    }
}

#[derive(Default)]
pub struct TestClock(AtomicU64);

impl TestClock {
    pub fn pass(&self, seconds: u64) {
        self.0.fetch_add(seconds, SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Time {
        Time { seconds: 1_000_000 + self.0.load(SeqCst) as i64, nanoseconds: 7 }
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs(self.0.load(SeqCst))
    }
}

pub const ME: Request = Request { uid: 1000, gid: 1000, umask: 0 };

/// Options with a small journal for half of the seeds: commits that wait together are then written one by one, or
/// through spill files.
pub fn store_options(disk: &SimDisk) -> StoreOptions {
    let (journal, first, inline) = match disk.options().seed % 2 {
        0 => (1 << 20, 64 << 10, 16 << 10),
        _ => (64 << 10, 4 << 10, 2 << 10),
    };
    StoreTree::store_options().background(false).sizes(journal, first, inline)
}

pub fn open_with(disk: &SimDisk, clock: &Arc<TestClock>, commit: CommitMode) -> untorn::Result<StoreTree> {
    let options = store_options(disk);
    let store = options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new())?;
    StoreTree::open(store, TreeOptions { small_max: small_max(disk), ..tree_options(clock, commit) })
}

/// With plenty of room, because the simulated disk does not report its own.
pub fn tree_options(clock: &Arc<TestClock>, commit: CommitMode) -> TreeOptions {
    let below = Some(room(1 << 30));
    TreeOptions { commit, owner: ME, clock: clock.clone(), below, ..TreeOptions::default() }
}

/// For most seeds all files are in the pack, or the limit is one that files often cross; for some each has an object.
pub fn small_max(disk: &SimDisk) -> usize {
    [64 << 10, 2048, 4096, 600, 0][(disk.options().seed / 2 % 5) as usize]
}

/// A file system with `free` free blocks.
pub fn room(free: u64) -> Arc<Below> {
    let (blocks, files) = (1 << 30, 1 << 20);
    let of = SpaceUse { block_size: 4096, blocks, free, available: free, files, files_free: files };
    Arc::new(move || Ok(of))
}

pub fn open(disk: &SimDisk, clock: &Arc<TestClock>) -> StoreTree {
    open_with(disk, clock, CommitMode::Sync).expect("a tree")
}

pub fn new_tree() -> (SimDisk, Arc<TestClock>, StoreTree) {
    let disk = SimDisk::new(untorn_crashlab::Options::default());
    let clock = Arc::new(TestClock::default());
    let tree = open(&disk, &clock);
    (disk, clock, tree)
}

/// A tree in which every file with contents has an object.
pub fn new_tree_of_objects() -> (SimDisk, Arc<TestClock>, StoreTree) {
    let disk = SimDisk::new(untorn_crashlab::Options { seed: 8, ..Default::default() });
    let clock = Arc::new(TestClock::default());
    let tree = open(&disk, &clock);
    (disk, clock, tree)
}

pub fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

pub fn file(tree: &StoreTree, called: &str) -> Ino {
    tree.make(ME, ROOT, name(called), Kind::File, 0o644, 0).expect("a new file").ino
}

pub fn dir(tree: &StoreTree, parent: Ino, called: &str) -> Ino {
    tree.make(ME, parent, name(called), Kind::Directory, 0o755, 0).expect("a new directory").ino
}

pub fn contents(tree: &StoreTree, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0xee; tree.attributes(ino).expect("attributes").size as usize];
    let n = tree.read(ino, 0, &mut bytes).expect("contents");
    assert_eq!(n, bytes.len());
    bytes
}

pub fn contents_of(tree: &StoreTree, called: &str) -> Vec<u8> {
    contents(tree, tree.lookup(ROOT, name(called)).expect("the name").ino)
}

/// Kills the owner, and opens the tree again.
pub fn reopen(disk: &SimDisk, clock: &Arc<TestClock>, tree: StoreTree) -> StoreTree {
    disk.kill();
    drop(tree);
    open(disk, clock)
}

/// A file that is open for writing, with contents that a program has synced.
pub fn synced(tree: &StoreTree, called: &str, bytes: &[u8]) -> Ino {
    let ino = file(tree, called);
    tree.open(ino, true).unwrap();
    tree.write(ino, 0, bytes).unwrap();
    tree.sync(ino, &Clean).unwrap();
    ino
}
