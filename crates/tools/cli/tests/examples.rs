//! The programs of `examples` that show one face of Untorn each, run as their README says, with a crash or a kill in the
//! middle. (Other tests run those of `examples/heap`, `gate`, `mmap`, `python`, `crashtest` and `ports`.)

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;
use untorn_testkit::{example, library_dir, link_by, preload_library, program, root, skipped};

const LINES_MAX: usize = 60;

/// A directory on a disk: the temporary directory may have no extended attributes.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn output(command: &mut Command) -> (Output, String) {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    (output, said)
}

#[track_caller]
fn ok(command: &mut Command) -> String {
    let (output, said) = output(command);
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[track_caller]
fn crashes(command: &mut Command) -> String {
    let (output, said) = output(command);
    assert!(output.status.signal().is_some(), "{command:?} ended by itself: {said}");
    said
}

/// A script of `examples/shell`, in a directory of its own.
fn script(name: &str, dir: &TempDir) -> Command {
    let mut command = Command::new(root().join("examples/shell").join(name));
    command.arg(dir.path().join("work")).env("UNTORN", env!("CARGO_BIN_EXE_untorn"));
    command
}

fn is_here(tool: &str) -> bool {
    let is_here = Command::new(tool).arg("--version").output().is_ok();
    if !is_here {
        skipped(&format!("{tool} is missing"));
    }
    is_here
}

#[test]
fn a_file_in_rust() {
    let dir = scratch();
    let run = || {
        let mut command = Command::new(example("untorn", "counter"));
        command.arg(dir.path().join("file"));
        command
    };
    assert_eq!(ok(&mut run()), "committed: 0\nwritten: 1\ncommitted: 1\n");
    assert_eq!(crashes(run().arg("crash")), "committed: 1\nwritten: 2\ncrash\n");
    assert_eq!(ok(&mut run()), "committed: 1\nwritten: 2\ncommitted: 2\n");
}

#[test]
fn several_files_and_names_in_rust_and_in_c() {
    let dir = scratch();
    let built = dir.path().join("transfer");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-I"]).arg(root().join("include"));
    cc.arg(root().join("examples/c/transfer.c")).arg("-o").arg(&built).arg(library_dir().join("libuntorn.a"));
    ok(cc.args(["-lpthread", "-ldl", "-lm", "-lgcc_s"]));
    for (program, bank) in [(example("untorn", "transfer"), "rust"), (built, "c")] {
        let run = || {
            let mut command = Command::new(&program);
            command.arg(dir.path().join(bank));
            fs::create_dir_all(dir.path().join(bank)).unwrap();
            command
        };
        let first = ok(&mut run());
        assert!(first.starts_with("before: 1000 + 0") && first.contains("\nafter: 970 + 30"), "{first}");
        assert!(crashes(run().arg("crash")).starts_with("before: 970 + 30"));
        assert!(ok(&mut run()).starts_with("before: 970 + 30"));
        assert!(dir.path().join(bank).join("receipt-2").exists());
    }
}

#[test]
fn a_reader_beside_a_writer() {
    let dir = scratch();
    let said = ok(Command::new(example("untorn", "reader")).arg(dir.path().join("bank")));
    assert!(said.contains(": 100 coins in each\nafter the kill: "), "{said}");
}

#[test]
fn a_live_heap_goes_on_after_a_crash() {
    let dir = scratch();
    let run = || {
        let mut command = Command::new(example("untorn", "live"));
        command.arg(dir.path().join("heap"));
        command
    };
    let number = |said: &str| said.trim().rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    let first = number(&crashes(&mut run()));
    let second = crashes(&mut run());
    assert!(second.starts_with(&format!("goes on from {first}\n")), "{first}: {second}");
    assert_eq!(ok(run().arg("end")), format!("goes on from {}\n", number(&second)));
}

#[test]
fn each_number_behind_a_gate_is_in_the_file() {
    let dir = scratch();
    let file = dir.path().join("numbers");
    let said = crashes(Command::new(example("untorn", "gate")).arg(&file));
    let shown = common::run(&["cat"], &file).ok();
    let last = |text: &str| text.lines().last().map_or(0, |line| line.trim().parse::<u64>().unwrap());
    assert!(
        last(&said) > 0 && last(&said) <= last(&shown),
        "{} were answered, {} are there",
        last(&said),
        last(&shown)
    );
}

#[test]
fn put_in_a_script() {
    let said = ok(&mut script("put.sh", &scratch()));
    let settings = "colour = blue\nsize = 3\n";
    let wanted =
        format!("the program failed with 1\n{settings}put was killed\n{settings}{{\"users\": 2}}\n{{\"groups\": 1}}\n");
    assert_eq!(said, wanted);
}

#[test]
fn sqlite_is_killed() {
    if !is_here("sqlite3") {
        return;
    }
    let dir = scratch();
    let extension = dir.path().join("libuntorn_sqlite");
    link_by("crates/bindings/sqlite/link.sh", &extension.with_extension("so"), &[]);
    let said = ok(script("sqlite.sh", &dir).env("EXTENSION", extension));
    assert_eq!(said, "sqlite3 was killed in the fourth transaction\n97 pieces, 3 orders\n");
}

#[test]
fn an_unchanged_program_is_killed() {
    if !is_here("sqlite3") || !is_here("stdbuf") {
        return;
    }
    preload_library();
    let mut kills = Command::new(root().join("examples/preload/kills.sh"));
    let said = ok(kills.arg("3").env("UNTORN", env!("CARGO_BIN_EXE_untorn")).env("TMPDIR", "/var/tmp"));
    let rows = said.strip_prefix("3 kills, ").and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(rows.is_some_and(|rows| rows >= 3), "{said}");
    assert!(said.ends_with("no acknowledged row lost, no half transaction\n"), "{said}");
}

#[test]
fn a_mount_and_a_session_are_killed() {
    if !Path::new("/dev/fuse").exists() || !is_here("fusermount3") || !common::root() {
        return;
    }
    program("untorn-mount");
    let said = ok(&mut script("mount.sh", &scratch()));
    assert!(said.ends_with("\nkept\n"), "{said}");
    let said = ok(&mut script("run.sh", &scratch()));
    assert!(said.contains("==> data/first <==\ntwo\n\n==> data/second <==\none\n"), "{said}");
    assert!(said.contains("the session was killed\none\n") && said.ends_with("\nthree\n"), "{said}");
}

#[test]
fn a_store_is_shipped_and_lost() {
    program("untorn-ship");
    let said = ok(&mut script("ship.sh", &scratch()));
    assert!(said.contains("restored: tuesday\n") && said.ends_with("as of commit 1: monday\n"), "{said}");
}

/// Every directory of examples has a README, and the programs that are to be read first are short.
#[test]
fn examples_have_a_page_and_are_short() {
    let examples = root().join("examples");
    for entry in fs::read_dir(&examples).unwrap().map(|entry| entry.unwrap().path()) {
        let page = if entry.is_dir() { entry.join("README.md") } else { continue };
        let page = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
        let names = fs::read_dir(&entry).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        for name in names.filter(|name| name != "README.md" && !name.starts_with('_')) {
            assert!(page.contains(&name), "{}/README.md does not name {name}", entry.display());
        }
    }
    let short: Vec<PathBuf> = ["c", "mmap", "preload", "rust", "shell"].map(|dir| examples.join(dir)).into();
    for file in short.iter().flat_map(|dir| fs::read_dir(dir).unwrap()).map(|entry| entry.unwrap().path()) {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines; {LINES_MAX} is the most", file.display());
    }
}
