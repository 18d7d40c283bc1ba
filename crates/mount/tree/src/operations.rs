//! The operations of a tree, as the kernel requests them.

mod extended_attributes;
mod new_inode;
mod renames;
pub(crate) mod transactions;

use crate::contents::size_of_change;
use crate::interface::access_list::{self, AccessList};
use crate::interface::file_tree::*;
use crate::resume::continuation::happened;
use crate::table::inode::Inode;
use crate::table::row::Key;
use crate::tree::core::Core;
use crate::tree::store_tree::{CommitMode, StoreTree};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

const NAME_MAX: usize = 255;

fn bytes(name: &OsStr) -> Result<&[u8]> {
    match name.as_bytes() {
        [] => Err(Errno(libc::ENOENT)),
        name if name.len() > NAME_MAX => Err(Errno(libc::ENAMETOOLONG)),
        name => Ok(name),
    }
}

impl StoreTree {
    /// Commits the contents of files so far together with the present names.
    ///
    /// The commit is submitted in the same step as the change of the names, so that the log has both in one record.
    fn commit_or_defer(core: &mut Core, inos: &[Ino]) {
        let changed = |ino: &Ino| core.inodes.get(ino).is_some_and(|i| i.uncommitted.is_some() && i.row.nlink > 0);
        if inos.iter().any(changed) {
            core.commit_or_defer(inos);
        }
    }

    /// Whether names may be committed before the contents of other files.
    fn commits_before_names(&self) -> bool {
        self.mode != CommitMode::Store
    }
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
            tracing::warn!(id = "untorn.tree.removal_waits", errno = e.0, "removed files were not committed early");
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
            tracing::error!(
                id = "untorn.tree.close_not_committed",
                ino,
                "the file was not committed when it was closed"
            );
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
        self.commit_transactions(&[txn], chains, cache)
    }

    fn commit_together(&self, txns: &[Transaction], cache: &dyn KernelCache) -> Result<()> {
        self.commit_transactions(txns, true, cache)
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
            tracing::error!(
                id = "untorn.tree.timer_failed",
                errno = e.0,
                "the timer could not commit; reopen the store if this stays"
            );
        }
    }

    fn write_back_after(&self, after: Duration, cache: &dyn KernelCache) {
        self.write_back_due(after, cache);
    }

    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>> {
        self.value_of_xattr(ino, name)
    }

    fn set_xattr(&self, ino: Ino, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        self.change_xattr(ino, name, value, flags)
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<OsString>> {
        self.names_of_xattrs(ino)
    }

    fn remove_xattr(&self, ino: Ino, name: &OsStr) -> Result<()> {
        self.drop_xattr(ino, name)
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

    fn abandon(&self) {
        self.abandon_store();
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
