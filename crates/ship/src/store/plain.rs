//! A new directory of plain files, into which a history is written: for restoring, and as a workspace.
//!
//! Nothing is read or written outside of it, and no link is followed: the storage opens each path beneath the directory,
//! step by step. Files and directories are open for their user only until [`PlainTarget::finish`].

use crate::error::{Error, Result};
use crate::interface::{Commit, PIECE_BYTES_MAX, Piece, Pieces, State, Target};
use crate::store::body::{Edit, Kind, decode};
use crate::store::entry::{About, is_zero};
use crate::sync_point;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{File, Linux, Open, Storage, write_all_at};

const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Progress: how many bytes were written so far.
pub type Progress = Box<dyn FnMut(u64) + Send>;

/// A directory that is restored into.
pub struct PlainTarget {
    dir: PathBuf,
    storage: Arc<Linux>,
    state: Option<State>,
    /// The permission bits that files and directories get at the end.
    modes: BTreeMap<PathBuf, (u32, bool)>,
    /// The file of a store that has this file only.
    standalone: Option<PathBuf>,
    written: u64,
    progress: Progress,
}

impl PlainTarget {
    /// A target in an empty directory, which exists.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn new(dir: &Path, progress: Progress) -> Result<PlainTarget> {
        let storage = Linux::open(dir).map_err(|e| Error::store(format!("open {}: {e}", dir.display())))?;
        let (dir, state, modes) = (dir.to_owned(), None, BTreeMap::new());
        Ok(PlainTarget { dir, storage, state, modes, standalone: None, written: 0, progress })
    }

    /// Gives all files their permission bits, and flushes everything.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn finish(&mut self) -> Result<()> {
        // The deepest first: a directory may lose its user's own rights.
        for (path, (mode, is_directory)) in self.modes.iter().rev() {
            // Of a bucket that somebody else wrote, nobody gets a program with this user's rights.
            let done = match is_directory {
                true => self.storage.set_dir_mode(path, mode & 0o1777),
                false => self.storage.open(path, Open::READ).and_then(|file| file.set_mode(mode & 0o777)),
            };
            done.map_err(|e| self.failed("set the permissions of", path, e))?;
        }
        let flushed = self.storage.sync_file_system(sync_point::RESTORED);
        flushed.map_err(|e| self.failed("flush", Path::new(""), e))
    }

    /// Makes the store of the restored files, which are flushed: its LSNs go on behind theirs.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn make_store(&mut self) -> Result<()> {
        let Some(state) = self.state.as_ref().filter(|state| state.point.lsn > 0) else { return Ok(()) };
        let path = self.standalone.as_ref().map_or(self.dir.clone(), |file| self.dir.join(file));
        begin(&path, state)
    }

    /// Writes a file of this program's own.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        let written = self.storage.open(path, Open::create(FILE_MODE)).and_then(|file| write_all_at(&*file, bytes, 0));
        self.modes.insert(path.to_owned(), (FILE_MODE, false));
        written.map_err(|e| self.failed("write", path, e))
    }

    fn failed(&self, verb: &str, path: &Path, e: io::Error) -> Error {
        Error::store(format!("{verb} {}: {e}", self.dir.join(path).display()))
    }

    fn clear(&mut self) -> Result<()> {
        fn remove(storage: &Linux, dir: &Path) -> io::Result<()> {
            for name in storage.list(dir)? {
                let path = dir.join(name);
                if storage.stat(&path)?.kind == untorn_os::Kind::Directory {
                    remove(storage, &path)?;
                    storage.rmdir(&path)?;
                } else {
                    storage.unlink(&path)?;
                }
            }
            Ok(())
        }
        self.modes.clear();
        (self.state, self.standalone) = (None, None);
        remove(&self.storage, Path::new("")).map_err(|e| self.failed("empty", Path::new(""), e))
    }

    fn progressed(&mut self, bytes: usize) {
        self.written += bytes as u64;
        (self.progress)(self.written);
    }

    fn load(&mut self, pieces: &mut dyn Pieces) -> Result<()> {
        let mut file: Option<(PathBuf, Arc<dyn File>, u64)> = None;
        while let Some(piece) = pieces.next_piece()? {
            let about = About::of(&piece).map_err(|reason| hostile("a snapshot", reason))?;
            if let About::Standalone(path, ..) = &about {
                self.standalone = Some(path.clone());
            }
            match about {
                About::Directory(path, mode) => {
                    self.storage.mkdir(&path, DIRECTORY_MODE).map_err(|e| self.failed("make", &path, e))?;
                    self.modes.insert(path, (mode, true));
                }
                About::File(path, mode, len) | About::Standalone(path, mode, len) => {
                    let made = self.storage.open(&path, Open::create(FILE_MODE));
                    let made = made.and_then(|file| file.set_len(len).map(|()| file));
                    file = Some((path.clone(), made.map_err(|e| self.failed("make", &path, e))?, len));
                    self.modes.insert(path, (mode, false));
                }
                About::Contents(offset) => {
                    let of_file = file.as_ref().filter(|(.., len)| offset + piece.data.len() as u64 <= *len);
                    let Some((path, file, _)) = of_file else {
                        return Err(hostile("a snapshot", "it has contents that belong to no file".into()));
                    };
                    let written = write_all_at(&**file, &piece.data, offset);
                    written.map_err(|e| self.failed("write", path, e))?;
                    self.progressed(piece.data.len());
                }
            }
        }
        Ok(())
    }

    fn apply_one(&mut self, commit: &Commit) -> Result<()> {
        let wrong = |reason| hostile(&format!("commit #{}", commit.lsn), reason);
        let edits = decode(&commit.body).map_err(wrong)?;
        // Contents precede names in a record: so the files are opened first, under the names before the commit.
        let made: Vec<u32> =
            edits.iter().filter(|edit| matches!(edit.kind, Kind::Created(_))).map(|edit| edit.file).collect();
        let mut files: HashMap<u32, Arc<dyn File>> = HashMap::new();
        for edit in edits.iter().filter(|edit| edit.has_contents() && !made.contains(&edit.file)) {
            if let std::collections::hash_map::Entry::Vacant(entry) = files.entry(edit.file) {
                entry.insert(self.open(&edit.path)?);
            }
        }
        let mut names: HashMap<u32, PathBuf> = HashMap::new();
        for edit in &edits {
            self.change_name(edit, &mut names, &mut files).map_err(|e| self.failed("change", &edit.path, e))?;
        }
        for edit in edits.iter().filter(|edit| edit.has_contents()) {
            let Some(file) = files.get(&edit.file) else { continue };
            change_contents(&**file, &edit.kind).map_err(|e| self.failed("write", &edit.path, e))?;
        }
        self.progressed(commit.body.len());
        Ok(())
    }

    /// Opens a file for writing. One that no commit made may be missing: it was no file of the store before.
    fn open(&mut self, path: &Path) -> Result<Arc<dyn File>> {
        let opened = match self.storage.open(path, Open::WRITE) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.modes.insert(path.to_owned(), (FILE_MODE, false));
                self.storage.open(path, Open::create(FILE_MODE))
            }
            opened => opened,
        };
        opened.map_err(|e| self.failed("open", path, e))
    }

    fn change_name(
        &mut self,
        edit: &Edit,
        names: &mut HashMap<u32, PathBuf>,
        files: &mut HashMap<u32, Arc<dyn File>>,
    ) -> io::Result<()> {
        let path = names.get(&edit.file).filter(|_| edit.file != 0).unwrap_or(&edit.path).clone();
        match &edit.kind {
            Kind::Created(mode) => {
                files.insert(edit.file, self.storage.open(&path, Open::create(FILE_MODE))?);
                self.modes.insert(path, (*mode, false));
            }
            Kind::Renamed(to) => {
                self.storage.rename(&path, to, true)?;
                let mode = self.modes.remove(&path).unwrap_or((FILE_MODE, false));
                self.modes.insert(to.clone(), mode);
                names.insert(edit.file, to.clone());
            }
            Kind::Removed => {
                self.modes.remove(&path);
                self.storage.unlink(&path)?;
            }
            Kind::Mode(mode) => {
                self.modes.insert(path, (*mode, edit.file == 0));
            }
            Kind::DirectoryMade(mode) => {
                self.storage.mkdir(&path, DIRECTORY_MODE)?;
                self.modes.insert(path, (*mode, true));
            }
            Kind::DirectoryRemoved => {
                self.modes.remove(&path);
                self.storage.rmdir(&path)?;
            }
            Kind::Written(..) | Kind::Zeroed(..) | Kind::Resized(_) => {}
        }
        Ok(())
    }
}

