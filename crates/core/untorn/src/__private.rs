//! For the other crates of this project: the C library, mounts, the derive macro, tests. **Not a part of the API**: it may
//! change in any version.

#[cfg(feature = "offline")]
pub use crate::admin::inspection::{has_owner, is_store_plain};
#[cfg(feature = "offline")]
pub use crate::admin::unneeded::{remove_unneeded, remove_unneeded_on, unlink};
pub use crate::engine::checkpoint::Checkpoint;
pub use crate::engine::files::file_state::DISCARDED;
pub use crate::engine::handles::output_gate::Sink;
#[cfg(feature = "map")]
pub use crate::engine::handles::relocate;
#[cfg(feature = "heap")]
pub use crate::heap::alloc::in_memory::fuzz_heap;
#[cfg(feature = "heap")]
pub use crate::heap::collections::storable::{RawPointer, is_pointer, is_storable};
#[cfg(feature = "heap")]
pub use crate::heap::live::outlook::{LiveImage, live_outlook};
#[cfg(feature = "heap")]
pub use crate::heap::sections::section_hooks;
#[cfg(feature = "readers")]
pub use crate::reader::locate_store::is_store_there;
pub use untorn_journal::directories::store_dir::is_own_name;

use crate::FailureClass;
use crate::engine::commit::ticket::Ticket;
use crate::engine::handles::file::File;
use crate::engine::handles::output_gate::{Gate, Output};
use crate::engine::handles::store::Store;
use crate::engine::handles::txn::Txn;
use crate::engine::options::{FileOptions, StoreOptions};
#[cfg(feature = "readers")]
use crate::reader::{Reader, Slot};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::Result;
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::Storage;

/// The invariants of all crates below, and of this one.
pub mod invariant {
    pub use crate::invariant::*;
}

/// The sync points of all crates below, and of this one.
pub mod sync_point {
    pub use crate::sync_point::*;
}

/// Stores on any storage, with exact sizes.
pub trait OpenStoreOn: Sized {
    /// Opens a store on any storage.
    fn open_on(&self, storage: Arc<dyn Storage>, store_dir: StoreDir, path: PathBuf) -> Result<Store>;
    /// Sets exact sizes, below the limits of [`StoreOptions::journal_bytes`], without a spare journal and without readers.
    fn sizes(self, journal_bytes: u64, segment_bytes_first: u64, inline_bytes_max: u64) -> Self;
    /// Keeps a page for readers, although sizes are set.
    fn page(self, on: bool) -> Self;
    /// Reserves space for another journal, although sizes are set.
    fn spare(self, on: bool) -> Self;
    /// Recovers by the index of each segment of more than this many bytes, although sizes are set.
    fn index_bytes_least(self, bytes: u64) -> Self;
    /// Spills ranges of at least this many bytes where the file system shares blocks, although sizes are set.
    fn shared_bytes_least(self, bytes: u64) -> Self;
    /// Sets the most threads of a checkpoint. One alone writes one file after the other.
    fn checkpoint_threads(self, most: usize) -> Self;
}

impl OpenStoreOn for StoreOptions {
    fn open_on(&self, storage: Arc<dyn Storage>, store_dir: StoreDir, path: PathBuf) -> Result<Store> {
        StoreOptions::open_on(self, storage, store_dir, path)
    }

    fn sizes(self, journal_bytes: u64, segment_bytes_first: u64, inline_bytes_max: u64) -> Self {
        StoreOptions::sizes(self, journal_bytes, segment_bytes_first, inline_bytes_max)
    }

    fn page(self, on: bool) -> Self {
        StoreOptions::page(self, on)
    }

    fn spare(self, on: bool) -> Self {
        StoreOptions::spare(self, on)
    }

    fn shared_bytes_least(self, bytes: u64) -> Self {
        StoreOptions::shared_bytes_least(self, bytes)
    }

    fn index_bytes_least(self, bytes: u64) -> Self {
        StoreOptions::index_bytes_least(self, bytes)
    }

    fn checkpoint_threads(self, most: usize) -> Self {
        StoreOptions { checkpoint_threads: most, ..self }
    }
}

