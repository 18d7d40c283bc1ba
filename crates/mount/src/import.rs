//! `untorn import`: a store to be mounted is made of a plain tree.

use crate::copying::{self, NoKernel, Report, path_of};
use crate::made_whole::MadeWhole;
use crate::manifest::{self, Manifest, Plain, Stored};
use crate::mounted_store;
use anyhow::{Context, Error, Result, bail, ensure};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, Stat, openat};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use untorn::Store;
use untorn_tree::{Change, Errno, FileTree, Ino, Kind, ROOT, Request, SetTime, StoreTree, Time, TreeOptions};

/// Access lists: of these a mounted store has none.
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Makes a store with all that is in a directory; returns what is to be said.
///
/// With a manifest it is for a session: what was copied is written there, and nothing may be left out.
pub fn import(directory: &Path, store: &Path, manifest: Option<&Path>) -> Result<String> {
    let shown = directory.display();
    let source = directory.canonicalize().with_context(|| format!("cannot open {shown}"))?;
    ensure!(
        !source.join(mounted_store::JOURNAL).exists(),
        "{shown} is a store; mount it, or copy its files out first (untorn export, untorn eject)"
    );
    let made = MadeWhole::begin(store)?;
    let place = made.place().display();
    ensure!(
        !made.place().starts_with(&source) && !source.starts_with(made.place()),
        "{shown} and {place} lie one in the other; use another directory"
    );
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&source, flags, Mode::empty()).with_context(|| format!("cannot open {shown}"))?;
    let opened_store = Store::open(made.path()).and_then(|store| StoreTree::open(store, TreeOptions::default()));
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
        let by = Request { uid: about.st_uid, gid: about.st_gid };
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
            let place = self.tree.place_for_contents(ino).map_err(error).with_context(what)?;
            let to = File::options().write(true).create_new(true).open(&place).with_context(what)?;
            copying::contents(&from, &to, size, &mut self.report).with_context(what)?;
            unchanged(entry, about, shown)?;
        }
        self.tree.adopt_contents(ino, size).map_err(error).with_context(what)
    }

    /// Last, as what is done before changes times.
    fn attributes(&mut self, entry: &OwnedFd, ino: Ino, kind: Kind, about: &Stat, shown: &Path) -> Result<()> {
        let mut mode = about.st_mode & 0o7777;
        for (name, value) in copying::attributes(&path_of(entry)).context("cannot read its extended attributes")? {
            match name.as_bytes() {
                name if name == ACCESS.as_bytes() => {
                    mode = without_list(mode, &value);
                    self.report.leave_out("access lists (ACL) are left out; only owner, group and others count", shown);
                }
                name if name == DEFAULT.as_bytes() => {
                    self.report.leave_out("default access lists (ACL) are left out", shown)
                }
                name if name.starts_with(b"system.") => {
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

/// With an access list, the mode's group is the list's mask: what the group may is in the list, and no more than the mask.
fn without_list(mode: u32, list: &[u8]) -> u32 {
    const OWNING_GROUP: u16 = 4;
    let entries = list.get(4..).unwrap_or_default().chunks_exact(8);
    let group = entries
        .map(|entry| (u16::from_le_bytes([entry[0], entry[1]]), u16::from_le_bytes([entry[2], entry[3]])))
        .find_map(|(tag, rights)| (tag == OWNING_GROUP).then_some(u32::from(rights & 7)));
    mode & !0o070 | (mode >> 3 & group.unwrap_or(0)) << 3
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

    #[test]
    fn a_group_gets_no_rights_of_the_mask() {
        // Owner rw-, user 1000 rwx, group r--, mask rwx, others ---.
        let entry = |tag: u16, rights: u16, id: u32| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let none = u32::MAX;
        let entries = [entry(1, 6, none), entry(2, 7, 1000), entry(4, 4, none), entry(16, 7, none), entry(32, 0, none)];
        let list = [&2u32.to_le_bytes()[..], &entries.concat()].concat();
        assert_eq!(without_list(0o2670, &list), 0o2640);
        assert_eq!(without_list(0o670, &[]), 0o600);
    }
}
