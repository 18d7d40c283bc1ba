//! Scenarios over the order of single steps of live heaps in byte-addressable memory that needs flushes.

use super::live_power::{RemovedAtEnd, goes_on, is_flushed, memory_of, open, options, start_of, store};
use super::opening::failed;
use crate::heaps::{Image, PowerCuts};
use std::alloc::Layout;
use std::cell::Cell;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use tempfile::TempDir;
use untorn::heap::{Heap, LiveStart, SectionLock, Storable};
use untorn::{FailureClass, Store};
use untorn_os::LineEvent;

/// Numbers, each on a cache line of its own.
#[derive(Storable)]
#[repr(C)]
struct Table {
    /// The address of a block.
    block: [u64; 8],
    other: [u64; 8],
    own: [[u64; 8]; 2],
}

/// A heap in memory that needs flushes, with everything durable so far.
struct Scene {
    dir: TempDir,
    place: Store,
    memory: PathBuf,
    /// The first bytes of the heap's last commit.
    start: Vec<u8>,
    _removed: RemovedAtEnd,
}

impl Scene {
    /// None: this processor flushes no lines.
    fn new() -> Result<Option<(Scene, Heap)>, String> {
        let dir = TempDir::new().map_err(|e| e.to_string())?;
        let place = store(dir.path())?;
        let heap = open(&place)?;
        if !is_flushed(&heap) {
            return heap.close().map_err(failed).map(|()| None);
        }
        heap.root_or("table", |_| Table { block: [0; 8], other: [0; 8], own: [[0; 8]; 2] }).map_err(failed)?;
        heap.commit().map_err(failed)?;
        let (memory, start) = (memory_of(&heap)?, start_of(&heap));
        let _removed = RemovedAtEnd(memory.clone());
        Ok(Some((Scene { dir, place, memory, start, _removed }, heap)))
    }

    /// The heap after a power cut. It must go on.
    fn after<M>(&self, image: &Image<M>) -> Result<Heap, String> {
        image.put(&self.memory).map_err(|e| e.to_string())?;
        goes_on(&self.dir.path().join("heap"), &self.start, 1)?;
        open(&self.place)
    }
}

fn table_in(heap: &Heap) -> Result<NonNull<Table>, String> {
    heap.root::<Table>("table").map_err(failed)?.ok_or_else(|| "the table is gone".to_owned())
}

/// Stores a number in a section.
fn put(heap: &Heap, lock: &SectionLock, place: *mut u64, number: u64) -> Result<(), String> {
    let section = heap.section_with(lock).map_err(failed)?;
    // SAFETY: a number in the table, which every user changes under this lock.
    *section.modify(unsafe { &mut *place }).map_err(failed)? = number;
    Ok(())
}

/// Whether the block that the table names is allocated.
fn block_is_there(heap: &Heap) -> Result<(), String> {
    // SAFETY: nobody else uses it.
    let at = unsafe { table_in(heap)?.as_ref() }.block[0];
    let block = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(at as usize)).ok_or("no block")?;
    heap.size_of(block).map(|_| ()).map_err(|_| "the block that the table names is free".to_owned())
}

/// A block that one section freed and another one got is not freed again by a recovery.
pub(crate) fn a_freed_block_is_freed_once() -> Result<(), String> {
    let Some((scene, heap)) = Scene::new()? else { return Ok(()) };
    let (table, lock) = (table_in(&heap)?.as_ptr(), SectionLock::new());
    let layout = Layout::from_size_align(48, 8).expect("a layout");
    let first = heap.allocate(layout).map_err(failed)?;
    // SAFETY: in the table, as everything below.
    let block = unsafe { &raw mut (*table).block[0] };
    put(&heap, &lock, block, first.as_ptr().expose_provenance() as u64)?;
    let cuts = PowerCuts::begin(&scene.memory, 1, 0, || ())?;
    let at = block.expose_provenance();
    let freed = std::thread::scope(|scope| {
        let (heap, lock, first) = (&heap, &lock, first.as_ptr().expose_provenance());
        let free = move || {
            let section = heap.section_with(lock).map_err(failed)?;
            // SAFETY: as above.
            *section.modify(unsafe { &mut *std::ptr::with_exposed_provenance_mut::<u64>(at) }).map_err(failed)? = 0;
            let block = NonNull::new(std::ptr::with_exposed_provenance_mut(first)).expect("an address");
            // SAFETY: nobody uses it.
            unsafe { heap.free(block) }.map_err(failed)
        };
        scope.spawn(free).join().expect("no panic")
    });
    freed?;
    {
        let section = heap.section_with(&lock).map_err(failed)?;
        let again = heap.allocate(layout).map_err(failed)?;
        if again != first {
            return Err("the block was not given out again".to_owned());
        }
        // SAFETY: as above.
        *section.modify(unsafe { &mut *block }).map_err(failed)? = again.as_ptr().expose_provenance() as u64;
    }
    let image = cuts.least(())?;
    cuts.end()?;
    drop(heap);
    block_is_there(&scene.after(&image)?)
}

