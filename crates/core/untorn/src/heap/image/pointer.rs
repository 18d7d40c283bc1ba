//! What a report says of pointers that lead out of a heap.

use serde::Serialize;

/// Pointers that lead out of a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeapPointers {
    /// How many.
    pub count: u64,
    /// The first of them.
    pub first: Vec<HeapPointer>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeapPointer {
    /// Where the allocation is that it lies in.
    pub allocation: u64,
    /// Bytes that the allocation takes.
    pub allocation_bytes: u64,
    /// Where in the allocation it is.
    pub offset: u64,
    /// The address that it holds.
    pub value: u64,
    /// What is at that address: a file that is mapped there, `[heap]`, `[stack]`, or nothing that has a name.
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
