//! The crash laboratory: a disk in memory whose power can be cut at every call, behind the same
//! traits ([`untorn_os::Storage`], [`untorn_os::File`]) as the real one.

mod cut;
pub mod device;
mod disk;
mod effect;
pub mod enumerate;
pub mod heaps;
mod image;
mod judge;
mod mapped;
mod mapping;
mod memory;
pub mod model;
mod names;
mod options;
mod outside;
mod process;
pub mod program;
pub mod replay;
mod run;
pub mod scenes;
mod stage;
mod state;
mod sync;
pub mod workloads;

pub use cut::{Cut, Outcome, Snapshot};
pub use disk::SimDisk;
pub use options::{Call, Failed, Fault, Model, On, Options, PROFILES, Profile, What};
pub use outside::Entry;
pub use process::SimProcess;
