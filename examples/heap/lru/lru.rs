//! A cache in a heap, which keeps the most recently used values across restarts.
//! `lru HEAP CAPACITY`, then lines on standard input: `put KEY VALUE`, `get KEY`, `list`.

use std::io::{BufRead, BufReader, Write};
use untorn::heap::{Heap, HeapMap, HeapString, HeapVec, InHeap, RootOptions, Storable};

/// The version of the layout of all types below and of the crate's table: raise it whenever one of them changes.
const VERSION: u32 = 2;
/// No entry.
const NONE: u32 = u32::MAX;

/// Entries are linked by their places, from the most to the least recently used.
#[derive(Storable)]
struct Cache<'h> {
    /// Places of entries, by their keys.
    places: HeapMap<'h, HeapString<'h>, u32>,
    entries: HeapVec<'h, Entry<'h>>,
    first: u32,
    last: u32,
}

#[derive(Storable)]
struct Entry<'h> {
    key: HeapString<'h>,
    value: HeapVec<'h, u8>,
    before: u32,
    after: u32,
}

impl<'h> Cache<'h> {
    fn new(alloc: InHeap<'h>) -> Cache<'h> {
        Cache { places: HeapMap::new_in(alloc), entries: HeapVec::new_in(alloc), first: NONE, last: NONE }
    }

    fn find(&self, key: &str) -> Option<u32> {
        self.places.get(key).copied()
    }

    fn entry(&mut self, place: u32) -> &mut Entry<'h> {
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

    fn get(&mut self, key: &str) -> Option<&[u8]> {
        let place = self.find(key)?;
        self.unlink(place);
        self.link_first(place);
        Some(&self.entry(place).value)
    }

    fn put(&mut self, key: &str, value: &[u8], capacity: usize) {
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
            let entry =
                Entry { key: HeapString::from_str_in(key, alloc), value: owned(value), before: NONE, after: NONE };
            let place = if self.entries.len() < capacity {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            } else {
                // The least recently used entry makes room.
                let last = self.last;
                self.unlink(last);
                self.places.remove(self.entries[last as usize].key.as_str());
                *self.entry(last) = entry;
                last
            };
            self.places.insert(HeapString::from_str_in(key, alloc), place);
            place
        };
        self.link_first(place);
    }

    fn list(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut place = self.first;
        while place != NONE {
            let entry = &self.entries[place as usize];
            text.extend([entry.key.as_bytes(), b"=", &entry.value[..], b" "].concat());
            place = entry.after;
        }
        text
    }

    fn answer(&mut self, line: &[u8], capacity: usize) -> Vec<u8> {
        let words: Vec<&[u8]> = line.splitn(3, |byte| *byte == b' ').collect();
        match words[..] {
            [b"put", key, value] => {
                self.put(&String::from_utf8_lossy(key), value, capacity);
                b"ok".to_vec()
            }
            [b"get", key] => self.get(&String::from_utf8_lossy(key)).map_or(b"none".to_vec(), <[u8]>::to_vec),
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
