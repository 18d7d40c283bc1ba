//! Replacing a file from a stream, whole or not at all.
//!
//! A plain file is replaced the classic way, with every step that is usually forgotten: a new file in
//! the same directory, owner, ACL, attributes and mode carried over, contents flushed, renamed over
//! the old one, directory flushed. A crash anywhere leaves the old file or the new one.
//!
//! A managed file keeps its inode, and the replacement is a commit in its store: renaming another
//! file over it would leave its journal pointing at nothing.
//!
//! This module works on absolute paths and follows links, as editors do, so it does not go through
//! the rooted storage that everything else uses.

use crate::store::Store;
use crate::turn;
use crate::{Error, File, Result, StoreOptions};
use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, RenameFlags, Stat, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::Metadata;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use untorn_journal::format::{Attribute, AttributeFound, crc64};
use untorn_os::above_standard;

/// The mark of a managed file. Never copied: the copy is not managed.
const MANAGED: &[u8] = b"user.untorn";
/// Hashes over the contents, kept by the kernel: wrong on new contents.
const OF_CONTENTS: [&[u8]; 2] = [b"security.ima", b"security.evm"];
/// Everything of ours in a directory.
const STORE_NAME: &str = ".untorn";
/// As many links in a row as Linux itself follows.
const LINKS_MAX: usize = 40;
/// The mode of a directory in which everybody creates files and removes only their own.
const SHARED: u32 = 0o1002;
const BUFFER_BYTES: usize = 256 << 10;

/// Replaces the contents of `path` by everything that `from` yields; returns the bytes written.
///
/// After a crash at any point the file holds what it held before, or all of the new contents; on
/// return it durably holds the new ones. Mode, owner, ACL and extended attributes stay; where they
/// cannot, nothing is changed and the error says why. A missing file is created, 0666 less the umask.
///
/// A symbolic link is followed: the file that it names is replaced and the link stays. Refused are
/// directories, devices, files that this user may not write, and files of several hard links, which
/// a replacement would part.
///
/// An error of `from` leaves everything as it is. Replacements of one file, and those of files of one store, wait
/// for each other. What a killed one left aside goes with the next replacement of that file.
pub fn put(path: &Path, from: &mut dyn Read) -> Result<u64> {
    loop {
        let target = Target::find(path)?;
        match target.managed()? {
            Managed::No => {
                target.check_replaceable()?;
                let aside = Aside::create(&target)?;
                // It may have been long in coming: the one before may have replaced the file.
                let now = Target::find(path)?;
                let same = now.path == target.path && now.old.is_some() == target.old.is_some();
                if same && matches!(now.managed()?, Managed::No) {
                    return now.replace(aside, from);
                }
            }
            Managed::Standalone => {
                let _turn = turn::lock_directory(&sibling(&target.path, STORE_NAME));
                return target.commit_alone(from);
            }
            Managed::InStore { root, inside } => {
                let _turn = turn::lock_directory(&root.join(STORE_NAME));
                return target.commit_in(&root, &inside, from);
            }
        }
    }
}

/// Replaces the contents of several files of one store, all or none: each file by everything that its reader yields.
/// Returns the bytes written. Files are named by their paths in the store's directory. Missing files are created,
/// 0666 less the umask; so is the store.
///
/// An error of one reader leaves all files as they are. Replacements in one store wait for each other.
pub fn put_files(store: &Path, files: &mut [(PathBuf, Box<dyn Read + '_>)]) -> Result<u64> {
    let store_dir = store.join(STORE_NAME);
    let (_turn, store) = loop {
        let turn = turn::lock_directory(&store_dir);
        match StoreOptions::default().open(store) {
            // Another replacement has just made the store.
            Err(Error::Busy { .. }) if turn.is_none() && store_dir.exists() => {}
            opened => break (turn, opened?),
        }
    };
    let mut txn = store.begin();
    let mut bytes = 0;
    for (name, from) in files {
        let file = open_in(&store, &mut txn, name)?;
        bytes += refill(&file, name, &mut **from)?;
    }
    txn.commit()?;
    store.close()?;
    Ok(bytes)
}

/// A file of a store as a part of a transaction, created if there is none.
fn open_in(store: &Store, txn: &mut crate::Txn, name: &Path) -> Result<File> {
    match store.open_file(name) {
        Ok(file) => txn.add(&file).map(|()| file),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => txn.create(name, 0o666),
        Err(e) => Err(e),
    }
}

/// Puts new contents into a managed file, without committing them.
fn refill(file: &File, path: &Path, from: &mut dyn Read) -> Result<u64> {
    file.set_len(0)?;
    let mut at = 0;
    copy(path, from, |bytes| {
        file.write_at(bytes, at)?;
        at += bytes.len() as u64;
        Ok(())
    })
}

fn copy(path: &Path, from: &mut dyn Read, mut write: impl FnMut(&[u8]) -> Result<()>) -> Result<u64> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut total = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(n) => {
                write(&buffer[..n])?;
                total += n as u64;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io("read the new contents of", path, e)),
        }
    }
}

