//! Costs of sections of a live heap whose memory survives power cuts:
//! `cargo run --release -p untorn --example live_power_cost -- DIRECTORY [SECTIONS]` (100000). Ordinary memory stands for
//! byte-addressable memory, so the flushes reach the processor's own memory. Prints the time of a section by the number of
//! its stores of 8 bytes: without flushes, as with caches that the hardware writes back, and with flushes.

use std::path::{Path, PathBuf};
use std::time::Instant;
use untorn::__private::OpenStoreOn;
use untorn::heap::{HeapOptions, SectionLock};
use untorn::{FailureClass, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::Linux;

const NUMBERS: usize = 64 * 64;

/// Nanoseconds of a section with so many stores, each to a line of its own.
fn section_ns(dir: &Path, class: FailureClass, stores: usize, sections: usize) -> untorn::Result<(f64, bool)> {
    let storage = Linux::open_as_memory(dir).expect("a directory");
    let store = StoreOptions::new().create(true).open_on(storage, StoreDir::of_directory(), dir.to_owned())?;
    let heap = HeapOptions::new().create(true).live(true).live_class(class).open_in(&store, "heap")?;
    let flushes = heap.live().is_some_and(|live| live.flushes);
    let numbers = heap.root_or("numbers", |_| [0u64; NUMBERS])?;
    // SAFETY: this thread alone uses it.
    let numbers = unsafe { &mut *numbers.as_ptr() };
    let lock = SectionLock::new();
    let begun = Instant::now();
    for nth in 0..sections {
        let section = heap.section_with(&lock)?;
        for line in 0..stores {
            let at = (nth * stores + line) % (NUMBERS / 8) * 8;
            *section.modify(&mut numbers[at])? += 1;
        }
    }
    let ns = begun.elapsed().as_nanos() as f64 / sections as f64;
    heap.close()?;
    Ok((ns, flushes))
}

fn main() -> untorn::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().expect("a directory"));
    let sections = arguments.next().map_or(100_000, |number| number.parse().expect("a number of sections"));
    std::fs::create_dir_all(&dir).expect("a directory");
    for stores in [1, 8, 64] {
        for class in [FailureClass::Process, FailureClass::Memory] {
            let (ns, flushes) = section_ns(&dir, class, stores, sections)?;
            let how = if flushes { "flushed" } else { "the log alone" };
            println!("{stores} stores  {how}  {ns:.0} ns");
        }
    }
    Ok(())
}
