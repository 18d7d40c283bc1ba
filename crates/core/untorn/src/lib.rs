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
//! # Features
//!
//! All are on by default. Without them, a program has files, commits of several files, transactions, gates and recovery,
//! and is smaller (`docs/PLATFORMS.md` has sizes). The format is one: a store of any build opens in any other.
//!
//! | feature | brings |
//! |---|---|
//! | `map` | [`Map`]: files mapped in memory |
//! | `readers` | [`Reader`], [`reader`]: reading in other processes, and the data that an open store keeps for them. While a program without it has a store open, no other process can read the store; readers of an earlier opening get [`Error::SnapshotEnded`] |
//! | `heap` | [`heap`]: persistent data structures; needs `map` and `readers` |
//! | `offline` | [`offline`], [`begin_at`]: work on closed stores, [`offline::put`]; needs `heap` |
//! | `fast-crc` | checksums by the processor's instructions, with 700 KB of tables of the crate `crc-fast`; without it by one table of 32 KB |
//!
//! `docs/GUARANTEES.md` lists the crashes that each state survives. The ideas are those of failure-atomic `msync`
//! (Park, Kelly, Shen 2013), AdvFS's `O_ATOMIC` and `syncv` (Verma et al. 2015) and FCFS.

// The left out parts are the only users of some items below them.
#![cfg_attr(
    not(all(feature = "map", feature = "readers", feature = "heap", feature = "offline")),
    allow(dead_code, unused_imports)
)]

#[doc(hidden)]
pub mod __private;
#[cfg(feature = "offline")]
mod admin;
mod engine;
#[cfg(feature = "heap")]
pub mod heap;
mod invariant;
pub mod on_mount;
#[cfg(feature = "readers")]
pub mod reader;
mod sync_point;

#[cfg(feature = "offline")]
pub use admin::begin_at::begin_at;
#[cfg(feature = "offline")]
pub use admin::offline;
pub use engine::commit::ticket::{Durable, Ticket};
pub use engine::handles::cursor::Cursor;
pub use engine::handles::file::File;
#[cfg(feature = "map")]
pub use engine::handles::map::Map;
#[cfg(feature = "map")]
pub use engine::handles::map_options::MapOptions;
pub use engine::handles::output_gate::{GATE_BYTES_DEFAULT, Gate, Output};
pub use engine::handles::store::Store;
pub use engine::handles::txn::Txn;
pub use engine::lifecycle::status::{MapStatus, Quarantined, Recovered, RemoteStatus, Status};
pub use engine::options::{
    FailureClass, FileOptions, JOURNAL_BYTES_DEFAULT, JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN, OnTimeout, Readers, Remote,
    StoreOptions,
};
#[cfg(feature = "readers")]
pub use reader::read_map::ReadMap;
#[cfg(feature = "readers")]
pub use reader::{EpochStart, Point, Reader, Slot};
pub use untorn_journal::{Error, Outcome, Result};
pub use untorn_os::TrackerKind;

/// Handles can be moved between threads and shared by them.
const _: () = {
    const fn shared_among_threads<T: Send + Sync>() {}
    shared_among_threads::<Store>();
    shared_among_threads::<File>();
    shared_among_threads::<Cursor<'_>>();
    #[cfg(feature = "map")]
    shared_among_threads::<Map>();
    shared_among_threads::<Txn>();
    shared_among_threads::<Ticket>();
    #[cfg(feature = "heap")]
    shared_among_threads::<heap::Heap>();
    #[cfg(feature = "readers")]
    shared_among_threads::<Reader>();
    #[cfg(feature = "readers")]
    shared_among_threads::<reader::Snapshot>();
    shared_among_threads::<Error>();
};
