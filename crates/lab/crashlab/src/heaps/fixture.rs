//! The structures of a program in its heap: blocks, a table of vectors, a chain of boxes, roots.

use crate::heaps::model::{Block, Change, HeapModel, bytes};
use std::alloc::Layout;
use std::ptr::NonNull;
use untorn::Error;
use untorn::heap::{Heap, HeapBox, HeapMap, HeapVec, Storable};

/// A block, as the heap returned it.
#[derive(Storable)]
struct Raw {
    #[storable(pointer)]
    address: NonNull<u8>,
    bytes: usize,
}

#[derive(Storable)]
struct Link<'h> {
    value: u64,
    next: Option<HeapBox<'h, Link<'h>>>,
}

/// All structures of a program, as they lie in the heap, at the root `world`.
#[derive(Storable)]
struct Contents<'h> {
    serial: u64,
    blocks: HeapMap<'h, u64, Raw>,
    table: HeapMap<'h, u64, HeapVec<'h, u8>>,
    chain: Option<HeapBox<'h, Link<'h>>>,
}

/// The structures of an open heap. One thread uses them.
pub struct HeapFixture<'h> {
    heap: &'h Heap,
    contents: &'h mut Contents<'h>,
}

const TABLES: usize = 2;

fn root_name(name: u8) -> String {
    format!("root-{name}")
}

/// The values of a chain, oldest first.
fn values(chain: &Option<HeapBox<'_, Link<'_>>>) -> Vec<u64> {
    let (mut values, mut at) = (Vec::new(), chain);
    while let Some(link) = at {
        values.push(link.value);
        at = &link.next;
    }
    values.reverse();
    values
}

