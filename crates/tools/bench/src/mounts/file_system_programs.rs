//! Benchmarks of whole file systems, in a directory: PostMark, IOzone's passes by fio, and MDTest's loop over names.

use crate::measuring::harness::timed;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Notes on programs that are not installed.
pub const NO_FIO: &str = "IOzone's passes were left out: install the package fio.";
pub const NO_POSTMARK: &str = "PostMark was left out: install the package postmark.";

/// A pass of IOzone: its name, and the option of fio.
pub const PASSES: [(&str, &str); 5] = [
    ("write", "write"),
    ("rewrite", "write"),
    ("read", "read"),
    ("random read", "randread"),
    ("random write", "randwrite"),
];
/// MDTest's phases.
pub const PHASES: [&str; 3] = ["create", "stat", "remove"];

/// Whether fio is installed.
pub fn has_fio() -> bool {
    Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The time of each pass over a file, with records of so many bytes and one fsync at the end of each pass that writes.
pub fn passes(at: &Path, file_bytes: u64, record_bytes: u64) -> Result<[Duration; PASSES.len()]> {
    let path = at.join("iozone");
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
        _ => settle(at)?,
    }
    let mut times = [Duration::ZERO; PASSES.len()];
    for ((_, kind), time) in PASSES.iter().zip(&mut times) {
        *time = pass(&path, kind, file_bytes, record_bytes)?;
    }
    Ok(times)
}

fn pass(path: &Path, kind: &str, file_bytes: u64, record_bytes: u64) -> Result<Duration> {
    let mut command = Command::new("fio");
    command.args([
        "--name=iozone",
        "--ioengine=psync",
        "--thread",
        "--fallocate=none",
        "--invalidate=0",
        "--allow_file_create=1",
    ]);
    command.args(["--end_fsync=1", "--output-format=json", &format!("--rw={kind}")]);
    command.args([format!("--size={file_bytes}"), format!("--bs={record_bytes}")]);
    let output = command.arg(format!("--filename={}", path.display())).output().context("fio")?;
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).context("fio's output")?;
    let of = &found["jobs"][0][if kind.ends_with("read") { "read" } else { "write" }];
    let number = |value: &serde_json::Value| value.as_f64().context("fio's output lacks a number");
    let (mean_ns, calls) = (number(&of["lat_ns"]["mean"])?, number(&of["total_ios"])?);
    ensure!(number(&of["io_bytes"])? as u64 == file_bytes, "fio did not do all of its work");
    // The time of the whole pass has the fsync, but is in milliseconds; that of the calls is exact.
    Ok(Duration::from_secs_f64((number(&of["runtime"])? / 1e3).max(mean_ns * calls / 1e9)))
}

/// The directories of MDTest: one, or a tree of two levels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Flat,
    Tree,
}

/// Directories in a directory of the tree.
const BRANCHES: usize = 10;

/// The time of creating, examining and removing so many empty files. Their directories count where they are made.
pub fn names(at: &Path, shape: Shape, files: usize) -> Result<[Duration; PHASES.len()]> {
    let root = at.join("names");
    let dirs: Vec<PathBuf> = match shape {
        Shape::Flat => vec![root.clone()],
        Shape::Tree => {
            let pairs = (0..BRANCHES).flat_map(|a| (0..BRANCHES).map(move |b| format!("{a}/{b}")));
            pairs.map(|name| root.join(name)).collect()
        }
    };
    let paths: Vec<PathBuf> =
        (0..files).map(|n| dirs[n * dirs.len() / files].join(format!("file.mdtest.{n}"))).collect();
    settle(at)?;
    let create = timed(|| -> Result<()> {
        dirs.iter().try_for_each(fs::create_dir_all)?;
        Ok(paths.iter().try_for_each(|path| File::create(path).map(drop))?)
    })?;
    settle(at)?;
    let stat = timed(|| paths.iter().try_for_each(|path| fs::metadata(path).map(drop)))?;
    let remove = timed(|| -> Result<()> {
        paths.iter().try_for_each(fs::remove_file)?;
        Ok(fs::remove_dir_all(&root)?)
    })?;
    Ok([create, stat, remove])
}

/// Writes out everything that is dirty, so that nobody pays for earlier work.
pub fn settle(at: &Path) -> Result<()> {
    Ok(rustix::fs::syncfs(File::open(at)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_go_again() {
        let dir = tempfile::tempdir().unwrap();
        for shape in [Shape::Flat, Shape::Tree] {
            names(dir.path(), shape, 150).unwrap();
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn programs_do_all_of_their_work() {
        let dir = tempfile::tempdir().unwrap();
        if has_fio() {
            let times = passes(dir.path(), 64 << 10, 4096).unwrap();
            assert!(times.iter().all(|time| !time.is_zero()), "{times:?}");
        }
    }
}
