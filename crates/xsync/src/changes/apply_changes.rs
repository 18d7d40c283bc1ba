//! Applies the changes of a session, the upper layer of an overlay, to the directory of the host.
//!
//! The layer describes the result of each step, not the action. So after a crash the apply starts from the beginning
//! and ends in the same state. A file is replaced whole, by a rename. A change that the directory refuses does not stop
//! the other changes.

use crate::changes::access_lists::AccessLists;
use crate::changes::kept_changes;
use crate::changes::kept_changes::{Part, Refused, RefusedChanges};
use crate::changes::work_dirs::{copy_attributes, copy_attributes_by};
use crate::host::deep_path::DeepPath;
use crate::host::file_flags;
use crate::host::host_view::Written;
use crate::host::outer_streams::tell;
use crate::view::origins::{self, ASIDE, Aside, Origin};
use crate::view::overlays::overlay_attributes;
use anyhow::{Context, Result};
use rustix::fs::{
    CWD, FileType, Mode, OFlags, RenameFlags, SeekFrom, fstat, lgetxattr, mknodat, open, renameat_with, seek, syncfs,
};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// The name of a file that is being written, until a rename gives it its real name.
const NEW: &str = ".untorn-xsync.new";
/// The name of a file or directory that a renamed directory replaces, until it is removed.
const GONE: &str = ".untorn-xsync.gone";
const PIECE_BYTES: usize = 1 << 20;

/// Counts of the changes that were applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Files, symbolic links and the like that were made or replaced.
    pub files: u64,
    /// Names that were removed.
    pub removed: u64,
    /// Bytes that were written.
    pub bytes: u64,
}

/// Counts the files and bytes that are to be applied.
pub fn measure(upper: &Path) -> Result<(u64, u64)> {
    measure_deep(&DeepPath::new(upper))
}

fn measure_deep(upper: &DeepPath) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    let upper = upper.directory().with_context(|| upper.shown().display().to_string())?;
    for entry in fs::read_dir(&upper).with_context(|| upper.shown().display().to_string())? {
        let entry = entry?;
        let meta = entry.metadata()?;
        files += 1;
        if meta.is_dir() {
            let (more_files, more_bytes) = measure_deep(&upper.join(entry.file_name()))?;
            (files, bytes) = (files + more_files, bytes + more_bytes);
        } else if meta.is_file() {
            bytes += meta.len();
        }
    }
    Ok((files, bytes))
}

/// The result for one layer: the applied and the refused changes.
#[derive(Debug)]
pub struct Outcome {
    /// Counts of the applied changes.
    pub done: Applied,
    /// The changes that were refused; all others are applied.
    pub refused: RefusedChanges,
}

/// Applies a layer to its directory, and flushes the file system. `tell` is called with the counts so far.
pub fn apply(layer: &Written, lists: &AccessLists, tell: &mut dyn FnMut(&Applied)) -> Result<Outcome> {
    let mut applying = Applying::new(&layer.dir, lists, tell);
    for (path, origin) in origins::indexed(layer)? {
        applying.indexed.insert(fs::symlink_metadata(&path)?.ino(), Indexed { path, origin, old: None });
    }
    applying.asides = origins::set_renamed_aside(layer)?;
    let (upper, dir) = (DeepPath::new(&layer.upper), DeepPath::new(&layer.dir));
    applying.directory(&upper, &dir, is_opaque(&upper)?)?;
    applying.name_asides_as_before();
    applying.link_other_names()?;
    applying.tell_of_split_files();
    applying.attributes(&upper, &dir)?;
    sync(&layer.dir)?;
    let Applying { done, refused, .. } = applying;
    Ok(Outcome { done, refused })
}

