//! A hash table on Untorn's heap, in Rust, that names its dirty ranges: chains of nodes in a fixed number of buckets.

use super::kv_store::{Entry, Key, Scan, Store, taste};
use crate::measuring::harness::Activity;
use anyhow::Result;
use std::alloc::Layout;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use untorn::TrackerKind;
use untorn::heap::{Heap, HeapOptions};

/// The head of a node. The value's bytes follow it.
#[repr(C)]
struct Node {
    next: *mut Node,
    key: Key,
    bytes: u64,
}

impl Node {
    fn layout(bytes: usize) -> Result<Layout> {
        Ok(Layout::from_size_align(size_of::<Node>() + bytes, align_of::<Node>())?)
    }

    /// # Safety
    /// `node` is a node of the table.
    unsafe fn value<'a>(node: *mut Node) -> &'a mut [u8] {
        // SAFETY: the caller's node has its value behind it.
        unsafe { std::slice::from_raw_parts_mut(node.add(1).cast(), (*node).bytes as usize) }
    }
}

pub struct ExplicitStore {
    store: untorn::Store,
    heap: Heap,
    places: NonNull<*mut Node>,
    count: usize,
}

impl ExplicitStore {
    pub fn open(dir: &Path, places: usize) -> Result<ExplicitStore> {
        let store = untorn::Store::open_or_create(dir)?;
        let heap = HeapOptions::new().create(true).tracker(TrackerKind::Explicit).open_in(&store, "heap")?;
        let table = heap.allocate(Layout::array::<*mut Node>(places)?)?.cast::<*mut Node>();
        // SAFETY: so many pointers were just allocated.
        unsafe { table.as_ptr().write_bytes(0, places) };
        heap.mark_dirty(table.as_ptr().cast(), places * size_of::<*mut Node>())?;
        heap.root_or("places", |_| table.as_ptr() as u64)?;
        heap.commit()?;
        Ok(ExplicitStore { store, heap, places: table, count: places })
    }

    /// The place of the pointer to the node with this key. If there is none, the end of its chain.
    fn find(&self, key: &Key) -> *mut *mut Node {
        let words = key.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        let hash = words.fold(0u64, |hash, word| (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29));
        // SAFETY: one of the places, and nodes of the table, which nothing else uses.
        unsafe {
            let mut at = self.places.as_ptr().add((hash % self.count as u64) as usize);
            while let Some(node) = (*at).as_mut().filter(|node| node.key != *key) {
                at = &raw mut node.next;
            }
            at
        }
    }

    fn set(&self, at: *mut *mut Node, node: *mut Node) -> Result<()> {
        // SAFETY: a pointer of the table.
        unsafe { *at = node };
        Ok(self.heap.mark_dirty(at.cast(), size_of::<*mut Node>())?)
    }

    fn put_one(&self, entry: &Entry<'_>) -> Result<()> {
        let (at, bytes) = (self.find(entry.key), entry.value.len());
        // SAFETY: a pointer of the table, and a node that was found or is allocated here.
        unsafe {
            let old = *at;
            if !old.is_null() && Node::value(old).len() == bytes {
                Node::value(old).copy_from_slice(entry.value);
                return Ok(self.heap.mark_dirty(old.add(1).cast(), bytes)?);
            }
            let new = self.heap.allocate(Node::layout(bytes)?)?.cast::<Node>().as_ptr();
            let next = if old.is_null() { null_mut() } else { (*old).next };
            new.write(Node { next, key: *entry.key, bytes: bytes as u64 });
            Node::value(new).copy_from_slice(entry.value);
            self.heap.mark_dirty(new.cast(), size_of::<Node>() + bytes)?;
            self.set(at, new)?;
            if let Some(old) = NonNull::new(old) {
                self.heap.free(old.cast())?;
            }
        }
        Ok(())
    }
}

impl Store for ExplicitStore {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        entries.iter().try_for_each(|entry| self.put_one(entry))?;
        Ok(self.heap.commit()?)
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        let at = self.find(key);
        // SAFETY: a pointer of the table, to a node that nothing else uses.
        unsafe {
            if let Some(node) = NonNull::new(*at) {
                self.set(at, node.as_ref().next)?;
                self.heap.free(node.cast())?;
            }
        }
        Ok(self.heap.commit()?)
    }

    fn read(&mut self, keys: &[Key]) -> Result<u64> {
        // SAFETY: a pointer of the table; null, or to a node.
        let value = |key| unsafe { (*self.find(key)).as_mut().map(|node| taste(Node::value(node))) };
        Ok(keys.iter().filter_map(value).sum())
    }

    fn scan(&mut self) -> Result<Scan> {
        let mut scan = Scan::default();
        for place in 0..self.count {
            // SAFETY: the places, and the nodes behind them.
            unsafe {
                let mut node = *self.places.as_ptr().add(place);
                while !node.is_null() {
                    scan.add(Node::value(node));
                    node = (*node).next;
                }
            }
        }
        Ok(scan)
    }

    fn activity(&self) -> Result<Option<Activity>> {
        Ok(Some(Activity::total(&self.store.status())))
    }
}
