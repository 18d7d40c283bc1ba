//! Exported functions: sections of live heaps, and the locks that make them.

use std::ffi::{c_int, c_void};

use untorn::heap::{SectionLock, section_hooks};

use crate::boundary::error::untorn_error::UNTORN_E_UNSUPPORTED;
use crate::boundary::error::{Failure, Result, guard, guard_status};
use crate::boundary::handle;
use crate::heaps::heap::{is_logged_by_hand, untorn_heap, weak, with_heap};
use crate::stores::ticket::untorn_ticket;

/// A mutex whose critical sections are all or nothing: of what a thread stores to a live heap, from the first of these
/// mutexes that it locks until it has unlocked all of them, a process that is killed leaves everything or nothing. All
/// zeros is a mutex that nobody has; no call ends one. It may lie anywhere, in the heap, too: a process that was killed
/// holds it no more. It is not recursive. See docs/LIVE_HEAPS.md.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct untorn_mutex {
    /// The library's own.
    pub state: [u64; 8],
}

const _: () = assert!(size_of::<SectionLock>() <= size_of::<untorn_mutex>());
const _: () = assert!(align_of::<SectionLock>() <= align_of::<untorn_mutex>());

/// Sections of a program without hooks would undo nothing.
#[inline]
fn check_hooks() -> Result<()> {
    if section_hooks::has_hooks() || is_logged_by_hand() {
        return Ok(());
    }
    Err(Failure {
        kind: UNTORN_E_UNSUPPORTED,
        errno: libc::EOPNOTSUPP,
        message: "this program was not built for sections: nothing would tell of its stores, and nothing could be undone. \
                  Compile and link it with untorn-cc or untorn-c++; or open the heap with UNTORN_HEAP_LOG_BY_HAND and call \
                  untorn_section_log() before each store"
            .into(),
    })
}

#[inline]
fn lock_of<'m>(mutex: *mut untorn_mutex) -> Result<&'m SectionLock> {
    // SAFETY: a mutex of the caller's, which is large enough; zeros are a lock.
    unsafe { mutex.cast::<SectionLock>().as_ref() }.ok_or_else(|| Failure::null("the mutex"))
}

/// Makes a mutex that nobody has, for a heap. Needed only if several live heaps are open: without this call a mutex of
/// zeros is for the heap that it lies in, or for the only live heap. Returns 0, or -1: EINVAL (the heap is not live), EBADF.
///
/// # Safety
/// `mutex` is NULL or a mutex that nobody has.
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

/// Locks a mutex: a section begins, or goes on. Returns 0, or -1: EOPNOTSUPP (the program was not built with untorn-cc or
/// untorn-c++), EINVAL (no live heap is open, or several are and the mutex is of none; this thread is in a section of
/// another heap), EFAULT, ECHILD. Nothing was locked then.
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

/// Locks a mutex if nobody has it. Returns 1; 0: somebody has it; -1 as untorn_mutex_lock().
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

/// Unlocks a mutex. If it was the thread's last one, its section has happened. Otherwise the section goes on, and if the
/// process is killed before its end, the sections of those who locked this mutex meanwhile are undone with it. Returns 0, or
/// -1: EINVAL (nobody has it), EFAULT.
///
/// # Safety
/// `mutex` is NULL or a mutex that this thread has locked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_mutex_unlock(mutex: *mut untorn_mutex) -> c_int {
    guard_status(|| Ok(lock_of(mutex)?.unlock()?))
}

/// Locks a mutex together with others who only read what it guards. Returns 0, or -1 as untorn_mutex_lock().
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

/// Locks a mutex together with others who only read, if nobody has it who does not. Returns 1; 0: somebody has; -1 as
/// untorn_mutex_lock().
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

/// Unlocks a mutex after untorn_mutex_lock_shared(). Returns 0, or -1 as untorn_mutex_unlock().
///
/// # Safety
/// `mutex` is NULL or a mutex that this thread has locked so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_mutex_unlock_shared(mutex: *mut untorn_mutex) -> c_int {
    guard_status(|| Ok(lock_of(mutex)?.unlock_shared()?))
}

/// Begins a section without a mutex, up to untorn_section_end() in the same thread; within a section it is a part of that
/// one. Returns 0, or -1 as untorn_mutex_lock(); EBADF.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_section_begin(heap: *mut untorn_heap) -> c_int {
    guard_status(|| {
        check_hooks()?;
        Ok(section_hooks::begin(weak(heap)?)?)
    })
}

/// Ends what untorn_section_begin() began. Returns 0, or -1: EINVAL (this thread is in no section of the heap), EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_section_end(heap: *mut untorn_heap) -> c_int {
    guard_status(|| Ok(section_hooks::end(weak(heap)?)?))
}

