//! `untorn import`: a store to be mounted is made of a plain tree.

use crate::copying::{self, NoKernel, Report, path_of};
use crate::made_whole::MadeWhole;
use crate::manifest::{self, Manifest, Plain, Stored};
use crate::store_files::{self, JOURNAL};
use anyhow::{Context, Error, Result, bail, ensure};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, Stat, openat};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use untorn_tree::{Change, Errno, FileTree, Ino, Kind, ROOT, Request, SetTime, StoreTree, Time, TreeOptions};

/// Makes a store with all that is in a directory; returns what is to be said.
///
/// With a manifest it is for a session: what was copied is written there, and nothing may be left out.
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
    let made = MadeWhole::begin(store)?;
    let place = made.place().display();
    ensure!(
        !made.place().starts_with(&source) && !source.starts_with(made.place()),
        "{shown} and {place} lie one in the other; use another directory"
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
        root: PathBuf::new(),
        report: Report::new("importing"),
    };
    import.root(&opened, directory).context("nothing was made")?;
    let (report, copied) = (import.report, import.copied);
    if manifest.is_some() {
        report.refuse_what_was_left_out()?;
    }
    // Attributes of files with several names are settled by the last of them.
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
        manifest::write(&copied, manifest)?;
    }
    report.say_what_was_left_out();
    Ok(text)
}

struct Import<'a> {
    tree: &'a StoreTree,
    /// Files with several names, by device and number.
    linked: HashMap<(u64, u64), Ino>,
    /// Each name below the directory.
    copied: Vec<(PathBuf, Plain, Ino)>,
    /// As the user named it.
    root: PathBuf,
    report: Report,
}

fn error(Errno(number): Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(number)
}

impl Import<'_> {
    fn root(&mut self, directory: &OwnedFd, shown: &Path) -> Result<()> {
        let about = stat(directory, shown)?;
        self.copied.push((PathBuf::new(), Plain::of(&about), ROOT));
        self.root = shown.to_owned();
        self.entries(directory, ROOT, &about, shown)?;
        self.attributes(directory, ROOT, Kind::Directory, &about, shown)
    }

    /// All that is in a directory.
    fn entries(&mut self, directory: &OwnedFd, to: Ino, before: &Stat, shown: &Path) -> Result<()> {
        let entries = fs::read_dir(path_of(directory)).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let entries = entries.with_context(|| format!("cannot read {}", shown.display()))?;
        let mut names: Vec<_> = entries.into_iter().map(|entry| entry.file_name()).collect();
        names.sort();
        for name in names {
            self.entry(directory, &name, to, &shown.join(&name))?;
        }
        unchanged(directory, before, shown)
    }

    fn entry(&mut self, directory: &OwnedFd, name: &OsStr, to: Ino, shown: &Path) -> Result<()> {
        let what = || format!("cannot import {}", shown.display());
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = openat(directory, name, flags, Mode::empty()).with_context(what)?;
        let about = stat(&entry, shown)?;
        let key = (about.st_dev, about.st_ino);
        let kind = kind(&about).with_context(what)?;
        let below = shown.strip_prefix(&self.root).with_context(what)?.to_owned();
        if let Some(ino) = self.linked.get(&key) {
            self.copied.push((below, Plain::of(&about), *ino));
            return self.tree.link(*ino, to, name, &NoKernel).map(drop).map_err(error).with_context(what);
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
        self.copied.push((below, Plain::of(&about), ino));
        if kind != Kind::Directory && about.st_nlink > 1 {
            self.linked.insert(key, ino);
        }
        match kind {
            Kind::Directory => self.entries(&entry, ino, &about, shown)?,
            Kind::File => self.contents(&entry, ino, &about, shown)?,
            _ => {}
        }
        self.attributes(&entry, ino, kind, &about, shown).with_context(what)?;
        self.report.add(kind);
        Ok(())
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

    /// Last, as what is done before changes times.
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

/// A copy of what changes is a copy of no moment.
fn unchanged(entry: &OwnedFd, before: &Stat, shown: &Path) -> Result<()> {
    let state = |about: &Stat| (about.st_size, about.st_mtime, about.st_mtime_nsec);
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
        other => bail!("{other:?} is no kind of file that is known"),
    })
}

/// As the kernel asks for it by FUSE.
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
