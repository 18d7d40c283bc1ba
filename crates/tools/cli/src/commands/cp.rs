//! `untorn cp`.

use crate::progress_bar::Progress;
use clap::{Args, ValueHint};
use rustix::fs::{
    CWD, RenameFlags, Timespec, Timestamps, XattrFlags, fgetxattr, flistxattr, fsetxattr, futimens, renameat_with,
    syncfs,
};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use untorn::reader::{Snapshot, SnapshotFile};
use untorn::{Error, Reader};
use untorn_terminal::table::{bytes, count};
use untorn_terminal::{Failure, Output, signals};

/// An attribute of more bytes is left out.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// Copy a store as of its last durable commit, as plain files, while a program may have it open.
///
/// The copy is of one commit, is flushed, and has no journal and no attributes: opened as a store, it is a new store.
/// It appears under its name when it is complete. Blocks are shared with the store's files if the file system
/// supports that. Names, contents and permission bits are copied; setuid and setgid only for files whose copy has the
/// same owner and group (with `--attributes`, as root, or the user's own files). Symbolic links, pipes and devices do
/// not belong to a store, and are left out. The owner keeps the data of the commit until it is copied, up to a limit
/// (`StoreOptions::readers_space`), and does not wait.
#[derive(Args)]
pub struct Cp {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    store: PathBuf,
    /// The copy, which must not exist.
    #[arg(value_hint = ValueHint::AnyPath)]
    dest: PathBuf,
    /// Also copy times, owner, group, access lists and other extended attributes of files, in their present state,
    /// because no commit contains them. Attributes that this user may not set are left out.
    #[arg(long, short)]
    attributes: bool,
}

/// The counts of a copy.
#[derive(Default)]
struct Copied {
    files: u64,
    bytes: u64,
    left_out: u64,
    /// Attributes are copied, too.
    attributes: bool,
}

/// The reason why a copy ended early.
enum Stop {
    Store(Error),
    Other(Failure),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Stop {
        Stop::Store(e)
    }
}

fn at_dest<T>(done: std::io::Result<T>, action: &'static str, path: &Path) -> Result<T, Stop> {
    done.map_err(|e| Stop::Other(Failure::io(action, path, e)))
}

impl Cp {
    pub fn run(self) -> Result<Output, Failure> {
        if self.dest.symlink_metadata().is_ok() {
            return Err(Failure::new(format!("{} exists already; name a copy that does not", self.dest.display())));
        }
        let (parent, name) = match (self.dest.parent(), self.dest.file_name()) {
            (Some(parent), Some(name)) if parent.as_os_str().is_empty() => (Path::new("."), name),
            (Some(parent), Some(name)) => (parent, name),
            _ => return Err(Failure::new(format!("{} is no name for a copy", self.dest.display()))),
        };
        let reader = Reader::open(&self.store)?;
        refuse_inside(&reader, parent)?;
        let unfinished = parent.join(format!(".{}.{}.copy", name.to_string_lossy(), std::process::id()));
        let (made, left) = (unfinished.clone(), unfinished.clone());
        signals::on_interrupt("untorn", "interrupted; the copied files are removed", move || {
            signals::remove_meanwhile(&left);
        })
        .map_err(|e| Failure::new(format!("cannot watch for Ctrl-C: {e}")))?;
        let done = self.copy(&reader, &made);
        let named = done.and_then(|copied| {
            let from = if reader.standalone().is_some() { made.join("file") } else { made.clone() };
            renameat_with(CWD, &from, CWD, &self.dest, RenameFlags::NOREPLACE)
                .map_err(|e| Failure::io("make", &self.dest, e.into()))?;
            File::open(parent)
                .and_then(|dir| dir.sync_all())
                .map_err(|e| Failure::io("flush the directory of", &self.dest, e))?;
            Ok(copied)
        });
        // If the rename has moved the directory away, this removes nothing.
        let _ = std::fs::remove_dir_all(&made);
        let (copied, lsn) = named?;
        let left_out = match copied.left_out {
            0 => String::new(),
            n => format!("; left out: {}", count(n, "link, pipe or device", "links, pipes or devices")),
        };
        Ok(Output::text(format!(
            "copied {}, {}, as of commit {lsn}{left_out}\n",
            count(copied.files, "file", "files"),
            bytes(copied.bytes)
        )))
    }

    /// Copies everything from one snapshot, and flushes it.
    fn copy(&self, reader: &Reader, made: &Path) -> Result<(Copied, u64), Failure> {
        let progress = Progress::new("copying");
        let snapshot = reader.snapshot()?;
        copy(reader, &snapshot, made, self.attributes, &progress).map(|copied| (copied, snapshot.lsn())).map_err(|stop| {
            match stop {
                Stop::Store(Error::SnapshotExpired { .. }) => Failure::new(format!(
                    "{}: commit {} was given up before it was copied, because the program that has the store open keeps \
                     no more for readers, and nothing was copied. That program can keep more \
                     (`StoreOptions::readers_space`); or copy the store when it is less busy, or closed",
                    self.store.display(),
                    snapshot.lsn()
                )),
                Stop::Store(e) => e.into(),
                Stop::Other(e) => e,
            }
        })
    }
}

