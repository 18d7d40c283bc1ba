//! Exported functions: commits as they become durable.

use parking_lot::Mutex;
use std::ffi::{c_char, c_int, c_void};
use std::mem::{align_of, size_of};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

use untorn::Reader;
use untorn::reader::{Change, ChangeKind, Commit, Follow, Followed};

use crate::boundary::arguments;
use crate::boundary::error::{Failure, Result, guard};
use crate::boundary::handle::{self, Handle, Handles, Kind};
use crate::boundary::text::Block;
use crate::readers::reader::{untorn_reader, wait};

/// The commits of a store, each once, in order, as they become durable. The owner keeps commits that were not returned
/// yet, up to a limit (untorn_options.readers_space); those beyond it are returned as a range of missed commits.
#[allow(non_camel_case_types)]
pub struct untorn_follow {
    _opaque: (),
}

/// The kind of a change that a commit makes to a file or directory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum untorn_change_kind {
    /// Something that this version of the header has no name for.
    UNTORN_CHANGE_OTHER = 0,
    /// `len` bytes at `offset` were written.
    UNTORN_CHANGE_WRITTEN = 1,
    /// `len` bytes at `offset` became zeros.
    UNTORN_CHANGE_ZEROED = 2,
    /// The file has the length `len` now.
    UNTORN_CHANGE_RESIZED = 3,
    /// A new file.
    UNTORN_CHANGE_CREATED = 4,
    /// The file has the name `new_path` now.
    UNTORN_CHANGE_RENAMED = 5,
    /// The file is gone.
    UNTORN_CHANGE_REMOVED = 6,
    /// The permission bits are `mode` now.
    UNTORN_CHANGE_MODE = 7,
    /// A new directory.
    UNTORN_CHANGE_DIRECTORY_MADE = 8,
    /// The directory is gone.
    UNTORN_CHANGE_DIRECTORY_REMOVED = 9,
}

use untorn_change_kind::*;

/// A change of one file or directory.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct untorn_change {
    /// The kind of the change.
    pub kind: untorn_change_kind,
    /// Permission bits, for UNTORN_CHANGE_MODE.
    pub mode: u32,
    /// The offset at which bytes were written or became zeros.
    pub offset: u64,
    /// The number of bytes; for UNTORN_CHANGE_RESIZED, the new length of the file.
    pub len: u64,
    /// The name before this commit, relative to the store's directory.
    pub path: *const c_char,
    /// The new name, for UNTORN_CHANGE_RENAMED; otherwise NULL.
    pub new_path: *const c_char,
}

/// A commit, or a range of commits that were missed.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct untorn_followed {
    /// The number of the commit, or of the first missed commit.
    pub first_lsn: u64,
    /// The number of the commit, or of the last missed commit.
    pub last_lsn: u64,
    /// 0: a commit. 1: commits among these numbers may be missing, because a checkpoint applied them and their place
    /// in the journal was reused before they were read. Their changes are in the files.
    pub missed: u32,
    /// The number of changes of the commit.
    pub changes_len: u32,
    /// The changes; those of one file are in order.
    pub changes: *const *const untorn_change,
}

const _: () = assert!(size_of::<untorn_followed>() == 32 && size_of::<untorn_change>() == 40, "no padding");
const _: () =
    assert!(align_of::<untorn_followed>() == 8 && align_of::<untorn_change>() == 8, "one block holds them all");

/// The value behind a handle.
struct OpenFollow {
    state: Mutex<State>,
    /// The commit that was handed over last. It is apart from the state, which stays locked while a thread waits for
    /// the next commit.
    last: Mutex<Option<Commit>>,
    /// The number of the commit that was handed over last; at first, of the commit after which following began.
    lsn: AtomicU64,
}

struct State {
    follow: Follow,
    /// A commit that was taken from `follow` and could not be handed over.
    ready: Option<Followed>,
}

impl Handle for OpenFollow {
    const KIND: Kind = Kind::Follow;
    fn handles() -> &'static Handles<OpenFollow> {
        static OPEN: Handles<OpenFollow> = Handles::new();
        &OPEN
    }
}

/// Follows the commits after the last durable one. Returns a handle, or NULL with an error as untorn_reader_open().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_follow_open(reader: *const untorn_reader) -> *mut untorn_follow {
    guard(null_mut(), || {
        let follow = handle::get::<Reader, _>(reader)?.follow()?;
        let lsn = follow.lsn();
        handle::insert(OpenFollow::new(follow, lsn))
    })
}

