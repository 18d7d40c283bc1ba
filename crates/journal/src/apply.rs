//! Makes a final state so. The living store and recovery both come here.
//!
//! Everything in this file may be interrupted anywhere and done again: each action first looks
//! whether it has happened. A file is recognised by its attribute, never by its name alone.

use crate::care::{Care, kept};
use crate::error::{Context, Error, Result};
use crate::extent::CHUNK_BYTES;
use crate::format::{Attribute, AttributeFound, StoreId};
use crate::layer::{Layer, NO_END, Source};
use crate::state::{DirState, FileState, FinalState};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{File, Kind, Open, Storage, write_all_at};

/// Who applies.
pub struct Applier<'a> {
    /// The store's directory.
    pub storage: &'a dyn Storage,
    /// The store.
    pub store: StoreId,
    /// The session that files created now belong to.
    pub session: u64,
    /// In recovery: the newest commit that the journal knows. No file can be ahead of it, and none may
    /// lack a predecessor. A living store knows what it has not applied yet.
    pub newest: Option<u64>,
    /// A directory of Untorn's own where a file may wait while two files swap names.
    pub limbo: PathBuf,
}

/// Where a file of the final state is now.
#[derive(Clone, Debug)]
pub enum Place {
    /// Under this name, recognised.
    At(PathBuf),
    /// Nowhere, and it need not be: unlinked, or not yet created.
    Nowhere,
}

/// What became of each file: where it is, or why it was left alone.
pub type Outcomes = BTreeMap<u64, Result<Place>>;

