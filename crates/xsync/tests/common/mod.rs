//! Helpers of the tests: a place to work in, sessions, and their results.

#![allow(dead_code)]

pub mod directory;
pub mod told;

use std::ffi::OsStr;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use untorn_crashlab::device::watch::Limits;
use untorn_crashlab::device::{Again, FileSystem, watch};

/// For a worker on a busy machine; it takes some seconds on another one.
pub const LIMITS: Limits = Limits { whole: Duration::from_secs(400), silence: Duration::from_secs(120) };

/// The result of a run.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Run {
    fn from(o: Output) -> Run {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let code = o.status.code().or(o.status.signal().map(|signal| -signal));
        Run { code, out: text(o.stdout), err: text(o.stderr) }
    }
}

impl Run {
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }
}

/// A working directory, and a place for volumes.
pub struct Place {
    pub dir: tempfile::TempDir,
}

/// The path of an example program. It is built with the profile of this test.
pub fn example(name: &str) -> PathBuf {
    untorn_testkit::example("untorn-xsync", name)
}

/// The command `untorn-xsync`.
pub fn xsync() -> Command {
    Command::new(env!("CARGO_BIN_EXE_untorn-xsync"))
}

/// Whether power cuts below sessions can be tested here. Prints a message if not. Builds the example before workers need it.
pub fn cuts_are_possible(again: &Again) -> bool {
    let why = watch::missing(&[FileSystem::Ext4.mkfs()]).or_else(|| watch::probe(again));
    if let Some(why) = &why {
        println!("skipped: {why}");
    }
    why.is_none() && Place::new().is_some() && example("probe").exists()
}

impl Place {
    /// A place for sessions. None, with a message, if sessions do not work on this machine.
    pub fn new() -> Option<Place> {
        static WHY_NOT: OnceLock<Option<String>> = OnceLock::new();
        let place = Place::anywhere();
        let why = WHY_NOT.get_or_init(|| {
            if !rustix::process::geteuid().is_root() {
                return Some("needs root".into());
            }
            let run: Run = place.xsync(&["--", "true"]).output().unwrap().into();
            (run.code != Some(0)).then(|| run.err.trim().to_owned())
        });
        if let Some(why) = why {
            println!("skipped: {why}");
            return None;
        }
        Some(place)
    }

    /// A place, without a check that sessions work.
    pub fn anywhere() -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(place.work()).unwrap();
        fs::create_dir(place.volumes()).unwrap();
        place
    }

    /// The working directory.
    pub fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// The directory of temporary volumes.
    pub fn volumes(&self) -> PathBuf {
        self.dir.path().join("volumes")
    }

    /// Volumes that sessions have left behind.
    pub fn left(&self) -> Vec<PathBuf> {
        fs::read_dir(self.volumes()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// The program `probe`, copied to a place that the session sees.
    pub fn probe(&self) -> PathBuf {
        let path = self.work().join("probe");
        if !path.exists() {
            untorn_testkit::install(&example("probe"), &path);
        }
        path
    }

    /// The command in the working directory, with options for small volumes before these arguments.
    pub fn xsync<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = xsync();
        command.arg("--place").arg(self.volumes());
        if !arguments
            .iter()
            .any(|a| ["--volume", "--resume", "--discard", "--status", "--size"].map(OsStr::new).contains(&a.as_ref()))
        {
            command.args(["--size", "64M"]);
        }
        command.args(arguments).current_dir(self.work()).stdin(Stdio::null());
        command
    }

    /// Runs the command to its end.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Run {
        self.xsync(arguments).output().unwrap().into()
    }

    /// Runs a shell script in a session.
    pub fn script(&self, script: &str) -> Run {
        self.run(&["--", "sh", "-c", script])
    }
}

/// Addresses outside. They are reserved for documentation, so no other host has them.
pub const OUTSIDE4: &str = "198.51.100.5";
/// An IPv6 address outside.
pub const OUTSIDE6: &str = "2001:db8:7::5";

/// Gives this thread and its children a network of their own with these addresses. False if that is not possible.
pub fn network_of_its_own() -> bool {
    // SAFETY: no descriptor of this thread is concerned.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET).unwrap() };
    // The kernel adds the local route of an IPv6 address itself, but only later.
    let script = format!(
        "ip link set lo up && ip addr add {OUTSIDE4}/32 dev lo && ip addr add {OUTSIDE6}/128 dev lo && \
         ip -6 route add local {OUTSIDE6}/128 dev lo"
    );
    let done = Command::new("sh").args(["-c", &script]).status().unwrap().success();
    if !done {
        println!("skipped: needs the program ip");
    }
    done
}

/// A running session. It is killed when this value is dropped, so that a failed test leaves no process behind.
pub struct Session(pub Child);

impl Session {
    pub fn start(command: &mut Command) -> Session {
        Session(command.spawn().unwrap())
    }
}

impl Deref for Session {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `FS_IOC_SHUTDOWN` of `<linux/fs.h>`, and its flag: nothing more reaches the disk, not even the journal.
const SHUTDOWN: libc::Ioctl = 0x8004_587D;
const WITHOUT_A_COMMIT: u32 = 2;

/// Cuts the power of the session's volume: it keeps committed changes and forgets all others. Then kills the session.
pub fn power_cut(session: &mut Session, dir: &str) {
    let tasks = fs::read_dir(format!("/proc/{}/task", session.id())).unwrap().flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let children: String = children.collect();
    let first = children.split_whitespace().next().expect("a session has processes");
    let volume = fs::File::open(format!("/proc/{first}/root/{dir}")).unwrap();
    // SAFETY: the request reads one number, which outlives the call.
    let done = unsafe { libc::ioctl(volume.as_raw_fd(), SHUTDOWN, &WITHOUT_A_COMMIT) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    drop(volume);
    let _ = session.kill();
    session.wait().unwrap();
}
