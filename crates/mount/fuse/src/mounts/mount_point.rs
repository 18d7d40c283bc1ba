//! Mounts and unmounts, as root by `mount(2)`, else by `fusermount3`; lists mounts.

use crate::mounts::mount_device::{self, MountDevice};
use crate::processes::passed_descriptors::receive;
use anyhow::{Context, Result, bail, ensure};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use untorn_os::mount_calls::{TYPE, TYPE_OF_DEVICE};
use untorn_terminal::time_limit;

const SUBTYPE: &str = "untorn-mount";
const HELPER: &str = "fusermount3";
/// Prefix of the store's path in the source of a mount: without it, `umount` takes the path of a directory for a mount
/// point.
const SOURCE: &str = "untorn:";

/// How long unmounting is retried while the mount is busy.
const BUSY_MAX: Duration = Duration::from_secs(1);
/// Pause between two tries to unmount.
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// How long a killed daemon may answer until the kernel reports its end.
pub const DYING_MAX: Duration = Duration::from_millis(500);

/// A line of `mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Number of the mount, valid as long as it is mounted.
    pub id: u64,
    /// Number of the device, which no other file system has.
    pub device: u64,
    /// The mount point.
    pub at: PathBuf,
    /// The type of the file system.
    pub kind: String,
    /// The source of the mount; for a mount of Untorn the path of the store.
    pub source: PathBuf,
}

impl Mounted {
    /// Whether it is a mount of Untorn's.
    pub fn is_ours(&self) -> bool {
        self.kind == TYPE || self.sync_commits()
    }

    /// Whether `sync` and `syncfs` commit.
    pub fn sync_commits(&self) -> bool {
        self.kind == TYPE_OF_DEVICE
    }
}

/// Options of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Setuid bits have no effect.
    pub no_setuid: bool,
    /// Devices cannot be opened.
    pub no_devices: bool,
    /// Nothing can be executed.
    pub no_execute: bool,
    /// Other users reach the mount, too. Root's mounts always allow that.
    pub others: bool,
    /// `sync` and `syncfs` of all processes commit, and wait for the daemon. For root alone.
    pub sync_commits: bool,
}

/// The source of a mount, as `mount` and `/etc/fstab` show it.
fn source_of(store: &Path) -> OsString {
    let mut source = OsString::from(SOURCE);
    source.push(store);
    source
}

/// The store that a source names; the prefix may be missing, as on a command line.
pub fn store_of(source: &Path) -> PathBuf {
    let bytes = source.as_os_str().as_bytes();
    OsStr::from_bytes(bytes.strip_prefix(SOURCE.as_bytes()).unwrap_or(bytes)).into()
}

/// Whether this process is root, perhaps of a user namespace.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// All mounts that this process sees, oldest first.
pub fn mounts() -> Result<Vec<Mounted>> {
    let path = "/proc/thread-self/mountinfo";
    let lines = fs::read(path).context(path)?;
    Ok(lines.split(|byte| *byte == b'\n').filter_map(line_of_mountinfo).collect())
}

/// Finds a process in another mount namespace that has the mount of this device there; returns its number and name.
pub fn elsewhere(device: u64) -> Option<(u32, String)> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, entry.path()))
    });
    let has_it = |lines: Vec<u8>| {
        let mut mounted = lines.split(|byte| *byte == b'\n').filter_map(line_of_mountinfo);
        mounted.any(|mounted| mounted.is_ours() && mounted.device == device)
    };
    let mut found = processes.filter(|(_, of)| fs::read(of.join("mountinfo")).is_ok_and(has_it));
    found
        .next()
        .map(|(process, of)| (process, fs::read_to_string(of.join("comm")).unwrap_or_default().trim().to_owned()))
}

fn line_of_mountinfo(line: &[u8]) -> Option<Mounted> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let rest = words.iter().position(|word| *word == b"-")?;
    let (major, minor) = std::str::from_utf8(words.get(2)?).ok()?.split_once(':')?;
    let mut mounted = Mounted {
        id: std::str::from_utf8(words.first()?).ok()?.parse().ok()?,
        device: rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
        at: unescaped(words.get(4)?),
        kind: String::from_utf8_lossy(words.get(rest + 1)?).into_owned(),
        source: unescaped(words.get(rest + 2)?),
    };
    if mounted.sync_commits()
        && let Some(store) = mount_device::store(&mounted.source)
    {
        mounted.source = store;
    }
    if mounted.is_ours() {
        mounted.source = store_of(&mounted.source);
    }
    Some(mounted)
}

