//! Cuts of live heaps at any instruction of threads that store: after a power cut, the heap is in the state that a kill
//! at one moment would have left, repaired.

mod common;

use common::child_process::{kills, output_after, signal_process};
use common::*;
use fastrand::Rng;
use std::alloc::Layout;
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::{NonNull, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc;
use std::time::Duration;
use untorn::__private::section_hooks;
use untorn::heap::{Cuts, Heap, HeapOptions, LiveStart, SectionLock, Storable};

const MODE: &str = "UNTORN_TEST_CUTS";
const PLACE: &str = "UNTORN_TEST_PLACE";
const LIMIT: Duration = Duration::from_secs(60);
const THREADS: usize = 4;
/// The number of pushes of one thread before a kill.
const PUSHES: u64 = 100;
/// The size of a page; each counter has a page of its own.
const PAGE: usize = 4096;

fn live() -> HeapOptions {
    HeapOptions::new().create(true).live(true).address_space(256 << 20)
}

/// A named number in the heap.
fn number<'h>(heap: &'h Heap, name: &str) -> &'h AtomicU64 {
    let root = heap.root_or(name, |_| AtomicU64::new(0)).unwrap();
    // SAFETY: a root of this type, which is only used as an atomic.
    unsafe { root.as_ref() }
}

fn get(heap: &Heap, name: &str) -> u64 {
    number(heap, name).load(Relaxed)
}

/// Logs and stores a number, within a section.
fn set(heap: &Heap, name: &str, to: u64) {
    let number = number(heap, name);
    // SAFETY: in the heap, and nobody else changes it.
    unsafe { section_hooks::log(std::ptr::from_ref(number).expose_provenance(), 8) };
    number.store(to, Relaxed);
}

/// Opens the heap as after a power cut: without its memory.
fn after_a_power_cut(heap: Heap, path: &Path) -> Heap {
    let memory = heap.live().unwrap().memory;
    drop(heap);
    fs::remove_file(memory).unwrap();
    let heap = live().open(path).unwrap();
    assert!(matches!(heap.live().unwrap().start, LiveStart::LastCut(_)));
    let report = heap.check(&|_, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    heap
}

/// Runs `work` in another thread up to a point, at which the caller runs `meanwhile`; then that thread goes on.
fn paused<R>(work: impl FnOnce(&dyn Fn()) + Send, meanwhile: impl FnOnce() -> R) -> R {
    let (reached, is_reached) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            work(&move || {
                reached.send(()).unwrap();
                // After a panic the sender is gone, so this does not block.
                let _ = goes_on.recv();
            });
        });
        let _go_on = go_on;
        is_reached.recv().unwrap();
        meanwhile()
    })
}

/// A cut has no changes of a section that has not ended. When the section has ended, the next cut has them, although
/// nothing was stored since.
#[test]
fn a_section_that_has_not_ended_is_in_the_cut_that_comes_after_it() {
    let dir = directory();
    for cuts_after in [false, true] {
        let path = dir.path().join(format!("heap{cuts_after}"));
        let heap = live().open(&path).unwrap();
        let lock = SectionLock::new();
        let sizes = [100, 300 << 10, 9 << 20];
        let freed = heap.allocate(Layout::new::<[u64; 30]>()).unwrap().as_ptr().expose_provenance();
        set(&heap, "a", 1);
        set(&heap, "b", 1);
        heap.commit().unwrap();
        let before = heap.stats().unwrap().allocations;
        let in_section = |pause: &dyn Fn()| {
            let _section = heap.section_with(&lock).unwrap();
            set(&heap, "a", 2);
            for bytes in sizes {
                heap.allocate(Layout::from_size_align(bytes, 8).unwrap()).unwrap();
            }
            // SAFETY: nobody uses it.
            unsafe { heap.free(NonNull::new(with_exposed_provenance_mut(freed)).unwrap()) }.unwrap();
            pause();
        };
        paused(in_section, || {
            number(&heap, "b").store(3, Relaxed);
            // Nothing was stored to the heap between the two cuts.
            (0..2).for_each(|_| heap.commit().unwrap());
        });
        assert_eq!(get(&heap, "a"), 2, "in memory it is as it was");
        if cuts_after {
            heap.commit().unwrap();
        }
        let heap = after_a_power_cut(heap, &path);
        let wanted = if cuts_after { 2 } else { 1 };
        assert_eq!((get(&heap, "a"), get(&heap, "b")), (wanted, 3));
        assert_eq!(heap.stats().unwrap().allocations, if cuts_after { before + 2 } else { before });
        // Freed space is allocated again.
        for bytes in [9 << 20, 100, 300 << 10] {
            let block = heap.allocate(Layout::from_size_align(bytes, 8).unwrap()).unwrap();
            // SAFETY: allocated just now.
            unsafe { block.as_ptr().write_bytes(7, bytes) };
        }
        assert!(heap.check(&|_, _| {}).unwrap().problems.is_empty());
        heap.close().unwrap();
    }
}

