//! Helpers of the tests of `untorn preload`.

use super::{Run, untorn};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use untorn_testkit::{preload_library, skipped};

/// The standard output of a program that must succeed.
#[track_caller]
pub fn done(command: &mut Command) -> String {
    Run::from(command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"))).ok()
}

/// `untorn preload` in a directory. The arguments follow.
pub fn preload(dir: &Path, pattern: &str) -> Command {
    let mut command = untorn();
    command.arg("preload").arg("--library").arg(preload_library()).args(["--manage", pattern]).current_dir(dir);
    command.stdin(Stdio::null());
    command
}

/// A compiled C program or library.
pub fn compiled(dir: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let (file, to) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&file, source).unwrap();
    done(Command::new("cc").args(["-O2", "-Wall", "-Werror", "-D_GNU_SOURCE", "-o"]).arg(&to).arg(&file).args(options));
    to
}

pub fn is_here(program: &str) -> bool {
    let is_here = Command::new(program).arg("--version").output().is_ok();
    if !is_here {
        skipped(&format!("there is no {program} here"));
    }
    is_here
}
