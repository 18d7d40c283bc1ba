//! The simulated disk: a disk in memory behind the traits of `untorn_os`, whose power can be cut at every call.
//!
//! From the bottom: [`inodes`](state::inodes) is one state of a whole disk; [`effect`](state::effect) is a change that is not yet durable;
//! [`disk_state`](state::disk_state) is disk and cache with every operation on them; [`flushing`](state::flushing) is what syncs do to it, and
//! [`power_cut`](state::power_cut) what power cuts do; [`machine`](processes::machine) adds processes, locks and mappings; [`process`](processes::process) has the traits;
//! [`replayed`] is a process that reads a recorded run; [`refusal`](state::refusal) is what the kernel refuses them, [`permissions`](state::permissions) what it allows; [`disk`] is what tests hold in their hands, and [`other_programs`] what they do to it behind Untorn's back.

mod disk;
mod other_programs;
mod processes;
pub(crate) mod replayed;
pub(crate) mod state;

pub use disk::{Outcome, SimDisk};
pub use other_programs::Entry;
pub(crate) use processes::machine::{Machine, Others};
pub use processes::process::SimProcess;
pub use state::disk_options::{Call, Failed, Fault, Model, On, Options, PROFILES, Profile, What};
pub use state::power_cut::{Cut, Snapshot};
pub use state::refusal::{REFUSED, REFUSING_DIRS, Refusal, Refused};
