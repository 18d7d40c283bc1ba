//! Sections of live heaps on several locks: after a kill each is there completely or not at all, together with the
//! sections that have seen its changes.

mod common;

use common::child_process::{killed_after_pause, kills, output_after};
use common::stepping::{killed_after, killed_when, stop, traced};
use common::*;
use fastrand::Rng;
use std::alloc::Layout;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;
use untorn::__private::section_hooks;
use untorn::heap::{Cuts, Heap, HeapOptions, HeapVec, LiveStart, SectionLock, Storable};
use untorn::offline;

const MODE: &str = "UNTORN_TEST_SECTIONS";
const PLACE: &str = "UNTORN_TEST_PLACE";
/// Set: the child makes cuts all the time.
const CUTS: &str = "UNTORN_TEST_SECTION_CUTS";
const THREADS: &str = "UNTORN_TEST_THREADS";
const LIMIT: Duration = Duration::from_secs(60);
const CELLS: usize = 12;
const THREADS_MOST: usize = 4;

fn live() -> HeapOptions {
    HeapOptions::new().create(true).live(true).address_space(256 << 20)
}

fn child(mode: &str, place: &Path, threads: usize) -> Command {
    let mut command = untorn_testkit::again!("sections_child");
    command.env(MODE, mode).env(PLACE, place).env(THREADS, threads.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// The data that the children change.
#[derive(Storable)]
#[repr(C)]
struct Table<'h> {
    locks: [SectionLock; CELLS],
    cells: [i64; CELLS],
    /// For each thread, the sections that it has begun, and those that it has ended.
    begun: [u64; THREADS_MOST],
    ended: [u64; THREADS_MOST],
    /// Changed under the lock of the first cell.
    journal: HeapVec<'h, (u64, u64)>,
    boxes: [Option<HeapVec<'h, u64>>; CELLS],
    /// The counters of the mode `counters`.
    before: [u64; THREADS_MOST],
    values: [u64; CELLS],
    after: [u64; THREADS_MOST],
}

fn table(heap: &Heap) -> NonNull<Table<'_>> {
    let table = heap.root_or("table", |alloc| Table {
        locks: [const { SectionLock::new() }; CELLS],
        cells: [0; CELLS],
        begun: [0; THREADS_MOST],
        ended: [0; THREADS_MOST],
        journal: HeapVec::new_in(alloc),
        boxes: [const { None }; CELLS],
        before: [0; THREADS_MOST],
        values: [0; CELLS],
        after: [0; THREADS_MOST],
    });
    table.unwrap()
}

/// A place in the table; a thread that has the lock of the place may change it.
macro_rules! at {
    ($table:expr, $($place:tt)+) => {
        // SAFETY: the lock of the place is this thread's.
        unsafe { &mut (*$table.as_ptr()).$($place)+ }
    };
}

/// In a second process: runs the mode in the environment, until it is killed.
#[test]
fn sections_child() {
    let Some(mode) = std::env::var_os(MODE) else { return };
    let place = PathBuf::from(std::env::var_os(PLACE).expect("a place"));
    let threads = std::env::var(THREADS).expect("threads").parse().expect("a number");
    let heap = match std::env::var_os(CUTS) {
        Some(_) => live().cut_every(Duration::from_millis(1)).open(&place).unwrap(),
        None => live().open(&place).unwrap(),
    };
    let table = table(&heap).as_ptr().expose_provenance();
    let work = match mode.to_str().expect("a mode") {
        "ring" => ring,
        "pairs" => pairs,
        "counters" => counters,
        "steps" => return steps(&heap),
        "first use" => return first_use(&heap),
        other => panic!("{other}"),
    };
    println!("\nready");
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let heap = &heap;
            scope.spawn(move || {
                let table = NonNull::new(std::ptr::with_exposed_provenance_mut(table)).expect("an address");
                let rng = &mut Rng::new();
                loop {
                    let done = work(heap, table, thread, rng);
                    // Prints rarely, so that the threads are mostly in sections.
                    if done % 16 == 0 {
                        println!("did {thread} {done}");
                    }
                }
            });
        }
    });
}

/// Moves cents from cell to cell, and takes the next lock before it gives the last one back; the sum of the cells
/// stays.
fn ring(heap: &Heap, table: NonNull<Table<'_>>, thread: usize, rng: &mut Rng) -> u64 {
    // SAFETY: locks, which anybody may use.
    let locks = unsafe { &(*table.as_ptr()).locks };
    let mut cell = rng.usize(..CELLS);
    let mut section = heap.section_with(&locks[cell]).unwrap();
    *section.modify(at!(table, begun[thread])).unwrap() += 1;
    for _ in 0..rng.usize(1..2 * CELLS) {
        let cents = rng.i64(1..100);
        *section.modify(at!(table, cells[cell])).unwrap() -= cents;
        if rng.u32(..4) == 0 {
            let kept = section.modify(at!(table, boxes[cell])).unwrap();
            match kept {
                Some(_) => *kept = None,
                None => {
                    let mut made = HeapVec::new_in(heap.allocator());
                    made.extend(0..rng.u64(1..400));
                    *kept = Some(made);
                }
            }
        }
        if cell == 0 {
            let journal = section.modify(at!(table, journal)).unwrap();
            if journal.len() > 200 {
                *journal = HeapVec::new_in(heap.allocator());
            }
            journal.push((thread as u64, cents as u64));
        }
        let next = (cell + 1) % CELLS;
        let ahead = heap.section_with(&locks[next]).unwrap();
        // Gives the previous lock back; the next holder sees the changes of this section.
        section = ahead;
        *section.modify(at!(table, cells[next])).unwrap() += cents;
        cell = next;
    }
    let ended = section.modify(at!(table, ended[thread])).unwrap();
    *ended += 1;
    *ended
}

