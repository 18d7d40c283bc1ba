//! The log writer of the calling thread: the program's own if it has hooks, or one that is made here.

use crate::heap::log::section_log::LogWriter;
use std::cell::Cell;
use std::ptr::null_mut;

/// Finds the log writer of the calling thread, if the program has hooks: then it is in the program's own memory.
static WRITER_OF_HOOKS: std::sync::OnceLock<extern "C" fn() -> *mut LogWriter> = std::sync::OnceLock::new();

/// Registers the program's hooks: they write to the log writer that this call returns for the calling thread.
pub fn set_hooks(writer: extern "C" fn() -> *mut LogWriter) {
    let _ = WRITER_OF_HOOKS.set(writer);
}

/// Whether the program has hooks.
pub fn has_hooks() -> bool {
    WRITER_OF_HOOKS.get().is_some()
}

thread_local! {
    /// The log writer of this thread. It has the state of the heap of its section, or of its last one. It has no
    /// destructor, so that it works while the thread ends.
    pub(super) static WRITER: Cell<*mut LogWriter> = const { Cell::new(null_mut()) };
}

/// The log writer of this thread.
#[inline]
pub(crate) fn writer() -> *mut LogWriter {
    #[cold]
    fn find() -> *mut LogWriter {
        let found = match WRITER_OF_HOOKS.get() {
            Some(writer) => writer(),
            // Leaked on purpose, since a thread may store while it ends.
            None => Box::into_raw(Box::new(LogWriter::new())),
        };
        WRITER.set(found);
        found
    }
    let known = WRITER.get();
    if known.is_null() { find() } else { known }
}
