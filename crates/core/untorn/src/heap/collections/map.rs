//! A hash table in a heap.

use super::in_heap::InHeap;
use super::storable::Storable;
use siphasher::sip::SipHasher13;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::ops::{Deref, Index};

/// SipHash 1-3 with fixed keys: hashes are the same in every process and with every version of the compiler. An
/// attacker who chooses a program's keys can therefore choose keys with equal hashes.
#[derive(Clone, Copy, Debug, Default)]
pub struct FixedHash;

impl BuildHasher for FixedHash {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(0x756e_746f_726e_0001, 0x6865_6170_6d61_7001)
    }
}

// SAFETY: nothing is in it.
unsafe impl Storable for FixedHash {}

/// A hash table in a heap: `hashbrown`'s, with hashes that are the same in every process.
///
/// It has all read-only methods of `hashbrown::HashMap`, and those below.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use untorn::heap::{Heap, HeapMap, HeapString};
///
/// let heap = Heap::open_or_create(dir.path().join("ages"))?;
/// let ages = heap.root_or("ages", |alloc| HeapMap::<HeapString<'_>, u32>::new_in(alloc))?;
/// // SAFETY: this thread alone uses the root.
/// let ages = unsafe { &mut *ages.as_ptr() };
/// ages.insert(HeapString::from_str_in("Ada", heap.allocator()), 36);
/// heap.commit()?;
/// assert_eq!(ages["Ada"], 36);
/// # Ok::<(), untorn::Error>(())
/// ```
#[repr(transparent)]
pub struct HeapMap<'h, K, V> {
    /// Never an empty table of `hashbrown`, which points to a constant of the program that the next process has at
    /// another address. So no method that shrinks the table is public, and no exclusive reference to it.
    map: hashbrown::HashMap<K, V, FixedHash, InHeap<'h>>,
}

// SAFETY: a pointer into the heap; its entries are storable.
unsafe impl<K: Storable, V: Storable> Storable for HeapMap<'_, K, V> {}

impl<'h, K: Eq + Hash, V> HeapMap<'h, K, V> {
    /// An empty table with room for a few entries.
    pub fn new_in(alloc: InHeap<'h>) -> Self {
        HeapMap::with_capacity_in(1, alloc)
    }

    /// An empty table with room for this many entries.
    pub fn with_capacity_in(entries: usize, alloc: InHeap<'h>) -> Self {
        HeapMap { map: hashbrown::HashMap::with_capacity_and_hasher_in(entries.max(1), FixedHash, alloc) }
    }

    /// Makes room for this many more entries.
    pub fn reserve(&mut self, entries: usize) {
        self.map.reserve(entries);
    }

    /// Sets the value of a key; returns the old value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.map.insert(key, value)
    }

    /// Removes a key; returns its value.
    pub fn remove<Q: Hash + hashbrown::Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<V> {
        self.map.remove(key)
    }

    /// The value of a key.
    pub fn get_mut<Q: Hash + hashbrown::Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    /// The value of a key; `make` makes it if there is none.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        self.map.entry(key).or_insert_with(make)
    }

    /// Keeps those entries for which `keep` is true.
    pub fn retain(&mut self, keep: impl FnMut(&K, &mut V) -> bool) {
        self.map.retain(keep);
    }
}

impl<'h, K, V> HeapMap<'h, K, V> {
    /// The allocator.
    pub fn alloc(&self) -> InHeap<'h> {
        *self.map.allocator()
    }

    /// Removes all entries, and keeps the capacity.
    pub fn clear(&mut self) {
        self.map.clear();
    }

    /// All entries, in any order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.map.iter_mut()
    }

    /// All values, in any order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.map.values_mut()
    }
}

impl<'h, K, V> Deref for HeapMap<'h, K, V> {
    type Target = hashbrown::HashMap<K, V, FixedHash, InHeap<'h>>;
    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl<K: Eq + Hash, Q: Hash + hashbrown::Equivalent<K> + ?Sized, V> Index<&Q> for HeapMap<'_, K, V> {
    type Output = V;
    fn index(&self, key: &Q) -> &V {
        &self.map[key]
    }
}

impl<K: Eq + Hash, V> Extend<(K, V)> for HeapMap<'_, K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        self.map.extend(entries);
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for HeapMap<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.map.fmt(f)
    }
}
