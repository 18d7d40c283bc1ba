//! Errors that name the event, the state that still holds, and the remedy.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::Errno;

/// Short for a result with Untorn's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The known outcome of a failed commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The commit did not happen and will not come back.
    NotCommitted,
    /// The commit may be on the disk, as a whole, or not. Reopening the store shows which.
    UnknownUntilReopened,
}

/// All errors; the kinds differ in the action that the caller should take. `Debug` prints the message, because `main`
/// prints an error that it returns that way.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process, or another handle with other options, has locked the store or the file.
    #[error("{} is in use{}{detail}", path.display(), owner(*pid))]
    Busy {
        /// The store or file.
        path: PathBuf,
        /// Id of that process, if the lock file has it.
        pid: Option<u32>,
        /// More about that process, and the remedy.
        detail: String,
    },
    /// On-disk state that a crash cannot explain.
    #[error("{} is damaged: {detail}. Nothing was changed. {advice}", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// The place, and the damage.
        detail: String,
        /// The advice to the user.
        advice: &'static str,
    },
    /// A file that is not Untorn's, or belongs to another store.
    #[error("{}: {detail}. Nothing was changed", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The probable owner.
        detail: String,
    },
    /// Written by a newer Untorn.
    #[error("{} has format version {found}; this Untorn reads up to {supported}. Nothing was changed; use a newer Untorn", path.display())]
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version understood here.
        supported: u32,
    },
    /// A file with pending commits was replaced, restored or changed by another program, or names of a transaction
    /// collide with existing files.
    #[error("{}: {detail}. Nothing was overwritten", path.display())]
    Conflict {
        /// The file.
        path: PathBuf,
        /// The finding.
        detail: String,
    },
    /// A file with commits in a journal that is not here.
    #[error("{} has committed changes in a journal that is not here: {detail}. Move the file back, unless its old place has a file again (recovery may have created it anew), or recover it where its store is; if that journal is lost, `untorn recover --accept-lost` takes the file as it is", path.display())]
    NeedsJournal {
        /// The file.
        path: PathBuf,
        /// Which store, which commit.
        detail: String,
    },
    /// A store of class `process` after a crash of the machine, or after a flush that failed.
    #[error("{}: the machine went down, or a flush failed, while this store was in use in failure class `process`, which does not protect against this; its files may be torn. `untorn recover --accept-unknown` takes them as they are", path.display())]
    UnknownState {
        /// The store.
        path: PathBuf,
    },
    /// A write or flush of the journal failed. The store refuses commits until it is reopened.
    #[error("the journal could not be written or flushed: {source}. {} Reopen the store", outcome_text(*outcome))]
    SyncFailed {
        /// The known outcome of this commit.
        outcome: Outcome,
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// No space, quota or journal room. A commit that fails with this error did not happen, and can be tried again.
    #[error("no space: {detail}. Free some space and try again")]
    NoSpace {
        /// The space that is full.
        detail: String,
    },
    /// An owner or permissions that would let another user write with the rights of this process.
    #[error("{} is not trusted: {detail}", path.display())]
    Untrusted {
        /// The file or directory that is not trusted.
        path: PathBuf,
        /// Why it is not trusted, and the remedy.
        detail: String,
    },
    /// An operation needs more memory than there is, or than is allowed.
    #[error("{}: {detail}", path.display())]
    NoMemory {
        /// The file for which it is needed.
        path: PathBuf,
        /// The limit, and the remedy.
        detail: String,
    },
    /// Option `debug_races`: a thread stored to a mapping while it was being committed.
    #[error("a thread stored to {} at address {address:#x}, offset {offset}, during a commit of it. The commit was made, whole, without that store. No thread may store to a mapping during its commit", path.display())]
    RacingStore {
        /// The mapped file.
        path: PathBuf,
        /// Address in this process.
        address: usize,
        /// Offset in the file.
        offset: u64,
    },
    /// A heap's root was set with another type, size, alignment or version than the program has now.
    #[error("{}: {detail}", path.display())]
    LayoutChanged {
        /// The heap.
        path: PathBuf,
        /// The layout that is there, the expected one, and the remedy.
        detail: String,
    },
    /// The owner no longer keeps the data of a snapshot, because these took too much space.
    #[error("{}: the snapshot of commit {lsn} was given up for space: the program that has the store open keeps old data for readers up to a limit (`readers_space`: 1 GiB, or a tenth of the free space if that is less), and while the disk has room. Bytes that were read before are right; take a new snapshot", path.display())]
    SnapshotExpired {
        /// The store, or the file in it.
        path: PathBuf,
        /// The commit that the snapshot showed.
        lsn: u64,
    },
    /// A snapshot ended because the store was ejected, salvaged, opened in class `process` or by another version, or
    /// because an older copy of it was put back.
    #[error("{}: the snapshot of commit {lsn} has ended: the store was ejected or repaired, was opened in class `process` or by an older version, or an older copy took its place. Bytes that were read before are right; open the store again", path.display())]
    SnapshotEnded {
        /// The store, or the file in it.
        path: PathBuf,
        /// The commit that the snapshot showed.
        lsn: u64,
    },
    /// A file of a snapshot was removed, moved or replaced meanwhile, and could not be kept.
    #[error("{}: the file was removed, moved or replaced after commit {lsn}, and could not be kept for this snapshot, because the file system has no hard links, or a directory keeps some readers of the store out. Other files of the snapshot can be read; take a new snapshot", path.display())]
    FileNotKept {
        /// The file.
        path: PathBuf,
        /// The commit that the snapshot shows.
        lsn: u64,
    },
    /// The handle was made before a `fork`, by the parent.
    #[error("this handle belongs to the parent process; open the store anew after the parent has closed it")]
    Forked,
    /// The handle was closed.
    #[error("this handle is closed")]
    Closed,
    /// The file takes part in a transaction, which alone can commit or roll it back.
    #[error("{} takes part in a transaction; commit or abort the transaction first", path.display())]
    InTransaction {
        /// The file.
        path: PathBuf,
    },
    /// An invalid argument.
    #[error("{detail}")]
    Invalid {
        /// The argument, and why it is invalid.
        detail: String,
    },
    /// An operation that the system or file system does not support.
    #[error("{}: {detail}", path.display())]
    Unsupported {
        /// The file or directory.
        path: PathBuf,
        /// The operation, and the alternative.
        detail: String,
    },
    /// Any other failure of the operating system.
    #[error("cannot {action} {}: {source}", shown(path))]
    Io {
        /// A verb: open, read, rename …
        action: &'static str,
        /// The object of the action.
        path: PathBuf,
        /// The error of the system.
        source: Arc<io::Error>,
    },
}