/// A section that has ended, but has seen changes of one that has not, is not in the cut either.
#[test]
fn what_saw_a_section_that_has_not_ended_is_not_in_the_cut() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = live().open(&path).unwrap();
    let (outer, seen) = (SectionLock::new(), SectionLock::new());
    ["a", "b", "c"].iter().for_each(|name| set(&heap, name, 1));
    let first = |pause: &dyn Fn()| {
        let _outer = heap.section_with(&outer).unwrap();
        {
            let _seen = heap.section_with(&seen).unwrap();
            set(&heap, "a", 2);
        }
        pause();
    };
    paused(first, || {
        {
            let _seen = heap.section_with(&seen).unwrap();
            set(&heap, "b", get(&heap, "a"));
        }
        {
            let _own = heap.section_with(&SectionLock::new()).map(drop);
        }
        heap.commit().unwrap();
    });
    let copy = after_a_power_cut(heap, &path);
    assert_eq!(["a", "b", "c"].map(|name| get(&copy, name)), [1, 1, 1]);
    copy.close().unwrap();
}

/// Under `mutate` the heap is inconsistent: a cut waits for the guard.
#[test]
fn guards_are_waited_for() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = live().open(&path).unwrap();
    set(&heap, "a", 1);
    heap.commit().unwrap();
    let changes = |pause: &dyn Fn()| {
        let _guard = heap.mutate();
        number(&heap, "a").store(2, Relaxed);
        pause();
        number(&heap, "a").store(3, Relaxed);
    };
    cut_waits_for(&heap, changes);
    let copy = after_a_power_cut(heap, &path);
    assert_eq!(get(&copy, "a"), 3);
    copy.close().unwrap();
}

/// Asserts that a cut requested while `work` pauses comes after `work`.
fn cut_waits_for(heap: &Heap, work: impl FnOnce(&dyn Fn()) + Send) {
    let before = heap.file().store().status().commits;
    std::thread::scope(|scope| {
        let cut = paused(work, || {
            let cut = scope.spawn(|| heap.commit().unwrap());
            std::thread::sleep(Duration::from_millis(60));
            assert!(!cut.is_finished() && heap.file().store().status().commits == before);
            cut
        });
        cut.join().unwrap();
    });
}

/// One thread has a guard and waits for the lock of a section; that section waits for a guard; a cut waits for guards.
#[test]
fn threads_that_wait_for_each_other_do_not_wait_for_a_cut() {
    let dir = directory();
    let path = dir.path().join("heap");
    within(LIMIT, "guards, sections and cuts", move || {
        let heap = live().open(&path).unwrap();
        set(&heap, "a", 0);
        let lock = SectionLock::new();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (heap, lock, stop) = (&heap, &lock, &stop);
                scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        let _guard = (thread == 0).then(|| heap.mutate());
                        let _section = heap.section_with(lock).unwrap();
                        let _inner = (thread == 1).then(|| heap.mutate());
                        set(heap, "a", get(heap, "a") + 1);
                    }
                });
            }
            let _stop = SetOnDrop(&stop);
            for _ in 0..30 {
                let before = get(&heap, "a");
                heap.commit().unwrap();
                // Both threads go on after the cut.
                eventually(LIMIT, "sections", || get(&heap, "a") > before + 1);
            }
        });
        heap.close().unwrap();
    });
}

/// A section with more changes than a log holds: the cut comes when the section has ended.
#[test]
fn a_section_beyond_its_log_is_waited_for() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = live().open(&path).unwrap();
    set(&heap, "a", 1);
    heap.commit().unwrap();
    let large = |pause: &dyn Fn()| {
        let _section = heap.section().unwrap();
        let block = heap.allocate(Layout::new::<[u64; 70_000]>()).unwrap().cast::<u64>();
        for at in 0..70_000 {
            // SAFETY: within the block.
            unsafe { section_hooks::log(block.add(at).as_ptr().expose_provenance(), 8) };
        }
        number(&heap, "a").store(2, Relaxed);
        pause();
    };
    cut_waits_for(&heap, large);
    let copy = after_a_power_cut(heap, &path);
    assert_eq!(get(&copy, "a"), 2);
    copy.close().unwrap();
}

