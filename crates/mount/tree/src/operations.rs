//! The operations of a tree, as the kernel requests them.

pub(crate) mod transactions;

use crate::contents::size_of_change;
use crate::interface::access_list::{self, AccessList};
use crate::interface::file_tree::*;
use crate::resume::continuation::happened;
use crate::table::inode::Inode;
use crate::table::row::Key;
use crate::tree::core::{Core, new_row};
use crate::tree::store_tree::{CommitMode, StoreTree};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 65536;

fn bytes(name: &OsStr) -> Result<&[u8]> {
    match name.as_bytes() {
        [] => Err(Errno(libc::ENOENT)),
        name if name.len() > NAME_MAX => Err(Errno(libc::ENAMETOOLONG)),
        name => Ok(name),
    }
}

impl StoreTree {
    fn make_inode(
        &self,
        by: Request,
        at: (Ino, Option<&OsStr>),
        kind: Kind,
        change: &dyn Fn(&mut Inode),
    ) -> Result<Attributes> {
        let (dir, name) = (at.0, at.1.map(bytes).transpose()?);
        let room = self.check_room().and_then(|()| name.map_or(Ok(()), |name| self.check_name(dir, name)));
        let mut core = self.changing()?;
        // A request that is repeated was done already, and needs no room.
        if let Some(made) = happened(&core) {
            let answer = self.limits.shown(core.attributes(made)?);
            return self.named(core, answer);
        }
        room?;
        let names = core.living_dir(dir)?;
        if name.is_some_and(|name| names.names.contains_key(name)) {
            return Err(Errno(libc::EEXIST));
        }
        let parent = &core.inode(dir)?.row;
        let inherits = parent.mode & libc::S_ISGID != 0;
        let mut row = new_row(kind, 0, by.uid, if inherits { parent.gid } else { by.gid }, core.clock.now());
        row.nlink = match kind {
            Kind::Directory => 2,
            _ => u32::from(name.is_some()),
        };
        let mut inode = Inode::new(row);
        change(&mut inode);
        let parent = core.inode(dir)?;
        pass_on(&parent.xattrs, by.umask, &mut inode)?;
        if inherits && kind == Kind::Directory {
            inode.row.mode |= libc::S_ISGID;
        }
        let lists: Vec<Box<[u8]>> = inode.xattrs.keys().cloned().collect();
        let ino = core.add_inode(inode)?;
        lists.into_iter().for_each(|list| core.mark(Key::Xattr(ino, list)));
        if let Some(name) = name {
            core.set_name(dir, name, ino);
            core.touch_dir(dir);
            if kind == Kind::Directory {
                core.add_links(dir, 1);
            }
        }
        debug_assert!(
            name.is_none_or(|name| core.find(dir, name) == Ok(ino)),
            "inode {ino} was made, and has no name in {dir}"
        );
        let answer = self.limits.shown(core.give(ino)?);
        core.note_happened(ino);
        self.named(core, answer)
    }

    /// Commits the contents of files so far together with the present names.
    ///
    /// The commit is submitted in the same step as the change of the names, so that the log has both in one record.
    fn commit_or_defer(core: &mut Core, inos: &[Ino]) {
        let changed = |ino: &Ino| core.inodes.get(ino).is_some_and(|i| i.uncommitted.is_some() && i.row.nlink > 0);
        if inos.iter().any(changed) {
            core.commit_or_defer(inos);
        }
    }

    fn is_in_or_below(core: &Core, mut dir: Ino, above: Ino) -> Result<bool> {
        while dir != ROOT {
            if dir == above {
                return Ok(true);
            }
            dir = core.inode(dir)?.parent;
        }
        Ok(dir == above)
    }

    /// Whether names may be committed before the contents of other files.
    fn commits_before_names(&self) -> bool {
        self.mode != CommitMode::Store
    }

