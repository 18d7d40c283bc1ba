//! Subcommands that are programs of their own, which are searched beside this program and in PATH.

use clap::Args;
use rustix::fs::{Access, AtFlags, CWD, FileType, StatxFlags, access, statx};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use untorn_os::mount_calls;
use untorn_terminal::{Failure, log, standard_streams, stays_within};

/// The first bytes of a tree's table; see `docs/MOUNT.md`.
const TREE: &[u8; 11] = b"untorn tree";

/// The exit code of a shell that cannot find a command.
pub const NOT_FOUND: u8 = 127;
/// The exit code of a shell that cannot execute a command.
pub const NOT_EXECUTABLE: u8 = 126;

/// The arguments that follow belong to that program, `--help` included.
#[derive(Args)]
pub struct Arguments {
    /// Arguments of that program; `--help` shows them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

/// A subcommand that another program carries out.
#[derive(Clone, Copy)]
pub enum Other {
    Crashtest,
    Xsync,
    Mount,
    Umount,
    Sync,
    Import,
    Export,
    Run,
    /// For a mount, or a directory with a session, not for a store.
    Status,
    /// For a directory with a session, not for a store.
    Recover,
    /// For a mount, or its store.
    Check,
    /// For the store of a mount.
    Cat,
    /// For the store of a mount.
    Ls,
    /// For the store of a mount.
    Eject,
    Ship,
    Restore,
    Follow,
    /// For the URL of a place of commits.
    Log,
    Top,
    Metrics,
    Bench,
    Demo,
}

impl Other {
    fn subcommand(self) -> &'static str {
        match self {
            Other::Crashtest => "crashtest",
            Other::Xsync => "xsync",
            Other::Mount => "mount",
            Other::Umount => "umount",
            Other::Sync => "sync",
            Other::Import => "import",
            Other::Export => "export",
            Other::Run => "run",
            Other::Status => "status",
            Other::Recover => "recover",
            Other::Check => "check",
            Other::Cat => "cat",
            Other::Ls => "ls",
            Other::Eject => "eject",
            Other::Ship => "ship",
            Other::Restore => "restore",
            Other::Follow => "follow",
            Other::Log => "log",
            Other::Top => "top",
            Other::Metrics => "metrics",
            Other::Bench => "bench",
            Other::Demo => "demo",
        }
    }

    /// The program, and the first of its arguments.
    fn program(self) -> (&'static str, Option<&'static str>) {
        match self {
            Other::Crashtest => ("untorn-crashtest", None),
            Other::Xsync => ("untorn-xsync", None),
            Other::Mount => ("untorn-mount", None),
            Other::Umount => ("untorn-mount", Some("umount")),
            Other::Sync => ("untorn-mount", Some("sync")),
            Other::Import => ("untorn-mount", Some("import")),
            Other::Export => ("untorn-mount", Some("export")),
            Other::Run => ("untorn-mount", Some("run")),
            Other::Status => ("untorn-mount", Some("status")),
            Other::Recover => ("untorn-mount", Some("recover")),
            Other::Check => ("untorn-mount", Some("check")),
            Other::Cat => ("untorn-mount", Some("cat")),
            Other::Ls => ("untorn-mount", Some("ls")),
            Other::Eject => ("untorn-mount", Some("eject")),
            Other::Ship => ("untorn-ship", Some("ship")),
            Other::Restore => ("untorn-ship", Some("restore")),
            Other::Follow => ("untorn-ship", Some("follow")),
            Other::Log => ("untorn-ship", Some("log")),
            Other::Top => ("untorn-top", Some("top")),
            Other::Metrics => ("untorn-top", Some("metrics")),
            Other::Bench => ("untorn-bench", None),
            Other::Demo => ("untorn-bench", Some("demo")),
        }
    }

