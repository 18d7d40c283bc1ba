//! Clears marks that an owner left when it did not close its store: files wait for commits that never came.
//!
//! A file is marked before the record of its first commit is written. From then on it waits for its journal, even if it
//! is moved. If the owner dies in between, no record names the file. So the next close, of a store that was not closed
//! before, walks its directory. A mark can be cleared if its commits cannot exist anywhere: the whole log was read, no
//! record names the file, no quarantined journal has commits of it, and the file is where it was marked (elsewhere it
//! may be a copy).

use crate::engine::Engine;
use crate::invariant;
use crate::sync_point;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use untorn_journal::data_files::data_tree::{TreeFile, each_file};
use untorn_journal::data_files::detach::remove_temporary;
use untorn_journal::data_files::locate::open_for_writing;
use untorn_journal::format::{Attribute, AttributeFound, Header};
use untorn_journal::recovery::clear_pending;
use untorn_journal::{Context, Result};
use untorn_os::{Open, holds};

/// A file that may keep the mark of an owner that did not close the store.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LeftMark {
    /// Its path in the store; for a directory that cannot be read, the directory's path.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub path: PathBuf,
    /// Why the mark is not cleared.
    pub reason: String,
    /// Whether the mark was seen. If not, nobody could look.
    pub seen: bool,
}

impl LeftMark {
    pub(crate) fn unseen(path: &Path, e: &io::Error) -> LeftMark {
        LeftMark { path: path.to_owned(), reason: e.to_string(), seen: false }
    }

    /// The file's problem, and the next step for the user.
    pub fn problem(&self) -> String {
        let path = self.path.display();
        match self.seen {
            true => format!(
                "{path} keeps the mark of a program that used it through the store, because the mark could not be \
                 removed ({}). Untorn will refuse the file if it is moved away or `.untorn` is removed. The file is \
                 whole, unless it was restored from a copy. Remove the cause, and run `untorn recover`",
                self.reason
            ),
            false => format!(
                "{path} cannot be looked at ({}): a file there may keep the mark of a program that did not close the \
                 store. Run `untorn recover` as soon as it can be, and before you move it away or remove `.untorn`",
                self.reason
            ),
        }
    }
}

impl Engine {
    /// Clears the marks of former owners whose commits never came, before the header says that the store is closed.
    /// With `flush`, makes that durable. Returns the remaining marks, which the next close tries again.
    pub(crate) fn clear_left_marks(&self, flush: bool) -> Result<Vec<LeftMark>> {
        let is_due = self.journal.lock().journal.header().marks_left;
        if !is_due || !holds(invariant::LEFT_MARKS_CLEARED) {
            return Ok(Vec::new());
        }
        let waiting: BTreeSet<&Path> =
            self.opening.quarantined.iter().map(|quarantined| quarantined.path.as_path()).collect();
        let mut left = Vec::new();
        let mut clear = |path: &Path| {
            if waiting.contains(path) {
                return;
            }
            match self.is_left(path).map(|is_left| is_left.then(|| self.clear_mark(path))) {
                Ok(Some(Err(reason))) => left.push(LeftMark { path: path.to_owned(), reason, seen: true }),
                Err(e) if e.kind() != ErrorKind::NotFound => left.push(LeftMark::unseen(path, &e)),
                Ok(_) | Err(_) => {}
            }
        };
        // A file whose creation was never committed goes, too.
        let unreached = each_file(&*self.storage, &self.store_dir, &mut |file| match file {
            TreeFile::Data(path) => clear(path),
            TreeFile::CreationTemporary(path) => {
                remove_temporary(&*self.storage, path, &mut |a| self.is_of_former_owner(a));
            }
        });
        left.extend(unreached.iter().map(|one| LeftMark::unseen(&one.path, &one.error)));
        if flush && self.is_durable() {
            // All files, because an owner that was killed while it closed may have cleared marks and not flushed them.
            self.storage.sync_file_system(sync_point::CLEARED).context("flush", &self.path)?;
        }
        if left.is_empty() || !holds(invariant::LEFT_MARKS_KEPT) {
            self.journal.lock().journal.note_marks_cleared();
        }
        Ok(left)
    }

    /// Clears the marks of former owners, even if a close has done so before, because a file may have been away then.
    pub(crate) fn clear_all_marks(&self) -> Result<Vec<LeftMark>> {
        self.journal.lock().journal.note_marks_left();
        self.clear_left_marks(true)
    }

    /// Whether a mark is of an owner that this journal does not know, or was made when the journal had more commits.
    pub(crate) fn is_of_another_journal(&self, a: &Attribute) -> bool {
        !self.opening.header.knows(a) || Header::is_behind(a, self.opening.last_lsn)
    }

    /// Whether the file of a name has a mark whose commits never came.
    fn is_left(&self, path: &Path) -> io::Result<bool> {
        let value = self.storage.open(path, Open::READ)?.attribute()?;
        let AttributeFound::Valid(a) = Attribute::decode(value.as_deref()) else { return Ok(false) };
        Ok(a.pending
            && self.is_of_former_owner(&a)
            && !self.is_of_another_journal(&a)
            && a.path_crc == Attribute::path_crc_of(path))
    }

    /// Whether an attribute is of a former owner of this store, and no commit of its file waits in a journal.
    fn is_of_former_owner(&self, a: &Attribute) -> bool {
        a.store == self.store_id
            && a.epoch != self.epoch
            && !self.opening.unapplied.contains(&a.file)
            && !self.opening.quarantined.iter().any(|quarantined| quarantined.id == a.file)
    }

    /// Clears a mark. The error says why it remains.
    fn clear_mark(&self, path: &Path) -> std::result::Result<(), String> {
        let known = self.files.lock().get(path).cloned();
        let data = match &known {
            Some(file) => self.changeable(file).map_err(|e| e.to_string())?.content.data.clone(),
            None => Some(open_for_writing(&*self.storage, path).map_err(|e| e.to_string())?),
        };
        let data = data.ok_or("it was replaced")?;
        // While the claim is held, no other program marks the file.
        if known.is_none() && !data.try_claim().map_err(|e| e.to_string())? {
            return Err("another program has locked it".into());
        }
        let value = data.attribute().map_err(|e| e.to_string())?;
        match Attribute::decode(value.as_deref()) {
            AttributeFound::Valid(a) if clear_pending(&*data, self.store_id, a.file) => Ok(()),
            _ => Err("its attribute `user.untorn` cannot be changed".into()),
        }
    }
}