/// Moves cents between the two cells of a pair under one lock, the most common kind of section.
fn pairs(heap: &Heap, table: NonNull<Table<'_>>, thread: usize, rng: &mut Rng) -> u64 {
    // SAFETY: locks, which anybody may use.
    let locks = unsafe { &(*table.as_ptr()).locks };
    let (pair, cents) = (rng.usize(..CELLS / 2), rng.i64(1..100));
    let section = heap.section_with(&locks[pair]).unwrap();
    *section.modify(at!(table, begun[thread])).unwrap() += 1;
    *section.modify(at!(table, cells[2 * pair])).unwrap() -= cents;
    // Sometimes a section that aborts, or that frees a block at its end.
    if rng.u32(..16) == 0 {
        // SAFETY: nothing that was allocated is used any more.
        unsafe { section.abort() }.unwrap();
        *section.modify(at!(table, begun[thread])).unwrap() += 1;
        *section.modify(at!(table, cells[2 * pair])).unwrap() -= cents;
    }
    if rng.u32(..16) == 0 {
        let kept = section.modify(at!(table, boxes[pair])).unwrap();
        let mut made = HeapVec::new_in(heap.allocator());
        made.extend(0..rng.u64(1..400));
        *kept = Some(made);
    }
    *section.modify(at!(table, cells[2 * pair + 1])).unwrap() += cents;
    let ended = section.modify(at!(table, ended[thread])).unwrap();
    *ended += 1;
    *ended
}

/// Makes each step a section: one counter, a value, the other counter.
fn counters(heap: &Heap, table: NonNull<Table<'_>>, thread: usize, rng: &mut Rng) -> u64 {
    // SAFETY: locks, which anybody may use.
    let locks = unsafe { &(*table.as_ptr()).locks };
    let cell = rng.usize(THREADS_MOST..CELLS);
    {
        let section = heap.section_with(&locks[thread]).unwrap();
        *section.modify(at!(table, before[thread])).unwrap() += 1;
    }
    {
        let section = heap.section_with(&locks[cell]).unwrap();
        *section.modify(at!(table, values[cell])).unwrap() += 1;
    }
    let section = heap.section_with(&locks[thread]).unwrap();
    let after = section.modify(at!(table, after[thread])).unwrap();
    *after += 1;
    *after
}

/// Checks the table, and returns the number of sections that it has. Before the first cut there is no table.
fn check(heap: &Heap, mode: &str, acknowledged: &[u64], what: &str) -> u64 {
    let Some(table) = heap.root::<Table<'_>>("table").unwrap() else {
        assert!(acknowledged.iter().all(|told| *told == 0), "{what}: {acknowledged:?}");
        return 0;
    };
    // SAFETY: nobody else uses it.
    let table = unsafe { table.as_ref() };
    match mode {
        "ring" | "pairs" => {
            let of_pairs = table.cells.chunks(2).map(|pair| pair.iter().sum::<i64>());
            assert!(mode == "ring" || of_pairs.clone().all(|sum| sum == 0), "{what}: {:?}", table.cells);
            assert_eq!(of_pairs.sum::<i64>(), 0, "{what}: {:?}", table.cells);
            assert_eq!(table.begun, table.ended, "{what}");
            assert!(
                table.ended.iter().zip(acknowledged).all(|(ended, told)| ended >= told),
                "{what}: {acknowledged:?}"
            );
            for kept in table.boxes.iter().flatten() {
                assert!(kept.iter().copied().eq(0..kept.len() as u64), "{what}");
            }
            table.ended.iter().sum()
        }
        _ => {
            let (before, after) = (&table.before, &table.after);
            assert!(before.iter().zip(after).all(|(before, after)| (*after..=after + 1).contains(before)), "{what}");
            let sums = [after.iter().sum::<u64>(), table.values.iter().sum(), before.iter().sum()];
            assert!(sums.is_sorted(), "{what}: {sums:?}");
            assert!(after.iter().zip(acknowledged).all(|(after, told)| after >= told), "{what}");
            sums[0]
        }
    }
}

