//! Exported functions: map descriptors, and sync and unmap these maps.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use libc::off_t;
use untorn::MapOptions;

use super::managed_files::{
    Window, add, extend, find, halve, is_borrower, is_doubled, is_reserved, learn, mapped_in, path_of, unmap,
};
use super::managing::{manage, undo};
use super::patterns;
use super::posix_descriptor::{check_readable, check_writable, failure, is_regular, stat};
use super::report::{reported, tell};
use crate::error::{Failure, Result};

fn page_bytes() -> usize {
    // SAFETY: takes a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// The pages of a range of addresses. None: not a valid range.
fn pages(address: *mut c_void, len: usize) -> Option<Range<usize>> {
    let (start, page) = (address.addr(), page_bytes());
    let end = start.checked_add(len)?.checked_next_multiple_of(page)?;
    (start.is_multiple_of(page) && start < end).then_some(start..end)
}

/// Whether a map is Untorn's: a shared map of a managed file, or a writable one of a file that is to be managed.
fn is_ours(prot: c_int, flags: c_int, fd: c_int) -> bool {
    let shared = matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    if !shared || flags & libc::MAP_ANONYMOUS != 0 || is_borrower() {
        return false;
    }
    if learn(fd).is_some() {
        return true;
    }
    if prot & libc::PROT_WRITE == 0 || !stat(fd).as_ref().is_some_and(is_regular) {
        return false;
    }
    let Ok(path) = path_of(fd) else { return false };
    if !patterns::is_any() && !path.starts_with("/dev/shm") {
        tell(&format!(
            "mmap: {} is mapped as the kernel does, because no file is named: call untorn_manage(\"*.db\"), or set \
             UNTORN_MANAGE, to have such files changed all or nothing",
            path.display()
        ));
    }
    patterns::match_path(&path)
}

fn map(address: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, at: off_t) -> Result<*mut c_void> {
    // For `mmap`, POSIX has EACCES where other calls have EBADF.
    let denied = |failure: Failure| Failure { errno: libc::EACCES, ..failure };
    check_readable(fd).map_err(denied)?;
    if prot & libc::PROT_WRITE != 0 {
        check_writable(fd).map_err(denied)?;
    }
    let page = page_bytes();
    let rounded = len.checked_next_multiple_of(page).filter(|rounded| *rounded > 0 && at >= 0);
    let Some(rounded) = rounded.filter(|_| (at as usize).is_multiple_of(page)) else {
        return Err(failure(libc::EINVAL, "a length of 0, or an offset that is no multiple of the page size"));
    };
    if flags & libc::MAP_FIXED != 0 {
        return Err(failure(libc::ENOTSUP, "MAP_FIXED: a managed file's place in memory is not replaced or moved"));
    }
    let mut options = MapOptions::new().offset(at as u64).len(rounded as u64).beyond_end(true);
    if flags & libc::MAP_POPULATE != 0 {
        options = options.populate(true);
    }
    if flags & libc::MAP_FIXED_NOREPLACE != 0 {
        let base = address.addr().checked_sub(at as usize).filter(|base| *base > 0);
        options = options.address(base.ok_or_else(|| failure(libc::EINVAL, "no room before that address"))?);
    }
    let known = find(fd).is_some();
    let file = manage(fd)?;
    let map = file.map(&options).inspect_err(|_| {
        if !known {
            undo(&file);
        }
    })?;
    let start = map.as_mut_ptr();
    let addresses = start.addr()..start.addr() + rounded;
    add(Window { addresses, file, map: Arc::new(map) });
    Ok(start.cast())
}

/// `mmap`. Stores to a shared map of a managed file reach the disk at msync or fsync, all or nothing. The first
/// writable one manages a file that the program has named (untorn_manage()) after it was opened. The map may extend
/// behind the end of the file, which may grow into the map. All other maps are made by the C library's `mmap`.
///
/// MAP_FAILED with an errno: ENOTSUP (MAP_FIXED), EBUSY (another process has the file open), ENOMEM, EACCES,
/// EINVAL, and the errors of untorn_open().
///
/// # Safety
/// As for `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_mmap(
    address: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    at: off_t,
) -> *mut c_void {
    if is_ours(prot, flags, fd) {
        return reported("mmap", libc::MAP_FAILED, || map(address, len, prot, flags, fd, at));
    }
    if flags & libc::MAP_FIXED != 0 && pages(address, len).is_some_and(|pages| is_reserved(&pages)) {
        let refused = || Err(failure(libc::ENOTSUP, "MAP_FIXED over the map of a managed file"));
        return reported("mmap", libc::MAP_FAILED, refused);
    }
    // SAFETY: the caller's promise.
    unsafe { libc::mmap(address, len, prot, flags, fd, at) }
}