/// Two numbers on pages far from each other, with many changing pages in between: at each moment the first number
/// equals the second, or is one more.
struct Pair {
    memory: NonNull<u8>,
}

// SAFETY: atomics.
unsafe impl Sync for Pair {}

impl Pair {
    const PAGES: usize = 64;

    fn make(heap: &Heap) -> Pair {
        let memory = heap.allocate(Layout::from_size_align(Pair::PAGES * PAGE, PAGE).unwrap()).unwrap();
        // SAFETY: allocated just now.
        unsafe { memory.as_ptr().write_bytes(0, Pair::PAGES * PAGE) };
        heap.set_root("pair", Some(memory)).unwrap();
        Pair { memory }
    }

    fn of(heap: &Heap) -> Pair {
        Pair { memory: heap.root::<u8>("pair").unwrap().expect("a root") }
    }

    fn at(&self, page: usize) -> &AtomicU64 {
        // SAFETY: within the block, and aligned.
        unsafe { self.memory.add(page * PAGE).cast().as_ref() }
    }

    fn step(&self, n: u64) {
        self.at(0).store(n, SeqCst);
        (1..Pair::PAGES - 1).for_each(|page| self.at(page).store(n, Relaxed));
        self.at(Pair::PAGES - 1).store(n, SeqCst);
    }

    fn check(&self, what: &str) -> u64 {
        let [first, last] = [0, Pair::PAGES - 1].map(|page| self.at(page).load(Relaxed));
        assert!((last..=last + 1).contains(&first), "{what}: {first} and {last}");
        last
    }
}

/// Threads that are stopped in all kinds of work: they allocate, sleep, start and end threads, fork, read into the
/// heap, and hold locks of the standard library.
#[test]
fn a_cut_is_of_one_moment_whatever_threads_do() {
    let seed = seed();
    let dir = directory();
    let path = dir.path().join("heap");
    let mut stopped = Vec::new();
    for round in 0..12 {
        let heap = live().open(&path).unwrap();
        let pair = match heap.root::<u8>("pair").unwrap() {
            Some(_) => Pair::of(&heap),
            None => Pair::make(&heap),
        };
        let begun = pair.check("before");
        let (stop, place) = (AtomicBool::new(false), heap.allocate(Layout::new::<[u64; 1024]>()).unwrap());
        let place = place.as_ptr().expose_provenance();
        std::thread::scope(|scope| {
            let (pair, stop) = (&pair, &stop);
            let again = move || !stop.load(Relaxed);
            scope.spawn(move || {
                let mut n = begun;
                while again() {
                    n += 1;
                    pair.step(n);
                }
            });
            scope.spawn(move || {
                let mut kept = Vec::new();
                while again() {
                    kept.push(vec![1u8; 100 + kept.len() % 1000]);
                    kept.truncate(500);
                    eprint!("");
                }
            });
            scope.spawn(move || {
                while again() {
                    std::thread::scope(|inner| _ = inner.spawn(|| std::thread::sleep(Duration::from_micros(20))));
                }
            });
            scope.spawn(move || {
                let from = fs::File::open("/dev/zero").unwrap();
                while again() {
                    // SAFETY: a block of this size, which nobody else uses.
                    unsafe { libc::read(from.as_raw_fd(), std::ptr::with_exposed_provenance_mut(place), 8192) };
                }
            });
            scope.spawn(move || {
                while again() {
                    assert!(Command::new("true").status().unwrap().success());
                }
            });
            let _stop = SetOnDrop(stop);
            let rng = &mut Rng::with_seed(seed ^ round);
            eventually(LIMIT, "a step", || pair.at(0).load(Relaxed) > begun);
            for _ in 0..8 {
                std::thread::sleep(Duration::from_micros(rng.u64(..2000)));
                heap.commit().unwrap();
            }
        });
        stopped.push(heap.live().unwrap().stops);
        let heap = after_a_power_cut(heap, &path);
        Pair::of(&heap).check(&format!("seed {seed}, round {round}"));
        heap.close().unwrap();
    }
    assert!(stopped.iter().all(|stops| stops.count >= 8 && stops.last <= stops.longest), "{stopped:?}");
}

