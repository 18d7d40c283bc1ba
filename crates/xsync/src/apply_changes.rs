//! Applies what a session changed to the directory of the host: from the upper layer of an overlay.
//!
//! Every step says what is to be there, not what to do: after a crash all of it is done again, from the beginning, with
//! the same result. Files are replaced whole, by a rename.

use crate::access_lists::AccessLists;
use crate::host_view::Written;
use crate::work_dirs::{copy_attributes, copy_attributes_by, overlay_attributes};
use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode, SeekFrom, lgetxattr, mknodat, seek, syncfs};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// What is being written, before it gets its name.
const NEW: &str = ".untorn-xsync.new";
const PIECE_BYTES: usize = 1 << 20;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Files, symbolic links and the like that were made or replaced.
    pub files: u64,
    /// Names that were removed.
    pub removed: u64,
    /// Bytes that were written.
    pub bytes: u64,
}

/// How much there is to do, in files and bytes.
pub fn measure(upper: &Path) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(upper).with_context(|| upper.display().to_string())? {
        let entry = entry?;
        let meta = entry.metadata()?;
        files += 1;
        if meta.is_dir() {
            let (more_files, more_bytes) = measure(&entry.path())?;
            (files, bytes) = (files + more_files, bytes + more_bytes);
        } else if meta.is_file() {
            bytes += meta.len();
        }
    }
    Ok((files, bytes))
}

/// Applies a layer to its directory, and makes that durable. `tell` hears of what was done so far.
pub fn apply(layer: &Written, lists: &AccessLists, tell: &mut dyn FnMut(&Applied)) -> Result<Applied> {
    let mut applying = Applying { done: Applied::default(), links: HashMap::new(), lists, tell };
    applying.directory(&layer.upper, &layer.dir, is_opaque(&layer.upper)?)?;
    copy_attributes_by(&layer.upper, &layer.dir, lists)?;
    sync(&layer.dir)?;
    Ok(applying.done)
}

/// Copies a whole directory to one that does not exist yet, durably.
pub fn copy_out(from: &Path, to: &Path, tell: &mut dyn FnMut(&Applied)) -> Result<Applied> {
    fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
    let lists = &AccessLists::Own;
    let mut applying = Applying { done: Applied::default(), links: HashMap::new(), lists, tell };
    applying.directory(from, to, false)?;
    copy_attributes(from, to)?;
    sync(to)?;
    crate::volume::sync_parent(to)?;
    Ok(applying.done)
}

fn sync(dir: &Path) -> Result<()> {
    let open = File::open(dir).with_context(|| dir.display().to_string())?;
    syncfs(&open).with_context(|| format!("cannot flush the file system of {}", dir.display()))
}

struct Applying<'a> {
    done: Applied,
    /// Where the first name of a file with several names is.
    links: HashMap<(u64, u64), PathBuf>,
    lists: &'a AccessLists,
    tell: &'a mut dyn FnMut(&Applied),
}

