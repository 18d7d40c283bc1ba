//! Maps of Rust on Untorn's heap: `hashbrown`'s, and the heap's own B-tree, which marks its changes.

use super::kv_store::{Entry, Key, Scan, Store, taste};
use crate::measuring::harness::Activity;
use anyhow::Result;
use std::path::Path;
use std::ptr::NonNull;
use untorn::TrackerKind;
use untorn::heap::{Heap, HeapBTreeMap, HeapMap, HeapOptions, HeapVec};

/// The type of the table, which is in the heap beside it.
type Table = HeapMap<'static, Key, HeapVec<'static, u8>>;

pub struct HashbrownStore {
    store: untorn::Store,
    heap: Heap,
    table: NonNull<Table>,
}

impl HashbrownStore {
    pub fn open(dir: &Path) -> Result<HashbrownStore> {
        let store = untorn::Store::open_or_create(dir)?;
        let heap = HeapOptions::new().create(true).open_in(&store, "heap")?;
        let table = heap.root_or("all", HeapMap::<Key, HeapVec<'_, u8>>::new_in)?.cast();
        Ok(HashbrownStore { store, heap, table })
    }

    fn table(&mut self) -> &mut Table {
        // SAFETY: a root of this type, in a heap that is open and that nothing else uses.
        unsafe { self.table.as_mut() }
    }
}

impl Store for HashbrownStore {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        // SAFETY: the allocations are in the table, which is used only while the heap is open.
        let memory = unsafe { self.heap.allocator().unbound() };
        let table = self.table();
        for entry in entries {
            let value = table.get_or_insert_with(*entry.key, || HeapVec::new_in(memory));
            value.clear();
            value.extend_from_slice(entry.value);
        }
        Ok(self.heap.commit()?)
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.table().remove(key);
        Ok(self.heap.commit()?)
    }

    fn read(&mut self, keys: &[Key]) -> Result<u64> {
        let table = self.table();
        Ok(keys.iter().filter_map(|key| table.get(key)).map(|value| taste(value)).sum())
    }

    fn scan(&mut self) -> Result<Scan> {
        let mut scan = Scan::default();
        self.table().values().for_each(|value| scan.add(value));
        Ok(scan)
    }

    fn activity(&self) -> Result<Option<Activity>> {
        Ok(Some(Activity::total(&self.store.status())))
    }
}

type Tree = HeapBTreeMap<'static, Key, HeapVec<'static, u8>>;

/// A B-tree in a heap with the tracker `explicit`.
pub struct TreeStore {
    store: untorn::Store,
    heap: Heap,
    tree: NonNull<Tree>,
}

impl TreeStore {
    pub fn open(dir: &Path) -> Result<TreeStore> {
        let store = untorn::Store::open_or_create(dir)?;
        let heap = HeapOptions::new().create(true).tracker(TrackerKind::Explicit).open_in(&store, "heap")?;
        let tree = heap.root_or("all", HeapBTreeMap::<Key, HeapVec<'_, u8>>::new_in)?.cast();
        Ok(TreeStore { store, heap, tree })
    }

    fn tree(&mut self) -> &mut Tree {
        // SAFETY: a root of this type, in a heap that is open and that nothing else uses.
        unsafe { self.tree.as_mut() }
    }
}

impl Store for TreeStore {
    /// Each value is a new vector, whose block is marked when it is allocated; a change of the old one would not be.
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        // SAFETY: the allocations are in the tree, which is used only while the heap is open.
        let memory = unsafe { self.heap.allocator().unbound() };
        for entry in entries {
            let mut value = HeapVec::with_capacity_in(entry.value.len(), memory);
            value.extend_from_slice(entry.value);
            self.tree().insert(*entry.key, value);
        }
        Ok(self.heap.commit()?)
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.tree().remove(key);
        Ok(self.heap.commit()?)
    }

    fn read(&mut self, keys: &[Key]) -> Result<u64> {
        let tree = self.tree();
        Ok(keys.iter().filter_map(|key| tree.get(key)).map(|value| taste(value)).sum())
    }

    fn scan(&mut self) -> Result<Scan> {
        let mut scan = Scan::default();
        self.tree().values().for_each(|value| scan.add(value));
        Ok(scan)
    }

    fn activity(&self) -> Result<Option<Activity>> {
        Ok(Some(Activity::total(&self.store.status())))
    }
}
