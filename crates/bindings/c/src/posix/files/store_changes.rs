//! Changes of a named store that are committed together: files with their contents, and names.
//!
//! Names change on the disk when the commit is made. Until then every call sees the old ones; a new file can be used by
//! the descriptor that its creation returned, which is of a stand-in without a name.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use untorn::{Txn, offline};

use super::changed_names::{ChangedNames, Holder};
use super::managed_files::{Managed, Managing, identify, insert, note_descriptor, release_if_unused};
use super::managed_stores::{ManagedStore, StoreUse, outside};
use super::managing::manage_locked;
use super::name::{Name, recover};
use super::relocation::{Descriptor, Suspended, is_mapped_plainly, writers};
use crate::boundary::error::{Failure, Result};
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::{failure, flags, key_of, refusal, reopen, seek, stat, system};

/// An open file that loses its name.
struct Losing {
    file: Arc<Managed>,
    /// A descriptor of the file without a name. None: nobody needs one.
    nameless: Option<Descriptor>,
    /// The changes have created the file: the descriptor is of its stand-in.
    is_made: bool,
}

/// Changes that are not committed yet.
pub(crate) struct Changes {
    shared: StoreUse,
    txn: Txn,
    files: Vec<Arc<Managed>>,
    names: ChangedNames,
    /// Open files that lose their names.
    losing: Vec<Losing>,
}

impl Changes {
    pub fn begin(store: &Arc<ManagedStore>) -> Result<Changes> {
        let shared = store.begin_use()?;
        let txn = shared.store().begin();
        Ok(Changes { shared, txn, files: Vec::new(), names: ChangedNames::default(), losing: Vec::new() })
    }

    pub fn store(&self) -> &Arc<ManagedStore> {
        self.shared.of()
    }

    /// Whether the commit changes names, so that descriptors may get other files.
    pub fn has_names(&self) -> bool {
        !self.names.is_empty()
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
        if !self.has(file) {
            file.transactions.fetch_add(1, AcqRel);
            self.files.push(file.clone());
        }
        Ok(())
    }

    fn has(&self, file: &Arc<Managed>) -> bool {
        self.files.iter().any(|known| Arc::ptr_eq(known, file))
    }

