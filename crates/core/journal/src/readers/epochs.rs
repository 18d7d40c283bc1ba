//! The epochs of a store, as a process that does not own it finds them.

use crate::directories::store_dir::StoreDir;
use crate::error::Result;
use crate::format::{ListedEpoch, StoreId};
use crate::scanning::scan::read_header;
use crate::slots::epochs::Epochs;
use untorn_os::Storage;

/// The identity of a store, and its epochs as far as they are known: those in its list, and those of its journal.
/// `accepted`: the epochs of the records, of a store that nobody has opened since the boot.
pub fn known_epochs(
    storage: &dyn Storage,
    store_dir: &StoreDir,
    accepted: &[ListedEpoch],
) -> Result<(StoreId, Epochs)> {
    // An owner writes the list before a header of its epoch, so the list is the newer one.
    let header = read_header(storage, &store_dir.journal())?;
    let mut epochs = Epochs::read(storage, store_dir, &header.store)?.unwrap_or_default();
    epochs.add_journal(&header, accepted);
    Ok((header.store, epochs))
}
