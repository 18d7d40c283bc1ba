//! The identity of a file system, which stays when its device gets another number.

use rustix::fd::AsFd;
use rustix::fs;
use std::os::fd::AsRawFd;

/// Bytes of a length, and of a UUID behind it.
const UUID_BYTES: usize = 1 + 16;

/// The identity of the file system of a file; `None` if only the number of its device is known, which can be another
/// one after a restart.
///
/// The id of `statfs` comes first, because it tells subvolumes of btrfs apart, and is older. XFS and others give the
/// number of their device there; these have a UUID since Linux 6.9.
pub fn file_system_id(file: impl AsFd) -> Option<[u8; 16]> {
    let device = fs::fstat(&file).ok()?.st_dev;
    let id = statfs_id(&file).filter(|id| *id != 0 && *id != device);
    id.map(|id| u128::from(id).to_le_bytes()).or_else(|| uuid(&file))
}

fn statfs_id(file: &impl AsFd) -> Option<u64> {
    // SAFETY: zeros are a valid `statfs`, and the kernel fills it.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable.
    let done = unsafe { libc::fstatfs(file.as_fd().as_raw_fd(), &raw mut stat) };
    // SAFETY: the id consists of two numbers of 32 bits, which the C library hides.
    let [low, high] = unsafe { std::mem::transmute::<libc::fsid_t, [u32; 2]>(stat.f_fsid) };
    (done == 0).then_some((u64::from(high) << 32) | u64::from(low))
}

fn uuid(file: &impl AsFd) -> Option<[u8; 16]> {
    // `FS_IOC_GETFSUUID`
    let request = rustix::ioctl::opcode::read::<[u8; UUID_BYTES]>(0x15, 0);
    let mut found = [0u8; UUID_BYTES];
    // SAFETY: the kernel writes no more than the bytes that are part of the request's number.
    let done = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), request.into(), found.as_mut_ptr()) };
    let uuid = <[u8; 16]>::try_from(&found[1..]).ok()?;
    (done == 0 && found[0] > 0 && uuid != [0; 16]).then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn files_of_a_file_system_have_one_id() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| File::create(dir.path().join(name)).unwrap());
        assert_eq!(file_system_id(&a), file_system_id(&b));
        assert_ne!(file_system_id(&a), Some([0; 16]));
        assert_eq!(rustix::ioctl::opcode::read::<[u8; UUID_BYTES]>(0x15, 0), 0x8011_1500);
    }
}
