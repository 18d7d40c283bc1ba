//! The names on the simulated disk: paths, and the calls that make, move and remove files and directories.

use super::{State, errno};
use crate::simulation::state::effect::Effect;
use crate::simulation::state::inodes::{Body, Inode, Name, PAGE_BYTES, ROOT, Slot};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

impl State {
    /// Refuses paths that lead outside, and names that Linux does not accept.
    pub fn inside(path: &Path) -> io::Result<()> {
        if path.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(errno(libc::EXDEV));
        }
        if path.as_os_str().as_encoded_bytes().contains(&0) { Err(errno(libc::EINVAL)) } else { Ok(()) }
    }

    pub fn resolve(&self, path: &Path) -> io::Result<Slot> {
        State::inside(path)?;
        let mut at = ROOT;
        for part in path.components() {
            if let Component::Normal(name) = part {
                at = self.child(at, name)?.ok_or_else(|| errno(libc::ENOENT))?;
            }
        }
        Ok(at)
    }

    /// The inode of a path, found as by `lstat`; the empty path is the root.
    pub fn named(&self, path: &Path) -> io::Result<Slot> {
        if path.as_os_str().is_empty() {
            return Ok(ROOT);
        }
        self.place(path)?.2.ok_or_else(|| errno(libc::ENOENT))
    }

    /// Checks the directories of a path that is to be opened: unlike other calls, `open` returns `ELOOP` if the last
    /// one is a link.
    pub fn openable(&self, path: &Path) -> io::Result<()> {
        let directory = self.resolve(path.parent().unwrap_or(Path::new("")))?;
        State::inside(path)?;
        if matches!(self.inode(directory)?.body, Body::Symlink) { Err(errno(libc::ELOOP)) } else { Ok(()) }
    }

    pub fn directory(&self, path: &Path) -> io::Result<Slot> {
        let slot = self.resolve(path)?;
        if self.inode(slot)?.is_directory() { Ok(slot) } else { Err(errno(libc::ENOTDIR)) }
    }

    fn child(&self, directory: Slot, name: &OsStr) -> io::Result<Option<Slot>> {
        let inode = self.inode(directory)?;
        match &inode.body {
            Body::Directory(_) if name.len() > 255 => Err(errno(libc::ENAMETOOLONG)),
            Body::Directory(_) => Ok(inode.entry(name)),
            Body::Symlink => Err(errno(libc::ELOOP)),
            Body::File { .. } => Err(errno(libc::ENOTDIR)),
        }
    }

    /// The directory of a path, the name in it, and the inode of that name.
    fn place(&self, path: &Path) -> io::Result<(Slot, Name, Option<Slot>)> {
        let name = path.file_name().ok_or_else(|| errno(libc::EINVAL))?;
        State::inside(path)?;
        let directory = self.resolve(path.parent().unwrap_or(Path::new("")))?;
        // A link in the place of a directory is not a directory.
        if matches!(self.inode(directory)?.body, Body::Symlink) {
            return Err(errno(libc::ENOTDIR));
        }
        let taken = self.child(directory, name)?;
        Ok((directory, Arc::from(name), taken))
    }

    pub fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let entries = self.inode(self.directory(path)?)?.entries();
        Ok(entries.iter().map(|(name, _)| name.to_os_string()).collect())
    }

    fn room_for_inode(&self) -> io::Result<()> {
        match self.free_inodes() {
            Some(0) => Err(errno(libc::ENOSPC)),
            _ => Ok(()),
        }
    }

    /// The numbers of allocated bytes and files.
    pub fn used(&self) -> (u64, u64) {
        (self.live.allocated_pages() * PAGE_BYTES as u64, self.live.inodes().count() as u64)
    }

    /// The number of files and directories that can still be created.
    pub fn free_inodes(&self) -> Option<u64> {
        self.options.inodes_max.map(|most| most.saturating_sub(self.live.inodes().count() as u64))
    }

    /// Creates an inode and its name; on the disk it exists without a name until the name is durable.
    pub fn create(&mut self, path: &Path, body: Body, mode: u32, user: u32) -> io::Result<Slot> {
        let (directory, name, taken) = self.place(path)?;
        if taken.is_some() {
            return Err(errno(libc::EEXIST));
        }
        self.writable()?;
        self.room_for_inode()?;
        // Like the Linux implementation: with a strict mode first, then exactly with the requested one.
        let first_mode = if matches!(body, Body::Directory(_)) { 0o700 } else { 0o600 };
        let slot = self.new_inode(body, first_mode, user);
        self.push_applied(Effect::Link { directory, name, slot, created: true });
        if mode != first_mode {
            self.set_mode(slot, mode)?;
        }
        Ok(slot)
    }

    /// Creates a file without a name, which a crash removes.
    pub fn create_unnamed(&mut self, directory: &Path, user: u32) -> io::Result<Slot> {
        self.directory(directory)?;
        if !self.options.unnamed {
            return Err(errno(libc::EOPNOTSUPP));
        }
        self.writable()?;
        self.room_for_inode()?;
        let slot = self.new_inode(Inode::empty_file(), 0o600, user);
        if let Some(inode) = self.live.get_mut(slot) {
            inode.links = 0;
        }
        Ok(slot)
    }

    /// Gives a file without a name one in this directory.
    pub fn give_name(&mut self, slot: Slot, directory: Slot, name: &OsStr) -> io::Result<()> {
        if self.inode(slot)?.links > 0 {
            return Err(errno(libc::EINVAL));
        }
        // A directory that was removed accepts no names.
        let place = self.live.get(directory).filter(|inode| inode.links > 0).ok_or_else(|| errno(libc::ENOENT))?;
        if place.entry(name).is_some() {
            return Err(errno(libc::EEXIST));
        }
        self.child(directory, name)?;
        self.writable()?;
        self.push_applied(Effect::Link { directory, name: Arc::from(name), slot, created: true });
        if let Some(inode) = self.live.get_mut(slot) {
            inode.links = 1;
        }
        Ok(())
    }

    /// A new inode, also on the disk, where no name leads to it yet.
    fn new_inode(&mut self, body: Body, mode: u32, user: u32) -> Slot {
        // The lowest free number, as on ext4, so that a number does not identify a file for ever.
        let mut used: Vec<u64> = self.live.inodes().map(|(_, inode)| inode.number).collect();
        used.sort_unstable();
        let number = used.iter().fold(2, |free, &n| if n == free { free + 1 } else { free });
        let mut slot = self.live.slots().max(self.durable.slots());
        if self.pending.is_empty() {
            let free = |s: &Slot| self.live.get(*s).is_none() && self.durable.get(*s).is_none();
            slot = (0..slot).find(free).unwrap_or(slot);
        }
        let now = self.tick();
        let inode = Inode::new(body, number, mode, user, now);
        self.live.insert(slot, inode.clone());
        self.durable.insert(slot, inode);
        slot
    }

    pub fn hard_link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let slot = self.resolve(from)?;
        let (directory, name, taken) = self.place(to)?;
        if taken.is_some() {
            return Err(errno(libc::EEXIST));
        }
        self.writable()?;
        if self.inode(slot)?.is_directory() {
            return Err(errno(libc::EPERM));
        }
        self.push_applied(Effect::Link { directory, name, slot, created: false });
        if let Some(inode) = self.live.get_mut(slot) {
            inode.links += 1;
        }
        Ok(())
    }

    /// Renames; returns the inode that was replaced.
    pub fn rename(&mut self, from: &Path, to: &Path, replace: bool) -> io::Result<Option<Slot>> {
        self.writable()?;
        let (from_directory, from_name, slot) = self.place(from)?;
        let slot = slot.ok_or_else(|| errno(libc::ENOENT))?;
        let (directory, name, taken) = self.place(to)?;
        if taken.is_some() && !replace {
            return Err(errno(libc::EEXIST));
        }
        if to != from && to.starts_with(from) {
            return Err(errno(libc::EINVAL));
        }
        if to != from && from.starts_with(to) {
            return Err(errno(libc::ENOTEMPTY));
        }
        if let Some(taken) = taken {
            if taken == slot {
                return Ok(None);
            }
            let (old, new) = (self.inode(taken)?, self.inode(slot)?);
            match (old.is_directory(), new.is_directory()) {
                (true, false) => return Err(errno(libc::EISDIR)),
                (false, true) => return Err(errno(libc::ENOTDIR)),
                (true, true) if !old.entries().is_empty() => return Err(errno(libc::ENOTEMPTY)),
                _ => {}
            }
        }
        self.push_applied(Effect::Rename { from_directory, from: from_name, directory, name, slot });
        if let Some(taken) = taken {
            self.unlinked(taken);
        }
        Ok(taken)
    }

    /// Removes a file's name; returns the inode that had it.
    pub fn unlink(&mut self, path: &Path) -> io::Result<Slot> {
        self.writable()?;
        let (directory, name, slot) = self.place(path)?;
        let slot = slot.ok_or_else(|| errno(libc::ENOENT))?;
        if self.inode(slot)?.is_directory() {
            return Err(errno(libc::EISDIR));
        }
        self.push_applied(Effect::Unlink { directory, name, slot });
        self.unlinked(slot);
        Ok(slot)
    }

    pub fn rmdir(&mut self, path: &Path) -> io::Result<Slot> {
        self.writable()?;
        let (directory, name, slot) = self.place(path)?;
        let slot = slot.ok_or_else(|| errno(libc::ENOENT))?;
        let inode = self.inode(slot)?;
        if !inode.is_directory() {
            return Err(errno(libc::ENOTDIR));
        }
        if !inode.entries().is_empty() {
            return Err(errno(libc::ENOTEMPTY));
        }
        self.push_applied(Effect::Unlink { directory, name, slot });
        self.unlinked(slot);
        Ok(slot)
    }

    fn unlinked(&mut self, slot: Slot) {
        if let Some(inode) = self.live.get_mut(slot) {
            inode.links = inode.links.saturating_sub(1);
        }
    }

    /// Removes an inode once no name and no open file leads to it.
    pub fn reap(&mut self, slot: Slot) {
        if let Some(inode) = self.live.get(slot)
            && inode.links == 0
        {
            let pages: Vec<_> = inode.pages().iter().flatten().cloned().collect();
            self.live.remove(slot);
            self.bury(pages);
        }
    }
}