    /// The files that a rename has to write back and to commit.
    fn committed_by_rename(&self, core: &Core, from: Ino, to: Option<Ino>, flags: RenameFlags) -> Result<Vec<Ino>> {
        let mut inos = Vec::new();
        if !self.commits_before_names() {
            return Ok(inos);
        }
        let source = core.inode(from)?;
        if source.is_file() && (to.is_some() || !source.row.synced) {
            inos.push(from);
        }
        if let (RenameFlags::Exchange, Some(to)) = (flags, to)
            && core.inode(to)?.is_file()
        {
            inos.push(to);
        }
        Ok(inos)
    }

    fn check_rename(core: &Core, from: (Ino, Ino), to: (Ino, Option<Ino>), flags: RenameFlags) -> Result<()> {
        let (source, fail) = (core.inode(from.1)?, |number| Err(Errno(number)));
        core.living_dir(to.0)?;
        match (flags, to.1) {
            (RenameFlags::NoReplace, Some(_)) => return fail(libc::EEXIST),
            (RenameFlags::Exchange, None) => return fail(libc::ENOENT),
            _ => {}
        }
        if source.is_dir() && Self::is_in_or_below(core, to.0, from.1)? {
            return fail(libc::EINVAL);
        }
        let Some(other) = to.1 else { return Ok(()) };
        let target = core.inode(other)?;
        if flags == RenameFlags::Exchange {
            let below = target.is_dir() && Self::is_in_or_below(core, from.0, other)?;
            return if below { fail(libc::EINVAL) } else { Ok(()) };
        }
        match (source.is_dir(), target.is_dir()) {
            (false, true) => fail(libc::EISDIR),
            (true, false) => fail(libc::ENOTDIR),
            (true, true) if !core.dir(other)?.names.is_empty() => fail(libc::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    fn apply_rename(
        core: &mut Core,
        from: (Ino, &[u8], Ino),
        to: (Ino, &[u8], Option<Ino>),
        flags: RenameFlags,
    ) -> Result<()> {
        let (is_dir, exchanges) = (core.inode(from.2)?.is_dir(), flags == RenameFlags::Exchange);
        let target_is_dir = match to.2 {
            Some(other) => core.inode(other)?.is_dir(),
            None => false,
        };
        let place = match to.2 {
            Some(other) if exchanges => {
                core.set_name(from.0, from.1, other);
                None
            }
            _ => core.remove_name(from.0, from.1),
        };
        // A program that reads the directory finds the file once, by its old name or its new one.
        core.set_name_at(to.0, to.1, from.2, place.filter(|_| from.0 == to.0));
        // A directory has one link for each directory in it.
        let moved = i32::from(is_dir);
        let other = i32::from(target_is_dir);
        core.add_links(from.0, if exchanges { other - moved } else { -moved });
        core.add_links(to.0, moved - other);
        core.touch(from.2);
        match to.2 {
            Some(other) if exchanges => core.touch(other),
            Some(other) => core.lose_name(other),
            None => {}
        }
        core.touch_dir(from.0);
        core.touch_dir(to.0);
        debug_assert_eq!(core.find(to.0, to.1), Ok(from.2), "the new name of a renamed file");
        debug_assert!(
            core.find(from.0, from.1).ok() == to.2.filter(|_| exchanges) || (from.0, from.1) == (to.0, to.1),
            "the old name of inode {} leads to {:?}",
            from.2,
            core.find(from.0, from.1)
        );
        Ok(())
    }
}

/// Gives a new inode the rights that its directory, with these attributes, passes on.
fn pass_on(of_dir: &BTreeMap<Box<[u8]>, Box<[u8]>>, umask: u32, made: &mut Inode) -> Result<()> {
    if made.row.kind == Kind::Symlink {
        return Ok(());
    }
    let Some(value) = of_dir.get(access_list::DEFAULT) else {
        made.row.mode &= !umask;
        return Ok(());
    };
    let Some(list) = AccessList::decode(value)? else { return Ok(()) };
    let passed = list.passed_on(made.row.mode);
    made.row.mode = passed.mode(made.row.mode);
    if !passed.is_mode() {
        made.xattrs.insert(access_list::ACCESS.into(), passed.encode());
    }
    if made.is_dir() {
        made.xattrs.insert(access_list::DEFAULT.into(), value.clone());
    }
    Ok(())
}

impl FileTree for StoreTree {
    fn lookup(&self, dir: Ino, name: &OsStr) -> Result<Attributes> {
        let mut core = self.core()?;
        core.take_back_given();
        let ino = match bytes(name)? {
            b"." => dir,
            b".." => core.dir(dir).and_then(|_| core.inode(dir))?.parent,
            name => core.find(dir, name)?,
        };
        let of = core.give(ino)?;
        core.note_given(ino);
        let blocks = core.blocks_of(ino).unwrap_or(of.blocks);
        core.close_object(ino);
        Ok(self.limits.shown(Attributes { blocks, ..of }))
    }

    fn forget(&self, ino: Ino, count: u64) {
        let Ok(mut core) = self.core() else { return };
        if let Ok(inode) = core.inode_mut(ino)
            && ino != ROOT
        {
            inode.known = inode.known.saturating_sub(count);
            core.reap(ino);
        }
        if let Err(e) = self.relieve(&mut core) {
            tracing::warn!(errno = e.0, "removed files were not committed early");
        }
    }

    fn attributes(&self, ino: Ino) -> Result<Attributes> {
        let mut core = self.core()?;
        let of = core.attributes(ino)?;
        let blocks = core.blocks_of(ino).unwrap_or(of.blocks);
        core.close_object(ino);
        Ok(self.limits.shown(Attributes { blocks, ..of }))
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        Ok(self.core()?.inode(dir)?.parent)
    }

    fn has_no_name(&self, ino: Ino) -> bool {
        self.core().is_ok_and(|core| core.inode(ino).map_or(true, |inode| inode.row.nlink == 0))
    }

    fn set_attributes(&self, ino: Ino, change: &Change) -> Result<Attributes> {
        self.limits.change(ino)?;
        let change = &self.limits.attributes(&self.core()?.attributes(ino)?, change)?;
        if let Some(size) = size_of_change(change)? {
            self.truncate(ino, size)?;
        }
        let mut core = self.changing()?;
        let now = core.clock.now();
        let inode = core.inode_mut(ino)?;
        let row = &mut inode.row;
        (row.mode, row.uid, row.gid) = (
            change.mode.map_or(row.mode, |mode| mode & 0o7777),
            change.uid.unwrap_or(row.uid),
            change.gid.unwrap_or(row.gid),
        );
        let listed = match change.mode.and_then(|mode| Some((mode, inode.xattrs.get_mut(access_list::ACCESS)?))) {
            Some((mode, value)) => {
                if let Some(mut list) = AccessList::decode(value)? {
                    list.set_mode(mode);
                    *value = list.encode();
                }
                true
            }
            None => false,
        };
        let at = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let [atime, mtime, ctime] = inode.times();
        *atime = change.atime.map_or(*atime, at);
        *mtime = change.mtime.map_or(*mtime, at);
        *ctime = change.ctime.unwrap_or(now);
        if listed {
            core.mark(Key::Xattr(ino, access_list::ACCESS.into()));
        }
        core.mark(Key::Inode(ino));
        let answer = self.limits.shown(core.attributes(ino)?);
        self.named(core, answer)
    }

    fn make(&self, by: Request, dir: Ino, name: &OsStr, kind: Kind, mode: u32, rdev: u32) -> Result<Attributes> {
        if kind == Kind::Symlink {
            return Err(Errno(libc::EINVAL));
        }
        self.make_inode(by, (dir, Some(name)), kind, &|inode| {
            (inode.row.mode, inode.row.rdev, inode.parent) = (mode & 0o7777, rdev, dir);
        })
    }

    fn make_unnamed(&self, by: Request, dir: Ino, mode: u32) -> Result<Attributes> {
        self.make_inode(by, (dir, None), Kind::File, &|inode| inode.row.mode = mode & 0o7777)
    }

    fn symlink(&self, by: Request, dir: Ino, name: &OsStr, target: &OsStr) -> Result<Attributes> {
        if target.len() >= libc::PATH_MAX as usize {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        self.limits.target(target.as_bytes())?;
        self.make_inode(by, (dir, Some(name)), Kind::Symlink, &|inode| {
            inode.row.mode = 0o777;
            inode.row.size = target.len() as u64;
            inode.row.target = target.as_bytes().into();
        })
    }

    fn read_link(&self, ino: Ino) -> Result<OsString> {
        let core = self.core()?;
        let inode = core.inode(ino)?;
        match inode.row.kind {
            Kind::Symlink => Ok(OsString::from_vec(inode.row.target.to_vec())),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    fn link(&self, ino: Ino, dir: Ino, name: &OsStr, cache: &dyn KernelCache) -> Result<Attributes> {
        let name = bytes(name)?;
        let writes_back = {
            let core = self.changing()?;
            if let Some(linked) = happened(&core) {
                let answer = self.limits.shown(core.attributes(linked)?);
                return self.named(core, answer);
            }
            let inode = core.inode(ino)?;
            self.commits_before_names() && inode.is_file() && !inode.row.synced
        };
        if writes_back {
            self.write_back_and_restore(ino, cache)?;
        }
        let mut core = self.changing()?;
        if core.living_dir(dir)?.names.contains_key(name) {
            return Err(Errno(libc::EEXIST));
        }
        self.check_name(dir, name)?;
        self.limits.change(ino)?;
        let inode = core.inode_mut(ino)?;
        if inode.is_dir() {
            return Err(Errno(libc::EPERM));
        }
        self.limits.links(inode.row.nlink.saturating_add(1))?;
        if inode.is_poisoned() {
            return Err(Errno(libc::EIO));
        }
        let contents = self.commits_before_names() && inode.is_file() && !inode.row.synced;
        if contents {
            core.check_committable(&[ino])?;
        }
        let inode = core.inode_mut(ino)?;
        inode.row.nlink = inode.row.nlink.checked_add(1).ok_or(Errno(libc::EMLINK))?;
        core.set_name(dir, name, ino);
        core.touch(ino);
        core.touch_dir(dir);
        core.note_happened(ino);
        if contents {
            Self::commit_or_defer(&mut core, &[ino]);
        }
        let answer = self.limits.shown(core.give(ino)?);
        self.named(core, answer)
    }

    fn unlink(&self, dir: Ino, name: &OsStr) -> Result<()> {
        let name = bytes(name)?;
        let mut core = self.changing()?;
        if happened(&core).is_some() {
            return self.named(core, ());
        }
        let ino = core.find(dir, name)?;
        if core.inode(ino)?.is_dir() {
            return Err(Errno(libc::EISDIR));
        }
        self.check_removal(&core, dir, ino)?;
        core.remove_name(dir, name);
        core.touch_dir(dir);
        core.lose_name(ino);
        core.note_happened(ino);
        self.named(core, ())
    }

    fn remove_dir(&self, dir: Ino, name: &OsStr) -> Result<()> {
        let name = bytes(name)?;
        let mut core = self.changing()?;
        if happened(&core).is_some() {
            return self.named(core, ());
        }
        let ino = core.find(dir, name)?;
        if !core.dir(ino)?.names.is_empty() {
            return Err(Errno(libc::ENOTEMPTY));
        }
        self.check_removal(&core, dir, ino)?;
        core.remove_name(dir, name);
        core.add_links(dir, -1);
        core.touch_dir(dir);
        core.lose_name(ino);
        core.note_happened(ino);
        self.named(core, ())
    }

    fn rename(
        &self,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        flags: RenameFlags,
        cache: &dyn KernelCache,
    ) -> Result<()> {
        let (name, new_name) = (bytes(from.1)?, bytes(to.1)?);
        let mut written_back: Vec<Ino> = Vec::new();
        loop {
            let mut core = self.changing()?;
            if written_back.is_empty() && happened(&core).is_some() {
                return self.named(core, ());
            }
            let source = core.find(from.0, name)?;
            let target = match core.find(to.0, new_name) {
                Ok(ino) => Some(ino),
                Err(Errno(libc::ENOENT)) => None,
                Err(e) => return Err(e),
            };
            if target == Some(source) && flags != RenameFlags::NoReplace {
                return Ok(());
            }
            Self::check_rename(&core, (from.0, source), (to.0, target), flags)?;
            self.check_removal(&core, from.0, source)?;
            match target {
                Some(target) => self.check_removal(&core, to.0, target)?,
                None => self.check_name(to.0, new_name)?,
            }
            let contents = self.committed_by_rename(&core, source, target, flags)?;
            let missing: Vec<Ino> = contents.iter().filter(|ino| !written_back.contains(ino)).copied().collect();
            if !missing.is_empty() {
                drop(core);
                for ino in missing {
                    self.write_back_and_restore(ino, cache)?;
                    written_back.push(ino);
                }
                // The names may have changed meanwhile.
                continue;
            }
            let exchanged = target.filter(|_| flags == RenameFlags::Exchange);
            for ino in std::iter::once(source).chain(exchanged) {
                if core.inode(ino)?.is_poisoned() {
                    return Err(Errno(libc::EIO));
                }
            }
            core.check_committable(&contents)?;
            Self::apply_rename(&mut core, (from.0, name, source), (to.0, new_name, target), flags)?;
            core.note_happened(source);
            Self::commit_or_defer(&mut core, &contents);
            return self.named(core, ());
        }
    }

    fn read_dir(&self, dir: Ino, start: u64, most: usize) -> Result<Vec<Entry>> {
        let core = self.core()?;
        let mut entries = Vec::new();
        for (cookie, name) in core.dir(dir)?.order.range(start.saturating_add(1)..).take(most) {
            let ino = core.find(dir, name)?;
            let kind = core.inode(ino)?.row.kind;
            entries.push(Entry { next: *cookie, name: OsString::from_vec(name.to_vec()), ino, kind });
        }
        Ok(entries)
    }

    fn open(&self, ino: Ino, writable: bool) -> Result<()> {
        let mut core = self.core()?;
        if happened(&core).is_some() {
            return Ok(());
        }
        if writable {
            self.limits.change(ino)?;
        }
        let now = core.clock.elapsed();
        let inode = core.inode_mut(ino)?;
        if writable && inode.writers == 0 {
            inode.written_back = now;
        }
        inode.openings += 1;
        inode.writers += u32::from(writable);
        if writable {
            core.open_for_writing.insert(ino);
        }
        core.note_happened(ino);
        Ok(())
    }

    fn release(&self, ino: Ino, writable: bool) -> bool {
        let Ok(mut core) = self.core() else { return true };
        if happened(&core).is_some() {
            return false;
        }
        let now = core.clock.elapsed();
        let Ok(inode) = core.inode_mut(ino) else { return true };
        inode.openings = inode.openings.saturating_sub(1);
        inode.writers = inode.writers.saturating_sub(u32::from(writable));
        if let Some(u) = &mut inode.uncommitted {
            u.since = now;
        }
        let is_last = writable && inode.writers == 0;
        let commits = matches!(self.mode, CommitMode::Close | CommitMode::Write) && is_last && inode.is_committable();
        if is_last {
            core.open_for_writing.remove(&ino);
        }
        core.close_object(ino);
        core.reap(ino);
        core.note_happened(ino);
        if commits && core.changed.contains(&ino) && core.commit(&[ino]).is_err() {
            tracing::error!(ino, "the file was not committed when it was closed");
        }
        true
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_contents(ino, offset, buf)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.write_contents(ino, offset, data, true)
    }

    fn write_now(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.write_contents(ino, offset, data, false)
    }

    fn restore(&self, ino: Ino, cache: &dyn KernelCache) -> Result<()> {
        StoreTree::restore(self, ino, cache)
    }

    fn allocate(&self, ino: Ino, offset: u64, len: u64, mode: i32) -> Result<()> {
        self.allocate_contents(ino, offset, len, mode)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: i32, cache: &dyn KernelCache) -> Result<u64> {
        self.write_back_file(ino, cache)?;
        self.seek_contents(ino, offset, whence)
    }

    fn sync(&self, ino: Ino, cache: &dyn KernelCache) -> Result<()> {
        self.commit_files(&[ino], cache)
    }

    fn sync_names(&self, cache: &dyn KernelCache) -> Result<()> {
        self.commit_names(cache)
    }

    fn sync_all(&self, cache: &dyn KernelCache) -> Result<()> {
        self.commit_all(cache)
    }

    fn prepare_end(&self, cache: &dyn KernelCache) -> Result<()> {
        self.commit_finished(cache)
    }

    fn sync_files(&self, inos: &[Ino], cache: &dyn KernelCache) -> Result<()> {
        self.commit_files(inos, cache)
    }

    fn begin(&self, owner: u64, keeps: bool) -> Result<Transaction> {
        self.begin_transaction(owner, keeps)
    }

    fn add(&self, txn: Transaction, ino: Ino) -> Result<()> {
        self.add_to(txn, ino)
    }

    fn commit(&self, txn: Transaction, chains: bool, cache: &dyn KernelCache) -> Result<()> {
        self.commit_transaction(txn, chains, cache)
    }

    fn abort(&self, txn: Transaction, chains: bool, cache: &dyn KernelCache) -> Result<bool> {
        self.abort_transaction(txn, chains, cache)
    }

    fn dissolve(&self, txn: Transaction) {
        self.dissolve_transaction(txn);
    }

    fn transactions_of(&self, owner: u64) -> Vec<Transaction> {
        self.transactions_begun(owner)
    }

    fn end_opening(&self, owner: u64) -> Vec<Transaction> {
        self.end_opening_of(owner)
    }

    fn left(&self) -> Vec<Transaction> {
        self.transactions_left()
    }

    fn leave(&self, txn: Transaction, cache: &dyn KernelCache) {
        self.leave_transaction(txn, cache);
    }

    fn tick(&self, cache: &dyn KernelCache) {
        if let Err(e) = self.commit_due(cache) {
            tracing::error!(errno = e.0, "the timer could not commit; reopen the store if this stays");
        }
    }

    fn write_back_after(&self, after: Duration, cache: &dyn KernelCache) {
        self.write_back_due(after, cache);
    }

    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>> {
        let core = self.core()?;
        let value = core.inode(ino)?.xattrs.get(name.as_bytes());
        value.map(|value| value.to_vec()).ok_or(Errno(libc::ENODATA))
    }

    fn set_xattr(&self, ino: Ino, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        match name.as_bytes() {
            [] => return Err(Errno(libc::EINVAL)),
            name if name.len() > NAME_MAX => return Err(Errno(libc::ERANGE)),
            _ if value.len() > VALUE_MAX => return Err(Errno(libc::E2BIG)),
            _ => {}
        }
        let mut core = self.changing()?;
        if happened(&core).is_some() {
            return self.named(core, ());
        }
        self.limits.change(ino)?;
        let inode = core.inode_mut(ino)?;
        let is_there = inode.xattrs.contains_key(name.as_bytes());
        if is_there && flags & libc::XATTR_CREATE != 0 {
            return Err(Errno(libc::EEXIST));
        }
        if !is_there && flags & libc::XATTR_REPLACE != 0 {
            return Err(Errno(libc::ENODATA));
        }
        let list = match access_list::is_list(name.as_bytes()) {
            true => Some(AccessList::decode(value)?),
            false => None,
        };
        if list.is_some() {
            let change = Change { mode: Some(inode.row.mode), ..Change::default() };
            self.limits.attributes(&inode.attributes(ino), &change)?;
        } else {
            let mut then = inode.xattrs.clone();
            then.insert(name.as_bytes().into(), value.into());
            self.limits.xattrs(inode.row.kind, &then)?;
        }
        let row = &mut inode.row;
        let is_access = name.as_bytes() == access_list::ACCESS;
        match list {
            // Only directories pass a list on.
            Some(_) if !is_access && row.kind != Kind::Directory => return Err(Errno(libc::EACCES)),
            Some(_) if row.kind == Kind::Symlink => return Err(Errno(libc::EOPNOTSUPP)),
            Some(Some(list)) => {
                row.mode = if is_access { list.mode(row.mode) } else { row.mode };
                match is_access && list.is_mode() {
                    true => inode.xattrs.remove(name.as_bytes()),
                    false => inode.xattrs.insert(name.as_bytes().into(), list.encode()),
                };
            }
            Some(None) => drop(inode.xattrs.remove(name.as_bytes())),
            None => drop(inode.xattrs.insert(name.as_bytes().into(), value.into())),
        }
        core.mark(Key::Xattr(ino, name.as_bytes().into()));
        core.touch(ino);
        core.note_happened(ino);
        self.named(core, ())
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<OsString>> {
        let core = self.core()?;
        Ok(core.inode(ino)?.xattrs.keys().map(|name| OsString::from_vec(name.to_vec())).collect())
    }

    fn remove_xattr(&self, ino: Ino, name: &OsStr) -> Result<()> {
        let mut core = self.changing()?;
        if happened(&core).is_some() {
            return self.named(core, ());
        }
        self.limits.change(ino)?;
        let removed = core.inode_mut(ino)?.xattrs.remove(name.as_bytes());
        if removed.is_none() && !access_list::is_list(name.as_bytes()) {
            return Err(Errno(libc::ENODATA));
        }
        core.mark(Key::Xattr(ino, name.as_bytes().into()));
        core.touch(ino);
        core.note_happened(ino);
        self.named(core, ())
    }

    fn answered(&self, unique: u64) {
        if let Ok(mut core) = self.core() {
            core.forget_question(unique);
        }
    }

    fn opened_for_writing(&self) -> Vec<(Ino, u64)> {
        let Ok(core) = self.core() else { return Vec::new() };
        let open = core.open_for_writing.iter();
        open.filter_map(|ino| Some((*ino, u64::from(core.inodes.get(ino)?.writers)))).collect()
    }

    fn status(&self) -> Result<TreeStatus> {
        Ok(self.core()?.status())
    }

    fn space(&self) -> Result<SpaceUse> {
        self.space_below()
    }

    fn close(&self, cache: &dyn KernelCache) -> Result<()> {
        self.close_store(cache)
    }
}

impl StoreTree {
    fn space_below(&self) -> Result<SpaceUse> {
        let below = self.below()?;
        let staged = {
            let core = self.core()?;
            let changed = core.changed.iter().filter_map(|ino| core.inodes.get(ino));
            changed.map(Inode::bytes_at_most).fold(0u64, u64::saturating_add)
        };
        let promised = staged.div_ceil(u64::from(below.block_size));
        let less = |blocks: u64| blocks.saturating_sub(promised);
        Ok(SpaceUse { free: less(below.free), available: less(below.available), ..below })
    }

    fn check_name(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.limits.add_name(dir)?;
        self.limits.name(name)
    }

    fn check_removal(&self, core: &Core, dir: Ino, ino: Ino) -> Result<()> {
        self.limits.change(dir)?;
        self.limits.change(ino)?;
        self.limits.removal(&core.attributes(dir)?, &core.attributes(ino)?)
    }

    /// Refuses changes that take room while the file system below has little left: earlier writes of programs must
    /// still fit.
    pub(crate) fn check_room(&self) -> Result<()> {
        self.check_room_for(0)
    }

    /// Checks the room like [`check_room`](Self::check_room), for a change that takes `bytes` at once.
    pub(crate) fn check_room_for(&self, bytes: u64) -> Result<()> {
        let below = self.below()?;
        let block = u64::from(below.block_size);
        let kept = (64 << 20).min(below.blocks.saturating_mul(block) / 20).saturating_add(bytes);
        if below.available.saturating_mul(block) < kept { Err(Errno(libc::ENOSPC)) } else { Ok(()) }
    }
}