/// Makes the store of files that are those of a commit.
///
/// # Errors
/// There is one, or it cannot be made.
pub fn begin(path: &Path, state: &State) -> Result<()> {
    let start =
        |start: &crate::interface::EpochStart| untorn::EpochStart { epoch: start.epoch, first_lsn: start.first_lsn };
    let epochs: Vec<_> = state.epochs.iter().map(start).collect();
    let last = untorn::Point { epoch: state.point.epoch, lsn: state.point.lsn };
    untorn::begin_at(path, state.store, &epochs, last).map_err(Error::store)
}

/// An error of contents that nobody can have written by Untorn.
fn hostile(name: &str, reason: String) -> Error {
    Error::Damaged { name: name.into(), reason }
}

fn change_contents(file: &dyn File, kind: &Kind) -> io::Result<()> {
    match kind {
        Kind::Written(start, bytes) => write_all_at(file, bytes, *start),
        Kind::Zeroed(start, end) => {
            let size = file.meta()?.size;
            if *end > size {
                file.set_len(*end)?;
            }
            let end = size.min(*end);
            if *start < end { file.zero(*start, end - start) } else { Ok(()) }
        }
        Kind::Resized(len) => file.set_len(*len),
        _ => Ok(()),
    }
}

impl Target for PlainTarget {
    fn state(&mut self) -> Result<Option<State>> {
        Ok(self.state.clone())
    }

