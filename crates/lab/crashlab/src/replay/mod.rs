//! Crash states of a real file system, and what a program finds after them.
//!
//! A recording ([`Recording`]) is what a disk held at first and everything that reached it since. A
//! power cut may happen at any moment of it. What was flushed by then is there; of what was written
//! since the last flush, any part may be: each write whole, lost, or torn at 512 bytes, the later one
//! kept and the earlier one lost. [`State`] is one such choice, drawn from a seed. [`Bench`] makes the disk
//! of a state, mounts it (the kernel recovers), and lets a [`Check`] look at what is there. A state that
//! the check refuses is made small ([`minimise`]) and explained ([`explain`]).

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
