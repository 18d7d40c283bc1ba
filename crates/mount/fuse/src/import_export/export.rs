//! `untorn export`: makes a plain tree of a store that can be mounted.

use crate::import_export::atomic_directory::AtomicDirectory;
use crate::import_export::held_back::{HeldBack, Skips};
use crate::mounts::mounted_store;
use crate::plain_trees::copying::{self, NoKernel, Report, path_of};
use crate::plain_trees::deep_paths::Below;
use anyhow::{Context, Error, Result, bail, ensure};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timestamps, XattrFlags, chownat, mknodat, utimensat};
use rustix::io::Errno as SystemErrno;
use rustix::process::{Gid, Uid};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use untorn_tree::{Attributes, Contents, Entry, Errno, FileTree, Ino, Kind, ROOT, StoreTree, Time};

/// Number of names requested at a time.
const NAMES: usize = 1024;

/// Makes a plain tree of all that was committed in a store, except skipped names; returns a message for the user.
pub fn export(store: &Path, to: &Path, skips: &Skips) -> Result<String> {
    let source = store.canonicalize().with_context(|| format!("cannot open the store {}", store.display()))?;
    let made = AtomicDirectory::begin(to)?;
    let place = made.place().display();
    ensure!(!made.place().starts_with(&source), "{place} lies in the store; use another directory");
    let tree = mounted_store::open_to_export(&source)?;
    tree.write_back().map_err(error).with_context(|| format!("cannot bring {} up to date", store.display()))?;
    let mut export = Export::new(&tree, "exporting");
    export.root(made.path(), skips).context("nothing was made")?;
    let report = export.report;
    tree.close(&NoKernel).map_err(error).with_context(|| format!("cannot close {}", store.display()))?;
    let text = format!("{place}: {}\n", report.counts());
    made.finish()?;
    report.say_what_was_left_out();
    Ok(text)
}

/// Copies out of a tree.
pub struct Export<'a> {
    tree: &'a StoreTree,
    /// Counts of the copied entries, and a list of the parts that were left out.
    pub report: Report,
}

/// A directory that is not completely copied yet.
struct Level {
    about: Attributes,
    entries: std::vec::IntoIter<Entry>,
    /// Directory offset after these names.
    next: u64,
}

fn error(Errno(number): Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(number)
}