/// `msync`. MS_SYNC commits all changes of the whole file, durable on return, all or nothing. MS_ASYNC starts a
/// commit of all stores made so far; the next fsync or MS_SYNC waits for that commit. MS_INVALIDATE does
/// nothing: all maps show the same contents (untorn_fd_rollback() rolls back).
///
/// # Safety
/// As for `msync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_msync(address: *mut c_void, len: usize, flags: c_int) -> c_int {
    let files = pages(address, len).map(|pages| mapped_in(&pages)).unwrap_or_default();
    if files.is_empty() {
        // SAFETY: the caller's promise.
        return unsafe { libc::msync(address, len, flags) };
    }
    reported("msync", -1, || {
        let both = libc::MS_SYNC | libc::MS_ASYNC;
        if flags & !(both | libc::MS_INVALIDATE) != 0 || flags & both == both {
            return Err(failure(libc::EINVAL, format!("msync's flags {flags:#x}")));
        }
        for file in files {
            file.with(|file| {
                match flags & both {
                    libc::MS_SYNC => file.commit()?,
                    libc::MS_ASYNC => drop(file.commit_async()?),
                    _ => {}
                }
                Ok(())
            })?;
        }
        Ok(0)
    })
}

/// `munmap`. Uncommitted stores stay uncommitted changes of the file until the last of its descriptors and maps
/// is gone. Until then the pages stay accessible.
///
/// # Safety
/// As for `munmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_munmap(address: *mut c_void, len: usize) -> c_int {
    match pages(address, len) {
        Some(pages) if is_reserved(&pages) || !mapped_in(&pages).is_empty() => {
            reported("munmap", -1, || unmap(pages).map(|_| 0))
        }
        Some(pages) if is_doubled(&pages) => {
            let unmap = |range: Range<usize>| {
                // SAFETY: no other map of the program's shows these addresses; else the caller's promise.
                unsafe { libc::munmap(address.with_addr(range.start), range.len()) }
            };
            halve(pages).into_iter().map(unmap).fold(0, c_int::min)
        }
        // SAFETY: the caller's promise.
        _ => unsafe { libc::munmap(address, len) },
    }
}

/// `mremap`. The map of a managed file grows and shrinks at its address, where addresses are reserved.
///
/// # Safety
/// As for `mremap`. `to` is read only with MREMAP_FIXED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_mremap(
    address: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let old = pages(address, old_len.max(1));
    if old.as_ref().is_some_and(is_doubled) {
        let detail = "two maps of a file that lost its name have these addresses: they are neither resized nor moved";
        return reported("mremap", libc::MAP_FAILED, || Err(failure(libc::ENOMEM, detail)));
    }
    let Some(old) = old.filter(|old| !mapped_in(old).is_empty()) else {
        // SAFETY: the caller's promise; the last argument is read only with MREMAP_FIXED.
        return unsafe { libc::mremap(address, old_len, new_len, flags, to) };
    };
    reported("mremap", libc::MAP_FAILED, || {
        let new = pages(address, new_len).ok_or_else(|| failure(libc::EINVAL, "an invalid length"))?;
        if old_len == 0 || flags & !libc::MREMAP_MAYMOVE != 0 {
            return Err(failure(libc::EINVAL, "the map of a managed file is neither doubled nor moved"));
        }
        if new.end > old.end {
            extend(&old, new.end)?;
        } else if new.end < old.end {
            unmap(new.end..old.end)?;
        }
        Ok(address)
    })
}

/// `madvise`. Advice that drops pages (MADV_DONTNEED, MADV_FREE) is ignored on maps of managed files: it would
/// lose stores. Use untorn_fd_reclaim().
///
/// # Safety
/// As for `madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    let drops =
        matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE | libc::MADV_DONTNEED_LOCKED);
    if drops && pages(address, len).is_some_and(|pages| is_reserved(&pages)) {
        return match advice {
            libc::MADV_REMOVE => reported("madvise", -1, || {
                Err(failure(libc::EOPNOTSUPP, "MADV_REMOVE: use fallocate on the descriptor"))
            }),
            _ => 0,
        };
    }
    // SAFETY: the caller's promise.
    unsafe { libc::madvise(address, len, advice) }
}
