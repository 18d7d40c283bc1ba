//! The data of the demonstration: a file of records and an index of them, as in a small database.
//!
//! The data file is a header and then records: id, length, generation, text. The index is a header and one entry for
//! each record: place, room, length, generation and checksum of the record. Every update rewrites some dozens of
//! records and their entries, and counts the generation up in both headers. Some records are rewritten in place, and
//! some are moved to the end. The index header holds a sum over all entries, so that a missing part of an update is
//! noticed.

use crate::medium::{Medium, Which};
use std::fmt;
use untorn_terminal::Failure;

const MAGIC: u64 = u64::from_le_bytes(*b"untorndm");
/// Headers have a page of their own, as they would in a real database.
const HEADER_BYTES: u64 = 4096;
const ENTRY_BYTES: usize = 40;
const RECORD_HEAD_BYTES: usize = 24;
/// The longest line that an update puts before a record's text.
const STAMP_BYTES_MAX: usize = 40;
pub const RECORDS_PER_UPDATE: usize = 64;
/// One of so many rewritten records moves to the end of the file.
const MOVES_ONE_IN: u32 = 8;

fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn word(bytes: &[u8], n: usize) -> u64 {
    u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().expect("eight bytes"))
}

/// The place of a record, and its expected state.
#[derive(Clone, Copy)]
struct Entry {
    offset: u64,
    room: u64,
    len: u64,
    generation: u64,
    checksum: u64,
}

impl Entry {
    fn encode(&self) -> Vec<u8> {
        words(&[self.offset, self.room, self.len, self.generation, self.checksum])
    }

    fn decode(b: &[u8]) -> Entry {
        Entry { offset: word(b, 0), room: word(b, 1), len: word(b, 2), generation: word(b, 3), checksum: word(b, 4) }
    }

    /// This entry's share of the sum over all of them.
    fn share(&self, id: usize) -> u64 {
        checksum(&[words(&[id as u64]), self.encode()].concat())
    }
}

/// A state of the files that no sequence of complete updates leads to.
#[derive(Debug, PartialEq, Eq)]
pub struct Torn(pub String);

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The database in the memory of the program that updates it.
pub struct Records {
    generation: u64,
    end: u64,
    sum: u64,
    entries: Vec<Entry>,
}

impl Records {
    /// Writes the first generation, one record for each text, without committing it.
    pub fn build(medium: &mut dyn Medium, texts: &[Vec<u8>]) -> Result<Records, Failure> {
        let blank = Entry { offset: 0, room: 0, len: 0, generation: 0, checksum: 0 };
        let mut records = Records { generation: 1, end: HEADER_BYTES, sum: 0, entries: vec![blank; texts.len()] };
        records.sum = (0..texts.len()).fold(0, |sum, id| sum.wrapping_add(blank.share(id)));
        for (id, text) in texts.iter().enumerate() {
            records.write_record(medium, id, text, true)?;
        }
        records.write_headers(medium)?;
        Ok(records)
    }

    /// Reads the index of a verified database.
    pub fn load(medium: &dyn Medium) -> Result<Records, Failure> {
        let data = medium.read(Which::Data, 0, HEADER_BYTES as usize)?;
        let index = medium.read(Which::Index, 0, HEADER_BYTES as usize)?;
        let count = word(&index, 2) as usize;
        let entries = medium.read(Which::Index, HEADER_BYTES, count * ENTRY_BYTES)?;
        Ok(Records {
            generation: word(&data, 1),
            end: word(&data, 2),
            sum: word(&index, 3),
            entries: entries.chunks_exact(ENTRY_BYTES).map(Entry::decode).collect(),
        })
    }

    /// Makes one update of many pages in both files, without committing it. Returns the new generation.
    pub fn update(
        &mut self,
        medium: &mut dyn Medium,
        texts: &[Vec<u8>],
        random: &mut fastrand::Rng,
    ) -> Result<u64, Failure> {
        self.generation += 1;
        for id in random.choose_multiple(0..self.entries.len(), RECORDS_PER_UPDATE) {
            let text = &texts[id][..random.usize(texts[id].len() / 2..=texts[id].len())];
            let moves = random.u32(..MOVES_ONE_IN) == 0;
            self.write_record(medium, id, text, moves)?;
        }
        self.write_headers(medium)?;
        Ok(self.generation)
    }

    fn write_record(&mut self, medium: &mut dyn Medium, id: usize, text: &[u8], moves: bool) -> Result<(), Failure> {
        let stamp = format!("Generation: {}\n", self.generation);
        let mut record = words(&[id as u64, (stamp.len() + text.len()) as u64, self.generation]);
        record.extend_from_slice(stamp.as_bytes());
        record.extend_from_slice(text);

        let old = self.entries[id];
        let mut entry =
            Entry { len: record.len() as u64, generation: self.generation, checksum: checksum(&record), ..old };
        if moves || entry.len > old.room {
            entry.offset = self.end;
            entry.room = old.room.max((RECORD_HEAD_BYTES + STAMP_BYTES_MAX + text.len()) as u64);
            self.end += entry.room;
        }
        self.sum = self.sum.wrapping_sub(old.share(id)).wrapping_add(entry.share(id));
        self.entries[id] = entry;
        medium.write(Which::Data, &record, entry.offset)?;
        medium.write(Which::Index, &entry.encode(), HEADER_BYTES + (id * ENTRY_BYTES) as u64)
    }