/// Copies a whole directory to one that does not exist yet, durably.
pub fn copy_out(from: &Path, to: &Path, tell: &mut dyn FnMut(&Applied)) -> Result<Applied> {
    fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
    let mut applying = Applying::new(to, &AccessLists::Own, tell);
    let copied = applying.directory(&DeepPath::new(from), &DeepPath::new(to), false).and_then(|()| {
        copy_attributes(from, to)?;
        sync(to)?;
        match applying.refused.is_empty() {
            true => Ok(()),
            false => Err(kept_changes::of_copy(to, std::mem::take(&mut applying.refused)).into()),
        }
    });
    // A partial copy looks like a complete one, and would keep a full disk full.
    copied.inspect_err(|_| drop(fs::remove_dir_all(to)))?;
    crate::volumes::volume::sync_parent(to)?;
    Ok(applying.done)
}

fn sync(dir: &Path) -> Result<()> {
    let open = File::open(dir).with_context(|| dir.display().to_string())?;
    syncfs(&open).with_context(|| format!("cannot flush the file system of {}", dir.display()))
}

struct Applying<'a> {
    done: Applied,
    /// The first name, already applied, of each file of the layer with several names.
    links: HashMap<(u64, u64), DeepPath>,
    /// Files that had several names on the host, by the inode numbers of their copies in the layer.
    indexed: HashMap<u64, Indexed>,
    /// Files that had several names on the host, where the overlay cannot keep these names together.
    split: Vec<PathBuf>,
    /// Directories of the host that wait for the names that the session gave them.
    asides: HashMap<Origin, Aside>,
    refused: RefusedChanges,
    keeps_names: bool,
    /// The directory of the host.
    root: &'a Path,
    lists: &'a AccessLists,
    tell: &'a mut dyn FnMut(&Applied),
}

/// A file of the host that had several names when the session wrote it.
struct Indexed {
    /// The name of the copy in the index of the overlay, which is always there.
    path: PathBuf,
    origin: Origin,
    /// The file that is being replaced, and one of its names, for messages.
    old: Option<(OwnedFd, PathBuf)>,
}

