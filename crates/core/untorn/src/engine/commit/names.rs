//! Names as a transaction sees them: those on the disk, with the transaction's own changes over them.

use crate::engine::Engine;
use crate::engine::files::file_state::{Life, SharedFile};
use crate::engine::files::name_op::NameOp;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::commits::record::Op;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Access, Kind};

#[derive(Clone)]
enum Entry {
    File(Arc<SharedFile>),
    Directory,
    Nothing,
}

/// The effect of a change.
enum Change {
    Create(Arc<SharedFile>, u32),
    Rename(Arc<SharedFile>, PathBuf),
    Unlink(Arc<SharedFile>),
    Mode(Arc<SharedFile>, u32),
    Other(Op),
}

/// Checks changes in order, each against the names that the earlier ones leave.
pub(crate) struct Names<'a> {
    engine: &'a Engine,
    changed: BTreeMap<PathBuf, Entry>,
    planned: Vec<Change>,
    proven: Proven,
}

/// Evidence that the changes can be applied.
#[derive(Default)]
struct Proven {
    /// Directories that are created, or whose mode is set: they belong to this user, who has all permissions in them
    /// meanwhile.
    own_dirs: BTreeSet<PathBuf>,
    /// Files and directories to be made.
    new_entries: u64,
}

/// The permission bit of a directory that passes its group on to new entries.
const SETGID: u32 = 0o2000;

/// Limit for the space that a new name needs on the file system.
const ENTRY_BYTES: u64 = 4096;

