//! Requests of programs to an Untorn mount about descriptors of its files, by `ioctl`.

use rustix::fd::AsFd;
use rustix::io::{Errno, Result};
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, Opcode, Setter, Updater, ioctl, opcode};
use std::ffi::c_void;

/// Begins a transaction with the file of a descriptor, which is open for writing. The transaction ends when that
/// opening of the file is closed. The argument is 0, or 1 if that close must not roll anything back; the answer is the
/// transaction's number.
pub const BEGIN: u32 = opcode::read_write::<u64>(b'U', 4);
/// Adds the file of a descriptor to a transaction.
pub const ADD: u32 = opcode::write::<u64>(b'U', 5);
/// Commits a transaction.
pub const COMMIT: u32 = opcode::write::<u64>(b'U', 6);
/// Rolls a transaction back: its files return to their last commits. The answer is 1 if there was anything to roll
/// back.
pub const ABORT: u32 = opcode::write::<u64>(b'U', 7);
/// Ends a transaction. Uncommitted changes of its files stay uncommitted.
pub const DISSOLVE: u32 = opcode::write::<u64>(b'U', 8);
/// Commits a transaction, and begins the next one with the same files. Closing its opening rolls back later changes,
/// even if the argument of [`BEGIN`] was 1.
pub const COMMIT_AND_CHAIN: u32 = opcode::write::<u64>(b'U', 10);
/// Rolls back like [`ABORT`], and begins the next transaction with the same files.
pub const ABORT_AND_CHAIN: u32 = opcode::write::<u64>(b'U', 11);
/// The most transactions that [`COMMIT_TOGETHER`] commits.
pub const TOGETHER_MOST: usize = 511;
/// Commits the files of several transactions in one commit; each continues with its files, as after
/// [`COMMIT_AND_CHAIN`]. The argument is the number of transactions, followed by the transactions' numbers.
pub const COMMIT_TOGETHER: u32 = opcode::write::<[u64; 1 + TOGETHER_MOST]>(b'U', 12);

/// Begins a transaction: see [`BEGIN`]. `ENOTTY` if the file is not on an Untorn mount.
pub fn begin(file: impl AsFd, keeps: bool) -> Result<u64> {
    let mut number = u64::from(keeps);
    // SAFETY: the number says that 64 bits are read and written, and `number` has as many.
    unsafe { ioctl(file, Updater::<{ BEGIN }, u64>::new(&mut number)) }?;
    Ok(number)
}

/// A call with one of the numbers above, and a transaction's number.
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

/// Makes one of the other requests about a transaction. The answer is 0 unless its description says otherwise.
pub fn ask<const CALL: u32>(file: impl AsFd, transaction: u64) -> Result<i32> {
    // SAFETY: as `Call` says.
    unsafe { ioctl(file, Call::<CALL>(transaction)) }
}

/// Commits transactions: see [`COMMIT_TOGETHER`]. `E2BIG` if they are too many.
pub fn commit_together(file: impl AsFd, transactions: &[u64]) -> Result<()> {
    let mut numbers = [0; 1 + TOGETHER_MOST];
    let (count, places) = numbers.split_at_mut(1);
    places.get_mut(..transactions.len()).ok_or(Errno::TOOBIG)?.copy_from_slice(transactions);
    count[0] = transactions.len() as u64;
    // SAFETY: the number says that so many bytes are read, and `numbers` has as many.
    unsafe { ioctl(file, Setter::<{ COMMIT_TOGETHER }, _>::new(numbers)) }
}

/// Whether a file or directory is on an Untorn mount.
pub fn is_on_mount(file: impl AsFd) -> Result<bool> {
    // The type number of FUSE, also for a mount of type `fuseblk`.
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

/// The file system type. Its second part is the program that `mount.fuse3` starts for a line in `/etc/fstab`.
pub const TYPE: &str = "fuse.untorn-mount";
/// The file system type with which `sync` commits, because Linux forwards `sync` only to mounts of block devices.
pub const TYPE_OF_DEVICE: &str = "fuseblk.untorn-mount";

/// Bytes of the answer to [`STATUS`].
pub const STATUS_BYTES: usize = 8192;
/// Reads the status of the mount of any directory on it: text, then zeros.
pub const STATUS: u32 = opcode::read::<[u8; STATUS_BYTES]>(b'U', 9);

/// The status of the mount of a directory, as JSON. `ENOTTY` if it is not on an Untorn mount, `EPERM` for users other
/// than root and the one that serves it.
pub fn status(directory: impl AsFd) -> Result<Vec<u8>> {
    let mut text = [0; STATUS_BYTES];
    let len = status_into(directory, &mut text)?;
    Ok(text[..len].to_vec())
}

/// Reads like [`status`], without allocating memory. Returns the length of the text.
pub fn status_into(directory: impl AsFd, text: &mut [u8; STATUS_BYTES]) -> Result<usize> {
    // SAFETY: the number says that so many bytes are read, and the kernel copies as many from the daemon.
    *text = unsafe { ioctl(directory, Getter::<{ STATUS }, [u8; STATUS_BYTES]>::new()) }?;
    Ok(text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1))
}
