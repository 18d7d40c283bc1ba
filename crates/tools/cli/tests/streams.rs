//! Standard streams that fail, or are full at the moment. No command changes its work because of that.

mod common;

use common::{Run, untorn};
use std::fs::{self, File};
use std::io::{Read, Write, pipe};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// Makes a store with one commit in a directory, and leaves it without a close.
fn unclean(dir: &Path) {
    let store = dir.join("store");
    fs::create_dir_all(&store).unwrap();
    let opened = untorn::Store::open_or_create(&store).unwrap();
    let file = opened.open_or_create_file("file").unwrap();
    file.append(b"committed").unwrap();
    file.commit().unwrap();
    fs::create_dir(dir.join("copy")).unwrap();
    assert!(Command::new("cp").arg("-a").args([&store, &dir.join("copy")]).status().unwrap().success());
    file.close().unwrap();
    opened.close().unwrap();
    fs::remove_dir_all(&store).unwrap();
    fs::rename(dir.join("copy/store"), &store).unwrap();
}

/// All names and contents below a directory, except for the journal, which has times and random numbers.
fn tree(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let listed =
        Command::new("find").arg(".").arg("-not").args(["-path", "*/.untorn/*"]).current_dir(dir).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let mut found: Vec<_> =
        text.lines().map(|name| (name.to_owned(), fs::read(dir.join(name)).unwrap_or_default())).collect();
    found.sort();
    found
}

const COMMANDS: [&[&str]; 29] = [
    &["status", "store"],
    &["status", "absent"],
    &["check", "store"],
    &["check", "absent"],
    &["dump", "store"],
    &["dump", "absent"],
    &["recover", "store"],
    &["recover", "absent"],
    &["recover", "--dry-run", "store"],
    &["checkpoint", "store"],
    &["checkpoint", "absent"],
    &["eject", "--yes", "store"],
    &["eject", "absent"],
    &["doctor", "absent"],
    &["put", "new"],
    &["put", "absent/new"],
    &["put", "new", "--", "false"],
    &["cat", "store/absent"],
    &["ls", "absent"],
    &["tail", "-n", "0", "store"],
    &["tail", "absent"],
    &["cp", "absent", "there"],
    &["readers", "absent"],
    &["slots", "store"],
    &["slots", "--drop", "x", "absent"],
    &["find-unclean", "--recover", "."],
    &["port-check", "absent"],
    &["frobnicate"],
    &["completions", "nonsense"],
];

#[test]
fn an_unwritable_standard_error_changes_nothing() {
    for command in COMMANDS {
        let run = |errors: Stdio| -> (Run, Vec<(String, Vec<u8>)>) {
            let dir = tempfile::tempdir().unwrap();
            unclean(dir.path());
            let mut command_line = untorn();
            command_line.args(command).current_dir(dir.path()).stdin(Stdio::null()).stderr(errors);
            (command_line.output().unwrap().into(), tree(dir.path()))
        };
        let (told, untold) = (run(Stdio::piped()), run(full()));
        assert_eq!(untold.0.code, told.0.code, "{command:?}: {}", told.0.err);
        assert_ne!(told.0.code, Some(101), "{command:?}: {}", told.0.err);
        assert_eq!(untold.1, told.1, "{command:?}");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    unclean(dir.path());
    for command in [
        &["status", "store"][..],
        &["check", "store"],
        &["dump", "store"],
        &["cat", "store/file"],
        &["ls", "store"],
        &["completions", "bash"],
        &["--help"],
        &["status", "--help"],
        &["--version"],
    ] {
        let out = untorn().args(command).current_dir(dir.path()).stdin(Stdio::null()).stdout(full()).output().unwrap();
        let run = Run::from(out);
        assert_eq!(run.code, Some(1), "{command:?}: {}", run.err);
        let what = match command.last() {
            Some(&"--help") => "the help",
            Some(&"--version") => "the version",
            _ => "the result",
        };
        let told = format!("cannot write {what}: No space left");
        assert!(run.err.contains(&told), "{command:?}: {}", run.err);
        // Neither stream can be written, so only the exit code tells of the failure.
        let both =
            untorn().args(command).current_dir(dir.path()).stdin(Stdio::null()).stdout(full()).stderr(full()).status();
        assert_eq!(both.unwrap().code(), Some(1), "{command:?}");
    }
}

/// Waits until a process sleeps, or has ended.
fn until_it_waits(child: &Child) {
    loop {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let state = stat.rsplit(')').next().unwrap().split_whitespace().next().unwrap();
        if ["S", "Z"].contains(&state) {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_pipe_that_does_not_block_gets_all_of_it() {
    let wanted = untorn().args(["completions", "bash"]).output().unwrap().stdout;
    let (mut from, mut to) = pipe().unwrap();
    rustix::fs::fcntl_setfl(to.as_fd(), rustix::fs::OFlags::NONBLOCK).unwrap();
    // Fills the pipe.
    let mut before = 0;
    while let Ok(n) = to.write(&[b'.'; 4096]) {
        before += n;
    }
    let mut child = untorn().args(["completions", "bash"]).stdout(to).stderr(Stdio::piped()).spawn().unwrap();
    until_it_waits(&child);
    let mut came = Vec::new();
    from.read_to_end(&mut came).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(came[before..], wanted);
}

#[test]
fn new_contents_that_do_not_come_at_once_are_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "old").unwrap();
    let (from, mut to) = pipe().unwrap();
    rustix::fs::fcntl_setfl(from.as_fd(), rustix::fs::OFlags::NONBLOCK).unwrap();
    let mut child = untorn().arg("put").arg(&file).stdin(from).stderr(Stdio::piped()).spawn().unwrap();
    until_it_waits(&child);
    to.write_all(b"new").unwrap();
    drop(to);
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
}
