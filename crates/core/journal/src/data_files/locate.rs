//! Finds the data files of a final state: by their attributes, under the names that they had.

use crate::commits::final_state::{FileState, FinalState};
use crate::error::{Context, Error, Result, is_loop};
use crate::format::{Attribute, AttributeFound, StoreId, hex};
use crate::invariant;
use crate::undo::kept_links::KeptLinks;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{File, Kind, Open, Storage, holds};

/// The data files of a store, for applying a final state to them.
pub struct DataFiles<'a> {
    /// The store's directory.
    pub storage: &'a dyn Storage,
    /// The store.
    pub store: StoreId,
    /// The epoch that files created now belong to.
    pub epoch: u64,
    /// In recovery: LSN of the newest commit in the journal. No file can be ahead of it, and no file may lack a
    /// predecessor. `None` in an open store, which knows its unapplied commits itself.
    pub newest_lsn: Option<u64>,
    /// A directory inside the store directory for rename temporaries, which hold files while two of them exchange
    /// names.
    pub rename_dir: PathBuf,
    /// Whether to wait for the disk (class `power`).
    pub durable: bool,
    /// Contents to write into files before these get names; with `None`, names alone are applied.
    pub contents: Option<&'a dyn Contents>,
    /// Names in the undo directory, which do not count as names of their files.
    pub kept_links: KeptLinks,
}

/// Committed contents that a data file lacks. They are written before the file gets a name, so that a name never shows
/// another program a file without them.
pub trait Contents {
    /// Whether the data file lacks committed contents.
    fn are_missing(&self, file: &FileState) -> bool;
    /// Writes the missing contents. The file has its attribute, which may not be durable yet.
    fn write(&self, file: &FileState, handle: &Arc<dyn File>) -> Result<()>;
    /// Writes like [`Contents::write`], where the attribute is durable.
    fn write_behind_attribute(&self, file: &FileState, handle: &Arc<dyn File>) -> Result<()> {
        self.write(file, handle)
    }
    /// How many new files are created at a time, so that their attributes are flushed together before any of them has
    /// contents; 0 if they need no flush, or each gets its own.
    fn made_at_once(&self) -> usize {
        0
    }
    /// Flushes the attributes of all new files.
    fn flush_attributes(&self) -> Result<()> {
        Ok(())
    }
}

/// The present location of a file of the final state.
#[derive(Clone, Debug)]
pub enum Location {
    /// The file was recognised under this name.
    At(PathBuf),
    /// The file does not exist, and need not: it is unlinked, or not created yet.
    Absent,
}

/// The location of each file by its identity, or the reason why the file is left alone.
pub type Locations = BTreeMap<u64, Result<Location>>;

