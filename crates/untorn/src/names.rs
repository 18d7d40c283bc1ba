//! Names as a transaction sees them: the file system under the transaction's own changes.

use crate::store::Inner;
use crate::view::FileShared;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::record::{Op, Record};
use untorn_journal::{Error, Result};
use untorn_os::Kind;

/// A change of names that a transaction asks for.
#[derive(Clone)]
pub(crate) enum NameOp {
    Create { file: Arc<FileShared>, path: PathBuf, mode: u32 },
    Rename { from: PathBuf, to: PathBuf },
    Unlink { path: PathBuf },
    Mkdir { path: PathBuf, mode: u32 },
    Rmdir { path: PathBuf },
    Mode { path: PathBuf, mode: u32 },
}

impl NameOp {
    /// The names that it is about.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let (path, to) = match self {
            NameOp::Rename { from, to } => (from, Some(to)),
            NameOp::Create { path, .. }
            | NameOp::Unlink { path }
            | NameOp::Mkdir { path, .. }
            | NameOp::Rmdir { path }
            | NameOp::Mode { path, .. } => (path, None),
        };
        std::iter::once(path).chain(to).map(PathBuf::as_path)
    }
}

#[derive(Clone)]
enum Entry {
    File(Arc<FileShared>),
    Directory,
    Nothing,
}

/// What a change comes to.
enum Step {
    Create(Arc<FileShared>, u32),
    Rename(Arc<FileShared>, PathBuf),
    Unlink(Arc<FileShared>),
    Mode(Arc<FileShared>, u32),
    Other(Op),
}

/// Judges changes one after the other, each by what the ones before left.
pub(crate) struct Names<'a> {
    inner: &'a Inner,
    changed: BTreeMap<PathBuf, Entry>,
    steps: Vec<Step>,
}