    fn write_headers(&self, medium: &mut dyn Medium) -> Result<(), Failure> {
        let mut data = words(&[MAGIC, self.generation, self.end]);
        let mut index = words(&[MAGIC, self.generation, self.entries.len() as u64, self.sum]);
        data.resize(HEADER_BYTES as usize, 0);
        index.resize(HEADER_BYTES as usize, 0);
        medium.write(Which::Data, &data, 0)?;
        medium.write(Which::Index, &index, 0)
    }
}

/// Checks all of both files, without trusting any part. Returns the generation, or the reason why they are torn.
pub fn verify(medium: &dyn Medium) -> Result<Result<u64, Torn>, Failure> {
    let torn = |text: String| Ok(Err(Torn(text)));
    let data = medium.read(Which::Data, 0, HEADER_BYTES as usize)?;
    let index = medium.read(Which::Index, 0, HEADER_BYTES as usize)?;
    if data.len() < HEADER_BYTES as usize || index.len() < HEADER_BYTES as usize {
        return torn("a header is cut off".to_owned());
    }
    if word(&data, 0) != MAGIC || word(&index, 0) != MAGIC {
        return torn("a header is invalid".to_owned());
    }
    let (generation, of_index) = (word(&data, 1), word(&index, 1));
    let (count, sum) = (word(&index, 2), word(&index, 3));
    let entries = medium.read(Which::Index, HEADER_BYTES, count as usize * ENTRY_BYTES)?;
    if entries.len() < count as usize * ENTRY_BYTES {
        return torn("the index is cut off".to_owned());
    }
    let mut found_sum = 0u64;
    for (id, bytes) in entries.chunks_exact(ENTRY_BYTES).enumerate() {
        let entry = Entry::decode(bytes);
        found_sum = found_sum.wrapping_add(entry.share(id));
        let record = medium.read(Which::Data, entry.offset, entry.len as usize)?;
        if record.len() < RECORD_HEAD_BYTES || checksum(&record) != entry.checksum {
            return torn(format!("the index entry of record {id} does not point to that record"));
        }
        if word(&record, 0) != id as u64 || word(&record, 2) != entry.generation || entry.generation > generation {
            return torn(format!("record {id} is of another generation than the index says"));
        }
    }
    if found_sum != sum {
        return torn("the index holds part of an update".to_owned());
    }
    if generation != of_index {
        return torn(format!("the data is of generation {generation}, the index of {of_index}"));
    }
    Ok(Ok(generation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::Memory;

    fn texts() -> Vec<Vec<u8>> {
        (0..80u8).map(|n| vec![b'a' + n % 26; 100 + usize::from(n) * 37]).collect()
    }

    #[test]
    fn whole_updates_verify() {
        let (mut medium, texts, mut random) = (Memory::default(), texts(), fastrand::Rng::with_seed(1));
        Records::build(&mut medium, &texts).unwrap();
        assert_eq!(verify(&medium).unwrap(), Ok(1));
        for generation in 2..60 {
            let mut records = Records::load(&medium).unwrap();
            assert_eq!(records.update(&mut medium, &texts, &mut random).unwrap(), generation);
            assert_eq!(verify(&medium).unwrap(), Ok(generation));
        }
    }

    /// The demonstration proves something only if its check notices every kind of tear.
    #[test]
    fn an_update_cut_short_anywhere_or_with_a_hole_is_noticed() {
        let (mut medium, texts, mut random) = (Memory::default(), texts(), fastrand::Rng::with_seed(2));
        let mut records = Records::build(&mut medium, &texts).unwrap();
        let before = medium.clone();
        medium.log.clear();
        records.update(&mut medium, &texts, &mut random).unwrap();
        let after = medium.clone();
        let writes = after.log.len();
        assert_eq!(writes, 2 * RECORDS_PER_UPDATE + 2);
        for cut in 1..writes {
            let mut torn = before.clone();
            after.log[..cut].iter().for_each(|w| torn.apply(w));
            assert!(verify(&torn).unwrap().is_err(), "cut after {cut} of {writes} writes");
        }
        for hole in 0..writes {
            let mut torn = before.clone();
            after.log.iter().enumerate().filter(|(n, _)| *n != hole).for_each(|(_, w)| torn.apply(w));
            let harmless = torn.same_contents(&after);
            assert_eq!(verify(&torn).unwrap().is_err(), !harmless, "without write {hole} of {writes}");
        }
    }
}
