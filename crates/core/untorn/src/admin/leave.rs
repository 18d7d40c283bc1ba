//! The attribute that ties a file to a store: looks at it, and takes one file out of a directory's store.

use crate::engine::paths::error_paths::error_in_store;
use crate::reader::locate_store::locate;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use untorn_journal::data_files::data_tree::each_data_file;
use untorn_journal::data_files::detach::detach_file;
use untorn_journal::directories::store_dir::lock_store;
use untorn_journal::format::{Attribute, AttributeFound, hex};
use untorn_journal::scanning::scan::read_header;
use untorn_journal::undo::keep::Undo;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Linux, Open, Storage, attribute_of};

/// The attribute of a file, which ties it to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMark {
    /// Identity of the store, in hexadecimal digits.
    pub store_id: String,
    /// Whether the store's journal may have newer commits than the file.
    pub pending: bool,
}

/// The attribute of a file; `None` if it has none.
pub fn file_mark(path: &Path) -> Result<Option<FileMark>> {
    let name = path.file_name().ok_or_else(|| Error::invalid(format!("{} names no file", path.display())))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let storage = Linux::open(dir).context("open", dir)?;
    Ok(mark_of(&*storage, Path::new(name))
        .context("look at", path)?
        .map(|a| FileMark { store_id: hex(&a.store), pending: a.pending }))
}

/// Whether a file lacks nothing that is in the journal of a store, by its attribute: then any program may read it. If it
/// is not, its store must be opened or recovered first.
pub fn is_plain(file: BorrowedFd<'_>) -> std::io::Result<bool> {
    Ok(match Attribute::decode(attribute_of(file)?.as_deref()) {
        AttributeFound::None => true,
        AttributeFound::Valid(a) => !a.pending,
        AttributeFound::Unreadable => false,
    })
}

fn mark_of(storage: &dyn Storage, path: &Path) -> std::io::Result<Option<Attribute>> {
    let value = storage.open(path, Open::READ)?.attribute()?;
    Ok(match Attribute::decode(value.as_deref()) {
        AttributeFound::Valid(a) => Some(a),
        _ => None,
    })
}

/// Takes the file `name` out of the store of a directory, which is recovered. Returns whether other files are the store's.
pub(crate) fn take_out(path: &Path, name: &Path) -> Result<bool> {
    let (storage, store_dir) = locate(path)?;
    let lock = lock_store(&*storage, &store_dir, None, false).map_err(|e| error_in_store(e, path))?;
    let id = read_header(&*storage, &store_dir.journal())?.store;
    // Readers of older commits find a file by its attribute.
    Undo::end(&*storage, &store_dir)?;
    let is_pending = |a: &Attribute| a.store == id && a.pending;
    let whole: PathBuf = path.join(name);
    if mark_of(&*storage, name).context("look at", &whole)?.is_some_and(|a| is_pending(&a)) {
        let detail = "it waits for commits in the journal, which could not be applied".to_owned();
        return Err(Error::NeedsJournal { path: whole, detail });
    }
    detach_file(&*storage, name, &mut |a| a.store == id).context("remove the attribute of", &whole)?;
    let mut has_others = !store_dir.quarantined_journals(&*storage)?.is_empty();
    let unreached = each_data_file(&*storage, &store_dir, &mut |file| {
        has_others |= mark_of(&*storage, file).map_or(true, |mark| mark.is_some_and(|a| a.store == id));
    });
    lock.release();
    Ok(has_others || !unreached.is_empty())
}