impl Applying<'_> {
    /// Makes a directory what the layer says. An opaque one has nothing in it but what is in the layer; so have all
    /// that are in it.
    fn directory(&mut self, upper: &Path, real: &Path, opaque: bool) -> Result<()> {
        let mut names: Vec<OsString> = Vec::new();
        for entry in fs::read_dir(upper).with_context(|| upper.display().to_string())? {
            names.push(entry?.file_name());
        }
        names.sort();
        if opaque {
            let kept: HashSet<&OsString> = names.iter().collect();
            for entry in fs::read_dir(real).with_context(|| real.display().to_string())? {
                let entry = entry?;
                if !kept.contains(&entry.file_name()) {
                    self.remove(&entry.path())?;
                }
            }
        }
        for name in names {
            let (from, to) = (upper.join(&name), real.join(&name));
            self.entry(&from, &to, opaque).with_context(|| format!("cannot apply {}", to.display()))?;
            (self.tell)(&self.done);
        }
        Ok(())
    }

    fn entry(&mut self, from: &Path, to: &Path, opaque: bool) -> Result<()> {
        let meta = fs::symlink_metadata(from)?;
        let kind = meta.file_type();
        if is_whiteout(&meta) {
            return self.remove(to);
        }
        let there = match fs::symlink_metadata(to) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            found => Some(found?),
        };
        if there.as_ref().is_some_and(|there| there.is_dir() != kind.is_dir()) {
            self.remove(to)?;
        }
        if kind.is_dir() {
            match fs::create_dir(to) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e.into()),
                _ => {}
            }
            self.directory(from, to, opaque || is_opaque(from)?)?;
            return copy_attributes_by(from, to, self.lists);
        }
        let new = to.with_file_name(NEW);
        absent(fs::remove_file(&new))?;
        let link = (meta.dev(), meta.ino());
        match self.links.get(&link) {
            Some(first) => {
                // Two names of one file are already what they shall be; a rename between them would do nothing.
                if same_file(first, to) {
                    return Ok(());
                }
                fs::hard_link(first, &new)?;
            }
            None => {
                self.make(from, &new, &meta)?;
                copy_attributes_by(from, &new, self.lists)?;
                if meta.nlink() > 1 {
                    self.links.insert(link, to.to_owned());
                }
            }
        }
        fs::rename(&new, to)?;
        self.done.files += 1;
        Ok(())
    }

    fn make(&mut self, from: &Path, new: &Path, meta: &Metadata) -> Result<()> {
        let kind = meta.file_type();
        if kind.is_file() {
            self.copy(from, new, meta.len())
        } else if kind.is_symlink() {
            Ok(symlink(fs::read_link(from)?, new)?)
        } else {
            let kind = if kind.is_fifo() { FileType::Fifo } else { FileType::Socket };
            Ok(mknodat(CWD, new, kind, Mode::from_raw_mode(meta.mode() & 0o7777), 0)?)
        }
    }

    /// Copies the bytes, and leaves holes where holes are.
    fn copy(&mut self, from: &Path, new: &Path, length: u64) -> Result<()> {
        let (source, target) = (File::open(from)?, File::create_new(new)?);
        target.set_len(length)?;
        let (mut buffer, mut at) = (vec![0; PIECE_BYTES.min(length as usize)], 0);
        while at < length {
            let start = match seek(&source, SeekFrom::Data(at)) {
                Err(rustix::io::Errno::NXIO) => break,
                found => found?,
            };
            let end = seek(&source, SeekFrom::Hole(start))?;
            at = start;
            while at < end {
                let piece = ((end - at) as usize).min(buffer.len());
                source.read_exact_at(&mut buffer[..piece], at)?;
                target.write_all_at(&buffer[..piece], at)?;
                at += piece as u64;
                self.done.bytes += piece as u64;
                (self.tell)(&self.done);
            }
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        let meta = match fs::symlink_metadata(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        if meta.is_dir() {
            absent(fs::remove_dir_all(path))?;
        } else {
            absent(fs::remove_file(path))?;
        }
        self.done.removed += 1;
        Ok(())
    }
}

/// What was removed before is as good.
fn absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    let (Ok(a), Ok(b)) = (fs::symlink_metadata(a), fs::symlink_metadata(b)) else { return false };
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// How an overlay writes that a name of the lower layer is gone.
fn is_whiteout(meta: &Metadata) -> bool {
    meta.file_type().is_char_device() && meta.rdev() == 0
}

/// How an overlay writes that nothing of the lower directory is to be seen.
fn is_opaque(dir: &Path) -> Result<bool> {
    let mut value = [0; 4];
    match lgetxattr(dir, format!("{}opaque", overlay_attributes()), &mut value[..]) {
        Ok(bytes) => Ok(&value[..bytes] == b"y"),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP) => Ok(false),
        Err(e) => Err(e).with_context(|| dir.display().to_string()),
    }
}
