//! Plans the part of the host that a session sees, before anything is mounted.

use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Kernel interfaces, and file systems without files of the host. A session has its own, or none.
const NOT_SHOWN: [&str; 24] = [
    "proc",
    "sysfs",
    "devtmpfs",
    "devpts",
    "cgroup",
    "cgroup2",
    "mqueue",
    "hugetlbfs",
    "debugfs",
    "tracefs",
    "securityfs",
    "pstore",
    "bpf",
    "configfs",
    "fusectl",
    "binfmt_misc",
    "autofs",
    "rpc_pipefs",
    "nsfs",
    "efivarfs",
    "selinuxfs",
    "ramfs",
    "nfsd",
    "smackfs",
];
/// Directories of which each session has its own, in memory, until it ends.
pub const OWN: [&str; 4] = ["/tmp", "/var/tmp", "/run", "/dev/shm"];
/// Directories whose contents the kernel provides, for each session anew.
pub const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// A mount of the host that the session sees, read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The mount point.
    pub at: PathBuf,
    /// Whether a file is mounted, not a directory.
    pub is_file: bool,
}

/// A directory whose changes go to the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The host's directory, at the same place in the session.
    pub dir: PathBuf,
    /// The upper directory of the overlay, in the volume, which holds the changes.
    pub upper: PathBuf,
    /// The work directory of the overlay.
    pub work: PathBuf,
}

/// Everything that is mounted for a session.
#[derive(Clone, Debug)]
pub struct View {
    /// A directory of this mount namespace for temporary mounts.
    pub scratch: PathBuf,
    /// The host's mounts, outer ones before inner ones.
    pub shown: Vec<Shown>,
    /// Directories whose changes are kept in layers.
    pub written: Vec<Written>,
    /// The part of the volume that the session sees, and its path there.
    pub data: Option<(PathBuf, PathBuf)>,
    /// With `--exact`, the work directory of the overlay over that part.
    pub exact: Option<PathBuf>,
    /// A directory of the host that the session writes directly: the session's mount of it, and its path.
    pub on: Option<(Arc<OwnedFd>, PathBuf)>,
    /// Directories of the host that stay visible within a directory that is the session's own.
    pub also: Vec<PathBuf>,
    /// The working directory.
    pub cwd: PathBuf,
}

/// The mounts of the host that a session may see.
pub fn mounts_of_the_host(scratch: &Path) -> Result<Vec<Shown>> {
    let text = std::fs::read("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    let mut shown: Vec<Shown> = Vec::new();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-").unwrap_or(fields.len());
        let (Some(at), Some(kind)) = (fields.get(4), fields.get(dash + 1)) else { continue };
        let (at, kind) = (unescaped(at), String::from_utf8_lossy(kind).into_owned());
        let inside = |dirs: &[&str]| dirs.iter().any(|dir| at.starts_with(dir));
        if NOT_SHOWN.contains(&kind.as_str()) || inside(&OWN) || inside(&KERNEL) || at.starts_with(scratch) {
            continue;
        }
        let Ok(meta) = std::fs::metadata(&at) else { continue };
        // A later mount at the same place hides the earlier one.
        shown.retain(|earlier| earlier.at != at);
        shown.push(Shown { at, is_file: !meta.is_dir() });
    }
    shown.sort_by(|a, b| a.at.cmp(&b.at));
    Ok(shown)
}

/// A mount, in a mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The id of the mount in that namespace.
    pub id: u64,
    /// The device of its file system, as the kernel writes it.
    pub device: String,
    /// The mount point.
    pub at: PathBuf,
}

/// Parses the mounts in the format of `/proc/self/mountinfo`.
pub fn mounts_of(text: &[u8]) -> Vec<Mounted> {
    let mounted = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let text = |n: usize| Some(String::from_utf8_lossy(fields.get(n)?).into_owned());
        Some(Mounted { id: text(0)?.parse().ok()?, device: text(2)?, at: unescaped(fields.get(4)?) })
    };
    text.split(|byte| *byte == b'\n').filter_map(mounted).collect()
}

/// The mount points of all mounts that this process sees.
pub fn mount_points() -> Result<Vec<PathBuf>> {
    let text = std::fs::read("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    Ok(mounts_of(&text).into_iter().map(|mounted| mounted.at).collect())
}

/// Decodes a path of `/proc/self/mountinfo`, which writes special characters as three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let (mut bytes, mut at) = (Vec::with_capacity(field.len()), 0);
    while at < field.len() {
        let digits = field.get(at + 1..at + 4).filter(|_| field[at] == b'\\');
        let value = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        bytes.push(value.unwrap_or(field[at]));
        at += if value.is_some() { 4 } else { 1 };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

impl View {
    /// A text for people: the parts of the host that the session sees, and how.
    pub fn explain(&self) -> String {
        let mut text = String::from("In the session:\n");
        let mut line = |what: &str, how: &str| writeln!(text, "  {what:<40} {how}").expect("a string takes all");
        for shown in &self.shown {
            let how = if shown.is_file { "the host's file, read-only" } else { "the host's, read-only (an overlay)" };
            line(&shown.at.display().to_string(), how);
        }
        for dir in &self.also {
            line(&dir.display().to_string(), "the host's, read-only (an overlay)");
        }
        for own in OWN {
            line(own, "its own, in memory, gone with the session");
        }
        line("/dev", "null, zero, full, random, urandom, tty, terminals of its own");
        line("/proc, /sys", "its own processes; settings read-only");
        for written in &self.written {
            line(&written.dir.display().to_string(), "the host's; changes are kept apart, and applied at the end");
        }
        if let Some((_, at)) = &self.data {
            let how = match self.exact {
                Some(_) => "the volume (an overlay, so that flushes have exact results)",
                None => "the volume",
            };
            line(&at.display().to_string(), how);
        }
        if let Some((_, at)) = &self.on {
            line(&at.display().to_string(), "the host's; the session's writes are there at once");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mountinfo_are_unescaped() {
        assert_eq!(unescaped(br"/a\040b\134c\011"), Path::new("/a b\\c\t"));
        assert_eq!(unescaped(br"/a\04"), Path::new(r"/a\04"));
    }

    #[test]
    fn mounts_are_read() {
        let text =
            b"22 27 0:21 / /proc rw - proc proc rw\n31 22 8:1 /a /a\\040b rw,noatime shared:1 - ext4 /dev/sda1 rw\n\n";
        let (proc, other) = (Mounted { id: 22, device: "0:21".into(), at: "/proc".into() }, "/a b".into());
        assert_eq!(mounts_of(text), [proc, Mounted { id: 31, device: "8:1".into(), at: other }]);
    }

    #[test]
    fn the_root_is_shown_and_kernel_interfaces_are_not() {
        let shown = mounts_of_the_host(Path::new("/nowhere")).unwrap();
        assert_eq!(shown[0].at, Path::new("/"));
        assert!(shown.iter().all(|shown| !shown.at.starts_with("/proc") && !shown.at.starts_with("/dev")));
    }
}
