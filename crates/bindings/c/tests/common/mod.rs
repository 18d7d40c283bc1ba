//! Builds the libraries, and C programs against them.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod hooked_programs;
pub mod killed_programs;

pub use untorn_testkit::library_dir;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// This crate's directory.
pub fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The cargo profile that shares its build of the dependencies with this test.
pub fn profile() -> &'static str {
    if cfg!(debug_assertions) { "test" } else { "release" }
}

/// The cargo target directory.
pub fn target_dir() -> PathBuf {
    library_dir().parent().expect("target/PROFILE").to_owned()
}

/// Runs a program that must succeed; its output is shown if it does not.
pub fn run(command: &mut Command) {
    output_of(command);
}

/// Runs a program that must succeed, and returns its standard output.
pub fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// Whether a tool is installed.
pub fn is_here(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Whether a tool is installed; prints a warning if not.
pub fn have(tool: &str) -> bool {
    let there = is_here(tool);
    if !there {
        skipped(&format!("there is no `{tool}` here"));
    }
    there
}

/// Warns that something is not tested. The test harness would hide the output of print macros in a test that passes.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}, so part of the C interface is NOT tested");
}

/// `cc` for C11 with every warning an error, and the header's directory.
pub fn cc() -> Command {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-D_GNU_SOURCE", "-I"]);
    cc.arg(crate_dir().join("../../../include"));
    cc
}

/// `c++` for C++17 with every warning an error, and the header's directory.
pub fn cxx() -> Command {
    cxx_by("c++")
}

/// clang for C++17 with LLVM's standard library. None: not installed.
pub fn libcxx() -> Option<Command> {
    let mut cxx = cxx_by("clang++");
    cxx.arg("-stdlib=libc++");
    let mut probe = cxx_by("clang++");
    probe.args(["-stdlib=libc++", "-fsyntax-only", "-x", "c++", "-include", "map", "/dev/null"]);
    if probe.output().is_ok_and(|output| output.status.success()) {
        return Some(cxx);
    }
    skipped("there is no clang++ with libc++ here");
    None
}

fn cxx_by(compiler: &str) -> Command {
    let mut cxx = Command::new(compiler);
    cxx.args(["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-I"]);
    cxx.arg(crate_dir().join("../../../include"));
    cxx
}

/// Adds the arguments that link a program with `libuntorn.so`, found at run time where cargo built it.
pub fn link_with<'c>(command: &'c mut Command, to: &Path) -> &'c mut Command {
    let libraries = library_dir();
    // Programs load the library by its SONAME, which only an installation has as a file name.
    let soname = to.with_file_name("libuntorn.so.0");
    if !soname.exists() {
        std::os::unix::fs::symlink(libraries.join("libuntorn.so"), soname).expect("a link to the library");
    }
    command.arg("-o").arg(to).arg("-L").arg(libraries).args(["-luntorn", "-Wl,-rpath,$ORIGIN"])
}

/// Libraries that a static link with `libuntorn.a` also needs.
pub const STATIC_LIBS: [&str; 3] = ["-lpthread", "-ldl", "-lm"];
