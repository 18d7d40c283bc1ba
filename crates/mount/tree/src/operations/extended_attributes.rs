//! Extended attributes of files, access lists among them.

use super::NAME_MAX;
use crate::interface::access_list::{self, AccessList};
use crate::interface::file_tree::*;
use crate::resume::continuation::happened;
use crate::table::row::Key;
use crate::tree::store_tree::StoreTree;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

const VALUE_MAX: usize = 65536;

impl StoreTree {
    pub(super) fn value_of_xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>> {
        let core = self.core()?;
        let value = core.inode(ino)?.xattrs.get(name.as_bytes());
        value.map(|value| value.to_vec()).ok_or(Errno(libc::ENODATA))
    }

    pub(super) fn change_xattr(&self, ino: Ino, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
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

    pub(super) fn names_of_xattrs(&self, ino: Ino) -> Result<Vec<OsString>> {
        let core = self.core()?;
        Ok(core.inode(ino)?.xattrs.keys().map(|name| OsString::from_vec(name.to_vec())).collect())
    }

    pub(super) fn drop_xattr(&self, ino: Ino, name: &OsStr) -> Result<()> {
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
}