impl<'h> HeapFixture<'h> {
    /// Finds the structures, or creates empty ones.
    pub fn of(heap: &'h Heap) -> Result<HeapFixture<'h>, Error> {
        let contents = heap.root_or("world", |alloc| Contents {
            serial: 0,
            blocks: HeapMap::new_in(alloc),
            table: HeapMap::new_in(alloc),
            chain: None,
        })?;
        // SAFETY: the root has this type, and nobody else uses it as long as this borrows the heap.
        Ok(HeapFixture { heap, contents: unsafe { &mut *contents.as_ptr() } })
    }

    /// The number of changes that led to the present contents.
    pub fn serial(&self) -> u64 {
        self.contents.serial
    }

    fn store(&self, to: NonNull<u8>, at: usize, bytes: &[u8]) {
        // SAFETY: within a block that this program has, and nobody else uses.
        unsafe { to.add(at).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    fn make(&mut self, number: u64, block: &Block) -> Result<(), Error> {
        let layout = Layout::from_size_align(block.bytes, block.align).expect("a layout");
        let address = self.heap.allocate(layout)?;
        block.contents().iter().for_each(|(at, bytes)| self.store(address, *at, bytes));
        self.contents.blocks.insert(number, Raw { address, bytes: block.bytes });
        Ok(())
    }

    fn end(&mut self, number: u64) -> Result<(), Error> {
        let Raw { address, .. } = self.contents.blocks.remove(&number).expect("a program ends what there is");
        for root in self.heap.roots().into_iter().filter(|root| root.address == address) {
            self.heap.set_root::<u8>(&root.name, None)?;
        }
        // SAFETY: nothing refers to it any more.
        unsafe { self.heap.free(address)? };
        // SAFETY: a second time is refused.
        assert!(unsafe { self.heap.free(address) }.is_err(), "a block was freed twice");
        Ok(())
    }

    /// Applies a change to the heap; `model` is the model before the change.
    pub fn apply(&mut self, change: &Change, model: &HeapModel) -> Result<(), Error> {
        let heap = self.heap;
        let (_together, alloc) = (heap.mutate(), heap.allocator());
        self.contents.serial += 1;
        for (number, block) in HeapModel::made_by(change) {
            self.make(number, &block)?;
        }
        for number in model.ended_by(change) {
            self.end(number)?;
        }
        match *change {
            Change::Resize(number, _) => {
                let mut after = model.clone();
                after.apply(change);
                // The old and the new block exist together for a moment.
                let old = self.contents.blocks.remove(&number).expect("a program changes what there is");
                self.make(number, &after.blocks[&number])?;
                let new = self.contents.blocks.insert(number, old).expect("made just now");
                self.end(number)?;
                self.contents.blocks.insert(number, new);
            }
            Change::Poke(number, at, stamp) => {
                self.store(self.contents.blocks[&number].address, at, &model.blocks[&number].poke(at, stamp));
            }
            Change::Insert(key, stamp, len) => {
                let mut value = HeapVec::new_in(alloc);
                value.extend_from_slice(&bytes(stamp, len));
                self.contents.table.insert(key, value);
            }
            Change::Extend(key, stamp, len) => {
                let value = self.contents.table.get_mut(&key).expect("a program changes what there is");
                value.extend_from_slice(&bytes(stamp, len));
            }
            Change::Remove(key) => drop(self.contents.table.remove(&key)),
            Change::Push(value) => {
                let next = self.contents.chain.take();
                self.contents.chain = Some(HeapBox::new_in(Link { value, next }, alloc));
            }
            Change::Pop => {
                let link = self.contents.chain.take().expect("a program changes what there is");
                self.contents.chain = HeapBox::into_inner(link).next;
            }
            Change::Root(name, to) => {
                let address = to.map(|number| self.contents.blocks[&number].address);
                self.heap.set_root(&root_name(name), address)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The blocks, by offset in the heap, and the number of other allocations.
    pub fn allocations(&self) -> (Vec<(usize, usize)>, usize) {
        let (base, _) = self.heap.memory();
        let Contents { blocks, table, chain, .. } = &*self.contents;
        let offset = |raw: &Raw| raw.address.as_ptr() as usize - base.as_ptr() as usize;
        let vectors = table.values().filter(|value| value.capacity() > 0).count();
        (blocks.values().map(|raw| (offset(raw), raw.bytes)).collect(), 1 + TABLES + vectors + values(chain).len())
    }

    /// Compares the heap with the model, and checks that each block is an allocation of its own.
    pub fn compare(&self, model: &HeapModel) -> Result<(), String> {
        let Contents { serial, blocks, table, chain } = &*self.contents;
        if *serial != model.serial {
            return Err(format!("the structures are of {serial} changes, and the model of {}", model.serial));
        }
        let mut places = Vec::new();
        for (number, block) in &model.blocks {
            let raw = blocks.get(number).ok_or_else(|| format!("block {number} of {} bytes is gone", block.bytes))?;
            let place = raw.address.as_ptr() as usize;
            let bytes = self.heap.size_of(raw.address).map_err(|e| format!("block {number}: {e}"))?;
            if bytes < block.bytes || !place.is_multiple_of(block.align) {
                return Err(format!("block {number} has {bytes} bytes at {place:#x} for {block:?}"));
            }
            places.push((place, bytes));
            for (at, wanted) in block.contents() {
                // SAFETY: an allocation of at least this many bytes.
                let found = unsafe { std::slice::from_raw_parts(raw.address.as_ptr().add(at), wanted.len()) };
                if let Some(differs) = found.iter().zip(&wanted).position(|(a, b)| a != b) {
                    return Err(format!("block {number} of {} bytes differs at {}", block.bytes, at + differs));
                }
            }
        }
        places.sort_unstable();
        if let Some(two) = places.windows(2).find(|two| two[0].0 + two[0].1 > two[1].0) {
            return Err(format!("two blocks overlap: {two:x?}"));
        }
        let same = |(key, value): (&u64, &Vec<u8>)| table.get(key).is_some_and(|found| **found == **value);
        if let Some((key, _)) = model.table.iter().find(|entry| !same(*entry)) {
            return Err(format!("the vector of {key} is another"));
        }
        if (blocks.len(), table.len()) != (model.blocks.len(), model.table.len()) || values(chain) != model.chain {
            return Err("there are more blocks, vectors or links than there should be".to_owned());
        }
        for name in 0..4 {
            let found = self.heap.root::<u8>(&root_name(name)).map_err(|e| e.to_string())?;
            let wanted = model.roots.get(&name).map(|number| blocks[number].address);
            if found != wanted {
                return Err(format!("the root {name} points to {found:?} instead of {wanted:?}"));
            }
        }
        Ok(())
    }
}
