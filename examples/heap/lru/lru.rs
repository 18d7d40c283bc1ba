//! A cache in a heap, which keeps the most recently used values across restarts.
//! `lru HEAP CAPACITY`, then lines on standard input: `put KEY VALUE`, `get KEY`, `list`.

use hashbrown::HashTable;
use std::io::{BufRead, BufReader, Write};
use untorn::heap::{Heap, HeapVec, InHeap, RootOptions};

/// The version of the layout of all types below and of hashbrown's table: raise it whenever one of them changes.
const VERSION: u32 = 1;
/// No entry.
const NONE: u32 = u32::MAX;

/// Entries are linked by their places, from the most to the least recently used.
struct Cache {
    /// Places of entries, by their keys.
    table: HashTable<u32, InHeap>,
    entries: HeapVec<Entry>,
    first: u32,
    last: u32,
}

struct Entry {
    key: HeapVec<u8>,
    value: HeapVec<u8>,
    before: u32,
    after: u32,
}

/// FNV-1a. A table in a heap outlives the program, and the standard library's hash function may change.
fn hash(key: &[u8]) -> u64 {
    key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl Cache {
    fn new(alloc: InHeap) -> Cache {
        // With room for one: a table that has none points to a constant of this program, not into the heap.
        let table = HashTable::with_capacity_in(1, alloc);
        Cache { table, entries: HeapVec::new_in(alloc), first: NONE, last: NONE }
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        self.table.find(hash(key), |place| self.entries[*place as usize].key == key).copied()
    }

    fn entry(&mut self, place: u32) -> &mut Entry {
        &mut self.entries[place as usize]
    }

    fn unlink(&mut self, place: u32) {
        let Entry { before, after, .. } = self.entries[place as usize];
        *if before == NONE { &mut self.first } else { &mut self.entry(before).after } = after;
        *if after == NONE { &mut self.last } else { &mut self.entry(after).before } = before;
    }

    fn link_first(&mut self, place: u32) {
        let first = std::mem::replace(&mut self.first, place);
        (self.entry(place).before, self.entry(place).after) = (NONE, first);
        *if first == NONE { &mut self.last } else { &mut self.entry(first).before } = place;
    }

    fn get(&mut self, key: &[u8]) -> Option<&[u8]> {
        let place = self.find(key)?;
        self.unlink(place);
        self.link_first(place);
        Some(&self.entry(place).value)
    }

    fn put(&mut self, key: &[u8], value: &[u8], capacity: usize) {
        let alloc = *self.entries.allocator();
        let owned = |bytes: &[u8]| {
            let mut owned = HeapVec::with_capacity_in(bytes.len(), alloc);
            owned.extend_from_slice(bytes);
            owned
        };
        let place = if let Some(place) = self.find(key) {
            self.unlink(place);
            self.entry(place).value = owned(value);
            place
        } else {
            let entry = Entry { key: owned(key), value: owned(value), before: NONE, after: NONE };
            let place = if self.entries.len() < capacity {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            } else {
                // The least recently used entry makes room.
                let last = self.last;
                self.unlink(last);
                let gone = hash(&self.entries[last as usize].key);
                if let Ok(found) = self.table.find_entry(gone, |place| *place == last) {
                    found.remove();
                }
                *self.entry(last) = entry;
                last
            };
            let entries = &self.entries;
            self.table.insert_unique(hash(key), place, |place| hash(&entries[*place as usize].key));
            place
        };
        self.link_first(place);
    }

    fn list(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut place = self.first;
        while place != NONE {
            let entry = &self.entries[place as usize];
            text.extend([&entry.key[..], b"=", &entry.value[..], b" "].concat());
            place = entry.after;
        }
        text
    }

    fn answer(&mut self, line: &[u8], capacity: usize) -> Vec<u8> {
        let words: Vec<&[u8]> = line.splitn(3, |byte| *byte == b' ').collect();
        match words[..] {
            [b"put", key, value] => {
                self.put(key, value, capacity);
                b"ok".to_vec()
            }
            [b"get", key] => self.get(key).map_or(b"none".to_vec(), <[u8]>::to_vec),
            [b"list"] => self.list(),
            _ => b"put KEY VALUE, get KEY, or list".to_vec(),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("lru HEAP CAPACITY")?;
    let capacity = arguments.next().ok_or("lru HEAP CAPACITY")?.parse::<u32>()?.max(1) as usize;
    let heap = Heap::open_or_create(path)?;
    let version = RootOptions::new().version(VERSION);
    let root = heap.root_or_with("cache", version, Cache::new)?;
    // SAFETY: only this thread uses the root.
    let cache = unsafe { &mut *root.as_ptr() };
    heap.commit()?;

    // All requests received so far are one commit; the replies are sent after the commit.
    let (mut input, mut output, mut answers) = (BufReader::new(std::io::stdin()), std::io::stdout(), Vec::new());
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        answers.extend(cache.answer(line.trim_ascii_end(), capacity));
        answers.push(b'\n');
        line.clear();
        if !input.buffer().contains(&b'\n') {
            heap.commit()?;
            output.write_all(&answers)?;
            output.flush()?;
            answers.clear();
        }
    }
    Ok(heap.close()?)
}
