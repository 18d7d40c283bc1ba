//! An ordered map in a heap: a B-tree whose nodes are vectors in the heap. This file defines its layout, which does not
//! change with the compiler. The map logs each change before it makes it, so programs with sections or with the tracker
//! `explicit` need not call `modify` or `mark_dirty` for it.

use super::in_heap::{HeapVec, InHeap};
use super::storable::Storable;
use std::borrow::Borrow;
use std::fmt;
use std::ops::{Index, Range};

/// The fewest entries of a node other than the root.
const ENTRIES_LEAST: usize = 15;
/// The most entries of a node.
const ENTRIES_MOST: usize = 2 * ENTRIES_LEAST + 1;

#[repr(C)]
struct Entry<K, V> {
    key: K,
    value: V,
}

/// A node. A leaf has no children; any other node has one child more than it has entries.
#[repr(C)]
struct Node<'h, K, V> {
    entries: HeapVec<'h, Entry<K, V>>,
    children: HeapVec<'h, Node<'h, K, V>>,
}

/// An ordered map in a heap, like the standard library's `BTreeMap`.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use untorn::heap::{Heap, HeapBTreeMap};
///
/// let heap = Heap::open_or_create(dir.path().join("events"))?;
/// let events = heap.root_or("events", |alloc| HeapBTreeMap::<u64, u32>::new_in(alloc))?;
/// // SAFETY: this thread alone uses the root.
/// let events = unsafe { &mut *events.as_ptr() };
/// for hour in [9, 17, 12] {
///     events.insert(hour, 1);
/// }
/// heap.commit()?;
/// assert_eq!(events.iter_from(&10).next(), Some((&12, &1)));
/// # Ok::<(), untorn::Error>(())
/// ```
#[repr(C)]
pub struct HeapBTreeMap<'h, K, V> {
    root: Node<'h, K, V>,
    len: usize,
}

// SAFETY: vectors in the heap, of storable types.
unsafe impl<K: Storable, V: Storable> Storable for HeapBTreeMap<'_, K, V> {}

impl<'h, K, V> Node<'h, K, V> {
    fn new_in(alloc: InHeap<'h>) -> Self {
        Node { entries: HeapVec::new_in(alloc), children: HeapVec::new_in(alloc) }
    }

    fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }

    fn alloc(&self) -> InHeap<'h> {
        *self.entries.allocator()
    }

    /// Notes that the entries at these indices, and the numbers of entries and children, are about to change.
    fn changes_entries(&mut self, part: Range<usize>) {
        let alloc = self.alloc();
        alloc.changes_value(self);
        alloc.changes_part(&mut self.entries, part);
    }

    /// Notes that the children at these indices are about to change, together with entries.
    fn changes_children(&mut self, part: Range<usize>) {
        self.alloc().changes_part(&mut self.children, part);
    }

    /// The indices from `at` to the end, and `more` behind it.
    fn places_from(&self, at: usize, more: usize) -> Range<usize> {
        at..self.entries.len().max(self.children.len()) + more
    }

    /// The index of a key, or the index at which to insert it.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.entries.binary_search_by(|entry| entry.key.borrow().cmp(key))
    }

    /// Notes that all entries and children, and one more of each, are about to change.
    fn changes_all(&mut self) {
        self.changes_entries(self.places_from(0, 1));
        self.changes_children(self.places_from(0, 1));
    }

    /// Notes that an entry, and the lengths of the two children beside it, are about to change.
    fn changes_neighbours(&mut self, at: usize) {
        self.changes_entries(at..at + 1);
        self.changes_children(at..at + 2);
    }

    /// Splits a full child in two, and moves its middle entry up between them.
    fn split_child(&mut self, at: usize) {
        self.changes_entries(self.places_from(at, 1));
        self.changes_children(self.places_from(at, 1));
        let child = &mut self.children[at];
        let mut right = Node::new_in(child.alloc());
        right.entries.extend(child.entries.drain(ENTRIES_LEAST + 1..));
        if !child.is_leaf() {
            right.children.extend(child.children.drain(ENTRIES_LEAST + 1..));
        }
        let middle = child.entries.pop().expect("a full node");
        self.entries.insert(at, middle);
        self.children.insert(at + 1, right);
    }

    /// Merges a child, its right neighbour and the entry between them.
    fn merge(&mut self, at: usize) {
        self.changes_entries(self.places_from(at, 0));
        self.changes_children(self.places_from(at, 0));
        let middle = self.entries.remove(at);
        let mut right = self.children.remove(at + 1);
        let left = &mut self.children[at];
        left.changes_entries(left.entries.len()..ENTRIES_MOST);
        left.changes_children(left.children.len()..ENTRIES_MOST + 1);
        left.entries.push(middle);
        left.entries.extend(right.entries.drain(..));
        left.children.extend(right.children.drain(..));
    }

    /// Makes sure that a child has more entries than the least; returns the child's index afterwards.
    fn fill(&mut self, at: usize) -> usize {
        let spare = |node: &Self, at: usize| node.children[at].entries.len() > ENTRIES_LEAST;
        if spare(self, at) {
            return at;
        }
        if at > 0 && spare(self, at - 1) {
            self.changes_neighbours(at - 1);
            self.children[at].changes_all();
            let left = &mut self.children[at - 1];
            let (entry, child) = (left.entries.pop().expect("one to spare"), left.children.pop());
            let entry = std::mem::replace(&mut self.entries[at - 1], entry);
            self.children[at].entries.insert(0, entry);
            if let Some(child) = child {
                self.children[at].children.insert(0, child);
            }
            return at;
        }
        if at < self.entries.len() && spare(self, at + 1) {
            self.changes_neighbours(at);
            let left = &mut self.children[at];
            left.changes_entries(left.places_from(left.entries.len(), 1));
            left.changes_children(left.places_from(left.children.len(), 1));
            let right = &mut self.children[at + 1];
            right.changes_all();
            let child = (!right.is_leaf()).then(|| right.children.remove(0));
            let entry = right.entries.remove(0);
            let entry = std::mem::replace(&mut self.entries[at], entry);
            self.children[at].entries.push(entry);
            self.children[at].children.extend(child);
            return at;
        }
        let left = if at < self.entries.len() { at } else { at - 1 };
        self.merge(left);
        left
    }

    fn remove_last(&mut self) -> Entry<K, V> {
        if self.is_leaf() {
            self.changes_entries(0..0);
            return self.entries.pop().expect("not empty");
        }
        let at = self.fill(self.children.len() - 1);
        self.children[at].remove_last()
    }

    fn remove_first(&mut self) -> Entry<K, V> {
        if self.is_leaf() {
            self.changes_entries(self.places_from(0, 0));
            return self.entries.remove(0);
        }
        let at = self.fill(0);
        self.children[at].remove_first()
    }

    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<Entry<K, V>>
    where
        K: Borrow<Q>,
    {
        match self.find(key) {
            Ok(at) if self.is_leaf() => {
                self.changes_entries(self.places_from(at, 0));
                Some(self.entries.remove(at))
            }
            Ok(at) if self.children[at].entries.len() > ENTRIES_LEAST => {
                self.changes_entries(at..at + 1);
                let before = self.children[at].remove_last();
                Some(std::mem::replace(&mut self.entries[at], before))
            }
            Ok(at) if self.children[at + 1].entries.len() > ENTRIES_LEAST => {
                self.changes_entries(at..at + 1);
                let after = self.children[at + 1].remove_first();
                Some(std::mem::replace(&mut self.entries[at], after))
            }
            Ok(at) => {
                self.merge(at);
                self.children[at].remove(key)
            }
            Err(_) if self.is_leaf() => None,
            Err(at) => {
                let at = self.fill(at);
                self.children[at].remove(key)
            }
        }
    }
}

impl<'h, K, V> HeapBTreeMap<'h, K, V> {
    /// An empty map, which takes no memory.
    pub fn new_in(alloc: InHeap<'h>) -> Self {
        HeapBTreeMap { root: Node::new_in(alloc), len: 0 }
    }

    /// The allocator.
    pub fn allocator(&self) -> InHeap<'h> {
        self.root.alloc()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.allocator().changes_value(self);
        *self = HeapBTreeMap::new_in(self.allocator());
    }

    /// All entries in the order of their keys.
    pub fn iter(&self) -> Iter<'_, 'h, K, V> {
        let mut iter = Iter { path: Vec::new() };
        iter.descend(&self.root);
        iter
    }

    /// All keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// All values in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The first entry.
    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// The last entry.
    pub fn last_key_value(&self) -> Option<(&K, &V)> {
        let mut node = &self.root;
        while let Some(last) = node.children.last() {
            node = last;
        }
        node.entries.last().map(|entry| (&entry.key, &entry.value))
    }
}

