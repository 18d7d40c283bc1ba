//! The file system that holds a path, as `/proc/self/mountinfo` describes it.

use rustix::fs::{self, AtFlags, Mode, OFlags};
use std::io;
use std::path::Path;

/// The data that `doctor` shows about the file system that holds a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystemInfo {
    /// Type, as in `/proc/self/mountinfo`: `ext4`, `xfs`, `btrfs`, `overlay`, `tmpfs`, …
    pub kind: String,
    /// The mount point.
    pub mount_point: String,
    /// Device or source.
    pub source: String,
    /// Mount and superblock options, joined by commas.
    pub options: String,
    /// Device number, `major:minor`.
    pub device: String,
}

/// Looks up the mount that holds a path.
pub fn file_system_info(path: &Path) -> io::Result<FileSystemInfo> {
    let fd = fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let st = fs::statx(&fd, "", AtFlags::EMPTY_PATH, fs::StatxFlags::MNT_ID)?;
    let text = std::fs::read("/proc/self/mountinfo")?;
    let unescape = |field: &str| {
        let mut out = Vec::new();
        let mut bytes = field.bytes();
        while let Some(b) = bytes.next() {
            if b != b'\\' {
                out.push(b);
                continue;
            }
            let octal: Vec<u8> = bytes.by_ref().take(3).collect();
            out.push(octal.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d.wrapping_sub(b'0'))));
        }
        String::from_utf8_lossy(&out).into_owned()
    };
    for line in String::from_utf8_lossy(&text).lines() {
        let (left, right) = line.split_once(" - ").unwrap_or((line, ""));
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        if left.len() >= 6 && right.len() >= 3 && left[0].parse() == Ok(st.stx_mnt_id) {
            return Ok(FileSystemInfo {
                kind: right[0].to_owned(),
                mount_point: unescape(left[4]),
                source: unescape(right[1]),
                options: format!("{},{}", left[5], right[2]),
                device: left[2].to_owned(),
            });
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "no entry in /proc/self/mountinfo for this mount"))
}