/// Sets the counters back, as if no unfinished step had begun.
fn repair(heap: &Heap) {
    let Some(table) = heap.root::<Table<'_>>("table").unwrap() else { return };
    let all = heap.section().unwrap();
    // SAFETY: nobody else uses it.
    let Table { before, values, after, .. } = unsafe { &mut *table.as_ptr() };
    all.modify(before).unwrap().copy_from_slice(after);
    *all.modify(values).unwrap() = [0; CELLS];
    values[0] = after.iter().sum();
}

/// How a child ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Crash {
    Kill,
    /// During cuts: only the last cut is left.
    PowerCut,
}

/// The call that registers a process for barriers takes 10 to 20 ms in one with several threads.
#[test]
fn the_first_section_does_not_wait_for_the_kernel() {
    if !untorn_testkit::is_alone!("the_first_section_does_not_wait_for_the_kernel") {
        return;
    }
    let dir = directory();
    let heap = live().open(dir.path().join("heap")).unwrap();
    let cell = heap.root_or("cell", |_| 0u64).unwrap();
    forbid_call(libc::SYS_membarrier, libc::SECCOMP_RET_KILL_PROCESS);
    let section = heap.section().unwrap();
    // SAFETY: nobody else uses it.
    *section.modify(unsafe { &mut *cell.as_ptr() }).unwrap() += 1;
    drop(section);
    // Without a commit, which makes the other threads pay.
    std::mem::forget(heap);
}

/// Starts a child repeatedly, and kills it or cuts the power.
fn kill_again_and_again(mode: &str, threads: usize, crash: Crash) {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let path = dir.path().join("heap");
    let mut acknowledged = [0; THREADS_MOST];
    let (mut kept, mut undone, mut cascaded) = (0, 0, 0);
    let rounds = kills(25);
    for round in 0.. {
        // More than these only until a kill has hit what the test is about.
        let was_hit = crash == Crash::PowerCut || undone > 0 && (cascaded > 0 || mode != "ring");
        if round >= rounds && kept > 0 && was_hit {
            break;
        }
        assert!(round < 200 + rounds, "{kept} sections kept, {undone} undone, {cascaded} with them");
        let mut command = child(mode, &path, threads);
        if crash == Crash::PowerCut {
            command.env(CUTS, "1");
        }
        let mut child = command.spawn().unwrap();
        let out = output_after(&mut child, "ready", &format!("seed {seed}, round {round}"));
        let pause = Duration::from_micros(rng.u64(..if crash == Crash::Kill { 6000 } else { 40_000 }));
        let told = killed_after_pause(child, out, pause);
        // If locks are given back early, an ended section that was acknowledged need not be stable yet.
        for (thread, done) in told.into_iter().filter(|_| mode == "counters") {
            acknowledged[thread] = done;
        }
        let what = format!("{mode}, {threads} threads, {crash:?}, seed {seed}, round {round}");
        if crash == Crash::PowerCut {
            acknowledged = [0; THREADS_MOST];
            for memory in offline::inspect(&path).unwrap().live_memory {
                fs::remove_file(memory.memory).unwrap();
            }
        }
        let heap = live().open(&path).unwrap();
        let report = heap.live().unwrap();
        assert_eq!(report.start == LiveStart::WentOn, crash == Crash::Kill, "{what}: {:?}", report.start);
        (undone, cascaded) = (undone + report.undone, cascaded + report.cascaded);
        kept = check(&heap, mode, &acknowledged, &what);
        let report = heap.check(&|_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
        let leaked = report.leaks.as_ref().unwrap().count;
        assert!(leaked <= 2 * threads as u64, "{what}: {leaked} leaks");
        // SAFETY: nobody has a pointer to the leaked blocks.
        unsafe { heap.collect(&|_, _| {}) }.unwrap();
        repair(&heap);
        drop(heap);
    }
    println!(
        "{mode}, {threads} threads, {crash:?}, seed {seed}: {rounds} kills, {kept} sections kept, {undone} undone, \
         {cascaded} with them"
    );
    offline::eject(&path, &|_, _| {}).unwrap();
}

#[test]
fn hand_over_hand_is_all_or_nothing() {
    kill_again_and_again("ring", 2, Crash::Kill);
    kill_again_and_again("ring", THREADS_MOST, Crash::Kill);
    kill_again_and_again("ring", THREADS_MOST, Crash::PowerCut);
}

#[test]
fn sections_of_one_lock_are_all_or_nothing() {
    kill_again_and_again("pairs", 1, Crash::Kill);
    kill_again_and_again("pairs", THREADS_MOST, Crash::Kill);
    kill_again_and_again("pairs", THREADS_MOST, Crash::PowerCut);
}

#[test]
fn counters_never_overtake_each_other() {
    kill_again_and_again("counters", 2, Crash::Kill);
    kill_again_and_again("counters", THREADS_MOST, Crash::Kill);
    kill_again_and_again("counters", THREADS_MOST, Crash::PowerCut);
}

/// A named number in the heap.
fn number<'h>(heap: &'h Heap, name: &str) -> &'h AtomicU64 {
    let root = heap.root_or(name, |_| AtomicU64::new(0)).unwrap();
    // SAFETY: a root of this type, which is only used as an atomic.
    unsafe { root.as_ref() }
}

