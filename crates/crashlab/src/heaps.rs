//! Random programs over a heap, beside a model in ordinary memory.

mod failing_calls;
mod heap_fixture;
mod heap_layout;
mod heap_model;
mod simulated;

pub use failing_calls::{FailedCalls, again_heap, fail_calls};
pub use heap_fixture::HeapFixture;
pub use heap_layout::blocks_of;
pub use heap_model::{Change, HeapModel};
pub use simulated::{Effort, HeapCase, HeapViolation, Programs, Totals};
