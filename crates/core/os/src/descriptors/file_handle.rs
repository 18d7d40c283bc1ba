//! File handles (`name_to_handle_at`): they tell whether a file still exists, even after it was moved.

use rustix::fs::{self, AtFlags, Mode, OFlags, StatxFlags};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The largest handle, in bytes (`MAX_HANDLE_SZ`).
const BYTES: usize = 128;

/// `STATX_MNT_ID_UNIQUE`, since Linux 6.8: a mount id that is not reused before a reboot.
const UNIQUE_MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The kernel's `struct file_handle`, with room for the largest handle.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; BYTES],
}

/// File systems with a handle for each file as long as it exists. On others, such as FUSE, a handle may become invalid
/// once the kernel forgets the file.
const LASTING: [u32; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0xf2f5_2010];

/// A handle of a file, valid in this boot. All zeros if there is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FileHandle {
    /// The mount on which it was found.
    mount: u64,
    handle: Handle,
}

const _: () = assert!(size_of::<FileHandle>() == 8 + 8 + BYTES);

/// The id of the mount that shows a file, or `None` if the kernel does not report it.
fn mount_of(directory: impl AsFd, name: &Path) -> Option<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let found = fs::statx(directory, name, flags, UNIQUE_MOUNT).ok()?;
    (found.stx_mask & UNIQUE_MOUNT.bits() != 0).then_some(found.stx_mnt_id)
}

impl FileHandle {
    /// No handle.
    pub const NONE: FileHandle = FileHandle { mount: 0, handle: Handle { bytes: 0, kind: 0, handle: [0; BYTES] } };

    /// The bytes of the handle; any bytes are valid.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: its own bytes, of which none is padding, and all of which may have any value.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(self).cast(), size_of::<FileHandle>()) }
    }

    /// The handle of a file, or [`FileHandle::NONE`] if the kernel or the file system has no lasting one.
    pub fn of(path: &Path) -> FileHandle {
        if !fs::statfs(path).is_ok_and(|stat| LASTING.contains(&(stat.f_type as u32))) {
            return FileHandle::NONE;
        }
        let Some(mount) = mount_of(fs::CWD, path) else { return FileHandle::NONE };
        let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return FileHandle::NONE };
        let mut handle = Handle { bytes: BYTES as u32, kind: 0, handle: [0; BYTES] };
        let mut old_number = 0;
        // SAFETY: a path that ends with a zero, and a handle with as much room as it says.
        let done = unsafe {
            libc::name_to_handle_at(
                libc::AT_FDCWD,
                name.as_ptr(),
                (&raw mut handle).cast::<libc::file_handle>(),
                &raw mut old_number,
                0,
            )
        };
        if done == 0 { FileHandle { mount, handle } } else { FileHandle::NONE }
    }

    /// Whether a file with the other handle is certainly a different file, even if it has the same inode number.
    pub fn differs(&self, other: &FileHandle) -> bool {
        let (own, other) = (&self.handle, &other.handle);
        let both = own.bytes != 0 && other.bytes != 0;
        both && (own.kind, own.bytes, own.handle) != (other.kind, other.bytes, other.handle)
    }

    /// Whether the file was removed, as far as the kernel can tell: it reports the same for a file that it cannot read.
    /// The answer false is certain. `None` if this is unknown, because it needs `CAP_DAC_READ_SEARCH`, or because the
    /// file system is not mounted at this path.
    pub fn is_removed(&self, near: &Path) -> Option<bool> {
        if self.handle.bytes == 0 || self.handle.bytes as usize > BYTES {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let directory: OwnedFd = near.ancestors().find_map(|dir| fs::open(dir, flags, Mode::empty()).ok())?;
        if mount_of(&directory, Path::new("")) != Some(self.mount) {
            return None;
        }
        let mut handle = self.handle;
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        // SAFETY: a handle with as many bytes as it says; the descriptor is new, and ours.
        let found = unsafe {
            match libc::open_by_handle_at(directory.as_raw_fd(), (&raw mut handle).cast::<libc::file_handle>(), flags) {
                -1 => Err(io::Error::last_os_error()),
                file => Ok(OwnedFd::from_raw_fd(file)),
            }
        };
        match found {
            // A removed file may still be open in a program.
            Ok(file) => Some(fs::fstat(file).ok()?.st_nlink == 0),
            Err(e) if e.raw_os_error() == Some(libc::ESTALE) => Some(true),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_again_until_it_is_removed() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (path, moved) = (dir.path().join("file"), dir.path().join("moved"));
        std::fs::write(&path, "1").unwrap();
        let handle = FileHandle::of(&path);
        if handle.is_removed(&path).is_none() {
            println!("left out: the kernel, the file system or this user's rights cannot tell");
            assert!(handle.handle.bytes == 0 || !rustix::process::geteuid().is_root());
            return;
        }
        std::fs::rename(&path, &moved).unwrap();
        std::fs::write(&path, "2").unwrap();
        assert_eq!(handle.is_removed(&path), Some(false));
        assert!(handle.differs(&FileHandle::of(&path)) && !handle.differs(&FileHandle::of(&moved)));
        assert!(!handle.differs(&FileHandle::NONE));
        let open = std::fs::File::open(&moved).unwrap();
        std::fs::remove_file(&moved).unwrap();
        assert_eq!(handle.is_removed(&path), Some(true));
        drop(open);
        assert_eq!(handle.is_removed(&dir.path().join("no/such/directory")), Some(true));
        // A path on another mount gives no answer.
        assert_eq!(handle.is_removed(Path::new("/proc/self")), None);
        assert_eq!(FileHandle::NONE.is_removed(&path), None);
    }
}