fn set(heap: &Heap, name: &str, to: u64) {
    let number = number(heap, name);
    // SAFETY: in the heap, and nobody else changes it.
    unsafe { section_hooks::log(std::ptr::from_ref(number).expose_provenance(), 8) };
    number.store(to, Relaxed);
}

/// A section that has seen changes of another section becomes stable with that one, even if each has seen the other.
#[test]
fn sections_that_saw_each_other_become_stable_together() {
    let dir = directory();
    let heap = &live().open(dir.path().join("heap")).unwrap();
    let locks: &[SectionLock; 4] = &[const { SectionLock::new() }; 4];
    let stable = Arc::new(AtomicUsize::new(0));
    let note = |bit: usize| {
        let stable = stable.clone();
        heap.on_stable(move || _ = stable.fetch_or(bit, SeqCst)).unwrap();
    };
    for circle in [false, true] {
        stable.store(0, SeqCst);
        std::thread::scope(|scope| {
            let (to_second, first_says) = mpsc::channel();
            let (to_first, second_says) = mpsc::channel();
            let (note, stable) = (&note, &stable);
            scope.spawn(move || {
                let outer = heap.section_with(&locks[0]).unwrap();
                note(1);
                drop(heap.section_with(&locks[1]).unwrap());
                to_second.send(()).unwrap();
                second_says.recv().unwrap();
                // The other section has ended, or goes on and has given back a lock that this one takes.
                assert_eq!(stable.load(SeqCst), 0);
                if circle {
                    drop(heap.section_with(&locks[2]).unwrap());
                }
                drop(outer);
                assert_eq!(stable.load(SeqCst), if circle { 0 } else { 7 });
                to_second.send(()).unwrap();
            });
            scope.spawn(move || {
                first_says.recv().unwrap();
                let outer = heap.section_with(&locks[3]).unwrap();
                note(2);
                drop(heap.section_with(&locks[1]).unwrap());
                drop(heap.section_with(&locks[2]).unwrap());
                if circle {
                    to_first.send(()).unwrap();
                    first_says.recv().unwrap();
                }
                drop(outer);
                note(4);
                if !circle {
                    to_first.send(()).unwrap();
                    first_says.recv().unwrap();
                }
                assert_eq!(stable.load(SeqCst), 7);
            });
        });
    }
    let told = stable.clone();
    heap.on_stable(move || told.store(99, SeqCst)).unwrap();
    assert_eq!(stable.load(SeqCst), 99, "nothing waits");
}

#[test]
fn an_aborted_section_has_changed_nothing() {
    let dir = directory();
    let heap = live().open(dir.path().join("heap")).unwrap();
    let (lock, other) = (SectionLock::new(), SectionLock::new());
    set(&heap, "n", 1);
    let before = heap.stats().unwrap().allocations;
    let kept = heap.allocate(Layout::new::<[u64; 50]>()).unwrap();
    {
        let section = heap.section_with(&lock).unwrap();
        set(&heap, "n", 2);
        heap.allocate(Layout::new::<[u64; 100]>()).unwrap();
        // SAFETY: nobody uses it; if the section is aborted, the block stays allocated.
        unsafe { heap.free(kept) }.unwrap();
        // SAFETY: nothing of the section is used.
        unsafe { section.abort() }.unwrap();
        assert_eq!(number(&heap, "n").load(Relaxed), 1);
        set(&heap, "n", 3);
    }
    assert_eq!(number(&heap, "n").load(Relaxed), 3);
    assert!(heap.size_of(kept).is_ok());
    assert_eq!(heap.stats().unwrap().allocations, before + 1);
    let section = heap.section_with(&lock).unwrap();
    set(&heap, "n", 4);
    drop(heap.section_with(&other).unwrap());
    // SAFETY: as above.
    refused(unsafe { section.abort() }, &["invalid"]);
    assert_eq!(number(&heap, "n").load(Relaxed), 4);
    refused(heap.commit(), &["invalid"]);
    drop(section);
    heap.commit().unwrap();
    let elsewhere = live().open(dir.path().join("other")).unwrap();
    refused(elsewhere.section_with(&lock).map(drop), &["invalid"]);
    let _one = heap.section_with(&lock).unwrap();
    refused(elsewhere.section().map(drop), &["invalid"]);
}

/// Blocks of the part of a section that was aborted are free when the section has ended, also if it aborts again.
#[test]
fn a_section_that_aborts_twice_keeps_no_block() {
    let dir = directory();
    let heap = live().open(dir.path().join("heap")).unwrap();
    let before = heap.stats().unwrap().allocations;
    for aborts in 0..4 {
        let section = heap.section().unwrap();
        for _ in 0..aborts {
            heap.allocate(Layout::new::<[u64; 100]>()).unwrap();
            heap.allocate(Layout::new::<[u64; 1_000_000]>()).unwrap();
            // SAFETY: nothing of the section is used.
            unsafe { section.abort() }.unwrap();
        }
        drop(section);
        assert_eq!(heap.stats().unwrap().allocations, before, "{aborts} aborts");
    }
}

