//! **Untorn**: all-or-nothing updates of application data in files, on unmodified Linux.
//!
//! A [`Store`] is a directory whose files change all or nothing; a standalone [`File`] has a store of its
//! own beside it. Change files freely, then commit. After a crash of the program, the kernel or the
//! power, a file, or a set of files, holds exactly what it held at its last successful commit.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path();
//! use untorn::Store;
//!
//! let store = Store::open(path)?;
//! let (accounts, log) = (store.open_or_create("accounts")?, store.open_or_create("log")?);
//! accounts.write_at(b"alice 90, bob 110", 0)?;
//! log.append(b"alice pays bob 10\n")?;
//! store.syncv(&[&accounts, &log])?; // both, or neither
//! store.close()?;
//! # Ok::<(), untorn::Error>(())
//! ```
//!
//! What survives which crash is in `docs/GUARANTEES.md`. The ideas are those of failure-atomic
//! `msync` (Park, Kelly, Shen 2013), AdvFS's `O_ATOMIC` and `syncv` (Verma et al. 2015) and FCFS.

mod adopt;
mod at_rest;
mod background;
mod carried;
mod checkpoint;
mod commit;
mod committed;
mod committed_names;
mod completion;
mod concurrency;
mod content;
mod contents_first;
mod cursor;
mod engine;
mod error_paths;
mod file;
mod file_state;
mod file_table;
mod followed;
mod forget;
pub mod heap;
mod inspection;
#[doc(hidden)]
pub mod invariant;
mod left_marks;
mod lost;
mod map;
mod name_op;
mod names;
pub mod offline;
pub mod on_mount;
mod open_files;
mod open_store;
mod options;
mod output_gate;
mod pace;
mod path_text;
mod put;
mod queue;
mod read_map;
pub mod reader;
mod region;
#[doc(hidden)]
pub mod relocate;
mod restate;
mod status;
mod store;
#[doc(hidden)]
pub mod sync_point;
mod ticket;
mod told_readers;
mod turn;
mod txn;
mod wakeup;

#[doc(hidden)]
pub use checkpoint::Checkpoint;
pub use cursor::Cursor;
pub use file::File;
pub use map::{Map, MapOptions};
pub use options::{
    FailureClass, FileOptions, JOURNAL_BYTES_DEFAULT, JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN, Readers, StoreOptions,
};
#[doc(hidden)]
pub use output_gate::Sink;
pub use output_gate::{GATE_BYTES_DEFAULT, Gate, Output};
pub use read_map::ReadMap;
pub use reader::Reader;
pub use status::{MapStatus, Quarantined, Recovered, Status};
pub use store::Store;
pub use ticket::Ticket;
pub use txn::Txn;
pub use untorn_journal::{Error, Outcome, Result};
pub use untorn_os::Tracker;

/// Handles go from thread to thread, and threads share them.
const _: () = {
    const fn shared_among_threads<T: Send + Sync>() {}
    shared_among_threads::<Store>();
    shared_among_threads::<File>();
    shared_among_threads::<Cursor<'_>>();
    shared_among_threads::<Map>();
    shared_among_threads::<Txn>();
    shared_among_threads::<Ticket>();
    shared_among_threads::<heap::Heap>();
    shared_among_threads::<Reader>();
    shared_among_threads::<reader::Snapshot>();
    shared_among_threads::<Error>();
};
