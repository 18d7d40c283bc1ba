//! Files whose store is lost: they wait for commits in a journal that is not here any more.

use crate::engine::lifecycle::left_marks::LeftMark;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::data_files::data_tree::{Unreached, each_data_file};
use untorn_journal::data_files::detach::detach_file;
use untorn_journal::data_files::locate::older_journal;
use untorn_journal::directories::quarantine::PendingFiles;
use untorn_journal::directories::store_dir::{STORE_DIR, StoreDir};
use untorn_journal::format::{Attribute, AttributeFound, Header, StoreId, hex};
use untorn_journal::scanning::scan::read_header;
use untorn_journal::sync_point;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Linux, Open, Storage};

/// A file that waits for commits in a journal that is not here: its store's directory `.untorn` was removed, or the
/// file was moved away from it. Every store refuses it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LostFile {
    /// Its path in the directory that was searched.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub path: PathBuf,
    /// Identity of its store, in hexadecimal digits.
    pub store_id: String,
    /// Whether a journal of that store is here, but does not know the owner that marked the file: an older `.untorn`
    /// was put back.
    pub older_journal: bool,
    /// Whether it is not in its place in the store: it was moved or copied while it waited for commits.
    pub moved: bool,
}

impl LostFile {
    /// The problem, and the next step for the user.
    pub fn problem(&self) -> String {
        if self.older_journal {
            return older_journal(&self.path).to_string();
        }
        if self.moved {
            return format!(
                "{} was moved or copied in its store while it waited for commits: move it back to its name and run `untorn \
                 recover`, or take the file as it is with `untorn recover --accept-lost`",
                self.path.display()
            );
        }
        format!(
            "{} waits for commits in the journal of store {}, which is not here: put the `.untorn` of that store back, \
             or, if it is lost, take the file as it is with `untorn recover --accept-lost`",
            self.path.display(),
            self.store_id
        )
    }
}

/// The storage that contains a path's store, if there is one, and Untorn's directory in it.
pub(crate) fn place(path: &Path) -> Result<(Arc<Linux>, StoreDir)> {
    let meta = std::fs::metadata(path);
    if meta.as_ref().is_ok_and(|m| m.is_dir()) {
        return Ok((Linux::open(path).context("open", path)?, StoreDir::of_directory()));
    }
    let name = path.file_name().ok_or_else(|| Error::invalid(format!("{} names no file", path.display())))?;
    match meta {
        // The store of a standalone file may exist without the file.
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io("look at", path, e)),
        _ => {}
    }
    let storage = Linux::open(path.parent().unwrap_or(Path::new(""))).context("open the directory of", path)?;
    Ok((storage, StoreDir::of_file(Path::new(name))))
}

/// The stores that are here: the path's own, and those of the directories above it.
#[derive(Default)]
struct Here {
    /// Their newest headers.
    headers: BTreeMap<StoreId, Header>,
    /// The store of the path itself.
    own: Option<StoreId>,
    /// Files that wait for quarantined journals.
    waiting: BTreeSet<u64>,
}

fn stores_here(path: &Path, storage: &dyn Storage, store_dir: &StoreDir) -> Result<Here> {
    let mut found = Here::default();
    found.add(storage, store_dir)?;
    let whole = path.canonicalize().context("look at", path)?;
    for above in whole.ancestors().skip(1).filter(|dir| dir.join(STORE_DIR).symlink_metadata().is_ok()) {
        let storage = Linux::open(above).context("open", above)?;
        let own = found.own;
        found.add(&*storage, &StoreDir::of_directory())?;
        found.own = own;
    }
    Ok(found)
}

impl Here {
    fn add(&mut self, storage: &dyn Storage, store_dir: &StoreDir) -> Result<()> {
        match storage.stat(&store_dir.dir) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            done => drop(done.context("look at", &store_dir.dir)?),
        }
        let quarantined = store_dir.quarantined_journals(storage)?;
        for journal in &quarantined {
            let pending = PendingFiles::read(storage, journal)?;
            self.waiting.extend(pending.iter().flat_map(PendingFiles::file_ids));
        }
        for journal in quarantined.into_iter().chain([store_dir.journal()]) {
            match storage.stat(&journal) {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                done => {
                    done.context("look at", &journal)?;
                    let header = read_header(storage, &journal)?;
                    self.own = Some(header.store);
                    // The journal itself comes last, because its header has the state that its predecessors left.
                    self.headers.insert(header.store, header);
                }
            }
        }
        Ok(())
    }

    /// Describes the loss of a file of this path, if it is lost.
    fn loss(&self, path: &Path, a: &Attribute) -> Option<LostFile> {
        let lost =
            |older_journal, moved| LostFile { path: path.to_owned(), store_id: hex(&a.store), older_journal, moved };
        match self.headers.get(&a.store) {
            _ if !a.pending || self.waiting.contains(&a.file) => None,
            None => Some(lost(false, false)),
            Some(header) if !header.knows(a) => Some(lost(true, false)),
            Some(_) if self.is_left(a) && a.path_crc != Attribute::path_crc_of(path) => Some(lost(false, true)),
            Some(_) => None,
        }
    }

    /// Whether the path's own store is closed, and has no commits for which the file waits.
    fn is_left(&self, a: &Attribute) -> bool {
        let header = self.own.filter(|own| *own == a.store).and_then(|own| self.headers.get(&own));
        a.pending
            && header.is_some_and(|header| header.is_closed() && header.knows(a))
            && !self.waiting.contains(&a.file)
    }
}