/// A section that aborts keeps its dependencies: its later changes are undone together with the other section.
#[test]
fn an_aborted_section_still_depends_on_what_it_saw() {
    let dir = directory();
    let path = dir.path().join("heap");
    let locks = [SectionLock::new(), SectionLock::new()];
    {
        let heap = &live().open(&path).unwrap();
        let _made = ["seen", "own"].map(|name| number(heap, name));
        let in_thread = |work: &(dyn Fn() + Sync)| std::thread::scope(|scope| scope.spawn(work).join().unwrap());
        in_thread(&|| {
            let goes_on = heap.section_with(&locks[0]).unwrap();
            let given_back = heap.section_with(&locks[1]).unwrap();
            set(heap, "seen", 1);
            drop(given_back);
            std::mem::forget(goes_on);
        });
        in_thread(&|| {
            let section = heap.section_with(&locks[1]).unwrap();
            set(heap, "own", number(heap, "seen").load(Relaxed));
            // SAFETY: nothing of the section is used.
            unsafe { section.abort() }.unwrap();
            set(heap, "own", number(heap, "seen").load(Relaxed));
        });
        assert_eq!(["seen", "own"].map(|name| number(heap, name).load(Relaxed)), [1, 1]);
    }
    let heap = live().open(&path).unwrap();
    let report = heap.live().unwrap();
    assert_eq!((report.start, report.undone, report.cascaded), (LiveStart::WentOn, 1, 1));
    assert_eq!(["seen", "own"].map(|name| number(&heap, name).load(Relaxed)), [0, 0]);
}

/// Leaves a heap as after a kill in a section that has done `work`.
fn left_within(path: &Path, work: impl FnOnce(&Heap) + Send) {
    std::thread::scope(|scope| {
        let left = scope.spawn(|| {
            let heap = live().open(path).unwrap();
            set(&heap, "n", 1);
            heap.commit().unwrap();
            set(&heap, "n", 2);
            std::mem::forget(heap.section().unwrap());
            work(&heap);
        });
        left.join().unwrap();
    });
}

/// A section with more changes than its log holds: after a kill the heap is at its last cut, with no half-done change.
#[test]
fn a_section_that_is_larger_than_its_log_is_as_a_change_under_a_guard() {
    let dir = directory();
    for (stores, wanted) in [(1_000, 2), (70_000, 1)] {
        let path = dir.path().join(format!("heap{stores}"));
        left_within(&path, |heap| {
            let block = heap.allocate(Layout::new::<[u64; 70_000]>()).unwrap().cast::<u64>();
            set(heap, "n", 3);
            for at in 0..stores {
                // SAFETY: within the block.
                unsafe {
                    section_hooks::log(block.add(at).as_ptr().expose_provenance(), 8);
                    block.add(at).write(at as u64);
                }
            }
        });
        let heap = live().open(&path).unwrap();
        let start = heap.live().unwrap().start;
        assert_eq!(number(&heap, "n").load(Relaxed), wanted, "{stores} stores: {start:?}");
        assert_eq!(start == LiveStart::WentOn, stores == 1_000, "{start:?}");
        assert_eq!(heap.stats().unwrap().allocations, 1, "what the section allocated is free");
        heap.close().unwrap();
    }
    // Once such a section has ended, it has happened.
    let path = dir.path().join("ended");
    let heap = live().open(&path).unwrap();
    let block = heap.allocate(Layout::new::<[u64; 200_000]>()).unwrap().cast::<u64>();
    set(&heap, "n", 1);
    {
        let _section = heap.section().unwrap();
        set(&heap, "n", 3);
        for at in 0..200_000 {
            // SAFETY: within the block.
            unsafe { section_hooks::log(block.add(at).as_ptr().expose_provenance(), 8) };
        }
    }
    drop(heap);
    let heap = live().open(&path).unwrap();
    assert_eq!((heap.live().unwrap().start, number(&heap, "n").load(Relaxed)), (LiveStart::WentOn, 3));
}

/// More threads than logs: threads without one are protected like changes under a guard.
#[test]
fn any_number_of_threads_has_sections() {
    const MANY: usize = 80;
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = &live().open(&path).unwrap();
    number(heap, "n");
    let locks: Vec<SectionLock> = (0..MANY).map(|_| SectionLock::new()).collect();
    let (all_in, shared) = (Barrier::new(MANY), SectionLock::new());
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for lock in &locks {
                let (all_in, shared) = (&all_in, &shared);
                scope.spawn(move || {
                    let _section = heap.section_with(lock).unwrap();
                    all_in.wait();
                    let _inner = heap.section_with(shared).unwrap();
                    set(heap, "n", number(heap, "n").load(Relaxed) + 1);
                });
            }
        });
        heap.commit().unwrap();
    }
    assert_eq!(number(heap, "n").load(Relaxed), 2 * MANY as u64);
    set(heap, "n", 7);
    drop((heap.clone(), locks));
}

