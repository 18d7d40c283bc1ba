//! Adoption: gives the files of a copied store their attributes back.
//!
//! A journal recognises files by their attributes. A copy made by `rsync -a`, `cp -r` or `tar` has none, so recovery
//! treats its files as foreign ones. If the user states that the whole copy was made at one moment, each file without
//! an attribute, under a name of a file of the journal, becomes that file.

use crate::reader::locate_store::locate;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::commits::final_state::{FileState, FinalState};
use untorn_journal::data_files::locate::{DataFiles, Location, open_for_writing};
use untorn_journal::directories::quarantine::PendingFiles;
use untorn_journal::directories::store_dir::lock_store;
use untorn_journal::format::{Attribute, AttributeFound, VERSION};
use untorn_journal::scanning::scan::scan;
use untorn_journal::scanning::segment_reader::{Keep, ReadMode};
use untorn_journal::undo::keep::Undo;
use untorn_journal::undo::kept_links::KeptLinks;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Kind, Open, Storage};

/// A file of a journal that has no attribute, or none of this store.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Adoption {
    /// The path where it is, or should be.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub path: PathBuf,
    /// Size of the file under this name, in bytes.
    pub size: Option<u64>,
    /// The last commit that must already be in it: its predecessor in the journal.
    pub previous_lsn: u64,
    /// The last commit that recovery will apply to it.
    pub last_lsn: u64,
    /// Why it is not adopted.
    pub refused: Option<String>,
}

/// A file with the attribute that it will get.
struct Wanted {
    adoption: Adoption,
    attribute: Attribute,
}

/// Finds the files of a store's journals that are under their names but lack their attributes. With `dry_run`, changes
/// nothing; otherwise restores the attributes, so that recovery recognises the files. Changes nothing if any file is
/// refused.
///
/// The caller promises that the files were copied together with the journal, at one moment, because nothing here can
/// prove that.
pub fn adopt(path: &Path, wait: bool, dry_run: bool) -> Result<Vec<Adoption>> {
    let (linux, store_dir) = locate(path)?;
    let storage: Arc<dyn Storage> = linux;
    let _lock = match dry_run {
        true => None,
        false => Some(lock_store(&*storage, &store_dir, None, wait)?),
    };
    if !dry_run {
        Undo::end(&*storage, &store_dir)?;
    }
    let mut journals = store_dir.quarantined_journals(&*storage)?;
    if storage.stat(&store_dir.journal()).is_ok() {
        journals.push(store_dir.journal());
    }
    let mut wanted = Vec::new();
    for journal in journals {
        find(&storage, &journal, &mut wanted)?;
    }
    if !dry_run && wanted.iter().all(|w| w.adoption.refused.is_none()) {
        for Wanted { adoption, attribute } in &wanted {
            let path = &adoption.path;
            let file = open_for_writing(&*storage, path).context("open", path)?;
            if AttributeFound::None != Attribute::decode(file.attribute().context("look at", path)?.as_deref()) {
                return Err(Error::Conflict { path: path.clone(), detail: "it was changed just now".into() });
            }
            // Not flushed: a file that loses its attribute again can be adopted again, and recovery redoes all of it.
            file.set_attribute(&attribute.encode()).context("set the attribute of", path)?;
        }
    }
    Ok(wanted.into_iter().map(|w| w.adoption).collect())
}

/// Adds the files of a journal that recovery would not recognise.
fn find(storage: &Arc<dyn Storage>, journal: &Path, wanted: &mut Vec<Wanted>) -> Result<()> {
    let scanned = scan(storage, journal, ReadMode::Cached, Keep::Contents, true, &|_, _| {})?;
    if let Some(e) = scanned.corrupt {
        return Err(e);
    }
    let mut state = FinalState::default();
    for accepted in &scanned.accepted {
        state.add_record(&accepted.record, accepted.lsn)?;
    }
    if let Some(pending) = PendingFiles::read(&**storage, journal)? {
        state.retain(&pending.file_ids(), &pending.dir_paths());
    }
    let data_files = DataFiles {
        storage: &**storage,
        store: scanned.header.store,
        epoch: scanned.last_epoch(),
        newest_lsn: Some(scanned.last_lsn),
        rename_dir: journal.to_owned(),
        durable: true,
        contents: None,
        kept_links: KeptLinks::default(),
    };
    let locations = data_files.find(&state);
    // If several files had a name, the file under it may be any of them.
    let mut owners = BTreeMap::<&Path, BTreeSet<u64>>::new();
    for file in state.files.values() {
        for name in &file.names {
            owners.entry(name).or_default().insert(file.id);
        }
    }
    for file in state.files.values() {
        match &locations[&file.id] {
            Ok(Location::At(_)) => continue,
            Ok(Location::Absent) if file.created.is_none() => continue,
            _ => {}
        }
        let names: BTreeSet<&PathBuf> = file.names.iter().collect();
        let mut places = Vec::new();
        for name in names {
            places.extend(look(&**storage, name)?.map(|found| (name, found)));
        }
        let adoption = |path: &Path, size, refused| Adoption {
            path: path.to_owned(),
            size,
            previous_lsn: file.previous_lsn,
            last_lsn: file.last_lsn,
            refused,
        };
        let attribute = |path: &Path| attribute_of(file, &data_files, path);
        let mut add = |path: &Path, size, refused: Option<&str>| {
            let adoption = adoption(path, size, refused.map(str::to_owned));
            wanted.push(Wanted { adoption, attribute: attribute(path) });
        };
        match &places[..] {
            // It is yet to be created, or was created and removed.
            [] if file.created.is_some() => {}
            [] => add(file.display_name(), None, Some("no file is there")),
            [(name, FoundObject { size, why: Some(why) })] => add(name, Some(*size), Some(why)),
            [(name, FoundObject { size, why: None })] if owners[name.as_path()].len() > 1 => {
                add(
                    name,
                    Some(*size),
                    Some("commits gave this name to several files, so it is unknown which of them this one is"),
                );
            }
            [(name, FoundObject { size, why: None })] => add(name, Some(*size), None),
            [(name, FoundObject { size, .. }), ..] => {
                add(name, Some(*size), Some("commits renamed it, and several of its names have files now"));
            }
        }
    }
    Ok(())
}

fn attribute_of(file: &FileState, data_files: &DataFiles<'_>, path: &Path) -> Attribute {
    let DataFiles { store, epoch, .. } = *data_files;
    Attribute {
        version: VERSION,
        store,
        file: file.id,
        epoch,
        checkpoint_lsn: file.previous_lsn,
        path_crc: Attribute::path_crc_of(path),
        pending: true,
    }
}

/// The object under a name.
struct FoundObject {
    size: u64,
    /// Why it cannot be adopted.
    why: Option<&'static str>,
}

fn look(storage: &dyn Storage, name: &Path) -> Result<Option<FoundObject>> {
    match storage.stat(name) {
        Err(_) => return Ok(None),
        Ok(meta) if meta.kind != Kind::File => {
            return Ok(Some(FoundObject { size: meta.size, why: Some("it is not a regular file") }));
        }
        Ok(_) => {}
    }
    let file = storage.open(name, Open::READ).context("open", name)?;
    let meta = file.meta().context("look at", name)?;
    let value = file.attribute().context("read the attribute of", name)?;
    let why = match Attribute::decode(value.as_deref()) {
        _ if meta.links != 1 => Some("it has several hard links; a managed file has one"),
        AttributeFound::None => None,
        _ => Some("its attribute `user.untorn` is not the one that the journal knows"),
    };
    Ok(Some(FoundObject { size: meta.size, why }))
}
