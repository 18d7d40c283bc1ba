//! Files that exist only in memory.

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;

/// A file in memory, without a name.
pub fn memory_file(what: &str) -> Result<File> {
    let file = memfd_create(format!("untorn-crashlab-{what}"), MemfdFlags::CLOEXEC).context("no memory file")?;
    Ok(File::from(file))
}
