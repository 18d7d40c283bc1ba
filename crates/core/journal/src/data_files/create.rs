//! Creates the files of a final state, complete before they get their names: identity, contents, mode.

use crate::commits::final_state::{FileState, FinalState};
use crate::data_files::create_ahead::Ahead;
use crate::data_files::locate::{
    DataFiles, FoundFile, Location, Locations, creation_temporaries, creation_temporary, open_for_writing,
};
use crate::error::{Context, Error, Result, is_loop};
use crate::format::{Attribute, AttributeFound, VERSION};
use crate::invariant;
use crate::sync_point;
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{File, Kind, Open, Storage, SyncPoint, holds};

pub(crate) enum Attempt {
    Done,
    Blocked(Error),
}

/// The owner's permission bits of a directory.
pub(crate) const OWNER_RIGHTS: u32 = 0o700;

pub(crate) fn may_pass(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound | ErrorKind::NotADirectory) || is_loop(e)
}

pub(crate) fn occupied(path: &Path, e: &std::io::Error) -> Error {
    let detail = match e.kind() {
        ErrorKind::AlreadyExists => "the name is taken by another file, which the journal does not know".to_owned(),
        _ => format!("its directory is not there ({e})"),
    };
    Error::Conflict { path: path.to_owned(), detail }
}

/// Makes changed names in directories durable. If a directory is gone, or a file replaced it, the nearest existing
/// directory above it is flushed, unless it was: this flushes the removal, and with it all earlier removals from the
/// directory. If a directory cannot be opened for that, its whole file system is flushed.
pub fn sync_names(
    storage: &dyn Storage,
    dirs: impl IntoIterator<Item = impl AsRef<Path>>,
    point: SyncPoint,
) -> Result<()> {
    let mut flushed = HashSet::new();
    dirs.into_iter().try_for_each(|dir| sync_nearest(storage, dir.as_ref(), point, &mut flushed))
}

fn sync_nearest(storage: &dyn Storage, dir: &Path, point: SyncPoint, flushed: &mut HashSet<PathBuf>) -> Result<()> {
    for dir in dir.ancestors() {
        if flushed.contains(dir) {
            return Ok(());
        }
        match storage.sync_dir(dir, point) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
            Err(e) if may_pass(&e) || matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::CrossesDevices) => {
                storage.sync_file_system(point).context("flush", dir)?;
            }
            done => done.context("flush", dir)?,
        }
        flushed.insert(dir.to_owned());
        return Ok(());
    }
    Ok(())
}

/// Files of a final state by the name that they get, and unlinked files by the name that they had. Maps, because there
/// may be very many.
pub(crate) struct Replacements<'a> {
    getting: HashMap<&'a Path, Vec<u64>>,
    unlinked: HashMap<PathBuf, Vec<u64>>,
}

impl<'a> Replacements<'a> {
    /// Collects them for files at these locations. A file that is to be unlinked keeps its location until it is gone.
    pub fn of(state: &'a FinalState, locations: &Locations) -> Replacements<'a> {
        let mut replacements = Replacements { getting: HashMap::new(), unlinked: HashMap::new() };
        for file in state.files.values() {
            match (file.name.as_deref(), locations.get(&file.id)) {
                (Some(name), _) => replacements.getting.entry(name).or_default().push(file.id),
                (None, Some(Ok(Location::At(at)))) => {
                    replacements.unlinked.entry(at.clone()).or_default().push(file.id);
                }
                _ => {}
            }
        }
        replacements
    }

    /// The file that has this name and that the same commits unlink. It is replaced in one step, so that the name is
    /// never missing.
    pub fn replaced_by(&self, locations: &Locations, name: &Path) -> Option<u64> {
        let lies_there = |id: &&u64| matches!(locations.get(id), Some(Ok(Location::At(at))) if at == name);
        self.unlinked.get(name)?.iter().find(lies_there).copied()
    }

    /// The error that keeps the file that is to replace this name from doing so now.
    pub fn waits(&self, locations: &Locations, name: &Path) -> Option<Error> {
        self.getting.get(name)?.iter().find_map(|id| locations.get(id)?.as_ref().err().cloned())
    }
}

impl DataFiles<'_> {
    /// Creates a file at its final name, or takes over a half-created one, and sets attribute and mode.
    pub(crate) fn attempt_create(
        &self,
        state: &FinalState,
        file: &FileState,
        at: &Path,
        replacements: &Replacements<'_>,
        ahead: &Ahead,
        locations: &mut Locations,
    ) -> Result<Attempt> {
        debug_assert_eq!(file.name.as_deref(), Some(at), "a file is created under another name");
        let mut created = None;
        if let Some(Ok(Location::Absent)) = locations.get(&file.id) {
            let replaced = replacements.replaced_by(locations, at);
            let half_created = || matches!(self.inspect(file, at), Ok(FoundFile::HalfCreated | FoundFile::Ours));
            if replaced.is_some() || (self.are_missing(file) && !half_created()) {
                return self.create_whole(state, file, at, replaced, ahead, locations);
            }
            let mode = file.created.expect("only created files are absent and have a name");
            match self.with_rights(state, &[at], || self.storage.open(at, Open::create(mode))) {
                Ok(handle) => created = Some(handle),
                Err(e) if may_pass(&e) => {
                    if !matches!(self.inspect(file, at), Ok(FoundFile::HalfCreated | FoundFile::Ours)) {
                        return Ok(Attempt::Blocked(occupied(at, &e)));
                    }
                }
                Err(e) => return Err(Error::io("create", at, e)),
            }
            locations.insert(file.id, Ok(Location::At(at.to_owned())));
        }
        let handle = match created {
            Some(handle) => handle,
            None => open_for_writing(self.storage, at).context("open", at)?,
        };
        self.identify(file, &*handle, at, at)?;
        self.set_mode(file, &*handle, at)?;
        Ok(Attempt::Done)
    }

