//! A log that is long enough for recovery to read its index: owners are killed with it, again and again, and it is
//! damaged.

mod common;

use common::*;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use untorn::offline::{RecoverOptions, inspect, recover};
use untorn::{Error, Store, StoreOptions};

const PLACE: &str = "UNTORN_TEST_LONG_LOG";
const BLOCKS: u64 = 512;
const BLOCK_BYTES: u64 = 4096;

/// Segments of up to 16 MiB.
fn options() -> StoreOptions {
    StoreOptions::new().create(true).background(false).journal_bytes(64 << 20)
}

fn contents(n: u64) -> Vec<u8> {
    n.to_le_bytes().repeat(BLOCK_BYTES as usize / 8)
}

fn commit(store: &Store, n: u64) {
    let file = store.open_or_create_file("f").unwrap();
    file.write_all_at(&contents(n), n % BLOCKS * BLOCK_BYTES).unwrap();
    match file.commit() {
        // Without a thread of its own, the store makes checkpoints here.
        Err(Error::NoSpace { .. }) => store.checkpoint().and_then(|()| file.commit()).unwrap(),
        done => done.unwrap(),
    }
}

/// In a process of its own: commits from this number on, until it is killed.
#[test]
fn owner() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    let first: u64 = std::env::var("UNTORN_TEST_FIRST").unwrap().parse().unwrap();
    let store = options().open(place).unwrap();
    for n in first.. {
        commit(&store, n);
        writeln!(std::io::stdout(), "committed {n}").unwrap();
    }
}

/// Lets an owner make so many commits from this number on, and kills it. Returns the last one that it told.
fn killed_after(place: &Path, first: u64, commits: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "owner", "--nocapture"])
        .env(PLACE, place)
        .env("UNTORN_TEST_FIRST", first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut told = || loop {
        let line = lines.next()?.ok()?;
        if let Some((_, n)) = line.rsplit_once("committed ") {
            return n.parse::<u64>().ok();
        }
    };
    let mut last = first - 1;
    while last + 1 < first + commits {
        last = told().expect("the owner goes on");
    }
    child.kill().unwrap();
    while let Some(n) = told() {
        last = n;
    }
    child.wait().unwrap();
    last
}

/// Opens the store, and returns it with the bytes of the log that the opening read.
fn open(place: &Path) -> (Store, u64) {
    let read = Arc::new(AtomicU64::new(0));
    let noted = read.clone();
    let store = options()
        .progress(move |_, all| {
            // The first calls are those of the reading.
            let _ = noted.compare_exchange(0, all, Relaxed, Relaxed);
        })
        .open(place)
        .unwrap();
    (store, read.load(Relaxed))
}

/// The number of the newest commit that the file shows, if it shows exactly that one.
fn newest(store: &Store) -> u64 {
    let file = store.open_file("f").unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let numbers: Vec<u64> =
        bytes.chunks(BLOCK_BYTES as usize).map(|block| u64::from_le_bytes(block[..8].try_into().unwrap())).collect();
    let newest = numbers.iter().copied().max().unwrap();
    for (block, n) in (0..).zip(numbers) {
        let expected = (newest + 1).saturating_sub(BLOCKS).max(1)..=newest;
        assert!(
            n == 0 && block == 0 || expected.contains(&n) && n % BLOCKS == block,
            "block {block} has {n} of {newest}"
        );
        let at = (block * BLOCK_BYTES) as usize;
        assert!(n == 0 || bytes[at..at + BLOCK_BYTES as usize] == contents(n), "block {block} of commit {n}");
    }
    newest
}

#[test]
fn killed_owners_of_a_long_log_lose_nothing() {
    let seed = untorn_testkit::seed();
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let dir = directory();
    let mut last = 0;
    let mut indexed = 0;
    for round in 0..6 {
        let told = killed_after(dir.path(), last + 1, rng.u64(1200..3000));
        let log: u64 = std::fs::read_dir(dir.path().join(".untorn/journal"))
            .unwrap()
            .map(Result::unwrap)
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("segment."))
            .map(|entry| entry.metadata().unwrap().len())
            .sum();
        let (store, read) = open(dir.path());
        last = newest(&store);
        assert!(told <= last && last <= told + 1, "round {round}: {last} is shown, and {told} was told");
        println!("round {round}: {read} of {log} bytes of the log were read");
        indexed += u64::from(read < log / 2);
        if rng.bool() {
            store.checkpoint().unwrap();
        }
        store.close().unwrap();
    }
    assert!(indexed >= 3, "the log was read as a whole");
}

/// Damage in the part of the log that an opening takes from the index: one block of one file cannot be read, `check` and
/// `recover` find the damage, and salvage keeps the commits before it.
#[test]
fn damage_in_a_long_log_is_found_where_it_is_read() {
    let dir = directory();
    let last = killed_after(dir.path(), 1, 2000);
    let journal = dir.path().join(".untorn/journal");
    let needle = contents(last - 400);
    let (path, at) = std::fs::read_dir(&journal)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("segment."))
        .find_map(|path| {
            let bytes = std::fs::read(&path).unwrap();
            Some((path, bytes.windows(needle.len()).position(|bytes| bytes == needle)? as u64))
        })
        .expect("the contents of a commit");
    let segment = std::fs::File::options().write(true).open(path).unwrap();
    segment.write_all_at(&[0xff], at + 100).unwrap();
    segment.sync_all().unwrap();
    assert!(!inspect(dir.path()).unwrap().problems.is_empty());
    let (store, _) = open(dir.path());
    let file = store.open_file("f").unwrap();
    let mut block = vec![0; BLOCK_BYTES as usize];
    let read = |n: u64, block: &mut [u8]| file.read_exact_at(block, n % BLOCKS * BLOCK_BYTES);
    assert!(matches!(read(last - 400, &mut block), Err(Error::Corrupt { .. })));
    read(last - 401, &mut block).unwrap();
    assert!(block == contents(last - 401));
    assert!(store.checkpoint().is_err() || !store.status().quarantined.is_empty());
    drop((file, store));
    let refused = recover(dir.path(), &RecoverOptions::default(), &|_, _| ()).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
    recover(dir.path(), &RecoverOptions { salvage: true, ..RecoverOptions::default() }, &|_, _| ()).unwrap();
    let (store, _) = open(dir.path());
    store.open_file("f").unwrap();
}
