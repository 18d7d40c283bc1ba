//! `untorn import`: makes a store that can be mounted of a plain tree.

use crate::import_export::atomic_directory::AtomicDirectory;
use crate::mounts::store_files::{self, JOURNAL};
use crate::plain_trees::copying::{self, NoKernel, Report, path_of};
use crate::plain_trees::deep_paths::{self, Below};
use crate::plain_trees::manifest::{self, Fixed, Manifest, Plain, Stored};
use anyhow::{Context, Error, Result, bail, ensure};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxAttributes, StatxFlags, openat, statx};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use untorn_tree::{Change, Errno, FileTree, Ino, Kind, ROOT, Request, SetTime, StoreTree, Time, TreeOptions};

/// Makes a store of the contents of a directory; returns a message for the user.
///
/// A session passes a manifest: the list of copied names is written there, and nothing may be left out.
pub fn import(directory: &Path, store: &Path, manifest: Option<&Path>) -> Result<String> {
    let shown = directory.display();
    let source = directory.canonicalize().with_context(|| format!("cannot open {shown}"))?;
    ensure!(
        !source.join(JOURNAL).exists(),
        "{shown} is a store; mount it, or copy its files out first (untorn export, untorn eject)"
    );
    if manifest.is_none() {
        store_files::check_place(store)?;
    }
    let made = AtomicDirectory::begin(store)?;
    let place = made.place().display();
    ensure!(
        !made.place().starts_with(&source) && !source.starts_with(made.place()),
        "of {shown} and {place}, one contains the other; use another directory"
    );
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&source, flags, Mode::empty()).with_context(|| format!("cannot open {shown}"))?;
    let opened_store =
        StoreTree::store_options().open(made.path()).and_then(|store| StoreTree::open(store, TreeOptions::default()));
    let tree = opened_store.with_context(|| format!("cannot make a store for {place}"))?;
    let mut import = Import {
        tree: &tree,
        linked: HashMap::new(),
        copied: Vec::new(),
        fixed: manifest.map(|_| Fixed::new()),
        root: directory.to_owned(),
        report: Report::new("importing"),
    };
    import.root(opened).context("nothing was made")?;
    let Import { report, copied, fixed, .. } = import;
    if manifest.is_some() {
        report.refuse_what_was_left_out()?;
    }
    // Read only now: each further link to a file changes the file's attributes.
    let stored = |(path, plain, ino): (PathBuf, Plain, Ino)| {
        Ok((path, (plain, Stored::of(&tree.attributes(ino).map_err(error)?))))
    };
    let copied: Manifest = copied.into_iter().map(stored).collect::<Result<_>>()?;
    tree.close(&NoKernel)
        .map_err(error)
        .with_context(|| format!("cannot close the store for {place}; nothing was made"))?;
    let text = format!("{place}: {}; mount it: untorn mount {place} DIRECTORY\n", report.counts());
    made.finish()?;
    if let Some(manifest) = manifest {
        manifest::write_fixed(&fixed.unwrap_or_default(), store)?;
        manifest::write(&copied, manifest)?;
    }
    report.say_what_was_left_out();
    Ok(text)
}

struct Import<'a> {
    tree: &'a StoreTree,
    /// Files with several names, by device and inode number.
    linked: HashMap<(u64, u64), Ino>,
    /// All names below the directory.
    copied: Vec<(PathBuf, Plain, Ino)>,
    /// In a session: inodes that nobody may change.
    fixed: Option<Fixed>,
    /// The directory as the user named it.
    root: PathBuf,
    report: Report,
}

/// A directory that is not completely copied yet.
struct Level {
    ino: Ino,
    before: Stat,
    names: std::vec::IntoIter<OsString>,
}

fn error(Errno(number): Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(number)
}

