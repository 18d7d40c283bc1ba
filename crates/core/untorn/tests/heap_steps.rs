//! Live heaps, stepped through: after every instruction of a child, the memory is recovered in a copy, as the next
//! opening would do it. The children run the allocator, sections, and openings that undo the changes of a killed
//! process.

mod common;

use common::bank::{Bank, HISTORY_MOST, bank_in, transfer};
use common::stepping::{killed_when, stop, traced};
use common::*;
use fastrand::Rng;
use std::alloc::Layout;
use std::fs;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use untorn::__private::live_outlook;
use untorn::heap::{Heap, HeapChunk, HeapOptions, HeapReport, LiveStart, SectionLock};
use untorn::{Reader, Store};

const MODE: &str = "UNTORN_TEST_STEPS";
const PLACE: &str = "UNTORN_TEST_PLACE";
const SEED: &str = "UNTORN_TEST_STEPS_SEED";
/// The number of instructions after which each test checks the memory, unless `UNTORN_LIVE_STEPS` says otherwise: a
/// part of one child's run.
const STEPS: u64 = 6000;
/// The changes that each test sees at least.
const CHANGES_LEAST: u64 = 4;
/// One of so many instructions is checked where nothing is expected to change.
const COARSE: u64 = 64;
/// The bytes before the heap in its memory, and the bytes of a chunk.
const HEAD: usize = 68 << 20;
const CHUNK: usize = 64 << 10;
/// The offset of the number of records in the allocator's log, as in `crates/core/untorn/src/heap/log/live_head.rs`.
const USED_AT: u64 = 104;

/// The name of the heap in the store at a place.
const NAME: &str = "heap";

fn live() -> HeapOptions {
    HeapOptions::new().create(true).live(true).address_space(256 << 20)
}

fn heap_at(place: &Path) -> Heap {
    live().open_in(&Store::open_or_create(place).unwrap(), NAME).unwrap()
}

