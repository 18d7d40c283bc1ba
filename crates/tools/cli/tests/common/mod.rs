//! Helpers of the command's tests: they run it, and read its output.
#![allow(dead_code, reason = "every test file uses its own part")]

pub mod preload;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

pub fn untorn() -> Command {
    Command::new(env!("CARGO_BIN_EXE_untorn"))
}

/// The result of a run.
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Run {
    fn from(o: Output) -> Run {
        let text = |bytes| String::from_utf8(bytes).expect("the command speaks UTF-8");
        Run { code: o.status.code(), out: text(o.stdout), err: text(o.stderr) }
    }
}

impl Run {
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    /// Standard output of a run on a store that is in order, but was not closed.
    #[track_caller]
    pub fn unclean(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(1), ""), "{}", self.out);
        assert!(!self.out.contains("PROBLEM") && !self.out.contains("not sound"), "{}", self.out);
        self.out
    }

    /// Standard error of a run that ended with this code.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        assert!(self.err.starts_with("untorn: "), "{}", self.err);
        self.err
    }
}

pub fn run(arguments: &[&str], path: &Path) -> Run {
    untorn().args(arguments).arg(path).stdin(Stdio::null()).output().unwrap().into()
}

#[track_caller]
pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e} in {text}"))
}

/// Runs `untorn put` with an umask, perhaps as another user.
pub fn put(path: &Path, contents: &[u8], umask: &str, user: Option<u32>) -> Run {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("umask {umask}; exec \"$0\" put \"$1\""), env!("CARGO_BIN_EXE_untorn")]).arg(path);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command may refuse before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(contents);
    child.wait_with_output().unwrap().into()
}

/// Whether the tests run as root. Prints a message if they do not.
pub fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

/// A small file system in memory. It is unmounted when this value is dropped.
pub struct Tmpfs {
    pub dir: tempfile::TempDir,
}

impl Tmpfs {
    pub fn mount(options: &str) -> Option<Tmpfs> {
        let dir = tempfile::tempdir().unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "untorn-test"]).arg(dir.path()).status();
        if !mount.is_ok_and(|s| s.success()) {
            eprintln!("skipped: cannot mount a tmpfs");
            return None;
        }
        Some(Tmpfs { dir })
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.dir.path()).status();
    }
}