/// The state of a thread's last section is not taken for that of another heap or of an earlier opening.
#[test]
fn sections_of_several_heaps_take_turns() {
    let dir = directory();
    let paths = [dir.path().join("one"), dir.path().join("other")];
    let locks: [SectionLock; 2] = [const { SectionLock::new() }; 2];
    for round in 1..=2 {
        let heaps = paths.each_ref().map(|path| live().open(path).unwrap());
        for (heap, lock) in heaps.iter().zip(&locks) {
            lock.set_heap(heap.downgrade()).unwrap();
            number(heap, "a");
            number(heap, "b");
        }
        // Also more sections than the epochs of the filter can count.
        for (heap, times) in [(0, 3), (1, 3), (0, 1), (1, 5000), (0, 5000)] {
            for n in 0..times {
                locks[heap].lock().unwrap();
                assert!(locks[1 - heap].lock().is_err(), "a thread is in a section of one heap at a time");
                set(&heaps[heap], "a", n);
                set(&heaps[heap], "b", n);
                locks[heap].unlock().unwrap();
                assert!(locks[heap].unlock().is_err(), "nobody has it");
            }
        }
        for heap in heaps {
            assert_eq!(number(&heap, "a").load(Relaxed), 4999, "round {round}");
            heap.close().unwrap();
        }
    }
}

/// A cut waits for sections, and sections for the cut, without a deadlock.
#[test]
fn cuts_and_sections_take_turns() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = live().cut_every(Duration::from_millis(1)).open(&path).unwrap();
    let locks: [SectionLock; 2] = [const { SectionLock::new() }; 2];
    let before = heap.file().store().status().commits;
    let _made = ["a", "b"].map(|name| number(&heap, name).load(Relaxed));
    within(LIMIT, "sections and cuts", move || {
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (heap, locks) = (&heap, &locks);
                scope.spawn(move || {
                    for round in 0..2000 {
                        // Sections within a guard, or with a guard in them.
                        let _outer = (thread == 0).then(|| heap.mutate());
                        let _one = heap.section_with(&locks[0]).unwrap();
                        let _inner = (thread == 1).then(|| heap.mutate());
                        let _two = heap.section_with(&locks[1]).unwrap();
                        set(heap, "a", round);
                        set(heap, "b", round);
                    }
                });
            }
        });
        eventually(LIMIT, "cuts", || {
            let _section = heap.section().unwrap();
            set(&heap, "a", 1);
            set(&heap, "b", 1);
            heap.file().store().status().commits > before + 2
        });
        heap.close().unwrap();
    });
    let heap = Heap::open(&path).unwrap();
    assert_eq!(number(&heap, "a").load(Relaxed), number(&heap, "b").load(Relaxed));
}

/// Two threads take turns, between two stops: the first gives a lock back early, the second takes it and ends.
fn steps(heap: &Heap) {
    let table = table(heap);
    let rng = &mut Rng::with_seed(3);
    (0..2).for_each(|_| _ = ring(heap, table, 0, rng));
    traced();
    // The first section after the ring looks for the thread's state; the others use the fast path.
    (0..3).for_each(|_| _ = pairs(heap, table, 2, rng));
    ring(heap, table, 1, rng);
    stop();
}

/// Sections of one lock, with early releases, allocations and frees, killed after a number of instructions; some
/// numbers are chosen.
#[test]
fn a_kill_at_any_instruction_leaves_sections_on_several_locks_whole() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let path = dir.path().join("heap");
    let Some(all) = killed_after(&mut child("steps", &path, 1), u64::MAX) else {
        return skipped("cannot trace a child here");
    };
    drop(live().open(&path).unwrap().close());
    let (rounds, mut ended) = (kills(10), 0);
    for round in 0..rounds {
        let path = dir.path().join(format!("heap{round}"));
        let at = (all * round + rng.u64(..all)) / rounds;
        let what = format!("seed {seed}, killed after {at} of {all} instructions");
        killed_after(&mut child("steps", &path, 1), at);
        let heap = live().open(&path).unwrap();
        assert_eq!(heap.live().unwrap().start, LiveStart::WentOn, "{what}");
        ended = check(&heap, "ring", &[2], &what);
        let report = heap.check(&|_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
        assert!(report.leaks.as_ref().unwrap().count <= 1, "{what}");
        heap.close().unwrap();
        fs::remove_file(&path).unwrap();
    }
    println!("seed {seed}: {rounds} kills within {all} instructions, {ended} sections before the last one");
    assert!(ended > 2);
}

/// A lock in the heap.
fn lock_in(heap: &Heap) -> &SectionLock {
    let lock = heap.root_or("lock", |_| SectionLock::new()).unwrap();
    // SAFETY: a root of this type, which any thread may use.
    unsafe { lock.as_ref() }
}

/// Takes a lock that other processes have used, between two stops.
fn first_use(heap: &Heap) {
    let lock = lock_in(heap);
    println!("\nlock {}", std::ptr::from_ref(lock).addr());
    traced();
    lock.lock().unwrap();
    stop();
}

