//! Exported functions: sections of live heaps, and the locks that make them.

use std::ffi::{c_int, c_void};

use untorn::__private::section_hooks;
use untorn::heap::SectionLock;

use crate::boundary::error::untorn_error::UNTORN_E_UNSUPPORTED;
use crate::boundary::error::{Failure, Result, guard, guard_status};
use crate::heaps::heap::{is_logged_by_hand, untorn_heap, weak};

/// A mutex whose critical sections are all or nothing. A section of a thread lasts from the first of these mutexes
/// that it locks until it has unlocked all of them. If the process is killed, either all stores of a section to a
/// live heap remain, or none of them. All zeros is an unlocked mutex; it needs no destruction. It may lie anywhere,
/// also in the heap: a process that was killed no longer holds it. It is not recursive. See docs/LIVE_HEAPS.md.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct untorn_mutex {
    /// For use by the library only.
    pub state: [u64; 8],
}

const _: () = assert!(size_of::<SectionLock>() <= size_of::<untorn_mutex>());
const _: () = assert!(align_of::<SectionLock>() <= align_of::<untorn_mutex>());

/// Refuses sections in a program without hooks, where nothing could be undone.
#[inline]
fn check_hooks() -> Result<()> {
    if section_hooks::has_hooks() || is_logged_by_hand() {
        return Ok(());
    }
    Err(Failure {
        kind: UNTORN_E_UNSUPPORTED,
        errno: libc::EOPNOTSUPP,
        message: "this program was not built for sections: its stores would not be logged, so they could not be \
                  undone. Compile and link it with untorn-cc or untorn-c++; or open the heap with \
                  UNTORN_HEAP_LOG_BY_HAND and call untorn_section_log() before each store"
            .into(),
    })
}

#[inline]
fn lock_of<'m>(mutex: *mut untorn_mutex) -> Result<&'m SectionLock> {
    // SAFETY: a mutex of the caller, which is large enough; zeros are a lock.
    unsafe { mutex.cast::<SectionLock>().as_ref() }.ok_or_else(|| Failure::null("the mutex"))
}

/// Makes an unlocked mutex for a heap. Needed only if several live heaps are open: without this call a mutex of zeros
/// belongs to the heap that it lies in, or to the only live heap. Returns 0, or -1: EINVAL (the heap is not live),
/// EBADF.
///
/// # Safety
/// `mutex` is NULL or a mutex that is not locked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_mutex_init(mutex: *mut untorn_mutex, heap: *const untorn_heap) -> c_int {
    guard_status(|| {
        let heap = weak(heap)?;
        lock_of(mutex)?;
        // SAFETY: the caller's promise.
        unsafe { mutex.write(untorn_mutex { state: [0; 8] }) };
        Ok(lock_of(mutex)?.set_heap(heap)?)
    })
}

/// Locks a mutex: a section begins, or the current section continues. Returns 0, or -1: EOPNOTSUPP (the program was
/// not built with untorn-cc or untorn-c++), EINVAL (no live heap is open, or several are open and the mutex belongs
/// to none of them; or this thread is in a section of another heap), EFAULT, ECHILD. After an error nothing was
/// locked.
///
/// # Safety
/// `mutex` is NULL or a mutex.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_mutex_lock(mutex: *mut untorn_mutex) -> c_int {
    guard_status(|| {
        check_hooks()?;
        Ok(lock_of(mutex)?.lock()?)
    })
}

/// Locks a mutex if it is not locked. Returns 1: locked; 0: another thread holds it; -1 with an error like
/// untorn_mutex_lock().
///
/// # Safety
/// `mutex` is NULL or a mutex.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_mutex_trylock(mutex: *mut untorn_mutex) -> c_int {
    guard(-1, || {
        check_hooks()?;
        Ok(c_int::from(lock_of(mutex)?.try_lock()?))
    })
}

/// Unlocks a mutex. If it was the thread's last one, its section is complete. Otherwise the section continues. If the
/// process is killed before the section ends, the sections of threads that locked this mutex in the meantime are
/// undone together with it. Returns 0, or -1: EINVAL (no thread holds the mutex), EFAULT.
///
/// # Safety
/// `mutex` is NULL or a mutex that this thread has locked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_mutex_unlock(mutex: *mut untorn_mutex) -> c_int {
    guard_status(|| Ok(lock_of(mutex)?.unlock()?))
}

