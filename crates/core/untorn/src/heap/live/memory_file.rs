//! The file of a live heap's memory: its path, and the failures that it survives.

use crate::engine::handles::file::File;
use crate::engine::handles::new_mapping::not_made_yet;
use crate::engine::options::FailureClass;
use crate::heap::log::live_head::is_of_another_device;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use untorn_journal::{Context, Error, Result};
use untorn_os::{FoundMemory, LiveMedium, LiveMemory, file_system_id, lasting_memory_path, live_memory_path};

/// The identity of a heap's file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// The device number, which may be another one in another boot.
    pub device: u64,
    pub inode: u64,
    /// The identity of the file system, if it survives a boot.
    pub file_system: Option<[u8; 16]>,
}

impl Identity {
    /// The identity of a heap's open file.
    pub(crate) fn of(file: &File) -> Result<Identity> {
        // If a crash left the file only in the journal, its data file is not open yet.
        let state = file.store.readable(&file.shared)?;
        let data = state.content.data.as_ref().ok_or_else(|| not_made_yet(state.path()))?;
        let meta = data.meta().context("look at", state.path())?;
        let file_system = data.duplicate().ok().and_then(file_system_id);
        Ok(Identity { device: meta.device, inode: meta.inode, file_system })
    }

    /// The identity of the file at a path, which this user may not be able to read.
    pub(crate) fn at(path: &Path, meta: &std::fs::Metadata) -> Identity {
        let file_system = std::fs::File::open(path).ok().and_then(file_system_id);
        Identity { device: meta.dev(), inode: meta.ino(), file_system }
    }

    /// The path of memory that survives the boot.
    fn lasting(&self, uid: u32) -> Option<PathBuf> {
        self.file_system.map(|id| lasting_memory_path(uid, &id, self.inode))
    }

    /// The path of memory that survives the process alone.
    fn ordinary(&self, uid: u32) -> PathBuf {
        live_memory_path(uid, self.device, self.inode)
    }

    /// The paths at which the file's memory may be.
    pub(crate) fn paths(&self, uid: u32) -> Vec<PathBuf> {
        self.lasting(uid).into_iter().chain([self.ordinary(uid)]).collect()
    }
}

/// Removes memory that a file does not name: of a process that was killed before the file named it, or after the file
/// named it no more, or of a removed file. On a copy of the file system, another heap may use it.
pub(crate) fn remove_left(path: &Path, of: &Identity, boot: &[u8; 16]) {
    let removed = FoundMemory::open(path)
        .and_then(|found| Ok(!is_of_another_device(&found, boot, of.device) && found.remove_unused()?));
    // If it stays, there is memory of class `process` beside it.
    let _ = removed;
}

/// Checks that a class can be wanted of live memory.
pub(crate) fn check_wanted(wanted: Option<FailureClass>) -> Result<()> {
    match wanted {
        None | Some(FailureClass::Process | FailureClass::Memory) => Ok(()),
        Some(_) => {
            Err(Error::invalid("live memory is of class `process` or `memory`; its cuts are of the store's class"))
        }
    }
}

/// Chooses the medium of a heap's memory, and the path of memory of that medium. `wanted`: the class that the program
/// requires. `has`: the path of the memory, if there is some already.
///
/// # Errors
/// The memory cannot be of the wanted class; the text says what to do.
pub(crate) fn choose(
    file: &File,
    of: &Identity,
    wanted: Option<FailureClass>,
    has: Option<&Path>,
) -> Result<(LiveMedium, PathBuf)> {
    let uid = file.store.storage.effective_user();
    let ordinary = || (LiveMedium::Ordinary, has.map_or_else(|| of.ordinary(uid), Path::to_owned));
    let only_ordinary = |why: &str| match wanted {
        Some(FailureClass::Memory) => Err(Error::Unsupported {
            path: file.path(),
            detail: format!("its live memory cannot be of class `memory`: {why}"),
        }),
        _ => Ok(ordinary()),
    };
    if wanted == Some(FailureClass::Process) {
        return Ok(ordinary());
    }
    if !file.store.is_durable() {
        return only_ordinary("the store is of class `process`. Open it with class `power`");
    }
    let Some(lasting) = of.lasting(uid) else {
        return only_ordinary(
            "the file system of the heap has no identity that stays over a boot. Put the heap on ext4, or on XFS with \
             Linux 6.9 or newer",
        );
    };
    match has {
        Some(has) if has != lasting => {
            return only_ordinary("the heap has memory of class `process`. Close the heap, and open it again");
        }
        None if is_taken(file, &lasting, of)? => {
            return only_ordinary(
                "a heap in a copy of this file system, which has the same identity, uses the same memory. Close that one",
            );
        }
        _ => {}
    }
    let dir = lasting.parent().unwrap_or(&lasting);
    match LiveMemory::medium_of(dir, file.store.storage.is_on_trial()) {
        Ok(medium) if medium.survives_power() => Ok((medium, lasting)),
        Err(e) if e.kind() == ErrorKind::InvalidInput => Err(Error::invalid(e.to_string())),
        // Errors of the directory are reported when the memory is made.
        _ => only_ordinary(&format!(
            "{} is not on byte-addressable memory that is mapped directly. Set UNTORN_LIVE_DIR to a directory of ext4 or \
             XFS mounted with `dax`, on memory that needs no call as a flush",
            dir.display()
        )),
    }
}

/// Whether there is memory at a path that another heap needs.
fn is_taken(file: &File, path: &Path, of: &Identity) -> Result<bool> {
    if path.symlink_metadata().is_ok() {
        remove_left(path, of, &file.store.storage.boot_id().context("read the boot id for", file.path())?);
    }
    Ok(path.symlink_metadata().is_ok())
}

/// The class of the failures that memory of this medium survives.
pub(crate) fn class_of(medium: LiveMedium) -> FailureClass {
    if medium.survives_power() { FailureClass::Memory } else { FailureClass::Process }
}
