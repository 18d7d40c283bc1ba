//! Replaces a file from a stream, completely or not at all.
//!
//! A plain file is replaced the classic way, with every step that is usually forgotten: a new file in the same
//! directory, owner, ACL, attributes and mode carried over, contents flushed, renamed over the old one, directory
//! flushed. After a crash at any point, the old file or the new one is there.
//!
//! A managed file keeps its inode, and the replacement is a commit in its store: after a rename over it, its journal
//! would refer to nothing.
//!
//! This module works on absolute paths and follows links, as editors do, so it does not use the rooted storage of all
//! other modules.

mod file_attributes;
mod real_path;

use crate::admin::replacement_lock;
use crate::engine::handles::store::Store;
use crate::{Error, File, FileOptions, Result, StoreOptions};
use file_attributes::{MANAGED, attributes, copy_attributes, copy_flags};
use real_path::real_path;
use rustix::fs::{self, AtFlags, Gid, IFlags, Mode, OFlags, RenameFlags, Stat, StatxAttributes, StatxFlags, Uid};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use untorn_journal::format::{Attribute, AttributeFound, crc64};
use untorn_os::{above_standard, directory_above_standard};

/// Suffix of everything of ours in a directory.
const STORE_NAME: &str = ".untorn";
/// The failed action if the name is in place, but not durable.
const NAME_NOT_FLUSHED: &str = "flush the directory (the new contents are in place, but a power cut may take them back: put \
                                them again) of";
const BUFFER_BYTES: usize = 64 << 10;

/// Replaces the contents of a file; see `offline::put`, which has dealt with the store of a removed file.
pub(crate) fn put(path: &Path, from: &mut dyn Read) -> Result<u64> {
    loop {
        let target = Target::find(path)?;
        match target.managed()? {
            Managed::No => {
                target.check_replaceable()?;
                let aside = Aside::create(&target)?;
                if target.is_current()? {
                    return target.replace(aside, from);
                }
                // The wait was long, and the previous replacement has replaced the file.
                let now = Target::find(path)?;
                let same = now.path == target.path && now.old.is_some() == target.old.is_some();
                drop(target);
                if same && matches!(now.managed()?, Managed::No) {
                    now.check_replaceable()?;
                    return now.replace(aside, from);
                }
            }
            Managed::Standalone => {
                let _lock = replacement_lock::lock_directory(&sibling(&target.path, STORE_NAME));
                return target.commit_alone(from);
            }
            Managed::InStore { root, inside } => {
                let _lock = replacement_lock::lock_directory(&root.join(STORE_NAME));
                return target.commit_in(&root, &inside, from);
            }
        }
    }
}

