//! Copies access lists (ACLs) for sessions in a user namespace.
//!
//! A user namespace does not know other users, so a process that stays outside of it copies lists that name them.

use crate::control::Control;
use crate::session::session_init::close_all_but;
use anyhow::{Context, Result, anyhow};
use rustix::fs::{Mode, OFlags, XattrFlags, getxattr, open, setxattr};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, setsid, waitpid};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// The attributes that hold access lists.
pub const NAMES: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// The process that copies access lists.
#[derive(Debug)]
pub enum AccessLists {
    /// This process copies them, like other attributes.
    Own,
    /// A process outside of the user namespace that this process is about to enter.
    Outside(Outside),
}

/// The process outside of the user namespace. It ends when this value is dropped.
#[derive(Debug)]
pub struct Outside {
    connection: Option<Control>,
    pid: Pid,
}

/// The role of the file whose descriptor comes with the message.
#[derive(Debug, Serialize, Deserialize)]
enum File {
    /// The file that has the list.
    Model,
    /// The file that is to get the list.
    Target,
}

/// The error number if the list could not be copied.
#[derive(Debug, Serialize, Deserialize)]
struct Answer(Option<i32>);

impl AccessLists {
    /// Starts the process. This process must have one thread.
    pub fn outside() -> Result<AccessLists> {
        let (ours, theirs) = Control::pair()?;
        // SAFETY: this process has one thread, so that no lock is held by another one.
        match unsafe { libc::fork() } {
            0 => {
                let _ = setsid();
                close_all_but(&[theirs.as_fd().as_raw_fd()]);
                let _ = serve(&theirs);
                // SAFETY: ends the process at once; nothing of the parent's, which this is a copy of, is cleaned up.
                unsafe { libc::_exit(0) }
            }
            pid => match Pid::from_raw(pid).filter(|_| pid > 0) {
                Some(pid) => Ok(AccessLists::Outside(Outside { connection: Some(ours), pid })),
                None => Err(io::Error::last_os_error()).context("a process for access lists"),
            },
        }
    }

    /// Copies the access lists of a file or directory. False if this process has to copy them itself.
    pub fn copy(&self, from: &Path, to: &Path) -> Result<bool> {
        let AccessLists::Outside(Outside { connection: Some(connection), .. }) = self else { return Ok(false) };
        for (path, file) in [(from, File::Model), (to, File::Target)] {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            connection.send(&file, Some(open(path, flags, Mode::empty())?.as_fd()))?;
        }
        match connection.receive::<Answer>()? {
            Some((Answer(None), _)) => Ok(true),
            Some((Answer(Some(number)), _)) => Err(io::Error::from_raw_os_error(number))
                .with_context(|| format!("the access list of {}", to.display())),
            None => Err(anyhow!("the process for access lists has ended; do it again")),
        }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        drop(self.connection.take());
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

fn serve(connection: &Control) -> Result<()> {
    while let Some((File::Model, Some(from))) = connection.receive::<File>()? {
        let Some((File::Target, Some(to))) = connection.receive::<File>()? else { break };
        connection.send(&Answer(give(&from, &to).err().map(Errno::raw_os_error)), None)?;
    }
    Ok(())
}

fn give(from: &OwnedFd, to: &OwnedFd) -> rustix::io::Result<()> {
    let path = |file: &OwnedFd| format!("/proc/self/fd/{}", file.as_raw_fd());
    for name in NAMES {
        let mut list = vec![0; 64 << 10];
        match getxattr(path(from), name, &mut list[..]) {
            Ok(bytes) => setxattr(path(to), name, &list[..bytes], XattrFlags::empty())?,
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
