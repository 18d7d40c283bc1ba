//! Recovery of the sections of a killed process: reads the logs, and decides which sections are undone, and in which
//! order.
//!
//! A section is undone if it is not complete, if it has seen changes of a section that is undone, or if an earlier
//! section of the same thread is undone. All others have happened. Recovery changes no log, and undoing only stores old
//! bytes. So if an opening is killed during it, the next opening repeats all of it. All logs become void at once: a
//! section that saw changes of another one is undone right only with both logs.

use super::section_log::{PLACES, Place, Record, SectionId, SectionLogs, parse};
use crate::invariant;
use std::ops::Range;
use untorn_os::holds;

/// Old bytes, to be stored at an address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Old {
    pub address: usize,
    pub bytes: Vec<u8>,
}

/// The actions of a recovery.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// Bytes to restore, in this order.
    pub restore: Vec<Old>,
    /// Blocks to free, if they are allocated.
    pub free: Vec<usize>,
    /// The number of sections that are undone because they were not complete, and of those that are undone with them.
    pub incomplete: usize,
    pub cascaded: usize,
}

/// A section as its log records it.
struct LoggedSection<'l> {
    number: u64,
    complete: bool,
    depends: Vec<SectionId>,
    /// Old bytes, each with the thread's clock at that time.
    old: Vec<(u64, Record<'l>)>,
    allocated: Vec<usize>,
    frees: Vec<usize>,
}

/// The sections in the log of a place, in order. None: the log makes no sense.
fn sections_of(log: &[u8]) -> Option<Vec<LoggedSection<'_>>> {
    let (mut all, mut now): (Vec<LoggedSection<'_>>, u64) = (Vec::new(), 0);
    for found in parse(log) {
        let (_, record) = found?;
        if let Record::Begin { number, clock } = record {
            if all.last().is_some_and(|last| !last.complete || last.number >= number) {
                return None;
            }
            now = clock;
            all.push(LoggedSection {
                number,
                complete: false,
                depends: Vec::new(),
                old: Vec::new(),
                allocated: Vec::new(),
                frees: Vec::new(),
            });
            continue;
        }
        if let Record::Check { .. } = record {
            continue;
        }
        let section = all.last_mut().filter(|section| !section.complete)?;
        match record {
            Record::Begin { .. } | Record::Check { .. } => unreachable!("above"),
            Record::End { number } => {
                if number != section.number {
                    return None;
                }
                section.complete = true;
            }
            Record::Store { .. } | Record::Bytes { .. } => section.old.push((now, record)),
            Record::Depends { on } => section.depends.push(on),
            Record::Clock { clock } => now = clock,
            Record::Allocated { address } => section.allocated.push(address),
            Record::Frees { address } => section.frees.push(address),
            Record::Freed => {}
        }
    }
    // In memory that needs flushes, the record that begins a section may be there alone.
    let is_empty = |last: &LoggedSection<'_>| {
        !last.complete && last.old.is_empty() && last.allocated.is_empty() && last.frees.is_empty()
    };
    if all.last().is_some_and(|last| is_empty(last) && last.depends.is_empty()) {
        all.pop();
    }
    Some(all)
}