/// Follows the commits after the commit `lsn`. If the journal no longer has all of them, the first one that is returned
/// is a range of missed commits. Returns a handle, or NULL: EEXIST (UNTORN_E_CONFLICT) if the store has no commit `lsn`
/// yet, or an error as untorn_reader_open().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_follow_open_from(reader: *const untorn_reader, lsn: u64) -> *mut untorn_follow {
    guard(null_mut(), || {
        let follow = handle::get::<Reader, _>(reader)?.follow_from(lsn)?;
        handle::insert(OpenFollow::new(follow, lsn))
    })
}

/// Returns the number of the commit that untorn_follow_next() returned last; at first, of the commit after which
/// following began. untorn_follow_open_from() goes on after it, also later and in another process. -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_follow_lsn(follow: *const untorn_follow) -> i64 {
    guard(-1, || Ok(handle::get::<OpenFollow, _>(follow)?.lsn.load(Acquire).cast_signed()))
}

/// Waits for the next commit, at most `timeout_ms` milliseconds; -1: without a limit. Returns 1, with the commit in
/// `*followed`, to be freed with untorn_free(), which also frees everything that the commit points to; 0: there was
/// no commit in this time; -1: EFAULT, EBADF (also when another thread closes the handle), or an error like
/// untorn_reader_open(). A failed call can be repeated, and no commit is lost by the failure.
///
/// # Safety
/// `followed` is NULL or can be written to.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_follow_next(
    follow: *mut untorn_follow,
    timeout_ms: c_int,
    followed: *mut *mut untorn_followed,
) -> c_int {
    guard(-1, || {
        // SAFETY: NULL, or the caller's promise.
        let Some(to) = (unsafe { followed.as_mut() }) else {
            handle::get::<OpenFollow, _>(follow)?;
            return Err(Failure::null("the place for the commit"));
        };
        let within = |at_most| handle::get::<OpenFollow, _>(follow)?.next_within(at_most);
        let Some(next) = wait(timeout_ms, within)? else { return Ok(0) };
        *to = next;
        Ok(1)
    })
}

impl OpenFollow {
    /// Commits behind `lsn`.
    fn new(follow: Follow, lsn: u64) -> OpenFollow {
        let state = Mutex::new(State { follow, ready: None });
        OpenFollow { state, last: Mutex::default(), lsn: AtomicU64::new(lsn) }
    }

    fn next_within(&self, at_most: Duration) -> Result<Option<*mut untorn_followed>> {
        let State { follow, ready } = &mut *self.state.lock();
        if ready.is_none() {
            *ready = follow.next_within(at_most)?;
        }
        let Some(next) = ready else { return Ok(None) };
        let for_caller = to_caller(next)?;
        *self.last.lock() = match ready.take() {
            Some(Followed::Commit(commit)) => {
                self.lsn.store(commit.lsn, Release);
                Some(commit)
            }
            _ => None,
        };
        Ok(Some(for_caller))
    }

    /// A change of the commit that was handed over last, if its number is `lsn`.
    fn change(&self, lsn: u64, change: usize) -> Result<Change> {
        let last = self.last.lock();
        let Some(commit) = &*last else {
            return Err(Failure::invalid(
                "the last call returned no commit: read the bytes of a commit before the next call",
            ));
        };
        if commit.lsn != lsn {
            let detail =
                format!("the last call returned commit {}, not {lsn}, whose bytes can no longer be read", commit.lsn);
            return Err(Failure::invalid(detail));
        }
        let found = commit.changes.get(change).cloned();
        found.ok_or_else(|| Failure::invalid(format!("commit {lsn} has no change with index {change}")))
    }
}

/// Reads up to `len` bytes that a commit wrote, from the offset `offset` in the file on, regardless of later commits.
/// `lsn` is the number of the commit, which must be the last one that untorn_follow_next() returned for this handle.
/// `change` is the index of one of its changes, UNTORN_CHANGE_WRITTEN or UNTORN_CHANGE_ZEROED. untorn_free() of the
/// commit does not affect this call.
///
/// Returns the number of bytes read, fewer than `len` only at the end of the change, or -1: EINVAL (another commit
/// was returned last, there is no such change, it wrote no bytes, or the offset is outside of it), EBADF, EFAULT,
/// EUCLEAN (the bytes of a large commit differ from those that were committed), EIO … The bytes are kept until the
/// next commit is returned or the handle is closed: in memory, or, for a large commit, in a file of the journal.
///
/// # Safety
/// `buf` has room for `len` bytes.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_follow_pread(
    follow: *const untorn_follow,
    lsn: u64,
    change: usize,
    buf: *mut c_void,
    len: usize,
    offset: u64,
) -> libc::ssize_t {
    guard(-1, || {
        let change = handle::get::<OpenFollow, _>(follow)?.change(lsn, change)?;
        // SAFETY: the caller's promise.
        let buf = unsafe { arguments::bytes_mut(buf, len)? };
        Ok(change.read_at(buf, offset)? as libc::ssize_t)
    })
}

