//! Random programs over a heap, beside a model in ordinary memory.

mod failing_calls;
mod fixture;
mod layout;
mod model;
mod power_cut;
mod simulated;

pub use failing_calls::{FailedCalls, again_heap, fail_calls};
pub use fixture::HeapFixture;
pub use layout::blocks_of;
pub use model::{Change, HeapModel};
pub use power_cut::{Image, PowerCuts};
pub use simulated::{Effort, HeapCase, HeapViolation, Programs, Totals};
