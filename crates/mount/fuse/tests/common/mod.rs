//! A mount of a tree in memory, under a watchdog.

#![allow(dead_code, reason = "not every test program needs all of it")]

pub mod memory_tree;
pub mod place;
pub mod store_mount;

use memory_tree::{Asked, MemoryTree};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::MountPropagationFlags;
use rustix::process::Pid;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use untorn_mount::End;
use untorn_mount::fuse::kernel;
use untorn_mount::fuse::kernel_cache::MountCache;
use untorn_mount::fuse::server::Server;
use untorn_mount::mounts::mount_point::{self, Allowed};
use untorn_tree::{CommitMode, FileTree};

/// Longer than any test takes, unless a handler waits for ever.
const WATCHDOG: Duration = Duration::from_secs(300);

/// A program of the tests, built with the profile of this test.
pub fn example(name: &str) -> PathBuf {
    untorn_testkit::example("untorn-mount", name)
}

/// A mount that this process serves. If the test does not end in time, the connection is cut, so that nothing waits for
/// ever, and the process fails.
pub struct Mount {
    dir: TempDir,
    pub tree: Arc<MemoryTree>,
    server: Arc<Server>,
    _watchdog: Sender<()>,
}

/// Processes with the store among their arguments, and whether each is the daemon of a supervisor.
pub fn serving_processes(store: &Path) -> Vec<(Pid, bool)> {
    let of = |entry: fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        let has = |word: &[u8]| words.contains(&word);
        has(store.as_os_str().as_encoded_bytes()).then(|| (pid, has(b"--supervised")))
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| of(entry.ok()?)).collect()
}

/// Whether this process can mount; prints a message if not.
pub fn can_mount() -> bool {
    let device = File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let can = device && may_mount() && kernel::is_served();
    if !can {
        eprintln!("skipped: needs /dev/fuse, root with CAP_SYS_ADMIN, and Linux 5.15");
    }
    can
}

fn may_mount() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|set| set & CAP_SYS_ADMIN != 0)
}

/// Runs the tests of this program again, with the steps that the kernels before 6.16 and 6.9 need, under a time limit.
///
/// Called by a test named `the_same_with_the_steps_for_an_older_kernel`.
pub fn again_as_on_an_older_kernel(version: &str) {
    if kernel::ends_writeback_early() || !can_mount() {
        return;
    }
    let mut again = std::process::Command::new("timeout");
    again.args(["--kill-after=5", "400"]).arg(std::env::current_exe().unwrap());
    let done = again.env(kernel::AS_KERNEL, version).output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// Whether this kernel needs additional steps; prints that a test is left out then.
pub fn is_older_kernel(why: &str) -> bool {
    let is = kernel::ends_writeback_early();
    if is {
        eprintln!("skipped: with the steps for an older kernel, {why}");
    }
    is
}

/// Whether the kernel can be served in this mode.
fn is_served(commit: CommitMode) -> bool {
    let is = match commit {
        CommitMode::Store => !kernel::ends_writeback_early(),
        CommitMode::Write => kernel::maps_uncached_files(),
        _ => true,
    };
    if !is {
        eprintln!("skipped: the mode {commit:?} needs a newer kernel");
    }
    is
}

impl Mount {
    pub fn new() -> Option<Mount> {
        Mount::with(CommitMode::Sync)
    }

    pub fn with(commit: CommitMode) -> Option<Mount> {
        (can_mount() && is_served(commit)).then(|| Mount::mounted(commit, Allowed::default()))
    }

    /// Mounts with `sync_commits`, if this process can have loop devices.
    pub fn of_device() -> Option<Mount> {
        let can = can_mount() && Path::new("/dev/loop-control").exists() && kernel::passes_on_sync();
        if !can {
            eprintln!("skipped: needs loop devices and Linux 6.18");
        }
        can.then(|| Mount::mounted(CommitMode::Sync, Allowed { sync_commits: true, ..Allowed::default() }))
    }

    fn mounted(commit: CommitMode, allowed: Allowed) -> Mount {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let tree = Arc::new(MemoryTree::new());
        let descriptor = mount_point::mount("memory".as_ref(), &at, allowed).unwrap();
        let (watchdog, stopped) = channel();
        let cut = at.clone();
        thread::spawn(move || {
            if stopped.recv_timeout(WATCHDOG) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the watchdog cuts the connection of {}", cut.display());
                let _ = rustix::mount::unmount(&cut, rustix::mount::UnmountFlags::FORCE);
                let _ = rustix::mount::unmount(&cut, rustix::mount::UnmountFlags::DETACH);
                std::process::abort();
            }
        });
        let server = Server::start(descriptor, Arc::clone(&tree) as Arc<dyn FileTree>, commit).unwrap();
        server.cache().start(Path::new(env!("CARGO_BIN_EXE_untorn-mount")), &at, None).unwrap();
        Mount { dir, tree, server, _watchdog: watchdog }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn cache(&self) -> &Arc<MountCache> {
        self.server.cache()
    }

    /// Unmounts, and waits for the end.
    pub fn unmount(self) -> End {
        mount_point::unmount(self.path()).unwrap();
        self.server.cache().close_all();
        self.server.wait()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = mount_point::detach(self.dir.path());
        self.server.cache().close_all();
    }
}

/// Gives this thread and its child processes mounts of their own, where all users may open `/dev/fuse`, as is usual.
pub fn device_for_everybody() {
    // SAFETY: only this thread's view of files changes, and no other thread relies on it.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("fuse");
    let number = fs::metadata("/dev/fuse").unwrap().rdev();
    rustix::fs::mknodat(CWD, &device, FileType::CharacterDevice, Mode::empty(), number).unwrap();
    fs::set_permissions(&device, fs::Permissions::from_mode(0o666)).unwrap();
    rustix::mount::mount_bind(&device, "/dev/fuse").unwrap();
}

/// Lets one test run at a time, where it matters which requests the kernel sends.
///
/// A process that another test starts has copies of descriptors for a short time, and flushes their files when it
/// closes them; and `sync` concerns all mounts.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock()
}

pub fn new_file(mount: &Mount, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(mount.at(name)).unwrap()
}

/// Position of the first request of a kind, and of the last write.
pub fn places(asked: &[Asked], is: impl Fn(&Asked) -> bool) -> (usize, Option<usize>) {
    let place = asked.iter().position(is).unwrap_or_else(|| panic!("not asked: {asked:?}"));
    (place, asked.iter().rposition(|asked| matches!(asked, Asked::Write(..))))
}
