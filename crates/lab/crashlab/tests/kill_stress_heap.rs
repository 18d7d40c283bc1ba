//! Processes that change a heap are killed by SIGKILL at random moments, over and over. The changes of each commit
//! depend only on the seed and its number, so the model of any commit can be computed. The heap must have the last
//! acknowledged commit or the one after it, with all structures and pointers, and no other allocation.

use fastrand::Rng;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use untorn::heap::{Heap, HeapMap, HeapOptions, HeapVec, InHeap};
use untorn::{Error, StoreOptions, TrackerKind};
use untorn_crashlab::device::Again;
use untorn_crashlab::heaps::{Change, HeapFixture, HeapModel, blocks_of};
use untorn_testkit::{run_and_kill, test_path, variable_or};

const TEST: &str = "heaps_survive_sigkill_whole";
const CHILD: &str = "UNTORN_TEST_STRESS_HEAP";
const DURATION: Duration = Duration::from_secs(6);

fn open(path: &Path, tracker: TrackerKind) -> Result<Heap, Error> {
    let store = StoreOptions::new().create(true).journal_bytes(256 << 10);
    HeapOptions::new().create(true).store(store).tracker(tracker).dirty_max(1 << 20).open(path)
}

/// The changes of commit number `n`, one after the other.
fn commit(seed: u64, n: u64, model: &mut HeapModel, mut change: impl FnMut(&Change, &HeapModel)) {
    let rng = &mut Rng::with_seed(seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for _ in 0..rng.usize(1..8) {
        let next = model.draw(rng);
        change(&next, model);
        model.apply(&next);
    }
}

/// Advances the model to the state of a heap; returns the number of that commit.
fn follow(seed: u64, mut n: u64, model: &mut HeapModel, serial: u64) -> u64 {
    while model.serial < serial {
        n += 1;
        commit(seed, n, model, |_, _| {});
    }
    assert_eq!(model.serial, serial, "seed {seed}: the heap is between commits {} and {n}", n - 1);
    n
}

/// In the second process: commits as fast as possible, and prints each commit that is acknowledged.
fn commit_until_killed(path: &Path, seed: u64, tracker: TrackerKind) {
    let heap = open(path, tracker).expect("open");
    let fixture = || HeapFixture::of(&heap).expect("the structures");
    let mut model = HeapModel::default();
    let mut n = follow(seed, 0, &mut model, fixture().serial());
    let mut out = std::io::stdout();
    loop {
        n += 1;
        let mut apply = |change: &Change, model: &HeapModel| fixture().apply(change, model).expect("a change");
        if n.is_multiple_of(11) {
            // Made, but never committed.
            commit(!seed, n, &mut model.clone(), &mut apply);
            // SAFETY: nothing that was allocated since is used.
            unsafe { heap.rollback() }.expect("rollback");
        }
        commit(seed, n, &mut model, &mut apply);
        match n % 5 {
            0 => heap.commit_async().expect("commit").wait().expect("durable"),
            _ => heap.commit().expect("commit"),
        }
        writeln!(out, "ack {n}").expect("the parent is gone");
        if n.is_multiple_of(61) {
            // SAFETY: one thread uses the heap.
            unsafe { heap.reclaim() }.expect("quiesce");
        }
    }
}

#[test]
fn heaps_survive_sigkill_whole() {
    if let Ok(order) = std::env::var(CHILD) {
        let mut words = order.splitn(3, ' ');
        let mut word = || words.next().expect("seed, tracker, path");
        let seed = word().parse().expect("a seed");
        let tracker = if word() == "scan" { TrackerKind::Scan } else { TrackerKind::PageMap };
        return commit_until_killed(Path::new(word()), seed, tracker);
    }
    let seed = variable_or("UNTORN_TEST_SEED", 1);
    println!("UNTORN_TEST_SEED={seed}");
    let start = Instant::now();
    let victim = |seed: u64, tracker: TrackerKind| {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let path = dir.path().join("heap");
        match open(&path, tracker).and_then(Heap::close) {
            Err(e) if e.kind() == "unsupported" => return println!("skipped: tracker {tracker}: {e}"),
            opened => opened.expect("a heap"),
        }
        let order = format!("{seed} {tracker} {}", path.display());
        let again = Again::test(&test_path!(TEST)).expect("this program");
        let rng = &mut Rng::with_seed(seed);
        let (mut model, mut verified, mut kills) = (HeapModel::default(), 0, 0u64);
        // At least this long, and until enough has happened to prove something.
        while start.elapsed() < DURATION || kills < 10 || verified < 50 {
            // Longer on machines where starting takes longer.
            let slow = if verified < 50 { 1 + kills / 30 } else { 1 };
            let after = Duration::from_micros(rng.u64(5_000..120_000) * slow);
            let acknowledged = run_and_kill(again.command().env(CHILD, &order), after);
            kills += 1;
            let heap = open(&path, tracker).expect("recovery");
            let (blocks, others) = {
                let fixture = HeapFixture::of(&heap).expect("the structures");
                verified = follow(seed, verified, &mut model, fixture.serial());
                assert!(verified >= acknowledged, "seed {seed}: commit {acknowledged} is lost, {verified} is there");
                fixture.compare(&model).unwrap_or_else(|what| panic!("seed {seed}, commit {verified}: {what}"));
                fixture.allocations()
            };
            if kills.is_multiple_of(2) && verified > 0 {
                heap.close().expect("close");
                let found = blocks_of(&std::fs::read(&path).expect("the file")).expect("a heap");
                let own = |(at, bytes): &(usize, usize)| found.get(at).is_some_and(|found| found >= bytes);
                assert!(blocks.iter().all(own), "seed {seed}, commit {verified}: blocks without allocation");
                assert_eq!(found.len(), blocks.len() + others, "seed {seed}, commit {verified}: allocations");
            }
        }
        println!("{tracker}: {kills} kills, {verified} commits");
    };
    std::thread::scope(|scope| {
        for (i, tracker) in [TrackerKind::Scan, TrackerKind::PageMap].into_iter().enumerate() {
            scope.spawn(move || victim(seed * 2 + i as u64, tracker));
        }
    });
}

type Table<'h> = hashbrown::HashMap<u64, u64, std::hash::BuildHasherDefault<std::hash::DefaultHasher>, InHeap<'h>>;

/// The number of words of a value that may be addresses out of the heap.
fn strangers<T>(heap: &Heap, value: &T) -> usize {
    let (base, len) = heap.memory();
    let own = base.as_ptr() as usize..base.as_ptr() as usize + len;
    // SAFETY: as many words as the value has; the types used here have no padding.
    let words = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<usize>(), size_of::<T>() / 8) };
    words.iter().filter(|word| **word > 1 << 32 && !own.contains(word)).count()
}

/// An empty table without room points to a constant of this process; one that was made with room never does.
#[test]
fn empty_tables_need_room() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let heap = Heap::open_or_create(dir.path().join("heap")).expect("a heap");
    let alloc = heap.allocator();
    assert_eq!(strangers(&heap, &Table::with_hasher_in(Default::default(), alloc)), 1);
    let mut table = Table::with_capacity_and_hasher_in(1, Default::default(), alloc);
    table.insert(1, 2);
    table.clear();
    assert_eq!(strangers(&heap, &table), 0);
    table.shrink_to_fit();
    assert_eq!(strangers(&heap, &table), 1);
    assert_eq!(strangers(&heap, &HeapVec::<u64>::new_in(alloc)), 0);
    assert_eq!(strangers(&heap, &HeapMap::<u64, u64>::new_in(alloc)), 0);
}
