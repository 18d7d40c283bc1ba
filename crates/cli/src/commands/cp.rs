//! `untorn cp`.

use crate::progress_bar::Progress;
use clap::{Args, ValueHint};
use rustix::fs::{CWD, RenameFlags, renameat_with, syncfs};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use untorn::reader::{Snapshot, SnapshotFile};
use untorn::{Error, Reader, Store};
use untorn_terminal::table::{bytes, count};
use untorn_terminal::{Failure, Output, signals};

/// A copy that checkpoints overtake is begun anew so often.
const ATTEMPTS_MAX: usize = 20;

/// Bytes that are copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// Copy a store as of its last durable commit, as plain files, while a program may have it open.
///
/// The copy is of one commit, flushed, and has no journal and no attributes: opened as a store it is a new one. It
/// appears under its name when it is whole. Names, contents and permission bits are copied; links, pipes and devices are
/// no store's, and are left out. If a checkpoint of the owner overtakes the copy, it is begun anew, some 20 times.
#[derive(Args)]
pub struct Cp {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    store: PathBuf,
    /// The copy, which must not exist.
    #[arg(value_hint = ValueHint::AnyPath)]
    dest: PathBuf,
}

/// What was copied.
#[derive(Default)]
struct Copied {
    files: u64,
    bytes: u64,
    left_out: u64,
}

/// Why a copy ended early.
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
        let reader = Store::open_read_only(&self.store)?;
        refuse_inside(&reader, parent)?;
        let unfinished = parent.join(format!(".{}.{}.copy", name.to_string_lossy(), std::process::id()));
        let (made, left) = (unfinished.clone(), unfinished.clone());
        signals::on_interrupt("untorn", "interrupted; what was copied so far is removed", move || {
            signals::remove_meanwhile(&left);
        })
        .map_err(|e| Failure::new(format!("cannot watch for Ctrl-C: {e}")))?;
        let done = self.attempts(&reader, &made);
        let named = done.and_then(|copied| {
            let from = if reader.standalone().is_some() { made.join("file") } else { made.clone() };
            renameat_with(CWD, &from, CWD, &self.dest, RenameFlags::NOREPLACE)
                .map_err(|e| Failure::io("make", &self.dest, e.into()))?;
            File::open(parent)
                .and_then(|dir| dir.sync_all())
                .map_err(|e| Failure::io("flush the directory of", &self.dest, e))?;
            Ok(copied)
        });
        // Nothing is left of it where it became the copy.
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

    fn attempts(&self, reader: &Reader, made: &Path) -> Result<(Copied, u64), Failure> {
        let progress = Progress::new("copying");
        for _ in 0..ATTEMPTS_MAX {
            match copy(reader, made, &progress) {
                Ok(done) => return Ok(done),
                Err(Stop::Store(Error::SnapshotExpired { .. })) => {}
                Err(Stop::Store(e)) => return Err(e.into()),
                Err(Stop::Other(e)) => return Err(e),
            }
        }
        Err(Failure::new(format!(
            "{}: checkpoints of its owner overtook the copy {ATTEMPTS_MAX} times, and nothing was copied. Copy it when it \
             is less busy, or give it a larger journal",
            self.store.display()
        )))
    }
}

/// A copy inside of the store would be copied, too.
fn refuse_inside(reader: &Reader, parent: &Path) -> Result<(), Failure> {
    let whole = |path: &Path| path.canonicalize().map_err(|e| Failure::io("look at", path, e));
    let (store, parent) = (whole(reader.path())?, whole(parent)?);
    match reader.standalone().is_none() && parent.starts_with(&store) {
        true => Err(Failure::new(format!("the copy would be inside of the store {}", store.display()))),
        false => Ok(()),
    }
}

/// Copies everything of one snapshot, and flushes it.
fn copy(reader: &Reader, made: &Path, progress: &Progress) -> Result<(Copied, u64), Stop> {
    if made.symlink_metadata().is_ok() {
        at_dest(std::fs::remove_dir_all(made), "remove", made)?;
    }
    let snapshot = reader.snapshot()?;
    at_dest(DirBuilder::new().mode(0o700).create(made), "make", made)?;
    let mut copied = Copied::default();
    match reader.standalone() {
        Some(file) => copy_file(&snapshot.open(file)?, &made.join("file"), progress, &mut copied)?,
        None => copy_directory(&snapshot, Path::new(""), made, progress, &mut copied)?,
    }
    snapshot.check()?;
    let dir = at_dest(File::open(made), "open", made)?;
    at_dest(syncfs(&dir).map_err(Into::into), "flush", made)?;
    Ok((copied, snapshot.lsn()))
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
            // Nothing that a store manages.
            Err(Error::Invalid { .. }) => copied.left_out += 1,
            Err(e) if is_link(&e) => copied.left_out += 1,
            Err(e) => return Err(e.into()),
        }
    }
    // Last: it may take the right to make entries away.
    let mode = Permissions::from_mode(snapshot.metadata(dir)?.mode);
    at_dest(std::fs::set_permissions(to, mode), "set the mode of", to)
}

/// What opening a symbolic link says.
fn is_link(e: &Error) -> bool {
    e.os_error().map(Errno::from_raw_os_error) == Some(Errno::LOOP)
}

fn copy_file(from: &SnapshotFile, to: &Path, progress: &Progress, copied: &mut Copied) -> Result<(), Stop> {
    let file = at_dest(File::options().write(true).create_new(true).mode(0o600).open(to), "create", to)?;
    let len = from.len()?;
    let (mut piece, mut at) = (vec![0; PIECE_BYTES.min(len as usize).max(1)], 0);
    while at < len {
        let n = from.read_at(&mut piece, at)?;
        if n == 0 {
            break;
        }
        // Zeros stay holes.
        if piece[..n].iter().any(|byte| *byte != 0) {
            at_dest(file.write_all_at(&piece[..n], at), "write", to)?;
        }
        at += n as u64;
        progress.show(copied.bytes + at, copied.bytes + len);
    }
    at_dest(file.set_len(len), "write", to)?;
    at_dest(file.set_permissions(Permissions::from_mode(from.mode()?)), "set the mode of", to)?;
    copied.files += 1;
    copied.bytes += len;
    Ok(())
}