/// Ends following. A call that waits in another thread ends with EBADF. Returns 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_follow_close(follow: *mut untorn_follow) -> c_int {
    guard(-1, || {
        drop(handle::take::<OpenFollow, _>(follow)?);
        Ok(0)
    })
}

/// Copies into one block of the C library's memory: the struct, pointers to the changes, the changes, the names.
fn to_caller(followed: &Followed) -> Result<*mut untorn_followed> {
    let (first_lsn, last_lsn, missed, changes): (_, _, _, &[Change]) = match followed {
        Followed::Commit(commit) => (commit.lsn, commit.lsn, 0, &commit.changes),
        Followed::Missed { first_lsn, last_lsn } => (*first_lsn, *last_lsn, 1, &[]),
        _ => return Err(Failure::invalid("this version of the library cannot represent this change in C")),
    };
    let pointers_at = size_of::<untorn_followed>();
    let changes_at = pointers_at + changes.len() * size_of::<*const untorn_change>();
    let mut block = Block::new(changes_at + changes.len() * size_of::<untorn_change>());
    let path_at = |block: &mut Block, path: &Path| block.text(path.as_os_str().as_bytes());
    let texts: Vec<(usize, Option<usize>)> = changes
        .iter()
        .map(|change| {
            let new_path =
                if let ChangeKind::Renamed(to) = &change.kind { Some(path_at(&mut block, to)) } else { None };
            (path_at(&mut block, &change.path), new_path)
        })
        .collect();
    let all = block.to_caller()?;
    let head = untorn_followed {
        first_lsn,
        last_lsn,
        missed,
        changes_len: u32::try_from(changes.len()).unwrap_or(u32::MAX),
        // SAFETY: within the block.
        changes: unsafe { all.add(pointers_at) }.cast::<*const untorn_change>(),
    };
    for (n, (change, (path, new_path))) in changes.iter().zip(texts).enumerate() {
        // SAFETY: the block begins with room for all of these, aligned, and has the texts at their places.
        unsafe {
            let to = all.add(changes_at).cast::<untorn_change>().add(n);
            let text = |at: usize| all.add(at).cast::<c_char>().cast_const();
            to.write(filled(&change.kind, text(path), new_path.map_or(null(), text)));
            all.add(pointers_at).cast::<*const untorn_change>().add(n).write(to);
        }
    }
    let to = all.cast::<untorn_followed>();
    // SAFETY: the block begins with it.
    unsafe { to.write(head) };
    Ok(to)
}

fn filled(kind: &ChangeKind, path: *const c_char, new_path: *const c_char) -> untorn_change {
    let (kind, offset, len, mode) = match kind {
        ChangeKind::Written(range) => (UNTORN_CHANGE_WRITTEN, range.start, range.end - range.start, 0),
        ChangeKind::Zeroed(range) => (UNTORN_CHANGE_ZEROED, range.start, range.end - range.start, 0),
        ChangeKind::Resized(len) => (UNTORN_CHANGE_RESIZED, 0, *len, 0),
        ChangeKind::Created(mode) => (UNTORN_CHANGE_CREATED, 0, 0, *mode),
        ChangeKind::Renamed(_) => (UNTORN_CHANGE_RENAMED, 0, 0, 0),
        ChangeKind::Removed => (UNTORN_CHANGE_REMOVED, 0, 0, 0),
        ChangeKind::Mode(mode) => (UNTORN_CHANGE_MODE, 0, 0, *mode),
        ChangeKind::DirectoryMade(mode) => (UNTORN_CHANGE_DIRECTORY_MADE, 0, 0, *mode),
        ChangeKind::DirectoryRemoved => (UNTORN_CHANGE_DIRECTORY_REMOVED, 0, 0, 0),
        _ => (UNTORN_CHANGE_OTHER, 0, 0, 0),
    };
    untorn_change { kind, mode, offset, len, path, new_path }
}