    /// Checks that a file has the expected identity. A file that these commits create gets its attribute, if it has
    /// none yet.
    pub(crate) fn identify(&self, file: &FileState, handle: &dyn File, at: &Path, name: &Path) -> Result<()> {
        let conflict = |detail: String| Err(Error::Conflict { path: at.to_owned(), detail });
        let meta = handle.meta().context("stat", at)?;
        if self.kept_links.own_links(&meta) > 1 {
            return conflict(format!("it has {} hard links; a managed file has one", meta.links));
        }
        let found = Attribute::decode(handle.attribute().context("read the attribute of", at)?.as_deref());
        if matches!(&found, AttributeFound::Valid(a) if a.store == self.store && a.file == file.id) {
            return Ok(());
        }
        if file.created.is_none() || found != AttributeFound::None || meta.size > 0 {
            return conflict("it was replaced just now".into());
        }
        self.set_identity(file, handle, name)
    }

    pub(crate) fn set_identity(&self, file: &FileState, handle: &dyn File, name: &Path) -> Result<()> {
        let attribute = Attribute {
            version: VERSION,
            store: self.store,
            file: file.id,
            epoch: self.epoch,
            checkpoint_lsn: file.previous_lsn,
            path_crc: Attribute::path_crc_of(name),
            pending: true,
        };
        handle.set_attribute(&attribute.encode()).map_err(|e| Error::attribute(name, e))
    }

    pub(crate) fn set_mode(&self, file: &FileState, handle: &dyn File, at: &Path) -> Result<()> {
        let Some(mode) = file.final_mode() else { return Ok(()) };
        if handle.meta().context("stat", at)?.mode != mode {
            handle.set_mode(mode).context("change the mode of", at)?;
        }
        Ok(())
    }

    pub(crate) fn are_missing(&self, file: &FileState) -> bool {
        holds(invariant::CONTENTS_BEFORE_NAME) && self.contents.is_some_and(|contents| contents.are_missing(file))
    }

    pub(crate) fn write_contents(&self, file: &FileState, handle: &Arc<dyn File>, behind: bool) -> Result<()> {
        match self.contents.filter(|_| self.are_missing(file)) {
            Some(contents) if behind => contents.write_behind_attribute(file, handle),
            Some(contents) => contents.write(file, handle),
            None => Ok(()),
        }
    }

