//! Detects whether a file system makes changes of names, sizes and attributes durable in the order in which they were
//! made.

use crate::storage::kernel::kernel_is;
use rustix::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

/// Whether the file system of a directory is known to keep this order. XFS does, and ext4 with a journal, which shows
/// in a data mode among its options. Both also flush the device with the contents before an entry of their log counts;
/// exceptions are XFS for files on a realtime device, and ext4 with its journal on another device or with
/// `journal_async_commit`. For other file systems, or if `/sys` or `/proc` does not show it, the answer is false.
/// Before Linux 5.2, `sync_file_range` skipped busy pages; before 5.17, a fast commit of ext4 could leave out
/// attributes.
pub(crate) fn keeps_order(directory: BorrowedFd<'_>) -> bool {
    #[allow(clippy::unnecessary_cast, reason = "it has 32 bits on other architectures")]
    let kind = fs::fstatfs(directory).map(|st| st.f_type as i64);
    match kind {
        Ok(libc::XFS_SUPER_MAGIC) => kernel_is(5, 2) && xfs_realtime_blocks(directory) == Some(0),
        Ok(libc::EXT4_SUPER_MAGIC) => kernel_is(5, 17) && ext4_has_journal(directory).unwrap_or(false),
        _ => false,
    }
}

/// Whether the journal is on the file system's own device, and each of its commits is a flush.
fn ext4_has_journal(directory: BorrowedFd<'_>) -> Option<bool> {
    let device = fs::fstat(directory).ok()?.st_dev;
    // Not by the C library's `realpath`, because MemorySanitizer would check a path that uninstrumented code has made.
    let link = format!("/sys/dev/block/{}:{}", fs::major(device), fs::minor(device));
    let target = fs::readlink(link, Vec::new()).ok()?.into_string().ok()?;
    let device = target.rsplit('/').next()?;
    // An internal journal is inode 8, and its entry is named after device and inode.
    let inside = fs::stat(format!("/proc/fs/jbd2/{device}-8")).is_ok();
    let options = std::fs::read_to_string(Path::new("/proc/fs/ext4").join(device).join("options")).ok()?;
    Some(inside && ext4_options_keep_order(&options))
}

fn ext4_options_keep_order(options: &str) -> bool {
    options.lines().any(|line| line.starts_with("data=")) && !options.lines().any(|line| line == "journal_async_commit")
}

/// Blocks of the realtime device, or `None` if the kernel does not report them.
fn xfs_realtime_blocks(directory: BorrowedFd<'_>) -> Option<u64> {
    /// `XFS_IOC_FSGEOMETRY_V1` reads a structure of 112 bytes, with this number at byte 40.
    const GEOMETRY_BYTES: usize = 112;
    const REALTIME_BLOCKS_AT: usize = 40;
    let request = rustix::ioctl::opcode::read::<[u8; GEOMETRY_BYTES]>(b'X', 100);
    let mut geometry = [0u64; GEOMETRY_BYTES / 8];
    // SAFETY: the kernel writes no more than the bytes that are part of the request's number.
    let done = unsafe { libc::ioctl(directory.as_raw_fd(), request.into(), geometry.as_mut_ptr()) };
    (done == 0).then(|| geometry[REALTIME_BLOCKS_AT / 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ext4_keeps_order_with_an_ordinary_journal() {
        assert!(ext4_options_keep_order("rw\nbarrier\ndata=ordered\n"));
        assert!(ext4_options_keep_order("rw\ndata=writeback\n"));
        assert!(!ext4_options_keep_order("rw\nbarrier\n"), "there is no journal");
        assert!(!ext4_options_keep_order("rw\njournal_async_commit\ndata=ordered\n"));
    }
}
