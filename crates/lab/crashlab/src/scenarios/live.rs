//! Scenarios over live heaps, on the machine's own memory: dropping a heap leaves it as a killed process does.

use super::opening::failed;
use std::alloc::Layout;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use tempfile::TempDir;
use untorn::__private::section_hooks;
use untorn::heap::{Heap, HeapOptions, LiveStart, SectionLock};

const LARGE_BYTES: usize = 11 << 20;

fn open(path: &Path) -> Result<Heap, String> {
    HeapOptions::new().create(true).live(true).address_space(64 << 20).open(path).map_err(failed)
}

/// A number, as a root of the heap.
fn number(heap: &Heap) -> Result<&AtomicU64, String> {
    let root = heap.root_or("number", |_| AtomicU64::new(0)).map_err(failed)?;
    // SAFETY: a root of this type, which is only used as an atomic.
    Ok(unsafe { root.as_ref() })
}

fn set(heap: &Heap, to: u64) -> Result<(), String> {
    number(heap)?.store(to, Relaxed);
    Ok(())
}

fn expect(heap: &Heap, wanted: u64, when: &str) -> Result<(), String> {
    match number(heap)?.load(Relaxed) {
        found if found == wanted => Ok(()),
        found => {
            Err(format!("{when}: {found}, not {wanted}, having begun as {:?}", heap.live().map(|live| live.start)))
        }
    }
}

/// A heap with 1 at its last cut, and 2 in its memory.
fn left(dir: &TempDir) -> Result<(PathBuf, PathBuf), String> {
    let path = dir.path().join("heap");
    let heap = open(&path)?;
    set(&heap, 1)?;
    heap.commit().map_err(failed)?;
    set(&heap, 2)?;
    let memory = heap.live().ok_or("no live heap")?.memory;
    Ok((path, memory))
}

fn directory() -> Result<TempDir, String> {
    tempfile::tempdir().map_err(|e| e.to_string())
}

/// A heap does not continue from memory of another heap or another boot, or from memory that is incomplete or makes no
/// sense.
pub(crate) fn a_live_heap_goes_on_from_its_own_memory() -> Result<(), String> {
    // Offsets in the head of `crates/core/untorn/src/heap/log/live_head.rs`; the last one is the descriptor of a chunk.
    let places =
        [("boot", 16), ("number", 32), ("file", 56), ("readiness", 64), ("metadata", (68 << 20) + 4096 + 5 * 64)];
    for (what, at) in places {
        let dir = directory()?;
        let (path, memory) = left(&dir)?;
        let file = File::options().write(true).open(memory).map_err(|e| e.to_string())?;
        file.write_all_at(&[0xee; 8], at).map_err(|e| e.to_string())?;
        let heap = open(&path)?;
        expect(&heap, 1, what)?;
        heap.close().map_err(failed)?;
    }
    Ok(())
}

/// If a guard is held when the process ends, the heap goes back to its last cut.
pub(crate) fn a_live_heap_goes_back_behind_a_change() -> Result<(), String> {
    let dir = directory()?;
    let (path, _) = left(&dir)?;
    let changing = path.clone();
    // A thread that ends with a guard never releases it.
    let thread = std::thread::spawn(move || {
        let heap = open(&changing)?;
        std::mem::forget(heap.mutate());
        set(&heap, 3)
    });
    thread.join().map_err(|_| "a thread panicked".to_owned())??;
    let heap = open(&path)?;
    expect(&heap, 1, "in a change")?;
    heap.close().map_err(failed)
}

/// Everything stored before the process ended is in the next cut, or in the next commit of an opening that is not live.
pub(crate) fn what_a_live_heap_had_is_committed() -> Result<(), String> {
    let dir = directory()?;
    let (path, memory) = left(&dir)?;
    let large = open(&path)?;
    let block = large.allocate(Layout::from_size_align(LARGE_BYTES, 8).expect("a layout")).map_err(failed)?;
    large.set_root("large", Some(block)).and_then(|()| large.commit()).map_err(failed)?;
    // Far from all bytes that the next opening reads.
    // SAFETY: within a block of this size.
    unsafe { block.add(LARGE_BYTES - 1).write(7) };
    drop(large);
    let heap = open(&path)?;
    if heap.live().map(|live| live.start) != Some(LiveStart::WentOn) {
        return Err("the heap did not go on".to_owned());
    }
    heap.commit().map_err(failed)?;
    drop(heap);
    std::fs::remove_file(memory).map_err(|e| e.to_string())?;
    let heap = open(&path)?;
    expect(&heap, 2, "at the last cut")?;
    let block = heap.root::<u8>("large").map_err(failed)?.ok_or("no root")?;
    // SAFETY: as above.
    if unsafe { block.add(LARGE_BYTES - 1).read() } != 7 {
        return Err("a store is missing in the first cut".to_owned());
    }
    set(&heap, 4)?;
    drop(heap);
    let heap = Heap::open(&path).map_err(failed)?;
    expect(&heap, 4, "in an opening that is not live")?;
    heap.close().map_err(failed)
}