impl<'a> Names<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Names<'a> {
        Names { engine, changed: BTreeMap::new(), planned: Vec::new(), proven: Proven::default() }
    }

    /// Continues a transaction with its earlier changes.
    pub(crate) fn resume(engine: &'a Engine, earlier: NameChanges) -> Names<'a> {
        Names { engine, changed: earlier.changed, planned: earlier.planned, proven: earlier.proven }
    }

    pub(crate) fn changes(self) -> NameChanges {
        NameChanges { changed: self.changed, planned: self.planned, proven: self.proven }
    }

    fn entry(&self, path: &Path) -> Result<Entry> {
        if let Some(entry) = self.changed.get(path) {
            return Ok(entry.clone());
        }
        if path.as_os_str().is_empty() {
            return Ok(Entry::Directory);
        }
        match self.engine.storage.stat(path) {
            Ok(meta) if meta.kind == Kind::Directory => Ok(Entry::Directory),
            Ok(_) => self.engine.load(path, 0).map(Entry::File),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Entry::Nothing),
            Err(e) => Err(Error::io("look at", path, e)),
        }
    }

    /// Checks that a new name can be created.
    fn prove_add(&self, path: &Path) -> Result<()> {
        self.engine.check_quarantined_dirs(path)?;
        let refused = |e| Error::io("create", path, e);
        let space = self.engine.storage.space().map_err(refused)?;
        if path.iter().any(|part| part.len() as u64 > space.name_bytes_max) {
            return Err(refused(Errno::NAMETOOLONG.into()));
        }
        let parent = path.parent().unwrap_or(Path::new(""));
        if self.proven.own_dirs.contains(parent) {
            return Ok(());
        }
        self.engine.storage.check_access(parent, Access::Add).map_err(refused)
    }

    /// Checks that there is space for one more file or directory.
    fn prove_room(&mut self, path: &Path) -> Result<()> {
        let space = self.engine.storage.space().context("look at the free space for", path)?;
        let needed = self.proven.new_entries + 1;
        if space.available_inodes.is_some_and(|free| free < needed) || space.available_bytes < needed * ENTRY_BYTES {
            let detail = format!("there is no room for {}", path.display());
            return Err(Error::NoSpace { detail });
        }
        self.proven.new_entries = needed;
        Ok(())
    }

    /// Checks that a name can be removed. A name that this transaction created was checked then.
    fn prove_remove(&self, path: &Path) -> Result<()> {
        if self.changed.contains_key(path) {
            return Ok(());
        }
        match self.engine.storage.check_access(path, Access::Remove) {
            Err(e) if e.kind() == ErrorKind::PermissionDenied && self.is_in_own_dir(path) => Ok(()),
            done => done.context("remove or rename", path),
        }
    }

    fn is_in_own_dir(&self, path: &Path) -> bool {
        path.parent().is_some_and(|parent| self.proven.own_dirs.contains(parent))
    }

    /// Checks that an existing file or directory can get this mode. A mode that forbids reading or searching to the
    /// owner would make recovery impossible.
    fn prove_mode(&self, path: &Path, mode: u32) -> Result<()> {
        self.engine.storage.check_access(path, Access::Mode(mode)).context("change the mode of", path)
    }

    /// The directory whose group a new entry inherits, if it inherits one.
    fn gives_group(&self, path: &Path) -> Result<Option<PathBuf>> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let made = self.planned.iter().rev().find_map(|change| match change {
            Change::Other(Op::Mkdir { path, mode }) if path == parent => Some(*mode),
            _ => None,
        });
        match made {
            Some(mode) if mode & SETGID != 0 => self.gives_group(parent),
            Some(_) => Ok(None),
            None => {
                let meta = self.engine.storage.stat(parent).context("look at", parent)?;
                Ok((meta.mode & SETGID != 0).then(|| parent.to_owned()))
            }
        }
    }

    /// Checks that a new entry can have these permission bits: if its group is not one of the user's, the kernel would
    /// silently drop the setgid bit.
    fn prove_new_mode(&self, path: &Path, mode: u32) -> Result<()> {
        if mode & SETGID == 0 {
            return Ok(());
        }
        let allowed = match self.gives_group(path)? {
            Some(dir) => self.engine.storage.check_access(&dir, Access::NewMode(mode)),
            None => Ok(()),
        };
        allowed.context("give the setgid bit to", path)
    }

    /// The permission bits of a new directory, which inherits the setgid bit of its parent if this user may set it.
    fn inherited(&self, path: &Path, mode: u32) -> Result<u32> {
        let inherits = match self.gives_group(path)? {
            Some(_) => self.prove_new_mode(path, mode | SETGID).is_ok(),
            None => false,
        };
        Ok(if inherits { mode | SETGID } else { mode })
    }

    fn check_mode(&self, path: &Path, mode: u32, needed: u32) -> Result<()> {
        if mode & needed == needed || self.engine.storage.effective_user() == 0 {
            return Ok(());
        }
        let path = path.display();
        Err(Error::invalid(format!(
            "{path}: with mode {mode:04o} the owner cannot read it, so recovery after a crash would fail; in a store, a file needs at least mode 0400, and a directory 0500"
        )))
    }

    fn file(&self, path: &Path) -> Result<Arc<SharedFile>> {
        match self.entry(path)? {
            Entry::File(file) => Ok(file),
            Entry::Directory => Err(Error::invalid(format!("{} is a directory, not a file", path.display()))),
            Entry::Nothing => Err(Error::io("find", path, ErrorKind::NotFound.into())),
        }
    }

    /// Checks that a new entry may take this name.
    fn check_free(&self, path: &Path) -> Result<()> {
        self.engine.check_name(path)?;
        self.engine.check_quarantine(path)?;
        self.check_parent(path)?;
        match self.entry(path)? {
            Entry::Nothing => self.prove_add(path),
            _ => Err(Error::io("create", path, ErrorKind::AlreadyExists.into())),
        }
    }

    fn check_parent(&self, path: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        match self.entry(parent)? {
            Entry::Directory => Ok(()),
            Entry::Nothing => Err(Error::io("find the directory", parent, ErrorKind::NotFound.into())),
            Entry::File(_) => Err(Error::invalid(format!("{} is not a directory", parent.display()))),
        }
    }

    fn check_empty(&self, path: &Path) -> Result<()> {
        let not_empty = || Err(Error::io("remove the directory", path, ErrorKind::DirectoryNotEmpty.into()));
        let inside =
            |(name, entry): (&PathBuf, &Entry)| name.parent() == Some(path) && !matches!(entry, Entry::Nothing);
        let below = self.changed.range::<Path, _>((Bound::Excluded(path), Bound::Unbounded));
        if below.take_while(|(name, _)| name.starts_with(path)).any(inside) {
            return not_empty();
        }
        match self.engine.storage.list(path) {
            // A file that these changes move or remove is still on the disk under this name.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
            Err(e) => Err(Error::io("list", path, e)),
            Ok(names) if names.iter().all(|n| self.changed.contains_key(&path.join(n))) => Ok(()),
            Ok(_) => not_empty(),
        }
    }

    /// Checks and adds one change.
    pub(crate) fn add(&mut self, op: &NameOp) -> Result<()> {
        match op {
            NameOp::Create { file, path, mode } => {
                self.check_mode(path, *mode, 0o400)?;
                self.check_free(path)?;
                self.prove_new_mode(path, *mode)?;
                self.prove_room(path)?;
                self.changed.insert(path.clone(), Entry::File(file.clone()));
                self.planned.push(Change::Create(file.clone(), *mode));
            }
            NameOp::Rename { from, to } => {
                self.engine.check_name(to)?;
                self.engine.check_quarantine(to)?;
                let file = self.file(from)?;
                if from == to {
                    return Ok(());
                }
                self.check_parent(to)?;
                self.prove_remove(from)?;
                match self.entry(to)? {
                    Entry::File(victim) => {
                        self.prove_remove(to)?;
                        self.planned.push(Change::Unlink(victim));
                    }
                    Entry::Directory => {
                        return Err(Error::invalid(format!(
                            "{} is a directory; a file cannot replace it",
                            to.display()
                        )));
                    }
                    Entry::Nothing => self.prove_add(to)?,
                }
                self.changed.insert(from.clone(), Entry::Nothing);
                self.changed.insert(to.clone(), Entry::File(file.clone()));
                self.planned.push(Change::Rename(file, to.clone()));
            }
            NameOp::Unlink { path } => {
                let file = self.file(path)?;
                self.prove_remove(path)?;
                self.changed.insert(path.clone(), Entry::Nothing);
                self.planned.push(Change::Unlink(file));
            }
            NameOp::Mkdir { path, mode } => {
                self.check_mode(path, *mode, 0o500)?;
                self.check_free(path)?;
                self.prove_new_mode(path, *mode)?;
                let mode = self.inherited(path, *mode)?;
                if matches!(self.engine.storage.stat(path), Ok(meta) if meta.kind == Kind::Directory) {
                    // If the transaction removes the directory and creates it again, the existing one only gets another
                    // mode.
                    self.prove_mode(path, mode)?;
                }
                self.prove_room(path)?;
                self.proven.own_dirs.insert(path.clone());
                self.changed.insert(path.clone(), Entry::Directory);
                self.planned.push(Change::Other(Op::Mkdir { path: path.clone(), mode }));
            }
            NameOp::Rmdir { path } => {
                self.engine.check_name(path)?;
                self.engine.check_quarantine(path)?;
                match self.entry(path)? {
                    Entry::Directory => {
                        self.check_empty(path)?;
                        self.prove_remove(path)?;
                    }
                    Entry::File(_) => return Err(Error::invalid(format!("{} is not a directory", path.display()))),
                    Entry::Nothing => return Err(Error::io("find", path, ErrorKind::NotFound.into())),
                }
                self.changed.insert(path.clone(), Entry::Nothing);
                self.planned.push(Change::Other(Op::Rmdir { path: path.clone() }));
            }
            NameOp::Chmod { path, mode } => {
                self.engine.check_name(path)?;
                self.engine.check_quarantine(path)?;
                match self.entry(path)? {
                    Entry::File(file) => {
                        self.check_mode(path, *mode, 0o400)?;
                        let named = {
                            let state = file.read();
                            (state.life == Life::Named).then(|| state.path().to_owned())
                        };
                        match named {
                            Some(named) => self.prove_mode(&named, *mode)?,
                            None => self.prove_new_mode(path, *mode)?,
                        }
                        self.planned.push(Change::Mode(file, *mode));
                    }
                    Entry::Directory => {
                        self.check_mode(path, *mode, 0o500)?;
                        if !self.proven.own_dirs.contains(path) {
                            self.prove_mode(path, *mode)?;
                            self.proven.own_dirs.insert(path.clone());
                        } else if self.engine.storage.stat(path).is_ok() {
                            self.prove_mode(path, *mode)?;
                        } else {
                            self.prove_new_mode(path, *mode)?;
                        }
                        self.planned.push(Change::Other(Op::DirMode { path: path.clone(), mode: *mode }));
                    }
                    Entry::Nothing => return Err(Error::io("find", path, ErrorKind::NotFound.into())),
                }
            }
        }
        Ok(())
    }

    /// The changes as operations of a record; `refer` gives a file's index in it.
    pub(crate) fn operations(self, mut refer: impl FnMut(&Arc<SharedFile>) -> u32) -> Vec<Op> {
        let operation = |change| match change {
            Change::Create(file, mode) => Op::Create { file: refer(&file), mode },
            Change::Rename(file, to) => Op::Rename { file: refer(&file), to },
            Change::Unlink(file) => Op::Unlink { file: refer(&file) },
            Change::Mode(file, mode) => Op::Mode { file: refer(&file), mode },
            Change::Other(op) => op,
        };
        self.planned.into_iter().map(operation).collect()
    }
}

/// The changes of a transaction between two of its calls.
#[derive(Default)]
pub(crate) struct NameChanges {
    changed: BTreeMap<PathBuf, Entry>,
    planned: Vec<Change>,
    proven: Proven,
}