    /// Replaces this process by the other program. Returns only if that fails.
    ///
    /// The program gets all arguments after the subcommand unchanged; `clap` would remove a first `--`. Only options of
    /// the log can stand before the subcommand; they come first.
    pub fn execute(self) -> Failure {
        let (name, first) = self.program();
        let Some(path) = find(name) else {
            return Failure::new(format!(
                "`untorn {}` is the program {name}, which is neither beside this one nor in PATH; \
                 `make install` in Untorn's source installs it",
                self.subcommand()
            ))
            .code(NOT_FOUND);
        };
        standard_streams::leave_closed();
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let (of_log, rest) = arguments.split_at(log::leading_options(&arguments));
        let rest = rest.get(1..).unwrap_or_default();
        let error = Command::new(&path).arg0(name).args(first).args(of_log).args(rest).exec();
        Failure::io("execute", &path, error).code(NOT_EXECUTABLE)
    }
}

/// The end of the name of the directory in which a session of `untorn run` keeps its files.
pub const SESSION: &str = ".untorn-run";

/// Whether a session of `untorn run` works on a directory, or was left there. It has a directory beside the directory.
pub fn has_session(path: &Path) -> bool {
    has_beside(path, SESSION)
}

/// Whether a killed `untorn eject` of a mount's store left files to be removed, beside a directory that is already
/// plain.
pub fn has_ejected_store(path: &Path) -> bool {
    !path.join(".untorn").exists() && has_beside(path, ".untorn-unfinished")
}

fn has_beside(path: &Path, end: &str) -> bool {
    let beside = |path: PathBuf| {
        let mut hidden = OsString::from(".");
        hidden.push(path.file_name()?);
        hidden.push(end);
        Some(path.parent()?.join(hidden).is_dir())
    };
    path.canonicalize().ok().and_then(beside).unwrap_or(false)
}

/// Whether a directory is on a mount of Untorn's, even if its daemon has ended.
pub fn is_on_mount(path: &Path) -> bool {
    // This does not ask the daemon, which may be stopped. Callers that ask it have a time limit.
    let mount = match statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID | StatxFlags::TYPE) {
        Ok(about) if FileType::from_raw_mode(about.stx_mode.into()) != FileType::Directory => return false,
        Ok(about) => about.stx_mnt_id.to_string(),
        Err(e) => return matches!(e, Errno::NOTCONN | Errno::CONNABORTED),
    };
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    let of = mounts.lines().find(|line| line.split(' ').next() == Some(mount.as_str()));
    let kind = of.and_then(|line| line.split_once(" - ")?.1.split(' ').next());
    kind.is_some_and(|kind| [mount_calls::TYPE, mount_calls::TYPE_OF_DEVICE].contains(&kind))
}

/// Whether `untorn mount` made this store. If the table is damaged or lost, the other names tell.
pub fn holds_a_tree(store: &Path) -> bool {
    begins_a_tree(store) || has_names_of_tree(store)
}

/// Whether a path is the store of a mount, or continues it. The names there are those of the mount's files, which only
/// the table has.
pub fn is_in_tree(path: &Path) -> bool {
    let Ok(whole) = std::path::absolute(path) else { return false };
    whole.ancestors().any(|dir| {
        let name = whole.strip_prefix(dir).expect("an ancestor");
        stays_within(name) && holds_a_tree(dir)
    })
}

fn has_names_of_tree(store: &Path) -> bool {
    let [journal, objects, pack, table] = [".untorn", "obj", "pack", "table"].map(|name| store.join(name));
    let has_nothing_else = || std::fs::read_dir(store).is_ok_and(|entries| entries.count() == 3);
    journal.is_dir() && objects.is_dir() && pack.is_file() && (table.is_file() || has_nothing_else())
}

fn begins_a_tree(store: &Path) -> bool {
    let mut begin = [0; TREE.len()];
    let read = File::open(store.join("table")).and_then(|mut table| table.read_exact(&mut begin));
    read.is_ok() && begin == *TREE
}

/// A program beside this one, or in PATH.
pub fn find(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(name)));
    beside.filter(|program| is_executable(program)).or_else(|| in_path(name.as_ref()))
}

/// A program as a shell finds it by a name without a slash.
pub fn in_path(name: &OsStr) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| is_executable(program))
}

fn is_executable(program: &Path) -> bool {
    program.is_file() && access(program, Access::EXEC_OK).is_ok()
}
