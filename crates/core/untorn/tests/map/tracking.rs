//! Every store is found: random programs store through raw pointers in all the ways that a tracker could miss.

use crate::common::child_process::path_text;
use crate::common::mapping::*;
use crate::common::*;
use fastrand::Rng;
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use untorn::{File, Map, MapOptions, Store, StoreOptions, TrackerKind};
use untorn_testkit::NOBODY;

/// The bytes that one page table maps.
const CHUNK: usize = 2 << 20;
/// The initial size of the file, with a part of a chunk and of a page at its end.
const SIZE: usize = 9 * CHUNK + 37 * PAGE + 100;
const SIZE_MOST: usize = 14 * CHUNK;
const STEPS: usize = 60;

struct Program<'a> {
    dir: &'a Path,
    rng: Rng,
    options: MapOptions,
    store: Option<Store>,
    file: Option<File>,
    map: Option<Map>,
    committed: Vec<u8>,
    working: Vec<u8>,
    what: String,
}

impl<'a> Program<'a> {
    fn new(dir: &'a Path, tracker: TrackerKind, seed: u64) -> Program<'a> {
        let mut rng = Rng::with_seed(seed);
        let mut first = vec![0; SIZE];
        rng.fill(&mut first);
        let path = dir.join("f");
        // Written at once or page by page, so that the page cache has large folios or small ones.
        let step = if rng.bool() { SIZE } else { PAGE };
        let file = fs::File::create(&path).expect("create");
        (0..SIZE).step_by(step).for_each(|at| {
            file.write_all_at(&first[at..(at + step).min(SIZE)], at as u64).expect("write");
        });
        file.sync_all().expect("sync");
        let options = MapOptions::new().tracker(tracker).huge_pages(rng.bool()).populate(rng.bool()).quiet(rng.bool());
        let what = format!("{}, {options:?}, seed {seed}", dir.display());
        let mut program = Program {
            dir,
            rng,
            options,
            store: None,
            file: None,
            map: None,
            committed: first.clone(),
            working: first,
            what,
        };
        program.open();
        program
    }

    fn open(&mut self) {
        let store = StoreOptions::new().create(true).background(false).open(self.dir).expect("open");
        let file = store.open_file("f").expect("file");
        self.map = Some(file.map_with(&self.options).expect("map"));
        (self.store, self.file) = (Some(store), Some(file));
    }

    fn map(&self) -> &Map {
        self.map.as_ref().expect("mapped")
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("open")
    }

    /// A range of at most this many bytes, more often in the first chunks than in the others.
    fn range(&mut self, most: usize) -> std::ops::Range<usize> {
        let all = self.working.len();
        let within = if self.rng.bool() { all.min(CHUNK * 3 / 2) } else { all };
        let start = self.rng.usize(..within);
        start..(start + 1 + self.rng.usize(..most)).min(all)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn store(&mut self, at: usize, bytes: &[u8]) {
        poke(self.map(), at, bytes);
        self.working[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn store_some(&mut self) {
        for _ in 0..self.rng.usize(1..9) {
            let range = self.range(100);
            let bytes = self.bytes(range.len());
            self.store(range.start, &bytes);
        }
    }

    fn step(&mut self) {
        match self.rng.u32(..30) {
            0..=5 => self.store_some(),
            6 => {
                // One byte in each of many pages.
                let range = self.range(3 * CHUNK / 2);
                for at in range.step_by(PAGE * self.rng.usize(1..4)) {
                    let byte = self.rng.u8(..);
                    self.store(at, &[byte]);
                }
            }
            7..=8 => {
                let range = self.range(3 * CHUNK);
                let wanted = &self.working[range.clone()];
                assert!(loaded(self.map(), range.clone()) == *wanted, "{}: memory at {range:?}", self.what);
                for at in range.step_by(PAGE) {
                    assert_eq!(peek(self.map(), at, 1)[0], self.working[at], "{}: memory at {at}", self.what);
                }
            }
            9..=13 => self.commit(),
            14..=15 => self.commit_while_another_thread_stores(),
            16 => {
                self.map().rollback().expect("rollback");
                let size = self.committed.len();
                self.working.clone_from(&self.committed);
                assert_eq!(self.map().len(), size as u64);
            }
            17..=18 => self.map().reclaim().expect("reclaim"),
            19 => {
                let size = match self.rng.u32(..3) {
                    0 => (self.working.len() + self.rng.usize(..3 * CHUNK)).min(SIZE_MOST),
                    1 => self.working.len().saturating_sub(self.rng.usize(..CHUNK)).max(2 * CHUNK),
                    _ => (self.working.len() + self.rng.usize(..3 * PAGE)).min(SIZE_MOST),
                };
                self.map().resize(size as u64).expect("resize");
                self.working.resize(size, 0);
                self.store_some();
            }
            20 => self.fork(),
            21..=22 => {
                let pages = self.working.len() / PAGE;
                let first = self.rng.usize(..pages);
                let len = self.rng.usize(1..=pages - first) * PAGE;
                let advice = *self.rng.choice(&[libc::MADV_PAGEOUT, libc::MADV_COLD]).expect("one of them");
                // SAFETY: advice that changes no byte.
                unsafe { libc::madvise(at(self.map(), first * PAGE), len, advice) };
            }
            23 => self.store_ref().checkpoint().expect("checkpoint"),
            24 => {
                self.map = None;
                self.map = Some(self.file().map_with(&self.options).expect("map"));
            }
            25 => {
                let range = self.range(3 * PAGE);
                let bytes = self.bytes(range.len());
                self.file().write_all_at(&bytes, range.start as u64).expect("write");
                self.working[range].copy_from_slice(&bytes);
            }
            26 => {
                let range = self.range(CHUNK);
                self.file().zero(range.start as u64, range.len() as u64).expect("zero");
                self.working[range].fill(0);
            }
            27 => {
                // A store that a system call makes.
                let range = self.range(3 * PAGE);
                let bytes = self.bytes(range.len());
                let source = tempfile::tempfile().expect("a file");
                source.write_all_at(&bytes, 0).expect("write");
                // SAFETY: inside the map, and nobody else is here.
                let into =
                    unsafe { std::slice::from_raw_parts_mut(self.map().as_mut_ptr().add(range.start), range.len()) };
                source.read_exact_at(into, 0).expect("read");
                tell(self.map(), range.start, range.len());
                self.working[range].copy_from_slice(&bytes);
            }
            28 => self.reopen(),
            _ => {
                // Protected, and accessible again, with a commit in between.
                let page = self.rng.usize(..self.working.len() / PAGE);
                // SAFETY: a page of the map, which stays mapped.
                unsafe {
                    assert_eq!(libc::mprotect(at(self.map(), page * PAGE), PAGE, libc::PROT_READ), 0);
                    self.commit();
                    assert_eq!(
                        libc::mprotect(at(self.map(), page * PAGE), PAGE, libc::PROT_READ | libc::PROT_WRITE),
                        0
                    );
                }
                let byte = self.rng.u8(..);
                self.store(page * PAGE, &[byte]);
            }
        }
    }

    fn store_ref(&self) -> &Store {
        self.store.as_ref().expect("open")
    }

    fn commit(&mut self) {
        self.map().msync().expect("msync");
        self.committed.clone_from(&self.working);
        match self.rng.u32(..4) {
            0 => self.compare_file(),
            1 => self.compare_copy(),
            _ => {}
        }
    }

    fn compare_file(&self) {
        let found = committed(self.dir, self.store_ref());
        assert_same(&found, &self.committed, &format!("{}: the file", self.what));
    }

    /// Compares a copy of the directory, which is in the state after a crash at this moment.
    fn compare_copy(&self) {
        let copy = directory();
        let to = copy.path().join("copy");
        run("cp", ["-a".as_ref(), self.dir.as_os_str(), to.as_os_str()]);
        drop(StoreOptions::new().create(true).background(false).open(&to).expect("open the copy"));
        assert_same(&plain(to.join("f")), &self.committed, &format!("{}: a copy, reopened", self.what));
    }

    /// Commits while one other thread stores rising numbers to words; the last value of a word is in the next commit at
    /// the latest.
    fn commit_while_another_thread_stores(&mut self) {
        let words: Vec<usize> = (0..16).map(|_| self.rng.usize(..self.working.len() / 8 - 1) * 8).collect();
        self.store_some();
        let map = self.map();
        let start = map.as_mut_ptr() as usize;
        let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        let last = std::thread::scope(|scope| {
            let storing = scope.spawn(|| {
                let mut n = 0u64;
                while !stop.load(SeqCst) || n == 0 {
                    n += 1;
                    for word in &words {
                        // SAFETY: inside the map, aligned, and nobody else is there.
                        unsafe { ((start + word) as *mut u64).write_volatile(n) };
                        tell(map, *word, 8);
                    }
                    rounds.store(n, SeqCst);
                    if n.is_multiple_of(64) {
                        std::thread::yield_now();
                    }
                }
                n
            });
            for _ in 0..3 {
                self.map().msync().expect("msync");
                let before = rounds.load(SeqCst);
                while rounds.load(SeqCst) == before {
                    std::thread::yield_now();
                }
            }
            stop.store(true, SeqCst);
            storing.join().expect("the thread that stores")
        });
        for word in words {
            self.working[word..word + 8].copy_from_slice(&last.to_le_bytes());
        }
        self.commit();
    }

    /// Forks a child that stores to its own memory, while the parent stores, too.
    fn fork(&mut self) {
        // SAFETY: the child only stores to its own copy of the memory, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            (0..SIZE.min(self.working.len()) / PAGE).for_each(|page| poke(self.map(), page * PAGE, b"child"));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        self.store_some();
        if self.rng.bool() {
            self.commit();
        }
        let mut status = 0;
        // SAFETY: the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        self.store_some();
    }

    fn close(&mut self) {
        self.map = None;
        self.file = None;
        self.store.take().expect("open").close().expect("close");
        let found = plain(self.dir.join("f"));
        assert_same(&found, &self.committed, &format!("{}: the file, closed", self.what));
    }

    fn reopen(&mut self) {
        self.close();
        self.working.clone_from(&self.committed);
        self.open();
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            self.step();
        }
        self.commit();
        self.close();
    }
}

/// Runs programs in a directory, one per tracker.
fn programs(dir: &Path, seed: u64) {
    with_trackers(|tracker| {
        let dir = dir.join(tracker.name());
        fs::create_dir(&dir).expect("create");
        Program::new(&dir, tracker, seed).run();
    });
}

#[test]
fn every_store_is_found() {
    let seed = seed();
    for round in 0..2 {
        programs(directory().path(), seed + round);
    }
}

/// A file system of some kind in an image, and the directory that has the image.
fn made_by(maker: &str, bytes: u64) -> Option<(Mount, tempfile::TempDir)> {
    let outer = directory();
    if !is_root() || Command::new(maker).arg("-V").output().is_err() {
        skipped(&format!("needs root and {maker}"));
        return None;
    }
    Mount::made(&format!("{maker} -q"), bytes, "", &outer.path().join("disk")).map(|mount| (mount, outer))
}

#[test]
fn every_store_is_found_on_other_file_systems() {
    let seed = seed() + 100;
    for (n, (maker, mib)) in [("mkfs.xfs", 384), ("mkfs.btrfs", 512), ("mkfs.ext4", 256)].into_iter().enumerate() {
        if let Some((mount, _outer)) = made_by(maker, mib << 20) {
            let dir = mount.path().join("store");
            fs::create_dir(&dir).expect("create");
            programs(&dir, seed + n as u64);
        }
    }
    let place = directory();
    for huge in ["never", "always"] {
        let Some(mount) = Mount::new(&["-t", "tmpfs", "-o", &format!("huge={huge}"), "none"], place.path()) else {
            return;
        };
        programs(mount.path(), seed + 10);
        drop(mount);
    }
}

const CHILD: &str = "UNTORN_TEST_TRACKING_CHILD";

/// For an ordinary user, the kernel makes a `userfaultfd` only for faults of user mode.
#[test]
fn every_store_is_found_for_an_ordinary_user() {
    if let Ok(dir) = std::env::var(CHILD) {
        programs(&PathBuf::from(dir), seed() + 200);
        println!("done");
        return;
    }
    if !is_root() {
        return skipped("the other tests here run as an ordinary user already");
    }
    let dir = directory();
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
    let mut command = untorn_testkit::again!("every_store_is_found_for_an_ordinary_user");
    command.env(CHILD, dir.path());
    let output = command.uid(NOBODY).gid(NOBODY).current_dir("/").output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("done"), "{text}");
}

/// Swap space for the whole machine, while this value lives.
struct Swap(PathBuf);

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.0).status();
    }
}

/// A page that was stored to is in swap when the tracker looks for it.
#[test]
fn every_store_is_found_in_swap() {
    let Some((mount, _outer)) = made_by("mkfs.ext4", 256 << 20) else { return };
    let swap = mount.path().join("swap");
    fs::write(&swap, vec![0; 96 << 20]).expect("write");
    set_mode(&swap, 0o600);
    run("mkswap", ["-q", path_text(&swap)]);
    if !Command::new("swapon").arg(&swap).status().is_ok_and(|status| status.success()) {
        return skipped("swap space cannot be added here");
    }
    let _swap = Swap(swap);
    with_trackers(|tracker| {
        let dir = directory();
        let mut program = Program::new(dir.path(), tracker, seed() + 300);
        for round in 0..12 {
            program.store_some();
            if round % 2 == 1 {
                program.commit();
                program.store_some();
            }
            // SAFETY: advice that changes no byte.
            unsafe { libc::madvise(at(program.map(), 0), program.working.len(), libc::MADV_PAGEOUT) };
            if round % 3 == 0 {
                program.map().reclaim().expect("reclaim");
            }
            program.commit();
            program.compare_file();
        }
        program.close();
    });
}