const NOTHING_COMMITTED: &str = "Nothing was committed";

fn owner(pid: Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(" by process {pid}"))
}

fn outcome_text(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::NotCommitted => "This change is not committed.",
        Outcome::UnknownUntilReopened => "Only the reopened store shows whether this change is committed.",
    }
}

/// A path in a message. In a store, the empty path is the store's directory.
fn shown(path: &Path) -> std::path::Display<'_> {
    if path.as_os_str().is_empty() { Path::new("the store's directory").display() } else { path.display() }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Advice about a store that another process has open.
const BUSY_ADVICE: &str = "; end that program, read beside it (`untorn cat`, `Reader::open`), or wait for it \
                           (`StoreOptions::wait`, `UNTORN_WAIT`)";
/// Advice about a store that this process has open.
const BUSY_HERE: &str = ", which is this process itself: use the store that it has open, or, if another \
                         copy of the library has it (preloaded, linked, or in an extension), leave it to that copy";
/// Added for a process whose id in the lock file denotes another process here.
const ELSEWHERE: &str = " of another pid namespace (such as a container's; the process has another number here)";

impl Error {
    /// A store that another process, or this one, has open.
    pub fn busy(path: impl Into<PathBuf>, pid: Option<u32>) -> Error {
        let is_own = pid == Some(std::process::id());
        Error::Busy { path: path.into(), pid, detail: if is_own { BUSY_HERE } else { BUSY_ADVICE }.to_owned() }
    }

    /// A store that is open in a process of another pid namespace, with that process's id there.
    pub fn busy_elsewhere(path: impl Into<PathBuf>, pid: u32) -> Error {
        Error::Busy { path: path.into(), pid: Some(pid), detail: format!("{ELSEWHERE}{BUSY_ADVICE}") }
    }

    /// An operating-system error. Lack of space becomes [`Error::NoSpace`].
    pub fn io(action: &'static str, path: impl AsRef<Path>, source: io::Error) -> Error {
        let path = path.as_ref();
        if is_no_space(&source) {
            return Error::NoSpace { detail: format!("cannot {action} {}: {source}", shown(path)) };
        }
        Error::Io { action, path: path.to_owned(), source: Arc::new(numbered(source)) }
    }

