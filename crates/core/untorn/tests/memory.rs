//! A store on byte-addressable memory, for which ordinary memory stands in: commits without calls, and their readers.

mod common;

use common::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use untorn::__private::OpenStoreOn;
use untorn::reader::Followed;
use untorn::{File, Reader, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::{Linux, Storage};

const LIMIT: Duration = Duration::from_secs(60);
/// Longer than the owner relies on its last look whether somebody follows.
const LOOKED_LONG_AGO: Duration = Duration::from_millis(3);

struct Owner {
    storage: Arc<Linux>,
    store: Store,
    file: File,
}

impl Owner {
    /// With a log whose first segment has room for all commits, and with its first commit, which takes calls.
    fn open(dir: &Path) -> Owner {
        let storage = Linux::open_as_memory(dir).unwrap();
        let options = StoreOptions::new().create(true).background(false).sizes(32 << 20, 8 << 20, 64 << 10).page(true);
        let store = options.open_on(storage.clone(), StoreDir::of_directory(), PathBuf::new()).unwrap();
        let file = store.open_or_create_file("a").unwrap();
        let owner = Owner { storage, store, file };
        (0..3).for_each(|n| owner.commit(n));
        owner
    }

    fn commit(&self, n: u64) {
        self.file.write_all_at(&n.to_le_bytes(), n % 8 * 8).unwrap();
        self.file.commit().unwrap();
    }

    /// The calls that write and flush while this many commits are made.
    fn calls_for(&self, commits: std::ops::Range<u64>) -> (u64, u64) {
        let before = self.storage.counters();
        commits.for_each(|n| self.commit(n));
        let after = self.storage.counters();
        (after.writes - before.writes, after.syncs - before.syncs)
    }
}

/// Whether the lines of this processor can be stored.
fn stores_lines(dir: &Path) -> bool {
    let storage = Linux::open_as_memory(dir).unwrap();
    std::fs::write(dir.join("probe"), [0; 64]).unwrap();
    let can = storage.open(Path::new("probe"), untorn_os::Open::WRITE).unwrap().lines(64).is_ok();
    std::fs::remove_file(dir.join("probe")).unwrap();
    can
}

#[test]
fn a_commit_makes_no_call() {
    let dir = directory();
    if !stores_lines(dir.path()) {
        return println!("skipped: this processor cannot store lines");
    }
    let owner = Owner::open(dir.path());
    assert_eq!(owner.calls_for(3..203), (0, 0));
    // Readers find the last commit in the index of the log.
    let reader = Reader::open(dir.path()).unwrap();
    let last: Vec<u8> = (200..203).chain(195..200).flat_map(u64::to_le_bytes).collect();
    assert_eq!(reader.read("a").unwrap(), last);
}

/// Calls that a commit may need: for memory, for a clock that only the kernel reads, for the look whether somebody follows
/// (once in a millisecond), and to end the process.
const ALLOWED: [i64; 4] = [libc::SYS_brk, libc::SYS_clock_gettime, libc::SYS_fcntl, libc::SYS_exit_group];

/// Ends this process at each other system call of this thread.
fn forbid_calls() {
    let statement = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    program.extend(
        ALLOWED
            .iter()
            .zip((1..=ALLOWED.len() as u8).rev())
            .map(|(call, to_allow)| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, to_allow, *call as u32)),
    );
    program.push(statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_KILL_PROCESS));
    program.push(statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    filter_calls(&mut program);
}

#[test]
fn a_commit_makes_no_system_call_at_all() {
    const PLACE: &str = "UNTORN_TEST_PLACE";
    let Some(dir) = std::env::var_os(PLACE).map(PathBuf::from) else {
        let dir = directory();
        if !stores_lines(dir.path()) {
            return println!("skipped: this processor cannot store lines");
        }
        let mut child = untorn_testkit::again!("a_commit_makes_no_system_call_at_all");
        let status = child.env(PLACE, dir.path()).status().unwrap();
        assert!(status.success(), "{status}");
        let reader = Reader::open(dir.path()).unwrap();
        let last: Vec<u8> = (96..101).chain(93..96).flat_map(u64::to_le_bytes).collect();
        assert_eq!(reader.read("a").unwrap(), last);
        return;
    };
    let owner = Owner::open(&dir);
    // A write that makes a file longer asks for the process's limit.
    (3..11).for_each(|n| owner.commit(n));
    forbid_calls();
    (11..101).for_each(|n| owner.commit(n));
    // SAFETY: It ends the process.
    unsafe { libc::_exit(0) }
}