/// Logs and stores a number of a heap, within a section.
fn store(heap: &Heap, name: &str, to: u64) -> Result<(), String> {
    let number = named(heap, name)?;
    // SAFETY: in the heap, and nobody else changes it.
    unsafe { section_hooks::log(std::ptr::from_ref(number).expose_provenance(), 8) };
    number.store(to, Relaxed);
    Ok(())
}

/// A named number in the heap.
fn named<'h>(heap: &'h Heap, name: &str) -> Result<&'h AtomicU64, String> {
    let root = heap.root_or(name, |_| AtomicU64::new(0)).map_err(failed)?;
    // SAFETY: a root of this type, which is only used as an atomic.
    Ok(unsafe { root.as_ref() })
}

/// Works on a heap in a thread that ends, and leaves the heap as a killed process does.
fn left_by(path: &Path, work: impl FnOnce(&Heap) -> Result<(), String> + Send) -> Result<(), String> {
    let heap = open(path)?;
    std::thread::scope(|scope| scope.spawn(|| work(&heap)).join()).map_err(|_| "a thread panicked".to_owned())?
}

/// An unfinished section is undone: blocks that it freed are still there, and blocks that it allocated are not.
pub(crate) fn a_section_is_all_or_nothing() -> Result<(), String> {
    let dir = directory()?;
    let (path, _) = left(&dir)?;
    left_by(&path, |heap| {
        let block = heap.allocate(Layout::from_size_align(5000, 8).expect("a layout")).map_err(failed)?;
        heap.set_root("block", Some(block)).map_err(failed)?;
        // A section that ends; the next one logs the same bytes again.
        let section = heap.section().map_err(failed)?;
        store(heap, "number", 3)?;
        drop(section);
        let section = heap.section().map_err(failed)?;
        store(heap, "number", 9)?;
        heap.allocate(Layout::from_size_align(777, 8).expect("a layout")).map_err(failed)?;
        // SAFETY: nobody uses it.
        unsafe { heap.free(block) }.map_err(failed)?;
        // The state of a process that is killed now.
        std::mem::forget(section);
        Ok(())
    })?;
    let heap = open(&path)?;
    expect(&heap, 3, "in a section")?;
    let block = heap.root::<u8>("block").map_err(failed)?.ok_or("no root")?;
    heap.size_of(block).map_err(failed)?;
    match heap.stats().map_err(failed)?.allocations {
        2 => heap.close().map_err(failed),
        found => Err(format!("{found} allocations, of which 2 are not undone")),
    }
}

/// A section that has seen changes of an unfinished one is undone with it, in the right order, although it has ended
/// itself.
pub(crate) fn what_saw_a_section_is_undone_with_it() -> Result<(), String> {
    let dir = directory()?;
    let (path, _) = left(&dir)?;
    let locks: [SectionLock; 2] = [const { SectionLock::new() }; 2];
    left_by(&path, |heap| {
        store(heap, "other", 5)?;
        // This thread has the first log, although its section comes later.
        drop(heap.section_with(&locks[1]).map_err(failed)?);
        let first = || {
            let section = heap.section().map_err(failed)?;
            let early = heap.section_with(&locks[0]).map_err(failed)?;
            store(heap, "number", 7)?;
            drop(early);
            std::mem::forget(section);
            Ok::<(), String>(())
        };
        std::thread::scope(|scope| scope.spawn(first).join()).map_err(|_| "a thread panicked".to_owned())??;
        let _section = heap.section_with(&locks[1]).map_err(failed)?;
        let _also = heap.section_with(&locks[0]).map_err(failed)?;
        store(heap, "number", 8)?;
        store(heap, "other", 6)
    })?;
    let heap = open(&path)?;
    expect(&heap, 2, "before both")?;
    match named(&heap, "other")?.load(Relaxed) {
        5 => heap.close().map_err(failed),
        found => Err(format!("what was seen is undone, and {found} is left of who saw it")),
    }
}

