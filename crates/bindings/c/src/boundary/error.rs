//! Errors as C sees them: a return value, `errno`, a kind and a message for each thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use untorn::{Error, Outcome};

/// Kinds of failures. Each kind asks for another reaction of the caller. Later versions may add kinds:
/// treat an unknown kind like UNTORN_E_IO.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, clippy::upper_case_acronyms)]
pub enum untorn_error {
    /// No call has failed in this thread yet.
    UNTORN_E_NONE = 0,
    /// errno EBUSY. Another process (the message names its pid, if known), or an earlier opening in this
    /// process, owns the store or file. Close the store or file there, or open with UNTORN_WAIT.
    UNTORN_E_BUSY = 1,
    /// errno EUCLEAN. The state on disk is damaged in a way that no crash can cause. Nothing was changed.
    /// `untorn check` shows details, `untorn recover --salvage` keeps what is readable.
    UNTORN_E_CORRUPT = 2,
    /// errno EMEDIUMTYPE. The file is not one of Untorn's, or belongs to another store. Nothing was changed.
    UNTORN_E_FOREIGN = 3,
    /// errno EPROTONOSUPPORT. Written by a newer Untorn. Nothing was changed.
    UNTORN_E_NEWER_VERSION = 4,
    /// errno EEXIST. Another program replaced, restored or changed a file with pending commits, or a
    /// transaction's names collide with existing names. Nothing was overwritten.
    UNTORN_E_CONFLICT = 5,
    /// errno ESTALE. The file has committed changes in a journal that is not here: the file was moved or
    /// copied away from its store before the changes were applied. Move the file back to its store.
    UNTORN_E_NEEDS_JOURNAL = 6,
    /// errno ENOTRECOVERABLE. The machine crashed while the store was in use in failure class
    /// UNTORN_CLASS_PROCESS, which does not survive machine crashes. UNTORN_ACCEPT_UNKNOWN accepts the
    /// files as they are.
    UNTORN_E_UNKNOWN_STATE = 7,
    /// errno EIO. The journal could not be written or flushed. This change is not committed, and will not
    /// appear after recovery. The store accepts no more commits until it is reopened.
    UNTORN_E_SYNC_NOT_COMMITTED = 8,
    /// errno EIO. The journal could not be written or flushed, and the outcome is unknown: the change is
    /// committed whole or not at all. Reopening the store decides; until then the store accepts no commits.
    UNTORN_E_SYNC_UNKNOWN = 9,
    /// errno ENOSPC. No space, quota or journal room. Nothing was committed; the call can be repeated.
    UNTORN_E_NO_SPACE = 10,
    /// errno EPERM. Owner or permissions of the files would let another user write with this process's
    /// rights.
    UNTORN_E_UNTRUSTED = 11,
    /// errno ECHILD. The parent process made the handle, before a fork.
    UNTORN_E_FORKED = 12,
    /// errno EBADF. Not an open handle of the kind that the function expects: NULL, closed, closed by
    /// another thread during the call, of another kind, or no handle at all.
    UNTORN_E_BAD_HANDLE = 13,
    /// errno EBUSY. The file is in a transaction: only the transaction can commit or roll back its changes.
    UNTORN_E_IN_TRANSACTION = 14,
    /// errno EINVAL; EFBIG for a range that ends behind the largest offset; EBADF for a change through a
    /// read-only handle. An argument is invalid; the message says which.
    UNTORN_E_INVALID = 15,
    /// errno EFAULT. A pointer that must not be NULL is NULL.
    UNTORN_E_NULL = 16,
    /// errno EOPNOTSUPP. The file system or the kernel lacks a feature; the message suggests what to do.
    UNTORN_E_UNSUPPORTED = 17,
    /// errno of the failed system call (ENOENT, EACCES, EISDIR, EEXIST, EMFILE …), or EIO if there is none.
    UNTORN_E_IO = 18,
    /// errno EIO. A bug in Untorn, caught at its boundary. Close all handles and reopen the store.
    UNTORN_E_PANIC = 19,
    /// errno ENOMEM. A map, a heap or a write needs more memory than the machine has, or than is allowed, or a heap is
    /// full. The message names the limit and what to do. A commit that meets it did not happen, and can be tried
    /// again.
    UNTORN_E_NO_MEMORY = 20,
    /// errno EBUSY. A thread stored to a map during its commit (found in debug mode only; the message has the
    /// address). The commit was made, whole, without that store.
    UNTORN_E_RACING_STORE = 21,
    /// errno EINVAL. A heap's root was set with another type, size, alignment or version than the program
    /// asks for; the message names both. Nothing was changed. untorn_heap_get_root_info() describes the root.
    UNTORN_E_LAYOUT_CHANGED = 22,
    /// errno ESTALE. A snapshot for reading was given up for space: the store's owner keeps old data for readers up to a
    /// limit (untorn_options.readers_space), and while the disk has room. Take a new one.
    UNTORN_E_SNAPSHOT_EXPIRED = 23,
    /// errno ESTALE. A snapshot for reading has ended: the store was ejected or repaired, was opened in
    /// UNTORN_CLASS_PROCESS or by an older version, or an older copy took its place. Open the store again.
    UNTORN_E_SNAPSHOT_ENDED = 24,
    /// errno ESTALE. A file of a snapshot was removed, moved or replaced since, and could not be kept. Other files of the
    /// snapshot can be read. Take a new snapshot.
    UNTORN_E_FILE_NOT_KEPT = 25,
}