impl DataFiles<'_> {
    /// Finds every file, and checks it against its predecessors, without writing anything.
    pub fn find(&self, state: &FinalState) -> Locations {
        self.find_but(state, &BTreeSet::new())
    }

    /// Finds files like [`DataFiles::find`], except these new ones, which were never created and are nowhere.
    pub fn find_but(&self, state: &FinalState, new: &BTreeSet<u64>) -> Locations {
        let find = |file: &FileState| match new.contains(&file.id) {
            true => Ok(Location::Absent),
            false => self.find_one(file),
        };
        let mut locations: Locations = state.files.values().map(|file| (file.id, find(file))).collect();
        if holds(invariant::HALF_CREATED) {
            self.find_half_created(state, new, &mut locations);
        }
        debug_assert_eq!(locations.len(), state.files.len(), "files without a location");
        locations
    }

    /// Finds files whose creation a crash interrupted: empty and without an attribute, under any name that the file
    /// had. Such files are alike: each may be assigned to any file that had its name, but none may be left over. So
    /// names are assigned by a bipartite matching.
    pub(crate) fn find_half_created(&self, state: &FinalState, new: &BTreeSet<u64>, locations: &mut Locations) {
        let mut claims = BTreeMap::<PathBuf, Vec<&FileState>>::new();
        for file in state.files.values() {
            let may_lie_there = file.created.is_some() && !new.contains(&file.id);
            if may_lie_there && matches!(locations[&file.id], Ok(Location::Absent)) {
                let temporaries = creation_temporaries(file).into_iter().chain([self.rename_temporary(file.id)]);
                for name in file.names.iter().cloned().chain(temporaries) {
                    claims.entry(name).or_default().push(file);
                }
            }
        }
        claims.retain(|name, files| matches!(self.inspect(files[0], name), Ok(FoundFile::HalfCreated)));
        for (name, files) in &mut claims {
            // A file that finally gets this name comes first.
            files.sort_by_key(|file| file.name.as_ref() != Some(name));
        }
        let mut assigned = BTreeMap::new();
        for name in claims.keys() {
            assign_name(name, &claims, &mut assigned, &mut BTreeSet::new());
        }
        debug_assert_eq!(
            assigned.values().collect::<BTreeSet<_>>().len(),
            assigned.len(),
            "a name is assigned to two files: {assigned:?}"
        );
        locations.extend(assigned.into_iter().map(|(id, name)| (id, Ok(Location::At(name.to_owned())))));
    }

    /// Removes the older names of files that have several of their names at once, because a power cut on btrfs can undo
    /// one half of a rename. Leaves a file that has a name which these commits do not know. Returns whether it removed
    /// any.
    pub(crate) fn finish_half_renames(&self, state: &FinalState, locations: &Locations) -> bool {
        let mut is_any = false;
        for file in state.files.values().filter(|file| locations[&file.id].is_err()) {
            let temporaries = creation_temporaries(file).into_iter().chain([self.rename_temporary(file.id)]);
            let mut names: Vec<PathBuf> = file.names.iter().rev().cloned().chain(temporaries).collect();
            let mut seen = BTreeSet::new();
            names.retain(|name| seen.insert(name.clone()));
            let Some((newest, links)) = names.iter().find_map(|name| Some((name, self.links_of(file, name)?))) else {
                continue;
            };
            let older: Vec<&PathBuf> =
                names.iter().filter(|name| *name != newest && self.links_of(file, name) == Some(links)).collect();
            if older.len() as u64 + 1 == links {
                is_any |= older.iter().filter(|name| self.storage.unlink(name).is_ok()).count() > 0;
            }
        }
        is_any
    }

    /// The number of names of a file, if it lies under this one.
    fn links_of(&self, file: &FileState, name: &Path) -> Option<u64> {
        let handle = self.storage.open(name, Open::READ).ok()?;
        let meta = handle.meta().ok().filter(|meta| meta.kind == Kind::File)?;
        match Attribute::decode(handle.attribute().ok()?.as_deref()) {
            AttributeFound::Valid(a) if a.store == self.store && a.file == file.id => {
                Some(self.kept_links.own_links(&meta))
            }
            _ => None,
        }
    }

    pub(crate) fn rename_temporary(&self, id: u64) -> PathBuf {
        self.rename_dir.join(format!("rename.{id:016x}"))
    }

    pub(crate) fn find_one(&self, file: &FileState) -> Result<Location> {
        let mut foreign = None;
        let mut temporaries = creation_temporaries(file);
        temporaries.insert(self.rename_temporary(file.id));
        for name in file.names.iter().rev().chain(&temporaries) {
            match self.inspect(file, name)? {
                FoundFile::Ours => return Ok(Location::At(name.clone())),
                FoundFile::Nothing => {}
                FoundFile::HalfCreated | FoundFile::Foreign => foreign = Some(name.clone()),
            }
        }
        if file.name.is_none() || file.created.is_some() {
            // A foreign file under the name of a created file is found when the file is created.
            return Ok(Location::Absent);
        }
        let path = file.display_name();
        Err(match foreign {
            Some(name) => Error::Conflict {
                path: name,
                detail: format!(
                    "another file is in the place of a file whose committed changes (up to commit {}) are still in the \
                     journal",
                    file.last_lsn
                ),
            },
            None => Error::NeedsJournal {
                path: path.to_owned(),
                detail: format!(
                    "the file is gone from its place, and its changes up to commit {} are still in the journal",
                    file.last_lsn
                ),
            },
        })
    }

    /// Opens a name and compares its attribute.
    pub(crate) fn inspect(&self, file: &FileState, name: &Path) -> Result<FoundFile> {
        let handle = match self.storage.open(name, Open::READ) {
            Ok(handle) => handle,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(FoundFile::Nothing);
            }
            Err(e) if is_loop(&e) => return Ok(FoundFile::Foreign),
            Err(e) if e.kind() == ErrorKind::CrossesDevices => {
                return Err(Error::Conflict {
                    path: name.to_owned(),
                    detail:
                        "something is mounted there, and a store lies on one file system; unmount it, and open again"
                            .into(),
                });
            }
            Err(e) => return Err(Error::io("open", name, e)),
        };
        let meta = handle.meta().context("stat", name)?;
        if meta.kind != Kind::File {
            return Ok(FoundFile::Foreign);
        }
        match Attribute::decode(handle.attribute().context("read the attribute of", name)?.as_deref()) {
            AttributeFound::None if meta.size == 0 => Ok(FoundFile::HalfCreated),
            AttributeFound::Valid(a) if a.store == self.store && a.file == file.id => {
                if self.kept_links.own_links(&meta) > 1 {
                    return Err(Error::Conflict {
                        path: name.to_owned(),
                        detail: format!("it has {} hard links; a managed file has one", meta.links),
                    });
                }
                if self.newest_lsn.is_some() && a.checkpoint_lsn < file.previous_lsn {
                    return Err(Error::Conflict {
                        path: name.to_owned(),
                        detail: format!(
                            "it is an older copy (it holds commits up to {}; the journal continues after {})",
                            a.checkpoint_lsn, file.previous_lsn
                        ),
                    });
                }
                if let Some(newest) = self.newest_lsn
                    && a.checkpoint_lsn > newest
                {
                    return Err(Error::Conflict {
                        path: name.to_owned(),
                        detail: format!("it is newer (commit {}) than the journal (commit {newest})", a.checkpoint_lsn),
                    });
                }
                Ok(FoundFile::Ours)
            }
            _ => Ok(FoundFile::Foreign),
        }
    }

    /// Opens a recognised file for writing, and checks its identity once more.
    pub fn open(&self, file: &FileState, at: &Path) -> Result<Arc<dyn File>> {
        let handle = open_for_writing(self.storage, at).context("open", at)?;
        match Attribute::decode(handle.attribute().context("read the attribute of", at)?.as_deref()) {
            AttributeFound::Valid(a) if a.store == self.store && a.file == file.id => Ok(handle),
            _ => Err(Error::Conflict { path: at.to_owned(), detail: "it was replaced just now".into() }),
        }
    }
}

