//! Names of files, and the stores behind them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::managed_files::{Managed, find_by_key};
use super::managed_stores::{ManagedStore, has_store, store_dir, store_of};
use super::mount_files::{self, MountFile};
use crate::boundary::error::{Failure, Result};
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::{Key, failure, is_regular, key_of, lstat, refusal};
use crate::posix::state::report::tell;

/// A name, and the file and store behind it.
pub(crate) struct Name {
    /// The whole path, without symbolic links on the way.
    pub path: PathBuf,
    pub stat: Option<libc::stat>,
    /// The managed file of this name.
    pub file: Option<Arc<Managed>>,
    pub has_store: bool,
    /// The named store of the file, or of a file that would get this name.
    pub shared: Option<Arc<ManagedStore>>,
}

impl Name {
    pub fn of(path: &Path) -> Result<Name> {
        let missing = |e: std::io::Error| failure(e.raw_os_error().unwrap_or(libc::ENOENT), e.to_string());
        let name = path.file_name().ok_or_else(|| failure(libc::EINVAL, "a path without a name"))?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let path = std::fs::canonicalize(dir).map_err(missing)?.join(name);
        let stat = lstat(&path);
        let file = stat.as_ref().and_then(find_by_key);
        let has_store = has_store(&path);
        let may_be_file = stat.as_ref().is_none_or(is_regular);
        let shared = match &file {
            Some(file) => file.shared_store(),
            None => store_of(&path).filter(|_| may_be_file),
        };
        Ok(Name { path, stat, file, has_store, shared })
    }

    /// Whether Untorn has neither a managed file nor a store of this name.
    pub fn is_ordinary(&self) -> bool {
        self.file.is_none()
            && !self.has_store
            && kept(self).is_none()
            && !(self.is_regular_or_missing() && patterns::match_path(&self.path))
    }

    pub fn is_missing(&self) -> bool {
        self.stat.is_none()
    }

    pub fn is_directory(&self) -> bool {
        self.stat.as_ref().is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFDIR)
    }

    pub fn is_regular_or_missing(&self) -> bool {
        self.stat.as_ref().is_none_or(is_regular)
    }

    pub fn key(&self) -> Option<Key> {
        self.stat.as_ref().filter(|stat| is_regular(stat)).map(key_of)
    }

    pub fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Refuses a file that a parent process manages.
    pub fn check_own(&self) -> Result<()> {
        match &self.file {
            Some(file) if file.is_parents() => Err(Failure::forked()),
            _ => Ok(()),
        }
    }

    /// Recovers a file that this process does not have open, and whose store was not closed.
    pub fn recover(&self) -> Result<()> {
        if self.file.is_none() && self.has_store {
            match self.stat {
                Some(_) => recover(&self.path)?,
                None => set_aside(&self.path)?,
            }
        }
        Ok(())
    }
}

/// Recovers a file whose store was not closed. Refused if its commits cannot be applied: nobody must take its present
/// contents for the committed ones.
pub(crate) fn recover(path: &Path) -> Result<()> {
    let report = untorn::offline::recover(path, &Default::default(), &|_, _| ())?;
    match report.quarantined.first() {
        None => Ok(()),
        Some(waiting) => Err(refusal(libc::ESTALE, waiting.problem())),
    }
}

/// Deals with the store of a file that no longer exists, before another file gets the name. If commits wait in the
/// store, it gets another name, because the file may have been moved.
pub(crate) fn set_aside(path: &Path) -> Result<()> {
    if untorn::__private::remove_unneeded(path)? {
        return Ok(());
    }
    // The journal may have the creation of the file itself.
    untorn::offline::recover(path, &Default::default(), &|_, _| ())?;
    if path.exists() || untorn::__private::remove_unneeded(path)? {
        return Ok(());
    }
    let store = store_dir(path);
    for n in 1.. {
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".removed-{n}.untorn"));
        let aside = PathBuf::from(aside);
        if aside.exists() {
            continue;
        }
        std::fs::rename(&store, &aside)
            .map_err(|e| failure(e.raw_os_error().unwrap_or(libc::EIO), format!("{}: {e}", store.display())))?;
        tell(&format!(
            "{} was removed or moved while commits waited in its journal. The journal is now {}: if you moved the file, \
             rename that directory to <new name>.untorn; if you removed the file, remove the directory",
            path.display(),
            aside.display()
        ));
        break;
    }
    Ok(())
}

/// The file of a name, if it is in a transaction of this process.
pub(super) fn kept(name: &Name) -> Option<Arc<MountFile>> {
    name.stat.as_ref().and_then(mount_files::find_by_key)
}