fn child(mode: &str, place: &Path, seed: u64) -> Command {
    let mut command = untorn_testkit::again!("steps_child");
    command.env(MODE, mode).env(PLACE, place).env(SEED, seed.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// In a second process: runs the mode in the environment, and waits to be killed.
#[test]
fn steps_child() {
    let Some(mode) = std::env::var_os(MODE) else { return };
    let place = PathBuf::from(std::env::var_os(PLACE).expect("a place"));
    let seed = std::env::var(SEED).expect("a seed").parse().expect("a number");
    match mode.to_str().expect("a mode") {
        "allocator" => allocator(&place, seed),
        "sections" => sections(&place, seed),
        "half done" => half_done(&place, seed),
        "opening" => {
            // The opening of the store does not touch live memory.
            let store = Store::open_or_create(&place).unwrap();
            traced();
            let heap = live().open_in(&store, NAME).unwrap();
            stop();
            drop(heap);
        }
        other => panic!("{other}"),
    }
}

const ROOTS: [&str; 3] = ["first", "second", "third"];

/// The progress of a child, in a file beside its store: numbers that the child stores and its parent reads.
struct Told(*const [AtomicU64; Told::NUMBERS]);

/// For each root, its address and size: at present, and after the step.
const NOW: usize = 0;
const NEXT: usize = 2;
const EACH: usize = 4;

impl Told {
    const NUMBERS: usize = 64;

    fn of(place: &Path) -> Told {
        let path = place.with_extension("told");
        let file = fs::File::options().create(true).truncate(false).read(true).write(true).open(path).unwrap();
        file.set_len(size_of::<[AtomicU64; Told::NUMBERS]>() as u64).unwrap();
        Told(map(None, size_of::<[AtomicU64; Told::NUMBERS]>(), libc::PROT_READ | libc::PROT_WRITE, Some(&file)).cast())
    }

    fn numbers(&self) -> &[AtomicU64; Told::NUMBERS] {
        // SAFETY: mapped for ever, and only used as atomics.
        unsafe { &*self.0 }
    }

    fn root(&self, root: usize, which: usize) -> (u64, u64) {
        let at = &self.numbers()[root * EACH + which..];
        (at[0].load(Acquire), at[1].load(Acquire))
    }

    fn set_root(&self, root: usize, which: usize, (address, bytes): (u64, u64)) {
        let at = &self.numbers()[root * EACH + which..];
        at[0].store(address, Release);
        at[1].store(bytes, Release);
    }
}

/// Maps a file, shared, or private memory; at a free address, or anywhere.
fn map(address: Option<u64>, bytes: usize, protection: i32, file: Option<&fs::File>) -> *mut u8 {
    let place = address.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    let at = std::ptr::with_exposed_provenance_mut(address.unwrap_or(0) as usize);
    // SAFETY: a new mapping that replaces no other.
    let at = unsafe { libc::mmap(at, bytes, protection, flags | place | libc::MAP_NORESERVE, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    at.cast()
}

fn unmap(at: *mut u8, bytes: usize) {
    // SAFETY: a mapping that this program made and does not use any more.
    unsafe { libc::munmap(at.cast(), bytes) };
}

/// Gives roots new blocks of all sizes and frees their old ones, between two stops. A block has its address at its
/// start and at its end.
fn allocator(place: &Path, seed: u64) {
    let heap = heap_at(place);
    let (told, rng) = (Told::of(place), &mut Rng::with_seed(seed));
    let layout = |bytes| Layout::from_size_align(bytes, 8).unwrap();
    let mut step = |with_huge: bool| {
        let root = rng.usize(..ROOTS.len());
        let old = told.root(root, NOW).0;
        let bytes = 8 * match rng.u32(..16) {
            0..6 => rng.usize(2..300),
            6..10 => rng.usize(300..8000),
            10..14 => rng.usize(8000..40_000),
            14 if with_huge => rng.usize(600_000..1_000_000),
            _ => 0,
        };
        let made = (bytes > 0).then(|| heap.allocate(layout(bytes)).unwrap());
        if let Some(made) = made {
            let words = made.cast::<u64>();
            let address = made.as_ptr().expose_provenance() as u64;
            // SAFETY: this many bytes were allocated just now.
            unsafe {
                words.write(address);
                words.add(bytes / 8 - 1).write(address);
            }
        }
        let next = made.map_or((0, 0), |made| (made.as_ptr().expose_provenance() as u64, bytes as u64));
        told.set_root(root, NEXT, next);
        heap.set_root(ROOTS[root], made).unwrap();
        told.set_root(root, NOW, next);
        if let Some(old) = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(old as usize)) {
            // SAFETY: nobody uses it.
            unsafe { heap.free(old) }.unwrap();
        }
    };
    (0..60).for_each(|_| step(false));
    traced();
    (0..12).for_each(|_| step(seed.is_multiple_of(8)));
    stop();
}

/// Runs transfers between two stops. With odd seeds, all of them have seen changes of a section that never ends.
fn sections(place: &Path, seed: u64) {
    let heap = heap_at(place);
    let (bank, rng, told) = (bank_in(&heap), &mut Rng::with_seed(seed), Told::of(place));
    fill(&heap, bank, rng);
    told.numbers()[0].store(transfer(&heap, bank, 0, rng), Release);
    let locks = [const { SectionLock::new() }; 2];
    if is_seen(seed) {
        begin_for_ever(&heap, bank, &locks, rng);
    }
    let mut one = || {
        let _seen = is_seen(seed).then(|| heap.section_with(&locks[1]).unwrap());
        transfer(&heap, bank, 1, rng)
    };
    traced();
    for _ in 0..4 {
        let done = one();
        told.numbers()[1].store(done, Release);
    }
    stop();
}

fn is_seen(seed: u64) -> bool {
    !seed.is_multiple_of(2)
}

/// Runs so many transfers that a later one makes the history longer, or clears it.
fn fill(heap: &Heap, bank: NonNull<Bank<'_>>, rng: &mut Rng) {
    let before = [2, 6, 30, HISTORY_MOST - 3][rng.usize(..4)];
    (0..before).for_each(|_| _ = transfer(heap, bank, 0, rng));
}

/// A section of a thread that ends within it: it has changed the bank, and has given the second lock back.
fn begin_for_ever(heap: &Heap, bank: NonNull<Bank<'_>>, locks: &[SectionLock; 2], rng: &mut Rng) {
    let bank = bank.as_ptr().expose_provenance();
    let spare = heap.allocate(Layout::new::<[u64; 500]>()).unwrap().as_ptr().expose_provenance();
    let account = rng.usize(..100);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let section = heap.section_with(&locks[0]).unwrap();
            let given_back = heap.section_with(&locks[1]).unwrap();
            // SAFETY: one section at a time uses it.
            let bank = unsafe { &mut *std::ptr::with_exposed_provenance_mut::<Bank<'_>>(bank) };
            *section.modify(&mut bank.accounts[account]).unwrap() += 7;
            heap.allocate(Layout::new::<[u64; 300]>()).unwrap();
            let spare = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(spare)).expect("an address");
            // SAFETY: nobody uses it.
            unsafe { heap.free(spare) }.unwrap();
            drop(given_back);
            std::mem::forget(section);
        });
    });
}