    fn apply(&mut self, commits: &[Commit], state: &State) -> Result<()> {
        for commit in commits {
            self.apply_one(commit)?;
        }
        self.state = Some(state.clone());
        Ok(())
    }

    fn replace(&mut self, pieces: Option<&mut dyn Pieces>, state: &State) -> Result<()> {
        self.clear()?;
        if let Some(pieces) = pieces {
            self.load(pieces)?;
        }
        self.state = Some(state.clone());
        Ok(())
    }

    fn pieces(&mut self) -> Result<Box<dyn Pieces + '_>> {
        Ok(Box::new(PlainPieces { target: self, ahead: vec![PathBuf::new()], file: None }))
    }
}

/// The contents as pieces: the same ones as of a snapshot of the store.
struct PlainPieces<'a> {
    target: &'a PlainTarget,
    ahead: Vec<PathBuf>,
    file: Option<(Arc<dyn File>, u64, u64)>,
}

impl PlainPieces<'_> {
    fn add_names(&mut self, dir: &Path) -> io::Result<()> {
        let mut names = self.target.storage.list(dir)?;
        names.sort_unstable();
        self.ahead.extend(names.into_iter().rev().map(|name| dir.join(name)));
        Ok(())
    }

    fn block(&mut self) -> io::Result<Option<Piece>> {
        while let Some((file, len, offset)) = &mut self.file {
            if *offset >= *len {
                self.file = None;
                break;
            }
            let at = *offset;
            let mut block = vec![0; (*len - at).min(PIECE_BYTES_MAX as u64) as usize];
            untorn_os::read_full_at(&**file, &mut block, at)?;
            *offset += block.len() as u64;
            if !is_zero(&block) {
                return Ok(Some(About::Contents(at).piece(block.into())));
            }
        }
        Ok(None)
    }

    fn next(&mut self) -> io::Result<Option<Piece>> {
        loop {
            if let Some(piece) = self.block()? {
                return Ok(Some(piece));
            }
            let Some(path) = self.ahead.pop() else { return Ok(None) };
            if path.as_os_str().is_empty() {
                self.add_names(&path)?;
                continue;
            }
            let mode = |default| self.target.modes.get(&path).map_or(default, |(mode, _)| *mode);
            if self.target.storage.stat(&path)?.kind == untorn_os::Kind::Directory {
                let about = About::Directory(path.clone(), mode(DIRECTORY_MODE));
                self.add_names(&path)?;
                return Ok(Some(about.piece(Bytes::new())));
            }
            let file = self.target.storage.open(&path, Open::READ)?;
            let len = file.meta()?.size;
            let is_alone = self.target.standalone.as_ref() == Some(&path);
            let of_file = if is_alone { About::Standalone } else { About::File };
            let about = of_file(path.clone(), mode(FILE_MODE), len);
            self.file = Some((file, len, 0));
            return Ok(Some(about.piece(Bytes::new())));
        }
    }
}

impl Pieces for PlainPieces<'_> {
    fn next_piece(&mut self) -> Result<Option<Piece>> {
        self.next().map_err(|e| Error::store(format!("read {}: {e}", self.target.dir.display())))
    }
}
