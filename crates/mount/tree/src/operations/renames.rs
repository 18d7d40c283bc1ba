//! The parts of a rename: the files that it commits, its conditions, and the change of the names.

use crate::interface::file_tree::*;
use crate::tree::core::Core;
use crate::tree::store_tree::StoreTree;

impl StoreTree {
    fn is_in_or_below(core: &Core, mut dir: Ino, above: Ino) -> Result<bool> {
        while dir != ROOT {
            if dir == above {
                return Ok(true);
            }
            dir = core.inode(dir)?.parent;
        }
        Ok(dir == above)
    }

    /// The files that a rename has to write back and to commit.
    pub(super) fn committed_by_rename(
        &self,
        core: &Core,
        from: Ino,
        to: Option<Ino>,
        flags: RenameFlags,
    ) -> Result<Vec<Ino>> {
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

    pub(super) fn check_rename(
        core: &Core,
        from: (Ino, Ino),
        to: (Ino, Option<Ino>),
        flags: RenameFlags,
    ) -> Result<()> {
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

    pub(super) fn apply_rename(
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