/// A section that never ends, sections that have seen its changes, and, between two stops, another section with a large
/// allocation.
fn half_done(place: &Path, seed: u64) {
    let heap = heap_at(place);
    let (bank, rng) = (bank_in(&heap), &mut Rng::with_seed(seed));
    fill(&heap, bank, rng);
    let locks = [const { SectionLock::new() }; 2];
    begin_for_ever(&heap, bank, &locks, rng);
    let other = bank.as_ptr().expose_provenance();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bank = NonNull::new(std::ptr::with_exposed_provenance_mut::<Bank<'_>>(other)).expect("an address");
            for _ in 0..3 {
                let _seen = heap.section_with(&locks[1]).unwrap();
                transfer(&heap, bank, 1, rng);
            }
        });
    });
    let own = SectionLock::new();
    traced();
    let _section = heap.section_with(&own).unwrap();
    transfer(&heap, bank, 2, &mut Rng::with_seed(seed));
    heap.allocate(Layout::from_size_align(300_000, 8).unwrap()).unwrap();
    stop();
}

/// The heap that the next opening would find.
struct Found {
    report: HeapReport,
    undone: usize,
    cascaded: usize,
}

/// Checks the memory of a child that is stopped.
struct Watch {
    path: PathBuf,
    /// The heap's file as of its last commit.
    committed: Vec<u8>,
    memory: fs::File,
    /// A mapping of the whole memory file, to read the parts that are not holes.
    view: (*mut u8, usize),
    last: Vec<(usize, Vec<u8>)>,
    /// For each chunk of the heap, whether it was in use in the copy that was recovered last.
    in_use: Vec<bool>,
    /// The recovered heap, at its own address.
    shown: Option<(*mut u8, usize)>,
}

impl Watch {
    /// Watches a heap that nobody commits meanwhile.
    fn of(place: &Path) -> Watch {
        let committed = Reader::open(place).unwrap().read(NAME).unwrap();
        let path = place.join(NAME);
        let (found, _) = live_outlook(&path, &committed).unwrap().expect("live memory");
        let memory = fs::File::open(found.memory).unwrap();
        let bytes = 512 << 20;
        let view = (map(None, bytes, libc::PROT_READ, Some(&memory)), bytes);
        Watch { path, committed, memory, view, last: Vec::new(), in_use: Vec::new(), shown: None }
    }