impl<'a> Export<'a> {
    /// Creates an exporter for a tree.
    pub fn new(tree: &'a StoreTree, doing: &'static str) -> Export<'a> {
        Export { tree, report: Report::new(doing) }
    }

    /// Copies the whole tree, except skipped names, to an empty directory. One error reports all names that could not
    /// be copied.
    pub fn root(&mut self, to: &Path, skips: &Skips) -> Result<()> {
        let mut below = Below::at(to).with_context(|| format!("cannot open {}", to.display()))?;
        let (mut at, mut directory) = (PathBuf::new(), below.directory(Path::new(""))?);
        let mut levels = vec![self.level(ROOT)?];
        // First copied names of files with several names.
        let mut linked: HashMap<Ino, PathBuf> = HashMap::new();
        let mut held = HeldBack::default();
        while let Some(level) = levels.last_mut() {
            let Some(entry) = self.next(level)? else {
                let about = level.about;
                levels.pop();
                let shown = if at.as_os_str().is_empty() { Path::new(".") } else { &at };
                let done = self.attributes(&path_of(&directory).join("."), &about, shown);
                held.or_hold(shown, done.with_context(|| format!("cannot export {}", shown.display())), &directory)?;
                if at.pop() {
                    self.report.add(Kind::Directory);
                    directory = below.directory(&at)?;
                }
                continue;
            };
            at.push(&entry.name);
            if skips.has(&at) {
                at.pop();
                continue;
            }
            let to = path_of(&directory).join(&entry.name);
            let made = match (entry.kind, linked.get(&entry.ino)) {
                (Kind::Directory, _) => DirBuilder::new().mode(0o700).create(&to).map_err(Error::from),
                (_, Some(first)) => below
                    .name(first)
                    .map_err(Error::from)
                    .and_then(|first| fs::hard_link(first.full, &to).context("cannot link it")),
                (_, None) => self.entry(entry.ino, &to, &at).map(|about| {
                    if about.nlink > 1 {
                        linked.insert(entry.ino, at.clone());
                    }
                }),
            };
            let is_made = made.is_ok();
            held.or_hold(&at, made.with_context(|| format!("cannot export {}", at.display())), &directory)?;
            if is_made && entry.kind == Kind::Directory {
                levels.push(self.level(entry.ino)?);
                directory = below.directory(&at)?;
            } else {
                at.pop();
            }
        }
        skips.check()?;
        held.refuse()
    }

    fn level(&self, of: Ino) -> Result<Level> {
        let about = self.tree.attributes(of).map_err(error)?;
        Ok(Level { about, entries: Vec::new().into_iter(), next: 0 })
    }

    fn next(&self, level: &mut Level) -> Result<Option<Entry>> {
        if level.entries.as_slice().is_empty() {
            let entries = self.tree.read_dir(level.about.ino, level.next, NAMES).map_err(error)?;
            level.next = entries.last().map_or(level.next, |last| last.next);
            level.entries = entries.into_iter();
        }
        Ok(level.entries.next())
    }

    /// Copies an inode that is not a directory to a free name. If that fails, nothing has that name.
    pub fn entry(&mut self, ino: Ino, to: &Path, shown: &Path) -> Result<Attributes> {
        let about = self.tree.attributes(ino).map_err(error)?;
        let made = self.make(&about, to).and_then(|()| self.attributes(to, &about, shown));
        made.inspect_err(|_| drop(fs::remove_file(to)))?;
        self.report.add(about.kind);
        Ok(about)
    }

    fn make(&mut self, about: &Attributes, to: &Path) -> Result<()> {
        let node = |kind: FileType, number| mknodat(CWD, to, kind, Mode::RUSR | Mode::WUSR, number);
        match about.kind {
            Kind::File => self.contents(about, to)?,
            Kind::Directory => bail!("it is a directory"),
            Kind::Symlink => std::os::unix::fs::symlink(self.tree.read_link(about.ino).map_err(error)?, to)?,
            Kind::Fifo => node(FileType::Fifo, 0)?,
            Kind::Socket => node(FileType::Socket, 0)?,
            Kind::CharDevice | Kind::BlockDevice => {
                let kind =
                    if about.kind == Kind::CharDevice { FileType::CharacterDevice } else { FileType::BlockDevice };
                match node(kind, device_number(about.rdev)) {
                    Err(SystemErrno::PERM) => bail!("it is a device, which root alone can make; do this as root"),
                    made => made?,
                }
            }
        }
        Ok(())
    }

    fn contents(&mut self, about: &Attributes, to: &Path) -> Result<()> {
        let to = File::options().write(true).create_new(true).mode(0o600).open(to)?;
        match self.tree.contents(about.ino).map_err(error)? {
            Contents::Object(object) => {
                return copying::contents(&File::open(object)?, &to, about.size, &mut self.report);
            }
            Contents::Small(bytes) => {
                to.write_all_at(&bytes, 0)?;
                self.report.progress(bytes.len() as u64);
            }
            Contents::Hole => {}
        }
        Ok(to.set_len(about.size)?)
    }

    /// Sets owner, attributes, times and mode. Called last, because earlier steps change times, and a new owner removes
    /// attributes and bits.
    fn attributes(&mut self, to: &Path, about: &Attributes, shown: &Path) -> Result<()> {
        // Without the owner, setuid and setgid would give away the rights of another user.
        let mode = if self.owner(to, about, shown)? { about.mode } else { about.mode & !0o6000 };
        self.attributes_that_differ(to, about, shown)?;
        set_times(to, about).context("cannot set its times")?;
        if about.kind != Kind::Symlink {
            // Set last: after this even the name "." in the directory may be inaccessible.
            fs::set_permissions(to, Permissions::from_mode(mode)).context("cannot set its mode")?;
        }
        Ok(())
    }

    /// Sets owner and group; returns whether that was possible.
    pub fn owner(&mut self, to: &Path, about: &Attributes, shown: &Path) -> Result<bool> {
        let owner = (Uid::from_raw(about.uid), Gid::from_raw(about.gid));
        match chownat(CWD, to, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(()) => Ok(true),
            Err(SystemErrno::PERM | SystemErrno::INVAL) => {
                self.report.leave_out("owners and groups are left out, as root alone can give files away", shown);
                Ok(false)
            }
            Err(e) => Err(e).context("cannot set its owner"),
        }
    }

    /// Sets the extended attributes, and removes others, except those of the file system.
    pub fn attributes_that_differ(&mut self, to: &Path, about: &Attributes, shown: &Path) -> Result<()> {
        let mut there: HashMap<_, _> =
            copying::own_attributes(to).context("cannot read its attributes")?.into_iter().collect();
        for name in self.tree.xattrs(about.ino).map_err(error)? {
            let value = self.tree.xattr(about.ino, &name).map_err(error)?;
            if there.remove(&name).is_some_and(|now| now == value) {
                continue;
            }
            match rustix::fs::lsetxattr(to, &name, &value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(SystemErrno::OPNOTSUPP) => self.report.leave_out(why_not_kept(&name), shown),
                // If an attribute in `user.` is refused, the user can remove the cause, so that is an error.
                Err(SystemErrno::PERM | SystemErrno::ACCESS) if !is_of_programs(&name) => {
                    self.report.leave_out(why_not_kept(&name), shown);
                }
                Err(e) => return Err(e).with_context(|| format!("cannot set its attribute {}", name.display())),
            }
        }
        // The system adds labels and the like itself: only attributes that a program may have set are removed.
        let given = |name: &[u8]| name.starts_with(b"user.") || name.starts_with(copying::ACCESS_LISTS);
        for name in there.into_keys().filter(|name| given(name.as_bytes())) {
            rustix::fs::lremovexattr(to, &name)
                .with_context(|| format!("cannot remove its attribute {}", name.display()))?;
        }
        Ok(())
    }
}

/// Sets the times of a path, also if it is a symbolic link.
pub fn set_times(at: &Path, about: &Attributes) -> rustix::io::Result<()> {
    let time = |time: Time| rustix::fs::Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    let times = Timestamps { last_access: time(about.atime), last_modification: time(about.mtime) };
    utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW)
}

fn is_of_programs(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"user.")
}

fn why_not_kept(name: &OsStr) -> &'static str {
    match name.as_bytes() {
        _ if is_of_programs(name) => "attributes are left out, which this file system does not take here",
        name if name.starts_with(copying::ACCESS_LISTS) => {
            "access lists (ACL) are left out, which this file system does not take here"
        }
        _ => "attributes of the system (such as capabilities) are left out, as root alone can set them",
    }
}

/// Converts a device number from the form that FUSE uses.
fn device_number(number: u32) -> u64 {
    libc::makedev((number & 0xfff00) >> 8, number & 0xff | number >> 12 & 0xfff00)
}
