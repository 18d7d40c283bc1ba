//! Exported functions: map descriptors, and sync, unmap, move and advise on these maps.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use libc::off_t;
use untorn::MapOptions;

use crate::boundary::error::{Failure, Result};
use crate::posix::files::managed_files::{Window, find, is_any_managed, learn};
use crate::posix::files::managing::{keep_on_mount, manage, undo};
use crate::posix::files::mount_files::{self, Change, MountFile, Shown};
use crate::posix::files::windows::{add, extend, halve, is_any_doubled, is_doubled, is_reserved, mapped_in, unmap};
use crate::posix::state::address_ranges::{page_bytes, pages};
use crate::posix::state::call_section::{Section, enter};
use crate::posix::state::file_owner::is_borrower;
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::{
    check_readable, check_writable, failure, is_regular, path_of, stat, system,
};
use crate::posix::state::report::{reported, tell};
use crate::posix::state::settings;

/// A flag of `mmap` that names the file. No kernel has a flag of this value; a kernel that gets it ignores it, or with
/// `MAP_SHARED_VALIDATE` refuses it.
const MAP_ATOMIC: c_int = 0x200_0000;

/// Begins a call on addresses. None: refused; otherwise a section if they may be of a managed file.
fn begin(call: &str) -> Option<Option<Section>> {
    if is_any_managed() || is_any_doubled() { enter(call).map(Some) } else { Some(None) }
}