/// Leaves files alone, names included, if the disk cannot read their contents.
pub fn leave_unreadable(state: &FinalState, locations: &mut Locations) {
    locations.extend(state.files.values().filter_map(|file| Some((file.id, Err(file.overlay.unreadable()?.clone())))));
}

/// Refuses a file, by its attribute, if its commits are in another journal. `quarantined` returns an error for a file
/// with commits in a quarantined journal of this store; `is_known` tells whether this store has the file of the
/// attribute under another name; `is_newer` whether the file waits for commits of an owner that came after this
/// journal.
pub fn check_attribute(
    found: AttributeFound,
    path: &Path,
    store: Option<StoreId>,
    quarantined: impl FnOnce(u64) -> Result<()>,
    is_known: impl FnOnce(&Attribute) -> bool,
    is_newer: impl FnOnce(&Attribute) -> bool,
) -> Result<()> {
    let a = match found {
        AttributeFound::None => return Ok(()),
        AttributeFound::Unreadable => {
            return Err(Error::Foreign {
                path: path.to_owned(),
                detail: "this version does not understand its attribute user.untorn".into(),
            });
        }
        AttributeFound::Valid(a) => a,
    };
    let is_ours = Some(a.store) == store;
    if is_ours {
        quarantined(a.file)?;
    }
    if !a.pending {
        return Ok(());
    }
    let needs = |detail: String| Err(Error::NeedsJournal { path: path.to_owned(), detail });
    if !is_ours {
        return needs(format!("it belongs to the store {}, which was not closed", hex(&a.store)));
    }
    if is_known(&a) {
        return needs("it is a copy of a file that is in use in this store, or was moved here".into());
    }
    if a.path_crc != Attribute::path_crc_of(path) {
        return needs("it was moved or copied from elsewhere in this store while changes were pending".into());
    }
    match is_newer(&a) {
        true => Err(older_journal(path)),
        false => Ok(()),
    }
}

