//! Records of the undo logs of sections.

use super::flushing::Seed;
use crate::invariant;
use untorn_os::holds;

/// The number of threads that can have a log at the same time.
pub(crate) const PLACES: usize = 64;
pub(crate) const RECORD_BYTES: usize = 16;
pub(crate) const ADDRESS_BITS: u32 = 48;

/// The index of a log slot.
pub(crate) type Place = u8;

/// A section: its log slot, and its sequence number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SectionId {
    pub place: Place,
    pub number: u64,
}

/// The contents of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'l> {
    /// The old bytes, at most 8, at an address.
    Store { address: usize, old: [u8; 8], len: usize },
    /// More than 8 old bytes at an address.
    Bytes { address: usize, old: &'l [u8] },
    /// A section begins, at this time of the thread's clock.
    Begin { number: u64, clock: u64 },
    /// The section is complete, but may depend on others.
    End { number: u64 },
    /// The section has seen changes of another section that may still be rolled back.
    Depends { on: SectionId },
    /// From here on, the thread's clock has this time.
    Clock { clock: u64 },
    /// The section has allocated this block.
    Allocated { address: usize },
    /// The section frees this block, once it cannot be rolled back any more.
    Frees { address: usize },
    /// The record of a block that was freed, or is about to be.
    Freed,
    /// The checksum of the record before it.
    Check { sum: u64 },
}

const STORE: u64 = 1;
const BYTES: u64 = 2;
const BEGIN: u64 = 3;
const END: u64 = 4;
const DEPENDS: u64 = 5;
const CLOCK: u64 = 6;
const ALLOCATED: u64 = 7;
const FREES: u64 = 8;
const FREED: u64 = 9;
const CHECK: u64 = 10;

const fn word(kind: u64, address: u64, size: usize) -> u64 {
    address & ((1 << ADDRESS_BITS) - 1) | kind << ADDRESS_BITS | (size as u64) << (ADDRESS_BITS + 4)
}

/// Both words of a record without bytes behind it.
#[inline]
pub(crate) fn words_of(record: &Record<'_>) -> [u64; 2] {
    match *record {
        Record::Store { address, old, len } => [word(STORE, address as u64, len), u64::from_ne_bytes(old)],
        Record::Bytes { address, old } => [word(BYTES, address as u64, 0), old.len() as u64],
        Record::Begin { number, clock } => [word(BEGIN, number, 0), clock],
        Record::End { number } => [word(END, number, 0), 0],
        Record::Depends { on } => [word(DEPENDS, u64::from(on.place), 0), on.number],
        Record::Clock { clock } => [word(CLOCK, 0, 0), clock],
        Record::Allocated { address } => [word(ALLOCATED, address as u64, 0), 0],
        Record::Frees { address } => [word(FREES, address as u64, 0), 0],
        Record::Freed => [word(FREED, 0, 0), 0],
        Record::Check { sum } => [word(CHECK, 0, 0), sum],
    }
}

/// The first word of a record whose block is freed: the same, but for the kind.
pub(crate) const fn freed(first: u64) -> u64 {
    first & !(0xf << ADDRESS_BITS) | FREED << ADDRESS_BITS
}

/// A record's first word, as its checksum counts it: whether its block is freed changes by one store.
const fn summed(first: u64) -> u64 {
    if first >> ADDRESS_BITS & 0xf == FREED { first & !(0xf << ADDRESS_BITS) | FREES << ADDRESS_BITS } else { first }
}

/// The bytes of records at the start of a log that are valid, each with its checksum behind it.
pub(crate) fn valid_bytes(log: &[u8], generation: u64) -> usize {
    let (mut at, mut first) = (0, None);
    loop {
        let Some((record, len)) = parse_one(&log[at..]) else { return at };
        if let (None, Record::Begin { number, .. }) = (first, &record) {
            first = Some(*number);
        }
        let bytes = if let Record::Bytes { old, .. } = record { old } else { &[] };
        let Some((Record::Check { sum }, _)) = parse_one(&log[at + len..]) else { return at };
        let word = |at: usize| u64::from_ne_bytes(log[at..at + 8].try_into().expect("eight bytes"));
        let words = [summed(word(at)), word(at + 8)];
        let is_valid = first.is_some_and(|first| Seed { generation, first }.sum(at, words, bytes) == sum);
        if !is_valid && holds(invariant::LIVE_RECORDS_CHECKED) {
            return at;
        }
        at += len + RECORD_BYTES;
    }
}

/// The size of a record with this many old bytes.
pub(crate) fn bytes_record(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(RECORD_BYTES)?.checked_add(RECORD_BYTES)
}

/// Parses a log: each record with its offset. A last item of None means that the rest makes no sense.
pub(crate) fn parse(log: &[u8]) -> impl Iterator<Item = Option<(usize, Record<'_>)>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= log.len() {
            return None;
        }
        let Some((record, len)) = parse_one(&log[at..]) else {
            at = log.len();
            return Some(None);
        };
        let found = (at, record);
        at += len;
        Some(Some(found))
    })
}

