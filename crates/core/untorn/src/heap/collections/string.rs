//! Text in a heap.

use super::in_heap::{HeapVec, InHeap};
use super::storable::Storable;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

/// Text in a heap, in UTF-8.
#[repr(transparent)]
pub struct HeapString<'h> {
    bytes: HeapVec<'h, u8>,
}

// SAFETY: a vector in the heap.
unsafe impl Storable for HeapString<'_> {}

impl<'h> HeapString<'h> {
    /// Empty text, which takes no memory.
    pub fn new_in(alloc: InHeap<'h>) -> HeapString<'h> {
        HeapString { bytes: HeapVec::new_in(alloc) }
    }

    /// A copy of text.
    pub fn from_str_in(text: &str, alloc: InHeap<'h>) -> HeapString<'h> {
        let mut bytes = HeapVec::with_capacity_in(text.len(), alloc);
        bytes.extend_from_slice(text.as_bytes());
        HeapString { bytes }
    }

    /// The allocator.
    pub fn allocator(&self) -> InHeap<'h> {
        *self.bytes.allocator()
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // SAFETY: only text was ever added, and only whole characters were cut off.
        unsafe { std::str::from_utf8_unchecked(&self.bytes) }
    }

    /// Notes that the length, and `len` bytes from `at` on, are about to change.
    fn changes(&mut self, at: usize, len: usize) {
        let alloc = self.allocator();
        alloc.changes_value(self);
        alloc.changes_part(&mut self.bytes, at..at + len);
    }

    /// Appends text.
    pub fn push_str(&mut self, text: &str) {
        self.changes(self.len(), text.len());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// Appends a character.
    pub fn push(&mut self, character: char) {
        self.push_str(character.encode_utf8(&mut [0; 4]));
    }

    /// Shortens the text to this many bytes.
    ///
    /// # Panics
    /// If that would cut a character in two.
    pub fn truncate(&mut self, bytes: usize) {
        if bytes < self.len() {
            assert!(self.is_char_boundary(bytes), "a place between characters");
            self.changes(0, 0);
            self.bytes.truncate(bytes);
        }
    }

    /// Makes the text empty.
    pub fn clear(&mut self) {
        self.changes(0, 0);
        self.bytes.clear();
    }
}

impl Deref for HeapString<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl DerefMut for HeapString<'_> {
    fn deref_mut(&mut self) -> &mut str {
        self.changes(0, self.len());
        // SAFETY: as in `as_str`.
        unsafe { std::str::from_utf8_unchecked_mut(&mut self.bytes) }
    }
}

impl Clone for HeapString<'_> {
    fn clone(&self) -> Self {
        HeapString::from_str_in(self, self.allocator())
    }
}

impl Borrow<str> for HeapString<'_> {
    fn borrow(&self) -> &str {
        self
    }
}

impl AsRef<str> for HeapString<'_> {
    fn as_ref(&self) -> &str {
        self
    }
}

impl PartialEq for HeapString<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for HeapString<'_> {}

impl PartialEq<str> for HeapString<'_> {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for HeapString<'_> {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialOrd for HeapString<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HeapString<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other)
    }
}

impl Hash for HeapString<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.as_str().hash(hasher);
    }
}

impl fmt::Write for HeapString<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push_str(text);
        Ok(())
    }
}

impl fmt::Display for HeapString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for HeapString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
