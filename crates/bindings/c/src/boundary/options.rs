//! Options for opening a store: `untorn_options`, checked and converted to the options of the Rust library.

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::time::Duration;

use untorn::{FailureClass, OnTimeout, Readers, Remote, StoreOptions};

use crate::boundary::arguments;
use crate::boundary::error::{Failure, Result, guard};
use crate::boundary::log;
use crate::boundary::versioned::{self, Versioned};

/// Failure class: commits survive process, kernel and power failures. One flush for each commit. The
/// default.
pub const UNTORN_CLASS_POWER: u32 = 0;
/// Failure class: commits survive a crash of the process, but not of the machine. No flushes. After a
/// machine crash the store cannot be opened (UNTORN_E_UNKNOWN_STATE).
pub const UNTORN_CLASS_PROCESS: u32 = 1;
/// Failure class: commits survive the loss of the machine, too. No class of a store, whose commits are of
/// UNTORN_CLASS_POWER first: untorn_ticket_wait_for(), untorn_gate_output_when() and untorn_store_wait_for() wait until the
/// slot of untorn_options.remote_slot has acknowledged them.
pub const UNTORN_CLASS_REMOTE: u32 = 2;
/// Failure class of the memory of a live heap on byte-addressable memory: it survives process, kernel and power failures,
/// without a commit (untorn_heap_options.live_class). No class of a store.
pub const UNTORN_CLASS_MEMORY: u32 = 3;

/// untorn_options.remote_on_timeout: all that waits for the slot is held, for as long as it takes. The default.
pub const UNTORN_REMOTE_HOLD: u64 = 0;
/// untorn_options.remote_on_timeout: commits that are durable on this machine count as remote until the slot has caught
/// up. The loss of the machine then loses them, although somebody was told of them.
pub const UNTORN_REMOTE_DEGRADE: u64 = 1;

/// Create a missing store, heap or file; without this flag, opening it fails with ENOENT. A flag of untorn_options for
/// untorn_store_open(): the store, and its directory if the parent exists. A flag of untorn_heap_options: the heap. A
/// flag of untorn_open() and untorn_open_at(): the file, empty, at once and durably.
pub const UNTORN_CREATE: u32 = 1;
/// Options flag: wait until another owner has closed the store, instead of failing with EBUSY.
pub const UNTORN_WAIT: u32 = 2;
/// Options flag: log the whole 4 KiB page at its first change after the begin of a checkpoint. For disks
/// that, in a power failure, may damage more than the sectors being written. Costs journal space.
pub const UNTORN_FULL_PAGE: u32 = 4;
/// Options flag: accept the files of a store of UNTORN_CLASS_PROCESS as they are after a machine crash,
/// instead of failing with ENOTRECOVERABLE. The files may be torn.
pub const UNTORN_ACCEPT_UNKNOWN: u32 = 8;
/// Options flag: if this call makes the store, the group of the store directory may read it as well
/// (untorn_reader_open()). The journal holds bytes of all files, also of files that only the owner may read. `untorn
/// readers` changes this setting later.
pub const UNTORN_READERS_GROUP: u32 = 16;
/// Options flag: like UNTORN_READERS_GROUP, and everybody may read the store.
pub const UNTORN_READERS_ALL: u32 = 32;
/// Options flag: refused with EINVAL. untorn_reader_open() opens a store for reading only, beside its owner or
/// without one; its handles are of another kind.
pub const UNTORN_READ_ONLY: u32 = 64;

/// Options flag: a commit that finds no room, or fails for another reason than a flush, keeps its place before all
/// later commits, which fail with it. It is tried again whenever a commit is waited for. So files that are committed
/// together in different groups stay consistent with each other. Without this flag, the changes of such a commit are
/// uncommitted again.
pub const UNTORN_IN_ORDER: u32 = 128;

/// Options flag: commits are written and flushed by calls also where the journal lies in byte-addressable memory.
/// Without it, they are stored there without calls (docs/MEDIA.md).
pub const UNTORN_NO_MEMORY_STORES: u32 = 256;

/// untorn_options.readers_space: keep nothing for readers. A snapshot then lasts until the next checkpoint.
pub const UNTORN_READERS_SPACE_NONE: u64 = u64::MAX;

const ALL_FLAGS: u32 = UNTORN_CREATE
    | UNTORN_WAIT
    | UNTORN_FULL_PAGE
    | UNTORN_ACCEPT_UNKNOWN
    | UNTORN_READERS_GROUP
    | UNTORN_READERS_ALL
    | UNTORN_IN_ORDER
    | UNTORN_NO_MEMORY_STORES;

