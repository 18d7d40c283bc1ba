//! `untorn export`: a plain tree is made of a store that can be mounted.

use crate::copying::{self, NoKernel, Report, path_of};
use crate::made_whole::MadeWhole;
use crate::mounted_store;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timestamps, XattrFlags, chownat, mknodat, utimensat};
use rustix::io::Errno as SystemErrno;
use rustix::process::{Gid, Uid};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use untorn_tree::{Attributes, Contents, Errno, FileTree, Ino, Kind, ROOT, StoreTree, Time};

/// Names that are asked for at a time.
const NAMES: usize = 1024;

/// Makes a plain tree of all that was committed in a store; returns what is to be said.
pub fn export(store: &Path, to: &Path) -> Result<String> {
    let source = store.canonicalize().with_context(|| format!("cannot open the store {}", store.display()))?;
    let made = MadeWhole::begin(to)?;
    let place = made.place().display();
    ensure!(!made.place().starts_with(&source), "{place} lies in the store; use another directory");
    let tree = mounted_store::open_to_export(&source)?;
    tree.write_back().map_err(error).with_context(|| format!("cannot bring {} up to date", store.display()))?;
    let mut export = Export::new(&tree, made.path(), "exporting");
    export.root().context("nothing was made")?;
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
    root: PathBuf,
    /// First names of files with several.
    linked: HashMap<Ino, PathBuf>,
    /// What was copied.
    pub report: Report,
}

fn error(Errno(number): Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(number)
}

impl<'a> Export<'a> {
    /// Of a tree, to a directory.
    pub fn new(tree: &'a StoreTree, to: &Path, doing: &'static str) -> Export<'a> {
        Export { tree, root: to.to_owned(), linked: HashMap::new(), report: Report::new(doing) }
    }

    /// All of it.
    pub fn root(&mut self) -> Result<()> {
        let about = self.tree.attributes(ROOT).map_err(error)?;
        let root = self.root.clone();
        self.entries(&root, ROOT, Path::new("."))?;
        self.attributes(&root, &about, Path::new("."))
    }

    /// All that is in a directory.
    fn entries(&mut self, directory: &Path, of: Ino, shown: &Path) -> Result<()> {
        // Paths may be longer than the kernel takes at a time.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory, flags, Mode::empty());
        let opened = opened.with_context(|| format!("cannot open the copy of {}", shown.display()))?;
        let mut start = 0;
        loop {
            let entries = self.tree.read_dir(of, start, NAMES).map_err(error)?;
            let Some(last) = entries.last() else { return Ok(()) };
            start = last.next;
            for entry in entries {
                let shown = shown.join(&entry.name);
                let to = path_of(&opened).join(&entry.name);
                self.entry(entry.ino, &to, &shown).with_context(|| format!("cannot export {}", shown.display()))?;
            }
        }
    }

    /// Copies what an inode is to a name that is free.
    pub fn entry(&mut self, ino: Ino, to: &Path, shown: &Path) -> Result<()> {
        let about = self.tree.attributes(ino).map_err(error)?;
        if let Some(first) = self.linked.get(&ino) {
            return fs::hard_link(first, to).context("cannot link it");
        }
        let node = |kind: FileType, number| mknodat(CWD, to, kind, Mode::RUSR | Mode::WUSR, number);
        match about.kind {
            Kind::File => self.contents(&about, to)?,
            Kind::Directory => {
                DirBuilder::new().mode(0o700).create(to)?;
                self.entries(to, ino, shown)?;
            }
            Kind::Symlink => std::os::unix::fs::symlink(self.tree.read_link(ino).map_err(error)?, to)?,
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
        if about.kind != Kind::Directory && about.nlink > 1 {
            self.linked.insert(ino, self.root.join(shown));
        }
        self.attributes(to, &about, shown)?;
        self.report.add(about.kind);
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

    /// Last, as what is done before changes times, and a new owner takes attributes and bits away.
    fn attributes(&mut self, to: &Path, about: &Attributes, shown: &Path) -> Result<()> {
        // Else they would be of somebody else's power.
        let mode = if self.owner(to, about, shown)? { about.mode } else { about.mode & !0o6000 };
        self.attributes_that_differ(to, about, shown)?;
        if about.kind != Kind::Symlink {
            fs::set_permissions(to, Permissions::from_mode(mode)).context("cannot set its mode")?;
        }
        let time = |time: Time| rustix::fs::Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
        let times = Timestamps { last_access: time(about.atime), last_modification: time(about.mtime) };
        utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW).context("cannot set its times")
    }

    /// Gives it its owner and group; whether that was possible.
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

    /// Gives it its extended attributes, and takes others away, but those of the file system.
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
                Err(SystemErrno::PERM | SystemErrno::ACCESS | SystemErrno::OPNOTSUPP) => {
                    self.report.leave_out(why_not_kept(&name), shown);
                }
                Err(e) => return Err(e).with_context(|| format!("cannot set its attribute {}", name.display())),
            }
        }
        // Labels and the like come by themselves: only what a program gave is taken away.
        let given = |name: &[u8]| name.starts_with(b"user.") || name.starts_with(copying::ACCESS_LISTS);
        for name in there.into_keys().filter(|name| given(name.as_bytes())) {
            rustix::fs::lremovexattr(to, &name)
                .with_context(|| format!("cannot remove its attribute {}", name.display()))?;
        }
        Ok(())
    }
}

fn why_not_kept(name: &OsStr) -> &'static str {
    match name.as_bytes() {
        name if name.starts_with(b"user.") => "attributes are left out, which this file system does not take here",
        name if name.starts_with(copying::ACCESS_LISTS) => {
            "access lists (ACL) are left out, which this file system does not take here"
        }
        _ => "attributes of the system (such as capabilities) are left out, as root alone can set them",
    }
}

/// From how the kernel asks for it by FUSE.
fn device_number(number: u32) -> u64 {
    libc::makedev((number & 0xfff00) >> 8, number & 0xff | number >> 12 & 0xfff00)
}
