//! Salvage of contents: for files that could not be redone, writes the contents that their commits would have made,
//! beside the data.

use crate::commits::final_state::{FileState, FinalState};
use crate::commits::spill::CHUNK_BYTES;
use crate::data_files::apply::apply_overlay;
use crate::data_files::locate::Locations;
use crate::directories::store_dir::remove_tree;
use crate::error::{Context, Error, Result};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use untorn_os::{File, Kind, Open, Storage, write_all_at};

/// The directory in an archived journal with these contents.
pub const SALVAGED: &str = "salvaged";

/// Writes, into the directory [`SALVAGED`] of their journal, the contents that files without a location would have: the
/// journal's ranges, as far as the disk can read them, over the present file of their name. The caller flushes. Returns
/// the files' names.
pub(crate) fn write_contents(
    storage: &dyn Storage,
    state: &FinalState,
    locations: &Locations,
    journal: &Path,
) -> Result<Vec<PathBuf>> {
    let top = journal.join(SALVAGED);
    // Left by an interrupted salvage.
    remove_tree(storage, &top)?;
    let mut written = Vec::new();
    for file in state.files.values() {
        let (Some(name), Some(Err(_))) = (&file.name, locations.get(&file.id)) else { continue };
        make_directories(storage, &top, name)?;
        let to = top.join(name);
        let new = storage.open(&to, Open::create(0o600)).context("create", &to)?;
        if let Some(base) = base(storage, file) {
            copy(&*base, &*new).context("copy to", &to)?;
        }
        apply_overlay(&*new, &file.overlay.without_unreadable(), &to, None)?;
        written.push(name.clone());
    }
    Ok(written)
}

fn make_directories(storage: &dyn Storage, top: &Path, name: &Path) -> Result<()> {
    let below = name.parent().unwrap_or(Path::new("")).ancestors().filter(|dir| *dir != Path::new(""));
    let mut dirs: Vec<PathBuf> = below.map(|dir| top.join(dir)).collect();
    dirs.push(top.to_owned());
    for dir in dirs.iter().rev() {
        match storage.mkdir(dir, 0o700) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(Error::io("make", dir, e)),
            _ => {}
        }
    }
    Ok(())
}

/// The file under the newest of a state's names that leads to one.
fn base(storage: &dyn Storage, file: &FileState) -> Option<std::sync::Arc<dyn File>> {
    let open = |name: &PathBuf| storage.open(name, Open::READ).ok();
    file.names.iter().rev().filter_map(open).find(|found| found.meta().is_ok_and(|meta| meta.kind == Kind::File))
}

fn copy(from: &dyn File, to: &dyn File) -> std::io::Result<()> {
    let size = from.meta()?.size;
    let mut chunk = vec![0; CHUNK_BYTES.min(size as usize)];
    let mut at = 0;
    while at < size {
        let n = chunk.len().min((size - at) as usize);
        let n = untorn_os::read_full_at(from, &mut chunk[..n], at)?;
        if n == 0 {
            break;
        }
        write_all_at(to, &chunk[..n], at)?;
        at += n as u64;
    }
    Ok(())
}
