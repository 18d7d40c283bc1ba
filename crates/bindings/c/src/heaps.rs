//! Persistent heaps, for C and C++. Stands on `stores` and `readers`.

pub(crate) mod heap;
pub(crate) mod inspect;
pub(crate) mod memory;
pub(crate) mod read_copies;
pub(crate) mod roots;
pub(crate) mod section_calls;
