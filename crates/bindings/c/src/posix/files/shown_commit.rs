//! Files that another process changes, opened for reading only: the descriptor shows one commit.
//!
//! The program gets a copy of the file as of the last durable commit, without a name, in the place of the data file,
//! which the owner overwrites at checkpoints. So all calls on the descriptor work, also those that are not renamed, in
//! forked children and in other programs.

use std::ffi::c_int;
use std::fs::{File, FileTimes, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use untorn::reader::SnapshotFile;
use untorn::{Error, Reader, offline};

use super::managing::has_store;
use super::relocation::recover;
use crate::boundary::error::{Failure, Result};
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::{failure, system};

/// Prepares a file that was opened for reading only and that may have a store. A file that another process has open is
/// shown as of its last durable commit; a file that nobody has open is recovered.
pub(crate) fn show(fd: c_int, path: &Path) -> Result<()> {
    if !has_store(path) {
        return if is_of_used_store(path) { show_commit(fd, path) } else { Ok(()) };
    }
    match offline::inspect(path) {
        Ok(found) if found.owner.is_none() && found.clean && found.quarantined.is_empty() => return Ok(()),
        Ok(found) if found.owner.is_none() => {}
        Ok(_) | Err(Error::Busy { .. }) => return show_commit(fd, path),
        Err(e) => return Err(e.into()),
    }
    match recover(path) {
        Err(Failure { errno: libc::EBUSY, .. }) => show_commit(fd, path),
        done => done,
    }
}

/// Whether the program has named a file that belongs to the store of a directory, and a process has the store open or
/// did not close it.
fn is_of_used_store(path: &Path) -> bool {
    if !patterns::match_path(path) {
        return false;
    }
    let Some(top) = path.ancestors().skip(1).find(|dir| dir.join(".untorn").is_dir()) else { return false };
    offline::inspect(top).is_ok_and(|found| found.owner.is_some() || !found.clean)
}

fn show_commit(fd: c_int, path: &Path) -> Result<()> {
    let (reader, name) = Reader::open_containing(path)?;
    let from = match reader.snapshot()?.open(&name) {
        // Not a file of the store, although it lies in it.
        Err(e @ (Error::Invalid { .. } | Error::Unsupported { .. })) if !has_store(path) => {
            tracing::debug!(error = %e, "opened as it is");
            return Ok(());
        }
        opened => opened?,
    };
    let copy = copy_of(&from, path)?;
    let io = |e: io::Error| Failure::from(Error::io("copy a commit of", path, e));
    // The program must not be able to change the copy.
    let shown = File::open(format!("/proc/self/fd/{}", copy.as_raw_fd())).map_err(io)?;
    if let Some(data) = from.data_file()?.and_then(|data| data.metadata().ok()) {
        let times = data.modified().map(|modified| FileTimes::new().set_modified(modified));
        let _ = times.and_then(|times| copy.set_times(times));
    }
    let _ = copy.set_permissions(Permissions::from_mode(from.mode()? & 0o777));
    // SAFETY: takes numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    let flags = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    // SAFETY: takes numbers; the caller has just opened `fd`, and nobody else knows it yet.
    match unsafe { libc::dup3(shown.as_raw_fd(), fd, flags) } {
        -1 => Err(system("show a commit")),
        _ => Ok(()),
    }
}

/// Copies a file to a new file without a name: on its own file system, where blocks can be shared, if this user may
/// write there; otherwise in memory.
fn copy_of(from: &SnapshotFile, path: &Path) -> Result<File> {
    let beside = path.parent().map_or_else(|| PathBuf::from("."), Path::to_owned);
    let options = || OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(beside);
    if let Ok(to) = options() {
        match from.copy_to(&to, &mut |_| {}) {
            Err(Error::NoSpace { .. }) => {}
            done => return done.map(|_| to).map_err(Failure::from),
        }
    }
    // SAFETY: the name ends in NUL.
    let fd = unsafe { libc::memfd_create(c"untorn".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(system("make memory for a copy"));
    }
    // SAFETY: was just made, and belongs to nobody else.
    let to = unsafe { File::from_raw_fd(fd) };
    from.copy_to(&to, &mut |_| {}).map_err(|e| match e {
        Error::NoSpace { .. } => failure(libc::ENOMEM, format!("{}: there is no room for a copy", path.display())),
        e => e.into(),
    })?;
    Ok(to)
}