    /// The parts of the memory that a recovery reads: all except for holes, and for chunks that were unused then.
    /// Whether a chunk is in use depends only on the other parts.
    fn parts(&self) -> Vec<Range<usize>> {
        let (mut parts, mut end) = (Vec::new(), 0);
        loop {
            // SAFETY: no pointers.
            let start = unsafe { libc::lseek(self.memory.as_raw_fd(), end, libc::SEEK_DATA) };
            if start < 0 {
                assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENXIO));
                return parts;
            }
            // SAFETY: as above.
            end = unsafe { libc::lseek(self.memory.as_raw_fd(), start, libc::SEEK_HOLE) };
            let (mut at, all) = (start as usize, end as usize);
            while at < all {
                let next = (at / CHUNK + 1) * CHUNK;
                let is_free = at.checked_sub(HEAD).and_then(|at| self.in_use.get(at / CHUNK)) == Some(&false);
                match parts.last_mut() {
                    _ if is_free => {}
                    Some(Range { end, .. }) if *end == at => *end = next.min(all),
                    _ => parts.push(at..next.min(all)),
                }
                at = next;
            }
        }
    }

    /// Whether any byte of these parts has changed since the last look.
    fn has_changed(&self) -> bool {
        let parts = self.parts();
        let now = parts.iter().map(|part| (part.start, self.bytes(part)));
        !now.eq(self.last.iter().map(|(start, bytes)| (*start, &bytes[..])))
    }

    fn bytes(&self, part: &Range<usize>) -> &[u8] {
        assert!(part.end <= self.view.1);
        // SAFETY: mapped, no hole, and the child stands.
        unsafe { std::slice::from_raw_parts(self.view.0.add(part.start), part.len()) }
    }

    /// Notes that the last look saw the present bytes.
    fn note(&mut self, report: &HeapReport) {
        self.in_use = report.chunks.iter().map(|chunk| *chunk != HeapChunk::Free).collect();
        self.last = self.parts().into_iter().map(|part| (part.start, self.bytes(&part).to_vec())).collect();
    }

    /// Recovers a copy, and maps the heap in it at its address.
    fn look(&mut self) -> Result<Found, String> {
        let found = live_outlook(&self.path, &self.committed).map_err(|e| e.to_string())?;
        let (found, image) = found.expect("live memory");
        let (Some(image), Some(report)) = (image, found.heap) else { return Err(format!("{:?}", found.next)) };
        if !report.is_sound() {
            return Err(format!("{:?}", report.problems));
        }
        let bytes = image.bytes() as usize;
        if self.shown.is_none_or(|shown| shown.1 != bytes) {
            self.hide();
            self.shown = Some((map(Some(report.address), bytes, libc::PROT_READ | libc::PROT_WRITE, None), bytes));
        }
        let at = self.shown.expect("mapped just now").0;
        // SAFETY: mapped for this, and nobody else refers to it.
        image.read(unsafe { std::slice::from_raw_parts_mut(at, bytes) }, 0).map_err(|e| e.to_string())?;
        self.note(&report);
        Ok(Found { report, undone: found.undone, cascaded: found.cascaded })
    }

    /// Unmaps the heap that is shown.
    fn hide(&mut self) {
        if let Some((at, bytes)) = self.shown.take() {
            unmap(at, bytes);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.hide();
        unmap(self.view.0, self.view.1);
    }
}

impl Found {
    fn root(&self, name: &str) -> u64 {
        self.report.roots.iter().find(|root| root.name == name).map_or(0, |root| root.address)
    }

    fn leaks(&self) -> u64 {
        self.report.leaks.as_ref().expect("looked for").count
    }

    /// The bank, if its pointers are valid.
    fn bank(&self) -> Result<&Bank<'_>, String> {
        let heap = self.report.address..self.report.address + self.report.heap_bytes;
        let bank = std::ptr::with_exposed_provenance::<Bank<'_>>(self.root("bank") as usize);
        // SAFETY: a root of this type, in the heap that is shown.
        let bank = unsafe { bank.as_ref() }.ok_or("no bank")?;
        let history = bank.history.as_ptr_range();
        let (start, end) = (history.start.addr() as u64, history.end.addr() as u64);
        let is_in_heap = heap.contains(&start) && heap.contains(&end) && start < end;
        if !bank.history.is_empty() && !is_in_heap {
            return Err(format!("the history is at {start:#x} to {end:#x}"));
        }
        bank.problem().map_or(Ok(bank), Err)
    }

    /// Everything that a program can see of the heap.
    fn contents(&self) -> Result<String, String> {
        let bank = self.bank()?;
        let (roots, leaks) = (&self.report.roots, self.report.leaks.as_ref().expect("looked for"));
        let roots: Vec<_> = roots.iter().map(|root| (&root.name, root.address)).collect();
        let bank = (bank.accounts, bank.done, &bank.history, bank.forgotten);
        Ok(format!("{roots:?} {bank:?} {} leaks of {} bytes", leaks.count, leaks.bytes))
    }
}