    /// Creates a complete file under a temporary name in its target directory, so that it inherits the attributes that
    /// files there inherit. Then renames it in one step, also over a file that is unlinked.
    pub(crate) fn create_whole(
        &self,
        state: &FinalState,
        file: &FileState,
        at: &Path,
        replaced: Option<u64>,
        ahead: &Ahead,
        locations: &mut Locations,
    ) -> Result<Attempt> {
        debug_assert!(
            replaced.is_none_or(|victim| matches!(locations.get(&victim), Some(Ok(Location::At(it))) if it == at)),
            "file {replaced:?} is replaced at {at:?}, and is not there"
        );
        if replaced.is_none() && self.storage.stat(at).is_ok() {
            return Ok(Attempt::Blocked(occupied(at, &ErrorKind::AlreadyExists.into())));
        }
        if replaced.is_none() && self.create_unnamed(state, file, at, ahead)? {
            locations.insert(file.id, Ok(Location::At(at.to_owned())));
            return Ok(Attempt::Done);
        }
        let temporary = creation_temporary(file.id, at);
        let create = || match self.storage.open(&temporary, Open::create(0o600)) {
            // An earlier attempt left it, as its name tells.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                self.storage.unlink(&temporary)?;
                self.storage.open(&temporary, Open::create(0o600))
            }
            done => done,
        };
        let handle = match self.with_rights(state, &[at], create) {
            Ok(handle) => handle,
            Err(e) if may_pass(&e) => return Ok(Attempt::Blocked(occupied(at, &e))),
            Err(e) => return Err(Error::io("create", at, e)),
        };
        let filled = self.set_identity(file, &*handle, at).and_then(|()| self.fill(file, &handle, at, false));
        let named = filled.map(|()| self.storage.rename(&temporary, at, replaced.is_some()));
        if !matches!(named, Ok(Ok(()))) {
            let _ = self.storage.unlink(&temporary);
        }
        match named? {
            Ok(()) => {
                if let Some(victim) = replaced {
                    locations.insert(victim, Ok(Location::Absent));
                }
                locations.insert(file.id, Ok(Location::At(at.to_owned())));
                Ok(Attempt::Done)
            }
            Err(e) if may_pass(&e) => Ok(Attempt::Blocked(occupied(at, &e))),
            Err(e) => Err(Error::io("create", at, e)),
        }
    }

    /// Creates a file without a name, and links it to its name once it is complete. Returns false if that is not
    /// possible here.
    pub(crate) fn create_unnamed(
        &self,
        state: &FinalState,
        file: &FileState,
        at: &Path,
        ahead: &Ahead,
    ) -> Result<bool> {
        let (Some(directory), Some(name)) = (at.parent(), at.file_name()) else { return Ok(false) };
        let (handle, behind) = match ahead.take(file.id) {
            Some(made) => (made, true),
            None => {
                let Ok(handle) = self.with_rights(state, &[at], || self.storage.create_unnamed(directory)) else {
                    // For any other error of the directory, the other way of creating reports it.
                    return Ok(false);
                };
                self.set_identity(file, &*handle, at)?;
                (handle, false)
            }
        };
        self.fill(file, &handle, at, behind)?;
        Ok(handle.give_name(name).is_ok())
    }

    /// Completes a new file that has its attribute. `behind`: the attribute is durable.
    pub(crate) fn fill(&self, file: &FileState, handle: &Arc<dyn File>, at: &Path, behind: bool) -> Result<()> {
        self.write_contents(file, handle, behind)?;
        self.set_mode(file, &**handle, at)
    }

    /// Removes creation temporaries that a crash left, of files that have their names or need none any more.
    pub(crate) fn remove_creation_temporaries(&self, state: &FinalState, locations: &Locations) {
        for file in state.files.values() {
            let Some(Ok(location)) = locations.get(&file.id) else { continue };
            for temporary in creation_temporaries(file) {
                if !matches!(location, Location::At(at) if *at == temporary) {
                    let _ = self.storage.unlink(&temporary);
                }
            }
        }
    }

    /// Runs `act`, which changes the directories of these names. If a directory's mode forbids that to its owner, and
    /// these commits set that mode, the owner gets all permissions until the end of [`DataFiles::apply_names`].
    pub(crate) fn with_rights<T>(
        &self,
        state: &FinalState,
        names: &[&Path],
        act: impl Fn() -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        let refused = match act() {
            Err(e) if e.kind() == ErrorKind::PermissionDenied && holds(invariant::MODES_LAST) => e,
            done => return done,
        };
        let mut widened = false;
        for (path, _) in
            state.dirs.iter().filter(|(dir, _)| names.iter().any(|name| name != dir && name.starts_with(dir)))
        {
            let Ok(meta) = self.storage.stat(path) else { continue };
            if meta.kind == Kind::Directory
                && meta.mode & OWNER_RIGHTS != OWNER_RIGHTS
                && meta.uid == self.storage.effective_user()
            {
                widened |= self.storage.set_dir_mode(path, meta.mode | OWNER_RIGHTS).is_ok();
            }
        }
        if widened { act() } else { Err(refused) }
    }

    /// Flushes the directories above a file's new directory: a power cut must not keep the move and lose the new
    /// directory.
    pub(crate) fn sync_parents(&self, to: &Path) -> Result<()> {
        sync_names(self.storage, to.ancestors().skip(2), sync_point::MOVE_PARENTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_its_own_files_alone() {
        let (mut state, mut locations) = (FinalState::default(), Locations::new());
        let name = |n: u64| PathBuf::from(format!("dir/{n}"));
        for n in 0..1000 {
            let mut removed = FileState::named(n, &name(n));
            removed.name = None;
            state.files.insert(n, removed);
            locations.insert(n, Ok(Location::At(name(n))));
            state.files.insert(n + 1000, FileState::named(n + 1000, &name(n)));
            let waits = Error::Conflict { path: name(n), detail: "of another".into() };
            locations.insert(n + 1000, if n % 2 == 0 { Ok(Location::Absent) } else { Err(waits) });
        }
        let replacements = Replacements::of(&state, &locations);
        for n in 0..1000 {
            assert_eq!(replacements.replaced_by(&locations, &name(n)), Some(n));
            assert_eq!(replacements.waits(&locations, &name(n)).is_some(), n % 2 == 1);
            // Each lookup takes one step, however many files there are.
            assert_eq!((replacements.unlinked[&name(n)].len(), replacements.getting[&*name(n)].len()), (1, 1));
        }
        locations.insert(7, Ok(Location::Absent));
        assert_eq!(replacements.replaced_by(&locations, &name(7)), None, "gone meanwhile");
    }
}