/// Locks a mutex for reading, shared with other readers. Returns 0, or -1 with an error like untorn_mutex_lock().
///
/// # Safety
/// `mutex` is NULL or a mutex.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_mutex_lock_shared(mutex: *mut untorn_mutex) -> c_int {
    guard_status(|| {
        check_hooks()?;
        Ok(lock_of(mutex)?.lock_shared()?)
    })
}

/// Locks a mutex for reading, shared with other readers, if no thread holds it exclusively. Returns 1: locked; 0: a
/// thread holds it exclusively; -1 with an error like untorn_mutex_lock().
///
/// # Safety
/// `mutex` is NULL or a mutex.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_mutex_trylock_shared(mutex: *mut untorn_mutex) -> c_int {
    guard(-1, || {
        check_hooks()?;
        Ok(c_int::from(lock_of(mutex)?.try_lock_shared()?))
    })
}

/// Unlocks a mutex after untorn_mutex_lock_shared(). Returns 0, or -1 with an error like untorn_mutex_unlock().
///
/// # Safety
/// `mutex` is NULL or a mutex that this thread has locked by untorn_mutex_lock_shared().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_mutex_unlock_shared(mutex: *mut untorn_mutex) -> c_int {
    guard_status(|| Ok(lock_of(mutex)?.unlock_shared()?))
}

/// Begins a section without a mutex, up to untorn_section_end() in the same thread; within a section it is a part of
/// that section. Returns 0, or -1 with an error like untorn_mutex_lock(); EBADF.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_section_begin(heap: *mut untorn_heap) -> c_int {
    guard_status(|| {
        check_hooks()?;
        Ok(section_hooks::begin(weak(heap)?)?)
    })
}

/// Ends the section that untorn_section_begin() began. Returns 0, or -1: EINVAL (this thread is in no section of the
/// heap), EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_section_end(heap: *mut untorn_heap) -> c_int {
    guard_status(|| Ok(section_hooks::end(weak(heap)?)?))
}

/// Takes back all stores, allocations and frees that this thread's section has made in the heap so far. The section
/// continues, and its mutexes stay locked. Returns 0, or -1: EINVAL (this thread is in no section; or the section has
/// already unlocked a mutex, so that other threads may have seen its changes; or it has changed more than its log
/// holds; in each case nothing was taken back), EBADF.
///
/// # Safety
/// Memory that the section has allocated is not used any more.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_section_abort(heap: *mut untorn_heap) -> c_int {
    // SAFETY: the caller's promise.
    guard_status(|| Ok(unsafe { section_hooks::abort(weak(heap)?) }?))
}

/// Says that this thread's section is about to store to `len` bytes at `address`. For stores that the hooks of untorn-cc do
/// not see: those of assembly, and of code that was compiled without it. Bytes outside of the heap, and calls outside of a
/// section, are ignored.
///
/// # Safety
/// The bytes can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_section_log(address: *const c_void, len: usize) {
    guard((), || {
        // SAFETY: the caller's promise; a thread that is about to store there has the bytes mapped.
        unsafe { section_hooks::log(address.expose_provenance(), len) };
        Ok(())
    });
}

struct Callback(Option<unsafe extern "C" fn(*mut c_void)>, *mut c_void);

// SAFETY: the caller was told that another thread may make the call.
unsafe impl Send for Callback {}

impl Callback {
    fn call(self) {
        if let Callback(Some(function), argument) = self {
            // SAFETY: the promise of the caller that passed the function.
            unsafe { function(argument) }
        }
    }
}

/// Calls a function once the end of the process can no longer undo this thread's sections of a live heap. That is the
/// case when its current section ends, or later, if the section has read changes of other sections that have not
/// ended: until they end, the end of the process may undo it. Output that reports a section waits for this call. The
/// function is called at once if there is nothing to wait for; otherwise by the thread that completes the last of
/// these sections. Even then the heap goes back to its last cut if the process ends while any thread is between
/// untorn_heap_begin() and untorn_heap_end(), or in a section that has changed more than its log holds; for that, and
/// for power cuts, wait for untorn_heap_commit(). Returns 0, or -1: EINVAL (the heap is not live), EFAULT, EBADF.
///
/// # Safety
/// `function` may be called from any thread, with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_on_stable(
    heap: *mut untorn_heap,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    guard_status(|| {
        if function.is_none() {
            return Err(Failure::null("the function"));
        }
        let callback = Callback(function, argument);
        Ok(section_hooks::on_stable(weak(heap)?, Box::new(move || callback.call()))?)
    })
}