/// Finds a problem in a heap.
type Check = dyn FnMut(&Found) -> Result<(), String>;

/// The preparations for stepping through a child.
struct Prepared {
    check: Box<Check>,
    /// The watch of a heap that exists before the child.
    watch: Option<Watch>,
}

/// The statistics of a test.
#[derive(Default)]
struct Count {
    children: u64,
    instructions: u64,
    recovered: u64,
    undone: u64,
    cascaded: u64,
}

/// The way in which a child is stepped through.
struct Steps<'a> {
    mode: &'a str,
    seed: u64,
    place: &'a Path,
    /// The first instruction after which the memory is checked.
    from: u64,
    /// The changes of the memory up to which only one of [`COARSE`] instructions is checked, and none is counted.
    skipped: u64,
    most: u64,
}

impl Steps<'_> {
    /// Starts the child, and after each instruction recovers and checks a copy of the memory. If nothing was stored to,
    /// the last result holds. Then opens the heap, which must be as foretold. None: tracing is not possible here.
    fn walk(&self, count: &mut Count, Prepared { mut check, mut watch }: Prepared) -> Option<()> {
        let (mut wrong, mut last) = (None, None);
        let (mut changes, mut near) = (0, None);
        let command = &mut child(self.mode, self.place, self.seed);
        killed_when(command, |_, _, done| {
            let is_near = changes >= self.skipped;
            if done < self.from || !is_near && done % COARSE != self.seed % COARSE {
                return false;
            }
            let watch = watch.get_or_insert_with(|| Watch::of(self.place));
            if watch.has_changed() {
                changes += 1;
                let found = watch.look().and_then(|found| check(&found).map(|()| found));
                count.recovered += 1;
                match found {
                    Ok(found) => {
                        count.undone += u64::from(found.undone > 0);
                        count.cascaded += u64::from(found.cascaded > 0);
                        last = Some((format!("{:?}", found.report.roots), found.leaks()));
                    }
                    Err(why) => wrong = Some(format!("after {done} instructions: {why}")),
                }
            }
            // The first look sees the state before the instruction.
            let first = is_near.then(|| *near.get_or_insert(done));
            count.instructions += u64::from(first.is_some_and(|first| done > first));
            wrong.is_some() || first.is_some_and(|first| done - first >= self.most)
        })?;
        count.children += 1;
        assert_eq!(wrong, None, "{}, seed {}", self.mode, self.seed);
        drop(watch);
        let heap = heap_at(self.place);
        assert_eq!(heap.live().unwrap().start, LiveStart::WentOn);
        let report = heap.check(&|_, _| {}).unwrap();
        let now = (format!("{:?}", report.roots), report.leaks.expect("looked for").count);
        assert_eq!(now, last.unwrap_or(now.clone()), "{}, seed {}", self.mode, self.seed);
        heap.close().unwrap();
        Some(())
    }
}

/// Steps through children, with one seed after the other, until the wanted number of instructions is checked. By
/// default that is a part of one child's run, from one of the usual instructions on.
fn step_through(mode: &str, usual: Range<u64>, skipped: u64, prepare: impl Fn(&Path, u64) -> Option<Prepared>) {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let all = std::env::var("UNTORN_LIVE_STEPS").ok().and_then(|n| n.parse().ok());
    let wanted = all.unwrap_or(STEPS);
    let mut count = Count::default();
    // The first look at a memory may be at no change. A program may run for long without any.
    while count.instructions < wanted || count.recovered < count.children + CHANGES_LEAST {
        assert!(count.children < 100, "{mode}, seed {seed}: {} memories recovered", count.recovered);
        let seed = seed + count.children;
        let path = dir.path().join(format!("store{seed}"));
        let from = if all.is_some() { 0 } else { rng.u64(usual.clone()) };
        let skipped = if all.is_some() { 0 } else { skipped };
        let before = count.instructions;
        let most = if before < wanted { wanted - before } else { STEPS };
        let steps = Steps { mode, seed, place: &path, from, skipped, most };
        let walked = prepare(&path, seed).and_then(|prepared| steps.walk(&mut count, prepared));
        if walked.is_none() {
            return common::skipped("cannot trace a child here");
        }
        assert!(count.instructions > before, "{mode}, seed {seed}: the child ended before instruction {from}");
        for entry in fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                fs::remove_dir_all(entry.path()).unwrap();
            } else {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }
    let Count { children, instructions, recovered, undone, cascaded } = count;
    println!(
        "{mode}, seed {seed}: {instructions} instructions of {children} children, {recovered} memories recovered, in {undone} \
         of them sections were undone, in {cascaded} others with them"
    );
}