/// A thread that blocks all signals is named in the error, and nothing is committed. A heap with cuts that wait needs
/// no signal.
fn deaf(path: &Path) {
    let heap = live().open(path).unwrap();
    set(&heap, "a", 1);
    heap.commit().unwrap();
    set(&heap, "a", 2);
    let (end, ends) = mpsc::channel::<()>();
    let (ready, is_ready) = mpsc::channel();
    let deaf = std::thread::Builder::new().name("deaf".into());
    let deaf = deaf.spawn(move || {
        // SAFETY: numbers, which the calls fill.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        }
        ready.send(()).unwrap();
        let _ = ends.recv();
    });
    let deaf = deaf.unwrap();
    is_ready.recv().unwrap();
    let e = refused(heap.commit(), &["unsupported"]).to_string();
    assert!(e.contains("(deaf) blocks signal") && e.contains("UNTORN_STOP_SIGNAL"), "{e}");
    let heap = after_a_power_cut(heap, path);
    assert_eq!(get(&heap, "a"), 1);
    heap.close().unwrap();
    let heap = live().cuts(Cuts::Wait).open(path).unwrap();
    set(&heap, "a", 3);
    heap.commit().unwrap();
    let heap = after_a_power_cut(heap, path);
    assert_eq!(get(&heap, "a"), 3);
    drop(end);
    deaf.join().unwrap();
    set(&heap, "a", 4);
    heap.commit().unwrap();
    heap.close().unwrap();
}

#[test]
fn a_thread_that_cannot_be_stopped_is_named() {
    let dir = directory();
    let output = child("deaf", &dir.path().join("heap")).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// A stray store of the program to the heap's own bytes is found in the bytes that are about to be committed.
#[test]
fn what_was_overwritten_is_not_cut() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = live().open(&path).unwrap();
    set(&heap, "a", 1);
    heap.commit().unwrap();
    let (base, _) = heap.memory();
    // SAFETY: the use of a chunk, in the metadata of the first segment.
    let wild = unsafe { base.add(4096 + 5 * 64).cast::<u64>() };
    // SAFETY: as above.
    let before = unsafe { wild.read_volatile() };
    // SAFETY: as above.
    unsafe { wild.write_volatile(0xeeee_eeee) };
    for _ in 0..2 {
        let e = refused(heap.commit(), &["corrupt"]).to_string();
        assert!(e.contains("segment 0, chunk 5"), "{e}");
    }
    // SAFETY: as above.
    unsafe { wild.write_volatile(before) };
    set(&heap, "a", 2);
    heap.commit().unwrap();
    let heap = after_a_power_cut(heap, &path);
    assert_eq!(get(&heap, "a"), 2);
    heap.close().unwrap();
}

/// A stack to which threads push without locks, and counters of each thread, on pages of their own.
#[derive(Storable)]
#[repr(C, align(4096))]
struct OwnPage(AtomicU64, [u64; 511]);

#[derive(Storable)]
#[repr(C)]
struct Stack {
    top: AtomicU64,
    /// For each thread, the last number that it was about to push, and the last one that it has pushed.
    begun: [OwnPage; THREADS],
    done: [OwnPage; THREADS],
}

#[derive(Storable)]
#[repr(C)]
struct Node {
    below: u64,
    thread: u64,
    number: u64,
    sum: u64,
}

fn stack(heap: &Heap) -> &Stack {
    let page = || OwnPage(AtomicU64::new(0), [0; 511]);
    let pages = || [(); THREADS].map(|()| page());
    let root = heap.root_or("stack", |_| Stack { top: AtomicU64::new(0), begun: pages(), done: pages() }).unwrap();
    // SAFETY: a root of this type, of atomics.
    unsafe { root.as_ref() }
}

impl Stack {
    fn nodes(&self) -> impl Iterator<Item = &Node> {
        let at = |address: u64| {
            // SAFETY: nodes stay, and do not change once they are reachable.
            (address != 0).then(|| unsafe { &*with_exposed_provenance::<Node>(address as usize) })
        };
        std::iter::successors(at(self.top.load(Acquire)), move |node| at(node.below))
    }

    fn push(&self, heap: &Heap, thread: usize, number: u64) {
        self.begun[thread].0.store(number, Release);
        let place = heap.allocate(Layout::new::<Node>()).unwrap().cast::<Node>();
        loop {
            let top = self.top.load(Acquire);
            let node = Node { below: top, thread: thread as u64, number, sum: top ^ thread as u64 ^ number };
            // SAFETY: allocated just now with this layout.
            unsafe { place.write(node) };
            let new = place.as_ptr().expose_provenance() as u64;
            if self.top.compare_exchange(top, new, SeqCst, Relaxed).is_ok() {
                break;
            }
        }
        self.done[thread].0.store(number, Release);
    }

