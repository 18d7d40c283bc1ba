//! Scenarios over live heaps in byte-addressable memory that needs flushes. An ordinary file stands for the memory, and
//! the power is cut between any two flushes.

use super::opening::failed;
use crate::heaps::{Image, PowerCuts};
use fastrand::Rng;
use std::alloc::Layout;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tempfile::TempDir;
use untorn::__private::{OpenStoreOn, live_outlook};
use untorn::heap::{
    Heap, HeapBTreeMap, HeapBox, HeapOptions, HeapString, HeapVec, LiveStart, NextStart, SectionLock, Storable,
};
use untorn::{FailureClass, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::Linux;

/// The data of a program. Each operation has a number, and the data after it depend on nothing but the numbers so far.
#[derive(Storable)]
#[repr(C)]
struct Data<'h> {
    done: u64,
    accounts: [i64; 64],
    history: HeapVec<'h, u64>,
    names: HeapBTreeMap<'h, u64, HeapString<'h>>,
    large: HeapVec<'h, u64>,
    guarded: HeapBox<'h, [u64; 64]>,
}

/// The program's account of its operations.
#[derive(Default)]
struct Progress {
    begun: AtomicU64,
    ended: AtomicU64,
    /// The number of the operation that is going on under a guard.
    guarded: AtomicU64,
    /// The numbers of the roots that were begun to be set, and that are set.
    root_begun: AtomicU64,
    root_set: AtomicU64,
    /// Blocks that only the program knows.
    outside: AtomicU64,
}

/// The progress at a moment.
#[derive(Clone, Copy, Debug)]
struct Moment {
    begun: u64,
    ended: u64,
    guarded: u64,
    root_begun: u64,
    root_set: u64,
    outside: u64,
}

impl Progress {
    fn at(done: u64, root: u64) -> Progress {
        let set = |number| AtomicU64::new(number);
        Progress {
            begun: set(done),
            ended: set(done),
            root_begun: set(root),
            root_set: set(root),
            ..Progress::default()
        }
    }

    fn now(&self) -> Moment {
        let get = |number: &AtomicU64| number.load(Relaxed);
        Moment {
            begun: get(&self.begun),
            ended: get(&self.ended),
            guarded: get(&self.guarded),
            root_begun: get(&self.root_begun),
            root_set: get(&self.root_set),
            outside: get(&self.outside),
        }
    }
}

pub(super) fn options() -> HeapOptions {
    HeapOptions::new().create(true).live(true).address_space(64 << 20)
}

/// A place for a store whose file system is taken for one on byte-addressable memory.
pub(super) fn store(dir: &Path) -> Result<Store, String> {
    let storage = Linux::open_as_memory(dir).map_err(|e| e.to_string())?;
    let options = StoreOptions::new().create(true).background(false);
    options.open_on(storage, StoreDir::of_directory(), dir.to_owned()).map_err(failed)
}

pub(super) fn open(store: &Store) -> Result<Heap, String> {
    options().open_in(store, "heap").map_err(failed)
}

/// Whether the memory of a heap needs flushes. It does not on processors without them.
pub(super) fn is_flushed(heap: &Heap) -> bool {
    heap.live().is_some_and(|live| live.flushes && live.class == FailureClass::Memory)
}

/// Removes the memory at the end of a scenario.
pub(super) struct RemovedAtEnd(pub PathBuf);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(super) fn memory_of(heap: &Heap) -> Result<PathBuf, String> {
    Ok(heap.live().ok_or("no live heap")?.memory)
}

/// The first bytes of the heap's last commit: of the live memory, whose stamp is that of the last cut.
pub(super) fn start_of(heap: &Heap) -> Vec<u8> {
    let (base, _) = heap.memory();
    // SAFETY: the first page of the heap, which is mapped, and whose stamp nobody changes meanwhile.
    unsafe { std::slice::from_raw_parts(base.as_ptr(), 4096) }.to_vec()
}