/// Decodes spaces and the like, which `mountinfo` writes as `\040`.
fn unescaped(word: &[u8]) -> PathBuf {
    let mut plain = Vec::new();
    let mut left = word;
    while let Some((first, rest)) = left.split_first() {
        let octal = left.get(1..4).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                plain.push(byte);
                left = &left[4..];
            }
            _ => {
                plain.push(*first);
                left = rest;
            }
        }
    }
    OsString::from_vec(plain).into()
}

/// The absolute path of a mount point, found without any request to the file system that is mounted there.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).with_context(|| path.display().to_string())?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else { return Ok(absolute) };
    match name == ".." {
        true => fs::canonicalize(&absolute).with_context(|| path.display().to_string()),
        false => Ok(fs::canonicalize(parent).with_context(|| parent.display().to_string())?.join(name)),
    }
}

/// The mount at a path; the topmost if there are several.
pub fn mounted_at(at: &Path) -> Result<Option<Mounted>> {
    Ok(mounts()?.into_iter().rfind(|mounted| mounted.at == at))
}

/// Condition of the daemon behind a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// The daemon answers, or the path is on no such mount.
    Answers,
    /// The daemon has ended without unmounting.
    Dead,
    /// The daemon has not ended, and does not answer in time.
    Hangs,
}

/// Tests whether the daemon behind a path answers.
pub fn behind(path: &Path) -> Behind {
    match time_limit::file_system(path) {
        // The second error is the answer to a request that was sent before the daemon's end.
        Ok(Some(Err(Errno::NOTCONN | Errno::CONNABORTED))) => Behind::Dead,
        Ok(None) => Behind::Hangs,
        _ => Behind::Answers,
    }
}

/// Whether the daemon behind a mount has ended without unmounting.
pub fn is_dead(at: &Path) -> bool {
    behind(at) == Behind::Dead
}

/// Explains why a daemon may not answer, and how to help.
pub fn no_answer(at: &Path) -> String {
    format!(
        "its daemon does not answer: it is stopped, or waits for the disk; `pgrep -af untorn-mount` finds it; SIGCONT \
         continues a stopped daemon, and `umount -f {}` ends the mount and loses all uncommitted changes",
        at.display()
    )
}

/// The mount that contains a path by its name alone; no file system is asked.
pub fn by_name(path: &Path) -> Result<Option<Mounted>> {
    let path = std::path::absolute(path).with_context(|| path.display().to_string())?;
    let is = |mounted: &Mounted| mounted.is_ours() && path.starts_with(&mounted.at);
    Ok(mounts()?.into_iter().filter(is).max_by_key(|mounted| mounted.at.as_os_str().len()))
}

/// Whether the daemon has ended without unmounting, or does so within a short time: a daemon that is being killed may
/// still answer.
fn is_dying(at: &Path) -> bool {
    let started = Instant::now();
    loop {
        match behind(at) {
            Behind::Answers if started.elapsed() <= DYING_MAX => std::thread::sleep(Duration::from_millis(10)),
            behind => return behind == Behind::Dead,
        }
    }
}

/// Ensures that a store can be mounted at a path: an empty directory at which nothing is mounted.
///
/// A mount that a killed daemon left is unmounted.
pub fn prepare(store: &Path, at: &Path) -> Result<()> {
    let shown = at.display();
    if let Some(mounted) = mounted_at(at)? {
        ensure!(
            !mounted.is_ours() || behind(at) != Behind::Hangs,
            "{shown} is a mount point already, of {}, and {}",
            mounted.source.display(),
            no_answer(at)
        );
        ensure!(
            mounted.is_ours() && is_dying(at),
            "{shown} is a mount point already, of {} ({}); unmount that first, or use another directory",
            mounted.source.display(),
            mounted.kind
        );
        detach(at).with_context(|| format!("the daemon of {shown} has ended, and its mount cannot be unmounted"))?;
    }
    let mut entries = match fs::read_dir(at) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            bail!("the mount point {shown} does not exist; make it: mkdir {shown}")
        }
        Err(e) if e.kind() == ErrorKind::NotADirectory => {
            bail!("the mount point {shown} is no directory; use a directory")
        }
        Err(e) => return Err(e).with_context(|| format!("cannot read the mount point {shown}")),
    };
    if store.starts_with(at) || at.starts_with(store) {
        bail!(
            "of the mount point {shown} and the store {}, one contains the other; use another \
               directory",
            store.display()
        );
    }
    ensure!(
        entries.next().is_none(),
        "the mount point {shown} is not empty, and its files would be hidden; use an empty directory"
    );
    Ok(())
}

