//! The crash laboratory: a disk in memory whose power can be cut at every call, behind the same
//! traits ([`untorn_os::Storage`], [`untorn_os::File`]) as the real one.

pub mod crash_loops;
pub mod device;
mod differences;
pub mod enumerate;
mod fixture;
pub mod heaps;
mod lease_moments;
mod lease_stand_in;
mod mapping_operations;
pub mod mutation;
mod name_operations;
pub mod names_fuzz;
mod oracle;
pub mod program;
pub mod readers;
pub mod reference_model;
pub mod replay;
mod run;
mod runner;
pub mod scenarios;
mod simulation;
pub mod workloads;

pub use simulation::{
    Call, Cut, Entry, Failed, Fault, Model, On, Options, Outcome, PROFILES, Profile, REFUSED, REFUSING_DIRS, Refusal,
    Refused, SimDisk, SimProcess, Snapshot, What,
};
