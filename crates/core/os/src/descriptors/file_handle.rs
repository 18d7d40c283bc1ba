//! Whether a file still exists, wherever it was moved: by the handle that its file system has for it (`name_to_handle_at`).

use rustix::fs::{self, AtFlags, Mode, OFlags, StatxFlags};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// As many bytes as a handle has at most (`MAX_HANDLE_SZ`).
const BYTES: usize = 128;

/// `STATX_MNT_ID_UNIQUE`, since Linux 6.8: a number that no other mount gets until the machine goes down.
const UNIQUE_MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// What the kernel calls `struct file_handle`, with room for the largest.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; BYTES],
}

/// File systems that have a handle for each file as long as it exists. Of others, such as FUSE, a handle may be that of nobody
/// once the kernel has forgotten the file.
const LASTING: [u32; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0xf2f5_2010];

/// A file of this boot, which is known again. All zeros: none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FileHandle {
    /// The mount that it was found on.
    mount: u64,
    handle: Handle,
}

const _: () = assert!(size_of::<FileHandle>() == 8 + 8 + BYTES);

/// The number of the mount that shows a file. None: the kernel cannot tell.
fn mount_of(directory: impl AsFd, name: &Path) -> Option<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let found = fs::statx(directory, name, flags, UNIQUE_MOUNT).ok()?;
    (found.stx_mask & UNIQUE_MOUNT.bits() != 0).then_some(found.stx_mnt_id)
}

impl FileHandle {
    /// Nobody's.
    pub const NONE: FileHandle = FileHandle { mount: 0, handle: Handle { bytes: 0, kind: 0, handle: [0; BYTES] } };

    /// Any bytes are a handle.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: its own bytes, of which none is padding, and all of which may have any value.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(self).cast(), size_of::<FileHandle>()) }
    }

    /// That of a file; [`FileHandle::NONE`] where the kernel or the file system has none that lasts.
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

    /// Whether it is certain that a file with this handle is another one, whatever its number.
    pub fn differs(&self, other: &FileHandle) -> bool {
        let (own, other) = (&self.handle, &other.handle);
        let both = own.bytes != 0 && other.bytes != 0;
        both && (own.kind, own.bytes, own.handle) != (other.kind, other.bytes, other.handle)
    }

    /// Whether the file was removed, as far as the kernel can tell: it says the same of a file that it cannot read. That a file
    /// exists is certain. None: this cannot be told, as it is not allowed (it needs `CAP_DAC_READ_SEARCH`), or as its file
    /// system is not mounted where this path leads.
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
            // A program may still have it open.
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
        // Another mount tells nothing.
        assert_eq!(handle.is_removed(Path::new("/proc/self")), None);
        assert_eq!(FileHandle::NONE.is_removed(&path), None);
    }
}