#[test]
fn the_allocator_is_whole_after_every_instruction() {
    step_through("allocator", 0..15_000, 0, |path, _| {
        let told = Told::of(path);
        let check = Box::new(move |found: &Found| {
            for (n, name) in ROOTS.iter().enumerate() {
                let address = found.root(name);
                let (now, next) = (told.root(n, NOW), told.root(n, NEXT));
                let bytes = match () {
                    () if address == next.0 => next.1,
                    () if address == now.0 => now.1,
                    () => return Err(format!("root {name} is {address:#x}, neither {now:x?} nor {next:x?}")),
                };
                for at in [0, bytes.saturating_sub(8)].map(|at| address + at).into_iter().filter(|_| bytes > 0) {
                    let word = std::ptr::with_exposed_provenance::<u64>(at as usize);
                    // SAFETY: in an allocation of the heap that is shown.
                    if unsafe { word.read() } != address {
                        return Err(format!("root {name} has at {at:#x} something else"));
                    }
                }
            }
            match found.leaks() {
                0 | 1 => Ok(()),
                leaks => Err(format!("{leaks} leaks")),
            }
        });
        Some(Prepared { check, watch: None })
    });
}

#[test]
fn sections_are_whole_after_every_instruction() {
    step_through("sections", 0..15_000, 0, |path, seed| {
        let told = Told::of(path);
        let mut last = 0;
        let check = Box::new(move |found: &Found| {
            let bank = found.bank()?;
            let [before, done] = [0, 1].map(|n| told.numbers()[n].load(Acquire));
            if bank.done[0] != before || bank.done[1] < last {
                return Err(format!("{:?} done, behind {before} and {last}", bank.done));
            }
            last = bank.done[1];
            let may_be = if is_seen(seed) { 0..=0 } else { done..=done + 1 };
            if !may_be.contains(&last) || is_seen(seed) && found.undone == 0 {
                return Err(format!("{last} done, and not {may_be:?}"));
            }
            // One more for the block that the unfinished section was to free.
            match found.leaks() {
                leaks if leaks <= 1 + u64::from(is_seen(seed)) => Ok(()),
                leaks => Err(format!("{leaks} leaks")),
            }
        });
        Some(Prepared { check, watch: None })
    });
}

#[test]
fn an_opening_is_whole_after_every_instruction() {
    // The opening notes in the memory that it begins; much later it undoes what the killed process has changed.
    step_through("opening", 0..1, 2, |path, seed| {
        let mut killed = None;
        // By default, at the instructions that undo most. Within the large allocation, or anywhere.
        let at = (!seed.is_multiple_of(2)).then(|| Rng::with_seed(seed).u64(..8000));
        killed_when(&mut child("half done", path, seed), |_, _, done| match at {
            Some(at) => done >= at,
            None => {
                let watch = killed.get_or_insert_with(|| Watch::of(path));
                let mut used = [0; 8];
                watch.memory.read_exact_at(&mut used, USED_AT).unwrap();
                u64::from_ne_bytes(used) > 4
            }
        })?;
        let mut watch = Watch::of(path);
        let found = watch.look().unwrap();
        assert!(
            found.undone >= 1 && found.cascaded >= 3,
            "{} sections undone, {} with them",
            found.undone,
            found.cascaded
        );
        let before = found.contents().unwrap();
        let check = Box::new(move |found: &Found| match found.contents()? {
            now if now == before => Ok(()),
            now => Err(format!("{now}\nand before {before}")),
        });
        Some(Prepared { check, watch: Some(watch) })
    });
}
