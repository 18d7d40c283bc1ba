//! Helpers of the tests of `untorn preload`.

use super::{Run, untorn};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use untorn_testkit::skipped;

/// The library, linked anew from the `libuntorn.a` of this build.
pub fn library() -> &'static Path {
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    LINKED.get_or_init(|| {
        let test = std::env::current_exe().expect("this test's own path");
        let dir = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST").to_owned();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        // `make test` has built everything.
        if std::env::var_os("UNTORN_PREBUILT").is_none() {
            let profile = if cfg!(debug_assertions) { "test" } else { "release" };
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--package", "untorn-capi", "--profile", profile, "--target-dir"]);
            done(cargo.arg(dir.parent().expect("target/PROFILE")).current_dir(&root));
        }
        let linked = dir.join("libuntorn-preload.so");
        done(Command::new(root.join("crates/bindings/preload/link.sh")).arg(dir.join("libuntorn.a")).arg(&linked));
        linked
    })
}

/// The standard output of a program that must succeed.
#[track_caller]
pub fn done(command: &mut Command) -> String {
    Run::from(command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"))).ok()
}

/// `untorn preload` in a directory. The arguments follow.
pub fn preload(dir: &Path, pattern: &str) -> Command {
    let mut command = untorn();
    command.arg("preload").arg("--library").arg(library()).args(["--manage", pattern]).current_dir(dir);
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
