//! Applies a final state to the data files: in an open store, and in recovery (redo).
//!
//! Everything in this file may be interrupted anywhere and done again: each action first checks
//! whether it has happened. A file is recognised by its attribute, never by its name alone.

use crate::error::{Context, Error, Result};
use crate::final_state::{DirState, FileState, FinalState};
use crate::format::{Attribute, AttributeFound, StoreId};
use crate::invariant;
use crate::overlay::{NO_END, Overlay, Source};
use crate::spill::CHUNK_BYTES;
use crate::sync_point;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{Errno, File, Kind, Open, Storage, SyncPoint, holds, value_if_holds, write_all_at};

/// The data files of a store, as a final state is applied to them.
pub struct DataFiles<'a> {
    /// The store's directory.
    pub storage: &'a dyn Storage,
    /// The store.
    pub store: StoreId,
    /// The epoch that files created now belong to.
    pub epoch: u64,
    /// In recovery: LSN of the newest commit in the journal. No file can be ahead of it, and none may
    /// lack a predecessor. An open store knows what it has not applied yet.
    pub newest_lsn: Option<u64>,
    /// A directory inside the store directory for rename temporaries: a file is there while two files
    /// exchange names.
    pub rename_dir: PathBuf,
    /// Whether to wait for the disk (class `power`).
    pub durable: bool,
    /// Contents that go into files before these get names; none: names are only looked for.
    pub contents: Option<&'a dyn Contents>,
}

/// Committed contents that a data file lacks. They are written before the file gets a name, so that a name never shows
/// another program a file without them.
pub trait Contents {
    /// Whether the data file lacks any.
    fn are_missing(&self, file: &FileState) -> bool;
    /// Writes them. The file has its attribute, which may not be durable yet.
    fn write(&self, file: &FileState, handle: &Arc<dyn File>) -> Result<()>;
}

/// The present location of a file of the final state.
#[derive(Clone, Debug)]
pub enum Location {
    /// The file was recognised under this name.
    At(PathBuf),
    /// The file is not there, and need not be: unlinked, or not yet created.
    Absent,
}

/// The location of each file by its identity, or the reason why the file is left alone.
pub type Locations = BTreeMap<u64, Result<Location>>;

/// A directory that could not be brought to its final state.
#[derive(Clone, Debug)]
pub struct DirLeft {
    /// The directory.
    pub path: PathBuf,
    /// Why.
    pub reason: Error,
    /// Nothing is to be done any more: somebody put something into a directory that was to be removed.
    pub given_up: bool,
}