impl<'a> Applying<'a> {
    fn new(root: &'a Path, lists: &'a AccessLists, tell: &'a mut dyn FnMut(&Applied)) -> Applying<'a> {
        let (done, links, indexed, split) = (Applied::default(), HashMap::new(), HashMap::new(), Vec::new());
        let keeps_names = origins::names_are_kept(root);
        let (asides, refused) = (HashMap::new(), RefusedChanges::new());
        Applying { done, links, indexed, split, asides, refused, keeps_names, root, lists, tell }
    }

    /// Makes a directory of the host equal to the layer's. An opaque directory, like all directories in it, ends up
    /// with exactly the entries of the layer.
    fn directory(&mut self, upper: &DeepPath, real: &DeepPath, opaque: bool) -> Result<()> {
        let upper = upper.directory().with_context(|| upper.shown().display().to_string())?;
        let real = real.directory().with_context(|| real.shown().display().to_string())?;
        let names = names_in(&upper)?;
        if opaque {
            let kept: HashSet<&OsString> = names.iter().collect();
            for name in names_in(&real)? {
                if !kept.contains(&name) && !name.as_bytes().starts_with(ASIDE.as_bytes()) && name != GONE {
                    let path = real.join(&name);
                    let removed = self.remove(&path);
                    self.unless_refused(removed, &path, Part::Removal)?;
                }
            }
        }
        for name in names {
            let (from, to) = (upper.join(&name), real.join(&name));
            let applied = self.entry(&from, &to, opaque);
            self.unless_refused(applied, &to, Part::Whole { is_opaque: opaque })?;
            (self.tell)(&self.done);
        }
        Ok(())
    }

    /// Records a change that the directory refuses, and lets the others go on. An error that would meet every change
    /// ends the apply.
    fn unless_refused(&mut self, applied: Result<()>, to: &DeepPath, part: Part) -> Result<()> {
        let Err(e) = applied else { return Ok(()) };
        if !is_of_one(&e) {
            return Err(e).with_context(|| format!("cannot apply {}", to.shown().display()));
        }
        let path = to.shown().strip_prefix(self.root).unwrap_or(to.shown()).to_owned();
        self.refused.insert(path, Refused { why: why(&e), part });
        Ok(())
    }

    /// Copies owner, mode, times, extended attributes and flags.
    fn attributes(&mut self, from: &DeepPath, to: &DeepPath) -> Result<()> {
        copy_attributes_by(from, to, self.lists)?;
        file_flags::copy(from, to);
        Ok(())
    }

    fn entry(&mut self, from: &DeepPath, to: &DeepPath, opaque: bool) -> Result<()> {
        let meta = fs::symlink_metadata(from)?;
        let kind = meta.file_type();
        if is_whiteout(&meta) {
            return self.remove(to);
        }
        let there = match fs::symlink_metadata(to) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            found => Some(found?),
        };
        let is_renamed = kind.is_dir() && origins::is_renamed(from)?;
        if is_renamed
            && let Some(origin) = Origin::copied(from)?
            && let Some(aside) = self.asides.get(&origin)
        {
            let at = aside.at.clone();
            self.rename_over(&at, to)?;
            self.asides.remove(&origin);
        } else if there.as_ref().is_some_and(|there| there.is_dir() != kind.is_dir()) {
            self.remove(to)?;
        }
        if kind.is_dir() {
            match fs::create_dir(to) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e.into()),
                _ => {}
            }
            let opaque = opaque && !is_renamed;
            self.directory(from, to, opaque || is_opaque(from)?)?;
            let copied = self.attributes(from, to);
            return self.unless_refused(copied, to, Part::Attributes);
        }
        let new = to.with_file_name(NEW);
        absent(fs::remove_file(&new))?;
        // A partial file would keep a full disk full.
        self.replace(from, &new, to, &meta).inspect_err(|_| drop(fs::remove_file(&new)))
    }

    /// Renames a directory, and removes the file or directory that had its new name. If the rename is refused, nothing
    /// is removed.
    fn rename_over(&mut self, dir: &Path, to: &DeepPath) -> Result<()> {
        let gone = self.root.join(GONE);
        self.remove(&gone)?;
        let had_other = match fs::rename(to, &gone) {
            Err(e) if e.kind() == ErrorKind::NotFound => false,
            renamed => renamed.map(|()| true)?,
        };
        if let Err(e) = fs::rename(dir, to) {
            if had_other {
                fs::rename(&gone, to).with_context(|| format!("it is at {} now", gone.display()))?;
            }
            return Err(e.into());
        }
        self.done.files += 1;
        self.remove(&gone)
    }

    /// Gives directories that could not get their new names their old ones back. If that is refused, too, says where
    /// they are.
    fn name_asides_as_before(&mut self) {
        let mut asides: Vec<Aside> = std::mem::take(&mut self.asides).into_values().collect();
        asides.sort_by_key(|aside| aside.source.components().count());
        for Aside { at, source, target } in asides {
            let Err(e) = renameat_with(CWD, &at, CWD, &source, RenameFlags::NOREPLACE) else { continue };
            let (at, source) = (at.display(), source.display());
            let why = format!("{source} is now at {at}, because it could not get its old name back either: {e}");
            let target = target.strip_prefix(self.root).unwrap_or(&target);
            match self.refused.iter_mut().find(|(path, _)| target.starts_with(path)) {
                Some((_, refused)) => refused.why = format!("{}; {why}", refused.why),
                None => tell(format_args!("{why}")),
            }
        }
    }

    fn replace(&mut self, from: &DeepPath, new: &DeepPath, to: &DeepPath, meta: &Metadata) -> Result<()> {
        let link = (meta.dev(), meta.ino());
        match self.links.get(&link) {
            Some(first) => {
                // If both names are the same file already, a rename between them would do nothing and leave the new
                // name behind.
                if same_file(first, to) {
                    return Ok(());
                }
                fs::hard_link(first, new)?;
            }
            None => {
                if let Some(indexed) = self.indexed.get_mut(&meta.ino()) {
                    // An interrupted apply has made this file already, and other names may link to it.
                    if is_equal(from, to)? {
                        self.links.insert(link, to.clone());
                        return self.attributes(from, to);
                    }
                    indexed.look_at(to);
                }
                let has_others = |there: Metadata| there.is_file() && there.nlink() > 1;
                if !self.keeps_names && meta.is_file() && fs::symlink_metadata(to).is_ok_and(has_others) {
                    self.split.push(to.shown().to_owned());
                }
                self.make(from, new, meta)?;
                self.attributes(from, new)?;
            }
        }
        fs::rename(new, to)?;
        if meta.nlink() > 1 {
            self.links.entry(link).or_insert_with(|| to.clone());
        }
        self.done.files += 1;
        Ok(())
    }

    /// Links the other names of each rewritten file that had several, where the layer does not have them. The replaced
    /// file loses all its names only at the end, so an interrupted apply can be done again from the beginning.
    fn link_other_names(&mut self) -> Result<()> {
        if self.indexed.is_empty() {
            return Ok(());
        }
        let mut others: HashMap<u64, Vec<DeepPath>> = HashMap::new();
        let by_origin: HashMap<&Origin, u64> =
            self.indexed.iter().map(|(number, one)| (&one.origin, *number)).collect();
        find_origins(&DeepPath::new(self.root), &mut |path, origin| {
            if let Some(number) = by_origin.get(&origin) {
                others.entry(*number).or_default().push(path);
            }
        })?;
        for (number, names) in others {
            let indexed = self.indexed.get_mut(&number).expect("it was found by it");
            names.iter().for_each(|name| indexed.look_at(name));
            let (from, mut old) = (DeepPath::new(&indexed.path), indexed.old.take());
            let keeper = DeepPath::new(&keeper(self.root, number));
            let meta = fs::symlink_metadata(&from)?;
            let applied = self.links.get(&(meta.dev(), number)).cloned();
            let first = match &applied {
                Some(first) => first,
                None => {
                    // The session removed the name by which it wrote the file.
                    if !is_equal(&from, &keeper)? {
                        let new = DeepPath::new(self.root).join(NEW);
                        absent(fs::remove_file(&new))?;
                        let made = self.replace(&from, &new, &keeper, &meta);
                        made.inspect_err(|_| drop(fs::remove_file(&new)))?;
                    }
                    &keeper
                }
            };
            let mut refused = Vec::new();
            for name in names.iter().filter(|name| !same_file(first, name)) {
                let new = name.with_file_name(NEW);
                absent(fs::remove_file(&new))?;
                let linked = fs::hard_link(first, &new).and_then(|()| fs::rename(&new, name)).inspect_err(|_| {
                    let _ = fs::remove_file(&new);
                });
                refused.push((name.clone(), linked));
            }
            let is_kept = |old: &OwnedFd| {
                let first = fs::symlink_metadata(first);
                fstat(old)
                    .is_ok_and(|old| first.is_ok_and(|first| (first.dev(), first.ino()) == (old.st_dev, old.st_ino)))
            };
            old.take_if(|(old, _)| is_kept(old));
            self.indexed.get_mut(&number).expect("as above").old = old;
            for (name, linked) in refused {
                self.unless_refused(linked.map_err(Into::into), &name, Part::OtherName)?;
            }
        }
        for number in self.indexed.keys() {
            absent(fs::remove_file(keeper(self.root, *number)))?;
        }
        for (old, name) in self.indexed.values().filter_map(|indexed| indexed.old.as_ref()) {
            if fstat(old).is_ok_and(|stat| stat.st_nlink > 0) {
                tell(format_args!(
                    "{} has other names outside of {}, which keep the contents from before the session; to keep it one \
                     file, name a directory that contains all of its names (--overlay)",
                    name.display(),
                    self.root.display()
                ));
            }
        }
        Ok(())
    }

    fn tell_of_split_files(&self) {
        let Some(first) = self.split.first() else { return };
        let more = match self.split.len() {
            1 => String::new(),
            n => format!(" (and {} other files)", n - 1),
        };
        tell(format_args!(
            "{}{more} had other names, which keep the old contents: a session without root, or on a file system without \
             file handles, splits a file with several names when it is written; with --on DIR, or as root, it stays one",
            first.display()
        ));
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

    /// Copies the bytes, and keeps holes.
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

impl Indexed {
    /// Remembers the file that is about to be replaced, if it is the original.
    fn look_at(&mut self, name: &DeepPath) {
        if self.old.is_none() && Origin::of(name).as_ref() == Some(&self.origin) {
            let open = open(&**name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
            self.old = open.ok().map(|open| (open, name.shown().to_owned()));
        }
    }
}

fn names_in(dir: &DeepPath) -> Result<Vec<OsString>> {
    let names = fs::read_dir(dir).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let mut names: Vec<_> = names.with_context(|| dir.shown().display().to_string())?;
    names.sort();
    Ok(names)
}

/// Whether an error concerns one change only. A full or broken disk, for example, would fail all later changes, too.
fn is_of_one(e: &anyhow::Error) -> bool {
    let number = |e: &(dyn std::error::Error + 'static)| {
        let of_system = e.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        of_system.or_else(|| e.downcast_ref::<Errno>().map(|e| e.raw_os_error()))
    };
    let everywhere = [
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::ROFS,
        Errno::IO,
        Errno::UCLEAN,
        Errno::NOMEM,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NODEV,
        Errno::NXIO,
        Errno::STALE,
    ];
    e.chain().find_map(number).is_some_and(|number| everywhere.iter().all(|e| e.raw_os_error() != number))
}

/// The reason for people; where the error says only that the change is forbidden, with a hint where to look.
fn why(e: &anyhow::Error) -> String {
    let is_forbidden = |e: &(dyn std::error::Error + 'static)| {
        let of_system = e.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        of_system == Some(Errno::PERM.raw_os_error()) || e.downcast_ref::<Errno>() == Some(&Errno::PERM)
    };
    match e.chain().any(is_forbidden) {
        true => {
            format!("{e:#}; `lsattr -d` of it and its directory shows whether they may be changed (`chattr -i -a`)")
        }
        false => format!("{e:#}"),
    }
}

/// The temporary name of a file whose copy in the layer has this inode number.
fn keeper(root: &Path, number: u64) -> PathBuf {
    root.join(format!("{ASIDE}file.{number}"))
}

/// Calls `found` for every file in a directory tree, with its origin.
fn find_origins(dir: &DeepPath, found: &mut dyn FnMut(DeepPath, Origin)) -> Result<()> {
    let dir = dir.directory().with_context(|| dir.shown().display().to_string())?;
    for entry in fs::read_dir(&dir).with_context(|| dir.shown().display().to_string())? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, dir.join(entry.file_name()));
        if kind.is_dir() {
            find_origins(&path, found)?;
        } else if kind.is_file()
            && let Some(origin) = Origin::of(&path)
        {
            found(path, origin);
        }
    }
    Ok(())
}

