//! Files whose store is lost: they wait for commits in a journal that is not here any more.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::data_tree::each_data_file;
use untorn_journal::format::{Attribute, AttributeFound, Header, StoreId, hex};
use untorn_journal::locate::older_journal;
use untorn_journal::scan::read_header;
use untorn_journal::store_dir::{STORE_DIR, StoreDir};
use untorn_journal::strip::strip_attribute;
use untorn_journal::sync_point;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Linux, Open, Storage};

/// A file that waits for commits in a journal that is not here: its store's directory `.untorn` was removed, or the
/// file was moved away from it. No store takes it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LostFile {
    /// Its path in the directory that was looked at.
    #[serde(serialize_with = "crate::path_text::path")]
    pub path: PathBuf,
    /// Identity of its store, in hexadecimal digits.
    pub store_id: String,
    /// A journal of that store is here, and does not know the owner that marked the file: an older `.untorn` was put back.
    pub older_journal: bool,
}

impl LostFile {
    /// What it lacks, and what to do.
    pub fn problem(&self) -> String {
        if self.older_journal {
            return older_journal(&self.path).to_string();
        }
        format!(
            "{} waits for commits in the journal of store {}, which is not here: put the `.untorn` of that store back, \
             or, if it is lost, take the file as it is with `untorn recover --accept-lost`",
            self.path.display(),
            self.store_id
        )
    }
}

/// The storage that a path's store is in, if it has one, and Untorn's directory there.
pub(crate) fn place(path: &Path) -> Result<(Arc<Linux>, StoreDir)> {
    let meta = std::fs::metadata(path);
    if meta.as_ref().is_ok_and(|m| m.is_dir()) {
        return Ok((Linux::open(path).context("open", path)?, StoreDir::of_directory()));
    }
    let name = path.file_name().ok_or_else(|| Error::invalid(format!("{} names no file", path.display())))?;
    match meta {
        // The store of a standalone file may be there without the file.
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io("look at", path, e)),
        _ => {}
    }
    let storage = Linux::open(path.parent().unwrap_or(Path::new(""))).context("open the directory of", path)?;
    Ok((storage, StoreDir::of_file(Path::new(name))))
}

/// The newest headers of the stores of a path that are here: its own, and those of the directories above it.
type Here = BTreeMap<StoreId, Header>;

fn stores_here(path: &Path, storage: &dyn Storage, store_dir: &StoreDir) -> Result<Here> {
    let mut found = BTreeMap::new();
    add_stores(storage, store_dir, &mut found)?;
    let whole = path.canonicalize().context("look at", path)?;
    for above in whole.ancestors().skip(1).filter(|dir| dir.join(STORE_DIR).symlink_metadata().is_ok()) {
        let storage = Linux::open(above).context("open", above)?;
        add_stores(&*storage, &StoreDir::of_directory(), &mut found)?;
    }
    Ok(found)
}

fn add_stores(storage: &dyn Storage, store_dir: &StoreDir, found: &mut Here) -> Result<()> {
    match storage.stat(&store_dir.dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        done => drop(done.context("look at", &store_dir.dir)?),
    }
    for journal in store_dir.quarantined_journals(storage)?.into_iter().chain([store_dir.journal()]) {
        match storage.stat(&journal) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            done => {
                done.context("look at", &journal)?;
                let header = read_header(storage, &journal)?;
                // The journal itself comes last, and knows what its predecessors did.
                found.insert(header.store, header);
            }
        }
    }
    Ok(())
}

/// The files of a path that no journal which is here has.
pub fn lost_files(path: &Path) -> Result<Vec<LostFile>> {
    let (storage, store_dir) = place(path)?;
    let here = stores_here(path, &*storage, &store_dir)?;
    let mut found = find(&*storage, &store_dir, &here);
    if found.iter().any(|(lost, _)| lost.older_journal) {
        // An owner that came meanwhile has written a header before it marked a file.
        let now = stores_here(path, &*storage, &store_dir)?;
        found.retain(|(_, a)| is_lost(a, &now));
    }
    Ok(found.into_iter().map(|(lost, _)| lost).collect())
}

fn find(storage: &dyn Storage, store_dir: &StoreDir, here: &Here) -> Vec<(LostFile, Attribute)> {
    let mut found = Vec::new();
    match &store_dir.standalone {
        Some(file) => add_file(storage, file, here, &mut found),
        None => each_data_file(storage, &mut |path| add_file(storage, path, here, &mut found)),
    }
    found
}

fn add_file(storage: &dyn Storage, path: &Path, here: &Here, found: &mut Vec<(LostFile, Attribute)>) {
    if let Ok(file) = storage.open(path, Open::READ)
        && let Ok(value) = file.attribute()
        && let AttributeFound::Valid(a) = Attribute::decode(value.as_deref())
        && is_lost(&a, here)
    {
        let older_journal = here.contains_key(&a.store);
        found.push((LostFile { path: path.to_owned(), store_id: hex(&a.store), older_journal }, a));
    }
}

fn is_lost(a: &Attribute, here: &Here) -> bool {
    a.pending && here.get(&a.store).is_none_or(|header| !header.knows(a))
}

/// Takes the lost files of a path as they are, without the commits for which they waited: makes them plain files.
/// Files of stores that are here are left alone.
///
/// # Errors
/// [`Error::Unsupported`] if this user may not change one of them; the others are plain files then.
pub fn accept_lost(path: &Path) -> Result<Vec<LostFile>> {
    let (storage, store_dir) = place(path)?;
    let here = stores_here(path, &*storage, &store_dir)?;
    let lost = find(&*storage, &store_dir, &here);
    for (file, _) in &lost {
        let is_lost_now = |a: &Attribute| stores_here(path, &*storage, &store_dir).is_ok_and(|now| is_lost(a, &now));
        strip_attribute(&*storage, &file.path, &|a| is_lost(a, &here) && (!file.older_journal || is_lost_now(a)));
    }
    storage.sync_file_system(sync_point::RECOVER_DATA).context("flush", path)?;
    match find(&*storage, &store_dir, &here).first() {
        Some((left, _)) => Err(Error::Unsupported {
            path: left.path.clone(),
            detail: "its attribute `user.untorn` cannot be removed; run this as the owner of the file".into(),
        }),
        None => Ok(lost.into_iter().map(|(lost, _)| lost).collect()),
    }
}