impl<'h, K: Ord, V> HeapBTreeMap<'h, K, V> {
    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut node = &self.root;
        loop {
            match node.find(key) {
                Ok(at) => return Some(&node.entries[at].value),
                Err(at) => node = node.children.get(at)?,
            }
        }
    }

    /// The value of a key.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let mut node = &mut self.root;
        loop {
            match node.find(key) {
                Ok(at) => {
                    let alloc = node.alloc();
                    let value = &mut node.entries[at].value;
                    alloc.changes_value(value);
                    return Some(value);
                }
                Err(at) => node = node.children.get_mut(at)?,
            }
        }
    }

    /// Whether the map has a key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Sets the value of a key; returns the old value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let alloc = self.allocator();
        alloc.changes_value(self);
        if self.root.entries.len() == ENTRIES_MOST {
            let old = std::mem::replace(&mut self.root, Node::new_in(alloc));
            self.root.children.push(old);
            self.root.split_child(0);
        }
        let mut node = &mut self.root;
        loop {
            let mut at = match node.find(&key) {
                Ok(at) => {
                    let old = &mut node.entries[at].value;
                    alloc.changes_value(old);
                    return Some(std::mem::replace(old, value));
                }
                Err(at) => at,
            };
            if node.is_leaf() {
                node.changes_entries(node.places_from(at, 1));
                node.entries.insert(at, Entry { key, value });
                self.len += 1;
                return None;
            }
            if node.children[at].entries.len() == ENTRIES_MOST {
                node.split_child(at);
                match key.cmp(&node.entries[at].key) {
                    std::cmp::Ordering::Less => {}
                    std::cmp::Ordering::Equal => {
                        let old = &mut node.entries[at].value;
                        alloc.changes_value(old);
                        return Some(std::mem::replace(old, value));
                    }
                    std::cmp::Ordering::Greater => at += 1,
                }
            }
            node = &mut node.children[at];
        }
    }

    /// Removes a key; returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.allocator().changes_value(self);
        let removed = self.root.remove(key);
        if self.root.entries.is_empty()
            && let Some(only) = self.root.children.pop()
        {
            self.root = only;
        }
        let removed = removed?;
        self.len -= 1;
        Some(removed.value)
    }

    /// Entries from a key on, in order.
    pub fn iter_from<Q: Ord + ?Sized>(&self, key: &Q) -> Iter<'_, 'h, K, V>
    where
        K: Borrow<Q>,
    {
        let mut iter = Iter { path: Vec::new() };
        let mut node = &self.root;
        loop {
            let found = node.find(key);
            let (Ok(at) | Err(at)) = found;
            iter.path.push((node, at));
            match node.children.get(at) {
                Some(child) if found.is_err() => node = child,
                _ => break,
            }
        }
        iter.ascend();
        iter
    }
}

/// Entries of a map in the order of their keys.
pub struct Iter<'a, 'h, K, V> {
    /// The nodes from the root down to the next entry, and in each the index of that entry or of the child.
    path: Vec<(&'a Node<'h, K, V>, usize)>,
}

impl<'a, 'h, K, V> Iter<'a, 'h, K, V> {
    fn descend(&mut self, node: &'a Node<'h, K, V>) {
        let mut node = Some(node);
        while let Some(next) = node {
            self.path.push((next, 0));
            node = next.children.first();
        }
        self.ascend();
    }

    /// Leaves nodes that have no more entries.
    fn ascend(&mut self) {
        while self.path.pop_if(|(node, at)| *at >= node.entries.len()).is_some() {}
    }
}

impl<'a, K, V> Iterator for Iter<'a, '_, K, V> {
    type Item = (&'a K, &'a V);
    fn next(&mut self) -> Option<Self::Item> {
        let (node, at) = self.path.last_mut()?;
        let (node, entry) = (*node, &node.entries[*at]);
        *at += 1;
        match node.children.get(*at) {
            Some(child) => self.descend(child),
            None => self.ascend(),
        }
        Some((&entry.key, &entry.value))
    }
}

impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for HeapBTreeMap<'_, K, V> {
    type Output = V;
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("a key that is there")
    }
}

impl<K: Ord, V> Extend<(K, V)> for HeapBTreeMap<'_, K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        entries.into_iter().for_each(|(key, value)| _ = self.insert(key, value));
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for HeapBTreeMap<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
