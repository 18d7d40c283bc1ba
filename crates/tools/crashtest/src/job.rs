//! What the command asks of a worker, and what it hears.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One program on one file system.
#[derive(Serialize, Deserialize)]
pub struct Job {
    pub fs: String,
    pub check: String,
    pub setup: Option<String>,
    pub program: Vec<String>,
    pub states: u64,
    pub all: bool,
    pub seed: u64,
    pub run_seconds: u64,
    pub flush_us: u64,
    pub size_bytes: u64,
    pub keep: PathBuf,
    /// Also recordings in which nothing was found.
    pub keep_all: bool,
    pub replay: Option<u64>,
}

/// What a worker says.
#[derive(Serialize, Deserialize)]
pub enum News {
    /// Something to tell the user at once.
    Says(String),
    Progress {
        states: u64,
        broken: u64,
    },
    Done(Box<Done>),
}

/// What was found on one file system.
#[derive(Default, Serialize, Deserialize)]
pub struct Done {
    pub states: u64,
    pub images: u64,
    pub reordered: u64,
    pub torn: u64,
    pub broken: u64,
    pub unmountable: u64,
    pub acknowledged: u64,
    pub writes: u64,
    pub flushes: u64,
    pub violation: Option<Found>,
}

/// The first violation.
#[derive(Serialize, Deserialize)]
pub struct Found {
    /// For `--replay`.
    pub seed: u64,
    /// Which writes, which files, what the check said.
    pub text: String,
    /// The disk, to be mounted.
    pub image: PathBuf,
}