    /// For each thread, all numbers are there, in order, up to the last that is done or begun.
    fn check(&self, what: &str) -> [u64; THREADS] {
        let mut next = [0; THREADS];
        let mut last = [0; THREADS];
        for node in self.nodes() {
            let thread = node.thread as usize;
            assert_eq!(node.sum, node.below ^ node.thread ^ node.number, "{what}: a node that is not whole");
            if next[thread] == 0 {
                (last[thread], next[thread]) = (node.number, node.number);
            }
            assert_eq!(node.number, next[thread], "{what}: the order of thread {thread}");
            next[thread] -= 1;
        }
        assert_eq!(next, [0; THREADS], "{what}: the first ones");
        for thread in 0..THREADS {
            let [begun, done] = [&self.begun, &self.done].map(|all| all[thread].0.load(Relaxed));
            assert!(
                done <= last[thread] && last[thread] <= begun && begun <= done + 1,
                "{what}: {done} {last:?} {begun}"
            );
        }
        last
    }
}

fn child(mode: &str, place: &Path) -> Command {
    let mut command = untorn_testkit::again!("cuts_child");
    command.env(MODE, mode).env(PLACE, place).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// In a second process.
#[test]
fn cuts_child() {
    let Some(mode) = std::env::var_os(MODE) else { return };
    let place = PathBuf::from(std::env::var_os(PLACE).expect("a place"));
    match mode.to_str().expect("a mode") {
        "stack" => push_until_killed(&place),
        "deaf" => deaf(&place),
        other => panic!("{other}"),
    }
}

/// Pushes until killed, with frequent cuts.
fn push_until_killed(place: &Path) {
    let heap = live().cut_every(Duration::from_millis(1)).open(place).unwrap();
    let stack = stack(&heap);
    let mut last = stack.check("in the child");
    // A push that the previous process did not note before its end is noted now.
    last.iter().zip(&stack.done).for_each(|(last, done)| done.0.store(*last, Release));
    // Even if the kill comes soon, a cut has something.
    for (thread, last) in last.iter_mut().enumerate() {
        *last += 1;
        stack.push(&heap, thread, *last);
    }
    heap.commit().unwrap();
    println!();
    std::thread::scope(|scope| {
        for (thread, last) in last.into_iter().enumerate() {
            let heap = &heap;
            scope.spawn(move || {
                for number in last + 1.. {
                    stack.push(heap, thread, number);
                    if number == last + PUSHES {
                        println!("pushed");
                    }
                }
            });
        }
    });
}

/// A lock-free structure without any guard: after a power cut it is as of one moment, and after a kill it is unchanged.
#[test]
fn lock_free_structures_need_no_guard() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let rounds = kills(40);
    let (mut pushed, mut nodes, mut power_cuts) = (0, 0, 0);
    let mut path = PathBuf::new();
    for round in 0..rounds {
        // A new stack every few rounds: nothing is ever popped, and checks visit all nodes.
        if round % 2 == 0 {
            if round > 0 {
                live().open(&path).unwrap().close().unwrap();
                fs::remove_file(&path).unwrap();
            }
            path = dir.path().join(format!("heap{round}"));
        }
        let mut child = child("stack", &path).spawn().unwrap();
        let mut out = output_after(&mut child, "pushed", &format!("seed {seed}, round {round}"));
        std::thread::sleep(Duration::from_micros(rng.u64(..50_000)));
        signal_process(child.id(), rustix::process::Signal::KILL);
        out.read_to_string(&mut String::new()).unwrap();
        child.wait().unwrap();
        let what = format!("seed {seed}, round {round}");
        let heap = live().open(&path).unwrap();
        assert_eq!(heap.live().unwrap().start, LiveStart::WentOn, "{what}");
        pushed += stack(&heap).check(&what).iter().sum::<u64>();
        if rng.bool() {
            let heap = after_a_power_cut(heap, &path);
            if heap.root::<Stack>("stack").unwrap().is_some() {
                power_cuts += 1;
                nodes += stack(&heap).check(&format!("{what}, after a power cut")).iter().sum::<u64>();
            }
            heap.commit().unwrap();
        }
    }
    assert!(pushed > PUSHES * rounds && (power_cuts == 0 || nodes > 0));
    live().open(&path).unwrap().close().unwrap();
    println!("seed {seed}: {rounds} kills, of {pushed} nodes; {power_cuts} of them with a power cut, of {nodes} nodes");
}
