//! `hashbrown`'s map on Untorn's heap, in Rust.

use super::kv_store::{Entry, Key, Scan, Store, taste};
use crate::harness::Activity;
use anyhow::Result;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::path::Path;
use std::ptr::NonNull;
use untorn::heap::{Heap, HeapOptions, HeapVec, InHeap};

/// A hasher that gives equal hashes after a restart.
type Hasher = BuildHasherDefault<DefaultHasher>;
type Table = hashbrown::HashMap<Key, HeapVec<u8>, Hasher, InHeap>;

pub struct HashbrownStore {
    store: untorn::Store,
    heap: Heap,
    table: NonNull<Table>,
}

impl HashbrownStore {
    pub fn open(dir: &Path) -> Result<HashbrownStore> {
        let store = untorn::Store::open(dir)?;
        let heap = HeapOptions::new().open_in(&store, "heap")?;
        let table = heap.root_or("all", |memory| Table::with_capacity_and_hasher_in(1, Hasher::default(), memory))?;
        Ok(HashbrownStore { store, heap, table })
    }

    fn table(&mut self) -> &mut Table {
        // SAFETY: a root of this type, in a heap that is open and that nothing else uses.
        unsafe { self.table.as_mut() }
    }
}

impl Store for HashbrownStore {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        let memory = self.heap.allocator();
        let table = self.table();
        for entry in entries {
            let value = table.entry(*entry.key).or_insert_with(|| HeapVec::new_in(memory));
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