/// Mounts, and returns the descriptor on which the kernel sends requests. No request is answered yet.
pub fn mount(source: &Path, at: &Path, allowed: Allowed) -> Result<OwnedFd> {
    let device = "/dev/fuse";
    if !is_root() && Path::new(device).exists() {
        return mount_by_helper(source, at, allowed);
    }
    mount_directly(source, at, allowed)
}

/// Mounts without the helper: for root, also of a user namespace.
pub fn mount_directly(source: &Path, at: &Path, allowed: Allowed) -> Result<OwnedFd> {
    let device = "/dev/fuse";
    match rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(descriptor) => mount_as_root(descriptor, source, at, allowed),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
            bail!("{device} is not there, so nothing can be mounted; load the module (as root: modprobe fuse)")
        }
        Err(e) => {
            Err(e).with_context(|| format!("cannot open {device}; an administrator can allow it (chmod 666 {device})"))
        }
    }
}

fn mount_as_root(descriptor: OwnedFd, source: &Path, at: &Path, allowed: Allowed) -> Result<OwnedFd> {
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other",
        descriptor.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    // The device belongs to the mount once that exists; until then it is removed when it is dropped.
    let block_device = allowed.sync_commits.then(|| MountDevice::new(source)).transpose()?;
    let named = source_of(source);
    let (kind, source, data) = match &block_device {
        None => (TYPE, Path::new(&named), data),
        // Blocks are pages, as on a mount without a device, so that the kernel's cache works in the same way.
        Some(of) => (TYPE_OF_DEVICE, &*of.path, format!("{data},blksize={}", rustix::param::page_size())),
    };
    let data = CString::new(data).expect("there is no zero in it");
    rustix::mount::mount(source, at, kind, flags_of(allowed), &*data)
        .with_context(|| format!("cannot mount at {}; root needs CAP_SYS_ADMIN for it", at.display()))?;
    Ok(descriptor)
}

/// Changes the options of a mount, for `mount -o remount`.
pub fn remount(at: &Path, allowed: Allowed, read_only: bool) -> Result<()> {
    let shown = at.display();
    let mounted = mounted_at(at)?.with_context(|| format!("nothing is mounted at {shown}"))?;
    ensure!(mounted.is_ours(), "{shown} is a mount of type {}, not of Untorn", mounted.kind);
    ensure!(
        mounted.sync_commits() || !allowed.sync_commits,
        "sync_commits cannot be changed while {shown} is mounted; unmount it, and mount it anew"
    );
    ensure!(is_root(), "only root can change the options of a mount; unmount {shown}, and mount it anew");
    let flags = flags_of(allowed) | if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    rustix::mount::mount_remount(at, flags, "").map_err(|e| match e {
        Errno::BUSY => anyhow::anyhow!("{shown} cannot be made read-only while programs have files open for writing"),
        e => anyhow::Error::new(e).context(format!("cannot change the options of {shown}")),
    })
}

fn flags_of(allowed: Allowed) -> MountFlags {
    let flags = [
        (allowed.no_setuid, MountFlags::NOSUID),
        (allowed.no_devices, MountFlags::NODEV),
        (allowed.no_execute, MountFlags::NOEXEC),
    ];
    flags.into_iter().filter_map(|(set, flag)| set.then_some(flag)).collect()
}

/// Escapes a value for the comma-separated options of the helper.
fn escaped(word: &OsStr) -> OsString {
    let escape = |byte: &u8| if matches!(byte, b',' | b'\\') { vec![b'\\', *byte] } else { vec![*byte] };
    OsString::from_vec(word.as_bytes().iter().flat_map(escape).collect())
}

