//! Makes an inode, with a name or without one, and with the rights that its directory passes on.

use super::bytes;
use crate::interface::access_list::{self, AccessList};
use crate::interface::file_tree::*;
use crate::resume::continuation::happened;
use crate::table::inode::Inode;
use crate::table::row::Key;
use crate::tree::core::new_row;
use crate::tree::store_tree::StoreTree;
use std::collections::BTreeMap;
use std::ffi::OsStr;

impl StoreTree {
    /// Makes an inode in a directory; `change` gives it the rest of its row.
    pub(super) fn make_inode(
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
