//! The messages between the command and a worker.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The job of a worker: one program on one file system.
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
    /// Keep recordings without violations, too.
    pub keep_all: bool,
    pub replay: Option<u64>,
}

/// A message of a worker.
#[derive(Serialize, Deserialize)]
pub enum News {
    /// A text for the user, to be printed at once.
    Says(String),
    Progress {
        states: u64,
        broken: u64,
    },
    Done(Box<Done>),
}

/// The result on one file system.
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
    pub violation: Option<FirstViolation>,
}

/// The first violation.
#[derive(Serialize, Deserialize)]
pub struct FirstViolation {
    /// The seed of the state, for `--replay`.
    pub seed: u64,
    /// The lost writes, the files, and the output of the check.
    pub text: String,
    /// The image of the disk, which can be mounted.
    pub image: PathBuf,
}