/// Opens a standalone file on any storage.
pub fn open_file_on(options: &FileOptions, storage: Arc<dyn Storage>, name: &Path, path: PathBuf) -> Result<File> {
    options.open_on(storage, name, path)
}

/// Opens a store for reading on any storage.
#[cfg(feature = "readers")]
pub fn open_reader_on(storage: Arc<dyn Storage>, store_dir: StoreDir, path: PathBuf) -> Result<Reader> {
    Reader::open_on(storage, store_dir, path)
}

/// Opens or makes a slot on any storage.
#[cfg(feature = "readers")]
pub fn open_slot_on(
    storage: Arc<dyn Storage>,
    store_dir: StoreDir,
    path: PathBuf,
    name: &str,
    cap: Option<u64>,
) -> Result<Slot> {
    Slot::open_or_create_on(storage, store_dir, path, name, cap)
}

/// Writes like [`File::write_all_at`], for programs that write whole pages: lines of 64 bytes that stay the same are not
/// logged again, where that is known without a read of the data file.
pub fn write_over(file: &File, bytes: &[u8], offset: u64) -> Result<()> {
    file.changing()?.write_over_at(&**file.store, bytes, offset)
}

/// Steps of an open store, one by one.
pub trait StoreSteps {
    /// Queues one commit of many files, and wakes no thread: it is written when a thread waits for its ticket, or for a
    /// later one.
    fn submit_unwritten(&self, files: &[&File]) -> Result<Ticket>;
    /// Runs only the first step of a checkpoint: it covers the next portion of the commits that the opening left
    /// unapplied, or everything committed so far.
    fn begin_checkpoint(&self) -> Result<Option<Checkpoint<'_>>>;
    /// Writes a durable mark, like the background thread after a while without commits.
    fn write_durable_mark(&self) -> Result<bool>;
    /// Number of files visited by walks through the whole table: no commit, name change or checkpoint may cause a walk.
    fn files_walked(&self) -> u64;
}

impl StoreSteps for Store {
    fn submit_unwritten(&self, files: &[&File]) -> Result<Ticket> {
        Store::submit_unwritten(self, files)
    }

    fn begin_checkpoint(&self) -> Result<Option<Checkpoint<'_>>> {
        Store::begin_checkpoint(self)
    }

    fn write_durable_mark(&self) -> Result<bool> {
        Store::write_durable_mark(self)
    }

    fn files_walked(&self) -> u64 {
        Store::files_walked(self)
    }
}

/// Queues the commit of a transaction, like [`StoreSteps::submit_unwritten`].
pub fn submit_unwritten(txn: Txn) -> Result<Ticket> {
    txn.submit_unwritten()
}

/// Ends an open store that is about to be removed: nothing is written to it any more, and closing it does nothing. It
/// stays locked until its last handle is dropped.
pub fn abandon(store: &Store) {
    store.open.forget();
}

/// Steps of a gate, one by one.
pub trait GateSteps: Sized {
    /// A gate without a thread: all work happens in calls of [`GateSteps::release`], and in writes that find no room.
    fn without_thread(bytes_max: usize) -> Result<Self>;
    /// Puts any sink behind the gate.
    fn output_to(&self, sink: Box<dyn Sink>) -> Output;
    /// Puts any sink behind the gate, as [`Gate::output_when`] does.
    fn output_to_when(&self, sink: Box<dyn Sink>, class: FailureClass) -> Output;
    /// Waits for the oldest commit, and sends all bytes that are durable then.
    fn release(&self);
}

impl GateSteps for Gate {
    fn without_thread(bytes_max: usize) -> Result<Gate> {
        Gate::without_thread(bytes_max)
    }

    fn output_to(&self, sink: Box<dyn Sink>) -> Output {
        Gate::output_to(self, sink, None)
    }

    fn output_to_when(&self, sink: Box<dyn Sink>, class: FailureClass) -> Output {
        Gate::output_to(self, sink, Some(class))
    }

    fn release(&self) {
        Gate::release(self);
    }
}