use untorn_error::*;

/// An error that is to be reported to C.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: untorn_error,
    pub(crate) errno: c_int,
    pub(crate) message: String,
}

/// The result of every function's body.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// An invalid argument.
    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure { kind: UNTORN_E_INVALID, errno: libc::EINVAL, message: message.into() }
    }

    /// A range that no file can hold.
    pub(crate) fn too_big(message: impl Into<String>) -> Failure {
        Failure { kind: UNTORN_E_INVALID, errno: libc::EFBIG, message: message.into() }
    }

    /// A pointer that must not be NULL.
    pub(crate) fn null(what: &str) -> Failure {
        Failure { kind: UNTORN_E_NULL, errno: libc::EFAULT, message: format!("{what} is NULL") }
    }

    /// No open handle of the right kind.
    pub(crate) fn bad_handle(what: &str) -> Failure {
        let message = format!("not an open {what} handle: NULL, closed, or of another kind");
        Failure { kind: UNTORN_E_BAD_HANDLE, errno: libc::EBADF, message }
    }

    /// A handle of a store that is open for reading only, in the place of a handle that allows changes.
    pub(crate) fn reads_only(what: &str, handle: &str) -> Failure {
        let message = format!(
            "not an open {what} handle, but a {handle} handle, which only reads, and has functions of its own: \
             untorn_store_open() and untorn_open() open handles for changes"
        );
        Failure { kind: UNTORN_E_BAD_HANDLE, errno: libc::EBADF, message }
    }

    /// A handle that the parent process made.
    pub(crate) fn forked() -> Failure {
        Error::Forked.into()
    }

    /// A panic that [`guard`] caught.
    fn panicked(payload: Box<dyn Any + Send>) -> Failure {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        let message = format!("internal error in untorn, please report it: {text}");
        // A payload's destructor may itself panic, and nothing above would catch that.
        std::mem::forget(payload);
        Failure { kind: UNTORN_E_PANIC, errno: libc::EIO, message }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (kind, errno) = match &error {
            Error::Busy { .. } => (UNTORN_E_BUSY, libc::EBUSY),
            Error::Corrupt { .. } => (UNTORN_E_CORRUPT, libc::EUCLEAN),
            Error::Foreign { .. } => (UNTORN_E_FOREIGN, libc::EMEDIUMTYPE),
            Error::NewerVersion { .. } => (UNTORN_E_NEWER_VERSION, libc::EPROTONOSUPPORT),
            Error::Conflict { .. } => (UNTORN_E_CONFLICT, libc::EEXIST),
            Error::NeedsJournal { .. } => (UNTORN_E_NEEDS_JOURNAL, libc::ESTALE),
            Error::UnknownState { .. } => (UNTORN_E_UNKNOWN_STATE, libc::ENOTRECOVERABLE),
            Error::SyncFailed { outcome: Outcome::NotCommitted, .. } => (UNTORN_E_SYNC_NOT_COMMITTED, libc::EIO),
            Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. } => (UNTORN_E_SYNC_UNKNOWN, libc::EIO),
            Error::NoSpace { .. } => (UNTORN_E_NO_SPACE, libc::ENOSPC),
            Error::Untrusted { .. } => (UNTORN_E_UNTRUSTED, libc::EPERM),
            Error::NoMemory { .. } => (UNTORN_E_NO_MEMORY, libc::ENOMEM),
            Error::RacingStore { .. } => (UNTORN_E_RACING_STORE, libc::EBUSY),
            Error::LayoutChanged { .. } => (UNTORN_E_LAYOUT_CHANGED, libc::EINVAL),
            Error::SnapshotExpired { .. } => (UNTORN_E_SNAPSHOT_EXPIRED, libc::ESTALE),
            Error::SnapshotEnded { .. } => (UNTORN_E_SNAPSHOT_ENDED, libc::ESTALE),
            Error::FileNotKept { .. } => (UNTORN_E_FILE_NOT_KEPT, libc::ESTALE),
            Error::Forked => (UNTORN_E_FORKED, libc::ECHILD),
            Error::Closed => (UNTORN_E_BAD_HANDLE, libc::EBADF),
            Error::InTransaction { .. } => (UNTORN_E_IN_TRANSACTION, libc::EBUSY),
            Error::Invalid { .. } => (UNTORN_E_INVALID, libc::EINVAL),
            Error::Unsupported { .. } => (UNTORN_E_UNSUPPORTED, libc::EOPNOTSUPP),
            Error::Io { source, .. } => (UNTORN_E_IO, errno_of(source)),
            // The Rust enum may grow: a kind without a number here is reported as an I/O error.
            _ => (UNTORN_E_IO, libc::EIO),
        };
        Failure { kind, errno, message: error.to_string() }
    }
}