/// Flushes contents and attributes, before they get the name.
fn sync_contents(file: &OwnedFd) -> rustix::io::Result<()> {
    fs::fsync(file)
}

/// Flushes a directory, and with it the new name.
fn sync_name(dir: &OwnedFd) -> rustix::io::Result<()> {
    fs::fsync(dir)
}

fn io(action: &'static str, path: &Path, e: Errno) -> Error {
    Error::io(action, path, e.into())
}

fn unsupported(path: &Path, detail: impl Into<String>) -> Error {
    Error::Unsupported { path: path.to_owned(), detail: detail.into() }
}

fn conflict(path: &Path, detail: &str) -> Error {
    Error::Conflict { path: path.to_owned(), detail: detail.to_owned() }
}

/// Which store the file belongs to, if any.
enum Managed {
    /// Nobody but the file system.
    No,
    /// The private store beside it.
    Standalone,
    /// The store of this directory, in which the file has this path.
    InStore { root: PathBuf, inside: PathBuf },
}

/// What is to be replaced, held open so that nobody can exchange it for something else.
struct Target {
    path: PathBuf,
    name: OsString,
    dir: OwnedFd,
    old: Option<Old>,
}

struct Old {
    /// Keeps the inode, and with it the number that tells it from another file.
    _held: OwnedFd,
    stat: Stat,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Target {
    fn find(path: &Path) -> Result<Target> {
        let path = real_path(path)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::invalid(format!("{} is a directory; name a file", path.display())));
        };
        if path.components().any(|c| c.as_os_str() == STORE_NAME) {
            return Err(Error::invalid(format!("{} belongs to a store's journal; leave it alone", path.display())));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = above_standard(|| fs::open(parent, flags, Mode::empty()))
            .map_err(|e| io("open the directory", parent, e))?;
        let old = Old::open(&dir, name, &path)?;
        let name = name.to_owned();
        Ok(Target { path, name, dir, old })
    }

    /// Finds the store that the file belongs to: its own beside it, or one above it on the same mount.
    fn managed(&self) -> Result<Managed> {
        let here = fs::fstat(&self.dir).map_err(|e| io("look at the directory of", &self.path, e))?;
        if self.is_ours(&sibling(&self.path, STORE_NAME), &here) {
            return Ok(Managed::Standalone);
        }
        for root in self.path.ancestors().skip(1) {
            // A store never crosses a mount.
            if fs::stat(root).map_err(|e| io("look at", root, e))?.st_dev != here.st_dev {
                break;
            }
            if self.is_ours(&root.join(STORE_NAME), &here) {
                let inside = self.path.strip_prefix(root).expect("an ancestor is a prefix").to_owned();
                return Ok(Managed::InStore { root: root.to_owned(), inside });
            }
        }
        self.check_strayed()?;
        Ok(Managed::No)
    }

    /// Whether the journal at this path has a say in the file. One that a stranger planted next to a
    /// file that is not managed has none: it must not keep the file's owner from writing it.
    fn is_ours(&self, journal: &Path, dir: &Stat) -> bool {
        let Ok(st) = fs::lstat(journal) else { return false };
        let managed = self.old.as_ref().is_some_and(|old| old.attributes.contains_key(MANAGED));
        let mut known = vec![0, rustix::process::geteuid().as_raw(), dir.st_uid];
        known.extend(self.old.as_ref().map(|old| old.stat.st_uid));
        managed || known.contains(&st.st_uid)
    }