/// Whether two files hold the same bytes. False if one of them does not exist.
fn is_equal(a: &Path, b: &Path) -> Result<bool> {
    let length = |path| fs::symlink_metadata(path).ok().filter(Metadata::is_file).map(|meta| meta.len());
    if length(a).is_none() || length(a) != length(b) {
        return Ok(false);
    }
    let (mut a, mut b) = (File::open(a)?, File::open(b)?);
    let (mut of_a, mut of_b) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    loop {
        let bytes = a.read(&mut of_a)?;
        match b.read_exact(&mut of_b[..bytes]) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            done => done?,
        }
        if bytes == 0 || of_a[..bytes] != of_b[..bytes] {
            return Ok(bytes == 0);
        }
    }
}

/// A removal succeeds if the file is already gone.
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

/// Whether an entry is the overlay's mark (whiteout) for a removed name of the lower layer.
fn is_whiteout(meta: &Metadata) -> bool {
    meta.file_type().is_char_device() && meta.rdev() == 0
}

/// Whether a directory is opaque: the overlay then hides everything in the lower directory.
fn is_opaque(dir: &Path) -> Result<bool> {
    let mut value = [0; 4];
    match lgetxattr(dir, format!("{}opaque", overlay_attributes()), &mut value[..]) {
        Ok(bytes) => Ok(&value[..bytes] == b"y"),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP) => Ok(false),
        Err(e) => Err(e).with_context(|| dir.display().to_string()),
    }
}
