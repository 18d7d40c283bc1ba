//! Types that may be stored in a heap, and containers that live in one. Stands on `alloc`.

pub(super) mod btree_map;
pub(super) mod in_heap;
pub(super) mod map;
pub(crate) mod storable;
pub(super) mod string;