impl Applier<'_> {
    /// Finds every file, and checks it against its predecessors, without writing a byte.
    pub fn locate(&self, state: &FinalState) -> Outcomes {
        let mut outcomes: Outcomes = state.files.values().map(|file| (file.id, self.locate_one(file))).collect();
        if kept(Care::HalfMade) {
            self.locate_half_made(state, &mut outcomes);
        }
        outcomes
    }

    /// A crash may leave a file that was created empty and without its attribute, under any name that it
    /// had. Such files are alike, and any may be taken for any, but none may be left over: where one has
    /// been taken by another's right, that one must do with another of its names.
    fn locate_half_made(&self, state: &FinalState, outcomes: &mut Outcomes) {
        let mut claims = BTreeMap::<PathBuf, Vec<&FileState>>::new();
        for file in state.files.values() {
            if file.created.is_some() && matches!(outcomes[&file.id], Ok(Place::Nowhere)) {
                for name in file.names.iter().cloned().chain([self.limbo_of(file.id)]) {
                    claims.entry(name).or_default().push(file);
                }
            }
        }
        claims.retain(|name, files| matches!(self.look(files[0], name), Ok(Look::Adoptable)));
        for (name, files) in &mut claims {
            // Whose name it is in the end comes first.
            files.sort_by_key(|file| file.name.as_ref() != Some(name));
        }
        let mut taken = BTreeMap::new();
        for name in claims.keys() {
            take(name, &claims, &mut taken, &mut BTreeSet::new());
        }
        outcomes.extend(taken.into_iter().map(|(id, name)| (id, Ok(Place::At(name.to_owned())))));
    }

    fn limbo_of(&self, id: u64) -> PathBuf {
        self.limbo.join(format!("limbo.{id:016x}"))
    }

    fn locate_one(&self, file: &FileState) -> Result<Place> {
        let mut stranger = None;
        let limbo = self.limbo_of(file.id);
        for name in file.names.iter().rev().chain([&limbo]) {
            match self.look(file, name)? {
                Look::Ours => return Ok(Place::At(name.clone())),
                Look::Nothing => {}
                Look::Adoptable | Look::Other => stranger = Some(name.clone()),
            }
        }
        if file.name.is_none() || file.created.is_some() {
            // A stranger under a name that a created file wants shows when it is created.
            return Ok(Place::Nowhere);
        }
        let path = file.shown_name();
        Err(match stranger {
            Some(name) => Error::Conflict {
                path: name,
                detail: format!(
                    "another file is in the place of one with committed changes (up to commit {}) still in the journal",
                    file.last
                ),
            },
            None => Error::NeedsJournal {
                path: path.to_owned(),
                detail: format!(
                    "the file is gone from its place, with changes up to commit {} not yet in it",
                    file.last
                ),
            },
        })
    }

    /// Opens a name and compares its attribute.
    fn look(&self, file: &FileState, name: &Path) -> Result<Look> {
        let handle = match self.storage.open(name, Open::READ) {
            Ok(handle) => handle,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Look::Nothing),
            Err(e) if is_loop(&e) => return Ok(Look::Other),
            Err(e) => return Err(Error::io("open", name, e)),
        };
        let meta = handle.meta().context("look at", name)?;
        if meta.kind != Kind::File {
            return Ok(Look::Other);
        }
        match Attribute::decode(handle.attribute().context("read the attribute of", name)?.as_deref()) {
            AttributeFound::None if meta.size == 0 => Ok(Look::Adoptable),
            AttributeFound::Valid(a) if a.store == self.store && a.file == file.id => {
                if meta.links != 1 {
                    return Err(Error::Conflict {
                        path: name.to_owned(),
                        detail: format!("it has {} hard links; a managed file has one", meta.links),
                    });
                }
                if self.newest.is_some() && a.through < file.previous {
                    return Err(Error::Conflict {
                        path: name.to_owned(),
                        detail: format!(
                            "it is an older copy (it holds commits up to {}; the journal continues after {})",
                            a.through, file.previous
                        ),
                    });
                }
                if let Some(newest) = self.newest
                    && a.through > newest
                {
                    return Err(Error::Conflict {
                        path: name.to_owned(),
                        detail: format!("it is newer (commit {}) than the journal (commit {newest})", a.through),
                    });
                }
                Ok(Look::Ours)
            }
            _ => Ok(Look::Other),
        }
    }

    /// Makes names, existence and modes so. Files whose outcome is an error are left alone; a file
    /// that cannot be served turns into one. Actions wait for each other (a directory for its
    /// files, a name for its old holder) by being tried again while anything moves.
    pub fn apply_names(&self, state: &FinalState, outcomes: &mut Outcomes) -> Vec<Error> {
        let mut todo = self.actions(state, outcomes);
        loop {
            let before = todo.len();
            todo.retain_mut(|action| match self.attempt(action, state, outcomes) {
                Ok(Done::Done) => false,
                Ok(Done::Waits(why)) => {
                    action.why = Some(why);
                    true
                }
                Err(e) => match action.file {
                    Some(id) => {
                        outcomes.insert(id, Err(e));
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
            if todo.len() == before && !self.break_cycle(&mut todo, outcomes) {
                break;
            }
        }
        let mut left = Vec::new();
        for action in todo {
            let why = action.why.expect("an action that waits says why");
            match action.file {
                Some(id) => {
                    outcomes.insert(id, Err(why));
                }
                None => left.push(why),
            }
        }
        left
    }

    fn actions(&self, state: &FinalState, outcomes: &Outcomes) -> Vec<Action> {
        let mut todo = Vec::new();
        let action = |file: Option<u64>, what: What| Action { file, what, why: None };
        for file in state.files.values() {
            let Some(Ok(place)) = outcomes.get(&file.id) else { continue };
            let what = match (place, &file.name) {
                (Place::At(at), None) => What::Unlink { at: at.clone() },
                (Place::Nowhere, None) => continue,
                (Place::At(at), Some(to)) if at != to => What::Move { to: to.clone() },
                (Place::At(_), Some(_)) if file.created.is_none() && file.mode.is_none() => continue,
                (_, Some(to)) => What::Settle { at: to.clone() },
            };
            todo.push(action(Some(file.id), what));
        }
        for (path, dir) in &state.dirs {
            todo.push(action(None, What::Directory { path: path.clone(), dir: *dir }));
        }
        todo
    }

    fn attempt(&self, action: &Action, state: &FinalState, outcomes: &mut Outcomes) -> Result<Done> {
        match &action.what {
            What::Unlink { at } => {
                let id = action.file.expect("a file");
                if matches!(outcomes.get(&id), Some(Ok(Place::Nowhere))) {
                    // Replaced by a rename in the meantime: the name is another file's now.
                    return Ok(Done::Done);
                }
                match self.storage.unlink(at) {
                    Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io("unlink", at, e)),
                    _ => {}
                }
                outcomes.insert(id, Ok(Place::Nowhere));
                Ok(Done::Done)
            }
            What::Move { to } => self.attempt_move(action.file.expect("a file"), to, state, outcomes),
            What::Settle { at } => self.attempt_settle(&state.files[&action.file.expect("a file")], at, outcomes),
            What::Directory { path, dir } => self.attempt_directory(path, *dir),
        }
    }

    fn attempt_move(&self, id: u64, to: &Path, state: &FinalState, outcomes: &mut Outcomes) -> Result<Done> {
        let Some(Ok(Place::At(from))) = outcomes.get(&id).cloned() else { return Ok(Done::Done) };
        // A file that is to go anyway is replaced in one step, so that the name is never missing.
        let replaced = state
            .files
            .values()
            .find(|f| f.name.is_none() && matches!(outcomes.get(&f.id), Some(Ok(Place::At(at))) if at == to));
        match self.storage.rename(&from, to, replaced.is_some()) {
            Ok(()) => {
                if let Some(victim) = replaced {
                    outcomes.insert(victim.id, Ok(Place::Nowhere));
                }
                outcomes.insert(id, Ok(Place::At(to.to_owned())));
                self.attempt_settle(&state.files[&id], to, outcomes)
            }
            Err(e) if waits(&e) => Ok(Done::Waits(occupied(to, &e))),
            Err(e) => Err(Error::io("rename to", to, e)),
        }
    }

    /// A file at its final name: creates or adopts it, gives it its attribute and its mode.
    fn attempt_settle(&self, file: &FileState, at: &Path, outcomes: &mut Outcomes) -> Result<Done> {
        let mut made = None;
        if let Some(Ok(Place::Nowhere)) = outcomes.get(&file.id) {
            let mode = file.created.expect("only created files are nowhere and have a name");
            match self.storage.open(at, Open::create(mode)) {
                Ok(handle) => made = Some(handle),
                Err(e) if waits(&e) => {
                    if !matches!(self.look(file, at), Ok(Look::Adoptable | Look::Ours)) {
                        return Ok(Done::Waits(occupied(at, &e)));
                    }
                }
                Err(e) => return Err(Error::io("create", at, e)),
            }
            outcomes.insert(file.id, Ok(Place::At(at.to_owned())));
        }
        let handle = match made {
            Some(handle) => handle,
            None => open_for_writing(self.storage, at).context("open", at)?,
        };
        if file.created.is_some()
            && Attribute::decode(handle.attribute().context("read the attribute of", at)?.as_deref())
                == AttributeFound::None
        {
            let attribute = Attribute {
                store: self.store,
                file: file.id,
                session: self.session,
                through: file.previous,
                place: Attribute::place_of(at),
                pending: true,
            };
            handle.set_attribute(&attribute.encode()).context("set the attribute of", at)?;
        }
        if let Some(mode) = file.mode.or(file.created)
            && handle.meta().context("look at", at)?.mode != mode
        {
            handle.set_mode(mode).context("change the mode of", at)?;
        }
        Ok(Done::Done)
    }

    fn attempt_directory(&self, path: &Path, dir: DirState) -> Result<Done> {
        if !dir.exists {
            return match self.storage.rmdir(path) {
                Ok(()) => Ok(Done::Done),
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Done::Done),
                Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => Ok(Done::Waits(Error::Conflict {
                    path: path.to_owned(),
                    detail: "the directory is to be removed, but somebody put something in it".into(),
                })),
                Err(e) => Err(Error::io("remove the directory", path, e)),
            };
        }
        match self.storage.stat(path) {
            Ok(meta) if meta.kind == Kind::Directory => {
                if let Some(mode) = dir.mode
                    && meta.mode != mode
                {
                    self.storage.set_dir_mode(path, mode).context("change the mode of", path)?;
                }
                return Ok(Done::Done);
            }
            Ok(_) => return Ok(Done::Waits(occupied(path, &ErrorKind::AlreadyExists.into()))),
            Err(_) => {}
        }
        match self.storage.mkdir(path, dir.mode.unwrap_or(0o700)) {
            Ok(()) => Ok(Done::Done),
            Err(e) if waits(&e) => Ok(Done::Waits(occupied(path, &e))),
            Err(e) => Err(Error::io("make the directory", path, e)),
        }
    }

    /// Files wait for each other's names in a circle: one steps aside.
    fn break_cycle(&self, todo: &mut [Action], outcomes: &mut Outcomes) -> bool {
        for action in todo {
            let What::Move { .. } = action.what else { continue };
            let id = action.file.expect("a file");
            let limbo = self.limbo_of(id);
            let Some(Ok(Place::At(from))) = outcomes.get(&id) else { continue };
            if *from != limbo && self.storage.rename(from, &limbo, false).is_ok() {
                outcomes.insert(id, Ok(Place::At(limbo)));
                return true;
            }
        }
        false
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

/// Gives a name to one of the files that claim it. Who has another one by then gives it up if somebody
/// else takes it: an augmenting path. `asked` are those who were asked already.
fn take<'f>(
    name: &'f Path,
    claims: &'f BTreeMap<PathBuf, Vec<&FileState>>,
    taken: &mut BTreeMap<u64, &'f Path>,
    asked: &mut BTreeSet<u64>,
) -> bool {
    for file in &claims[name] {
        if !asked.insert(file.id) {
            continue;
        }
        let other = taken.get(&file.id).copied();
        if other.is_none_or(|other| take(other, claims, taken, asked)) {
            taken.insert(file.id, name);
            return true;
        }
    }
    false
}

/// Opens a file for writing, also one whose mode forbids that to its owner, who is the one to ask: the
/// mode is lifted for the moment of opening.
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

enum Look {
    Nothing,
    Ours,
    /// Empty and without an attribute: what a crash leaves of a creation.
    Adoptable,
    Other,
}

enum Done {
    Done,
    Waits(Error),
}

struct Action {
    file: Option<u64>,
    what: What,
    why: Option<Error>,
}

enum What {
    Unlink { at: PathBuf },
    Move { to: PathBuf },
    Settle { at: PathBuf },
    Directory { path: PathBuf, dir: DirState },
}

fn waits(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn is_loop(e: &std::io::Error) -> bool {
    // ELOOP has no stable name in ErrorKind; EISDIR is what opening a directory for writing says.
    e.raw_os_error() == Some(40) || e.kind() == ErrorKind::IsADirectory
}

fn occupied(path: &Path, e: &std::io::Error) -> Error {
    let detail = match e.kind() {
        ErrorKind::AlreadyExists => "the name is taken by a file that is not the one the journal knows".to_owned(),
        _ => format!("its directory is not there ({e})"),
    };
    Error::Conflict { path: path.to_owned(), detail }
}

/// Makes one file's contents so. The file never passes through a size smaller than its final one.
pub fn apply_layer(file: &dyn File, layer: &Layer, path: &Path) -> Result<()> {
    let current = file.meta().context("look at", path)?.size;
    let size = layer.size.unwrap_or(current);
    if size < current {
        // Cut first: it never needs space, and what lies beyond is not wanted in any case.
        file.set_len(size).context("truncate", path)?;
    }
    let mut chunk = Vec::new();
    for (range, source) in layer.ranges() {
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
            Source::Extent { .. } => {
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
    if file.meta().context("look at", path)?.size != size {
        file.set_len(size).context("extend", path)?;
    }
    debug_assert!(layer.ranges().all(|(r, s)| r.end != NO_END || *s == Source::Zero));
    Ok(())
}