/// How to open a store. Zero is the default of every member but `size`. So both
/// untorn_options_init(&options, sizeof options) and `untorn_options options = {.size = sizeof options};`
/// set the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct untorn_options {
    /// sizeof(untorn_options) of the header that the program was compiled with.
    pub size: usize,
    /// UNTORN_CLASS_POWER or UNTORN_CLASS_PROCESS.
    pub failure_class: u32,
    /// UNTORN_CREATE, UNTORN_WAIT, UNTORN_FULL_PAGE, UNTORN_ACCEPT_UNKNOWN, UNTORN_READERS_GROUP,
    /// UNTORN_READERS_ALL, UNTORN_IN_ORDER, UNTORN_NO_MEMORY_STORES, or'ed.
    pub flags: u32,
    /// The journal's largest size, in bytes: at this size commits wait for a checkpoint. 0: the default,
    /// 64 MiB. The minimum is 64 KiB; smaller numbers mean 64 KiB.
    pub journal_bytes: u64,
    /// Called from time to time during a long recovery, possibly in another thread. NULL: no calls. The
    /// function must return (no longjmp, no C++ exception) and must not call untorn_ functions.
    pub progress: Option<extern "C" fn(bytes_done: u64, bytes_all: u64, context: *mut c_void)>,
    /// Passed to `progress`.
    pub progress_context: *mut c_void,
    /// Limit, in bytes, for old data that the store keeps for readers of older commits (untorn_snapshot_take()).
    /// Beyond it, or when the disk is full, the oldest reader is given up; nobody ever waits for readers. 0: the default,
    /// 1 GiB, or a tenth of the free space if that is less. UNTORN_READERS_SPACE_NONE: nothing is kept. Other numbers
    /// mean at least twice `journal_bytes`.
    pub readers_space: u64,
    /// How long to wait, in milliseconds, until another owner has closed the store; then EBUSY. 0, the default: not at
    /// all, or for ever with UNTORN_WAIT.
    pub wait_ms: u64,
    /// Name of the slot whose acknowledgements make commits remote (UNTORN_CLASS_REMOTE). NULL, the default: none.
    pub remote_slot: *const c_char,
    /// How long the slot may take, in milliseconds, before remote_on_timeout. 0: the default, 5 seconds.
    pub remote_timeout_ms: u64,
    /// UNTORN_REMOTE_HOLD or UNTORN_REMOTE_DEGRADE.
    pub remote_on_timeout: u64,
}

const _: () = assert!(size_of::<untorn_options>() == 80, "members may be added at the end, never removed");

// SAFETY: numbers, a pointer, and a callback that NULL is valid for.
unsafe impl Versioned for untorn_options {
    const NAME: &'static str = "untorn_options";
    const SIZE_MIN: usize = 40;
}

/// Sets all members to their defaults. `size` is sizeof(untorn_options). Returns 0, or -1 with EFAULT or
/// EINVAL.
///
/// # Safety
/// `options` is NULL or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_options_init(options: *mut untorn_options, size: usize) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        unsafe { versioned::init(options, size)? };
        Ok(0)
    })
}

/// Reads a caller's options, of any version; NULL means defaults.
///
/// # Safety
/// `options` is NULL or points to as many bytes as its first member, `size`, says.
pub(crate) unsafe fn read(options: *const untorn_options) -> Result<StoreOptions> {
    log::start();
    // SAFETY: the caller's promise.
    let Some(options) = (unsafe { versioned::read(options)? }) else { return Ok(StoreOptions::default()) };
    if options.remote_slot.is_null() {
        return convert(options);
    }
    // SAFETY: a text that ends with NUL, by the caller's promise.
    let slot = unsafe { arguments::path(options.remote_slot, "remote_slot")? };
    let slot = slot.to_str().ok_or_else(|| Failure::invalid("remote_slot is not UTF-8"))?;
    let on_timeout = match options.remote_on_timeout {
        UNTORN_REMOTE_HOLD => OnTimeout::Hold,
        UNTORN_REMOTE_DEGRADE => OnTimeout::Degrade,
        other => return Err(Failure::invalid(format!("there is no remote_on_timeout {other}"))),
    };
    let timeout = match options.remote_timeout_ms {
        0 => Remote::default().timeout,
        ms => Duration::from_millis(ms),
    };
    Ok(convert(options)?.remote(slot, Remote { timeout, on_timeout }))
}

/// The failure class of a number.
pub(crate) fn class(number: u32) -> Result<FailureClass> {
    match number {
        UNTORN_CLASS_POWER => Ok(FailureClass::Power),
        UNTORN_CLASS_PROCESS => Ok(FailureClass::Process),
        UNTORN_CLASS_REMOTE => Ok(FailureClass::Remote),
        UNTORN_CLASS_MEMORY => Ok(FailureClass::Memory),
        other => Err(Failure::invalid(format!("there is no failure class {other}"))),
    }
}

fn convert(options: untorn_options) -> Result<StoreOptions> {
    let class = class(options.failure_class)?;
    let flags = options.flags;
    if flags & UNTORN_READ_ONLY != 0 {
        let why = "UNTORN_READ_ONLY: a process that opens a store this way owns it, and writes to it; \
                   untorn_reader_open() opens a store only to read it, also while another process owns it";
        return Err(Failure::invalid(why.to_owned()));
    }
    if flags & !ALL_FLAGS != 0 {
        return Err(Failure::invalid(format!("unknown bits in the options' flags {flags:#x}")));
    }
    let mut result = StoreOptions::default()
        .class(class)
        .create(flags & UNTORN_CREATE != 0)
        .wait(flags & UNTORN_WAIT != 0)
        .wait_for(Duration::from_millis(options.wait_ms))
        .full_page(flags & UNTORN_FULL_PAGE != 0)
        .accept_unknown(flags & UNTORN_ACCEPT_UNKNOWN != 0)
        .in_order(flags & UNTORN_IN_ORDER != 0)
        .memory(flags & UNTORN_NO_MEMORY_STORES == 0);
    match (flags & UNTORN_READERS_ALL != 0, flags & UNTORN_READERS_GROUP != 0) {
        (true, _) => result = result.readers(Readers::All),
        (false, true) => result = result.readers(Readers::Group),
        (false, false) => {}
    }
    if options.journal_bytes != 0 {
        result = result.journal_bytes(options.journal_bytes);
    }
    match options.readers_space {
        0 => {}
        UNTORN_READERS_SPACE_NONE => result = result.readers_space(0),
        bytes => result = result.readers_space(bytes),
    }
    if let Some(progress) = options.progress {
        let context = Context(options.progress_context);
        result = result.progress(move |done, all| progress(done, all, context.get()));
    }
    Ok(result)
}

/// The caller's pointer, which is only passed back to the caller.
struct Context(*mut c_void);

// SAFETY: the pointer is never followed here, and the header tells the caller that the callback may
// run in another thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn get(&self) -> *mut c_void {
        self.0
    }
}