/// The error of a file that waits for commits made after this journal ended.
pub fn older_journal(path: &Path) -> Error {
    Error::Conflict {
        path: path.to_owned(),
        detail:
            "it waits for commits that the journal here does not know: an older `.untorn` was put back, or over 200 \
                 programs ended without closing the store while the file could not be changed. Put the newer `.untorn` \
                 back. Without a newer one, `untorn recover --accept-lost` accepts the file with its present contents"
                .into(),
    }
}

/// The temporary name of a file that is being created, in the directory of its final name.
pub(crate) fn creation_temporary(id: u64, name: &Path) -> PathBuf {
    name.with_file_name(format!(".{id:016x}.untorn"))
}

/// The identity of the file with this creation temporary.
pub(crate) fn creation_temporary_id(path: &Path) -> Option<u64> {
    let digits = path.file_name()?.to_str()?.strip_prefix('.')?.strip_suffix(".untorn")?;
    let id = u64::from_str_radix(digits, 16).ok()?;
    (creation_temporary(id, path) == path).then_some(id)
}

/// Names under which the file may lie while it is being created.
pub(crate) fn creation_temporaries(file: &FileState) -> BTreeSet<PathBuf> {
    let names = file.names.iter().filter(|_| file.created.is_some());
    names.map(|name| creation_temporary(file.id, name)).collect()
}

/// Assigns a name to one of the files that had it. A file with another name takes this one if its other name can be
/// assigned to a third file: an augmenting path. `visited` holds the files that were tried.
pub(crate) fn assign_name<'f>(
    name: &'f Path,
    claims: &'f BTreeMap<PathBuf, Vec<&FileState>>,
    assigned: &mut BTreeMap<u64, &'f Path>,
    visited: &mut BTreeSet<u64>,
) -> bool {
    for file in &claims[name] {
        if !visited.insert(file.id) {
            continue;
        }
        let other = assigned.get(&file.id).copied();
        if other.is_none_or(|other| assign_name(other, claims, assigned, visited)) {
            assigned.insert(file.id, name);
            return true;
        }
    }
    false
}

/// Opens a file for writing. If the mode forbids that to the file's owner, and this process runs as the owner, the mode
/// is changed while the file is opened.
pub fn open_for_writing(storage: &dyn Storage, path: &Path) -> std::io::Result<Arc<dyn File>> {
    let refused = match storage.open(path, Open::WRITE) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => e,
        done => return done,
    };
    let Ok(reading) = storage.open(path, Open::READ) else { return Err(refused) };
    let meta = reading.meta()?;
    if meta.kind != Kind::File || meta.uid != storage.effective_user() || meta.mode & 0o200 != 0 {
        return Err(refused);
    }
    reading.set_mode(meta.mode | 0o200)?;
    let opened = storage.open(path, Open::WRITE);
    reading.set_mode(meta.mode)?;
    opened
}

pub(crate) enum FoundFile {
    Nothing,
    Ours,
    /// Empty and without an attribute: the result of an interrupted creation.
    HalfCreated,
    Foreign,
}