/// A process that is killed while it takes a lock for the first time, at any instruction, leaves a lock that others can
/// take.
#[test]
fn a_kill_within_the_first_use_of_a_lock_leaves_it_free() {
    const LOCK: usize = size_of::<SectionLock>();
    let dir = directory();
    let path = dir.path().join("heap");
    // The lock was held by a process that is gone.
    {
        let heap = live().open(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| lock_in(&heap).lock().unwrap()).join().unwrap();
        });
    }
    let mut left = BTreeSet::new();
    let mut memory = None;
    let all = killed_when(&mut child("first use", &path, 1), |lines, thread, _| {
        let memory = memory.get_or_insert_with(|| fs::File::open(format!("/proc/{thread}/mem")).unwrap());
        let at = lines.iter().find_map(|line| line.strip_prefix("lock ")).expect("an address").parse().unwrap();
        let mut bytes = [0u8; LOCK];
        memory.read_exact_at(&mut bytes, at).unwrap();
        left.insert(bytes);
        false
    });
    let Some(all) = all else { return skipped("cannot trace a child here") };
    // The states of the lock: unchanged, being reset, and held.
    assert!(left.len() >= 4, "{left:?}");
    println!("{} states of a lock in {all} instructions", left.len());
    for bytes in left {
        {
            let heap = live().open(&path).unwrap();
            let lock = std::ptr::from_ref(lock_in(&heap)).cast::<u8>().cast_mut();
            // SAFETY: bytes that a lock had; nobody else uses the lock at the moment.
            unsafe { lock.copy_from_nonoverlapping(bytes.as_ptr(), LOCK) };
        }
        let path = path.clone();
        within(LIMIT, "taking a lock that a kill has left", move || {
            let heap = live().open(&path).unwrap();
            let lock = lock_in(&heap);
            lock.lock().unwrap();
            assert!(!lock.try_lock().unwrap(), "it is held");
            lock.unlock().unwrap();
        });
    }
}

/// Only one thread at a time has a lock, from its first use on.
#[test]
fn the_first_threads_that_take_a_lock_exclude_each_other() {
    const LOCKS: usize = 100_000;
    let dir = directory();
    let heap = &live().open(dir.path().join("heap")).unwrap();
    let locks: &Vec<SectionLock> = &(0..LOCKS).map(|_| SectionLock::new()).collect();
    let at = &[const { AtomicUsize::new(0) }; 2];
    let inside: &Vec<AtomicUsize> = &(0..LOCKS).map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                for (n, lock) in locks.iter().enumerate() {
                    at[thread].store(n, SeqCst);
                    // At the same time, if the other thread is running.
                    (0..1000).take_while(|_| at[1 - thread].load(SeqCst) < n).for_each(|_| std::hint::spin_loop());
                    let _section = heap.section_with(lock).unwrap();
                    assert_eq!(inside[n].fetch_add(1, SeqCst), 0, "lock {n}");
                    (0..20).for_each(|_| std::hint::spin_loop());
                    inside[n].fetch_sub(1, SeqCst);
                }
            });
        }
    });
}

/// A rollback restores the bytes of locks as of the cut, and nobody holds the locks.
#[test]
fn a_rollback_leaves_locks_free() {
    let dir = directory();
    let heap = live().open(dir.path().join("heap")).unwrap();
    let (own, elsewhere) = (lock_in(&heap), SectionLock::new());
    // Other tests have live heaps open, so the lock must be told its heap.
    elsewhere.set_heap(heap.downgrade()).unwrap();
    set(&heap, "n", 1);
    std::thread::scope(|scope| {
        let (held, is_held) = mpsc::channel();
        let (cut, is_cut) = mpsc::channel();
        let (heap, elsewhere) = (&heap, &elsewhere);
        scope.spawn(move || {
            for lock in [own, elsewhere] {
                lock.lock().unwrap();
            }
            held.send(()).unwrap();
            is_cut.recv().unwrap();
            for lock in [elsewhere, own] {
                lock.unlock().unwrap();
            }
        });
        is_held.recv().unwrap();
        heap.commit().unwrap();
        cut.send(()).unwrap();
    });
    for _ in 0..3 {
        set(&heap, "n", 2);
        // SAFETY: nothing of the heap is used that is newer than its cut.
        unsafe { heap.rollback() }.unwrap();
        assert_eq!(number(&heap, "n").load(Relaxed), 1);
        for lock in [own, &elsewhere] {
            assert!(lock.try_lock().unwrap(), "it is free");
            refused(heap.commit(), &["invalid"]);
            lock.unlock().unwrap();
            refused(lock.unlock(), &["invalid"]);
        }
        heap.commit().unwrap();
    }
}