    /// Refuses a file with the mark of a store that is not here, if commits are pending there: its
    /// contents may be torn, and replacing it would make their recovery a conflict. Nothing pending,
    /// it is a plain file like others.
    fn check_strayed(&self) -> Result<()> {
        let mark = self.old.as_ref().and_then(|old| old.attributes.get(MANAGED));
        match Attribute::decode(mark.map(Vec::as_slice)) {
            AttributeFound::None | AttributeFound::Valid(Attribute { pending: false, .. }) => Ok(()),
            AttributeFound::Valid(Attribute { store, .. }) => Err(Error::NeedsJournal {
                path: self.path.clone(),
                detail: format!("that of store {:032x}", u128::from_be_bytes(store)),
            }),
            AttributeFound::Unreadable => Err(Error::Foreign {
                path: self.path.clone(),
                detail: "its attribute `user.untorn` is unreadable; if nothing of Untorn's is wanted, \
                         remove it with `setfattr -x user.untorn`"
                    .to_owned(),
            }),
        }
    }

    fn commit_alone(&self, from: &mut dyn Read) -> Result<u64> {
        let file = StoreOptions::default().create(self.old.is_none()).open_standalone(&self.path)?;
        let bytes = refill(&file, &self.path, from)?;
        file.commit()?;
        file.close()?;
        Ok(bytes)
    }

    fn commit_in(&self, root: &Path, inside: &Path, from: &mut dyn Read) -> Result<u64> {
        let store = StoreOptions::default().create(false).open(root)?;
        let mut txn = store.begin();
        let file = match self.old {
            Some(_) => {
                let file = store.open_file(inside)?;
                txn.add(&file)?;
                file
            }
            None => txn.create(inside, 0o666)?,
        };
        let bytes = refill(&file, &self.path, from)?;
        txn.commit()?;
        file.close()?;
        store.close()?;
        Ok(bytes)
    }

    /// The plain way: write aside, flush, rename, flush the name.
    fn replace(&self, mut aside: Aside, from: &mut dyn Read) -> Result<u64> {
        self.check_replaceable()?;
        if let Some(old) = &self.old {
            aside.take_owner(old)?;
        }
        let bytes = copy(&self.path, from, |bytes| aside.write(bytes))?;
        if let Some(old) = &self.old {
            aside.take_attributes(old)?;
        }
        sync_contents(&aside.file).map_err(|e| io("flush the new contents of", &self.path, e))?;
        self.check_unchanged()?;
        aside.take_name(self)?;
        sync_name(&self.dir).map_err(|e| io("make durable the new name of", &self.path, e))?;
        Ok(bytes)
    }

    fn check_replaceable(&self) -> Result<()> {
        let Some(old) = &self.old else { return Ok(()) };
        if old.stat.st_nlink > 1 {
            let n = old.stat.st_nlink;
            let detail = format!("has {n} hard links, and replacing it would part them; unlink the others first");
            return Err(unsupported(&self.path, detail));
        }
        // A rename asks only for the directory; replacing contents is writing all the same.
        fs::accessat(&self.dir, &self.name, fs::Access::WRITE_OK, AtFlags::EACCESS)
            .map_err(|e| io("write", &self.path, e))
    }

    /// The new contents may have been long in coming. What has become of the old file meanwhile?
    fn check_unchanged(&self) -> Result<()> {
        let now = Old::open(&self.dir, &self.name, &self.path)?;
        let same = match (&self.old, &now) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                let id = |s: &Stat| (s.st_dev, s.st_ino, s.st_nlink, s.st_mode, s.st_uid, s.st_gid);
                id(&a.stat) == id(&b.stat) && a.attributes == b.attributes
            }
            _ => false,
        };
        let managed_now = !matches!(self.managed()?, Managed::No);
        if !same || managed_now {
            return Err(conflict(&self.path, "was replaced, removed or opened by somebody else in the meantime"));
        }
        Ok(())
    }
}