/// Commits to memory do not ask for the limit before each commit. Its effect is that of a full disk, and is known to commits
/// from the next checkpoint on.
#[test]
fn a_lowered_file_size_limit_is_seen_by_the_next_checkpoint() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const MIB: u64 = 1 << 20;
    if !untorn_testkit::is_alone!("a_lowered_file_size_limit_is_seen_by_the_next_checkpoint") {
        return;
    }
    let limit = |bytes: Option<u64>| {
        let maximum = getrlimit(Resource::Fsize).maximum;
        setrlimit(Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
    };
    let dir = directory();
    if !stores_lines(dir.path()) {
        return println!("skipped: this processor cannot store lines");
    }
    let owner = Owner::open(dir.path());
    owner.file.set_len(3 * MIB).unwrap();
    owner.file.commit().unwrap();
    limit(Some(MIB));
    refused_with_errno(owner.file.set_len(4 * MIB), libc::EFBIG);
    owner.file.write_all_at(b"x", 2 * MIB).unwrap();
    owner.file.commit().unwrap();
    refused(owner.store.checkpoint(), &["no-space"]);
    owner.file.write_all_at(b"y", 2 * MIB + 1).unwrap();
    refused(owner.file.commit(), &["io", "no-space"]);
    limit(None);
    owner.file.commit().unwrap();
    owner.store.checkpoint().unwrap();
    let Owner { file, store, .. } = owner;
    drop(file);
    store.close().unwrap();
    assert_eq!(&plain(dir.path().join("a"))[2 * MIB as usize..][..3], b"xy\0");
}

/// The index grows while it is stored to. Followers read it.
#[test]
fn followers_get_each_commit_by_the_index() {
    let dir = directory();
    let owner = Owner::open(dir.path());
    let reader = Reader::open(dir.path()).unwrap();
    let mut follow = reader.follow().unwrap();
    let index = dir.path().join(".untorn/journal/index.0");
    let before = std::fs::metadata(&index).unwrap().len();
    for n in 3..1500 {
        owner.commit(n);
        if n % 100 == 0 {
            for expected in n.saturating_sub(99).max(3)..=n {
                let Some(Followed::Commit(commit)) = follow.next_within(LIMIT).unwrap() else { panic!("commit {n}") };
                let mut bytes = [0; 8];
                commit.changes[0].read_at(&mut bytes, expected % 8 * 8).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), expected);
            }
        }
    }
    assert!(std::fs::metadata(&index).unwrap().len() > before, "the index did not grow: {before} bytes");
    owner.store.close().unwrap();
}

/// A store to the page is no event for those who wait for the next commit, so the page is written for them.
#[test]
fn followers_are_woken_and_nobody_else_costs_a_call() {
    let dir = directory();
    if !stores_lines(dir.path()) {
        return println!("skipped: this processor cannot store lines");
    }
    let owner = Owner::open(dir.path());
    let follow = Reader::open(dir.path()).unwrap().follow().unwrap();
    std::thread::sleep(LOOKED_LONG_AGO);
    assert_eq!(owner.calls_for(3..10), (7, 0));
    drop(follow);
    std::thread::sleep(LOOKED_LONG_AGO);
    assert_eq!(owner.calls_for(10..20), (0, 0));
    // A snapshot waits for nothing.
    let snapshot = Reader::open(dir.path()).unwrap().snapshot().unwrap();
    std::thread::sleep(LOOKED_LONG_AGO);
    assert_eq!(owner.calls_for(20..30), (0, 0));
    drop(snapshot);
}
