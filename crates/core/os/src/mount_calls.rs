//! What programs ask of a mount of Untorn's about descriptors of its files, by `ioctl`.

use rustix::fd::AsFd;
use rustix::io::{Errno, Result};
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, Opcode, Updater, ioctl, opcode};
use std::ffi::c_void;

/// Begins a transaction with the file of a descriptor, which is open for writing; the end of that opening ends it. Given
/// is 0, or 1 if that end gives nothing up; the answer is the transaction's number.
pub const BEGIN: u32 = opcode::read_write::<u64>(b'U', 4);
/// Adds the file of a descriptor to a transaction.
pub const ADD: u32 = opcode::write::<u64>(b'U', 5);
/// Commits a transaction.
pub const COMMIT: u32 = opcode::write::<u64>(b'U', 6);
/// Gives a transaction up: its files are as of their last commits. The answer is 1 if something was given up.
pub const ABORT: u32 = opcode::write::<u64>(b'U', 7);
/// Ends a transaction: what is uncommitted of its files stays so.
pub const DISSOLVE: u32 = opcode::write::<u64>(b'U', 8);
/// Commits a transaction, which goes on with the same files. The end of its opening gives up what comes then, also if it
/// began with 1.
pub const COMMIT_AND_CHAIN: u32 = opcode::write::<u64>(b'U', 10);
/// As [`ABORT`], and the transaction goes on with the same files.
pub const ABORT_AND_CHAIN: u32 = opcode::write::<u64>(b'U', 11);

/// Begins a transaction: see [`BEGIN`]. `ENOTTY` where the file is on no mount of Untorn's.
pub fn begin(file: impl AsFd, keeps: bool) -> Result<u64> {
    let mut number = u64::from(keeps);
    // SAFETY: the number says that 64 bits are read and written, and `number` has as many.
    unsafe { ioctl(file, Updater::<{ BEGIN }, u64>::new(&mut number)) }?;
    Ok(number)
}

/// A call of one of the numbers above, with a transaction's number.
struct Call<const CALL: u32>(u64);

// SAFETY: the numbers say that 64 bits are read from `as_ptr`. One that is none of them is refused by the kernel or the
// mount.
unsafe impl<const CALL: u32> Ioctl for Call<CALL> {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        CALL
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(answer: IoctlOutput, _: *mut c_void) -> Result<i32> {
        Ok(answer)
    }
}

/// Asks for one of the other things, of a transaction. The answer is 0 where nothing else is said.
pub fn ask<const CALL: u32>(file: impl AsFd, transaction: u64) -> Result<i32> {
    // SAFETY: as `Call` says.
    unsafe { ioctl(file, Call::<CALL>(transaction)) }
}

/// Whether a file or directory is on a mount of Untorn's.
pub fn is_on_mount(file: impl AsFd) -> Result<bool> {
    // FUSE's, also of a mount of type `fuseblk`.
    const FUSE: i64 = 0x6573_5546;
    if rustix::fs::fstatfs(&file)?.f_type != FUSE {
        return Ok(false);
    }
    match status(file) {
        Ok(_) | Err(Errno::PERM) => Ok(true),
        Err(e @ (Errno::NOTCONN | Errno::CONNABORTED | Errno::INTR)) => Err(e),
        Err(_) => Ok(false),
    }
}

/// The type of the file system; its second part is the program that `mount.fuse3` starts for a line in `/etc/fstab`.
pub const TYPE: &str = "fuse.untorn-mount";
/// The type where `sync` commits: Linux passes it on to mounts of block devices alone.
pub const TYPE_OF_DEVICE: &str = "fuseblk.untorn-mount";

/// Bytes of the answer to [`STATUS`].
pub const STATUS_BYTES: usize = 8192;
/// How the mount is, of any directory on it: text, then zeros.
pub const STATUS: u32 = opcode::read::<[u8; STATUS_BYTES]>(b'U', 9);

/// How the mount of a directory is: JSON. `ENOTTY` where that is on no mount of Untorn's, `EPERM` for other users than
/// root and the one that serves it.
pub fn status(directory: impl AsFd) -> Result<Vec<u8>> {
    let mut text = [0; STATUS_BYTES];
    let len = status_into(directory, &mut text)?;
    Ok(text[..len].to_vec())
}

/// As [`status`], without taking memory: how many bytes there are.
pub fn status_into(directory: impl AsFd, text: &mut [u8; STATUS_BYTES]) -> Result<usize> {
    // SAFETY: the number says that so many bytes are read, and the kernel copies as many from the daemon.
    *text = unsafe { ioctl(directory, Getter::<{ STATUS }, [u8; STATUS_BYTES]>::new()) }?;
    Ok(text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1))
}