impl Old {
    /// Opens what is to be replaced, if there is anything.
    fn open(dir: &OwnedFd, name: &OsStr, path: &Path) -> Result<Option<Old>> {
        let check = |st: &Stat| match fs::FileType::from_raw_mode(st.st_mode) {
            fs::FileType::RegularFile => Ok(()),
            fs::FileType::Directory => Err(Error::invalid(format!("{} is a directory; name a file", path.display()))),
            fs::FileType::Symlink => Err(conflict(path, "was replaced by a link in the meantime")),
            _ => Err(Error::invalid(format!("{} is a device, pipe or socket, not a file", path.display()))),
        };
        // Looked at before it is opened: opening a device can already do something.
        match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(st) => check(&st)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(io("look at", path, e)),
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = above_standard(|| fs::openat(dir, name, flags, Mode::empty())).map_err(|e| io("read", path, e))?;
        let stat = fs::fstat(&file).map_err(|e| io("look at", path, e))?;
        check(&stat)?;
        let attributes = attributes(&file).map_err(|e| io("read the attributes of", path, e))?;
        Ok(Some(Old { _held: file, stat, attributes }))
    }
}

/// The new file beside the old one, until it takes its name.
struct Aside {
    path: PathBuf,
    dir: OwnedFd,
    file: OwnedFd,
    name: Option<String>,
}

impl Aside {
    fn create(target: &Target) -> Result<Aside> {
        let failed = |e| io("create a file beside", &target.path, e);
        // What replaces a file is nobody else's to read until it has that file's permissions. A new
        // file has its final ones from the start: only the kernel knows the directory's default ACL.
        let mode = Mode::from_raw_mode(if target.old.is_some() { 0o600 } else { 0o666 });
        let made = |file, name| -> Result<Aside> {
            let dir = target.dir.try_clone().map_err(|e| Error::io("open the directory of", &target.path, e))?;
            Ok(Aside { path: target.path.clone(), dir, file, name: Some(name) })
        };
        // One name for each file: replacements of one file wait for each other, and find what a killed one left.
        let name = format!(".untorn-put-{:016x}", crc64(target.name.as_bytes()));
        let mut owners = vec![rustix::process::geteuid().as_raw()];
        owners.extend(target.old.as_ref().map(|old| old.stat.st_uid));
        if let Some(file) = turn::create_locked(&target.dir, &name, mode, &owners).map_err(failed)? {
            return made(file, name);
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let mut random = [0; 8];
            let n = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(failed)?;
            debug_assert_eq!(n, random.len());
            let name = format!(".untorn-put-{:016x}", u64::from_ne_bytes(random));
            match above_standard(|| fs::openat(&target.dir, &name, flags, mode)) {
                Ok(file) => return made(file, name),
                Err(Errno::EXIST) => {}
                Err(e) => return Err(failed(e)),
            }
        }
    }

    fn write(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match rustix::io::write(&self.file, bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(Errno::INTR) => {}
                Err(e) => return Err(io("write the new contents of", &self.path, e)),
            }
        }
        Ok(())
    }

    /// Owner and group first: a refusal must not come after gigabytes of input.
    fn take_owner(&self, old: &Old) -> Result<()> {
        let path = &self.path;
        let now = fs::fstat(&self.file).map_err(|e| io("look at the new", path, e))?;
        let (uid, gid) = (old.stat.st_uid, old.stat.st_gid);
        if (now.st_uid, now.st_gid) == (uid, gid) {
            return Ok(());
        }
        match fs::fchown(&self.file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))) {
            Err(Errno::PERM) => {
                let detail = format!(
                    "belongs to user {uid} and group {gid}, to whom this user may not give a new file; \
                     run this as the owner or as root. Nothing was changed"
                );
                Err(unsupported(path, detail))
            }
            done => done.map_err(|e| io("keep the owner of", path, e)),
        }
    }

    /// ACL, extended attributes and mode, after the contents: writing takes some of them away.
    fn take_attributes(&self, old: &Old) -> Result<()> {
        let path = &self.path;
        copy_attributes(&old.attributes, &self.file).map_err(|(name, e)| {
            let detail =
                format!("its attribute {name} cannot be kept ({}). Nothing was changed", std::io::Error::from(e));
            unsupported(path, detail)
        })?;
        let mode = old.stat.st_mode & 0o7777;
        fs::fchmod(&self.file, Mode::from_raw_mode(mode)).map_err(|e| io("keep the mode of", path, e))?;
        // The kernel drops set-group-id in silence where the caller is not in that group.
        let now = fs::fstat(&self.file).map_err(|e| io("look at the new", path, e))?;
        if now.st_mode & 0o7777 != mode {
            let detail = format!("its mode {mode:04o} cannot be kept by this user. Nothing was changed");
            return Err(unsupported(path, detail));
        }
        Ok(())
    }

    /// The one step that readers see.
    fn take_name(&mut self, target: &Target) -> Result<()> {
        let Target { dir, path, name: new, old, .. } = target;
        let Some(name) = &self.name else { return Ok(()) };
        let done = if old.is_some() {
            fs::renameat(dir, name, dir, new)
        } else {
            match fs::renameat_with(dir, name, dir, new, RenameFlags::NOREPLACE) {
                // Not every file system knows the flag; that the name is free was just seen.
                Err(Errno::INVAL | Errno::NOSYS) => fs::renameat(dir, name, dir, new),
                Err(Errno::EXIST) => return Err(conflict(path, "was created by somebody else in the meantime")),
                done => done,
            }
        };
        done.map_err(|e| io("replace", path, e))?;
        self.name = None;
        // The file has its name now, and whoever opens it must not find it busy.
        turn::unlock(&self.file);
        Ok(())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = fs::unlinkat(&self.dir, name, AtFlags::empty());
        }
    }
}