/// The system call's errno; for an error without one, the errno closest to its kind.
fn errno_of(error: &io::Error) -> c_int {
    use io::ErrorKind::*;
    error.raw_os_error().unwrap_or(match error.kind() {
        NotFound => libc::ENOENT,
        AlreadyExists => libc::EEXIST,
        PermissionDenied => libc::EACCES,
        IsADirectory => libc::EISDIR,
        NotADirectory => libc::ENOTDIR,
        DirectoryNotEmpty => libc::ENOTEMPTY,
        InvalidInput => libc::EINVAL,
        FileTooLarge => libc::EFBIG,
        Unsupported => libc::EOPNOTSUPP,
        _ => libc::EIO,
    })
}

/// The last failure of a thread.
struct Last {
    kind: untorn_error,
    message: CString,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Applies `f` to the calling thread's last failure, if there is one.
fn last<T>(f: impl FnOnce(&Last) -> T) -> Option<T> {
    LAST.try_with(|last| last.borrow().as_ref().map(f)).ok().flatten()
}

/// Stores a failure as this thread's last one, and then sets `errno`.
#[cold]
fn report(failure: Failure) {
    let mut bytes = failure.message.into_bytes();
    bytes.retain(|&byte| byte != 0);
    let message = CString::new(bytes).unwrap_or_default();
    // A thread that is ending has no thread-local storage any more; `errno` is then all that is reported.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Some(Last { kind: failure.kind, message }));
    // SAFETY: each thread has an `errno` of its own, which is valid while the thread runs.
    unsafe { *libc::__errno_location() = failure.errno };
}

/// Runs the body of an exported function. A failure is reported, and the result is then `failed`. A panic is
/// reported in the same way, because unwinding into C is undefined behaviour.
pub(crate) fn guard<T>(failed: T, body: impl FnOnce() -> Result<T>) -> T {
    // State that a panic may leave inconsistent is guarded by the library's own locks, which notice that.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            report(failure);
            failed
        }
        Err(payload) => {
            report(Failure::panicked(payload));
            failed
        }
    }
}

/// [`guard`] for calls that are made millions of times a second and return only a status. The body's result is an
/// `isize`: a `c_int` would be stored in four bytes and loaded as eight, and the processor would wait longer for that
/// load than for the rest of the call.
pub(crate) fn guard_status(body: impl FnOnce() -> Result<()>) -> c_int {
    guard(-1isize, || body().map(|()| 0)) as c_int
}

/// Returns the kind of the last failure in the calling thread. As errno, the kind is not reset by a
/// successful call: it is meaningful only after a call has returned -1 or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_last_error() -> untorn_error {
    guard(UNTORN_E_PANIC, || Ok(last(|last| last.kind).unwrap_or(UNTORN_E_NONE)))
}

