//! Uncommitted contents of a small file, in memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The most bytes of all drafts together. Beyond that, files get objects, whose uncommitted bytes need not be in
/// memory.
pub(crate) const DRAFTS_MAX: usize = 32 << 20;

/// Number of bytes of all drafts.
#[derive(Clone, Default)]
pub(crate) struct Drafts(Arc<AtomicUsize>);

impl Drafts {
    /// Whether there is room for `more` bytes.
    pub fn have_room(&self, more: usize) -> bool {
        self.0.load(Relaxed) + more <= DRAFTS_MAX
    }
}

/// The bytes of a file with all uncommitted changes; the file may be longer, the rest is a hole.
pub(crate) struct Draft {
    bytes: Vec<u8>,
    /// Bytes outside this range are as committed.
    changed: Range<usize>,
    all: Drafts,
}

impl Draft {
    /// Makes the draft of a file with these bytes.
    pub fn new(all: &Drafts, bytes: Vec<u8>) -> Draft {
        all.0.fetch_add(bytes.len(), Relaxed);
        Draft { bytes, changed: 0..0, all: all.clone() }
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The range that differs from the committed bytes; empty if none does.
    pub fn changed(&self) -> Range<usize> {
        self.changed.clone()
    }

    fn resize(&mut self, len: usize) {
        let all = self.all.0.fetch_sub(self.bytes.len(), Relaxed);
        debug_assert!(all >= self.bytes.len(), "a draft of {} bytes, and {all} of all drafts", self.bytes.len());
        self.bytes.resize(len, 0);
        self.all.0.fetch_add(len, Relaxed);
    }

    fn change(&mut self, range: Range<usize>) {
        debug_assert!(range.end <= self.bytes.len(), "{range:?} of {} bytes changed", self.bytes.len());
        if range.is_empty() {
            return;
        }
        self.changed = match self.changed.is_empty() {
            true => range,
            false => self.changed.start.min(range.start)..self.changed.end.max(range.end),
        };
    }

    /// Writes bytes; a gap between the old end and them becomes zeros.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        let (end, len) = (offset + data.len(), self.bytes.len());
        if end > len {
            self.resize(end);
        }
        self.bytes[offset..end].copy_from_slice(data);
        self.change(offset.min(len)..end);
        debug_assert!(
            data.is_empty() || self.changed.start <= offset && end <= self.changed.end,
            "{offset}..{end} is written, and {:?} counts as changed",
            self.changed
        );
    }

    /// Sets a range to zeros, as far as there are bytes.
    pub fn zero(&mut self, range: Range<usize>) {
        let end = range.end.min(self.bytes.len());
        if range.start < end {
            self.bytes[range.start..end].fill(0);
            self.change(range.start..end);
        }
    }

    /// Removes the bytes from `len` on.
    pub fn cut(&mut self, len: usize) {
        if len < self.bytes.len() {
            self.resize(len);
            self.changed = self.changed.start.min(len)..self.changed.end.min(len);
        }
        debug_assert!(self.changed.end <= self.bytes.len(), "{:?} changed of {} bytes", self.changed, self.bytes.len());
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes.len(), Relaxed);
    }
}