/// A section could not undo it, because all threads share the table of roots.
#[test]
fn a_root_is_not_set_within_a_section() {
    let dir = directory();
    let heap = live().open(dir.path().join("heap")).unwrap();
    let kept = number(&heap, "kept");
    let allocations = heap.stats().unwrap().allocations;
    {
        let _section = heap.section().unwrap();
        let e = refused(heap.root_or("new", |_| 7u64), &["invalid"]).to_string();
        assert!(e.contains("before the section"), "{e}");
        refused(heap.set_root::<AtomicU64>("new", Some(NonNull::from(kept))), &["invalid"]);
        refused(heap.set_root::<AtomicU64>("kept", None), &["invalid"]);
        assert_eq!(number(&heap, "kept").as_ptr(), kept.as_ptr());
    }
    assert_eq!((heap.roots().len(), heap.stats().unwrap().allocations), (1, allocations));
    heap.root_or("new", |_| 7u64).unwrap();
}

/// A section that has seen changes of an unfinished one is not stable, whatever its thread does later, and whether or
/// not it has a log.
#[test]
fn what_may_be_undone_is_not_told() {
    const LOGS: usize = 64;
    let dir = directory();
    let [heap, other] = ["heap", "other"].map(|name| live().open(dir.path().join(name)).unwrap());
    let (heap, other) = (&heap, &other);
    for without_log in [false, true] {
        let locks: &[SectionLock; 3] = &[const { SectionLock::new() }; 3];
        let told = &Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let (begun, has_begun) = mpsc::channel();
            let (end, ends) = mpsc::channel::<()>();
            scope.spawn(move || {
                let _outer = heap.section_with(&locks[0]).unwrap();
                drop(heap.section_with(&locks[1]).unwrap());
                begun.send(()).unwrap();
                ends.recv().unwrap();
            });
            has_begun.recv().unwrap();
            let all_in = Arc::new(Barrier::new(LOGS));
            let all_out = Arc::new(Barrier::new(LOGS));
            // The other threads take all logs, so this thread gets none.
            let others: Vec<_> = (0..if without_log { LOGS - 1 } else { 0 })
                .map(|_| {
                    let (all_in, all_out) = (all_in.clone(), all_out.clone());
                    scope.spawn(move || {
                        drop(heap.section_with(&SectionLock::new()).unwrap());
                        all_in.wait();
                        all_out.wait();
                    })
                })
                .collect();
            if without_log {
                all_in.wait();
            }
            let note = |bit: usize| {
                let told = told.clone();
                heap.on_stable(move || _ = told.fetch_or(bit, SeqCst)).unwrap();
            };
            scope
                .spawn(move || {
                    drop(heap.section_with(&locks[1]).unwrap());
                    note(1);
                    drop(other.section_with(&locks[2]).unwrap());
                    note(2);
                    drop(heap.section_with(&SectionLock::new()).unwrap());
                    note(4);
                })
                .join()
                .unwrap();
            assert_eq!(told.load(SeqCst), 0, "without a log: {without_log}");
            end.send(()).unwrap();
            eventually(LIMIT, "it is told", || told.load(SeqCst) == 7);
            if without_log {
                all_out.wait();
            }
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }
}

/// A thread that ends within a section does not make others wait for ever: calls that would wait for it are refused,
/// and a rollback undoes the section.
#[test]
fn a_section_whose_thread_is_gone_is_waited_for_by_nobody() {
    let dir = directory();
    for (cuts, stores) in [(Cuts::Stop, 10), (Cuts::Wait, 10), (Cuts::Stop, 70_000)] {
        let what = format!("{cuts:?}, {stores} stores");
        let path = dir.path().join("heap");
        within(LIMIT, "a section that nobody ends", move || {
            let heap = live().cuts(cuts).open(&path).unwrap();
            let lock = SectionLock::new();
            let block = heap.allocate(Layout::new::<[u64; 70_000]>()).unwrap().as_ptr().expose_provenance();
            set(&heap, "n", 1);
            heap.commit().unwrap();
            let leave = || {
                std::thread::scope(|scope| {
                    let leaver = scope.spawn(|| {
                        std::mem::forget(heap.section_with(&lock).unwrap());
                        set(&heap, "n", 2);
                        for at in 0..stores {
                            // SAFETY: within the block.
                            unsafe { section_hooks::log(block + at * 8, 8) };
                        }
                    });
                    leaver.join().unwrap();
                });
            };
            leave();
            let waits = cuts == Cuts::Wait || stores > 10;
            match heap.commit() {
                Ok(()) => assert!(!waits, "{what}"),
                Err(e) => assert!(waits && e.to_string().contains("a thread ended within a section"), "{what}: {e}"),
            }
            refused(heap.check(&|_, _| {}), &["invalid"]);
            // SAFETY: nothing of the heap is used that is newer than its cut.
            unsafe { heap.rollback() }.unwrap();
            assert_eq!(number(&heap, "n").load(Relaxed), 1, "{what}");
            {
                let _section = heap.section_with(&lock).unwrap();
                set(&heap, "n", 3);
            }
            heap.commit().unwrap();
            leave();
            refused(heap.close(), &["invalid"]);
            let heap = live().cuts(cuts).open(&path).unwrap();
            assert_eq!(number(&heap, "n").load(Relaxed), 3, "{what}");
            heap.close().unwrap();
            fs::remove_file(&path).unwrap();
        });
    }
}
