//! Changes of a named store that are committed together: files with their contents, and names.
//!
//! Names change on the disk when the commit is made. Until then every call sees the old ones; a new file can be used by
//! the descriptor that its creation returned, which is of a stand-in without a name.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use untorn::{Txn, offline};

use super::managed_files::{Managed, Managing, identify, insert, note_descriptor, release_if_unused};
use super::managed_stores::{ManagedStore, StoreUse, outside};
use super::managing::manage_locked;
use super::name::{Name, recover};
use super::relocation::{Descriptor, Suspended, is_mapped_plainly, writers};
use crate::boundary::error::{Failure, Result};
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::{Key, failure, flags, key_of, refusal, reopen, seek, stat, system};

/// Changes that are not committed yet.
pub(crate) struct Changes {
    shared: StoreUse,
    txn: Txn,
    files: Vec<Arc<Managed>>,
    /// New files, and the names that they get.
    made: Vec<(Arc<Managed>, PathBuf)>,
    /// Open files that lose their names.
    losing: Vec<(Arc<Managed>, Descriptor)>,
    /// Files that are not managed yet, and get the name of a managed one.
    named: Vec<Key>,
}

impl Changes {
    pub fn begin(store: &Arc<ManagedStore>) -> Result<Changes> {
        let shared = store.begin_use()?;
        let txn = shared.store().begin();
        Ok(Changes { shared, txn, files: Vec::new(), made: Vec::new(), losing: Vec::new(), named: Vec::new() })
    }

    pub fn store(&self) -> &Arc<ManagedStore> {
        self.shared.of()
    }

    /// Whether the commit gives other files to descriptors, or other descriptors to files.
    pub fn moves_descriptors(&self) -> bool {
        !(self.made.is_empty() && self.losing.is_empty() && self.named.is_empty())
    }

    /// Adds a file: all its uncommitted changes, past and future, are among these changes.
    pub fn add(&mut self, file: &Arc<Managed>) -> Result<()> {
        if file.shared_store().is_none_or(|store| !Arc::ptr_eq(&store, self.store())) {
            let path = file.with(|file| Ok(file.path()))?;
            let text = format!(
                "{} is not a file of the store {}: files that are committed together live in one store, which is named \
                 (--store, untorn_manage_store()) before they are opened",
                path.display(),
                self.store().dir().display()
            );
            return Err(failure(libc::EINVAL, text));
        }
        file.with(|file| Ok(self.txn.add(file)?))?;
        if !self.files.iter().any(|known| Arc::ptr_eq(known, file)) {
            file.transactions.fetch_add(1, AcqRel);
            self.files.push(file.clone());
        }
        Ok(())
    }

    /// Whether a file of this name is created.
    pub fn creates(&self, path: &Path) -> bool {
        self.made.iter().any(|(_, made)| made == path)
    }

