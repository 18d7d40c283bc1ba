//! The simulated disk: a disk in memory behind the traits of `untorn_os`, whose power can be cut at every call.
//!
//! From the bottom: [`inodes`] is one state of a whole disk; [`effect`] is a change that is not yet durable;
//! [`disk_state`] is disk and cache with every operation on them; [`flushing`] is what syncs do to it, and
//! [`power_cut`] what power cuts do; [`machine`] adds processes, locks and mappings; [`process`] has the traits;
//! [`replayed`] is a process that reads a recorded run; [`refusal`] is what the kernel refuses them, [`permissions`] what it allows; [`disk`] is what tests hold in their hands, and [`other_programs`] what they do to it behind Untorn's back.

mod disk;
mod disk_options;
mod disk_state;
mod effect;
mod flushing;
pub(crate) mod inodes;
mod machine;
mod mapped_pages;
mod other_programs;
mod permissions;
mod power_cut;
mod process;
mod real_memory;
mod refusal;
pub(crate) mod replayed;
mod simulated_mapping;

pub use disk::{Outcome, SimDisk};
pub use disk_options::{Call, Failed, Fault, Model, On, Options, PROFILES, Profile, What};
pub(crate) use machine::{Machine, Others};
pub use other_programs::Entry;
pub use power_cut::{Cut, Snapshot};
pub use process::SimProcess;
pub use refusal::{REFUSED, REFUSING_DIRS, Refusal, Refused};
