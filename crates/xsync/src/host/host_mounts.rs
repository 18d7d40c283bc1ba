//! Mounts that the host unmounts while a session runs: the session has copies of them, which would keep device and daemon
//! alive behind the back of whoever unmounted. It lets go of them, too.

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

/// The host's mounts, as they were before this process had a mount namespace of its own.
#[derive(Debug)]
pub struct HostMounts {
    /// Shows the host's mounts, and says when they change, wherever this process is now.
    table: File,
    known: Vec<Mounted>,
    /// What the session goes on using, whatever the host does.
    needed: Vec<PathBuf>,
}

/// A thread that lets go of mounts; ended when this is dropped.
#[derive(Debug)]
pub struct Following {
    end: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl HostMounts {
    /// Looks at them; mounts that hold one of these paths are kept.
    pub fn look(needed: Vec<PathBuf>) -> Result<HostMounts> {
        let mut table = File::open("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
        let known = read(&mut table).context("/proc/self/mountinfo")?;
        Ok(HostMounts { table, known, needed })
    }

    /// From now on, what the host unmounts is let go of here, and in the session: its mount namespace, and what shows what
    /// is in it.
    pub fn follow(self, session: OwnedFd, shown: OwnedFd) -> Result<Following> {
        let (ended, end) = pipe_with(PipeFlags::CLOEXEC).context("a pipe")?;
        let thread = thread::Builder::new().spawn(move || {
            // Without it mounts stay as long as the session, which does no harm to the session.
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

/// This process's own copy, if it has not followed by itself.
fn let_go_here(gone: &Mounted) {
    let here = File::open("/proc/self/mountinfo").and_then(|mut table| read(&mut table)).unwrap_or_default();
    if here.iter().rfind(|mounted| mounted.at == gone.at).is_some_and(|mounted| mounted.device == gone.device) {
        let _ = unmount(&gone.at, UnmountFlags::DETACH);
    }
}

/// What the session shows of it. Files that it has open stay as long as they are.
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
