//! Renames or unlinks a standalone file while it is open.
//!
//! Its store is closed, so that the file is plain and complete under whichever name a crash leaves it, and the file is
//! opened again under the new name. State that the closed store does not keep is moved over: the mapping, at its
//! addresses, and uncommitted changes. The caller changes the names in between.

use crate::engine::content::changed_ranges;
use crate::engine::handles::file::File;
use crate::engine::handles::new_mapping::not_made_yet;
use crate::sync_point;
use std::ops::Range;
use std::path::Path;
use untorn_journal::format::sized_memory;
use untorn_journal::{Context, Result};
use untorn_os::{Linux, Storage};

/// The uncommitted changes of a file, copied.
pub struct Uncommitted {
    /// Size of the file with these changes.
    pub size: u64,
    /// Ranges of zeros.
    pub zeros: Vec<Range<u64>>,
    /// Bytes by offset.
    pub bytes: Vec<(u64, Vec<u8>)>,
}

/// Copies a file's uncommitted changes, or returns `None` if there are none.
pub fn uncommitted(file: &File) -> Result<Option<Uncommitted>> {
    let mut state = file.store.changeable(&file.shared)?;
    state.check_alive()?;
    state.stage_stores(&**file.store)?;
    if state.content.write_set.is_empty() {
        return Ok(None);
    }
    let size = state.content.size();
    let (zeros, ranges) = changed_ranges(&[&state.content.write_set], &(0..size));
    let mut bytes = Vec::new();
    for range in ranges.iter() {
        let mut copy = sized_memory::zeros(range.end - range.start, state.path())?;
        state.read_at(&mut copy, range.start)?;
        bytes.push((range.start, copy));
    }
    Ok(Some(Uncommitted { size, zeros: zeros.iter().cloned().collect(), bytes }))
}

/// Repeats changes that [`uncommitted`] copied.
pub fn put_back(file: &File, changes: &Uncommitted) -> Result<()> {
    file.set_len(changes.size)?;
    for range in &changes.zeros {
        file.zero(range.start, range.end - range.start)?;
    }
    changes.bytes.iter().try_for_each(|(offset, bytes)| file.write_all_at(bytes, *offset))
}

/// Gives a file the mapping of another handle of the same data file, whose store was closed after a commit. The mapping
/// stays at its addresses, and accessible all the time. Maps of the closed handle show nothing any more: the caller
/// maps the file again.
pub fn take_mapping(file: &File, closed: &File) -> Result<()> {
    let mut state = file.store.changeable(&file.shared)?;
    let data = state.content.data.clone().ok_or_else(|| not_made_yet(state.path()))?;
    if let Some(mut region) = closed.shared.write().region.take() {
        region.follow(data);
        state.region = Some(region);
    }
    Ok(())
}

/// Ends the mapping of a file whose store was closed. All its addresses stay mapped, and belong to the caller.
pub fn leave_mapping(closed: &File) {
    if let Some(region) = closed.shared.write().region.take() {
        region.leave();
    }
}

/// Makes the names in directories durable, before a commit under a new name relies on them.
pub fn flush_names(dirs: &[&Path]) -> Result<()> {
    dirs.iter().try_for_each(|dir| flush_names_on(&*Linux::open(dir).context("open", dir)?, dir))
}

/// Makes the names in the root of a storage durable.
pub fn flush_names_on(storage: &dyn Storage, dir: &Path) -> Result<()> {
    storage.sync_dir(Path::new(""), sync_point::RELOCATED).context("flush", dir)
}
