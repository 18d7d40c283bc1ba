//! Checks who may make, open and read a store directory, so that no user can plant a store for another.

use crate::directories::store_dir::StoreDir;
use crate::error::{Context, Error, Result};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use untorn_os::{Kind, Storage};

impl StoreDir {
    /// Checks that the directory can be trusted: a real directory of the effective user or root, to which others have
    /// at most read access. Returns its permission bits, or `None` if it does not exist.
    pub fn check_trust(&self, storage: &dyn Storage) -> Result<Option<u32>> {
        let meta = match storage.stat(&self.dir) {
            Ok(meta) => meta,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("stat", &self.dir, e)),
        };
        let untrusted = |detail: String| Err(Error::Untrusted { path: self.dir.clone(), detail });
        let user = storage.effective_user();
        if meta.kind != Kind::Directory {
            return untrusted("it is not a directory; somebody put something else in its place. Remove it".into());
        }
        if meta.uid != user && meta.uid != 0 {
            return untrusted(format!(
                "it belongs to user {}, and this process runs as user {user}; run as user {}, or remove it if it is not wanted",
                meta.uid, meta.uid
            ));
        }
        if !may_be_mode(meta.mode) {
            return untrusted(format!(
                "its mode {:04o} gives other users more than read access; if you know why, `chmod 700` it and open the \
                 store again, or set who may read it with `untorn readers`",
                meta.mode
            ));
        }
        Ok(Some(meta.mode))
    }

    /// Checks that this user may read the store without writing: its owner and root may, and users with permission from
    /// the owner. The store must belong to the owner of the data, so that nobody can plant a store in another user's
    /// directory.
    pub fn check_may_read(&self, storage: &dyn Storage) -> Result<()> {
        let e = match self.check_trust(storage) {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => return Err(Error::io("find a store at", &self.dir, ErrorKind::NotFound.into())),
            Err(e @ Error::Untrusted { .. }) => e,
            Err(e) => return Err(e),
        };
        let meta = storage.stat(&self.dir).context("stat", &self.dir)?;
        if meta.kind != Kind::Directory || !may_be_mode(meta.mode) {
            return Err(e);
        }
        let user = storage.effective_user();
        let data = self.standalone.as_deref().unwrap_or(Path::new(""));
        let is_of_data = || storage.stat(data).is_ok_and(|data| data.uid == meta.uid);
        match (user == 0 || meta.mode & 0o055 != 0) && is_of_data() {
            true => Ok(()),
            false if user != 0 && meta.mode & 0o055 == 0 => Err(Error::Untrusted {
                path: self.dir.clone(),
                detail: format!(
                    "it belongs to user {}, who lets nobody else read it, and this process runs as user {user}; \
                     `untorn readers` lets others in",
                    meta.uid
                ),
            }),
            false => Err(e),
        }
    }

    /// Checks that this user owns the data; nobody else may make a store for it.
    pub(super) fn check_may_create(&self, storage: &dyn Storage) -> Result<()> {
        let user = storage.effective_user();
        let (data, owner) = match &self.standalone {
            Some(file) => match storage.stat(file) {
                Ok(meta) => (file.clone(), meta.uid),
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
                Err(e) => return Err(Error::io("stat", file, e)),
            },
            None => (PathBuf::from("."), storage.stat(Path::new("")).context("stat", ".")?.uid),
        };
        if owner != user {
            return Err(Error::Untrusted {
                path: data,
                detail: format!(
                    "it belongs to user {owner}, and this process runs as user {user}; only the owner makes a store (run as user {owner}, with `setpriv` or `sudo -u`)"
                ),
            });
        }
        Ok(())
    }
}

/// Whether a store directory may have these permission bits: others have no access, or read access.
fn may_be_mode(mode: u32) -> bool {
    [0, 0o050, 0o055].contains(&(mode & 0o077))
}