/// Opens a heap as after a power cut: without its memory.
fn after_a_power_cut(heap: Heap, path: &Path) -> Result<Heap, String> {
    let memory = heap.live().ok_or("no live heap")?.memory;
    drop(heap);
    std::fs::remove_file(memory).map_err(|e| e.to_string())?;
    open(path)
}

/// Cuts while a thread is in a section have none of its changes. A cut after the end of the section has all of them,
/// although nothing was stored since the cuts before.
pub(crate) fn a_cut_undoes_what_has_not_ended() -> Result<(), String> {
    for ended in [false, true] {
        let dir = directory()?;
        let path = dir.path().join("heap");
        let heap = open(&path)?;
        set(&heap, 1)?;
        let lock = SectionLock::new();
        let (reached, is_reached) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (heap, lock) = (&heap, &lock);
            let in_section = scope.spawn(move || {
                let _section = heap.section_with(lock).map_err(failed)?;
                let number = number(heap)?;
                // SAFETY: in the heap, and nobody else changes it.
                unsafe { section_hooks::log(std::ptr::from_ref(number).expose_provenance(), 8) };
                number.store(2, Relaxed);
                let _ = reached.send(());
                let _ = goes_on.recv();
                Ok::<(), String>(())
            });
            // Dropped at the end of this closure, also after a panic; then the section ends, too.
            let go_on = go_on;
            let cut = is_reached
                .recv()
                .map_err(|e| e.to_string())
                .and_then(|()| (0..2).try_for_each(|_| heap.commit()).map_err(failed));
            drop(go_on);
            in_section.join().map_err(|_| "a thread panicked".to_owned())??;
            cut
        })?;
        if ended {
            heap.commit().map_err(failed)?;
        }
        let heap = after_a_power_cut(heap, &path)?;
        expect(&heap, if ended { 2 } else { 1 }, "after a power cut")?;
        heap.close().map_err(failed)?;
    }
    Ok(())
}

/// Sets a flag that ends other threads when it is dropped, also after a panic.
struct Set<'a>(&'a AtomicBool);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Two numbers far from each other: at each moment the first equals the second, or is one more.
pub(crate) fn a_cut_is_of_one_moment() -> Result<(), String> {
    const BYTES: usize = 4 << 20;
    let dir = directory()?;
    let path = dir.path().join("heap");
    let mut heap = open(&path)?;
    let block = heap.allocate(Layout::from_size_align(BYTES, 8).expect("a layout")).map_err(failed)?;
    heap.set_root("block", Some(block)).map_err(failed)?;
    let block = block.as_ptr().expose_provenance();
    let at = |offset: usize| {
        // SAFETY: within the block, which is always at the same address, aligned, and used as atomics alone.
        unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(block + offset) }
    };
    (0..BYTES / 4096).for_each(|page| at(page * 4096).store(0, Relaxed));
    at(BYTES - 8).store(0, Relaxed);
    for _ in 0..20 {
        let stop = AtomicBool::new(false);
        let (first, last) = (at(0), at(BYTES - 8));
        let cut = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = last.load(Relaxed);
                while !stop.load(Relaxed) {
                    n += 1;
                    first.store(n, Relaxed);
                    last.store(n, Relaxed);
                }
            });
            // The pages in between change, too, and are copied between the two.
            scope.spawn(|| {
                for page in (1..BYTES / 4096).cycle().take_while(|_| !stop.load(Relaxed)) {
                    at(page * 4096).fetch_add(1, Relaxed);
                }
            });
            let _stop = Set(&stop);
            std::thread::sleep(std::time::Duration::from_millis(2));
            heap.commit()
        });
        cut.map_err(failed)?;
        heap = after_a_power_cut(heap, &path)?;
        let [first, last] = [first, last].map(|number| number.load(Relaxed));
        if first != last && first != last + 1 {
            return Err(format!("a cut has {first} and {last}"));
        }
        at(0).store(last, Relaxed);
    }
    heap.close().map_err(failed)
}