fn parse_one(log: &[u8]) -> Option<(Record<'_>, usize)> {
    let word = |at: usize| Some(u64::from_ne_bytes(log.get(at..at + 8)?.try_into().ok()?));
    let (first, second) = (word(0)?, word(8)?);
    let address = first & ((1 << ADDRESS_BITS) - 1);
    let size = (first >> (ADDRESS_BITS + 4) & 0xff) as usize;
    let record = match first >> ADDRESS_BITS & 0xf {
        STORE if (1..=8).contains(&size) => {
            Record::Store { address: address as usize, old: second.to_ne_bytes(), len: size }
        }
        BYTES => {
            let len = usize::try_from(second).ok()?;
            let bytes = bytes_record(len).filter(|bytes| *bytes <= log.len())?;
            let old = &log[RECORD_BYTES..RECORD_BYTES + len];
            return Some((Record::Bytes { address: address as usize, old }, bytes));
        }
        BEGIN => Record::Begin { number: address, clock: second },
        END => Record::End { number: address },
        DEPENDS => {
            let place = Place::try_from(address).ok().filter(|place| (*place as usize) < PLACES)?;
            Record::Depends { on: SectionId { place, number: second } }
        }
        CLOCK => Record::Clock { clock: second },
        ALLOCATED => Record::Allocated { address: address as usize },
        FREES => Record::Frees { address: address as usize },
        FREED => Record::Freed,
        CHECK => Record::Check { sum: second },
        _ => return None,
    };
    Some((record, RECORD_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let old = [7; 45];
        let on = SectionId { place: 63, number: 1 << 60 };
        let address = (31 << 40) + 5;
        let records = [
            Record::Begin { number: 5, clock: u64::MAX },
            Record::Store { address, old: [1, 2, 3, 0, 0, 0, 0, 0], len: 3 },
            Record::Bytes { address, old: &old },
            Record::Bytes { address, old: &[] },
            Record::Depends { on },
            Record::Clock { clock: 9 },
            Record::Allocated { address },
            Record::Frees { address },
            Record::Freed,
            Record::Check { sum: u64::MAX },
            Record::End { number: 5 },
        ];
        let mut log = Vec::new();
        for record in &records {
            log.extend(words_of(record).iter().flat_map(|word| word.to_ne_bytes()));
            if let Record::Bytes { old, .. } = record {
                log.extend_from_slice(old);
                log.resize(log.len().next_multiple_of(RECORD_BYTES), 0);
            }
        }
        let read: Vec<_> = parse(&log).map(|found| found.expect("a record").1).collect();
        assert_eq!(read, records);
        // Reading stays within the bytes, and a cut-off record is reported.
        for end in 0..log.len() {
            let all: Vec<_> = parse(&log[..end]).collect();
            assert!(all.iter().filter(|found| found.is_none()).count() <= 1);
        }
        assert_eq!(parse(&[0xff; 16]).collect::<Vec<_>>(), [None]);
    }

    /// Records with checksums count up to the first one that is not as it was written.
    #[test]
    fn records_with_checksums_count_up_to_a_wrong_one() {
        let seed = Seed { generation: 3, first: 9 };
        let old = [5; 21];
        let records = [
            Record::Begin { number: 9, clock: 1 },
            Record::Store { address: 64, old: [1; 8], len: 8 },
            Record::Frees { address: 640 },
            Record::Bytes { address: 96, old: &old },
            Record::End { number: 9 },
            Record::Begin { number: 10, clock: 2 },
        ];
        let (mut log, mut ends) = (Vec::new(), Vec::new());
        for record in &records {
            let (at, words) = (log.len(), words_of(record));
            let bytes: &[u8] = if let Record::Bytes { old, .. } = record { old } else { &[] };
            log.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
            log.extend_from_slice(bytes);
            log.resize(log.len().next_multiple_of(RECORD_BYTES), 0xaa);
            let check = words_of(&Record::Check { sum: seed.sum(at, words, bytes) });
            log.extend(check.iter().flat_map(|word| word.to_ne_bytes()));
            ends.push(log.len());
        }
        let all = log.len();
        log.resize(all + 100, 0);
        assert_eq!(valid_bytes(&log, 3), all);
        assert_eq!([valid_bytes(&log, 2), valid_bytes(&log[..all - 1], 3)], [0, ends[4]]);
        for word in (0..all).step_by(8) {
            let mut torn = log.clone();
            // In a first word, the kind.
            let at = word + 6;
            torn[at] ^= 4;
            let whole = ends.iter().copied().take_while(|end| *end <= word).last().unwrap_or(0);
            // Bytes behind the old ones, up to the next record, do not count.
            let is_filling = (ends[2] + RECORD_BYTES + 21..ends[3] - RECORD_BYTES).contains(&at);
            assert_eq!(valid_bytes(&torn, 3), if is_filling { all } else { whole }, "word {word}");
        }
        // A freed block changes one word, and no checksum.
        let first = u64::from_ne_bytes(log[ends[1]..ends[1] + 8].try_into().unwrap());
        log[ends[1]..ends[1] + 8].copy_from_slice(&freed(first).to_ne_bytes());
        assert_eq!(valid_bytes(&log, 3), all);
        assert_eq!(parse(&log[ends[1]..]).next().flatten().map(|found| found.1), Some(Record::Freed));
    }
}
