//! Readers and an owner in processes of their own, all killed at random, against an exact oracle.
//!
//! Commit `n` leaves each of four files full of `n`, with a length that belongs to `n`, and three files named after the
//! last three commits. The owner notes in a plain file the commit that it begins, and the last one that was
//! acknowledged. A reader must see one `n` in all files. That commit must have begun before the read ended, must not be
//! older than the one acknowledged before the read, and must not be older than one that the reader saw before.
//!
//! `UNTORN_READERS_SECONDS` sets the duration, `UNTORN_TEST_READERS` the number of readers, `UNTORN_TEST_SEED` repeats
//! the kills.

mod common;

use common::*;
use fastrand::Rng;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use untorn::reader::Snapshot;
use untorn::{Error, Reader, StoreOptions};

const FILES: u64 = 4;
const READERS_USUAL: u64 = 8;
const SECONDS: u64 = 5;
/// Longer than a busy machine needs until enough has happened.
const LONG: Duration = Duration::from_secs(120);
const GENERATIONS: u64 = 3;

/// Offsets of the owner's notes.
const BEGUN_AT: u64 = 0;
const ACKNOWLEDGED_AT: u64 = 8;
/// Offset of each reader's counts: trees that were read at once, and with pauses.
const COUNTS_AT: u64 = 64;

fn number(notes: &std::fs::File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    let n = notes.read_at(&mut bytes, at).unwrap();
    if n < 8 { 0 } else { u64::from_le_bytes(bytes) }
}

fn note(notes: &std::fs::File, at: u64, n: u64) {
    notes.write_all_at(&n.to_le_bytes(), at).unwrap();
}

fn len_of(n: u64, file: u64) -> u64 {
    8 * (1 + (n * 7919 + file * 104_729) % 3000)
}

fn contents_of(n: u64, file: u64) -> Vec<u8> {
    n.to_le_bytes().into_iter().cycle().take(len_of(n, file) as usize).collect()
}

fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// In a process of its own.
#[test]
fn owner() {
    let Some(dir) = std::env::var_os("UNTORN_TEST_OWNER").map(PathBuf::from) else { return };
    let notes = std::fs::File::options().write(true).read(true).open(dir.join("notes")).unwrap();
    let options = StoreOptions::new().create(true).journal_bytes(256 << 10).wait(true);
    let store = options.open(dir.join("store")).unwrap();
    let names = store.list("").unwrap();
    let generations = names.iter().filter_map(|name| name.to_str()?.strip_prefix("gen-")?.parse::<u64>().ok());
    let mut n = generations.max().unwrap_or(0);
    // A commit that recovery brought back counts as acknowledged, because it stays.
    note(&notes, BEGUN_AT, n);
    note(&notes, ACKNOWLEDGED_AT, n);
    let mut rng = Rng::new();
    loop {
        n += 1;
        note(&notes, BEGUN_AT, n);
        let mut txn = store.begin();
        for file in 0..FILES {
            let name = format!("f{file}");
            // In place, or replaced by another file.
            if names.is_empty() && n == 1 {
                txn.create(&name, 0o644).unwrap().write_all_at(&contents_of(n, file), 0).unwrap();
            } else if rng.u8(..4) == 0 {
                txn.unlink(&name).unwrap();
                txn.create(&name, 0o644).unwrap().write_all_at(&contents_of(n, file), 0).unwrap();
            } else {
                let open = store.open_file(&name).unwrap();
                txn.add(&open).unwrap();
                open.set_len(len_of(n, file)).unwrap();
                open.write_all_at(&contents_of(n, file), 0).unwrap();
            }
        }
        txn.create(format!("gen-{n}"), 0o644).unwrap();
        if n > GENERATIONS {
            txn.unlink(format!("gen-{}", n - GENERATIONS)).unwrap();
        }
        txn.commit().unwrap();
        note(&notes, ACKNOWLEDGED_AT, n);
        match rng.u8(..40) {
            0 => store.checkpoint().unwrap(),
            1 => std::thread::sleep(Duration::from_millis(rng.u64(..20))),
            _ => {}
        }
    }
}

/// The commit that all files of a snapshot show.
fn shown(snapshot: &Snapshot) -> untorn::Result<u64> {
    let names: Vec<String> = snapshot.list("")?.into_iter().map(|name| name.into_string().unwrap()).collect();
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.strip_prefix("gen-")?.parse().ok()).collect();
    numbers.sort_unstable();
    let n = numbers.last().copied().unwrap_or(0);
    if n == 0 {
        assert!(names.is_empty(), "names before the first commit: {names:?}");
        return Ok(0);
    }
    let wanted: Vec<u64> = (n.saturating_sub(GENERATIONS - 1).max(1)..=n).collect();
    assert_eq!(numbers, wanted, "names of several commits, as of {}: {names:?}", snapshot.lsn());
    for file in 0..FILES {
        let open = snapshot.open(format!("f{file}"))?;
        let mut bytes = vec![0; open.len()? as usize];
        let read = open.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        assert_eq!(bytes.len() as u64, len_of(n, file), "f{file} of commit {n}");
        assert!(bytes == contents_of(n, file), "f{file} is not as of commit {n}");
    }
    Ok(n)
}

