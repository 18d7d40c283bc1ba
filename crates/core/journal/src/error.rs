//! Errors that say what happened, what is still true, and what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::Errno;

/// Short for a result with Untorn's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What is known of a commit that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The commit did not happen and will not come back.
    NotCommitted,
    /// The commit may or may not be on the disk, whole in either case. Reopening the store shows which.
    UnknownUntilReopened,
}

/// Everything that can go wrong; the kinds differ in what the caller should do.
/// `Debug` prints the message, as `main` prints an error that it returns.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process, or another handle with other options, has locked the store or the file.
    #[error("{} is in use{}{detail}", path.display(), owner(*pid))]
    Busy {
        /// The store or file.
        path: PathBuf,
        /// The id of that process, if the lock file has it.
        pid: Option<u32>,
        /// More of that process, and what to do.
        detail: String,
    },
    /// On-disk state that a crash cannot explain.
    #[error("{} is damaged: {detail}. Nothing was changed. {advice}", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Where, and what is wrong.
        detail: String,
        /// What to do.
        advice: &'static str,
    },
    /// A file that is not Untorn's, or belongs to another store.
    #[error("{}: {detail}. Nothing was changed", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// To whom it seems to belong.
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
    /// A file that pending commits belong to was replaced, restored or changed by somebody else, or a
    /// transaction's names collide with what is there.
    #[error("{}: {detail}. Nothing was overwritten", path.display())]
    Conflict {
        /// The file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// A file with commits that are still in a journal which is not here.
    #[error("{} has committed changes in a journal that is not here: {detail}. Move it back, or recover it where its store is; if that journal is lost, `untorn recover --accept-lost` takes the file as it is", path.display())]
    NeedsJournal {
        /// The file.
        path: PathBuf,
        /// Which store, which commit.
        detail: String,
    },
    /// A store of class `process` after a crash of the machine, or after a flush that failed.
    #[error("{}: the machine went down, or a flush failed, while this store was in use in failure class `process`, which does not survive that; its files may be torn. `untorn recover --accept-unknown` takes them as they are", path.display())]
    UnknownState {
        /// The store.
        path: PathBuf,
    },
    /// A write or flush of the journal failed: the store refuses commits until it is reopened.
    #[error("the journal could not be written or flushed: {source}. {} Reopen the store", outcome_text(*outcome))]
    SyncFailed {
        /// What is known of this commit.
        outcome: Outcome,
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// No space, quota or journal room. A commit that meets it did not happen, and can be tried again.
    #[error("no space: {detail}. Free some space and try again")]
    NoSpace {
        /// Which room is full.
        detail: String,
    },
    /// Owner or permissions that would let somebody else write with our rights.
    #[error("{} is not trusted: {detail}", path.display())]
    Untrusted {
        /// What is not trusted.
        path: PathBuf,
        /// Why, and what to do.
        detail: String,
    },
    /// More memory than there is, or than was allowed, would be needed.
    #[error("{}: {detail}", path.display())]
    NoMemory {
        /// The file that it is for.
        path: PathBuf,
        /// Which limit, and what to do.
        detail: String,
    },
    /// Option `debug_races`: a thread stored to a mapping while it was being committed.
    #[error("{} was stored to at address {address:#x}, offset {offset}, during a commit of it. The commit happened, whole; that store is not a part of it. Writers must be quiet while a mapping is committed", path.display())]
    RacingStore {
        /// The mapped file.
        path: PathBuf,
        /// Where in this process.
        address: usize,
        /// Where in the file.
        offset: u64,
    },
    /// A heap's root was set with another type, size, alignment or version than the program has now.
    #[error("{}: {detail}", path.display())]
    LayoutChanged {
        /// The heap.
        path: PathBuf,
        /// What is there, what was expected, what to do.
        detail: String,
    },
    /// What a snapshot shows was overwritten by a checkpoint, or its owner has closed the store.
    #[error("{}: the snapshot as of commit {lsn} has expired: the files have gone on. Nothing wrong was shown; take a new snapshot", path.display())]
    SnapshotExpired {
        /// The store, or the file in it.
        path: PathBuf,
        /// The commit as of which it was.
        lsn: u64,
    },
    /// The handle was made before a `fork`, by the parent.
    #[error("this handle belongs to the parent process; open the store anew after the parent has closed it")]
    Forked,
    /// The handle was closed.
    #[error("this handle is closed")]
    Closed,
    /// The file takes part in a transaction, which alone can commit or roll it back.
    #[error("{} takes part in a transaction; commit or abort that", path.display())]
    InTransaction {
        /// The file.
        path: PathBuf,
    },
    /// An argument that makes no sense.
    #[error("{detail}")]
    Invalid {
        /// Which, and why.
        detail: String,
    },
    /// Something the system or file system here cannot do.
    #[error("{}: {detail}", path.display())]
    Unsupported {
        /// Where.
        path: PathBuf,
        /// What, and the alternative.
        detail: String,
    },
    /// Any other failure of the operating system.
    #[error("cannot {action} {}: {source}", shown(path))]
    Io {
        /// A verb: open, read, rename …
        action: &'static str,
        /// On what.
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
        Outcome::UnknownUntilReopened => "Whether this change is committed is unknown until then.",
    }
}

/// A path in a message. In a store, the empty one is the store's directory.
fn shown(path: &Path) -> std::path::Display<'_> {
    if path.as_os_str().is_empty() { Path::new("the store's directory").display() } else { path.display() }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// What to do about a store that another process has open.
const BUSY_ADVICE: &str = "; end that program, read beside it (`untorn cat`, `Store::open_read_only`), or wait for it \
                           (`StoreOptions::wait`, `UNTORN_WAIT`)";
/// Of a process whose number means another one here.
const ELSEWHERE: &str = " of another pid namespace (as of a container; its number here is another one)";

impl Error {
    /// A store that another process has open.
    pub fn busy(path: impl Into<PathBuf>, pid: Option<u32>) -> Error {
        Error::Busy { path: path.into(), pid, detail: BUSY_ADVICE.to_owned() }
    }

    /// A store that a process has open whose number in the lock file is one of another pid namespace.
    pub fn busy_elsewhere(path: impl Into<PathBuf>, pid: u32) -> Error {
        Error::Busy { path: path.into(), pid: Some(pid), detail: format!("{ELSEWHERE}{BUSY_ADVICE}") }
    }

    /// An operating-system error; a lack of space becomes [`Error::NoSpace`].
    pub fn io(action: &'static str, path: impl AsRef<Path>, source: io::Error) -> Error {
        let path = path.as_ref();
        if is_no_space(&source) {
            return Error::NoSpace { detail: format!("cannot {action} {}: {source}", shown(path)) };
        }
        Error::Io { action, path: path.to_owned(), source: Arc::new(numbered(source)) }
    }

    /// A file that would become larger than this system lets it; nothing was changed.
    pub fn too_large(action: &'static str, path: impl AsRef<Path>, detail: String) -> Error {
        let source = Arc::new(io::Error::new(io::ErrorKind::FileTooLarge, detail));
        Error::Io { action, path: path.as_ref().to_owned(), source }
    }

    /// The disk returns errors for what was written there.
    pub(crate) fn unreadable(path: impl AsRef<Path>, detail: String) -> Error {
        Error::Io {
            action: "read",
            path: path.as_ref().to_owned(),
            source: Arc::new(io::Error::other(Unreadable(detail))),
        }
    }

    /// Whether the disk returns errors for a part of the journal that is needed.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.get_ref().is_some_and(|e| e.is::<Unreadable>()))
    }

    /// The attribute of a file could not be set.
    pub fn attribute(path: impl AsRef<Path>, e: io::Error) -> Error {
        let detail = match Errno::from_io_error(&e) {
            Some(Errno::OPNOTSUPP) => {
                "this file system has no extended attributes, which Untorn needs to recognise its files; \
                 ext4, XFS, btrfs, and tmpfs since Linux 6.6 have them. `untorn put` works without"
            }
            Some(Errno::PERM | Errno::NOSYS) => {
                "setting an extended attribute is forbidden, which Untorn needs to recognise its files. Either the file \
                 cannot be changed (`lsattr`, `chattr -i -a`), or the system calls `setxattr` and `fsetxattr` are \
                 denied to this process by a filter (seccomp), as in a container: allow them there"
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

    /// Damage inside of a heap.
    pub fn corrupt_heap(path: impl AsRef<Path>, detail: impl Into<String>) -> Error {
        let advice = "`untorn check heap` shows more; a heap that is damaged comes back from a backup alone";
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
            Error::Forked => "forked",
            Error::Closed => "closed",
            Error::InTransaction { .. } => "in-transaction",
            Error::Invalid { .. } => "invalid",
            Error::Unsupported { .. } => "unsupported",
            Error::Io { .. } => "io",
        }
    }

    /// Whether a flush failed: the kernel calls the next one a success.
    #[doc(hidden)]
    pub fn is_failed_flush(&self) -> bool {
        match self {
            Error::Io { action, .. } => action.starts_with("flush"),
            Error::NoSpace { detail } => detail.starts_with("cannot flush"),
            _ => false,
        }
    }

    /// Whether the room that is full is that of a quota.
    #[doc(hidden)]
    pub fn is_of_quota(&self) -> bool {
        let of_quota = || io::Error::from(Errno::DQUOT).to_string();
        matches!(self, Error::NoSpace { detail } if detail.contains(&of_quota()))
    }

    /// What happened, without the advice: for a message that gives its own.
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
            _ if self.is_unreadable() => Some(Errno::IO.raw_os_error()),
            Error::Io { source, .. } | Error::SyncFailed { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    /// An error of the same kind as the system's error behind it; its source is the [`Error`] itself.
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

/// What of the journal cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unreadable(String);

/// Gives errors that did not come from the system the number that the system would have given.
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

/// A link or a directory is where a file was looked for.
pub(crate) fn is_loop(e: &io::Error) -> bool {
    // ELOOP has no stable name in ErrorKind; EISDIR is the error of opening a directory for writing.
    Errno::from_io_error(e) == Some(Errno::LOOP) || e.kind() == io::ErrorKind::IsADirectory
}

/// No space, no quota, or a file-size limit.
pub(crate) fn is_no_space(e: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(e.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Adds what was being done, and to what, to an operating-system error.
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

    /// What `fn main() -> untorn::Result<()>` prints.
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
