//! The simulated disk: a disk in memory that can lose power at every call, behind the traits of `untorn_os`.
//!
//! From the bottom: [`inodes`](state::inodes) is one state of a whole disk; [`effect`](state::effect) is a change that
//! is not yet durable; [`disk_state`](state::disk_state) is disk and cache with every operation on them;
//! [`flushing`](state::flushing) has the effects of syncs, and [`power_cut`](state::power_cut) those of power cuts;
//! [`machine`](processes::machine) adds processes, locks and mappings; [`process`](processes::process) implements the
//! traits; [`turns`] lets several processes make their calls in turns; [`refusal`](state::refusal) has the operations that the
//! kernel refuses, [`permissions`](state::permissions) those that it allows; [`disk`] is the interface for tests, and
//! [`other_programs`] their changes behind Untorn's back.

mod disk;
mod other_programs;
mod processes;
pub(crate) mod state;
pub(crate) mod turns;

pub use disk::{Outcome, SimDisk};
pub use other_programs::Entry;
pub use processes::process::SimProcess;
pub use state::disk_options::{Call, Failed, Fault, Model, On, Options, PROFILES, Profile, What};
pub use state::power_cut::{Cut, Snapshot};
pub use state::refusal::{REFUSED, REFUSING_DIRS, Refusal, Refused};