/// In a process of its own.
#[test]
fn reader() {
    let Some(dir) = std::env::var_os("UNTORN_TEST_READER").map(PathBuf::from) else { return };
    let at = COUNTS_AT + 24 * environment("UNTORN_TEST_READER_NUMBER").unwrap();
    let notes = std::fs::File::options().write(true).read(true).open(dir.join("notes")).unwrap();
    let (mut rng, mut reader, mut last): (_, Option<Reader>, u64) = (Rng::new(), None, 0);
    let count = |which: u64| note(&notes, at + 8 * which, number(&notes, at + 8 * which) + 1);
    loop {
        let acknowledged = number(&notes, ACKNOWLEDGED_AT);
        let pauses = rng.bool();
        let one = || -> untorn::Result<u64> {
            let current = match &reader {
                Some(reader) => reader.clone(),
                None => Reader::open(dir.join("store"))?,
            };
            let snapshot = current.snapshot()?;
            reader = Some(current);
            if pauses && rng.u8(..4) == 0 {
                std::thread::sleep(Duration::from_millis(rng.u64(..400)));
            }
            let n = shown(&snapshot)?;
            assert_eq!(shown(&snapshot)?, n);
            Ok(n)
        };
        match { one }() {
            Ok(n) => {
                let begun = number(&notes, BEGUN_AT);
                assert!(n >= acknowledged, "commit {n} is shown, and {acknowledged} was acknowledged before");
                assert!(n <= begun, "commit {n} is shown, and only {begun} was begun");
                assert!(n >= last, "commit {n} is shown after {last}");
                last = n;
                count(u64::from(pauses));
            }
            // The owner is opening the store.
            Err(Error::Busy { .. }) => {}
            Err(e) => panic!("{e}"),
        }
        if rng.u8(..10) == 0 {
            reader = None;
        }
    }
}

struct Killed(Child);

impl Killed {
    fn start(mut command: Command) -> Killed {
        Killed(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a process"))
    }

    /// Kills the process, which must still be alive.
    fn kill(mut self, what: &str) {
        if let Some(status) = self.0.try_wait().unwrap() {
            panic!("{what} ended by itself: {status}; what it said is above");
        }
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_owner(dir: &Path) -> Killed {
    let mut command = untorn_testkit::again!("owner");
    command.env("UNTORN_TEST_OWNER", dir);
    Killed::start(command)
}

fn start_reader(dir: &Path, number: u64) -> Killed {
    let mut command = untorn_testkit::again!("reader");
    command.env("UNTORN_TEST_READER", dir).env("UNTORN_TEST_READER_NUMBER", number.to_string());
    Killed::start(command)
}

#[test]
fn readers_and_an_owner_that_are_killed() {
    let mut rng = Rng::with_seed(seed());
    let dir = directory();
    let all = environment("UNTORN_TEST_READERS").unwrap_or(READERS_USUAL);
    std::fs::write(dir.path().join("notes"), vec![0; (COUNTS_AT + 24 * all) as usize]).unwrap();
    std::fs::create_dir(dir.path().join("store")).unwrap();
    let notes = std::fs::File::open(dir.path().join("notes")).unwrap();
    let mut owner = start_owner(dir.path());
    eventually(Duration::from_secs(60), "a first commit", || number(&notes, ACKNOWLEDGED_AT) > 0);
    let mut readers: Vec<Killed> = (0..all).map(|n| start_reader(dir.path(), n)).collect();
    let (begun, mut owners_killed, mut readers_killed) = (Instant::now(), 0u64, 0u64);
    let lasts = Duration::from_secs(environment("UNTORN_READERS_SECONDS").unwrap_or(SECONDS));
    let total = |which: u64| (0..all).map(|n| number(&notes, COUNTS_AT + 24 * n + 8 * which)).sum::<u64>();
    // The trees that were read before the first kill of an owner.
    let mut before = None;
    // At least this long, and until trees were read after the kill of an owner, and a reader was killed.
    while begun.elapsed() < lasts || before.is_none_or(|n| total(0) <= n) || total(1) == 0 || readers_killed == 0 {
        assert!(begun.elapsed() < lasts + LONG, "{owners_killed} owners killed, {} and {} trees", total(0), total(1));
        std::thread::sleep(Duration::from_millis(rng.u64(20..400)));
        if rng.u8(..3) == 0 {
            std::mem::replace(&mut owner, start_owner(dir.path())).kill("the owner");
            owners_killed += 1;
            before.get_or_insert_with(|| total(0));
        } else {
            let n = rng.u64(..all);
            std::mem::replace(&mut readers[n as usize], start_reader(dir.path(), n)).kill("a reader");
            readers_killed += 1;
        }
    }
    owner.kill("the owner");
    readers.into_iter().for_each(|reader| reader.kill("a reader"));
    let commits = number(&notes, ACKNOWLEDGED_AT);
    println!("{commits} commits, {owners_killed} owners and {readers_killed} readers killed");
    println!("trees read whole: {} at once, {} with pauses", total(0), total(1));
    // In the end there is one commit, in all files.
    let reader = Reader::open(dir.path().join("store")).unwrap();
    let n = shown(&reader.snapshot().unwrap()).unwrap();
    assert!(n >= commits && n <= number(&notes, BEGUN_AT));
}