/// Files that wait for commits that cannot come, in a directory or of a standalone file.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Files for which no journal here has the commits.
    pub(crate) lost: Vec<LostFile>,
    /// Files whose store is here and closed: they are complete, but their marks were not cleared.
    pub(crate) left: Vec<LeftMark>,
}

/// The files of a path that wait for commits of which no journal here knows.
pub fn lost_files(path: &Path) -> Result<Vec<LostFile>> {
    Ok(waiting_files(path)?.lost)
}

pub(crate) fn waiting_files(path: &Path) -> Result<Waiting> {
    let (storage, store_dir) = place(path)?;
    let here = stores_here(path, &*storage, &store_dir)?;
    let suspects = Suspects::find(&*storage, &store_dir, &here);
    if suspects.files.iter().all(|(_, a)| !here.headers.contains_key(&a.store)) {
        return Ok(suspects.judge(&here));
    }
    // A new owner has written a header before it marked a file, so read the headers again.
    Ok(suspects.judge(&stores_here(path, &*storage, &store_dir)?))
}

/// Files with marks that seem to be of dead owners, and files and directories that cannot be read.
struct Suspects {
    files: Vec<(PathBuf, Attribute)>,
    unreached: Vec<Unreached>,
}

impl Suspects {
    fn find(storage: &dyn Storage, store_dir: &StoreDir, here: &Here) -> Suspects {
        let (mut files, mut unread) = (Vec::new(), Vec::new());
        let mut unreached = each_data_file(storage, store_dir, &mut |path| {
            let value = match storage.open(path, Open::READ).and_then(|file| file.attribute()) {
                Ok(value) => value,
                Err(e) if e.kind() == ErrorKind::NotFound => return,
                Err(error) => return unread.push(Unreached { path: path.to_owned(), error }),
            };
            if let AttributeFound::Valid(a) = Attribute::decode(value.as_deref())
                && (here.loss(path, &a).is_some() || here.is_left(&a))
            {
                files.push((path.to_owned(), a));
            }
        });
        unreached.append(&mut unread);
        Suspects { files, unreached }
    }

    fn judge(&self, here: &Here) -> Waiting {
        let mut waiting = Waiting::default();
        for (path, a) in &self.files {
            match here.loss(path, a) {
                Some(lost) => waiting.lost.push(lost),
                None if here.is_left(a) => waiting.left.push(LeftMark {
                    path: path.clone(),
                    reason: "it could not be changed".into(),
                    seen: true,
                }),
                None => {}
            }
        }
        // If the last owner could not clear all marks, one may be in a file or directory that cannot be read.
        let header = here.own.and_then(|own| here.headers.get(&own));
        if header.is_some_and(|header| header.is_closed() && header.marks_left) {
            waiting.left.extend(self.unreached.iter().map(|one| LeftMark::unseen(&one.path, &one.error)));
        }
        waiting
    }
}

/// Accepts the lost files of a path as they are, without the commits for which they waited: makes them plain files.
/// Files of stores that are here are not changed.
///
/// # Errors
/// [`Error::Unsupported`] if this user may not change one of them; the others are plain files then.
pub fn accept_lost(path: &Path) -> Result<Vec<LostFile>> {
    let (storage, store_dir) = place(path)?;
    let here = stores_here(path, &*storage, &store_dir)?;
    let lost = Suspects::find(&*storage, &store_dir, &here).judge(&here).lost;
    for file in &lost {
        let is_lost_now =
            |a: &Attribute| stores_here(path, &*storage, &store_dir).is_ok_and(|now| now.loss(&file.path, a).is_some());
        let may_come = file.older_journal || file.moved;
        // A file that keeps its attribute is found below.
        let _ = detach_file(&*storage, &file.path, &mut |a| {
            here.loss(&file.path, a).is_some() && (!may_come || is_lost_now(a))
        });
    }
    storage.sync_file_system(sync_point::RECOVER_DATA).context("flush", path)?;
    match Suspects::find(&*storage, &store_dir, &here).judge(&here).lost.first() {
        Some(left) => Err(Error::Unsupported {
            path: left.path.clone(),
            detail: "its attribute `user.untorn` cannot be removed; run this as the owner of the file".into(),
        }),
        None => Ok(lost),
    }
}