/// Follows links at the end of a path; the last may dangle, as it may for a program that creates.
fn real_path(path: &Path) -> Result<PathBuf> {
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(Error::invalid(format!("{} is a directory's name; name a file", path.display())));
    }
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::invalid(format!("`{}` names no file", path.display())));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let parent = parent.canonicalize().map_err(|e| Error::io("find the directory", parent, e))?;
        let full = parent.join(name);
        match full.symlink_metadata() {
            Ok(link) if link.is_symlink() => {
                check_link(&parent, &full, &link)?;
                path = parent.join(full.read_link().map_err(|e| Error::io("read the link", &full, e))?);
            }
            // Whatever it is, or if it is nothing, the next step opens it without following.
            _ => return Ok(full),
        }
    }
    Err(io("follow the links of", &path, Errno::LOOP))
}

/// Refuses a link that a stranger planted in a shared directory, as the kernel does when it follows
/// one itself (`fs.protected_symlinks`).
fn check_link(parent: &Path, full: &Path, link: &Metadata) -> Result<()> {
    let dir = parent.metadata().map_err(|e| Error::io("look at", parent, e))?;
    let shared = dir.mode() & SHARED == SHARED;
    let me = rustix::process::geteuid().as_raw();
    if shared && link.uid() != me && link.uid() != dir.uid() {
        let detail =
            format!("a link that user {} put into a shared directory; name the file that is meant", link.uid());
        return Err(Error::Untrusted { path: full.to_owned(), detail });
    }
    Ok(())
}

fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// All extended attributes, the ACL among them.
fn attributes(file: &OwnedFd) -> rustix::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let names = match grown(|buf| fs::flistxattr(file, buf)) {
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(BTreeMap::new()),
        names => names?,
    };
    let mut all = BTreeMap::new();
    for name in names.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        match grown(|buf| fs::fgetxattr(file, name, buf)) {
            Ok(value) => drop(all.insert(name.to_owned(), value)),
            // Removed since it was listed.
            Err(Errno::NODATA) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// Calls with ever larger buffers until the answer fits.
fn grown(mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 1 << 10];
    loop {
        match call(&mut buffer) {
            Ok(n) => {
                buffer.truncate(n);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            Err(e) => return Err(e),
        }
    }
}

/// Makes the attributes of a new file those of the old one. On failure: which, and why.
fn copy_attributes(wanted: &BTreeMap<Vec<u8>, Vec<u8>>, to: &OwnedFd) -> std::result::Result<(), (String, Errno)> {
    let kept = |name: &[u8]| name != MANAGED && !OF_CONTENTS.contains(&name);
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let have = attributes(to).map_err(|e| ("list".to_owned(), e))?;
    for (name, value) in wanted.iter().filter(|(name, _)| kept(name)) {
        if have.get(name) != Some(value) {
            let c_name = CString::new(name.as_slice()).expect("names were split at zero bytes");
            fs::fsetxattr(to, c_name, value, XattrFlags::empty()).map_err(|e| (text(name), e))?;
        }
    }
    // What the directory's default ACL gave the new file the old one may not have had. Labels that
    // the kernel gives every new file (`security.*`) stay.
    for name in have.keys().filter(|name| name.starts_with(b"system.") && !wanted.contains_key(*name)) {
        fs::fremovexattr(to, name.as_slice()).map_err(|e| (text(name), e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
