//! Descriptors that the library keeps: 3 or higher, closed in forked children, and verified before use.
//!
//! The program's error messages go to descriptor 2, regardless of its file. A daemon closes 0, 1 and 2; files that are
//! opened then get these numbers, and a message would be written into a data file. So every descriptor goes through
//! [`above_standard`] or [`Fd`].
//!
//! A program may also close all descriptors that it does not know (`close_range`) and open its own files, which then
//! get the numbers of ours. [`Fd::own`] detects that. A shell opens files under numbers of its own choice: [`keep_from`]
//! keeps ours out of the way.

use crate::descriptors::descriptor_identity::Identity;
use crate::descriptors::fork::{Slot, process_generation, register};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The first descriptor number above the standard streams.
const FIRST_KEPT: RawFd = 3;

/// The lowest number of a descriptor that is kept, if the limit of the process allows it.
static KEPT_FROM: AtomicI32 = AtomicI32::new(FIRST_KEPT);

/// From now on, descriptors that are kept have this number or a higher one, where the limit of the process allows it.
pub fn keep_from(number: RawFd) {
    KEPT_FROM.store(number.max(FIRST_KEPT), Relaxed);
}

/// Opens a file whose descriptor is 3 or higher.
pub fn above_standard<E: From<Errno>>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<OwnedFd, E> {
    let _stand_ins = stand_ins();
    Ok(moved(open()?)?)
}

/// Opens a directory like [`above_standard`]. While it has the number of a closed standard stream, another thread that
/// prints or reads gets an error, as it would otherwise: a directory is its own `StandIn`.
pub fn directory_above_standard<E: From<Errno>>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<OwnedFd, E> {
    Ok(moved(open()?)?)
}

/// The descriptor, or a copy of it that has a number for keeping.
fn moved(fd: OwnedFd) -> rustix::io::Result<OwnedFd> {
    let from = KEPT_FROM.load(Relaxed);
    if fd.as_raw_fd() >= from {
        return Ok(fd);
    }
    match rustix::io::fcntl_dupfd_cloexec(&fd, from) {
        Ok(copy) => Ok(copy),
        Err(_) if fd.as_raw_fd() >= FIRST_KEPT => Ok(fd),
        Err(_) => rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_KEPT),
    }
}

/// A placeholder with the number of a closed standard stream. It can be neither read nor written, so another thread
/// that prints meanwhile gets `EBADF`, as it would without the placeholder.
struct StandIn(Option<OwnedFd>);

impl Drop for StandIn {
    fn drop(&mut self) {
        let Some(fd) = self.0.take() else { return };
        if !fs::fcntl_getfl(&fd).is_ok_and(|flags| flags.contains(OFlags::PATH)) {
            // Another thread has replaced the descriptor (`dup2`).
            let _ = fd.into_raw_fd();
        }
    }
}

/// Occupies the numbers of closed standard streams.
fn stand_ins() -> [StandIn; FIRST_KEPT as usize] {
    [0, 1, 2].map(|number| {
        // SAFETY: asks only, and takes a number.
        let is_open = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
        // Without a placeholder, the descriptor itself is moved.
        let made = || fs::open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        StandIn(if is_open { None } else { made() })
    })
}

/// The error of a descriptor that the program has closed.
#[derive(Debug)]
struct ClosedByProgram;

impl std::fmt::Display for ClosedByProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "this program has closed a descriptor of Untorn's (by close_range, closefrom, or a loop over all numbers); \
             nothing was written to the file that has its number now. Close descriptors before you open the store, or \
             close only those that the program has opened",
        )
    }
}

impl std::error::Error for ClosedByProgram {}

/// Whether an error says that the program has closed a descriptor of ours, so that nothing was done.
pub fn is_closed_by_program(e: &io::Error) -> bool {
    e.get_ref().is_some_and(|e| e.is::<ClosedByProgram>())
}

/// A descriptor that is 3 or higher, close-on-exec, and closed in forked children.
#[derive(Debug)]
pub struct Fd {
    fd: ManuallyDrop<OwnedFd>,
    identity: Identity,
    slot: &'static Slot,
    generation: u64,
}

impl Fd {
    /// Takes over a descriptor that the program did not open.
    pub fn new(fd: OwnedFd) -> io::Result<Fd> {
        let fd = moved(fd)?;
        let identity = Identity::of(fd.as_raw_fd())?;
        let slot = register(fd.as_raw_fd(), identity);
        Ok(Fd { fd: ManuallyDrop::new(fd), identity, slot, generation: process_generation() })
    }

    /// Opens a file.
    pub fn open<E: From<Errno> + Into<io::Error>>(open: impl FnOnce() -> Result<OwnedFd, E>) -> io::Result<Fd> {
        Fd::new(above_standard(open).map_err(Into::into)?)
    }

    /// The descriptor, for calls that do no harm if its number now belongs to another file. `EBADF` in a forked child,
    /// where it is closed.
    pub fn get(&self) -> io::Result<BorrowedFd<'_>> {
        if self.generation == process_generation() { Ok(self.fd.as_fd()) } else { Err(Errno::BADF.into()) }
    }

    /// The descriptor, like [`Fd::get`], after checking that it still belongs to its original file
    /// ([`is_closed_by_program`]).
    pub fn own(&self) -> io::Result<BorrowedFd<'_>> {
        let fd = self.get()?;
        if self.identity.is_of(fd.as_raw_fd()) { Ok(fd) } else { Err(io::Error::other(ClosedByProgram)) }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.generation == process_generation() {
            self.slot.free();
            if self.own().is_ok() {
                // SAFETY: dropped once, here; in a forked child it was closed already and its number reused, and a
                // number that the program has closed may belong to a file of its own.
                unsafe { ManuallyDrop::drop(&mut self.fd) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn number_of(fd: &Fd) -> RawFd {
        fd.get().unwrap().as_raw_fd()
    }

    #[test]
    fn another_file_under_its_number_is_noticed_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let fd = Fd::open(|| File::create(dir.path().join("ours")).map(OwnedFd::from)).unwrap();
        assert!(fd.own().is_ok());
        let (number, theirs) = (number_of(&fd), File::create(dir.path().join("theirs")).unwrap());
        // SAFETY: as a program does that closes all descriptors and opens its own.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), number) }, number);
        assert!(is_closed_by_program(&fd.own().unwrap_err()));
        drop(fd);
        assert!(Identity::of(number).is_ok(), "the program's descriptor stays open");
        // SAFETY: nobody else knows it.
        unsafe { libc::close(number) };
    }

    #[test]
    fn a_number_of_a_standard_stream_is_not_kept() {
        // In a child, because other tests of this process need the standard streams.
        // SAFETY: the child calls nothing that needs a lock of another thread, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let made = || fs::open(c"/dev/null", OFlags::RDWR, Mode::empty());
            // SAFETY: closes the child's own standard streams, and ends it.
            unsafe {
                (0..FIRST_KEPT).for_each(|number| _ = libc::close(number));
                let above = above_standard(made).is_ok_and(|fd| fd.as_raw_fd() >= FIRST_KEPT);
                let moved = made().is_ok_and(|fd| moved(fd).is_ok_and(|fd| fd.as_raw_fd() >= FIRST_KEPT));
                let closed = (0..3).all(|number| Identity::of(number).is_err());
                libc::_exit(i32::from(!(above && moved && closed)));
            }
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
