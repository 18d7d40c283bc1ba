//! **Untorn**: all-or-nothing updates of application data in files, on unmodified Linux.
//!
//! A [`Store`] is a directory whose files change all or nothing; a standalone [`File`] has its own store beside it.
//! Change files freely, then commit. After a crash of the program, the kernel or the power, a file, or a set of files,
//! holds exactly the contents of its last successful commit.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path();
//! use untorn::Store;
//!
//! let store = Store::open_or_create(path)?;
//! let (accounts, log) = (store.open_or_create_file("accounts")?, store.open_or_create_file("log")?);
//! accounts.write_at(b"alice 90, bob 110", 0)?;
//! log.append(b"alice pays bob 10\n")?;
//! store.syncv(&[&accounts, &log])?; // both, or neither
//! store.close()?;
//! # Ok::<(), untorn::Error>(())
//! ```
//!
//! `docs/GUARANTEES.md` lists the crashes that each state survives. The ideas are those of failure-atomic `msync`
//! (Park, Kelly, Shen 2013), AdvFS's `O_ATOMIC` and `syncv` (Verma et al. 2015) and FCFS.

#[doc(hidden)]
pub mod __private;
mod admin;
mod engine;
pub mod heap;
mod invariant;
pub mod on_mount;
pub mod reader;
mod sync_point;

pub use admin::begin_at::begin_at;
pub use admin::offline;
pub use engine::commit::ticket::{Durable, Ticket};
pub use engine::handles::cursor::Cursor;
pub use engine::handles::file::File;
pub use engine::handles::map::Map;
pub use engine::handles::map_options::MapOptions;
pub use engine::handles::output_gate::{GATE_BYTES_DEFAULT, Gate, Output};
pub use engine::handles::store::Store;
pub use engine::handles::txn::Txn;
pub use engine::lifecycle::status::{MapStatus, Quarantined, Recovered, RemoteStatus, Status};
pub use engine::options::{
    FailureClass, FileOptions, JOURNAL_BYTES_DEFAULT, JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN, OnTimeout, Readers, Remote,
    StoreOptions,
};
pub use reader::read_map::ReadMap;
pub use reader::{EpochStart, Point, Reader, Slot};
pub use untorn_journal::{Error, Outcome, Result};
pub use untorn_os::TrackerKind;

/// Handles can be moved between threads and shared by them.
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
