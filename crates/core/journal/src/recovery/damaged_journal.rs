//! Salvage: redoes the accepted records of a damaged journal, and archives that journal.

use super::{Opening, Redone};
use crate::data_files::data_tree::{TreeFile, Unreached};
use crate::data_files::detach::{detach, detach_file};
use crate::directories::quarantine::PendingFiles;
use crate::error::{Context, Error, Result};
use crate::format::{Attribute, Header, StoreId};
use crate::recovery::salvage::{SALVAGED, write_contents};
use crate::scanning::scan::scan;
use crate::scanning::segment_reader::{Keep, ReadMode};
use crate::slots::slot_log::remove_list;
use crate::sync_point;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use untorn_os::Kind;

impl Opening<'_> {
    /// `--salvage`: redoes the records that are accepted before the damage, then archives the journal.
    pub(super) fn salvage_current(&mut self, why: &Error) -> Result<()> {
        self.end_undo()?;
        let dir = self.store_dir.journal();
        let (mut epoch, mut kept) = (0, Vec::new());
        match scan(self.storage, &dir, ReadMode::PastCache, Keep::Contents, true, self.options.progress) {
            Ok(scanned) => {
                self.archived_header =
                    Some(Header { checkpoint_lsn: scanned.last_lsn, link: scanned.last_crc, ..scanned.header.clone() });
                epoch = scanned.last_epoch();
                let before = self.quarantined.len();
                let redone = self.redo(&dir, &scanned, None, true, false)?;
                self.quarantined.truncate(before);
                kept = self.keep_contents(&redone, &dir)?;
                if !matches!(why, Error::UnknownState { .. }) {
                    self.detach_files(&redone);
                }
                // Detach all files: names may have reached the disk without their records, and after a crash before the
                // next journal exists, that journal may begin another store.
                self.detach(Some(scanned.header.store))?;
            }
            Err(e) if !self.can_salvage(&e) => return Err(e),
            Err(e) => {
                self.recovered.notes.push(format!("nothing of the journal could be used: {e}"));
                // It is unknown which store the files belong to, so all are taken as they are, regardless of their
                // attributes.
                self.detach(None)?;
            }
        }
        // A power cut that brought back an attribute would make its file unusable, so the removals are flushed.
        self.storage().sync_file_system(sync_point::RECOVER_DATA).context("flush", &self.store_dir.dir)?;
        // Salvaged files are not those of the commits that are lost.
        remove_list(self.storage(), self.store_dir)?;
        self.archive(&dir, epoch, why, &kept)?;
        self.finish_creation().map(drop)
    }

    /// Writes, beside the journal that is about to be archived, the contents that files which could not be redone would
    /// have after their commits. The caller flushes.
    pub(super) fn keep_contents(&mut self, redone: &Redone, dir: &Path) -> Result<Vec<PathBuf>> {
        for file in redone.state.files.values() {
            if let (Some(name), Some(e)) = (&file.name, file.overlay.unreadable()) {
                let why = format!("the salvaged contents of {} are older in some places: {e}", name.display());
                self.recovered.notes.push(why);
            }
        }
        write_contents(self.storage(), &redone.state, &redone.locations, dir)
    }

    /// Archives a journal: moves it out of the store directory, where the user can look at it.
    pub(super) fn archive(&mut self, dir: &Path, epoch: u64, why: &Error, kept: &[PathBuf]) -> Result<()> {
        let mut unique = [0; 4];
        self.storage().random(&mut unique).context("draw a name in", dir)?;
        let to = PathBuf::from(format!("untorn-salvage.{epoch:016x}.{:08x}", u32::from_le_bytes(unique)));
        self.storage().rename(dir, &to, false).context("rename to", &to)?;
        for synced in [self.store_dir.dir.as_path(), Path::new("")] {
            self.storage().sync_dir(synced, sync_point::QUARANTINE_NAME).context("flush", synced)?;
        }
        self.recovered.notes.push(format!("the journal was archived in {}: {why}", to.display()));
        for name in kept {
            let contents = to.join(SALVAGED).join(name);
            self.recovered.notes.push(format!(
                "{} was left as it is; its contents after its last commit are in {}",
                name.display(),
                contents.display()
            ));
        }
        self.recovered.salvaged.push(to);
        Ok(())
    }

    /// Takes the files of a salvaged journal as they are: removes their attributes.
    pub(super) fn detach_files(&self, redone: &Redone) {
        for name in redone.state.files.values().flat_map(|file| &file.names) {
            let _ = detach_file(self.storage(), name, &mut |_| true);
        }
    }

    /// Takes the files of this store, or of an unknown one, as they are: removes their attributes, except those of
    /// files that wait for a quarantined journal.
    fn detach(&self, store: Option<StoreId>) -> Result<()> {
        let mut waiting = BTreeSet::new();
        for dir in self.store_dir.quarantined_journals(self.storage())? {
            waiting
                .extend(PendingFiles::read(self.storage(), &dir)?.into_iter().flat_map(|pending| pending.file_ids()));
        }
        let ours = |a: &Attribute| store.is_none_or(|store| a.store == store) && !waiting.contains(&a.file);
        let kept = detach(self.storage(), self.store_dir, &mut |file, a| match file {
            // Another store may still create this file.
            TreeFile::CreationTemporary(_) if store.is_none() => false,
            _ => ours(a),
        });
        // An attribute that cannot be removed refers to a state that nobody needs any more.
        let is_needed = |one: &Unreached| {
            let is_directory = self.storage().stat(&one.path).is_ok_and(|meta| meta.kind == Kind::Directory);
            one.path == Path::new("") || is_directory && one.error.kind() != ErrorKind::PermissionDenied
        };
        match kept.into_iter().find(is_needed) {
            Some(one) => Err(Error::io("list", one.path, one.error)),
            None => Ok(()),
        }
    }
}
