//! The part of a report that lists pointers out of a heap.

use serde::Serialize;

/// Pointers that lead out of a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeapPointers {
    /// The number of these pointers.
    pub count: u64,
    /// The first of them.
    pub first: Vec<HeapPointer>,
}

/// A pointer that leads out of a heap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeapPointer {
    /// The address of the allocation that has it.
    pub allocation: u64,
    /// The size of that allocation.
    pub allocation_bytes: u64,
    /// The pointer's offset in the allocation.
    pub offset: u64,
    /// The address that it holds.
    pub value: u64,
    /// The mapping at that address: a file, `[heap]`, `[stack]`, or nothing that has a name.
    pub target: String,
}

impl std::fmt::Display for HeapPointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let HeapPointer { allocation, allocation_bytes, offset, value, target } = self;
        write!(
            f,
            "the allocation of {allocation_bytes} bytes at {allocation:#x} has at offset {offset} the address {value:#x}"
        )?;
        if target.is_empty() { Ok(()) } else { write!(f, ", which is in {target}") }
    }
}