impl DataFiles<'_> {
    /// Finds every file, and checks it against its predecessors, without writing a byte.
    pub fn find(&self, state: &FinalState) -> Locations {
        let mut locations: Locations = state.files.values().map(|file| (file.id, self.find_one(file))).collect();
        if holds(invariant::HALF_CREATED) {
            self.find_half_created(state, &mut locations);
        }
        locations
    }

    /// Finds files whose creation a crash interrupted: empty and without an attribute, under any name that
    /// the file had. Such files are alike, and each may be assigned to any file that had its name, but none
    /// may be left over: names are assigned by a bipartite matching.
    fn find_half_created(&self, state: &FinalState, locations: &mut Locations) {
        let mut claims = BTreeMap::<PathBuf, Vec<&FileState>>::new();
        for file in state.files.values() {
            if file.created.is_some() && matches!(locations[&file.id], Ok(Location::Absent)) {
                let temporaries = creation_temporaries(file).into_iter().chain([self.rename_temporary(file.id)]);
                for name in file.names.iter().cloned().chain(temporaries) {
                    claims.entry(name).or_default().push(file);
                }
            }
        }
        claims.retain(|name, files| matches!(self.inspect(files[0], name), Ok(Found::HalfCreated)));
        for (name, files) in &mut claims {
            // The file whose final name it is comes first.
            files.sort_by_key(|file| file.name.as_ref() != Some(name));
        }
        let mut assigned = BTreeMap::new();
        for name in claims.keys() {
            assign_name(name, &claims, &mut assigned, &mut BTreeSet::new());
        }
        locations.extend(assigned.into_iter().map(|(id, name)| (id, Ok(Location::At(name.to_owned())))));
    }

    fn rename_temporary(&self, id: u64) -> PathBuf {
        self.rename_dir.join(format!("rename.{id:016x}"))
    }

    fn find_one(&self, file: &FileState) -> Result<Location> {
        let mut foreign = None;
        let mut temporaries = creation_temporaries(file);
        temporaries.insert(self.rename_temporary(file.id));
        for name in file.names.iter().rev().chain(&temporaries) {
            match self.inspect(file, name)? {
                Found::Ours => return Ok(Location::At(name.clone())),
                Found::Nothing => {}
                Found::HalfCreated | Found::Foreign => foreign = Some(name.clone()),
            }
        }
        if file.name.is_none() || file.created.is_some() {
            // A foreign file under the name of a created file is met when that file is created.
            return Ok(Location::Absent);
        }
        let path = file.display_name();
        Err(match foreign {
            Some(name) => Error::Conflict {
                path: name,
                detail: format!(
                    "another file is in the place of one with committed changes (up to commit {}) still in the journal",
                    file.last_lsn
                ),
            },
            None => Error::NeedsJournal {
                path: path.to_owned(),
                detail: format!(
                    "the file is gone from its place, with changes up to commit {} not yet in it",
                    file.last_lsn
                ),
            },
        })
    }

    /// Opens a name and compares its attribute.
    fn inspect(&self, file: &FileState, name: &Path) -> Result<Found> {
        let handle = match self.storage.open(name, Open::READ) {
            Ok(handle) => handle,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Found::Nothing),
            Err(e) if is_loop(&e) => return Ok(Found::Foreign),
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
            return Ok(Found::Foreign);
        }
        match Attribute::decode(handle.attribute().context("read the attribute of", name)?.as_deref()) {
            AttributeFound::None if meta.size == 0 => Ok(Found::HalfCreated),
            AttributeFound::Valid(a) if a.store == self.store && a.file == file.id => {
                if meta.links != 1 {
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
                Ok(Found::Ours)
            }
            _ => Ok(Found::Foreign),
        }
    }

    /// Applies names, existence and modes. Files whose location is an error are left alone; so is a
    /// file for which an action fails, with that error as its location. An action that waits for another one (a directory
    /// for its files, a name for the file that has it now) is tried again as long as any succeeds. Modes of directories
    /// come last, as they may forbid what is to be done in them. Returns the directories that are left.
    pub fn apply_names(&self, state: &FinalState, locations: &mut Locations) -> Vec<DirLeft> {
        let mut left = self.apply_entries(state, locations);
        self.put_back(state, locations);
        if self.newest_lsn.is_some() {
            self.remove_creation_temporaries(state, locations);
        }
        for (path, dir) in state.dirs.iter().rev() {
            if dir.exists
                && !left.iter().any(|dir| dir.path == *path)
                && let Err(reason) = self.set_final_mode(path, *dir)
            {
                left.push(DirLeft { path: path.clone(), reason, given_up: false });
            }
        }
        for dir in left.iter_mut().filter(|dir| matches!(dir.reason, Error::Conflict { .. })) {
            // What is left in it may be of these commits, too.
            let inside = |file: &FileState| file.names.iter().any(|name| name.starts_with(&dir.path));
            let waits = |file: &FileState| locations.get(&file.id).is_some_and(Result::is_err);
            dir.given_up =
                !state.dirs[&dir.path].exists && !state.files.values().any(|file| inside(file) && waits(file));
        }
        left
    }

    fn apply_entries(&self, state: &FinalState, locations: &mut Locations) -> Vec<DirLeft> {
        let mut todo = self.actions(state, locations);
        loop {
            let before = todo.len();
            todo.retain_mut(|action| match self.attempt(action, state, locations) {
                Ok(Attempt::Done) => false,
                Ok(Attempt::Blocked(why)) => {
                    action.why = Some(why);
                    true
                }
                Err(e) => match action.file {
                    Some(id) => {
                        locations.insert(id, Err(e));
                        false
                    }
                    None => {
                        action.why = Some(e);
                        true
                    }
                },
            });
            if todo.is_empty() {
                return Vec::new();
            }
            if todo.len() == before && !self.break_cycle(&todo, locations) {
                break;
            }
        }
        let mut left = Vec::new();
        for action in todo {
            let reason = action.why.expect("a blocked action says why");
            match (action.file, action.what) {
                (Some(id), _) => _ = locations.insert(id, Err(reason)),
                (None, What::Directory { path, .. }) => left.push(DirLeft { path, reason, given_up: false }),
                (None, _) => unreachable!("an action is on a file or on a directory"),
            }
        }
        left
    }

    fn actions(&self, state: &FinalState, locations: &Locations) -> Vec<Action> {
        let mut todo = Vec::new();
        let action = |file: Option<u64>, what: What| Action { file, what, why: None, written: false };
        for file in state.files.values() {
            let Some(Ok(location)) = locations.get(&file.id) else { continue };
            let what = match (location, &file.name) {
                (Location::At(at), None) => What::Unlink { at: at.clone() },
                (Location::Absent, None) => continue,
                (Location::At(at), Some(to)) if at != to => What::Move { to: to.clone() },
                (Location::At(_), Some(_)) if file.created.is_none() && file.mode.is_none() => continue,
                (_, Some(to)) => What::Create { at: to.clone() },
            };
            todo.push(action(Some(file.id), what));
        }
        for (path, dir) in &state.dirs {
            todo.push(action(None, What::Directory { path: path.clone(), dir: *dir }));
        }
        // What a file replaces goes in the same step, if that file comes first.
        todo.sort_by_key(|action| matches!(action.what, What::Unlink { .. }));
        todo
    }

    fn attempt(&self, action: &mut Action, state: &FinalState, locations: &mut Locations) -> Result<Attempt> {
        match &action.what {
            What::Unlink { at } => {
                let id = action.file.expect("a file");
                if matches!(locations.get(&id), Some(Ok(Location::Absent))) {
                    // Replaced by a rename in the meantime: the name is that of another file now.
                    return Ok(Attempt::Done);
                }
                if let Some(reason) = replacement_waits(state, locations, at) {
                    return Ok(Attempt::Blocked(reason));
                }
                match self.with_rights(state, &[at], || self.storage.unlink(at)) {
                    Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io("unlink", at, e)),
                    _ => {}
                }
                locations.insert(id, Ok(Location::Absent));
                Ok(Attempt::Done)
            }
            What::Move { to } => {
                let id = action.file.expect("a file");
                if !action.written {
                    self.write_before_move(&state.files[&id], to, state, locations)?;
                    action.written = true;
                }
                self.attempt_move(id, to, state, locations)
            }
            What::Create { at } => {
                self.attempt_create(state, &state.files[&action.file.expect("a file")], at, locations)
            }
            What::Directory { path, dir } => self.attempt_directory(state, path, *dir),
        }
    }

    fn attempt_move(&self, id: u64, to: &Path, state: &FinalState, locations: &mut Locations) -> Result<Attempt> {
        let Some(Ok(Location::At(from))) = locations.get(&id).cloned() else { return Ok(Attempt::Done) };
        let replaced = replaced_by(state, locations, to);
        if self.durable && state.files[&id].created.is_none() && from.parent() != to.parent() {
            self.sync_parents(to)?;
        }
        match self.with_rights(state, &[&from, to], || self.storage.rename(&from, to, replaced.is_some())) {
            Ok(()) => {
                if let Some(victim) = replaced {
                    locations.insert(victim, Ok(Location::Absent));
                }
                locations.insert(id, Ok(Location::At(to.to_owned())));
                self.attempt_create(state, &state.files[&id], to, locations)
            }
            Err(e) if may_pass(&e) => Ok(Attempt::Blocked(occupied(to, &e))),
            Err(e) => Err(Error::io("rename to", to, e)),
        }
    }

    /// A power cut must not keep a file's move and lose the new directory that the file moved into.
    fn sync_parents(&self, to: &Path) -> Result<()> {
        for dir in to.ancestors().skip(2) {
            sync_names(self.storage, dir, sync_point::MOVE_PARENTS)?;
        }
        Ok(())
    }

    /// Creates a file at its final name, or takes a half-created one for it, and sets attribute and mode.
    fn attempt_create(
        &self,
        state: &FinalState,
        file: &FileState,
        at: &Path,
        locations: &mut Locations,
    ) -> Result<Attempt> {
        let mut created = None;
        if let Some(Ok(Location::Absent)) = locations.get(&file.id) {
            let replaced = replaced_by(state, locations, at);
            let half_created = || matches!(self.inspect(file, at), Ok(Found::HalfCreated | Found::Ours));
            if replaced.is_some() || (self.are_missing(file) && !half_created()) {
                return self.create_whole(state, file, at, replaced, locations);
            }
            let mode = file.created.expect("only created files are absent and have a name");
            match self.with_rights(state, &[at], || self.storage.open(at, Open::create(mode))) {
                Ok(handle) => created = Some(handle),
                Err(e) if may_pass(&e) => {
                    if !matches!(self.inspect(file, at), Ok(Found::HalfCreated | Found::Ours)) {
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

    /// Makes sure that a file is the one; one that these commits create, and that has no attribute yet, gets it.
    fn identify(&self, file: &FileState, handle: &dyn File, at: &Path, name: &Path) -> Result<()> {
        let conflict = |detail: String| Err(Error::Conflict { path: at.to_owned(), detail });
        let meta = handle.meta().context("stat", at)?;
        if meta.links != 1 {
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

    fn set_identity(&self, file: &FileState, handle: &dyn File, name: &Path) -> Result<()> {
        let attribute = Attribute {
            store: self.store,
            file: file.id,
            epoch: self.epoch,
            checkpoint_lsn: file.previous_lsn,
            path_crc: Attribute::path_crc_of(name),
            pending: true,
        };
        handle.set_attribute(&attribute.encode()).map_err(|e| Error::attribute(name, e))
    }

    fn set_mode(&self, file: &FileState, handle: &dyn File, at: &Path) -> Result<()> {
        let Some(mode) = file.final_mode() else { return Ok(()) };
        if handle.meta().context("stat", at)?.mode != mode {
            handle.set_mode(mode).context("change the mode of", at)?;
        }
        Ok(())
    }

    fn are_missing(&self, file: &FileState) -> bool {
        holds(invariant::CONTENTS_BEFORE_NAME) && self.contents.is_some_and(|contents| contents.are_missing(file))
    }

    fn write_contents(&self, file: &FileState, handle: &Arc<dyn File>) -> Result<()> {
        match self.contents.filter(|_| self.are_missing(file)) {
            Some(contents) => contents.write(file, handle),
            None => Ok(()),
        }
    }

    /// Writes what a file lacks where the file is now, before it moves.
    fn write_before_move(&self, file: &FileState, to: &Path, state: &FinalState, locations: &Locations) -> Result<()> {
        let Some(Ok(Location::At(from))) = locations.get(&file.id) else { return Ok(()) };
        if !self.are_missing(file) {
            return Ok(());
        }
        let handle = self.with_rights(state, &[from], || open_for_writing(self.storage, from)).context("open", from)?;
        self.identify(file, &*handle, from, to)?;
        self.write_contents(file, &handle)
    }

    /// Makes a file with all that belongs to it under a name of its own in the directory where it is to be, so that it
    /// inherits what files there inherit, and then gives it its name in one step, also over a file that goes.
    fn create_whole(
        &self,
        state: &FinalState,
        file: &FileState,
        at: &Path,
        replaced: Option<u64>,
        locations: &mut Locations,
    ) -> Result<Attempt> {
        if replaced.is_none() && self.storage.stat(at).is_ok() {
            return Ok(Attempt::Blocked(occupied(at, &ErrorKind::AlreadyExists.into())));
        }
        if replaced.is_none() && self.create_unnamed(state, file, at)? {
            locations.insert(file.id, Ok(Location::At(at.to_owned())));
            return Ok(Attempt::Done);
        }
        let temporary = creation_temporary(file.id, at);
        let create = || match self.storage.open(&temporary, Open::create(0o600)) {
            // Whose it is, the name tells: an attempt before this one left it.
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
        let named = self.fill(file, &handle, at).map(|()| self.storage.rename(&temporary, at, replaced.is_some()));
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

    /// Makes a file without a name, and gives it its name once it has all that belongs to it. False: not possible here.
    fn create_unnamed(&self, state: &FinalState, file: &FileState, at: &Path) -> Result<bool> {
        let (Some(directory), Some(name)) = (at.parent(), at.file_name()) else { return Ok(false) };
        let Ok(handle) = self.with_rights(state, &[at], || self.storage.create_unnamed(directory)) else {
            // What else is wrong with the directory, the other way tells.
            return Ok(false);
        };
        self.fill(file, &handle, at)?;
        Ok(handle.give_name(name).is_ok())
    }

    /// Gives a new file all that belongs to it.
    fn fill(&self, file: &FileState, handle: &Arc<dyn File>, at: &Path) -> Result<()> {
        self.set_identity(file, &**handle, at)?;
        self.write_contents(file, handle)?;
        self.set_mode(file, &**handle, at)
    }

    /// Removes what a crash left of files that have their names, or that need none any more.
    fn remove_creation_temporaries(&self, state: &FinalState, locations: &Locations) {
        for file in state.files.values() {
            let Some(Ok(location)) = locations.get(&file.id) else { continue };
            for temporary in creation_temporaries(file) {
                if !matches!(location, Location::At(at) if *at == temporary) {
                    let _ = self.storage.unlink(&temporary);
                }
            }
        }
    }

    fn attempt_directory(&self, state: &FinalState, path: &Path, dir: DirState) -> Result<Attempt> {
        if !dir.exists {
            return match self.with_rights(state, &[path], || self.storage.rmdir(path)) {
                Ok(()) => Ok(Attempt::Done),
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Attempt::Done),
                // XFS calls it EEXIST.
                Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
                    Ok(Attempt::Blocked(Error::Conflict {
                        path: path.to_owned(),
                        detail: "the directory is to be removed, but somebody put something in it".into(),
                    }))
                }
                Err(e) => Err(Error::io("remove the directory", path, e)),
            };
        }
        match self.storage.stat(path) {
            Ok(meta) if meta.kind == Kind::Directory => return Ok(Attempt::Done),
            Ok(_) => return Ok(Attempt::Blocked(occupied(path, &ErrorKind::AlreadyExists.into()))),
            Err(_) => {}
        }
        let mode = dir.mode.unwrap_or(0o700) | value_if_holds(invariant::MODES_LAST, OWNER_RIGHTS);
        match self.with_rights(state, &[path], || self.storage.mkdir(path, mode)) {
            Ok(()) => Ok(Attempt::Done),
            Err(e) if may_pass(&e) => Ok(Attempt::Blocked(occupied(path, &e))),
            Err(e) => Err(Error::io("make the directory", path, e)),
        }
    }

    fn set_final_mode(&self, path: &Path, dir: DirState) -> Result<()> {
        let Some(mode) = dir.mode else { return Ok(()) };
        match self.storage.stat(path) {
            Ok(meta) if meta.kind == Kind::Directory && meta.mode != mode => {
                self.storage.set_dir_mode(path, mode).context("change the mode of", path)
            }
            Ok(_) => Ok(()),
            Err(e) => Err(Error::io("change the mode of", path, e)),
        }
    }

    /// Acts in the directories of these names. Where the mode of one forbids that to its owner, and these commits set
    /// that mode, the owner has all rights until the end of [`DataFiles::apply_names`].
    fn with_rights<T>(
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

    /// Moves one of several files that wait for each other's names in a circle to a rename temporary. A file that
    /// waits for one that is left alone keeps its place.
    fn break_cycle(&self, todo: &[Action], locations: &mut Locations) -> bool {
        let mut moves = Vec::new();
        for action in todo {
            if let (Some(id), What::Move { to }) = (action.file, &action.what)
                && let Some(Ok(Location::At(from))) = locations.get(&id)
            {
                moves.push((id, from.clone(), to.clone()));
            }
        }
        // A directory may be what becomes of a file's name, or what a file's name was.
        let waits_for = |a: usize, b: usize| {
            let (to, from): (&Path, &Path) = (&moves[a].2, &moves[b].1);
            from.starts_with(to) || to.starts_with(from)
        };
        for start in 0..moves.len() {
            let (id, from, _) = &moves[start];
            let temporary = self.rename_temporary(*id);
            if *from == temporary || (holds(invariant::ONLY_CYCLES) && !in_cycle(start, moves.len(), &waits_for)) {
                continue;
            }
            if self.storage.rename(from, &temporary, false).is_ok() {
                locations.insert(*id, Ok(Location::At(temporary)));
                return true;
            }
        }
        false
    }

    /// Takes files that cannot get their names out of the rename temporaries, where nobody would look for them.
    fn put_back(&self, state: &FinalState, locations: &Locations) {
        for file in state.files.values().filter(|file| matches!(locations.get(&file.id), Some(Err(_)))) {
            let temporary = self.rename_temporary(file.id);
            if self.storage.stat(&temporary).is_ok() {
                let _ = file.names.iter().rev().find(|name| self.storage.rename(&temporary, name, false).is_ok());
            }
        }
    }

    /// Opens a recognised file for writing, checking once more that it is the one.
    pub fn open(&self, file: &FileState, at: &Path) -> Result<Arc<dyn File>> {
        let handle = open_for_writing(self.storage, at).context("open", at)?;
        match Attribute::decode(handle.attribute().context("read the attribute of", at)?.as_deref()) {
            AttributeFound::Valid(a) if a.store == self.store && a.file == file.id => Ok(handle),
            _ => Err(Error::Conflict { path: at.to_owned(), detail: "it was replaced just now".into() }),
        }
    }
}

/// The file that lies under a name and is unlinked by the same commits: it is replaced in one step, so that the name is
/// never missing.
fn replaced_by(state: &FinalState, locations: &Locations, name: &Path) -> Option<u64> {
    let lies_there = |id: &u64| matches!(locations.get(id), Some(Ok(Location::At(at))) if at == name);
    state.files.values().find(|file| file.name.is_none() && lies_there(&file.id)).map(|file| file.id)
}

/// Why the file that is to replace the one of this name cannot do so now.
fn replacement_waits(state: &FinalState, locations: &Locations, name: &Path) -> Option<Error> {
    let mut replacing = state.files.values().filter(|file| file.name.as_deref() == Some(name));
    replacing.find_map(|file| locations.get(&file.id)?.as_ref().err().cloned())
}

/// The name of a file that is being made, in the directory of the name that it is to get.
fn creation_temporary(id: u64, name: &Path) -> PathBuf {
    name.with_file_name(format!(".{id:016x}.untorn"))
}

/// Where the file may lie while it is being made.
fn creation_temporaries(file: &FileState) -> BTreeSet<PathBuf> {
    let names = file.names.iter().filter(|_| file.created.is_some());
    names.map(|name| creation_temporary(file.id, name)).collect()
}

/// Assigns a name to one of the files that had it. A file that was assigned another name is used if that
/// name can be assigned to a third file: an augmenting path. `visited` are the files tried already.
fn assign_name<'f>(
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

/// Opens a file for writing. Where the mode forbids that to the owner of the file, and this process runs
/// as the owner, the mode is changed for the moment of opening.
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

/// Whether an item waits for itself, by way of others.
fn in_cycle(start: usize, count: usize, waits_for: &dyn Fn(usize, usize) -> bool) -> bool {
    let (mut seen, mut next) = (vec![false; count], vec![start]);
    while let Some(at) = next.pop() {
        for (other, seen) in seen.iter_mut().enumerate() {
            if waits_for(at, other) && !std::mem::replace(seen, true) {
                next.push(other);
            }
        }
    }
    seen[start]
}

/// Makes changed names in a directory durable. Of a directory that is gone, or that a file replaced, the nearest
/// directory above it that is there is flushed: with the removal, whatever left the directory before becomes durable.
/// A directory that cannot be opened for flushing it is flushed with its whole file system.
pub fn sync_names(storage: &dyn Storage, dir: &Path, point: SyncPoint) -> Result<()> {
    for dir in dir.ancestors() {
        return match storage.sync_dir(dir, point) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
            Err(e) if may_pass(&e) || matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::CrossesDevices) => {
                storage.sync_file_system(point).context("flush", dir)
            }
            done => done.context("flush", dir),
        };
    }
    Ok(())
}

/// The owner's rights to a directory.
const OWNER_RIGHTS: u32 = 0o700;

enum Found {
    Nothing,
    Ours,
    /// Empty and without an attribute: what a crash leaves of a creation.
    HalfCreated,
    Foreign,
}

enum Attempt {
    Done,
    Blocked(Error),
}

struct Action {
    file: Option<u64>,
    what: What,
    why: Option<Error>,
    /// Of a move: the file has its contents.
    written: bool,
}

enum What {
    Unlink { at: PathBuf },
    Move { to: PathBuf },
    Create { at: PathBuf },
    Directory { path: PathBuf, dir: DirState },
}

fn may_pass(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound | ErrorKind::NotADirectory) || is_loop(e)
}

fn is_loop(e: &std::io::Error) -> bool {
    // ELOOP has no stable name in ErrorKind; EISDIR is the error of opening a directory for writing.
    Errno::from_io_error(e) == Some(Errno::LOOP) || e.kind() == ErrorKind::IsADirectory
}

fn occupied(path: &Path, e: &std::io::Error) -> Error {
    let detail = match e.kind() {
        ErrorKind::AlreadyExists => "the name is taken by a file that is not the one the journal knows".to_owned(),
        _ => format!("its directory is not there ({e})"),
    };
    Error::Conflict { path: path.to_owned(), detail }
}

/// Applies an overlay to a data file. The file is never smaller than its final size on the way.
pub fn apply_overlay(file: &dyn File, overlay: &Overlay, path: &Path) -> Result<()> {
    let current = file.meta().context("stat", path)?.size;
    let size = overlay.size.unwrap_or(current);
    if size < current {
        // Shrink first: that never needs space, and what lies beyond is not wanted in any case.
        file.set_len(size).context("truncate", path)?;
    }
    let mut chunk = Vec::new();
    for (range, source) in overlay.ranges() {
        let end = range.end.min(size);
        if range.start >= end {
            continue;
        }
        match source {
            Source::Zero => {
                let end = end.min(current);
                if range.start < end {
                    file.zero(range.start, end - range.start).context("zero a range of", path)?;
                }
            }
            Source::Bytes { .. } => {
                let bytes = source.slice(&(range.start..end)).expect("bytes in memory");
                write_all_at(file, &bytes, range.start).context("write", path)?;
            }
            Source::Spill { .. } => {
                let mut at = range.start;
                chunk.resize(CHUNK_BYTES.min((end - at) as usize), 0);
                while at < end {
                    let n = chunk.len().min((end - at) as usize);
                    source.copy_to(&mut chunk[..n], at)?;
                    write_all_at(file, &chunk[..n], at).context("write", path)?;
                    at += n as u64;
                }
            }
        }
    }
    if file.meta().context("stat", path)?.size != size {
        file.set_len(size).context("extend", path)?;
    }
    debug_assert!(overlay.ranges().all(|(r, s)| r.end != NO_END || *s == Source::Zero));
    Ok(())
}