    /// A file that would become larger than this system allows. Nothing was changed.
    pub fn too_large(action: &'static str, path: impl AsRef<Path>, detail: String) -> Error {
        let source = Arc::new(io::Error::new(io::ErrorKind::FileTooLarge, detail));
        Error::Io { action, path: path.as_ref().to_owned(), source }
    }

    /// A store or file that does not exist, and was to be opened without creating it.
    pub fn not_there(path: impl AsRef<Path>) -> Error {
        let advice = "No such file or directory. The option `create` (in C UNTORN_CREATE) creates it";
        let source = Arc::new(io::Error::new(io::ErrorKind::NotFound, advice));
        Error::Io { action: "open", path: path.as_ref().to_owned(), source }
    }

    /// Data that the disk returns errors for.
    pub(crate) fn unreadable(path: impl AsRef<Path>, detail: String) -> Error {
        Error::Io {
            action: "read",
            path: path.as_ref().to_owned(),
            source: Arc::new(io::Error::other(Unreadable(detail))),
        }
    }

    /// Whether the disk returns errors for a needed part of the journal.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.get_ref().is_some_and(|e| e.is::<Unreadable>()))
    }

    /// A failure to set the attribute of a file.
    pub fn attribute(path: impl AsRef<Path>, e: io::Error) -> Error {
        let detail = match Errno::from_io_error(&e) {
            Some(Errno::OPNOTSUPP) => {
                "this file system has no extended attributes, which Untorn needs to recognise its files; ext4, XFS, \
                 btrfs, and tmpfs since Linux 6.6 have them. `untorn put` works without them"
            }
            Some(Errno::PERM | Errno::NOSYS) => {
                "the system does not allow Untorn to set an extended attribute, which it needs to recognise its files. \
                 Either the file cannot be changed (`lsattr`, `chattr -i -a`), or the system calls `setxattr` and \
                 `fsetxattr` are denied to this process by a filter (seccomp), as in a container: allow them there"
            }
            _ => return Error::io("set the attribute of", path, e),
        };
        Error::Unsupported { path: path.as_ref().to_owned(), detail: detail.into() }
    }

    /// An invalid argument.
    pub fn invalid(detail: impl Into<String>) -> Error {
        Error::Invalid { detail: detail.into() }
    }

    /// On-disk damage.
    pub fn corrupt(path: impl AsRef<Path>, detail: impl Into<String>) -> Error {
        let advice = "`untorn check` shows more; `untorn recover --salvage` keeps what is readable";
        Error::Corrupt { path: path.as_ref().to_owned(), detail: detail.into(), advice }
    }

    /// Damage inside a heap.
    pub fn corrupt_heap(path: impl AsRef<Path>, detail: impl Into<String>) -> Error {
        let advice = "`untorn check heap` shows more; only a backup can restore a damaged heap";
        Error::Corrupt { path: path.as_ref().to_owned(), detail: detail.into(), advice }
    }

    /// A name for the kind of error, stable across versions: `busy`, `corrupt`, …
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Busy { .. } => "busy",
            Error::Corrupt { .. } => "corrupt",
            Error::Foreign { .. } => "foreign",
            Error::NewerVersion { .. } => "newer-version",
            Error::Conflict { .. } => "conflict",
            Error::NeedsJournal { .. } => "needs-its-journal",
            Error::UnknownState { .. } => "unknown-state",
            Error::SyncFailed { outcome: Outcome::NotCommitted, .. } => "failed-sync-not-committed",
            Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. } => "failed-sync-unknown",
            Error::NoSpace { .. } => "no-space",
            Error::Untrusted { .. } => "untrusted",
            Error::NoMemory { .. } => "no-memory",
            Error::RacingStore { .. } => "racing-store",
            Error::LayoutChanged { .. } => "layout-changed",
            Error::SnapshotExpired { .. } => "snapshot-expired",
            Error::SnapshotEnded { .. } => "snapshot-ended",
            Error::FileNotKept { .. } => "file-not-kept",
            Error::Forked => "forked",
            Error::Closed => "closed",
            Error::InTransaction { .. } => "in-transaction",
            Error::Invalid { .. } => "invalid",
            Error::Unsupported { .. } => "unsupported",
            Error::Io { .. } => "io",
        }
    }

    /// Whether a flush failed. The kernel reports success for the next one.
    #[doc(hidden)]
    pub fn is_failed_flush(&self) -> bool {
        match self {
            Error::Io { action, .. } => action.starts_with("flush"),
            Error::NoSpace { detail } => detail.starts_with("cannot flush"),
            _ => false,
        }
    }

    /// Whether a quota is exhausted.
    #[doc(hidden)]
    pub fn is_of_quota(&self) -> bool {
        let of_quota = || io::Error::from(Errno::DQUOT).to_string();
        matches!(self, Error::NoSpace { detail } if detail.contains(&of_quota()))
    }

    /// The event without the advice, for a message that gives its own advice.
    #[doc(hidden)]
    pub fn cause(&self) -> String {
        match self {
            Error::NoSpace { detail } => detail.clone(),
            other => other.to_string(),
        }
    }

    /// The error of a commit that did not happen.
    #[doc(hidden)]
    pub fn of_commit(self) -> Error {
        match self {
            Error::NoSpace { detail } if !detail.ends_with(NOTHING_COMMITTED) => {
                Error::NoSpace { detail: format!("{detail}. {NOTHING_COMMITTED}") }
            }
            Error::NoMemory { path, detail } if !detail.ends_with(NOTHING_COMMITTED) => {
                Error::NoMemory { path, detail: format!("{detail}. {NOTHING_COMMITTED}") }
            }
            other => other,
        }
    }

    /// The system's error number behind this error, if there is one.
    pub fn os_error(&self) -> Option<i32> {
        match self {
            Error::Io { source, .. } if source.kind() == io::ErrorKind::FileTooLarge => {
                Some(Errno::FBIG.raw_os_error())
            }
            Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => Some(Errno::NOENT.raw_os_error()),
            _ if self.is_unreadable() => Some(Errno::IO.raw_os_error()),
            Error::Io { source, .. } | Error::SyncFailed { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    /// Makes an error of the same kind as the system's error behind it, with the [`Error`] itself as its source.
    fn from(e: Error) -> io::Error {
        let kind = match &e {
            Error::Io { source, .. } | Error::SyncFailed { source, .. } => source.kind(),
            Error::Busy { .. } => io::ErrorKind::ResourceBusy,
            Error::NoSpace { .. } if e.is_of_quota() => io::ErrorKind::QuotaExceeded,
            Error::NoSpace { .. } => io::ErrorKind::StorageFull,
            Error::NoMemory { .. } => io::ErrorKind::OutOfMemory,
            Error::Untrusted { .. } => io::ErrorKind::PermissionDenied,
            Error::Corrupt { .. } | Error::Foreign { .. } | Error::NewerVersion { .. } => io::ErrorKind::InvalidData,
            Error::Invalid { .. } => io::ErrorKind::InvalidInput,
            Error::Unsupported { .. } => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, e)
    }
}

/// The part of the journal that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unreadable(String);

/// Gives errors that did not come from the system the number that the system would have used.
fn numbered(e: io::Error) -> io::Error {
    if e.raw_os_error().is_some() || e.get_ref().is_some() {
        return e;
    }
    match e.kind() {
        io::ErrorKind::NotFound => Errno::NOENT.into(),
        io::ErrorKind::PermissionDenied => Errno::ACCESS.into(),
        io::ErrorKind::AlreadyExists => Errno::EXIST.into(),
        io::ErrorKind::DirectoryNotEmpty => Errno::NOTEMPTY.into(),
        _ => e,
    }
}

/// Whether a link or a directory is in the place of a file.
pub(crate) fn is_loop(e: &io::Error) -> bool {
    // ELOOP has no stable name in ErrorKind; EISDIR is the error of opening a directory for writing.
    Errno::from_io_error(e) == Some(Errno::LOOP) || e.kind() == io::ErrorKind::IsADirectory
}

/// Whether space, a quota or a file-size limit is exhausted.
pub(crate) fn is_no_space(e: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(e.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Adds the action and its object to an operating-system error.
pub trait Context<T> {
    /// `cannot {action} {path}: …`
    fn context(self, action: &'static str, path: impl AsRef<Path>) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, action: &'static str, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|e| Error::io(action, path, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the text that `fn main() -> untorn::Result<()>` prints.
    #[test]
    fn debug_prints_the_message() {
        let errors = [
            Error::busy("store", Some(7)),
            Error::busy_elsewhere("store", 1),
            Error::corrupt("store", "a block"),
            Error::io("open", "file", io::ErrorKind::NotFound.into()),
            Error::io("flush", "", io::Error::from(Errno::MFILE)),
            Error::Closed,
        ];
        for e in errors {
            assert_eq!(format!("{e:?}"), e.to_string());
            assert_eq!(format!("{:?}", Err::<(), _>(e.clone())), format!("Err({e})"));
        }
        assert!(
            Error::busy_elsewhere("s", 1).to_string().starts_with("s is in use by process 1 of another pid namespace")
        );
    }
}