/// Only for the hooks that untorn-cc links into programs. `writer` returns the log of the calling thread, to which
/// the hooks write. `marks` is the table in which they mark stores to mappings with UNTORN_TRACKER_EXPLICIT. `version`
/// is the version of both layouts. Returns 0, or -1 with EINVAL: libuntorn has another version.
///
/// # Safety
/// `writer` returns the memory of a log that lives as long as its thread; `marks` is a table of zeros that lives as
/// long as the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_live_hooks(
    version: u32,
    writer: Option<extern "C" fn() -> *mut c_void>,
    marks: *mut c_void,
) -> c_int {
    guard_status(|| {
        // SAFETY: the caller's promise.
        let marks = unsafe { marks.cast::<section_hooks::MarkTable>().as_ref() };
        let (HOOKS_VERSION, Some(writer), Some(marks)) = (version, writer, marks) else {
            return Err(Failure::invalid(format!(
                "the program has hooks of version {version}, and libuntorn those of version {HOOKS_VERSION}: link it anew"
            )));
        };
        // SAFETY: the same function with a typed result, which is a log by the caller's promise.
        let writer = unsafe {
            std::mem::transmute::<extern "C" fn() -> *mut c_void, extern "C" fn() -> *mut section_hooks::LogWriter>(
                writer,
            )
        };
        section_hooks::set_hooks(writer);
        section_hooks::set_mark_table(marks);
        Ok(())
    })
}

/// Only for the hooks that untorn-cc links into programs: untorn_mutex_lock() in the thread that has this log, so
/// that the log need not be looked up.
///
/// # Safety
/// The log is that of this thread's hooks; `mutex` is NULL or a mutex.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_live_lock(writer: *mut c_void, mutex: *mut untorn_mutex) -> c_int {
    #[cold]
    #[inline(never)]
    fn otherwise(mutex: *mut untorn_mutex) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { untorn_mutex_lock(mutex) }
    }
    // SAFETY: the caller's promise; zeros are a lock.
    let at_once = |lock| unsafe { section_hooks::lock_at_once(writer.cast(), lock) };
    // SAFETY: a mutex of the caller, which is large enough.
    if unsafe { mutex.cast::<SectionLock>().as_ref() }.is_some_and(at_once) {
        return 0;
    }
    otherwise(mutex)
}

/// Only for the hooks that untorn-cc links into programs: untorn_mutex_lock() in the thread that has this log, if the
/// mutex begins a section that need not wait for anything. Returns 1: locked; 0: nothing was done.
///
/// # Safety
/// The log is that of this thread's hooks; `mutex` is NULL or a mutex that is not locked.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_live_lock_at_once(writer: *mut c_void, mutex: *mut untorn_mutex) -> c_int {
    // SAFETY: the caller's promise; zeros are a lock.
    let at_once = |lock| unsafe { section_hooks::lock_at_once(writer.cast(), lock) };
    // SAFETY: a mutex of the caller, which is large enough.
    c_int::from(unsafe { mutex.cast::<SectionLock>().as_ref() }.is_some_and(at_once))
}

/// Only for the hooks that untorn-cc links into programs: untorn_mutex_unlock() in the thread that has this log.
///
/// # Safety
/// The log is that of this thread's hooks; `mutex` is NULL or a mutex that this thread has locked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_live_unlock(writer: *mut c_void, mutex: *mut untorn_mutex) -> c_int {
    #[cold]
    #[inline(never)]
    fn otherwise(mutex: *mut untorn_mutex) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { untorn_mutex_unlock(mutex) }
    }
    // SAFETY: the caller's promise.
    let at_once = |lock| unsafe { section_hooks::unlock_at_once(writer.cast(), lock) };
    // SAFETY: a mutex of the caller's, which is large enough.
    if unsafe { mutex.cast::<SectionLock>().as_ref() }.is_some_and(at_once) {
        return 0;
    }
    otherwise(mutex)
}

/// The version of the layouts of `LogWriter` and `MarkTable`; `live/hooks.c` has the same number.
const HOOKS_VERSION: u32 = 5;
