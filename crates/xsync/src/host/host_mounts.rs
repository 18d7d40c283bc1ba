//! Lets go of mounts that the host unmounts while a session runs.
//!
//! The session has copies of the host's mounts. Without this, the copies would keep device and daemon alive after the
//! unmount.

use crate::host::host_view::{KERNEL, Mounted, OWN, mounts_of};
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{UnmountFlags, unmount};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

/// The host's mounts before this process had a mount namespace of its own.
#[derive(Debug)]
pub struct HostMounts {
    /// The host's mount table. It reports changes, whichever mount namespace this process is in.
    table: File,
    known: Vec<Mounted>,
    /// Paths whose mounts the session keeps using after the host unmounts them.
    needed: Vec<PathBuf>,
}

/// The thread that lets go of mounts. It ends when this value is dropped.
#[derive(Debug)]
pub struct Following {
    end: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl HostMounts {
    /// Reads the host's mounts. Mounts that hold one of the paths in `needed` are kept.
    pub fn look(needed: Vec<PathBuf>) -> Result<HostMounts> {
        let mut table = File::open("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
        let known = read(&mut table).context("/proc/self/mountinfo")?;
        Ok(HostMounts { table, known, needed })
    }

    /// Starts the thread, which unmounts here and in the session all that the host unmounts from now on.
    ///
    /// `session` is the session's mount namespace, `shown` its mount table.
    pub fn follow(self, session: OwnedFd, shown: OwnedFd) -> Result<Following> {
        let (ended, end) = pipe_with(PipeFlags::CLOEXEC).context("a pipe")?;
        let thread = thread::Builder::new().spawn(move || {
            // If the thread fails, mounts stay until the session ends, which does not harm the session.
            let _ = self.let_go(&session, &mut File::from(shown), &ended);
        });
        Ok(Following { end: Some(end), thread: Some(thread.context("a thread for mounts")?) })
    }

    fn let_go(mut self, session: &OwnedFd, shown: &mut File, ended: &OwnedFd) -> std::io::Result<()> {
        // SAFETY: descriptors stay shared; this thread alone gets a root and a working directory of its own.
        unsafe { unshare_unsafe(UnshareFlags::FS)? };
        let own = File::open("/proc/thread-self/ns/mnt")?;
        loop {
            let there: HashSet<u64> = read(&mut self.table)?.into_iter().map(|mounted| mounted.id).collect();
            let (kept, gone) = std::mem::take(&mut self.known).into_iter().partition(|known| there.contains(&known.id));
            self.known = kept;
            let gone: Vec<Mounted> = gone.into_iter().filter(|gone| !self.is_needed(&gone.at)).collect();
            if !gone.is_empty() {
                gone.iter().for_each(let_go_here);
                let shown = read(shown)?;
                move_into_link_name_space(session.as_fd(), Some(LinkNameSpaceType::Mount))?;
                gone.iter().for_each(|gone| let_go_in_the_session(&gone.at, &shown));
                move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::Mount))?;
            }
            let mut ready = [PollFd::new(&self.table, PollFlags::PRI), PollFd::new(ended, PollFlags::IN)];
            let _ = poll(&mut ready, None);
            if !ready[1].revents().is_empty() {
                return Ok(());
            }
        }
    }

    fn is_needed(&self, at: &Path) -> bool {
        self.needed.iter().any(|needed| needed.starts_with(at))
    }
}

/// Unmounts this process's own copy, if the kernel has not done so already.
fn let_go_here(gone: &Mounted) {
    let here = File::open("/proc/self/mountinfo").and_then(|mut table| read(&mut table)).unwrap_or_default();
    if here.iter().rfind(|mounted| mounted.at == gone.at).is_some_and(|mounted| mounted.device == gone.device) {
        let _ = unmount(&gone.at, UnmountFlags::DETACH);
    }
}

/// Unmounts all mounts of the session at or below this path. Files that the session has open stay usable.
fn let_go_in_the_session(at: &Path, shown: &[Mounted]) {
    if OWN.iter().chain(&KERNEL).map(Path::new).any(|own| at.starts_with(own) || own.starts_with(at)) {
        return;
    }
    for mounted in shown.iter().rev().filter(|mounted| mounted.at.starts_with(at)) {
        let _ = unmount(&mounted.at, UnmountFlags::DETACH);
    }
}

fn read(table: &mut File) -> std::io::Result<Vec<Mounted>> {
    let mut text = Vec::new();
    table.rewind()?;
    table.read_to_end(&mut text)?;
    Ok(mounts_of(&text))
}

impl Drop for Following {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
