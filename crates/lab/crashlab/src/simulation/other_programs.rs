//! Other programs on the same machine: their calls are not counted, not hit by faults, and do not sync.

use super::disk::SimDisk;
use crate::simulation::state::disk_state::{State, Unreadable};
use crate::simulation::state::inodes::{Body, Inode, ROOT, Slot};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use untorn_os::{Kind, Meta};

/// The file, directory or link at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// File, directory or link.
    pub kind: Kind,
    /// A file's contents.
    pub contents: Vec<u8>,
    /// The attribute `user.untorn`.
    pub attribute: Option<Vec<u8>>,
    /// Permission bits.
    pub mode: u32,
}

fn entry(inode: &Inode, kind: Kind) -> Entry {
    let mut contents = vec![0; inode.size() as usize];
    inode.read(&mut contents, 0);
    Entry { kind, contents, attribute: inode.attribute.as_deref().map(<[u8]>::to_vec), mode: inode.mode }
}

impl SimDisk {
    /// Writes a whole file in place, or creates it.
    pub fn put(&self, path: impl AsRef<Path>, contents: &[u8]) -> io::Result<()> {
        let mut machine = self.machine();
        let state = &mut machine.state;
        let slot = match state.resolve(path.as_ref()) {
            Ok(slot) => slot,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let user = state.options.user;
                state.create(path.as_ref(), Inode::empty_file(), 0o644, user)?
            }
            Err(e) => return Err(e),
        };
        machine.set_len(slot, contents.len() as u64)?;
        write_whole(&mut machine.state, slot, contents)
    }

    /// Writes a part of a file in place.
    pub fn overwrite(&self, path: impl AsRef<Path>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut machine = self.machine();
        let slot = machine.state.resolve(path.as_ref())?;
        machine.state.write(slot, bytes, offset, false).map(drop)
    }

    /// Reads a whole file.
    pub fn get(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        Ok(self.entry(path)?.contents)
    }

    /// Reads a whole file with its metadata.
    pub fn entry(&self, path: impl AsRef<Path>) -> io::Result<Entry> {
        let machine = self.machine();
        let slot = machine.state.resolve(path.as_ref())?;
        Ok(entry(machine.state.inode(slot)?, machine.state.meta(slot)?.kind))
    }

    /// `lstat`.
    pub fn meta(&self, path: impl AsRef<Path>) -> io::Result<Meta> {
        let machine = self.machine();
        machine.state.meta(machine.state.resolve(path.as_ref())?)
    }

    /// Everything beneath the root, sorted by path.
    pub fn tree(&self) -> Vec<(PathBuf, Entry)> {
        fn walk(state: &State, slot: Slot, path: &Path, found: &mut Vec<(PathBuf, Entry)>) {
            let Ok(inode) = state.inode(slot) else { return };
            for (name, child) in inode.entries() {
                let path = path.join(&**name);
                if let (Ok(inode), Ok(meta)) = (state.inode(*child), state.meta(*child)) {
                    found.push((path.clone(), entry(inode, meta.kind)));
                }
                walk(state, *child, &path, found);
            }
        }
        let mut found = Vec::new();
        walk(&self.machine().state, ROOT, Path::new(""), &mut found);
        found
    }

    /// Renames, replacing.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let mut machine = self.machine();
        if let Some(replaced) = machine.state.rename(from.as_ref(), to.as_ref(), true)? {
            machine.unnamed(replaced);
        }
        Ok(())
    }

    /// Removes a file, or a directory with everything in it.
    pub fn remove(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        if self.meta(path)?.kind == Kind::Directory {
            let names = self.machine().state.list(path)?;
            for name in names {
                self.remove(path.join(name))?;
            }
            let mut machine = self.machine();
            let slot = machine.state.rmdir(path)?;
            machine.unnamed(slot);
        } else {
            let mut machine = self.machine();
            let slot = machine.state.unlink(path)?;
            machine.unnamed(slot);
        }
        Ok(())
    }

    /// Copies a file, or a directory with everything in it, including modes; with `attributes`, like `cp -a`.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, attributes: bool) -> io::Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let meta = self.meta(from)?;
        if meta.kind == Kind::Directory {
            let names = self.machine().state.list(from)?;
            self.make_directory(to, meta.mode, meta.uid)?;
            for name in names {
                self.copy(from.join(&name), to.join(&name), attributes)?;
            }
            return Ok(());
        }
        let source = self.entry(from)?;
        let mut machine = self.machine();
        let state = &mut machine.state;
        let slot = state.create(to, Inode::empty_file(), meta.mode, meta.uid)?;
        write_whole(state, slot, &source.contents)?;
        match source.attribute {
            Some(value) if attributes => state.set_attribute(slot, Some(&value)),
            _ => Ok(()),
        }
    }

    /// Makes a directory.
    pub fn make_directory(&self, path: impl AsRef<Path>, mode: u32, owner: u32) -> io::Result<()> {
        self.machine().state.create(path.as_ref(), Body::Directory(Vec::new()), mode, owner).map(drop)
    }

    /// Gives a file a second name.
    pub fn hard_link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        self.machine().state.hard_link(from.as_ref(), to.as_ref())
    }

    /// Makes a symbolic link. Its target does not matter: nothing here follows links.
    pub fn symlink(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut machine = self.machine();
        let user = machine.state.options.user;
        machine.state.create(path.as_ref(), Body::Symlink, 0o777, user).map(drop)
    }

    /// Sets or removes the attribute `user.untorn`.
    pub fn set_attribute(&self, path: impl AsRef<Path>, value: Option<&[u8]>) -> io::Result<()> {
        let mut machine = self.machine();
        let slot = machine.state.resolve(path.as_ref())?;
        machine.state.set_attribute(slot, value)
    }

    /// Sets permission bits.
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let mut machine = self.machine();
        let slot = machine.state.resolve(path.as_ref())?;
        machine.state.set_mode(slot, mode)
    }

    /// Gives a file to another user and group; durable at once.
    pub fn set_owner(&self, path: impl AsRef<Path>, uid: u32, gid: u32) -> io::Result<()> {
        let mut machine = self.machine();
        let slot = machine.state.resolve(path.as_ref())?;
        machine.state.set_owner(slot, uid, gid);
        Ok(())
    }

    /// From now on reads of a range of this file fail with `EIO`, under any name of the file.
    pub fn set_unreadable(&self, path: impl AsRef<Path>, range: Range<u64>) -> io::Result<()> {
        let mut machine = self.machine();
        let slot = machine.state.resolve(path.as_ref())?;
        machine.state.unreadable.push(Unreadable { slot, range, is_written: false });
        Ok(())
    }

    /// Makes the whole disk readable again.
    pub fn set_readable(&self) {
        self.machine().state.unreadable.clear();
    }

    /// Another program runs `sync`: everything is durable.
    pub fn settle(&self) {
        self.machine().state.sync_file_system();
    }
}

fn write_whole(state: &mut State, slot: Slot, contents: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < contents.len() {
        done += state.write(slot, &contents[done..], done as u64, false)?;
    }
    Ok(())
}