/// The number of sections of each place that have happened: the largest consistent set.
fn happened(places: &[Vec<LoggedSection<'_>>], stable: impl Fn(Place) -> u64) -> Vec<usize> {
    let mut limits: Vec<usize> =
        places.iter().map(|all| all.iter().take_while(|section| section.complete).count()).collect();
    loop {
        let is_there = |on: &SectionId| {
            let place = on.place as usize;
            on.number <= stable(on.place)
                || places[place][..limits[place]].last().is_some_and(|last| last.number >= on.number)
                || !holds(invariant::SECTION_CASCADES)
        };
        let next: Vec<usize> = places
            .iter()
            .zip(&limits)
            .map(|(all, limit)| all[..*limit].iter().take_while(|section| section.depends.iter().all(is_there)).count())
            .collect();
        if next == limits {
            return limits;
        }
        limits = next;
    }
}

/// Reads the logs of a heap at these addresses. None: they make no sense.
///
/// # Safety
/// Nobody changes the logs meanwhile.
pub(crate) unsafe fn recover(logs: &SectionLogs, heap: Range<usize>) -> Option<Recovery> {
    let mut recovery = Recovery::default();
    let mut places = Vec::new();
    for place in 0..PLACES as Place {
        // SAFETY: the caller's promise.
        let mut all = sections_of(unsafe { logs.read(place) }?)?;
        let stable = logs.last_stable(place);
        // The blocks that these sections free may not be freed yet.
        let past = all.iter().take_while(|section| section.number <= stable).count();
        recovery.free.extend(all.drain(..past).flat_map(|section| section.frees));
        places.push(all);
    }
    let limits = happened(&places, |place| logs.last_stable(place));
    let mut undone = Vec::new();
    for (all, limit) in places.iter().zip(&limits) {
        recovery.free.extend(all[..*limit].iter().flat_map(|section| section.frees.iter().copied()));
        for section in &all[*limit..] {
            match section.complete {
                true => recovery.cascaded += 1,
                false => recovery.incomplete += 1,
            }
            undone.extend(section.old.iter().copied());
            if holds(invariant::SECTION_ALLOCATIONS_UNDONE) {
                recovery.free.extend(section.allocated.iter().copied());
            }
        }
    }
    if !holds(invariant::SECTION_UNDONE) {
        return Some(recovery);
    }
    // Records of one place are in order; between places the clock orders them. The latest comes first.
    undone.reverse();
    if holds(invariant::SECTION_UNDONE_IN_ORDER) {
        undone.sort_by_key(|(clock, _)| std::cmp::Reverse(*clock));
    }
    for (_, record) in undone {
        let (address, bytes) = match record {
            Record::Store { address, old, len } => (address, old[..len].to_vec()),
            Record::Bytes { address, old } => (address, old.to_vec()),
            _ => continue,
        };
        if address < heap.start || address.checked_add(bytes.len()).is_none_or(|end| end > heap.end) {
            return None;
        }
        recovery.restore.push(Old { address, bytes });
    }
    recovery.free.sort_unstable();
    recovery.free.dedup();
    Some(recovery)
}

#[cfg(test)]
mod tests {
    use super::super::section_log::LogWriter;
    use super::*;
    use std::ptr::NonNull;
    use std::sync::atomic::Ordering::Relaxed;
    use untorn_os::LIVE_HEAD_BYTES;

    /// Runs `work` with logs in zeroed memory.
    fn with_logs(work: impl FnOnce(&SectionLogs, &mut dyn FnMut(Place, &[Record<'_>]))) {
        let layout = std::alloc::Layout::from_size_align(LIVE_HEAD_BYTES, 4096).unwrap();
        // SAFETY: a size that is not zero.
        let head = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
        // SAFETY: as many bytes as a head has, which outlive every use.
        let logs = unsafe { SectionLogs::at(head) };
        let mut write = |place: Place, records: &[Record<'_>]| {
            logs.tail(place).store(0, Relaxed);
            let mut writer = LogWriter::new();
            writer.begin((0, 1), &logs, place, 1 << 20, None);
            records.iter().for_each(|record| _ = writer.append(record));
        };
        work(&logs, &mut write);
        // SAFETY: allocated above.
        unsafe { std::alloc::dealloc(head.as_ptr(), layout) };
    }

    fn store(address: usize, old: u8) -> Record<'static> {
        Record::Store { address, old: [old, 0, 0, 0, 0, 0, 0, 0], len: 1 }
    }

    fn begin(number: u64, clock: u64) -> Record<'static> {
        Record::Begin { number, clock }
    }

    fn depends(place: Place, number: u64) -> Record<'static> {
        Record::Depends { on: SectionId { place, number } }
    }

    /// The addresses that are restored, in order, and the blocks that are freed.
    fn outcome(logs: &SectionLogs) -> Option<(Vec<usize>, Vec<usize>)> {
        // SAFETY: this thread alone has them.
        let once = unsafe { recover(logs, 100..200) };
        // SAFETY: as above.
        assert_eq!(once, unsafe { recover(logs, 100..200) });
        once.map(|found| (found.restore.iter().map(|old| old.address).collect(), found.free))
    }

    #[test]
    fn what_saw_an_incomplete_section_is_undone_with_it() {
        with_logs(|logs, write| {
            write(0, &[begin(1, 1), store(101, 1), store(102, 2)]);
            // The second section of the second thread has seen it, and the third follows the second.
            write(
                1,
                &[
                    begin(1, 1),
                    store(110, 1),
                    Record::End { number: 1 },
                    begin(2, 2),
                    depends(0, 1),
                    Record::Clock { clock: 5 },
                    store(111, 1),
                    Record::Frees { address: 150 },
                    Record::End { number: 2 },
                    begin(3, 5),
                    Record::Allocated { address: 160 },
                    store(112, 1),
                    Record::End { number: 3 },
                ],
            );
            write(
                2,
                &[
                    begin(1, 1),
                    store(130, 1),
                    depends(1, 3),
                    Record::Clock { clock: 9 },
                    store(120, 0),
                    Record::End { number: 1 },
                ],
            );
            assert_eq!(outcome(logs), Some((vec![120, 112, 111, 130, 102, 101], vec![160])));
            // Once the first section is stable, nothing is undone, and its freed block is freed.
            logs.set_stable(0, 1);
            assert_eq!(outcome(logs), Some((vec![], vec![150])));
        });
    }

    #[test]
    fn sections_that_saw_each_other_happen_together() {
        with_logs(|logs, write| {
            let circle = |on: Place| [begin(7, 1), depends(on, 7), store(101, 1), Record::End { number: 7 }];
            logs.set_stable(0, 6);
            logs.set_stable(1, 6);
            write(0, &circle(1));
            write(1, &circle(0));
            assert_eq!(outcome(logs), Some((vec![], vec![])));
            write(1, &circle(0)[..3]);
            assert_eq!(outcome(logs).unwrap().0.len(), 2);
        });
    }

    #[test]
    fn logs_that_make_no_sense_are_told() {
        with_logs(|logs, write| {
            for wrong in [
                &[store(101, 1)][..],
                &[begin(2, 1), begin(3, 1)],
                &[begin(2, 1), Record::End { number: 3 }],
                &[begin(2, 1), Record::End { number: 2 }, store(101, 1)],
                &[begin(2, 1), store(200, 1)],
                &[begin(2, 1), store(99, 1)],
            ] {
                write(3, wrong);
                assert_eq!(outcome(logs), None, "{wrong:?}");
            }
            logs.tail(3).store(u64::MAX, Relaxed);
            assert_eq!(outcome(logs), None);
            logs.settle_all();
            assert_eq!(outcome(logs), Some((vec![], vec![])));
        });
    }
}
