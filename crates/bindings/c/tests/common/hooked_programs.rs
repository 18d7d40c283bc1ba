//! Programs that untorn-cc and untorn-c++ compile.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use super::{crate_dir, have, is_here, output_of, profile, run, target_dir};

/// An installation, for all tests of this program.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = PREFIX.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut script = Command::new("sh");
        script.arg(crate_dir().join("../../../scripts/install.sh")).args(["--library-only", "--profile", profile()]);
        run(script.env("PREFIX", dir.path()).env("CARGO_TARGET_DIR", target_dir()));
        dir
    });
    dir.path()
}

/// The installed compilers, C and C++: those of the distribution, and the newest one besides.
pub fn compilers() -> &'static [(String, String)] {
    static FOUND: OnceLock<Vec<(String, String)>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut all = Vec::new();
        for (c, cxx) in [("gcc", "g++"), ("clang", "clang++")] {
            let usual = (have(c) && have(cxx)).then(|| (c.to_owned(), cxx.to_owned()));
            let known = usual.as_ref().map(|(c, _)| version(c));
            let mut others = (10..40).rev().map(|n| (format!("{c}-{n}"), format!("{cxx}-{n}")));
            all.extend(usual);
            let newest = others.find(|(c, cxx)| is_here(c) && is_here(cxx));
            all.extend(newest.filter(|(c, _)| Some(version(c)) != known));
        }
        all
    })
}

/// The first number of a compiler's version.
pub fn version(compiler: &str) -> u32 {
    let version = output_of(Command::new(compiler).arg("-dumpversion"));
    version.trim().split('.').next().and_then(|major| major.parse().ok()).expect("a version")
}

/// `untorn-cc` or `untorn-c++`, by a compiler, with warnings as errors.
pub fn wrapper(name: &str, compiler: &str) -> Command {
    let mut command = Command::new(prefix().join("bin").join(name));
    command.env(if name == "untorn-cc" { "UNTORN_CC" } else { "UNTORN_CXX" }, compiler);
    command.args(["-Wall", "-Wextra", "-Werror"]);
    command
}

/// A program of theirs, which loads the installed library.
pub fn program(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    command.env("LD_LIBRARY_PATH", prefix().join("lib"));
    command
}