/// Replaces the contents of several files of one store, all or none: each file gets everything that its reader yields.
/// Returns the bytes written. Files are named by their paths in the store's directory. Missing files are created, with
/// mode 0666 less the umask; so is the store. `unmake` is called for a store that this call has created, if nothing was
/// committed to it.
///
/// An error of one reader leaves all files as they are. Replacements in one store wait for each other.
pub(crate) fn put_files(store: &Path, files: &mut [(PathBuf, Box<dyn Read + '_>)], unmake: &dyn Fn()) -> Result<u64> {
    let store_dir = store.join(STORE_NAME);
    let is_new = !store_dir.exists();
    let (lock, opened) = loop {
        let lock = replacement_lock::lock_directory(&store_dir);
        match Store::open_or_create(store) {
            // Another replacement has just created the store.
            Err(Error::Busy { .. }) if lock.is_none() && store_dir.exists() => {}
            opened => break (lock, opened?),
        }
    };
    let done = commit_files(&opened, files);
    let closed = opened.close();
    if done.is_err() && is_new && lock.is_none() {
        unmake();
    }
    let bytes = done?;
    closed.map_err(|e| not_closed(&store_dir, e))?;
    Ok(bytes)
}

fn commit_files(store: &Store, files: &mut [(PathBuf, Box<dyn Read + '_>)]) -> Result<u64> {
    let mut txn = store.begin();
    // Open first, because a refusal must not come after gigabytes of input.
    let targets = files.iter().map(|(name, _)| open_in(store, &mut txn, name)).collect::<Result<Vec<_>>>()?;
    let mut bytes = 0;
    for (file, (name, from)) in targets.iter().zip(files) {
        bytes += refill(file, name, &mut **from)?;
    }
    txn.commit()?;
    Ok(bytes)
}

/// Adds a file of a store to a transaction; creates it if there is none.
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

/// Flushes contents and attributes, before the file gets its name.
fn sync_contents(file: &OwnedFd) -> rustix::io::Result<()> {
    fs::fsync(file)
}

/// Flushes a directory, and so the new name.
fn sync_name(dir: &OwnedFd) -> rustix::io::Result<()> {
    fs::fsync(dir)
}

fn io(action: &'static str, path: &Path, e: Errno) -> Error {
    Error::io(action, path, e.into())
}

/// The error if the new contents are committed, but the store could not be closed.
fn not_closed(path: &Path, e: Error) -> Error {
    Error::io(
        "close the store (the new contents are committed; `untorn recover` brings them into the file) of",
        path,
        e.into(),
    )
}

fn unsupported(path: &Path, detail: impl Into<String>) -> Error {
    Error::Unsupported { path: path.to_owned(), detail: detail.into() }
}

fn conflict(path: &Path, detail: &str) -> Error {
    Error::Conflict { path: path.to_owned(), detail: detail.to_owned() }
}

/// The store to which the file belongs, if any.
enum Managed {
    /// No store.
    No,
    /// The file's own store, beside it.
    Standalone,
    /// The store of the directory `root`, in which the file has the path `inside`.
    InStore { root: PathBuf, inside: PathBuf },
}

/// The file to replace, held open so that its inode number stays taken.
struct Target {
    path: PathBuf,
    name: OsString,
    dir: Rc<OwnedFd>,
    old: Option<Old>,
}

struct Old {
    /// Keeps the inode, and so the number that identifies it.
    held: OwnedFd,
    stat: Stat,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    flags: IFlags,
}

impl Target {
    fn find(path: &Path) -> Result<Target> {
        let path = real_path(path)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::invalid(format!("{} is a directory; name a file", path.display())));
        };
        if parent.iter().any(is_stores_name) || name == STORE_NAME {
            return Err(Error::invalid(format!("{} belongs to a store's journal; leave it alone", path.display())));
        }
        if is_stores_name(name) {
            let detail = "is a name that Untorn reserves for the store of another file (the name without `.untorn`). \
                          Choose another name. Nothing was changed";
            return Err(Error::invalid(format!("{} {detail}", path.display())));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = directory_above_standard(|| fs::open(parent, flags, Mode::empty()))
            .map_err(|e| io("open the directory", parent, e))?;
        let old = Old::open(&dir, name, &path)?;
        let name = name.to_owned();
        Ok(Target { path, name, dir: Rc::new(dir), old })
    }

    /// Finds the store to which the file belongs: its own beside it, or one above it on the same mount.
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

    /// Whether the journal at this path may manage the file. A journal that another user planted next to an unmanaged
    /// file may not: it must not keep the file's owner from writing the file.
    fn is_ours(&self, journal: &Path, dir: &Stat) -> bool {
        let Ok(st) = fs::lstat(journal) else { return false };
        let managed = self.old.as_ref().is_some_and(|old| old.attributes.contains_key(MANAGED));
        let mut known = vec![0, rustix::process::geteuid().as_raw(), dir.st_uid];
        known.extend(self.old.as_ref().map(|old| old.stat.st_uid));
        managed || known.contains(&st.st_uid)
    }

    /// Refuses a file with the mark of a store that is not here, if commits are pending there: its contents may be
    /// torn, and replacing it would make their recovery a conflict. Without pending commits, it is an ordinary plain
    /// file.
    fn check_strayed(&self) -> Result<()> {
        let mark = self.old.as_ref().and_then(|old| old.attributes.get(MANAGED));
        match Attribute::decode(mark.map(Vec::as_slice)) {
            AttributeFound::None | AttributeFound::Valid(Attribute { pending: false, .. }) => Ok(()),
            AttributeFound::Valid(Attribute { store, .. }) => Err(Error::NeedsJournal {
                path: self.path.clone(),
                detail: format!("it is the journal of store {:032x}", u128::from_be_bytes(store)),
            }),
            AttributeFound::Unreadable => Err(Error::Foreign {
                path: self.path.clone(),
                detail: "its attribute `user.untorn` is unreadable; if the file need not belong to Untorn, remove the \
                         attribute with `setfattr -x user.untorn`"
                    .to_owned(),
            }),
        }
    }

    fn commit_alone(&self, from: &mut dyn Read) -> Result<u64> {
        let options = match self.old {
            Some(_) => FileOptions::new().existing_store(StoreOptions::new()),
            None => FileOptions::new().create(true),
        };
        let file = options.open(&self.path)?;
        let bytes = refill(&file, &self.path, from)?;
        file.commit()?;
        file.close().map_err(|e| not_closed(&self.path, e))?;
        Ok(bytes)
    }

    fn commit_in(&self, root: &Path, inside: &Path, from: &mut dyn Read) -> Result<u64> {
        let store = Store::open(root)?;
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
        file.close().and_then(|()| store.close()).map_err(|e| not_closed(&self.path, e))?;
        Ok(bytes)
    }

    /// The way for plain files: write a temporary file, flush, rename, flush the name.
    fn replace(mut self, mut aside: Aside, from: &mut dyn Read) -> Result<u64> {
        if let Some(old) = &self.old {
            aside.take_owner(old)?;
            aside.try_attributes(old)?;
        }
        let bytes = copy(&self.path, from, |bytes| aside.write(bytes))?;
        if let Some(old) = &self.old {
            aside.take_attributes(old)?;
        }
        sync_contents(&aside.file).map_err(|e| io("flush the new contents of", &self.path, e))?;
        self.check_unchanged()?;
        // Closed before the rename: a file that loses its name while it is open costs the file system a second step.
        let is_there = self.old.take().is_some();
        aside.take_name(&self, is_there)?;
        sync_name(&self.dir).map_err(|e| io(NAME_NOT_FLUSHED, &self.path, e))?;
        Ok(bytes)
    }

    /// Checks, as far as possible, that a new file may take the name, because a refusal must not come after gigabytes
    /// of input, or after a command has run.
    fn check_replaceable(&self) -> Result<()> {
        let set = set_attributes(&self.dir, OsStr::new(""));
        if set.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND) {
            let detail = "its directory lets nobody, not even root, replace or remove a file (`chattr +i` or `+a`; `lsattr -d` \
                          shows it); `chattr -i -a` on the directory allows it. Nothing was changed";
            return Err(unsupported(&self.path, detail));
        }
        let Some(old) = &self.old else { return Ok(()) };
        let set = set_attributes(&self.dir, &self.name);
        if set.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND) {
            let detail = "it may not be replaced (`chattr +i` or `+a`; `lsattr` shows it); `chattr -i -a` allows it. Nothing \
                          was changed";
            return Err(unsupported(&self.path, detail));
        }
        if set.contains(StatxAttributes::MOUNT_ROOT) {
            let detail = "another file is mounted on it, as is usual in containers: it can be written, but not \
                          replaced. Replace the mounted file itself. Nothing was changed";
            return Err(unsupported(&self.path, detail));
        }
        if old.stat.st_nlink > 1 {
            let n = old.stat.st_nlink;
            let detail =
                format!("has {n} hard links, and a replacement would change only one of them; remove the others first");
            return Err(unsupported(&self.path, detail));
        }
        // A rename needs permission for the directory only, but replacing contents is a write.
        fs::accessat(&self.dir, &self.name, fs::Access::WRITE_OK, AtFlags::EACCESS)
            .map_err(|e| io("write", &self.path, e))
    }

    /// Whether the name leads to the same file still, in the same state.
    fn is_current(&self) -> Result<bool> {
        let changed = |s: &Stat| (s.st_ctime, s.st_ctime_nsec);
        Ok(match (&self.old, named(&self.dir, &self.name, &self.path)?) {
            (None, None) => true,
            (Some(old), Some(now)) => is_same(&old.stat, &now) && changed(&old.stat) == changed(&now),
            _ => false,
        })
    }

    /// Checks that the old file has not changed, because the new contents may have taken long to arrive.
    fn check_unchanged(&self) -> Result<()> {
        let same = match (&self.old, named(&self.dir, &self.name, &self.path)?) {
            (None, None) => true,
            (Some(old), Some(now)) if is_same(&old.stat, &now) => {
                let attributes = attributes(&old.held).map_err(|e| io("read the attributes of", &self.path, e))?;
                attributes == old.attributes && file_attributes::flags(&old.held) == old.flags
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

/// Attributes of a name in a directory, or of the directory itself; none if the kernel cannot tell.
fn set_attributes(dir: &OwnedFd, name: &OsStr) -> StatxAttributes {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    fs::statx(dir, name, flags, StatxFlags::empty()).map_or(StatxAttributes::empty(), |found| found.stx_attributes)
}

/// The object that has a name in a directory, if there is one.
fn named(dir: &OwnedFd, name: &OsStr, path: &Path) -> Result<Option<Stat>> {
    match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(io("look at", path, e)),
    }
}

/// Whether both are one file, of the same owner and mode, with the same number of names.
fn is_same(a: &Stat, b: &Stat) -> bool {
    let id = |s: &Stat| (s.st_dev, s.st_ino, s.st_nlink, s.st_mode, s.st_uid, s.st_gid);
    id(a) == id(b)
}

impl Old {
    /// Opens the file to replace, if there is one.
    fn open(dir: &OwnedFd, name: &OsStr, path: &Path) -> Result<Option<Old>> {
        let check = |st: &Stat| match fs::FileType::from_raw_mode(st.st_mode) {
            fs::FileType::RegularFile => Ok(()),
            fs::FileType::Directory => Err(Error::invalid(format!("{} is a directory; name a file", path.display()))),
            fs::FileType::Symlink => Err(conflict(path, "was replaced by a link in the meantime")),
            _ => Err(Error::invalid(format!("{} is a device, pipe or socket, not a file", path.display()))),
        };
        // Checked before opening, because opening a device can already have effects.
        match named(dir, name, path)? {
            Some(found) => check(&found)?,
            None => return Ok(None),
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = above_standard(|| fs::openat(dir, name, flags, Mode::empty())).map_err(|e| io("read", path, e))?;
        let stat = fs::fstat(&file).map_err(|e| io("look at", path, e))?;
        check(&stat)?;
        let attributes = attributes(&file).map_err(|e| io("read the attributes of", path, e))?;
        let flags = file_attributes::flags(&file);
        Ok(Some(Old { held: file, stat, attributes, flags }))
    }
}

/// The new file beside the old one, until it takes the name.
struct Aside {
    path: PathBuf,
    dir: Rc<OwnedFd>,
    file: OwnedFd,
    name: Option<String>,
}

impl Aside {
    fn create(target: &Target) -> Result<Aside> {
        let failed = |e| io("create a file beside", &target.path, e);
        // A replacement is private until it has the old file's permissions. A new file has its final ones from the
        // start, because only the kernel knows the directory's default ACL.
        let mode = Mode::from_raw_mode(if target.old.is_some() { 0o600 } else { 0o666 });
        let made = |file, name| Aside { path: target.path.clone(), dir: target.dir.clone(), file, name: Some(name) };
        // Each file has one temporary name, so that replacements of it wait for each other, and find the remnant of a
        // killed one.
        let name = format!(".untorn-put-{:016x}", crc64(target.name.as_bytes()));
        let mut owners = vec![rustix::process::geteuid().as_raw()];
        owners.extend(target.old.as_ref().map(|old| old.stat.st_uid));
        if let Some(file) = replacement_lock::create_locked(&target.dir, &name, mode, &owners).map_err(failed)? {
            return Ok(made(file, name));
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let mut random = [0; 8];
            let n = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(failed)?;
            debug_assert_eq!(n, random.len());
            let name = format!(".untorn-put-{:016x}", u64::from_ne_bytes(random));
            match above_standard(|| fs::openat(&target.dir, &name, flags, mode)) {
                Ok(file) => return Ok(made(file, name)),
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

    /// Takes owner and group first, because a refusal must not come after gigabytes of input.
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

    /// Takes over everything of the old file before there are contents, and then removes the permissions again. So
    /// anything that cannot be kept is reported before the contents are read. The nine bits of permissions always can.
    fn try_attributes(&self, old: &Old) -> Result<()> {
        let special = old.stat.st_mode & 0o7000;
        if special == 0 && old.attributes.is_empty() && old.flags == file_attributes::flags(&self.file) {
            return Ok(());
        }
        self.take_attributes(old)?;
        fs::fchmod(&self.file, Mode::from_raw_mode(0o600))
            .map_err(|e| io("remove the permissions of the new", &self.path, e))
    }

    /// Takes over ACL, extended attributes, flags and mode; repeated after the contents, because writing clears some of
    /// them.
    fn take_attributes(&self, old: &Old) -> Result<()> {
        let path = &self.path;
        copy_attributes(&old.attributes, &self.file).map_err(|(name, e)| {
            let detail =
                format!("its attribute {name} cannot be kept ({}). Nothing was changed", std::io::Error::from(e));
            unsupported(path, detail)
        })?;
        copy_flags(old.flags, &self.file).map_err(|e| {
            let why = std::io::Error::from(e);
            unsupported(path, format!("its flags (`lsattr`) cannot be kept ({why}). Nothing was changed"))
        })?;
        let mode = old.stat.st_mode & 0o7777;
        fs::fchmod(&self.file, Mode::from_raw_mode(mode)).map_err(|e| io("keep the mode of", path, e))?;
        // The kernel silently drops the setgid bit if the caller is not in that group.
        let now = fs::fstat(&self.file).map_err(|e| io("look at the new", path, e))?;
        if now.st_mode & 0o7777 != mode {
            let detail = format!("its mode {mode:04o} cannot be kept by this user. Nothing was changed");
            return Err(unsupported(path, detail));
        }
        Ok(())
    }

    /// Renames the file to its name, the only step that readers see.
    fn take_name(&mut self, target: &Target, is_there: bool) -> Result<()> {
        let Target { dir, path, name: new, .. } = target;
        let Some(name) = &self.name else { return Ok(()) };
        let done = if is_there {
            fs::renameat(dir, name, dir, new)
        } else {
            match fs::renameat_with(dir, name, dir, new, RenameFlags::NOREPLACE) {
                // Some file systems do not know the flag; the name was free a moment ago.
                Err(Errno::INVAL | Errno::NOSYS) => fs::renameat(dir, name, dir, new),
                Err(Errno::EXIST) => return Err(conflict(path, "was created by somebody else in the meantime")),
                done => done,
            }
        };
        done.map_err(|e| io("replace", path, e))?;
        self.name = None;
        // The file has its name now, and must not appear busy to a process that opens it.
        replacement_lock::unlock(&self.file);
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

/// Whether a name is that of a store directory, in a directory or beside a standalone file.
fn is_stores_name(name: &OsStr) -> bool {
    name.as_bytes().ends_with(STORE_NAME.as_bytes())
}

fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests;