fn mount_by_helper(source: &Path, at: &Path, allowed: Allowed) -> Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .context("socketpair")?;
    let mut options = OsString::from(format!("rw,nosuid,nodev,default_permissions,subtype={SUBTYPE},fsname="));
    options.push(escaped(&source_of(source)));
    for (set, option) in [(allowed.no_execute, ",noexec"), (allowed.others, ",allow_other")] {
        if set {
            options.push(option);
        }
    }
    // The helper sends the descriptor through its standard input.
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(options).arg("--").arg(at).env("_FUSE_COMMFD", "0").stdin(theirs).stdout(Stdio::null());
    let output = command.stderr(Stdio::piped()).output().map_err(no_helper)?;
    drop(command);
    let said = said(&output.stderr);
    let advice = match said.contains("/dev/fuse: Permission denied") {
        true => "; an administrator lets users mount by `chmod 666 /dev/fuse`",
        false => "",
    };
    ensure!(output.status.success(), "cannot mount at {}: {said}{advice}", at.display());
    let (_, received) =
        receive(&ours, &mut [0]).with_context(|| format!("cannot receive the descriptor of {HELPER}"))?;
    received.with_context(|| format!("{HELPER} sent no descriptor"))
}

fn no_helper(e: std::io::Error) -> anyhow::Error {
    match e.kind() {
        ErrorKind::NotFound => anyhow::anyhow!(
            "an ordinary user mounts by {HELPER}, which is not in PATH; install the package fuse3, or do this as root"
        ),
        _ => anyhow::Error::new(e).context(HELPER),
    }
}

fn said(stderr: &[u8]) -> String {
    String::from_utf8_lossy(stderr).trim().trim_start_matches("fusermount3: ").to_owned()
}

/// Whether the mount refuses all users but the one who mounted it, even root.
pub fn is_closed(at: &Path) -> bool {
    let opened = rustix::fs::open(at, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    opened.is_err_and(|e| e == Errno::ACCESS)
}

/// Unmounts, if no program uses the mount.
pub fn unmount(at: &Path) -> Result<()> {
    unmount_with(at, UnmountFlags::NOFOLLOW, &["-u"]).with_context(|| {
        format!("cannot unmount {}: a program may work in it or have a file of it open (fuser -vm {0})", at.display())
    })
}

/// Unmounts, and retries for some time while the mount is busy: a program that is just being started holds copies of
/// its parent's descriptors for a short time.
pub fn unmount_soon(at: &Path) -> Result<()> {
    let started = Instant::now();
    // The helper reports a busy mount in words only.
    let is_busy = |e: &anyhow::Error| {
        let cause = e.root_cause();
        cause.downcast_ref() == Some(&Errno::BUSY) || cause.to_string().contains("busy")
    };
    loop {
        match unmount(at) {
            Err(e) if is_busy(&e) && started.elapsed() < BUSY_MAX => std::thread::sleep(BETWEEN_TRIES),
            done => return done,
        }
    }
}

/// Detaches a mount from its directory; it ends when no program uses it any more.
pub fn detach(at: &Path) -> Result<()> {
    unmount_with(at, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH, &["-u", "-z"])
}

fn unmount_with(at: &Path, flags: UnmountFlags, helper_flags: &[&str]) -> Result<()> {
    if is_root() {
        return Ok(rustix::mount::unmount(at, flags)?);
    }
    let output = Command::new(HELPER).args(helper_flags).arg("--").arg(at).output().map_err(no_helper)?;
    ensure!(output.status.success(), "{}", said(&output.stderr));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_understood() {
        // An earlier version wrote the path without the prefix.
        for source in ["/s\\134t", "untorn:/s\\134t"] {
            let line =
                format!("36 35 0:98 / /mnt/a\\040b rw,noatime shared:1 - fuse.untorn-mount {source} rw,user_id=0");
            let mounted = line_of_mountinfo(line.as_bytes()).unwrap();
            assert_eq!((mounted.id, mounted.kind.as_str()), (36, TYPE));
            assert_eq!((mounted.at, mounted.source), (PathBuf::from("/mnt/a b"), PathBuf::from("/s\\t")));
        }
        assert_eq!(line_of_mountinfo(b""), None);
    }

    #[test]
    fn commas_are_escaped_for_the_helper() {
        assert_eq!(escaped("a,b\\c".as_ref()), "a\\,b\\\\c");
    }
}
