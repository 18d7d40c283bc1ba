//! The status request to the daemon of a mount, with a time limit.

use anyhow::{Context, Result};
use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use untorn_os::mount_calls::{self, STATUS_BYTES};
use untorn_terminal::time_limit;

/// Length of the head before the text: an error number and a device number.
const ANSWER_HEAD: usize = 12;

/// A daemon's answer, and the device of its mount.
pub type Answer = rustix::io::Result<(Vec<u8>, u64)>;

/// Asks the daemon of a mount. `None` if it does not answer in time.
pub fn ask(path: &Path) -> Result<Option<Answer>> {
    let path = CString::new(path.as_os_str().as_bytes()).context("a path has no zero in it")?;
    let Some(bytes) = time_limit::ask(|to| answer_in_child(&path, to)).context("cannot ask")? else { return Ok(None) };
    let (head, text) = bytes.split_first_chunk::<ANSWER_HEAD>().context("the process that asks was killed")?;
    let error = i32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
    let device = u64::from_ne_bytes(head[4..].try_into().expect("8 bytes"));
    Ok(Some(if error == 0 { Ok((text.to_vec(), device)) } else { Err(Errno::from_raw_os_error(error)) }))
}

/// Runs in a forked process, which may hang.
fn answer_in_child(path: &CStr, to: BorrowedFd<'_>) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut said = [0; STATUS_BYTES];
    let asked = rustix::fs::open(path, flags, Mode::empty()).and_then(|directory| {
        let len = mount_calls::status_into(&directory, &mut said)?;
        Ok((len, rustix::fs::fstat(&directory)?.st_dev))
    });
    let (error, len, device) = match asked {
        Ok((len, device)) => (0, len, device),
        Err(e) => (e.raw_os_error(), 0, 0),
    };
    for part in [&error.to_ne_bytes()[..], &device.to_ne_bytes(), &said[..len]] {
        // A pipe has room for all of it.
        let _ = rustix::io::write(to, part);
    }
}
