//! Processes that commit through mappings are killed by SIGKILL at random moments, over and over. The stores of each
//! commit depend only on the seed and its number, so the parent knows the file byte for byte: it has the last
//! acknowledged commit or the one after it, complete, and no uncommitted stores.

mod common;

use common::child_process::path_text;
use common::*;
use fastrand::Rng;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use untorn::{Map, MapOptions, Store, StoreOptions, TrackerKind};

const TEST: &str = "mapped_commits_survive_sigkill_whole";
const CHILD: &str = "UNTORN_TEST_STRESS_MAP";
const DURATION: Duration = Duration::from_secs(7);
const FILE_BYTES: usize = 1 << 20;
const FILE_BYTES_MIN: usize = 100_000;

/// The changes of commit number `n`.
struct Commit {
    size: usize,
    /// Offset and bytes; the last store has the commit's number, at offset 0.
    stores: Vec<(usize, Vec<u8>)>,
    /// Every few commits, the file is also written through the file interface.
    by_file: bool,
}

fn commit(seed: u64, n: u64) -> Commit {
    let rng = &mut Rng::with_seed(seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let size = if rng.u8(..4) == 0 { rng.usize(FILE_BYTES_MIN..FILE_BYTES) } else { 0 };
    let end = if size == 0 { FILE_BYTES_MIN } else { size };
    let mut stores: Vec<_> = (0..rng.usize(1..40))
        .map(|_| {
            let len = if rng.u8(..20) == 0 { 20_000 } else { rng.usize(1..200) };
            let salt = rng.u8(..);
            let bytes = (0..len).map(|i| (n as u8).wrapping_add(salt).wrapping_add((i / 8) as u8)).collect();
            (rng.usize(8..end - len), bytes)
        })
        .collect();
    stores.push((0, n.to_le_bytes().to_vec()));
    Commit { size, stores, by_file: n.is_multiple_of(7) }
}

fn apply(model: &mut Vec<u8>, commit: &Commit) {
    if commit.size > 0 {
        model.resize(commit.size, 0);
    }
    for (offset, bytes) in &commit.stores {
        model[*offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

fn options() -> StoreOptions {
    StoreOptions::new().create(true).journal_bytes(256 << 10)
}

fn poke(map: &Map, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= map.len() as usize);
    // SAFETY: inside the map, and this process has one thread that stores.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_mut_ptr().add(offset), bytes.len()) };
    if map.tracker().expect("a map") == TrackerKind::Explicit {
        map.mark_dirty(map.as_ptr().wrapping_add(offset), bytes.len()).expect("bytes of the map");
    }
}

/// In the second process: commits as fast as possible, and prints each commit that is acknowledged.
fn commit_until_killed(path: &Path, seed: u64, tracker: TrackerKind) {
    let store = options().open(path).expect("open");
    let file = store.open_or_create_file("f").expect("file");
    if file.len().expect("size") == 0 {
        file.set_len(FILE_BYTES_MIN as u64).expect("size");
        file.commit().expect("commit");
    }
    let map = file.map_with(&MapOptions::new().tracker(tracker).quiet(seed.is_multiple_of(2))).expect("map");
    let mut stamp = [0; 8];
    map.load(&mut stamp, 0).expect("load");
    let mut n = u64::from_le_bytes(stamp);
    let mut out = std::io::stdout();
    loop {
        n += 1;
        let next = commit(seed, n);
        if n.is_multiple_of(11) {
            // Stored, and never committed.
            poke(&map, 50_000, &[0xdd; 3000]);
            map.rollback().expect("rollback");
        }
        if next.size > 0 {
            map.resize(next.size as u64).expect("resize");
        }
        for (offset, bytes) in &next.stores {
            match next.by_file {
                true => file.write_all_at(bytes, *offset as u64).expect("write"),
                false => poke(&map, *offset, bytes),
            }
        }
        match n % 5 {
            0 => map.msync_async().expect("msync").wait().expect("durable"),
            1 => store.syncv(&[&file]).expect("syncv"),
            _ => map.msync().expect("msync"),
        }
        writeln!(out, "ack {n}").expect("the parent is gone");
        if n.is_multiple_of(61) {
            map.reclaim().expect("quiesce");
        }
    }
}

fn verify(store: &Store, seed: u64, model: &mut Vec<u8>, verified: &mut u64, acknowledged: u64) {
    let Ok(file) = store.open_file("f") else { return assert_eq!(acknowledged, 0) };
    let found = contents(&file);
    if found.is_empty() {
        return assert_eq!(acknowledged, 0);
    }
    let n = u64::from_le_bytes(found[..8].try_into().expect("8 bytes"));
    assert!(n >= acknowledged, "seed {seed}: commit {acknowledged} was acknowledged, and is lost: {n}");
    assert!(n >= *verified, "seed {seed}: commit {verified} was here before: {n}");
    model.resize(model.len().max(FILE_BYTES_MIN), 0);
    for n in *verified + 1..=n {
        apply(model, &commit(seed, n));
    }
    *verified = n;
    assert_same(&found, model, &format!("seed {seed}, commit {n}"));
}

#[test]
fn mapped_commits_survive_sigkill_whole() {
    if let Ok(order) = std::env::var(CHILD) {
        let mut words = order.splitn(3, ' ');
        let mut word = || words.next().expect("seed, tracker, path");
        let seed = word().parse().expect("a seed");
        let tracker = match word() {
            "scan" => TrackerKind::Scan,
            "explicit" => TrackerKind::Explicit,
            _ => TrackerKind::PageMap,
        };
        return commit_until_killed(Path::new(word()), seed, tracker);
    }
    let seed = seed();
    let probe = directory();
    let probe = untorn::File::open_or_create(probe.path().join("probe")).expect("create");
    let works = |tracker: &TrackerKind| match probe.map_with(&MapOptions::new().tracker(*tracker)) {
        Err(e) if e.kind() == "unsupported" => {
            skipped(&format!("tracker {tracker}: {e}"));
            false
        }
        mapped => {
            mapped.expect("map");
            true
        }
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (i, tracker) in
            [TrackerKind::Scan, TrackerKind::PageMap, TrackerKind::Explicit].into_iter().filter(works).enumerate()
        {
            scope.spawn(move || {
                let (seed, dir) = (seed * 2 + i as u64, directory());
                let rng = &mut Rng::with_seed(seed);
                let (mut model, mut verified, mut kills) = (Vec::new(), 0, 0);
                // At least this long, and until enough has happened to prove something.
                while start.elapsed() < DURATION || kills < 10 || verified < 50 {
                    // Longer on machines where starting takes longer.
                    let slow = if verified < 50 { 1 + kills / 30 } else { 1 };
                    let after = Duration::from_micros(rng.u64(5_000..120_000) * slow as u64);
                    let order = format!("{seed} {tracker} {}", path_text(dir.path()));
                    let acknowledged =
                        untorn_testkit::run_and_kill(untorn_testkit::again!(TEST).env(CHILD, order), after);
                    kills += 1;
                    let store = options().open(dir.path()).expect("recovery");
                    verify(&store, seed, &mut model, &mut verified, acknowledged);
                    if kills % 2 == 0 && verified > 0 {
                        store.close().expect("close");
                        assert_same(&plain(dir.path().join("f")), &model, &format!("seed {seed}, the plain file"));
                    }
                }
                println!("{tracker}: {kills} kills, {verified} commits");
            });
        }
    });
}
