//! `untorn doctor`: prints the promises at a place, and the reasons why they are not better.
//!
//! Every fact is a [`Finding`], which may lower the promise for a failure, or rule a store out altogether. The promise
//! is the lowest verdict of all findings, and the findings that lower it are the reasons.

mod device;
mod faces;
mod file_system;
mod finding;
mod promises;
mod slots;
mod sqlite;
mod trial;
mod trust;

use crate::json;
use clap::{Args, ValueHint};
use finding::Finding;
use promises::Report;
use std::path::{Path, PathBuf};
use untorn::offline;
use untorn_terminal::{Failure, Output, time_limit};

/// List the promises that Untorn keeps at a place, the reasons for missing ones, and a command to try each face there.
///
/// Examines the file system, its mount options, the disk's write cache, free space, rights and limits, and tries the
/// operations that Untorn needs on a small file, which is removed at once. Exit code: 0 if a store can be used here,
/// 1 if not.
#[derive(Args)]
pub struct Doctor {
    /// A directory, an existing file, or a file to be created.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub fn run(self) -> Result<Output, Failure> {
        // A stopped daemon behind the file system would block this process.
        let answers = time_limit::file_system(&self.path);
        if answers.map_err(|e| Failure::io("look at the file system of", &self.path, e))?.is_none() {
            return Err(Failure::new(format!(
                "the file system of {0} does not answer: a daemon or server behind it is stopped, or waits; of a mount of Untorn, \
                 `untorn status {0}` says more",
                self.path.display()
            )));
        }
        let report = examine(&self.path)?;
        let code = u8::from(!report.usable);
        let output = if self.json { json::output(&report)? } else { Output::text(report.text()) };
        Ok(output.code(code))
    }
}

/// The directory with the data and the store.
fn directory_of(path: &Path) -> &Path {
    if path.is_dir() {
        return path;
    }
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The store directory for this path.
fn journal_of(path: &Path) -> PathBuf {
    if path.is_dir() {
        return path.join(".untorn");
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".untorn");
    beside.into()
}

fn examine(path: &Path) -> Result<Report, Failure> {
    let dir = directory_of(path);
    let info = untorn_os::file_system_info(dir).map_err(|e| Failure::io("look at the file system of", dir, e))?;
    let disk = device::look(&info);
    let mut findings = file_system::assess(&info, disk.cache, file_system::ext4_has_journal(&info));
    findings.extend(disk.findings);
    findings.extend(trial::room(dir, &info)?);
    findings.extend(trust::directory(path, dir)?);
    findings.extend(trial::kernel(dir));
    findings.extend(trial::memory());
    findings.push(trial::live_memory());
    findings.extend(trial::on_a_file(dir));
    findings.extend(sqlite::databases(path));

    let journal = journal_of(path);
    let mut store = None;
    if journal.symlink_metadata().is_ok() {
        findings.extend(trust::journal(&journal));
        match offline::inspect(path) {
            Ok(found) => {
                findings.extend(slots::all(&found));
                store = Some(super::status::summary(&found)?);
            }
            Err(e) => findings.push(Finding::new("store", "cannot be read").rules_out(e.to_string())),
        }
    }
    let faces = faces::all(dir, &findings);
    Ok(Report::new(path, info, findings, faces, store))
}
