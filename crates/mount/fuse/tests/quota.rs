//! A store in a quota of the file system below: at its limit programs get errors, nothing comes apart, and everything
//! continues when there is room again.

mod common;

use common::can_mount;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const MIB: usize = 1 << 20;
/// The quota, and the part of it that another file takes.
const QUOTA: &str = "128M";
const OTHER: usize = 48 * MIB;
/// Number of tries until a change finds the room that was made, or none any more: the file system frees room in the
/// background.
const TRIES: usize = 600;

fn tool(program: &str, arguments: &[&str]) -> io::Result<Output> {
    Command::new(program).args(arguments).stdin(Stdio::null()).output()
}

/// A file system on an image, whose directory `v` has a quota.
struct WithQuota {
    dir: TempDir,
}

impl WithQuota {
    /// `None` if such a file system cannot be had here.
    fn new() -> Option<WithQuota> {
        if !can_mount() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        for name in ["fs", "mnt"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let of = WithQuota { dir };
        File::create(of.path("image")).unwrap().set_len(1 << 30).unwrap();
        let (image, at, v) = (of.path("image"), of.path("fs"), of.path("fs/v"));
        let [image, at, v] = [&image, &at, &v].map(|path| path.to_str().unwrap());
        let steps: [&[&str]; 5] = [
            &["mkfs.btrfs", "-q", image],
            &["mount", "-o", "loop", image, at],
            &["btrfs", "subvolume", "create", v],
            &["btrfs", "quota", "enable", at],
            &["btrfs", "qgroup", "limit", QUOTA, v],
        ];
        for step in steps {
            let done = tool(step[0], &step[1..]);
            if !done.as_ref().is_ok_and(|done| done.status.success()) {
                eprintln!("skipped: needs a btrfs with quotas on a loop device ({step:?}: {done:?})");
                return None;
            }
        }
        Some(of)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn untorn(&self, arguments: &[&str]) -> Result<(), String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-mount"));
        command.args(arguments).args([self.path("fs/v/store"), self.path("mnt")]).stdin(Stdio::null());
        let output = command.output().unwrap();
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    fn has_log_failed(&self) -> bool {
        untorn_mount::mounts::mount_status::has_failed(&self.path("mnt"))
    }

    fn umount(&self) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-mount"));
        command.arg("umount").arg(self.path("mnt")).stdin(Stdio::null()).output().unwrap()
    }
}

impl Drop for WithQuota {
    fn drop(&mut self) {
        let _ = self.umount();
        let _ = tool("umount", &["-l", self.path("mnt").to_str().unwrap()]);
        let _ = tool("umount", &["-l", self.path("fs").to_str().unwrap()]);
    }
}

/// Repeats a change until it finds room.
fn with_room<E: Display>(what: &str, mut change: impl FnMut() -> Result<(), E>) {
    let mut tries = 0;
    while let Err(e) = change() {
        tries += 1;
        assert!(tries < TRIES, "{what} does not go on: {e}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Updates a file until it finds no room any more.
fn until_full(path: &Path) -> io::Error {
    (0..TRIES).find_map(|_| update(path, 2).err()).expect("it is full for all")
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Checks that the acknowledged part of the large file is there, unless its removal was committed.
fn check_large(large: &Path, acknowledged: usize) {
    let Ok(whole) = fs::read(large) else { return };
    assert!(whole.len() >= acknowledged * MIB, "{} bytes of {acknowledged} MiB", whole.len());
    for (n, bytes) in whole.chunks(MIB).take(acknowledged).enumerate() {
        assert!(bytes.iter().enumerate().all(|(k, byte)| *byte == ((k * (n + 3)) >> 7) as u8), "MiB {n} is torn");
    }
}

/// Writes and syncs a new version of a file.
fn update(path: &Path, version: u8) -> io::Result<()> {
    let file = open(path);
    file.write_all_at(&[version; 8192], 0)?;
    file.sync_all()
}

/// Whether an error reports the end of the quota. If the kernel had handed bytes to the daemon before the sync, and
/// they were refused, the sync may only report that they failed.
fn is_told(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EDQUOT | libc::EIO))
}

#[test]
fn where_a_quota_ends_programs_are_told_and_all_goes_on_when_there_is_room() {
    let Some(on) = WithQuota::new() else { return };
    let (other, database, large) = (on.path("fs/v/other"), on.path("mnt/database"), on.path("mnt/large"));
    fs::write(&other, (0..OTHER).map(|n| (n ^ (n >> 9)) as u8).collect::<Vec<u8>>()).unwrap();
    rustix::fs::syncfs(File::open(&other).unwrap()).unwrap();
    on.untorn(&["--no-supervisor"]).unwrap();
    update(&database, 1).unwrap();

    // Syncs each MiB until the quota ends.
    let (file, mut acknowledged) = (open(&large), 0);
    let ended = (0..1000).find_map(|n: usize| {
        let bytes: Vec<u8> = (0..MIB).map(|k| ((k * (n + 3)) >> 7) as u8).collect();
        let done = file.write_all_at(&bytes, (n * MIB) as u64).and_then(|()| file.sync_all());
        acknowledged += usize::from(done.is_ok());
        done.err()
    });
    let ended = ended.expect("a quota ends");
    assert!(is_told(&ended), "after {acknowledged} MiB: {ended}");
    drop(file);
    let ended = until_full(&database);
    assert!(is_told(&ended), "{ended}");
    assert!(acknowledged > 4, "{acknowledged} MiB");
    // A removal needs room for its commit, too.
    let removed = fs::remove_file(&large);
    assert!(removed.is_ok() || on.has_log_failed(), "{removed:?}");

    // Makes room.
    fs::remove_file(&other).unwrap();
    rustix::fs::syncfs(File::open(on.path("fs/v")).unwrap()).unwrap();
    with_room("the mount", || {
        // btrfs writes to new blocks, so that the log itself may find no room; the failure then lasts until the store
        // is mounted again.
        if on.has_log_failed() {
            let said = String::from_utf8(on.umount().stderr).unwrap();
            assert!(said.contains("is unmounted, but a write or flush of its log had failed"), "{said}");
            // An opening needs room for the log, too.
            with_room("the opening", || on.untorn(&["--no-supervisor"]));
            check_large(&large, acknowledged);
        }
        update(&database, 3)?;
        if large.exists() { fs::remove_file(&large) } else { Ok(()) }
    });
    assert_eq!(fs::read(&database).unwrap(), [3; 8192]);
    assert!(!large.exists());
    let said = on.umount();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    on.untorn(&[]).unwrap();
    assert_eq!(fs::read(&database).unwrap(), [3; 8192]);
    assert_eq!(fs::read_dir(on.path("mnt")).unwrap().count(), 1);
    assert!(on.umount().status.success());
}

#[test]
fn a_daemon_killed_where_a_quota_ends_has_lost_nothing_that_was_acknowledged() {
    let Some(on) = WithQuota::new() else { return };
    let (other, database, large) = (on.path("fs/v/other"), on.path("mnt/database"), on.path("mnt/large"));
    fs::write(&other, (0..OTHER).map(|n| (n ^ (n >> 9)) as u8).collect::<Vec<u8>>()).unwrap();
    on.untorn(&["--no-supervisor"]).unwrap();
    update(&database, 1).unwrap();
    let (file, mut acknowledged) = (open(&large), 0);
    while file.write_all_at(&[acknowledged as u8; MIB], (acknowledged * MIB) as u64).is_ok() && file.sync_all().is_ok()
    {
        acknowledged += 1;
        assert!(acknowledged < 1000, "no quota");
    }
    assert!(acknowledged > 4, "{acknowledged} MiB");
    until_full(&database);
    let status =
        Command::new(env!("CARGO_BIN_EXE_untorn-mount")).args(["status", "--json"]).arg(on.path("mnt")).output();
    let status = String::from_utf8(status.unwrap().stdout).unwrap();
    let digits = status.split_once("\"daemon\":").map(|(_, rest)| rest.trim_start());
    let digits = digits.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
    let daemon = digits.and_then(|digits| rustix::process::Pid::from_raw(digits.parse().ok()?)).expect(&status);
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    drop(file);
    fs::remove_file(&other).unwrap();
    on.untorn(&[]).unwrap();
    let version = fs::read(&database).unwrap();
    assert!(version == [1; 8192] || version == [2; 8192], "torn");
    let found = fs::read(&large).unwrap();
    assert!(found.len() / MIB >= acknowledged, "{} bytes, and {acknowledged} MiB were acknowledged", found.len());
    for (n, bytes) in found.chunks(MIB).take(acknowledged).enumerate() {
        assert!(bytes.iter().all(|byte| *byte == n as u8), "MiB {n}");
    }
    update(&database, 3).unwrap();
    assert!(on.umount().status.success());
}