    /// Whether a file gets this name.
    pub fn gives(&self, path: &Path) -> bool {
        self.names.is_given(path)
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
        // SAFETY: takes numbers.
        unsafe { libc::fchmod(fd.as_raw_fd(), mode & 0o7777 & !untorn_os::umask()) };
        let managed = Arc::new(Managed::new(key, file, Some(self.store().begin_use()?)));
        managed.transactions.fetch_add(1, AcqRel);
        insert(managed.clone(), managing);
        note_descriptor(&managed, fd.as_raw_fd())?;
        self.names.set(path, Holder::Made(managed));
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

    /// Prepares the end of a name. None: no open file has it.
    fn losing(&self, held: &Holder) -> Result<Option<Losing>> {
        match held {
            Holder::Nobody | Holder::Plain(_) => Ok(None),
            Holder::Made(file) => {
                let again = |fd| reopen(fd, libc::O_RDWR | libc::O_CLOEXEC);
                let nameless = file.open_descriptors().pop().map(again).transpose()?;
                let nameless = nameless.map(|fd| Descriptor(fd.into_raw_fd()));
                Ok(Some(Losing { file: file.clone(), nameless, is_made: true }))
            }
            Holder::Open(file, path) => {
                if !self.has(file) && file.transactions.load(Acquire) > 0 {
                    let text = format!("{} is in another transaction: end that one first", path.display());
                    return Err(failure(libc::EBUSY, text));
                }
                let nameless = Some(Descriptor::open(path, libc::O_RDWR)?);
                Ok(Some(Losing { file: file.clone(), nameless, is_made: false }))
            }
        }
    }

    pub fn unlink(&mut self, name: &Name) -> Result<()> {
        name.check_own()?;
        self.take_in(name)?;
        let losing = self.losing(&self.names.holder(name))?;
        self.txn.unlink(self.relative(&name.path)?)?;
        self.names.set(&name.path, Holder::Nobody);
        self.losing.extend(losing);
        Ok(())
    }

    /// Adds a rename. The contents of the file are among the changes, so that no crash shows the name without them.
    pub fn rename(&mut self, from: &Name, to: &Name, flags: libc::c_uint) -> Result<()> {
        from.check_own()?;
        to.check_own()?;
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        if flags & libc::RENAME_NOREPLACE != 0 && self.names.is_taken(to) {
            return Err(failure(libc::EEXIST, format!("{} exists", to.path.display())));
        }
        let (old, new) = (self.relative(&from.path)?, self.relative(&to.path)?);
        for name in if exchange { vec![from, to] } else { vec![from] } {
            if !self.names.is_taken(name) {
                return Err(failure(libc::ENOENT, format!("there is no {}", name.path.display())));
            }
        }
        let as_on_disk = !self.names.is_changed(&from.path) && !self.names.is_changed(&to.path);
        if from.path == to.path || as_on_disk && from.key().is_some() && from.key() == to.key() {
            return Ok(());
        }
        self.take_in(from)?;
        self.take_in(to)?;
        let (moved, other) = (self.names.holder(from), self.names.holder(to));
        self.prepare(from, &moved, &to.path)?;
        if exchange {
            self.prepare(to, &other, &from.path)?;
            let mut between = new.as_os_str().to_owned();
            between.push(format!(".exchanged-{}", std::process::id()));
            let between = Path::new(&between);
            self.txn.rename(old, between)?;
            self.txn.rename(new, old)?;
            self.txn.rename(between, new)?;
            self.names.set(&from.path, other);
        } else {
            let losing = self.losing(&other)?;
            self.txn.rename(old, new)?;
            self.names.set(&from.path, Holder::Nobody);
            self.losing.extend(losing);
        }
        self.names.set(&to.path, moved);
        Ok(())
    }

    /// Makes the contents of a file durable before, or with, its new name.
    fn prepare(&mut self, name: &Name, held: &Holder, new: &Path) -> Result<()> {
        let key = match held {
            Holder::Nobody | Holder::Made(_) => return Ok(()),
            Holder::Open(file, _) => return self.add(file),
            Holder::Plain(key) => *key,
        };
        if patterns::match_path(new) && is_mapped_plainly(key) {
            let path = name.path.display();
            let text = format!(
                "{path} would get a managed name while it is mapped, but not managed: name its present path, too"
            );
            return Err(refusal(libc::EBUSY, text));
        }
        // A file that these changes have renamed before was flushed then.
        if self.names.is_changed(&name.path) {
            Ok(())
        } else {
            Descriptor::open(&name.path, libc::O_RDONLY)?.flush(&name.path)
        }
    }

    /// Commits all changes: after any crash all of them are there, or none.
    pub fn commit(self, managing: &Managing) -> Result<()> {
        let Changes { shared, txn, files, names, losing } = self;
        let mut done = Ok(());
        let mut suspended = Vec::new();
        for one in &losing {
            let begun = one.nameless.as_ref().map(|_| Suspended::begin_in_store(&one.file, managing)).transpose();
            suspended.push(begun.unwrap_or_else(|e| {
                done = Err(e);
                None
            }));
        }
        let done = done.and_then(|()| Ok(txn.commit()?));
        let is_done = done.is_ok();
        let mut after = done;
        for (begun, one) in suspended.into_iter().zip(losing) {
            let ended = match (begun, one.nameless) {
                (Some(begun), Some(nameless)) if is_done => begun.become_nameless(nameless.0),
                (begun, _) => {
                    begun.into_iter().for_each(Suspended::resume_in_store);
                    Ok(())
                }
            };
            after = after.and(ended);
            if one.is_made {
                after = after.and(release(&one.file, managing));
            }
        }
        for (path, holder) in names.into_given() {
            let ended = match holder {
                Holder::Made(file) => {
                    let appeared = if is_done { appear(&file, &path, managing) } else { Ok(()) };
                    appeared.and(release(&file, managing))
                }
                // It gets the name of a managed file.
                Holder::Plain(key) if is_done && patterns::match_path(&path) => {
                    writers(key).pop().map_or(Ok(()), |fd| manage_locked(fd, managing).map(drop))
                }
                _ => Ok(()),
            };
            after = after.and(ended);
        }
        after.and(let_go(files, shared, managing))
    }

    /// Commits changes that change no names, together with the commits of other threads.
    pub fn commit_contents(self) -> (Result<()>, Left) {
        let Changes { shared, txn, files, .. } = self;
        (txn.commit().map_err(Failure::from), Left { files, shared })
    }

    /// Discards all changes.
    pub fn abort(self, managing: &Managing) -> Result<()> {
        let Changes { shared, txn, files, names, losing } = self;
        let mut done = txn.abort().map_err(Failure::from);
        let made = names.into_given().filter_map(|(_, holder)| match holder {
            Holder::Made(file) => Some(file),
            _ => None,
        });
        for file in made.chain(losing.into_iter().filter(|one| one.is_made).map(|one| one.file)) {
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