/// Refuses a copy inside of the store, because it would be copied, too.
fn refuse_inside(reader: &Reader, parent: &Path) -> Result<(), Failure> {
    let whole = |path: &Path| path.canonicalize().map_err(|e| Failure::io("look at", path, e));
    let (store, parent) = (whole(reader.path())?, whole(parent)?);
    match reader.standalone().is_none() && parent.starts_with(&store) {
        true => Err(Failure::new(format!("the copy would be inside of the store {}", store.display()))),
        false => Ok(()),
    }
}

fn copy(
    reader: &Reader,
    snapshot: &Snapshot,
    made: &Path,
    attributes: bool,
    progress: &Progress,
) -> Result<Copied, Stop> {
    if made.symlink_metadata().is_ok() {
        at_dest(std::fs::remove_dir_all(made), "remove", made)?;
    }
    at_dest(DirBuilder::new().mode(0o700).create(made), "make", made)?;
    let mut copied = Copied { attributes, ..Copied::default() };
    match reader.standalone() {
        Some(file) => copy_file(&snapshot.open(file)?, &made.join("file"), progress, &mut copied)?,
        None => copy_directory(snapshot, Path::new(""), made, progress, &mut copied)?,
    }
    snapshot.check()?;
    let dir = at_dest(File::open(made), "open", made)?;
    at_dest(syncfs(&dir).map_err(Into::into), "flush", made)?;
    Ok(copied)
}

fn copy_directory(
    snapshot: &Snapshot,
    dir: &Path,
    to: &Path,
    progress: &Progress,
    copied: &mut Copied,
) -> Result<(), Stop> {
    for name in snapshot.list(dir)? {
        let (from, to) = (dir.join(&name), to.join(&name));
        match snapshot.metadata(&from) {
            Ok(found) if found.is_directory => {
                at_dest(DirBuilder::new().mode(0o700).create(&to), "make", &to)?;
                copy_directory(snapshot, &from, &to, progress, copied)?;
            }
            Ok(_) => copy_file(&snapshot.open(&from)?, &to, progress, copied)?,
            Err(e) if is_unmanaged(&e) => copied.left_out += 1,
            Err(e) => return Err(e.into()),
        }
    }
    // The mode comes last, because it may forbid new entries. The copy belongs to the user that copies, so setuid and
    // setgid are left out.
    let mode = Permissions::from_mode(snapshot.metadata(dir)?.mode & !SET_ID);
    at_dest(std::fs::set_permissions(to, mode), "set the mode of", to)
}

/// Whether an error says that a name is a link, a pipe or a device, which a store does not manage.
pub fn is_unmanaged(e: &Error) -> bool {
    matches!(e, Error::Invalid { .. }) || e.os_error().map(Errno::from_raw_os_error) == Some(Errno::LOOP)
}

/// The bits of a mode by which a program runs with the rights of the file's owner or group.
const SET_ID: u32 = 0o6000;

fn copy_file(from: &SnapshotFile, to: &Path, progress: &Progress, copied: &mut Copied) -> Result<(), Stop> {
    let file = at_dest(File::options().read(true).write(true).create_new(true).mode(0o600).open(to), "create", to)?;
    let before = copied.bytes;
    let len = from.len()?;
    let len = from.copy_to(&file, &mut |done| progress.show(before + done, before + len))?;
    let source = from.data_file()?;
    // The attributes come before the mode, because a change of the owner may clear bits of the mode.
    if copied.attributes
        && let Some(source) = &source
    {
        copy_attributes(source, &file);
    }
    // A program must not get the rights of another user by a copy.
    let owner = |file: &File| file.metadata().map(|meta| (meta.uid(), meta.gid())).ok();
    let is_same = source.is_some_and(|source| owner(&source) == owner(&file));
    let mode = if is_same { from.mode()? } else { from.mode()? & !SET_ID };
    at_dest(file.set_permissions(Permissions::from_mode(mode)), "set the mode of", to)?;
    copied.files += 1;
    copied.bytes += len;
    Ok(())
}

/// Copies the attributes that this user may set, without Untorn's own, which would say that the copy is in a store.
fn copy_attributes(from: &File, to: &File) {
    let Ok(meta) = from.metadata() else { return };
    // A user may be allowed to change the owner, the group, or both.
    let _ = fchown(to, Some(meta.uid()), None);
    let _ = fchown(to, None, Some(meta.gid()));
    let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
    let listed = flistxattr(from, &mut names[..]).unwrap_or(0);
    for name in names[..listed].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
        if name != b"user.untorn"
            && let Ok(n) = fgetxattr(from, name, &mut value[..])
        {
            let _ = fsetxattr(to, name, &value[..n], XattrFlags::empty());
        }
    }
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(meta.atime(), meta.atime_nsec()),
        last_modification: time(meta.mtime(), meta.mtime_nsec()),
    };
    let _ = futimens(to, &times);
}