fn data_in(heap: &Heap) -> Result<NonNull<Data<'_>>, String> {
    let root = heap.root_or("data", |alloc| Data {
        done: 0,
        accounts: [0; 64],
        history: HeapVec::new_in(alloc),
        names: HeapBTreeMap::new_in(alloc),
        large: HeapVec::new_in(alloc),
        guarded: HeapBox::new_in([0; 64], alloc),
    });
    root.map_err(failed)
}

impl Data<'_> {
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.done, &self.accounts, &self.history[..], &self.large[..], &self.guarded[..]).hash(&mut hasher);
        for (key, name) in self.names.iter() {
            (key, name.as_str()).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn is_balanced(&self) -> bool {
        self.accounts.iter().sum::<i64>() == 0 && self.guarded.iter().all(|number| *number == self.guarded[0])
    }
}

/// A section that is given up and begun anew.
const ABORTED: u8 = 1;

/// Makes the operation of this number, as one section or as a change under a guard.
fn operate(
    heap: &Heap,
    data: NonNull<Data<'_>>,
    progress: &Progress,
    number: u64,
    kind: Option<u8>,
) -> Result<(), String> {
    let mut rng = Rng::with_seed(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // SAFETY: this thread alone uses it.
    let data = unsafe { &mut *data.as_ptr() };
    let kind = kind.unwrap_or(rng.u8(..12));
    if kind == 0 {
        progress.guarded.store(number, Relaxed);
        progress.begun.store(number, Relaxed);
        {
            let _guard = heap.mutate();
            data.guarded.iter_mut().for_each(|own| *own = number);
            data.done = number;
        }
        progress.ended.store(number, Relaxed);
        progress.guarded.store(0, Relaxed);
        return Ok(());
    }
    progress.begun.store(number, Relaxed);
    let section = heap.section().map_err(failed)?;
    let changes = |value: &mut u64, to: u64| section.modify(value).map(|value| *value = to).map_err(failed);
    if kind == ABORTED {
        changes(&mut data.done, 0)?;
        for _ in 0..rng.usize(1..6) {
            let account = rng.usize(..64);
            *section.modify(&mut data.accounts[account]).map_err(failed)? += 5;
        }
        // SAFETY: nothing refers to the changes that are undone.
        unsafe { section.abort() }.map_err(failed)?;
    }
    changes(&mut data.done, number)?;
    match kind {
        2..=4 => {
            let key = rng.u64(..40);
            if rng.bool() {
                let text = format!("{number} ").repeat(rng.usize(1..30));
                data.names.insert(key, HeapString::from_str_in(&text, heap.allocator()));
            } else {
                data.names.remove(&key);
            }
        }
        5 => {
            // Filled before it is changed: nothing but the allocation says where it is.
            let mut large = HeapVec::with_capacity_in(6000, heap.allocator());
            large.extend((0..6000).map(|nth| nth ^ number));
            *section.modify(&mut data.large).map_err(failed)? = large;
        }
        _ => {
            let (from, to, cents) = (rng.usize(..64), rng.usize(..64), rng.i64(1..1000));
            *section.modify(&mut data.accounts[from]).map_err(failed)? -= cents;
            *section.modify(&mut data.accounts[to]).map_err(failed)? += cents;
            let history = section.modify(&mut data.history).map_err(failed)?;
            if history.len() == 300 {
                *history = HeapVec::new_in(heap.allocator());
            }
            history.push(number);
        }
    }
    drop(section);
    progress.ended.store(number, Relaxed);
    Ok(())
}

/// Sets a root to a new block, whose contents no section has written, and frees the old block.
fn set_root(heap: &Heap, progress: &Progress, number: u64) -> Result<(), String> {
    let layout = Layout::from_size_align(16 + number as usize * 40 % 3000, 8).expect("a layout");
    let old = heap.root::<u64>("spot").map_err(failed)?;
    progress.outside.fetch_add(1, Relaxed);
    let block = heap.allocate(layout).map_err(failed)?.cast::<u64>();
    // SAFETY: at least two numbers, allocated just now.
    unsafe {
        block.write(number);
        block.add(1).write(number);
    }
    progress.root_begun.store(number, Relaxed);
    heap.set_root("spot", Some(block)).map_err(failed)?;
    progress.root_set.store(number, Relaxed);
    if let Some(old) = old {
        // SAFETY: nobody uses it any more.
        unsafe { heap.free(old.cast()) }.map_err(failed)?;
    }
    progress.outside.fetch_sub(1, Relaxed);
    Ok(())
}

/// Operations of these numbers, all of one kind or of any; appends the digest after each.
fn run(heap: &Heap, progress: &Progress, many: u64, kind: Option<u8>, digests: &mut Vec<u64>) -> Result<(), String> {
    let data = data_in(heap)?;
    let mut blocks = Vec::new();
    for number in digests.len() as u64..digests.len() as u64 + many {
        operate(heap, data, progress, number, kind)?;
        // SAFETY: this thread alone uses it.
        digests.push(unsafe { data.as_ref() }.digest());
        if number % 9 == 4 {
            set_root(heap, progress, number)?;
        }
        let mut rng = Rng::with_seed(number);
        if rng.u8(..4) == 0 {
            let layout = Layout::from_size_align(rng.usize(1..90_000), 8).expect("a layout");
            progress.outside.fetch_add(1, Relaxed);
            blocks.push(heap.allocate(layout).map_err(failed)?);
        }
        if blocks.len() > 3 {
            let block = blocks.swap_remove(rng.usize(..blocks.len()));
            // SAFETY: nobody uses it.
            unsafe { heap.free(block) }.map_err(failed)?;
            progress.outside.fetch_sub(1, Relaxed);
        }
    }
    Ok(())
}

/// Checks the memory after a power cut: foretells the next opening. False: the heap goes back to its last cut, as it may.
fn foretell(path: &Path, start: &[u8], moment: &Moment) -> Result<bool, String> {
    let found = live_outlook(path, start).map_err(failed)?.ok_or("no memory is named")?.0;
    match (&found.next, moment.guarded) {
        (NextStart::GoesOn, _) => {}
        (NextStart::LastCut(_), 1..) => return Ok(false),
        (other, _) => return Err(format!("{other:?} at {moment:?}")),
    }
    let report = found.heap.ok_or("no heap")?;
    if let Some(problem) = report.problems.first() {
        return Err(format!("{problem}, at {moment:?}"));
    }
    // Besides the blocks that the program alone knows, a few were being allocated or freed.
    match report.leaks.map_or(0, |leaks| leaks.count) {
        leaks if leaks <= moment.outside + 2 => Ok(true),
        leaks => Err(format!("{leaks} blocks have leaked, at {moment:?}")),
    }
}

/// Checks the memory after a power cut outside of guards, with so many blocks that only the program knows: the next opening
/// goes on.
pub(super) fn goes_on(path: &Path, start: &[u8], outside: u64) -> Result<(), String> {
    foretell(path, start, &Moment { outside, ..Progress::default().now() }).map(|_| ())
}

/// Checks the data of a heap that goes on; returns the number of its last operation.
fn check(heap: &Heap, moment: &Moment, digests: &[u64]) -> Result<(u64, u64), String> {
    let wrong = |what: &str| Err(format!("{what}, at {moment:?}"));
    if heap.live().map(|live| live.start) != Some(LiveStart::WentOn) {
        return wrong("the heap did not go on");
    }
    let data = data_in(heap)?;
    // SAFETY: this thread alone uses it.
    let data = unsafe { data.as_ref() };
    if !(moment.ended..=moment.begun).contains(&data.done) {
        return wrong(&format!("operation {} is the last", data.done));
    }
    if data.digest() != digests[data.done as usize] || !data.is_balanced() {
        return wrong(&format!("the data are not those after operation {}", data.done));
    }
    let root = heap.root::<u64>("spot").map_err(failed)?;
    // SAFETY: two numbers, as `set_root` has stored them.
    let [number, again] = root.map_or([0; 2], |root| unsafe { [root.read(), root.add(1).read()] });
    if number != again || !(moment.root_set..=moment.root_begun).contains(&number) {
        return wrong(&format!("the root has {number} and {again}"));
    }
    Ok((data.done, number))
}

/// Power cuts within the openings and the work of a heap, and within those that follow.
pub(crate) fn sections_survive_power_cuts() -> Result<(), String> {
    let seeds: u64 = std::env::var("UNTORN_POWER_CUTS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2);
    let plan = Plan { operations: 250, kind: None, one_in: 80 };
    (0..seeds).try_for_each(|seed| cut_power(seed, plan).map_err(|e| format!("seed {seed}: {e}")))
}

/// Power cuts within sections that are given up and begun anew.
pub(crate) fn aborts_survive_power_cuts() -> Result<(), String> {
    cut_power(0, Plan { operations: 24, kind: Some(ABORTED), one_in: 2 })
}

/// The operations of a program, and how often the power is cut.
#[derive(Clone, Copy)]
struct Plan {
    operations: u64,
    /// The kind of all operations; None: any.
    kind: Option<u8>,
    /// The power is cut at one of so many events.
    one_in: u32,
}

fn cut_power(seed: u64, plan: Plan) -> Result<(), String> {
    let dir = TempDir::new().map_err(|e| e.to_string())?;
    let place = store(dir.path())?;
    let heap = open(&place)?;
    if !is_flushed(&heap) {
        return heap.close().map_err(failed);
    }
    let mut digests = Vec::new();
    // SAFETY: this thread alone uses it.
    digests.push(unsafe { data_in(&heap)?.as_ref() }.digest());
    heap.commit().map_err(failed)?;
    let (memory, start, path) = (memory_of(&heap)?, start_of(&heap), dir.path().join("heap"));
    let _removed = RemovedAtEnd(memory.clone());
    let progress = Arc::new(Progress::default());
    let cuts = {
        let progress = progress.clone();
        PowerCuts::begin(&memory, seed, plan.one_in, move || progress.now())?
    };
    run(&heap, &progress, plan.operations, plan.kind, &mut digests)?;
    let images = cuts.end()?;
    drop(heap);
    let mut nested = 0;
    for (nth, image) in images.iter().enumerate() {
        image.put(&memory).map_err(|e| e.to_string())?;
        if !foretell(&path, &start, &image.moment)? {
            continue;
        }
        // The power is cut within the opening, too, and soon after it.
        let (later, known) = power_cuts_after(&place, &memory, image, &digests, seed ^ nth as u64)?;
        nested += later.len();
        for image in later {
            image.put(&memory).map_err(|e| e.to_string())?;
            if foretell(&path, &start, &image.moment)? {
                check(&open(&place)?, &image.moment, &known)?;
            }
        }
    }
    println!("seed {seed}: {} power cuts, and {nested} after them", images.len());
    match images.len() {
        10.. => Ok(()),
        few => Err(format!("only {few} power cuts were tried")),
    }
}

/// Goes on from the memory after a power cut, and cuts the power again. Returns the images, and the digests.
fn power_cuts_after(
    place: &Store,
    memory: &Path,
    image: &Image<Moment>,
    digests: &[u64],
    seed: u64,
) -> Result<(Vec<Image<Moment>>, Vec<u64>), String> {
    let moment = image.moment;
    // Known only when the heap is open.
    let progress = Arc::new(Progress::at(0, 0));
    let opened = Arc::new(AtomicU64::new(0));
    let cuts = {
        let (progress, opened) = (progress.clone(), opened.clone());
        let now = move || if opened.load(Relaxed) == 0 { moment } else { progress.now() };
        PowerCuts::begin(memory, seed, 60, now)?
    };
    let heap = open(place)?;
    let (done, root) = check(&heap, &moment, digests)?;
    for (number, to) in [(&progress.begun, done), (&progress.ended, done)] {
        number.store(to, Relaxed);
    }
    progress.root_begun.store(root, Relaxed);
    progress.root_set.store(root, Relaxed);
    // Blocks that had leaked before stay allocated.
    progress.outside.store(moment.outside + 2, Relaxed);
    opened.store(1, Relaxed);
    let mut known = digests[..=done as usize].to_vec();
    run(&heap, &progress, 8, None, &mut known)?;
    Ok((cuts.end()?, known))
}

/// Calls of a heap that are durable when they return.
pub(crate) fn what_a_heap_in_memory_told_is_durable() -> Result<(), String> {
    let dir = TempDir::new().map_err(|e| e.to_string())?;
    let (place, path) = (store(dir.path())?, dir.path().join("heap"));
    let heap = open(&place)?;
    if !is_flushed(&heap) {
        return heap.close().map_err(failed);
    }
    let memory = memory_of(&heap)?;
    heap.close().map_err(failed)?;
    let moment = Progress::default().now();
    // New memory, a cut, and bytes that the program flushes.
    let cuts = PowerCuts::begin(&memory, 1, 0, move || moment)?;
    let heap = open(&place)?;
    let made = (cuts.least(moment)?, start_of(&heap));
    let number = heap.root_or("number", |_| AtomicU64::new(1)).map_err(failed)?;
    let before = start_of(&heap);
    heap.commit().map_err(failed)?;
    let cut = (cuts.least(moment)?, start_of(&heap));
    // SAFETY: a root of this type, which is only used as an atomic.
    unsafe { number.as_ref() }.store(2, Relaxed);
    heap.flush(number.as_ptr().cast(), 8).map_err(failed)?;
    let flushed = cuts.least(moment)?;
    cuts.end()?;
    drop(heap);
    for (what, (image, start)) in [("new memory", &made), ("a cut", &cut)] {
        image.put(&memory).map_err(|e| e.to_string())?;
        foretell(&path, start, &moment).map_err(|e| format!("{what}: {e}"))?;
    }
    // The memory knows of the cut, so a file from before it is another one.
    cut.0.put(&memory).map_err(|e| e.to_string())?;
    if foretell(&path, &before, &moment).is_ok() {
        return Err("an older file is gone on from".to_owned());
    }
    flushed.put(&memory).map_err(|e| e.to_string())?;
    let heap = open(&place)?;
    let number = heap.root_or("number", |_| AtomicU64::new(0)).map_err(failed)?;
    // SAFETY: as above.
    match unsafe { number.as_ref() }.load(Relaxed) {
        2 => heap.close().map_err(failed),
        other => Err(format!("a flushed number is {other}")),
    }
}

/// A power cut within the release of whole segments leaves no old bytes in the place of their metadata.
pub(crate) fn released_segments_are_zeros_after_a_power_cut() -> Result<(), String> {
    const BYTES: usize = 11 << 20;
    let dir = TempDir::new().map_err(|e| e.to_string())?;
    let (place, path) = (store(dir.path())?, dir.path().join("heap"));
    let heap = open(&place)?;
    if !is_flushed(&heap) {
        return heap.close().map_err(failed);
    }
    let block = heap.allocate(Layout::from_size_align(BYTES, 8).expect("a layout")).map_err(failed)?;
    // SAFETY: this many bytes were allocated just now.
    unsafe { block.as_ptr().write_bytes(0xee, BYTES) };
    heap.set_root("block", Some(block)).map_err(failed)?;
    heap.commit().map_err(failed)?;
    let (memory, start) = (memory_of(&heap)?, start_of(&heap));
    let _removed = RemovedAtEnd(memory.clone());
    heap.set_root::<u8>("block", None).map_err(failed)?;
    let moment = Moment { outside: 1, ..Progress::default().now() };
    let cuts = PowerCuts::begin(&memory, 1, 1, move || moment)?;
    // SAFETY: nobody uses it.
    unsafe { heap.free(block) }.map_err(failed)?;
    let last = cuts.least(moment)?;
    let images = cuts.end()?;
    drop(heap);
    for image in images.iter().chain([&last]) {
        image.put(&memory).map_err(|e| e.to_string())?;
        foretell(&path, &start, &image.moment)?;
    }
    if images.is_empty() { Err("nothing was flushed".to_owned()) } else { Ok(()) }
}

/// The threads of [`sections_of_threads_survive_power_cuts`].
const THREADS: usize = 3;

/// A number that each section of any thread counts up, and the sections of each thread. On cache lines of their own.
#[derive(Storable)]
#[repr(C)]
struct Counts {
    all: [u64; 8],
    own: [[u64; 8]; THREADS],
}

/// Sections of a thread, each of which gives the lock of the common number back before it ends.
fn count(heap: &Heap, counts: NonNull<Counts>, thread: usize, lock: &SectionLock, stable: &Arc<[AtomicU64; THREADS]>) {
    let own_lock = SectionLock::new();
    for number in 1..=120 {
        let section = heap.section_with(&own_lock).expect("a section");
        {
            let _early = heap.section_with(lock).expect("a section");
            // SAFETY: each user has the lock.
            let all = unsafe { &mut (*counts.as_ptr()).all[0] };
            *section.modify(all).expect("room") += 1;
        }
        // SAFETY: this thread's.
        let own = unsafe { &mut (*counts.as_ptr()).own[thread][0] };
        *section.modify(own).expect("room") = number;
        let stable = stable.clone();
        heap.on_stable(move || stable[thread].store(number, Relaxed)).expect("a section");
    }
}

/// Sections that saw changes of each other: after a power cut the common number is that of all sections that are there,
/// and all that were told to be stable are there.
pub(crate) fn sections_of_threads_survive_power_cuts() -> Result<(), String> {
    let dir = TempDir::new().map_err(|e| e.to_string())?;
    let (place, path) = (store(dir.path())?, dir.path().join("heap"));
    let heap = open(&place)?;
    if !is_flushed(&heap) {
        return heap.close().map_err(failed);
    }
    let counts = heap.root_or("counts", |_| Counts { all: [0; 8], own: [[0; 8]; THREADS] }).map_err(failed)?;
    heap.commit().map_err(failed)?;
    let (memory, start) = (memory_of(&heap)?, start_of(&heap));
    let _removed = RemovedAtEnd(memory.clone());
    let stable: Arc<[AtomicU64; THREADS]> = Arc::default();
    let told = stable.clone();
    let cuts = PowerCuts::begin(&memory, 1, 30, move || [0, 1, 2].map(|thread| told[thread].load(Relaxed)))?;
    let lock = SectionLock::new();
    let at = counts.as_ptr().expose_provenance();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (heap, lock, stable) = (&heap, &lock, &stable);
            scope.spawn(move || {
                let counts = NonNull::new(std::ptr::with_exposed_provenance_mut(at)).expect("an address");
                count(heap, counts, thread, lock, stable);
            });
        }
    });
    let images = cuts.end()?;
    drop(heap);
    for image in &images {
        image.put(&memory).map_err(|e| e.to_string())?;
        goes_on(&path, &start, 1)?;
        let heap = open(&place)?;
        let counts = heap.root::<Counts>("counts").map_err(failed)?.ok_or("no root")?;
        // SAFETY: nobody else uses it.
        let counts = unsafe { counts.as_ref() };
        let own = [0, 1, 2].map(|thread| counts.own[thread][0]);
        if counts.all[0] != own.iter().sum::<u64>() || own.iter().zip(&image.moment).any(|(own, told)| own < told) {
            return Err(format!("{} of {own:?}, of which {:?} were told", counts.all[0], image.moment));
        }
    }
    if images.len() < 10 { Err(format!("only {} power cuts were tried", images.len())) } else { Ok(()) }
}
