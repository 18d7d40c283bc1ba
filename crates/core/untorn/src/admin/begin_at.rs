//! Makes the store of files that were restored elsewhere: its LSNs go on behind those of their commits.

use crate::engine::options::StoreOptions;
use crate::engine::paths::error_paths::error_in_store;
use crate::reader::lost::place;
use crate::reader::{EpochStart, Point};
use std::io::ErrorKind;
use std::path::Path;
use untorn_journal::directories::store_dir::{NewJournal, StoreDir, create_journal, lock_store};
use untorn_journal::format::{Key, StoreId};
use untorn_journal::slots::epochs::Epochs;
use untorn_journal::{Context, Error, Result};
use untorn_os::Storage;

/// Makes the store of a directory, or of a standalone file, whose contents are those of the commit `last` of another
/// machine's store. The new store has this identity and these epochs, of which `last` must be one, and goes on behind
/// `last` in another epoch: so it holds that commit ([`crate::Reader::contains`]), and no later one of the other store. LSN 0
/// is the empty store.
///
/// The caller has flushed the files. Until this returns, there is no store.
///
/// # Errors
/// [`Error::Io`] with `AlreadyExists` if there is a store; [`Error::Invalid`] if the epochs are not those of `last`.
pub fn begin_at(path: impl AsRef<Path>, store_id: StoreId, epochs: &[EpochStart], last: Point) -> Result<()> {
    let path = path.as_ref();
    let (storage, store_dir) = place(path)?;
    begin_at_on(&*storage, &store_dir, store_id, epochs, last).map_err(|e| error_in_store(e, path))
}

/// Makes a store like [`begin_at`], on any storage.
pub(crate) fn begin_at_on(
    storage: &dyn Storage,
    store_dir: &StoreDir,
    store: StoreId,
    epochs: &[EpochStart],
    last: Point,
) -> Result<()> {
    // Every store contains the empty one, LSN 0, which is of no epoch.
    let is_empty = last.lsn == 0;
    let list = Epochs::new(if is_empty { &[] } else { epochs })?;
    if !is_empty && !list.contains(last)
        || list.entries().last().is_some_and(|entry| entry.first_lsn > last.lsn.saturating_add(1))
    {
        return Err(Error::invalid(format!("commit {last} is not one of these epochs")));
    }
    match storage.stat(&store_dir.journal()) {
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        _ => return Err(Error::io("make", &store_dir.dir, ErrorKind::AlreadyExists.into())),
    }
    let options = StoreOptions::new();
    let lock = lock_store(storage, store_dir, Some(options.journal.dir_mode), false)?;
    let mut random = [[0; 8]; 2];
    for number in &mut random {
        storage.random(number).context("draw a number for", &store_dir.dir)?;
    }
    let [key, link] = random.map(u64::from_le_bytes);
    // Without the journal, the list counts for nothing.
    list.write(storage, store_dir, &store, lock.dir_mode)?;
    let new = NewJournal {
        store,
        checkpoint_lsn: last.lsn,
        link,
        generation: 0,
        unclosed: Vec::new(),
        epoch: last.epoch,
        key: Key(key),
        segment_bytes: options.journal.segment_bytes_first,
        closed: true,
        read_whole: true,
        durable: true,
        dir_mode: lock.dir_mode,
    };
    create_journal(storage, store_dir, &new)?;
    lock.release();
    Ok(())
}
