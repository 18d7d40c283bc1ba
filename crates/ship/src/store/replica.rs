//! A directory that follows: a store whose own transactions carry the state.
//!
//! It shows committed states only, to every reader. Contents that replace everything are built beside, and the
//! directories are exchanged in one step; readers that had the old one open keep it.

use crate::error::{Error, Result};
use crate::interface::{Commit, Owner, OwnerId, Pieces, Random, State, Target};
use crate::store::body::{Edit, Kind, decode};
use crate::store::fresh::{Fresh, check_free, flush_parent};
use crate::store::owner::{OwnerFile, who};
use crate::store::paths::{REPLICA, REPLICA_OWNER};
use crate::store::plain::{PlainTarget, Progress, begin};
use crate::store::replica_state;
use std::collections::{HashMap, HashSet};
use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use untorn::{File, Store, Txn};

/// A directory that follows.
pub struct Replica {
    dir: PathBuf,
    store: Option<Store>,
    owner: OwnerFile,
    /// Makes the progress of loading contents.
    progress: Box<dyn Fn() -> Progress>,
}

fn failed(e: untorn::Error) -> Error {
    Error::store(e)
}

impl Replica {
    /// Opens a following directory. A directory that is empty or not there becomes one with the first contents.
    ///
    /// # Errors
    /// The directory is something else, or another process has it.
    pub fn open(dir: &Path, progress: Box<dyn Fn() -> Progress>) -> Result<Replica> {
        let is_replica = dir.join(REPLICA).symlink_metadata().is_ok();
        if !is_replica {
            check_free(dir)?;
        }
        let store = is_replica.then(|| Store::open_or_create(dir)).transpose().map_err(failed)?;
        let owner = OwnerFile::at(dir.join(REPLICA_OWNER));
        Ok(Replica { dir: dir.to_owned(), store, owner, progress })
    }

    /// Ends the process's ownership of the directory.
    ///
    /// # Errors
    /// The store cannot be closed.
    pub fn close(self) -> Result<()> {
        self.store.map_or(Ok(()), |store| store.close().map_err(failed))
    }
}

/// Makes the store of a promoted directory, which its process has closed: its LSNs go on behind the state, and it ships
/// as the owner that shut the other machines out. False if the store of the directory is not made yet; with `state` it
/// is made. The file with the state goes last, so that a killed promotion is finished by the next; one that was killed
/// behind that was complete.
///
/// # Errors
/// The directory cannot be written.
pub fn finish_promotion(dir: &Path, state: Option<&State>, slot: &str) -> Result<bool> {
    let file = dir.join(REPLICA);
    if state.is_none()
        && file.symlink_metadata().is_err()
        && untorn::Slot::open(dir, slot).is_ok_and(|slot| slot.dir().join("owner").exists())
    {
        return Ok(true);
    }
    let is_begun = || -> Option<bool> {
        let known = replica_state::decode(&std::fs::read(&file).ok()?).ok()?;
        let found = untorn::Reader::open(dir).and_then(|reader| reader.store_id()).ok()?;
        Some(found == known.store)
    };
    if is_begun() != Some(true) {
        let Some(state) = state else { return Ok(false) };
        if dir.join(".untorn").symlink_metadata().is_ok() {
            untorn::offline::eject(dir, &|_, _| {}).map_err(failed)?;
        }
        begin(dir, state)?;
    }
    let slot = untorn::Slot::open_or_create(dir, slot, None).map_err(failed)?;
    let io = |verb: &'static str, path: &Path| {
        let path = path.to_owned();
        move |e| Error::store(format!("{verb} {}: {e}", path.display()))
    };
    // The inode is a part of the place, so the file itself moves.
    let (from, to) = (dir.join(REPLICA_OWNER), slot.dir().join("owner"));
    match std::fs::hard_link(&from, &to) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(io("make", &to)(e)),
        _ => flush_parent(&to).map_err(io("flush", &to))?,
    }
    for path in [&from, &file] {
        std::fs::remove_file(path).map_err(io("remove", path))?;
    }
    flush_parent(&file).map_err(io("flush", dir))?;
    Ok(true)
}

impl Owner for Replica {
    fn owner(&mut self) -> Result<Option<OwnerId>> {
        self.owner.read()
    }

    fn set_owner(&mut self, owner: OwnerId) -> Result<()> {
        self.owner.write(owner)
    }

    fn place(&mut self) -> Result<Random> {
        self.owner.place()
    }

    fn who(&self) -> String {
        who()
    }
}

impl Target for Replica {
    fn state(&mut self) -> Result<Option<State>> {
        let Some(store) = &self.store else { return Ok(None) };
        let file = store.open_file(REPLICA).map_err(failed)?;
        let mut text = vec![0; file.len().map_err(failed)? as usize];
        file.read_exact_at(&mut text, 0).map_err(failed)?;
        replica_state::decode(&text).map(Some)
    }

    fn apply(&mut self, commits: &[Commit], state: &State) -> Result<()> {
        let Some(store) = &self.store else { return Err(Error::store("a directory without a state follows nothing")) };
        let mut applying = Applying { dir: &self.dir, store, txn: store.begin(), names: HashMap::new() };
        for commit in commits {
            let wrong = |reason| Error::Damaged { name: format!("commit #{}", commit.lsn), reason };
            let edits = decode(&commit.body).map_err(wrong)?;
            applying.apply(&edits).map_err(failed)?;
        }
        applying.put_state(&replica_state::encode(state)).and_then(|()| applying.txn.commit()).map_err(failed)
    }

