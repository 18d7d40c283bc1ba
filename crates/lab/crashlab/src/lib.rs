//! The crash laboratory: a disk in memory that can lose power at every call, behind the same traits
//! ([`untorn_os::Storage`], [`untorn_os::File`]) as the real one.

pub mod device;
pub mod enumeration;
pub mod heaps;
pub mod mutants_table;
pub mod mutation;
pub mod names_fuzz;
pub mod programs;
pub mod readers;
pub mod replay;
pub mod scenarios;
mod simulation;
pub mod workloads;

pub use simulation::{
    Call, Cut, Entry, Failed, Fault, Model, On, Options, Outcome, PROFILES, Profile, REFUSED, REFUSING_DIRS, Refusal,
    Refused, SimDisk, SimProcess, Snapshot, What,
};