/// Whether a map is Untorn's: a shared map of a managed file, or a writable one of a file that is to be managed. With
/// MAP_ATOMIC, a descriptor that is open for writing suffices: the map may be made writable later.
fn is_ours(prot: c_int, flags: c_int, fd: c_int) -> bool {
    let shared = matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    if !shared || flags & libc::MAP_ANONYMOUS != 0 || is_borrower() {
        return false;
    }
    if learn(fd).is_some() || mount_files::learn(fd).is_some() {
        return true;
    }
    if flags & MAP_ATOMIC != 0 {
        return prot & libc::PROT_WRITE != 0 || check_writable(fd).is_ok();
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
    if flags & MAP_ATOMIC != 0 && !stat(fd).as_ref().is_some_and(is_regular) {
        return Err(failure(libc::EINVAL, "MAP_ATOMIC: only a regular file is all or nothing"));
    }
    if find(fd).is_none() {
        if mount_files::learn(fd).is_none() {
            keep_on_mount(fd)?;
        }
        if let Some(file) = mount_files::learn(fd) {
            return map_on_mount(file, (address, len), prot, flags, fd, at);
        }
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

/// Makes the kernel's map of a file on a mount.
fn map_on_mount(
    file: Arc<MountFile>,
    (address, len): (*mut c_void, usize),
    prot: c_int,
    flags: c_int,
    fd: c_int,
    at: off_t,
) -> Result<*mut c_void> {
    let map = || {
        // SAFETY: the promise of the caller of `mmap`.
        let start = unsafe { libc::mmap(address, len, prot, flags & !MAP_ATOMIC, fd, at) };
        let is_ours = start != libc::MAP_FAILED && !file.is_parents();
        let change = pages(start, len)
            .filter(|_| is_ours)
            .map(|new| Change { gone: vec![new.clone()], new: Some((new, Shown::File(file))) });
        (start, change.unwrap_or_default())
    };
    match mount_files::change_maps("mmap", map) {
        (libc::MAP_FAILED, _) => Err(system("map the file")),
        (start, _) => Ok(start),
    }
}

/// `mmap`. Stores to a shared map of a managed file reach the disk at msync or fsync, all or nothing. The first
/// writable one manages a file that the program has named (untorn_manage(), or the flag MAP_ATOMIC) after it was opened.
/// The map may extend behind the end of the file, which may grow into the map. All other maps are made by the C library's `mmap`.
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
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let is_file = flags & libc::MAP_ANONYMOUS == 0 && flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    let _section = match is_file || fixed && is_any_managed() {
        true => match enter("mmap") {
            None => return libc::MAP_FAILED,
            some => some,
        },
        false => None,
    };
    if flags & libc::MAP_FIXED != 0 && pages(address, len).is_some_and(|pages| is_reserved(&pages)) {
        let refused = || Err(failure(libc::ENOTSUP, "MAP_FIXED over the map of a managed file"));
        return reported("mmap", libc::MAP_FAILED, refused);
    }
    if is_ours(prot, flags, fd) {
        return reported("mmap", libc::MAP_FAILED, || map(address, len, prot, flags, fd, at));
    }
    let map = || {
        // SAFETY: the caller's promise.
        unsafe { libc::mmap(address, len, prot, flags & !MAP_ATOMIC, fd, at) }
    };
    if flags & libc::MAP_FIXED == 0 {
        return map();
    }
    let replace = || {
        let start = map();
        let gone = pages(start, len).filter(|_| start != libc::MAP_FAILED).into_iter().collect();
        (start, Change { gone, new: None })
    };
    mount_files::change_maps("mmap", replace).0
}

/// Whether these flags of `msync` discard changes, if they ask for no sync.
fn rolls_back(flags: c_int) -> bool {
    flags & libc::MS_INVALIDATE != 0 && settings::invalidate_rolls_back()
}

/// Sets whether `msync(MS_INVALIDATE)` discards all changes of the whole file since its last commit (`on` not 0), or
/// does nothing (0). With UNTORN_INVALIDATE=rollback in the environment, 1 is the default. Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_invalidate_rolls_back(on: c_int) -> c_int {
    settings::set_invalidate_rolls_back(on != 0);
    0
}

/// `msync`. MS_SYNC commits all changes of the whole file, durable on return, all or nothing. MS_ASYNC starts a
/// commit of all stores made so far; the next fsync or MS_SYNC waits for that commit. MS_INVALIDATE does nothing, as
/// all maps show the same contents; after untorn_invalidate_rolls_back(1), alone it discards all changes of the whole
/// file since the last commit.
///
/// # Safety
/// As for `msync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_msync(address: *mut c_void, len: usize, flags: c_int) -> c_int {
    let Some(_section) = begin("msync") else { return -1 };
    let addresses = pages(address, len);
    let files = addresses.as_ref().map(mapped_in).unwrap_or_default();
    let on_mounts = addresses.as_ref().map(mount_files::mapped_in).unwrap_or_default();
    if files.is_empty() {
        let both = flags & (libc::MS_SYNC | libc::MS_ASYNC);
        let syncs = both == libc::MS_SYNC && !on_mounts.is_empty();
        // SAFETY: the caller's promise. The kernel cannot sync changes that belong to a transaction.
        let done = unsafe { libc::msync(address, len, if syncs { flags & !libc::MS_SYNC } else { flags }) };
        if done == 0 && syncs {
            return reported("msync", -1, || on_mounts.iter().try_for_each(|file| file.commit()).map(|()| 0));
        }
        if done == 0 && both == 0 && !on_mounts.is_empty() && rolls_back(flags) {
            return reported("msync", -1, || on_mounts.iter().try_for_each(|file| file.roll_back()).map(|()| 0));
        }
        return done;
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
                    _ if rolls_back(flags) => file.rollback()?,
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
    let Some(_section) = begin("munmap") else { return -1 };
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
        pages => {
            let unmap = || {
                // SAFETY: the caller's promise.
                let done = unsafe { libc::munmap(address, len) };
                let gone = pages.filter(|_| done == 0).into_iter().collect();
                (done, Change { gone, new: None })
            };
            match mount_files::change_maps("munmap", unmap) {
                (done, true) => done,
                (_, false) => -1,
            }
        }
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
    let Some(_section) = begin("mremap") else { return libc::MAP_FAILED };
    let old = pages(address, old_len.max(1));
    if old.as_ref().is_some_and(is_doubled) {
        let detail = "two maps of a file that lost its name have these addresses: such maps cannot be resized or moved";
        return reported("mremap", libc::MAP_FAILED, || Err(failure(libc::ENOMEM, detail)));
    }
    let Some(old) = old.filter(|old| !mapped_in(old).is_empty()) else {
        if flags & libc::MREMAP_FIXED != 0 && pages(to, new_len).is_some_and(|to| is_reserved(&to)) {
            let refused = || Err(failure(libc::ENOTSUP, "MREMAP_FIXED over the map of a managed file"));
            return reported("mremap", libc::MAP_FAILED, refused);
        }
        let remap = || {
            // SAFETY: the caller's promise; the last argument is read only with MREMAP_FIXED.
            let moved = unsafe { libc::mremap(address, old_len, new_len, flags, to) };
            let Some(new) = pages(moved, new_len).filter(|_| moved != libc::MAP_FAILED) else {
                return (moved, Change::default());
            };
            // `mremap` keeps the old map if its length is 0, or with MREMAP_DONTUNMAP.
            let old = pages(address, old_len).filter(|_| flags & libc::MREMAP_DONTUNMAP == 0);
            let gone = old.into_iter().chain([new.clone()]).collect();
            (moved, Change { gone, new: Some((new, Shown::AsAt(address.addr()))) })
        };
        return mount_files::change_maps("mremap", remap).0;
    };
    reported("mremap", libc::MAP_FAILED, || {
        let new = pages(address, new_len).ok_or_else(|| failure(libc::EINVAL, "an invalid length"))?;
        if old_len == 0 || flags & !libc::MREMAP_MAYMOVE != 0 {
            return Err(failure(libc::EINVAL, "the map of a managed file cannot be duplicated or moved"));
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
    let Some(_section) = begin("madvise") else { return -1 };
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
