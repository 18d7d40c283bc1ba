//! Lines of a file on simulated byte-addressable memory.

use super::machine::{Life, Machine, Shared};
use crate::simulation::state::disk_options::{Call, What};
use crate::simulation::state::disk_state::errno;
use crate::simulation::state::inodes::Slot;
use std::io;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{LINE_BYTES, Lines, SyncPoint};

/// The first bytes of a file, for stores.
pub(super) struct SimLines {
    shared: Arc<Shared>,
    life: Arc<Life>,
    path: Box<Path>,
    slot: Slot,
    /// Keeps the inode, as a mapping does.
    handle: u64,
    len: u64,
}

impl SimLines {
    pub(super) fn open(
        shared: &Arc<Shared>,
        life: &Arc<Life>,
        path: &Path,
        slot: Slot,
        len: u64,
    ) -> io::Result<Box<dyn Lines>> {
        let describe = || format!("{} lines of {len} bytes", path.display());
        let handle = shared.call(life, Call::Map, describe, |machine, _| {
            if len == 0 || !len.is_multiple_of(LINE_BYTES as u64) || len > machine.state.meta(slot)?.size {
                return Err(errno(libc::EINVAL));
            }
            Ok(machine.opened(slot, life))
        })?;
        let (shared, life, path) = (shared.clone(), life.clone(), path.into());
        Ok(Box::new(SimLines { shared, life, path, slot, handle, len }))
    }

    fn call(
        &self,
        call: Call,
        describe: impl FnOnce() -> String,
        act: impl FnOnce(&mut Machine, Option<What>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.shared.call(&self.life, call, || format!("{} {}", self.path.display(), describe()), act)
    }
}

impl Lines for SimLines {
    fn store(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let describe = || format!("store {at}+{}", bytes.len());
        self.call(Call::Write, describe, |machine, _| {
            let end = at.saturating_add(bytes.len() as u64);
            if !(at | bytes.len() as u64).is_multiple_of(LINE_BYTES as u64) || end > self.len {
                return Err(errno(libc::EINVAL));
            }
            assert!(
                end <= machine.state.meta(self.slot)?.size,
                "SIGBUS: a store up to {end}, behind the end of the file"
            );
            machine.state.store(self.slot, bytes, at)
        })
    }

    fn copy(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let describe = || format!("copy {at}+{}", bytes.len());
        self.call(Call::Write, describe, |machine, _| {
            let end = at.saturating_add(bytes.len() as u64);
            if end > self.len {
                return Err(errno(libc::EINVAL));
            }
            assert!(
                end <= machine.state.meta(self.slot)?.size,
                "SIGBUS: a store up to {end}, behind the end of the file"
            );
            machine.state.write(self.slot, bytes, at, false).map(drop)
        })
    }

    fn fence(&self, point: SyncPoint) -> io::Result<()> {
        let describe = || format!("fence ({point:?})");
        self.call(Call::Sync(point), describe, |machine, fault| {
            if machine.state.options.skips(point) {
                return Ok(());
            }
            // A fence cannot fail. A failed one stands for memory that has failed.
            if let Some(What::Writeback(_)) = fault {
                return Err(errno(libc::EIO));
            }
            machine.state.fence(self.slot, std::thread::current().id());
            Ok(())
        })
    }
}

impl Drop for SimLines {
    fn drop(&mut self) {
        self.shared.machine().close(self.handle);
    }
}