impl<'a> Names<'a> {
    pub(crate) fn new(inner: &'a Inner) -> Names<'a> {
        Names { inner, changed: BTreeMap::new(), steps: Vec::new() }
    }

    /// Continues a transaction's view where it was left.
    pub(crate) fn resume(inner: &'a Inner, kept: Kept) -> Names<'a> {
        Names { inner, changed: kept.changed, steps: kept.steps }
    }

    pub(crate) fn keep(self) -> Kept {
        Kept { changed: self.changed, steps: self.steps }
    }

    fn look(&self, path: &Path) -> Result<Entry> {
        if let Some(entry) = self.changed.get(path) {
            return Ok(entry.clone());
        }
        if path.as_os_str().is_empty() {
            return Ok(Entry::Directory);
        }
        match self.inner.storage.stat(path) {
            Ok(meta) if meta.kind == Kind::Directory => Ok(Entry::Directory),
            Ok(_) => self.inner.load(path, 0).map(Entry::File),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Entry::Nothing),
            Err(e) => Err(Error::io("look at", path, e)),
        }
    }

    fn file(&self, path: &Path) -> Result<Arc<FileShared>> {
        match self.look(path)? {
            Entry::File(file) => Ok(file),
            Entry::Directory => Err(Error::invalid(format!("{} is a directory, not a file", path.display()))),
            Entry::Nothing => Err(Error::io("find", path, ErrorKind::NotFound.into())),
        }
    }

    /// A name that something new may take.
    fn check_free(&self, path: &Path) -> Result<()> {
        self.inner.check_name(path)?;
        self.inner.check_quarantine(path)?;
        self.check_parent(path)?;
        match self.look(path)? {
            Entry::Nothing => Ok(()),
            _ => Err(Error::io("create", path, ErrorKind::AlreadyExists.into())),
        }
    }

    fn check_parent(&self, path: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        match self.look(parent)? {
            Entry::Directory => Ok(()),
            Entry::Nothing => Err(Error::io("find the directory", parent, ErrorKind::NotFound.into())),
            Entry::File(_) => Err(Error::invalid(format!("{} is not a directory", parent.display()))),
        }
    }

    fn check_empty(&self, path: &Path) -> Result<()> {
        let not_empty = || Err(Error::io("remove the directory", path, ErrorKind::DirectoryNotEmpty.into()));
        let inside =
            |(name, entry): (&PathBuf, &Entry)| name.parent() == Some(path) && !matches!(entry, Entry::Nothing);
        if self.changed.iter().any(inside) {
            return not_empty();
        }
        match self.inner.storage.list(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(Error::io("list", path, e)),
            Ok(names) if names.iter().all(|n| self.changed.contains_key(&path.join(n))) => Ok(()),
            Ok(_) => not_empty(),
        }
    }

    /// Judges and takes in one change.
    pub(crate) fn add(&mut self, op: &NameOp) -> Result<()> {
        match op {
            NameOp::Create { file, path, mode } => {
                self.check_free(path)?;
                self.changed.insert(path.clone(), Entry::File(file.clone()));
                self.steps.push(Step::Create(file.clone(), *mode));
            }
            NameOp::Rename { from, to } => {
                self.inner.check_name(to)?;
                self.inner.check_quarantine(to)?;
                let file = self.file(from)?;
                if from == to {
                    return Ok(());
                }
                self.check_parent(to)?;
                match self.look(to)? {
                    Entry::File(victim) => self.steps.push(Step::Unlink(victim)),
                    Entry::Directory => {
                        return Err(Error::invalid(format!(
                            "{} is a directory; a file cannot replace it",
                            to.display()
                        )));
                    }
                    Entry::Nothing => {}
                }
                self.changed.insert(from.clone(), Entry::Nothing);
                self.changed.insert(to.clone(), Entry::File(file.clone()));
                self.steps.push(Step::Rename(file, to.clone()));
            }
            NameOp::Unlink { path } => {
                let file = self.file(path)?;
                self.changed.insert(path.clone(), Entry::Nothing);
                self.steps.push(Step::Unlink(file));
            }
            NameOp::Mkdir { path, mode } => {
                self.check_free(path)?;
                self.changed.insert(path.clone(), Entry::Directory);
                self.steps.push(Step::Other(Op::Mkdir { path: path.clone(), mode: *mode }));
            }
            NameOp::Rmdir { path } => {
                self.inner.check_name(path)?;
                match self.look(path)? {
                    Entry::Directory => self.check_empty(path)?,
                    Entry::File(_) => return Err(Error::invalid(format!("{} is not a directory", path.display()))),
                    Entry::Nothing => return Err(Error::io("find", path, ErrorKind::NotFound.into())),
                }
                self.changed.insert(path.clone(), Entry::Nothing);
                self.steps.push(Step::Other(Op::Rmdir { path: path.clone() }));
            }
            NameOp::Mode { path, mode } => {
                self.inner.check_name(path)?;
                match self.look(path)? {
                    Entry::File(file) => self.steps.push(Step::Mode(file, *mode)),
                    Entry::Directory => {
                        self.steps.push(Step::Other(Op::DirMode { path: path.clone(), mode: *mode }));
                    }
                    Entry::Nothing => return Err(Error::io("find", path, ErrorKind::NotFound.into())),
                }
            }
        }
        Ok(())
    }

    /// Adds the operations to a record; `refer` gives a file's index in it.
    pub(crate) fn encode(self, record: &mut Record, refer: &mut impl FnMut(&Arc<FileShared>, &mut Record) -> u32) {
        for step in self.steps {
            let op = match step {
                Step::Create(file, mode) => Op::Create { file: refer(&file, record), mode },
                Step::Rename(file, to) => Op::Rename { file: refer(&file, record), to },
                Step::Unlink(file) => Op::Unlink { file: refer(&file, record) },
                Step::Mode(file, mode) => Op::Mode { file: refer(&file, record), mode },
                Step::Other(op) => op,
            };
            record.ops.push(op);
        }
    }
}

/// A transaction's view of names between two calls.
#[derive(Default)]
pub(crate) struct Kept {
    changed: BTreeMap<PathBuf, Entry>,
    steps: Vec<Step>,
}