    fn relative<'p>(&self, path: &'p Path) -> Result<&'p Path> {
        self.store().name(path).ok_or_else(|| refusal(libc::EXDEV, outside(path, self.store())))
    }

    /// Adds the creation of a file. Returns a descriptor of it.
    pub fn create(&mut self, path: &Path, flags: c_int, mode: libc::mode_t, managing: &Managing) -> Result<c_int> {
        let name = self.relative(path)?;
        let dir = path.parent().unwrap_or(Path::new("/"));
        let stand_in = Descriptor::open(dir, libc::O_TMPFILE | libc::O_RDWR)?;
        let flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW);
        let fd = reopen(stand_in.0, flags)?;
        let key = stat(fd.as_raw_fd()).as_ref().map(key_of).ok_or_else(|| system("look at a new file"))?;
        let file = self.txn.create(name, mode & 0o7777)?;
        let managed = Arc::new(Managed::new(key, file, Some(self.store().begin_use()?)));
        managed.transactions.fetch_add(1, AcqRel);
        insert(managed.clone(), managing);
        note_descriptor(&managed, fd.as_raw_fd())?;
        self.made.push((managed, path.to_owned()));
        Ok(fd.into_raw_fd())
    }

    /// Takes the private stores of files that nobody has open into this store.
    fn take_in(&self, name: &Name) -> Result<()> {
        match (&name.file, name.has_store) {
            (None, true) => {
                recover(&name.path)?;
                offline::eject(&name.path, &|_, _| ())?;
                Ok(())
            }
            (Some(file), _) if file.shared_store().is_none() => {
                let path = name.path.display();
                let store = self.store().dir().display();
                Err(refusal(
                    libc::EBUSY,
                    format!("{path} was opened before its store {store} was named: close it first"),
                ))
            }
            _ => Ok(()),
        }
    }

    /// An open file that loses its name.
    fn lose(&mut self, name: &Name) -> Result<()> {
        if let Some(file) = &name.file {
            self.losing.push((file.clone(), Descriptor::open(&name.path, libc::O_RDWR)?));
        }
        Ok(())
    }

    pub fn unlink(&mut self, name: &Name) -> Result<()> {
        name.check_own()?;
        self.take_in(name)?;
        self.txn.unlink(self.relative(&name.path)?)?;
        self.made.retain(|(_, path)| *path != name.path);
        self.lose(name)
    }

    /// Adds a rename. The contents of the file are among the changes, so that no crash shows the name without them.
    pub fn rename(&mut self, from: &Name, to: &Name, flags: libc::c_uint) -> Result<()> {
        from.check_own()?;
        to.check_own()?;
        if flags & libc::RENAME_NOREPLACE != 0 && (!to.is_missing() || self.creates(&to.path)) {
            return Err(failure(libc::EEXIST, format!("{} exists", to.path.display())));
        }
        let (old, new) = (self.relative(&from.path)?, self.relative(&to.path)?);
        if from.key().is_some() && from.key() == to.key() {
            return Ok(());
        }
        self.take_in(from)?;
        self.take_in(to)?;
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        for name in if exchange { vec![from, to] } else { vec![from] } {
            self.prepare(name, patterns::match_path(if std::ptr::eq(name, from) { &to.path } else { &from.path }))?;
        }
        if exchange {
            let mut between = new.as_os_str().to_owned();
            between.push(format!(".exchanged-{}", std::process::id()));
            let between = Path::new(&between);
            self.txn.rename(old, between)?;
            self.txn.rename(new, old)?;
            self.txn.rename(between, new)?;
            return Ok(());
        }
        self.txn.rename(old, new)?;
        self.made.retain(|(_, path)| *path != to.path);
        self.made.iter_mut().filter(|(_, path)| *path == from.path).for_each(|(_, path)| path.clone_from(&to.path));
        self.lose(to)
    }

    /// Makes the contents of a file durable before, or with, its new name.
    fn prepare(&mut self, name: &Name, becomes_named: bool) -> Result<()> {
        if let Some(file) = &name.file {
            return self.add(file);
        }
        let Some(key) = name.key() else { return Ok(()) };
        if becomes_named && is_mapped_plainly(key) {
            let path = name.path.display();
            let text = format!(
                "{path} would get a managed name while it is mapped, but not managed: name its present path, too"
            );
            return Err(refusal(libc::EBUSY, text));
        }
        Descriptor::open(&name.path, libc::O_RDONLY)?.flush(&name.path)?;
        self.named.extend(becomes_named.then_some(key));
        Ok(())
    }

    /// Commits all changes: after any crash all of them are there, or none.
    pub fn commit(self, managing: &Managing) -> Result<()> {
        let Changes { shared, txn, files, made, losing, named } = self;
        let mut suspended = Vec::new();
        let mut done = Ok(());
        for (file, nameless) in losing {
            match Suspended::begin_in_store(&file, managing) {
                Ok(one) => suspended.push((one, nameless)),
                Err(e) => done = Err(e),
            }
        }
        let done = done.and_then(|()| Ok(txn.commit()?));
        let is_done = done.is_ok();
        let mut after = done;
        for (one, nameless) in suspended {
            let ended = if is_done {
                one.become_nameless(nameless.0)
            } else {
                one.resume_in_store();
                Ok(())
            };
            after = after.and(ended);
        }
        for (file, path) in made {
            if is_done {
                after = after.and(appear(&file, &path, managing));
            }
            after = after.and(release(&file, managing));
        }
        for fd in named.into_iter().filter(|_| is_done).filter_map(|key| writers(key).pop()) {
            after = after.and(manage_locked(fd, managing).map(drop));
        }
        after.and(let_go(files, shared, managing))
    }

    /// Commits changes that move no descriptors, together with the commits of other threads.
    pub fn commit_contents(self) -> (Result<()>, Left) {
        let Changes { shared, txn, files, .. } = self;
        (txn.commit().map_err(Failure::from), Left { files, shared })
    }

    /// Discards all changes.
    pub fn abort(self, managing: &Managing) -> Result<()> {
        let Changes { shared, txn, files, made, .. } = self;
        let mut done = txn.abort().map_err(Failure::from);
        for (file, _) in made {
            done = done.and(release(&file, managing));
        }
        done.and(let_go(files, shared, managing))
    }
}

/// The files of changes that have ended.
pub(crate) struct Left {
    files: Vec<Arc<Managed>>,
    shared: StoreUse,
}

impl Left {
    pub fn release(self, managing: &Managing) -> Result<()> {
        let_go(self.files, self.shared, managing)
    }
}

fn let_go(files: Vec<Arc<Managed>>, shared: StoreUse, managing: &Managing) -> Result<()> {
    let mut done = Ok(());
    for file in files {
        done = done.and(release(&file, managing));
    }
    // The files that stay open keep the store open.
    drop(shared);
    done
}

fn release(file: &Arc<Managed>, managing: &Managing) -> Result<()> {
    file.transactions.fetch_sub(1, AcqRel);
    release_if_unused(file, managing)
}

/// Puts the file that a commit has created in the place of its stand-in.
fn appear(file: &Arc<Managed>, path: &Path, managing: &Managing) -> Result<()> {
    let real = Descriptor::open(path, libc::O_RDONLY)?;
    let found = stat(real.0).ok_or_else(|| system("look at a new file"))?;
    let mut fresh = Vec::new();
    for fd in file.open_descriptors() {
        // If its mode forbids that, the stand-in stays, and the contents are the same.
        let Ok(new) =
            flags(fd).and_then(|flags| reopen(real.0, flags & (libc::O_ACCMODE | libc::O_APPEND | libc::O_CLOEXEC)))
        else {
            return Ok(());
        };
        let at = seek(fd, 0, libc::SEEK_CUR)?;
        seek(new.as_raw_fd(), at, libc::SEEK_SET)?;
        fresh.push((fd, new));
    }
    identify(file, found.st_ino, managing, || {
        for (fd, new) in fresh {
            // SAFETY: takes numbers; the descriptor shows the same file afterwards.
            unsafe { libc::dup3(new.as_raw_fd(), fd, libc::O_CLOEXEC) };
        }
    });
    Ok(())
}
