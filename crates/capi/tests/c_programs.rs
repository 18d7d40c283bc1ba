//! Runs every C program of `tests/c` against the shared library, against the static one under the
//! address and undefined-behaviour sanitizers, and under Valgrind; and the example of the README.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{STATIC_LIBS, build_library, cc, crate_dir, have, library_dir, output_of, run, skipped};

const PROGRAMS: [&str; 6] = ["store", "file", "txn", "misuse", "threads", "crash"];

/// Only definite leaks count: Rust's maps are reached by pointers into their middle.
const VALGRIND: [&str; 7] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=9",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
    "--fair-sched=yes",
];

fn source(program: &str) -> PathBuf {
    crate_dir().join("tests/c").join(program).with_extension("c")
}

/// Links a program with `libuntorn.so`, found at run time where cargo built it.
fn link_shared(source: &Path, to: &Path) {
    let libraries = library_dir();
    let mut command = cc();
    command.arg(source).arg("-o").arg(to).arg("-L").arg(&libraries).arg("-luntorn");
    // The library answers to its SONAME, under which only an installation has it.
    let soname = to.with_file_name("libuntorn.so.0");
    std::os::unix::fs::symlink(libraries.join("libuntorn.so"), soname).expect("a link to the library");
    run(command.arg("-Wl,-rpath,$ORIGIN"));
}

/// Each program in a directory of its own, started by `launcher` (which may be empty).
fn run_in_scratch(launcher: &[&str], program: &Path) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let mut words: Vec<&std::ffi::OsStr> = launcher.iter().map(std::ffi::OsStr::new).collect();
    words.push(program.as_os_str());
    let mut command = Command::new(words[0]);
    run(command.args(&words[1..]).arg(scratch.path()).env("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1"));
}

#[test]
fn every_program_of_the_directory_is_run() {
    let found = fs::read_dir(crate_dir().join("tests/c")).expect("tests/c");
    let mut found: Vec<_> = found.map(|entry| entry.expect("an entry").path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    found.sort();
    let mut listed: Vec<_> = PROGRAMS.map(source).into();
    listed.sort();
    assert_eq!(found, listed);
}

fn shared(program: &str) {
    build_library();
    let build = tempfile::tempdir().expect("a build directory");
    let binary = build.path().join(program);
    link_shared(&source(program), &binary);
    run_in_scratch(&[], &binary);
}

#[test]
fn store() {
    shared("store");
}

#[test]
fn file() {
    shared("file");
}

#[test]
fn txn() {
    shared("txn");
}

#[test]
fn misuse() {
    shared("misuse");
}

#[test]
fn threads() {
    shared("threads");
}

#[test]
fn crash() {
    shared("crash");
}

/// The C side is instrumented; the allocator is, for both sides, so that leaks and stray frees show.
#[test]
fn all_under_sanitizers() {
    build_library();
    let build = tempfile::tempdir().expect("a build directory");
    let sanitize = "-fsanitize=address,undefined";
    let probe = build.path().join("probe.c");
    fs::write(&probe, "int main(void) { return 0; }\n").expect("a probe");
    let probed = cc().arg(sanitize).arg(&probe).arg("-o").arg(build.path().join("probe")).output();
    if !probed.is_ok_and(|output| output.status.success()) {
        skipped(&format!("cc has no {sanitize} here"));
        return;
    }
    for program in PROGRAMS {
        let binary = build.path().join(program);
        let mut command = cc();
        command.args([sanitize, "-fno-sanitize-recover=all"]).arg(source(program)).arg("-o").arg(&binary);
        run(command.arg(library_dir().join("libuntorn.a")).args(STATIC_LIBS));
        run_in_scratch(&[], &binary);
    }
}

#[test]
fn all_under_valgrind() {
    if !have("valgrind") {
        return;
    }
    build_library();
    let build = tempfile::tempdir().expect("a build directory");
    for program in PROGRAMS {
        let directory = build.path().join(format!("build-{program}"));
        fs::create_dir(&directory).expect("a build directory");
        let binary = directory.join(program);
        link_shared(&source(program), &binary);
        let mut launcher = VALGRIND.to_vec();
        if program == "crash" {
            // A forked child leaves its parent's handles alone, which looks like a leak in the child.
            launcher.push("--leak-check=no");
        }
        run_in_scratch(&launcher, &binary);
    }
}

#[test]
fn the_example_runs() {
    build_library();
    let build = tempfile::tempdir().expect("a build directory");
    let binary = build.path().join("hello");
    link_shared(&crate_dir().join("../../examples/c/hello.c"), &binary);
    let store = build.path().join("store");
    fs::create_dir(&store).expect("a directory");
    // Twice: the second run opens what the first one left.
    for _ in 0..2 {
        run(Command::new(&binary).arg(&store));
        assert_eq!(fs::read_to_string(store.join("account-a")).expect("account-a"), "70 coins\n");
        assert_eq!(fs::read_to_string(store.join("account-b")).expect("account-b"), "30 coins\n");
    }
    let nowhere = Command::new(&binary).arg(build.path().join("no/such/place")).output().expect("the example");
    assert!(!nowhere.status.success() && !nowhere.stderr.is_empty());
}

/// Oldest C that has the types, and C++: the header alone must do.
#[test]
fn the_header_is_c99_and_cpp() {
    let build = tempfile::tempdir().expect("a build directory");
    let source = build.path().join("includes.c");
    fs::write(&source, "#include <untorn.h>\nint main(void) { return untorn_size(0) == -1 ? 0 : 1; }\n")
        .expect("a source");
    let include = crate_dir().join("../../include");
    let warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"];
    output_of(Command::new("cc").args(["-std=c99"]).args(warnings).arg(&include).arg(&source));
    if have("c++") {
        run(Command::new("c++").args(["-std=c++17", "-x", "c++"]).args(warnings).arg(&include).arg(&source));
    }
}