/// A block that a section freed before it was aborted stays allocated when the section has ended.
pub(crate) fn an_aborted_free_frees_nothing() -> Result<(), String> {
    let Some((scene, heap)) = Scene::new()? else { return Ok(()) };
    let (table, lock) = (table_in(&heap)?.as_ptr(), SectionLock::new());
    let first = heap.allocate(Layout::from_size_align(48, 8).expect("a layout")).map_err(failed)?;
    // SAFETY: in the table, as everything below.
    let block = unsafe { &raw mut (*table).block[0] };
    put(&heap, &lock, block, first.as_ptr().expose_provenance() as u64)?;
    let cuts = PowerCuts::begin(&scene.memory, 1, 0, || ())?;
    {
        let section = heap.section_with(&lock).map_err(failed)?;
        // SAFETY: as above.
        *section.modify(unsafe { &mut *block }).map_err(failed)? = 0;
        // SAFETY: nobody uses it, but after the abort.
        unsafe { heap.free(first) }.map_err(failed)?;
        // SAFETY: nothing refers to the changes that are undone.
        unsafe { section.abort() }.map_err(failed)?;
    }
    let image = cuts.least(())?;
    cuts.end()?;
    drop(heap);
    block_is_there(&scene.after(&image)?)
}

thread_local! {
    /// The section of this thread is about to end, and is shown at the next flush of its log.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// Others see a section as stable only when a power cut cannot undo it any more: before the number that makes it stable
/// is flushed, another thread makes sections on its changes.
pub(crate) fn what_is_shown_as_stable_is_durable() -> Result<(), String> {
    let Some((scene, heap)) = Scene::new()? else { return Ok(()) };
    let (table, lock) = (table_in(&heap)?, SectionLock::new());
    let told: Arc<[AtomicU64; 2]> = Arc::default();
    let (base, bytes) = heap.memory();
    let in_heap = base.as_ptr() as usize..base.as_ptr() as usize + bytes;
    let (asks, asked) = channel::<Option<Sender<()>>>();
    let cuts = PowerCuts::begin(&scene.memory, 1, 0, || [0; 2])?;
    let ask = asks.clone();
    cuts.before_each(move |event| {
        let is_last = matches!(event, LineEvent::Flush(line) if !in_heap.contains(&line));
        if ENDS.get() && (!is_last || ENDS.replace(false)) {
            let (done, wait) = channel();
            if ask.send(Some(done)).is_ok() {
                let _ = wait.recv();
            }
        }
    });
    /// Counts the common number up, and notes the sections of this thread.
    fn count(heap: &Heap, at: usize, thread: usize, lock: &SectionLock, told: &Arc<[AtomicU64; 2]>, number: u64) {
        let (own_lock, told) = (SectionLock::new(), told.clone());
        let section = heap.section_with(&own_lock).expect("a section");
        // SAFETY: each user has the lock; the thread's own number is its own.
        let (all, own) = unsafe {
            let table = std::ptr::with_exposed_provenance_mut::<Table>(at);
            (&mut (*table).other[0], &mut (*table).own[thread][0])
        };
        {
            let _early = heap.section_with(lock).expect("a section");
            *section.modify(all).expect("room") += 1;
        }
        *section.modify(own).expect("room") = number;
        heap.on_stable(move || told[thread].store(number, Relaxed)).expect("a section");
        ENDS.set(thread == 0);
    }
    let at = table.as_ptr().expose_provenance();
    let images = std::thread::scope(|scope| {
        let (heap, lock, told) = (&heap, &lock, &told);
        scope.spawn(move || {
            count(heap, at, 0, lock, told, 1);
            ENDS.set(false);
            let _ = asks.send(None);
        });
        let mut images = Vec::new();
        while let Ok(Some(done)) = asked.recv() {
            count(heap, at, 1, lock, told, images.len() as u64 + 1);
            images.push(cuts.least([0, 1].map(|thread| told[thread].load(Relaxed))));
            drop(done);
        }
        images
    });
    let images = images.into_iter().collect::<Result<Vec<_>, _>>()?;
    cuts.end()?;
    drop(heap);
    if images.len() < 3 {
        return Err(format!("only {} sections were made meanwhile", images.len()));
    }
    for image in &images {
        let heap = scene.after(image)?;
        // SAFETY: nobody else uses it.
        let table = unsafe { table_in(&heap)?.as_ref() };
        let own = [0, 1].map(|thread| table.own[thread][0]);
        if table.other[0] != own.iter().sum::<u64>() || own.iter().zip(&image.moment).any(|(own, told)| own < told) {
            return Err(format!("{} of {own:?}, of which {:?} were told", table.other[0], image.moment));
        }
    }
    Ok(())
}

/// Memory that has grown is as long after a power cut as the heap's header says.
pub(crate) fn memory_that_grew_is_as_long() -> Result<(), String> {
    let Some((scene, heap)) = Scene::new()? else { return Ok(()) };
    // SAFETY: in the table.
    let block = unsafe { &raw mut (*table_in(&heap)?.as_ptr()).block[0] };
    let cuts = PowerCuts::begin(&scene.memory, 1, 0, || ())?;
    {
        let section = heap.section().map_err(failed)?;
        let large = heap.allocate(Layout::from_size_align(11 << 20, 8).expect("a layout")).map_err(failed)?;
        // SAFETY: in the table.
        *section.modify(unsafe { &mut *block }).map_err(failed)? = large.as_ptr().expose_provenance() as u64;
    }
    let image = cuts.least(())?;
    cuts.end()?;
    drop(heap);
    block_is_there(&scene.after(&image)?)
}

/// A recovery that a power cut interrupts has freed blocks whose bytes the next one restores. Where metadata are now, it
/// restores none.
pub(crate) fn a_recovery_that_is_repeated_spares_metadata() -> Result<(), String> {
    const SEGMENT: usize = 4 << 20;
    let Some((scene, heap)) = Scene::new()? else { return Ok(()) };
    let cuts = PowerCuts::begin(&scene.memory, 1, 0, || ())?;
    let image = {
        let section = heap.section().map_err(failed)?;
        let block = heap.allocate(Layout::from_size_align(11 << 20, 8).expect("a layout")).map_err(failed)?;
        // The place of the metadata of a segment within.
        let within = SEGMENT - (block.as_ptr() as usize) % SEGMENT;
        // SAFETY: within the block, which nobody else uses.
        let bytes = unsafe { std::slice::from_raw_parts_mut(block.as_ptr().add(within), 64 << 10) };
        bytes.fill(0xee);
        section.modify(&mut bytes[4096..9000]).map_err(failed)?.fill(1);
        cuts.least(())?
    };
    cuts.end()?;
    drop(heap);
    image.put(&scene.memory).map_err(|e| e.to_string())?;
    let cuts = PowerCuts::begin(&scene.memory, 1, 1, || ())?;
    drop(open(&scene.place)?);
    let images = cuts.end()?;
    if images.len() < 10 {
        return Err(format!("only {} power cuts were tried", images.len()));
    }
    images.iter().try_for_each(|image| scene.after(image).map(|_| ()))
}

/// Two sections that saw changes of each other have both happened or neither, also if the power is cut within the next
/// opening while that forgets their logs.
pub(crate) fn sections_that_saw_each_other_stay_together() -> Result<(), String> {
    let Some((scene, heap)) = Scene::new()? else { return Ok(()) };
    let at = table_in(&heap)?.as_ptr().expose_provenance();
    let locks: [SectionLock; 4] = [const { SectionLock::new() }; 4];
    let (asks, asked) = channel::<Option<Sender<()>>>();
    let cuts = PowerCuts::begin(&scene.memory, 1, 0, || ())?;
    let ask = asks.clone();
    cuts.before_each(move |_| {
        let (done, wait) = channel();
        if ENDS.get() && ask.send(Some(done)).is_ok() {
            let _ = wait.recv();
        }
    });
    let turns = Barrier::new(2);
    let section = |thread: usize| {
        let (heap, locks) = (&heap, &locks);
        let section = heap.section_with(&locks[2 + thread]).expect("a section");
        {
            let _early = heap.section_with(&locks[thread]).expect("a section");
            // SAFETY: the thread's own.
            let own = unsafe { &mut (*std::ptr::with_exposed_provenance_mut::<Table>(at)).own[thread][0] };
            *section.modify(own).expect("room") = 1;
        }
        turns.wait();
        drop(heap.section_with(&locks[1 - thread]).expect("a section"));
        turns.wait();
        section
    };
    let images = std::thread::scope(|scope| {
        let (section, turns) = (&section, &turns);
        scope.spawn(move || {
            drop(section(0));
            turns.wait();
        });
        scope.spawn(move || {
            let section = section(1);
            turns.wait();
            ENDS.set(true);
            drop(section);
            ENDS.set(false);
            let _ = asks.send(None);
        });
        let mut images = Vec::new();
        while let Ok(Some(done)) = asked.recv() {
            images.push(cuts.least(()));
            drop(done);
        }
        images
    });
    let images = images.into_iter().collect::<Result<Vec<_>, _>>()?;
    cuts.end()?;
    drop(heap);
    let mut seen = [false; 2];
    for (seed, image) in (0..6).flat_map(|seed| images.iter().map(move |image| (seed, image))) {
        image.put(&scene.memory).map_err(|e| e.to_string())?;
        let cuts = PowerCuts::begin(&scene.memory, seed, 1, || ())?;
        drop(open(&scene.place)?);
        for later in &cuts.end()? {
            let heap = scene.after(later)?;
            // SAFETY: nobody else uses it.
            let own = unsafe { table_in(&heap)?.as_ref() }.own;
            if own[0][0] != own[1][0] {
                return Err(format!("of two sections, {:?} have happened", [own[0][0], own[1][0]]));
            }
            seen[own[0][0] as usize] = true;
        }
    }
    if seen == [true; 2] { Ok(()) } else { Err(format!("none and both have happened: {seen:?}")) }
}

/// Memory that is of class `process` from an opening on does not take with it sections that had survived power cuts.
pub(crate) fn sections_survive_the_end_of_their_class() -> Result<(), String> {
    let Some((scene, heap)) = Scene::new()? else { return Ok(()) };
    // SAFETY: in the table.
    let other = unsafe { &raw mut (*table_in(&heap)?.as_ptr()).other[0] };
    put(&heap, &SectionLock::new(), other, 7)?;
    drop(heap);
    let heap = options().live_class(FailureClass::Process).open_in(&scene.place, "heap").map_err(failed)?;
    let live = heap.live().ok_or("no live heap")?;
    if (live.start, live.class) != (LiveStart::WentOn, FailureClass::Process) {
        return Err("the heap did not go on in class `process`".to_owned());
    }
    drop(heap);
    // Another boot.
    let memory = OpenOptions::new().write(true).open(&scene.memory).map_err(|e| e.to_string())?;
    memory.write_all_at(&[0xb0; 16], 16).map_err(|e| e.to_string())?;
    let heap = open(&scene.place)?;
    if !matches!(heap.live().map(|live| live.start), Some(LiveStart::LastCut(_))) {
        return Err("the heap went on from memory of another boot".to_owned());
    }
    // SAFETY: nobody else uses it.
    match unsafe { table_in(&heap)?.as_ref() }.other[0] {
        7 => Ok(()),
        number => Err(format!("the number is {number}")),
    }
}