/// Takes back everything that this thread's section has stored to the heap so far, allocated and freed. The section goes on,
/// and its mutexes stay locked. Returns 0, or -1: EINVAL (this thread is in no section; the section has unlocked a mutex
/// already, so that others may have seen what it did; it has changed more than its log holds: nothing was taken back), EBADF.
///
/// # Safety
/// What the section has allocated is not used any more.
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
        // SAFETY: the caller's promise; whoever is about to store there has them.
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
            // SAFETY: the promise of whoever passed it.
            unsafe { function(argument) }
        }
    }
}

/// Calls a function once what this thread has done in sections of a live heap can not be undone any more. That is when the
/// section that it is in ends, or later, if the section has seen what others did that have not ended: until then the end of
/// the process may undo it. Output that tells of a section waits for this. Called at once if nothing is left to
/// wait for; otherwise by whichever thread finds that out. A process that ends while any thread is between
/// untorn_heap_begin() and untorn_heap_end(), or in a section that has changed more than its log holds, goes back to the last
/// cut all the same; for that, and for power cuts, see untorn_heap_cut(). Returns 0, or -1: EINVAL
/// (the heap is not live), EFAULT, EBADF.
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

/// Begins a cut of a live heap: what it goes back to after a power cut. Waits until no thread is in a section, or between
/// untorn_heap_begin() and untorn_heap_end(). The ticket tells when the cut is durable, in the store's failure class. The same
/// as untorn_heap_commit_async(). NULL with an error as untorn_heap_commit().
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_heap_cut(heap: *mut untorn_heap) -> *mut untorn_ticket {
    guard(std::ptr::null_mut(), || {
        with_heap(heap, |heap| match heap.live() {
            Some(_) => handle::insert(heap.commit_async()?),
            None => Err(Failure::invalid("cuts are of live heaps: open the heap with UNTORN_HEAP_LIVE")),
        })
    })
}

/// For the hooks that untorn-cc links into programs, and nobody else: they write to the log that `writer` returns, of the
/// calling thread, and into the table `told` of what they tell of mappings with UNTORN_TRACKER_TOLD. `version` is that of
/// both layouts. Returns 0, or -1 with EINVAL: libuntorn has another one.
///
/// # Safety
/// What `writer` returns is the memory of a log, and lives as long as its thread; `told` is a table of zeros, and lives as long
/// as the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_live_hooks(
    version: u32,
    writer: Option<extern "C" fn() -> *mut c_void>,
    told: *mut c_void,
) -> c_int {
    guard_status(|| {
        // SAFETY: the caller's promise.
        let told = unsafe { told.cast::<section_hooks::ToldTable>().as_ref() };
        let (HOOKS_VERSION, Some(writer), Some(told)) = (version, writer, told) else {
            return Err(Failure::invalid(format!(
                "the program has hooks of version {version}, and libuntorn those of version {HOOKS_VERSION}: link it anew"
            )));
        };
        // SAFETY: the same function, which returns what the caller says.
        let writer = unsafe {
            std::mem::transmute::<extern "C" fn() -> *mut c_void, extern "C" fn() -> *mut section_hooks::LogWriter>(
                writer,
            )
        };
        section_hooks::set_hooks(writer);
        section_hooks::set_told_table(told);
        Ok(())
    })
}

/// For the hooks that untorn-cc links into programs, and nobody else: untorn_mutex_lock() in a thread with this log, which need
/// not be found then.
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
    // SAFETY: a mutex of the caller's, which is large enough.
    if unsafe { mutex.cast::<SectionLock>().as_ref() }.is_some_and(at_once) {
        return 0;
    }
    otherwise(mutex)
}

/// For the hooks that untorn-cc links into programs, and nobody else: untorn_mutex_lock() in a thread with this log, if a section
/// begins with it that need not wait for anything. Returns 1; 0: nothing was done.
///
/// # Safety
/// The log is that of this thread's hooks; `mutex` is NULL or a mutex that nobody has.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_live_lock_at_once(writer: *mut c_void, mutex: *mut untorn_mutex) -> c_int {
    // SAFETY: the caller's promise; zeros are a lock.
    let at_once = |lock| unsafe { section_hooks::lock_at_once(writer.cast(), lock) };
    // SAFETY: a mutex of the caller's, which is large enough.
    c_int::from(unsafe { mutex.cast::<SectionLock>().as_ref() }.is_some_and(at_once))
}

/// For the hooks that untorn-cc links into programs, and nobody else: untorn_mutex_unlock() in a thread with this log.
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

/// Of the layouts of `LogWriter` and `ToldTable`, as `live/hooks.c` has it.
const HOOKS_VERSION: u32 = 4;