impl Import<'_> {
    fn root(&mut self, directory: OwnedFd) -> Result<()> {
        let mut at = PathBuf::new();
        let about = stat(&directory, &self.root)?;
        self.copied.push((PathBuf::new(), Plain::of(&about), ROOT));
        let root_shown = self.root.clone();
        self.flags(&directory, (ROOT, Kind::Directory), None, &root_shown)?;
        let mut levels = vec![self.level(&directory, ROOT, about, &at)?];
        let mut below = Below::new(directory);
        let mut directory = below.directory(&at)?;
        while let Some(level) = levels.last_mut() {
            match level.names.next() {
                Some(name) => {
                    at.push(&name);
                    match self.entry(&directory, &name, level.ino, &at)? {
                        None => drop(at.pop()),
                        Some((opened, level)) => {
                            levels.push(level);
                            directory = opened;
                        }
                    }
                }
                None => {
                    let Some(Level { ino, before, .. }) = levels.pop() else { break };
                    let shown = self.shown(&at);
                    unchanged(&directory, &before, &shown)?;
                    let what = || format!("cannot import {}", shown.display());
                    self.attributes(&directory, ino, Kind::Directory, &before, &shown).with_context(what)?;
                    if at.pop() {
                        self.report.add(Kind::Directory);
                        directory = below.directory(&at).with_context(what)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn shown(&self, at: &Path) -> PathBuf {
        if at.as_os_str().is_empty() { self.root.clone() } else { self.root.join(at) }
    }

    fn level(&self, directory: &OwnedFd, ino: Ino, before: Stat, at: &Path) -> Result<Level> {
        let names = deep_paths::names(directory);
        let names = names.with_context(|| format!("cannot read {}", self.shown(at).display()))?.into_iter();
        Ok(Level { ino, before, names })
    }

    /// Copies the entry with a name. Returns a directory, so that its contents are copied next.
    fn entry(&mut self, directory: &OwnedFd, name: &OsStr, to: Ino, at: &Path) -> Result<Option<(OwnedFd, Level)>> {
        let shown = self.shown(at);
        let what = || format!("cannot import {}", shown.display());
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = openat(directory, name, flags, Mode::empty()).with_context(what)?;
        let about = stat(&entry, &shown)?;
        let key = (about.st_dev, about.st_ino);
        let kind = kind(&about).with_context(what)?;
        if let Some(ino) = self.linked.get(&key) {
            self.copied.push((at.to_owned(), Plain::of(&about), *ino));
            if let Some(fixed) = &mut self.fixed
                && fixed.contains_key(&to)
            {
                fixed.insert(*ino, false);
            }
            return self.tree.link(*ino, to, name, &NoKernel).map(|_| None).map_err(error).with_context(what);
        }
        let by = Request { uid: about.st_uid, gid: about.st_gid, umask: 0 };
        let made = match kind {
            Kind::Symlink => {
                let target = rustix::fs::readlinkat(&entry, "", Vec::new()).with_context(what)?;
                self.tree.symlink(by, to, name, OsStr::from_bytes(target.as_bytes()))
            }
            _ => self.tree.make(by, to, name, kind, about.st_mode & 0o7777, device_number(&about)),
        };
        let ino = made.map_err(error).with_context(what)?.ino;
        self.copied.push((at.to_owned(), Plain::of(&about), ino));
        self.flags(&entry, (ino, kind), Some(to), &shown).with_context(what)?;
        if kind != Kind::Directory && about.st_nlink > 1 {
            self.linked.insert(key, ino);
        }
        match kind {
            Kind::Directory => {
                let level = self.level(&entry, ino, about, at)?;
                return Ok(Some((entry, level)));
            }
            Kind::File => self.contents(&entry, ino, &about, &shown)?,
            _ => {}
        }
        self.attributes(&entry, ino, kind, &about, &shown).with_context(what)?;
        self.report.add(kind);
        Ok(None)
    }

    fn contents(&mut self, entry: &OwnedFd, ino: Ino, about: &Stat, shown: &Path) -> Result<()> {
        let what = || format!("cannot import {}", shown.display());
        let size = u64::try_from(about.st_size).with_context(what)?;
        if size > 0 {
            let from = File::open(path_of(entry)).with_context(what)?;
            let Some(place) = self.tree.place_for_contents(ino, size).map_err(error).with_context(what)? else {
                let mut bytes = vec![0; size as usize];
                let read = from.read_exact_at(&mut bytes, 0);
                unchanged(entry, about, shown)?;
                read.with_context(what)?;
                self.report.progress(size);
                return self.tree.adopt_bytes(ino, &bytes).map_err(error).with_context(what);
            };
            let to = File::options().write(true).create_new(true).open(&place).with_context(what)?;
            copying::contents(&from, &to, size, &mut self.report).with_context(what)?;
            unchanged(entry, about, shown)?;
        }
        self.tree.adopt_contents(ino, size).map_err(error).with_context(what)
    }

    /// Notes the flags (`chattr +i`, `+a`) of an inode.
    ///
    /// An ordinary import leaves flags out, and reports that. In a session nobody may change an inode with flags, so
    /// the plain one stays as it is, with its flags. Nor may anybody change a file in such a directory, into which no
    /// new version could be renamed.
    fn flags(&mut self, entry: &OwnedFd, of: (Ino, Kind), lies_in: Option<Ino>, shown: &Path) -> Result<()> {
        let about = statx(entry, "", AtFlags::EMPTY_PATH, StatxFlags::empty()).context("cannot read its flags")?;
        let is = |flag| about.stx_attributes.contains(flag);
        let (is_immutable, is_append) = (is(StatxAttributes::IMMUTABLE), is(StatxAttributes::APPEND));
        let Some(fixed) = &mut self.fixed else {
            if is_immutable || is_append {
                self.report.leave_out("flags (chattr +i, +a) are left out", shown);
            }
            return Ok(());
        };
        let (ino, kind) = of;
        let above = lies_in.is_some_and(|above| fixed.contains_key(&above)) && kind != Kind::Directory;
        if is_immutable || is_append || above {
            fixed.insert(ino, !is_immutable && is_append && kind == Kind::Directory);
        }
        Ok(())
    }

    /// Sets extended attributes, mode, owner and times. Called last, because earlier steps change times.
    fn attributes(&mut self, entry: &OwnedFd, ino: Ino, kind: Kind, about: &Stat, shown: &Path) -> Result<()> {
        let mode = about.st_mode & 0o7777;
        for (name, value) in copying::attributes(&path_of(entry)).context("cannot read its extended attributes")? {
            match name.as_bytes() {
                name if name.starts_with(b"system.") && !name.starts_with(copying::ACCESS_LISTS) => {
                    self.report.leave_out("attributes of the file system (system.*) are left out", shown);
                }
                _ => self.tree.set_xattr(ino, &name, &value, 0).map_err(error).context("cannot keep its attributes")?,
            }
        }
        let time = |seconds, nanoseconds| {
            let nanoseconds = u32::try_from(nanoseconds).unwrap_or(0);
            Some(SetTime::At(Time { seconds, nanoseconds }))
        };
        let change = Change {
            mode: (kind != Kind::Symlink).then_some(mode),
            uid: Some(about.st_uid),
            gid: Some(about.st_gid),
            atime: time(about.st_atime, about.st_atime_nsec),
            mtime: time(about.st_mtime, about.st_mtime_nsec),
            ..Change::default()
        };
        self.tree.set_attributes(ino, &change).map(drop).map_err(|e| Error::new(error(e)))
    }
}

fn stat(entry: &OwnedFd, shown: &Path) -> Result<Stat> {
    rustix::fs::fstat(entry).with_context(|| format!("cannot look at {}", shown.display()))
}

/// Refuses a file that has changed since `before`: its copy would mix several states.
fn unchanged(entry: &OwnedFd, before: &Stat, shown: &Path) -> Result<()> {
    let state = |about: &Stat| (about.st_dev, about.st_ino, about.st_size, about.st_mtime, about.st_mtime_nsec);
    ensure!(
        state(&stat(entry, shown)?) == state(before),
        "{} changed while it was copied; end the programs that write there, and try again",
        shown.display()
    );
    Ok(())
}

fn kind(about: &Stat) -> Result<Kind> {
    Ok(match FileType::from_raw_mode(about.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        other => bail!("{other:?} is an unknown kind of file"),
    })
}

/// Converts a device number into the form that FUSE uses.
fn device_number(about: &Stat) -> u32 {
    let (major, minor) = (libc::major(about.st_rdev), libc::minor(about.st_rdev));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_changes_meanwhile_is_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let entry = rustix::fs::open(file.path(), flags, Mode::empty()).unwrap();
        let before = stat(&entry, file.path()).unwrap();
        unchanged(&entry, &before, file.path()).unwrap();
        file.write_all(b"more").unwrap();
        let said = unchanged(&entry, &before, "f".as_ref()).unwrap_err().to_string();
        assert!(said.contains("f changed while it was copied"), "{said}");
    }
}
