//! Whether a file system makes changes of names, sizes and attributes durable in the order in which they were made.

use rustix::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// XFS always does. ext4 does with a journal, which a mount without one shows by having no data mode among its options.
/// Of other file systems, and where `/sys` or `/proc` does not tell, it is not known.
pub(crate) fn keeps_order(directory: BorrowedFd<'_>) -> bool {
    #[allow(clippy::unnecessary_cast, reason = "it has 32 bits on other architectures")]
    let kind = fs::fstatfs(directory).map(|st| st.f_type as i64);
    match kind {
        Ok(libc::XFS_SUPER_MAGIC) => true,
        Ok(libc::EXT4_SUPER_MAGIC) => ext4_has_journal(directory).unwrap_or(false),
        _ => false,
    }
}

fn ext4_has_journal(directory: BorrowedFd<'_>) -> Option<bool> {
    let device = fs::fstat(directory).ok()?.st_dev;
    let number = format!("{}:{}", fs::major(device), fs::minor(device));
    let device = std::fs::canonicalize(Path::new("/sys/dev/block").join(number)).ok()?;
    let options = Path::new("/proc/fs/ext4").join(device.file_name()?).join("options");
    let options = std::fs::read_to_string(options).ok()?;
    Some(options.lines().any(|line| line.starts_with("data=")))
}
