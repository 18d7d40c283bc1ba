//! Crash states of a real file system, and the states that a program finds after them.
//!
//! A recording ([`Recording`]) has the initial contents of a disk and everything that reached it since. A power cut may
//! happen at any moment of it. Everything flushed by then is there. Of the writes since the last flush, any part may be
//! there: each write complete, lost, or torn at 512 bytes, and the later one kept while the earlier one is lost.
//! [`State`] is one such choice, drawn from a seed. [`Bench`] makes the disk of a state, mounts it (the kernel
//! recovers), and runs a [`Check`] on it. A state that the check refuses is minimised ([`minimise`]) and explained
//! ([`explain`]).

mod bench;
mod crash_state;
mod explain;
mod explore;
mod extents;
mod minimise;
mod recorded_run;
mod recording;

pub use bench::{Bench, Check, Spent, Verdict};
pub use crash_state::{Fate, SECTOR_BYTES, State};
pub use explain::explain;
pub use explore::{Exploration, Totals, Violation, seed_of};
pub use minimise::minimise;
pub use recorded_run::{Program, Recorded, record};
pub use recording::Recording;
