//! Helpers of these tests: the program, and directories to compare.

#![allow(dead_code)] // Each test program uses a part.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// Permission bits of files and directories, and the bytes of files.
pub type Contents = BTreeMap<PathBuf, (u32, Option<Vec<u8>>)>;

/// The program with these arguments, without any credentials of the machine.
pub fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-ship"));
    command.args(arguments);
    command
}

/// Runs the program, which must succeed, and returns its standard output.
#[track_caller]
pub fn run(arguments: &[&str]) -> String {
    let output = program(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the program, which must fail, and returns its message.
#[track_caller]
pub fn refused(arguments: &[&str]) -> String {
    let output = program(arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?} succeeded: {}", said(&output));
    String::from_utf8(output.stderr).unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Everything in a directory but Untorn's own files: permission bits, and the bytes of files.
pub fn contents(dir: &Path) -> Contents {
    let mut found = BTreeMap::new();
    let mut ahead = vec![dir.to_owned()];
    while let Some(at) = ahead.pop() {
        for entry in std::fs::read_dir(&at).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if entry.file_name().as_encoded_bytes().ends_with(b".untorn") {
                continue;
            }
            let about = entry.metadata().unwrap();
            let bytes = about.is_file().then(|| std::fs::read(&path).unwrap());
            if about.is_dir() {
                ahead.push(path.clone());
            }
            found.insert(path.strip_prefix(dir).unwrap().to_owned(), (about.permissions().mode() & 0o7777, bytes));
        }
    }
    found
}

/// Everything in a store as of its last commit, and this commit.
pub fn committed(store: &Path) -> (u64, Contents) {
    let reader = untorn::Reader::open(store).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let mut found = BTreeMap::new();
    let mut ahead = vec![PathBuf::new()];
    while let Some(at) = ahead.pop() {
        for name in snapshot.list(&at).unwrap() {
            let path = at.join(name);
            let about = snapshot.metadata(&path).unwrap();
            if about.is_directory {
                ahead.push(path.clone());
                found.insert(path, (about.mode & 0o7777, None));
                continue;
            }
            let mut bytes = vec![0; about.len as usize];
            let n = snapshot.open(&path).unwrap().read_at(&mut bytes, 0).unwrap();
            assert_eq!(n, bytes.len());
            found.insert(path, (about.mode & 0o7777, Some(bytes)));
        }
    }
    (snapshot.lsn(), found)
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The URL of a directory.
pub fn url(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// A child that is killed at the end.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for something that must come.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what} did not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process that stands for another machine: a script in place of ssh starts the command here.
pub struct Machine {
    dir: PathBuf,
}

impl Machine {
    /// `login`: commands of the shell there before the command. The script and its notes are in `dir`.
    pub fn new(dir: &Path, login: &str) -> Machine {
        let program = Path::new(env!("CARGO_BIN_EXE_untorn-ship")).parent().unwrap();
        let script = format!(
            "#!/bin/sh\necho \"$@\" >>'{dir}/calls'\necho >'{dir}/serves-'$$\nwhile [ \"$1\" != -- ]; do shift; done\n\
             shift 2\nPATH='{program}':$PATH\n{login}\neval \"exec $1\"\n",
            dir = dir.display(),
            program = program.display(),
        );
        untorn_testkit::install_script(&script, &dir.join("ssh"));
        Machine { dir: dir.to_owned() }
    }

    /// The URL of a directory there.
    pub fn url(&self, path: &Path) -> String {
        format!("ssh://ann@other:2222{}", path.display()).replace(' ', "%20")
    }

    /// The program with these arguments, for which this is ssh.
    pub fn program(&self, arguments: &[&str]) -> Command {
        let mut command = program(arguments);
        command.env("UNTORN_SSH", self.dir.join("ssh"));
        command
    }

    /// Kills the processes that serve now, and returns whether there was one.
    pub fn kill(&self) -> bool {
        let notes = std::fs::read_dir(&self.dir).unwrap().map(|entry| entry.unwrap().path());
        let mut is_killed = false;
        for note in notes {
            let name = note.file_name().unwrap().to_string_lossy().into_owned();
            let Some(pid) = name.strip_prefix("serves-") else { continue };
            std::fs::remove_file(&note).unwrap();
            // A process that has ended has no command line.
            if std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()) {
                let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
                is_killed |= rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok();
            }
        }
        is_killed
    }
}
