//! Finds pointers that lead out of a heap: after a restart, nothing is at their addresses.
//!
//! The search covers everything that the roots reach, at addresses that are multiples of eight, as compilers store
//! pointers.

use super::open_heap::Heap;
use crate::heap::image::check::Checker;
use crate::heap::image::pointer::{HeapPointer, HeapPointers};
use std::ops::Range;
use untorn_journal::format::sized_memory;
use untorn_journal::{Error, Result};
use untorn_os::process_memory;

/// The most pointers that are reported one by one.
const POINTERS_MOST: usize = 20;
/// The bytes that are read at once, a multiple of a pointer's size.
const PIECE_BYTES: u64 = 1 << 20;
/// Larger mappings are tables of sanitizers, not memory that programs point to.
const MAPPING_MOST: u64 = 256 << 30;
/// Values below are numbers more often than pointers.
const LOWEST: u64 = 4 << 30;

/// Address ranges where Linux puts programs, libraries and stacks by default: x86-64, then aarch64.
const PROGRAMS: [Range<u64>; 4] = [
    0x5555_5555_4000..0x5680_0000_0000,
    0x7e00_0000_0000..0x8000_0000_0000,
    0xaaaa_aaaa_a000..0xab00_0000_0000,
    0xff00_0000_0000..0x1_0000_0000_0000,
];

/// Searches all reached allocations; `target` names the mapping at an address out of the heap.
fn find(checker: &Checker<'_>, target: impl Fn(u64) -> Option<String>) -> Result<HeapPointers> {
    let mut found = HeapPointers::default();
    let mut piece = Vec::new();
    for (start, bytes) in checker.reached_allocations() {
        for at in (start..start + bytes).step_by(PIECE_BYTES as usize) {
            sized_memory::resize(&mut piece, (start + bytes - at).min(PIECE_BYTES) as usize, &checker.report.path)?;
            checker.read(&mut piece, at)?;
            for (n, word) in piece.chunks_exact(8).enumerate() {
                let value = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                let Some(target) = target(value) else { continue };
                found.count += 1;
                if found.first.len() < POINTERS_MOST {
                    found.first.push(HeapPointer {
                        allocation: checker.report.address + start,
                        allocation_bytes: bytes,
                        offset: at - start + n as u64 * 8,
                        value,
                        target,
                    });
                }
            }
        }
    }
    Ok(found)
}

/// Adds to the report of a closed heap the values that may be pointers out of it: addresses where programs usually are.
pub(crate) fn guess(checker: &mut Checker<'_>) -> Result<()> {
    if checker.report.is_sound() {
        let found = find(checker, |value| PROGRAMS.iter().any(|range| range.contains(&value)).then(String::new))?;
        checker.report.pointers = Some(found);
    }
    Ok(())
}

impl Heap {
    /// Looks for pointers that lead out of the heap into this process's memory: to the program's own heap, its stack,
    /// its static data and functions, or to another persistent heap. Numbers below 4 GiB are not taken for pointers.
    /// Reads all of the heap that its roots reach. Nobody can change the heap meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the heap is damaged.
    pub fn find_pointers(&self) -> Result<HeapPointers> {
        let _quiescent = self.quiesce()?;
        self.find_pointers_quiescent()
    }

    pub(crate) fn find_pointers_quiescent(&self) -> Result<HeapPointers> {
        let quiet = |_, _| {};
        let checker = self.check_all(&quiet)?;
        if let Some(problem) = checker.report.problems.first() {
            return Err(self.body().corrupt(problem.clone()));
        }
        let mut memory = process_memory().map_err(|e| Error::io("read", "/proc/self/maps", e))?;
        memory.retain(|(range, _)| range.end - range.start <= MAPPING_MOST);
        memory.sort_unstable_by_key(|(range, _)| range.start);
        let (start, space) = (checker.report.address, checker.report.address_space_bytes);
        find(&checker, |value| {
            if value < LOWEST || value.wrapping_sub(start) <= space {
                return None;
            }
            let next = memory.partition_point(|(range, _)| range.start <= value);
            let (range, name) = memory.get(next.checked_sub(1)?)?;
            range.contains(&value).then(|| name.clone())
        })
    }

    /// Refuses a commit in debug mode if a pointer leads out of the heap.
    pub(crate) fn refuse_pointers(&self) -> Result<()> {
        let found = self.find_pointers_quiescent()?;
        let Some(first) = found.first.first() else { return Ok(()) };
        let more = if found.count > 1 { format!("; {} such pointers in all", found.count) } else { String::new() };
        Err(Error::invalid(format!(
            "{}: {first}{more}. Pointers out of the heap are invalid after a restart. The commit was not made. Store \
             only types whose pointers stay in the heap",
            self.file().path().display()
        )))
    }
}