/// Returns a message about the last failure in the calling thread: what happened, and what to do. Never
/// NULL; empty if no call has failed yet. The text is valid until the next untorn_ call that fails in this
/// thread, or until the thread ends. Texts may change between versions.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_error_message() -> *const c_char {
    guard(c"".as_ptr(), || {
        // The pointer stays valid after the borrow ends: only `report`, in this thread, replaces the text.
        Ok(last(|last| last.message.as_ptr()).unwrap_or(c"".as_ptr()))
    })
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no NUL in it"),
};

/// Returns the version of the running library, such as "0.1.0". The text is static, and the call never
/// fails.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Major version of this header.
pub const UNTORN_VERSION_MAJOR: u32 = 0;
/// Minor version of this header.
pub const UNTORN_VERSION_MINOR: u32 = 1;
/// Patch version of this header.
pub const UNTORN_VERSION_PATCH: u32 = 0;

// cbindgen needs literals; these assertions keep them equal to the crate's version.
const _: () = {
    const fn is(number: u32, text: &str) -> bool {
        matches!(u32::from_str_radix(text, 10), Ok(n) if n == number)
    }
    assert!(is(UNTORN_VERSION_MAJOR, env!("CARGO_PKG_VERSION_MAJOR")));
    assert!(is(UNTORN_VERSION_MINOR, env!("CARGO_PKG_VERSION_MINOR")));
    assert!(is(UNTORN_VERSION_PATCH, env!("CARGO_PKG_VERSION_PATCH")));
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::Arc;

    fn message() -> String {
        // SAFETY: never NULL, ends in NUL, and no call fails between here and the copy.
        unsafe { CStr::from_ptr(untorn_error_message()) }.to_str().unwrap().to_owned()
    }

    fn errno() -> c_int {
        io::Error::last_os_error().raw_os_error().unwrap()
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        assert_eq!(guard(-1, || panic!("out of {}", "ideas")), -1);
        assert_eq!((untorn_last_error(), errno()), (UNTORN_E_PANIC, libc::EIO));
        assert!(message().ends_with("out of ideas"), "{}", message());

        struct Spiteful;
        impl Drop for Spiteful {
            fn drop(&mut self) {
                panic!("once more");
            }
        }
        assert_eq!(guard(-1, || std::panic::panic_any(Spiteful)), -1);
        std::panic::set_hook(hook);
        assert!(message().ends_with("no message"), "{}", message());
    }

    #[test]
    fn failures_are_kept_for_each_thread_and_survive_success() {
        guard(-1, || Err(Failure::invalid("mine\0, with a NUL")));
        std::thread::spawn(|| {
            assert_eq!((untorn_last_error(), message().as_str()), (UNTORN_E_NONE, ""));
            guard(-1, || Err(Failure::bad_handle("file")));
            assert_eq!((untorn_last_error(), errno()), (UNTORN_E_BAD_HANDLE, libc::EBADF));
        })
        .join()
        .unwrap();
        assert_eq!(guard(-1, || Ok(7)), 7);
        assert_eq!((untorn_last_error(), message().as_str()), (UNTORN_E_INVALID, "mine, with a NUL"));
    }

    #[test]
    fn kinds_of_failed_syncs_are_told_apart() {
        let failed = |outcome| {
            let source = Arc::new(io::Error::from_raw_os_error(libc::EDQUOT));
            Failure::from(Error::SyncFailed { outcome, source })
        };
        let (not, unknown) = (failed(Outcome::NotCommitted), failed(Outcome::UnknownUntilReopened));
        assert_eq!((not.kind, not.errno), (UNTORN_E_SYNC_NOT_COMMITTED, libc::EIO));
        assert_eq!((unknown.kind, unknown.errno), (UNTORN_E_SYNC_UNKNOWN, libc::EIO));
    }

    #[test]
    fn the_systems_error_number_comes_through() {
        let io = |e: io::Error| Error::Io { action: "open", path: PathBuf::from("f"), source: Arc::new(e) };
        assert_eq!(Failure::from(io(io::Error::from_raw_os_error(libc::ELOOP))).errno, libc::ELOOP);
        assert_eq!(Failure::from(io(io::ErrorKind::NotFound.into())).errno, libc::ENOENT);
        assert_eq!(Failure::from(io(io::Error::other("odd"))).errno, libc::EIO);
    }
}