    fn replace(&mut self, pieces: Option<&mut dyn Pieces>, state: &State) -> Result<()> {
        let fresh = Fresh::beside(&self.dir, "untorn-follow")?;
        let mut target = PlainTarget::new(fresh.dir(), (self.progress)())?;
        target.replace(pieces, state)?;
        target.put(Path::new(REPLICA), replica_state::encode(state).as_bytes())?;
        // The inode is a part of the place, so the file itself moves.
        let kept = fresh.dir().join(REPLICA_OWNER);
        match std::fs::hard_link(self.owner.path(), &kept) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(Error::store(format!("make {}: {e}", kept.display())));
            }
            _ => {}
        }
        target.finish()?;
        match self.store.take() {
            None => fresh.name()?,
            Some(store) => {
                store.close().map_err(failed)?;
                fresh.exchange()?;
            }
        }
        self.store = Some(Store::open_or_create(&self.dir).map_err(failed)?);
        Ok(())
    }

    fn pieces(&mut self) -> Result<Box<dyn Pieces + '_>> {
        Err(Error::store("snapshots are made of a copy in a temporary directory, not of a following one"))
    }
}

/// Commits that are applied in one transaction.
struct Applying<'a> {
    dir: &'a Path,
    store: &'a Store,
    txn: Txn,
    /// Files by the names that they have in the transaction, as far as it changed them.
    names: HashMap<PathBuf, File>,
}

impl Applying<'_> {
    fn apply(&mut self, edits: &[Edit]) -> untorn::Result<()> {
        let made: HashSet<u32> =
            edits.iter().filter(|edit| matches!(edit.kind, Kind::Created(_))).map(|edit| edit.file).collect();
        let mut files: HashMap<u32, File> = HashMap::new();
        for edit in edits.iter().filter(|edit| edit.file != 0 && !made.contains(&edit.file)) {
            let is_needed = edit.has_contents() || matches!(edit.kind, Kind::Renamed(_));
            if is_needed && !files.contains_key(&edit.file) {
                files.insert(edit.file, self.open(&edit.path)?);
            }
        }
        let mut renamed: HashMap<u32, PathBuf> = HashMap::new();
        for edit in edits {
            let path = renamed.get(&edit.file).filter(|_| edit.file != 0).unwrap_or(&edit.path).clone();
            match &edit.kind {
                Kind::Created(mode) => {
                    let file = self.txn.create(&path, mode & 0o777)?;
                    files.insert(edit.file, file.try_clone()?);
                    self.names.insert(path, file);
                }
                Kind::Renamed(to) => {
                    self.txn.rename(&path, to)?;
                    self.names.remove(&path);
                    if let Some(file) = files.get(&edit.file) {
                        self.names.insert(to.clone(), file.try_clone()?);
                    }
                    renamed.insert(edit.file, to.clone());
                }
                Kind::Removed => {
                    self.names.remove(&path);
                    self.txn.unlink(&path)?;
                }
                Kind::Mode(mode) => self.txn.chmod(&path, mode & if edit.file == 0 { 0o1777 } else { 0o777 })?,
                Kind::DirectoryMade(mode) => self.txn.mkdir(&path, mode & 0o1777)?,
                Kind::DirectoryRemoved => self.txn.rmdir(&path)?,
                Kind::Written(..) | Kind::Zeroed(..) | Kind::Resized(_) => {}
            }
        }
        for edit in edits.iter().filter(|edit| edit.has_contents()) {
            let Some(file) = files.get(&edit.file) else { continue };
            match &edit.kind {
                Kind::Written(start, bytes) => file.write_all_at(bytes, *start)?,
                Kind::Zeroed(start, end) => {
                    let len = file.len()?;
                    if *end > len {
                        file.set_len(*end)?;
                    }
                    if *start < len.min(*end) {
                        file.zero(*start, len.min(*end) - start)?;
                    }
                }
                Kind::Resized(len) => file.set_len(*len)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The file under a name. One that no commit made may be missing: it was no file of the store before.
    fn open(&mut self, path: &Path) -> untorn::Result<File> {
        if let Some(file) = self.names.get(path) {
            return file.try_clone();
        }
        let file = match self.store.open_file(path) {
            Err(untorn::Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                self.txn.create(path, 0o600)?
            }
            Err(untorn::Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
                self.open_protected(path)?
            }
            opened => opened?,
        };
        self.txn.add(&file)?;
        self.names.insert(path.to_owned(), file.try_clone()?);
        Ok(file)
    }

    /// Opens a file whose mode does not let its owner write, under another mode for the moment.
    fn open_protected(&self, path: &Path) -> untorn::Result<File> {
        let full = self.dir.join(path);
        let failed = |e| untorn::Error::io("open for writing", full.clone(), e);
        let mode = full.metadata().map_err(failed)?.permissions().mode();
        let set = |mode| std::fs::set_permissions(&full, Permissions::from_mode(mode & 0o7777)).map_err(failed);
        set(mode | 0o600)?;
        let opened = self.store.open_file(path);
        set(mode)?;
        opened
    }

    fn put_state(&mut self, text: &str) -> untorn::Result<()> {
        let file = self.open(Path::new(REPLICA))?;
        file.set_len(text.len() as u64)?;
        file.write_all_at(text.as_bytes(), 0)
    }
}
