//! An open file of a process on the simulated machine.

use super::machine::{Life, Lock, Machine, Shared};
use super::simulated_lines::SimLines;
use super::simulated_mapping::SimMapping;
use crate::simulation::state::disk_options::{Call, Profile, What};
use crate::simulation::state::disk_state::{SIZE_MAX, State, errno};
use crate::simulation::state::inodes::{Inode, Slot};
use crate::simulation::state::refusal::Act;
use std::any::Any;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use untorn_os::{BLOCK_BYTES, File, Lines, MapRequest, Mapping, Meta, SyncPoint, View};

/// A longer attribute is not Untorn's: its value is not read.
const ATTRIBUTE_BYTES_READ_MAX: usize = 256;

/// An open file of a process.
pub(super) struct SimFile {
    pub shared: Arc<Shared>,
    pub life: Arc<Life>,
    pub path: Box<Path>,
    pub slot: Slot,
    /// The directory in which a file without a name can get one.
    pub directory: Option<Slot>,
    pub handle: u64,
    pub write: bool,
    pub direct: bool,
    /// The number of failed writebacks that this descriptor has reported, or that are older than it.
    pub failures_seen: AtomicU64,
}

/// Returns the error of a failed writeback once.
pub(super) fn told(seen: &AtomicU64, failures: u64) -> io::Result<()> {
    if seen.swap(failures, SeqCst) == failures { Ok(()) } else { Err(errno(libc::EIO)) }
}

/// Limits a length to that of a planned short read or write.
fn shortened(len: usize, fault: Option<What>) -> usize {
    match fault {
        Some(What::Short(most)) => len.min(most),
        _ => len,
    }
}

impl SimFile {
    fn call<T>(
        &self,
        call: Call,
        describe: impl FnOnce() -> String,
        act: impl FnOnce(&mut Machine, Option<What>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.shared.call(&self.life, call, || format!("{} {}", self.path.display(), describe()), act)
    }

    /// Runs a call on a file that must be open for writing.
    fn change<T>(
        &self,
        call: Call,
        describe: impl FnOnce() -> String,
        act: impl FnOnce(&mut Machine) -> io::Result<T>,
    ) -> io::Result<T> {
        self.call(call, describe, |machine, _| {
            if !self.write {
                return Err(errno(libc::EBADF));
            }
            act(machine)
        })
    }

    fn sync(&self, all: bool, step: SyncPoint) -> io::Result<()> {
        let describe = || format!("{} ({step:?})", if all { "sync_all" } else { "sync_data" });
        self.call(Call::Sync(step), describe, |machine, fault| {
            if machine.state.options.skips(step) {
                return Ok(());
            }
            if let Some(What::Writeback(how)) = fault {
                machine.fail_writeback(Some(self.slot), how);
            } else {
                machine.state.sync_file(self.slot, all);
            }
            told(&self.failures_seen, machine.failures.get(&self.slot).copied().unwrap_or(0))
        })
    }

    /// The inode, if it has contents.
    fn readable<'m>(&self, machine: &'m Machine, offset: u64) -> io::Result<&'m Inode> {
        State::offset(offset)?;
        let inode = machine.state.inode(self.slot)?;
        if inode.is_directory() { Err(errno(libc::EISDIR)) } else { Ok(inode) }
    }

    /// Returns an error if the kernel refuses this. Permission bits were checked when the file was opened.
    fn refused(&self, machine: &Machine, act: Act) -> io::Result<()> {
        machine.state.options.refusal.map_or(Ok(()), |refusal| refusal.check(&self.path, act))
    }

    fn try_lock(&self, machine: &mut Machine, lock: Lock) -> bool {
        if lock == Lock::WholeFile && self.is_held_by_another(machine) {
            return false;
        }
        *machine.locks.entry((self.slot, lock)).or_insert(self.handle) == self.handle
    }

    /// The ranges that other openings hold, in the order of the openings.
    fn held_by_others(&self, machine: &Machine) -> impl Iterator<Item = Range<u64>> {
        let of_file = machine.held.range((self.slot, 0)..=(self.slot, u64::MAX));
        of_file.filter(|((_, handle), _)| *handle != self.handle).flat_map(|(_, ranges)| ranges.iter().cloned())
    }

    fn is_held_by_another(&self, machine: &Machine) -> bool {
        self.held_by_others(machine).next().is_some()
    }

    /// Whether Linux would copy these bytes at once: bytes in one page of the page cache are copied in one piece, and
    /// signals and room are checked before. (So a process cannot be killed in the middle of writing a header over
    /// another one.)
    fn is_copied_at_once(&self, machine: &Machine, len: usize, offset: u64) -> io::Result<bool> {
        let end = offset + len as u64;
        let in_one_page = end <= (offset + 1).next_multiple_of(BLOCK_BYTES as u64);
        Ok(!self.direct && in_one_page && end <= machine.state.meta(self.slot)?.size)
    }

    fn is_locked_by_another(&self, machine: &Machine) -> bool {
        machine.locks.get(&(self.slot, Lock::WholeFile)).is_some_and(|holder| *holder != self.handle)
    }
}

impl File for SimFile {
    fn give_name(&self, name: &OsStr) -> io::Result<()> {
        let directory = self.directory.ok_or_else(|| errno(libc::EINVAL))?;
        let describe = || format!("give_name {}", name.display());
        self.call(Call::Name, describe, |machine, _| {
            self.refused(machine, Act::Make)?;
            machine.state.give_name(self.slot, directory, name)
        })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = buf.len();
        let describe = || format!("read {offset}+{len}");
        self.call(Call::Read, describe, |machine, fault| {
            if self.direct {
                State::aligned(buf, offset)?;
            }
            let len = shortened(buf.len(), fault);
            machine.state.check_readable(self.slot, len, offset)?;
            Ok(self.readable(machine, offset)?.read(&mut buf[..len], offset))
        })
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let how = if self.direct { "direct write" } else { "write" };
        self.call(
            Call::Write,
            || format!("{how} {}+{}", offset, buf.len()),
            |machine, fault| {
                if !self.write {
                    return Err(errno(libc::EBADF));
                }
                if self.direct {
                    State::aligned(buf, offset)?;
                }
                self.refused(machine, Act::Write)?;
                let len = match self.is_copied_at_once(machine, buf.len(), offset)? {
                    true => buf.len(),
                    false => shortened(buf.len(), fault),
                };
                let n = machine.state.write(self.slot, &buf[..len], offset, self.direct)?;
                for counters in [&mut machine.counters, &mut *self.life.counters()] {
                    counters.writes += 1;
                    counters.bytes_written += n as u64;
                }
                Ok(n)
            },
        )
    }

    fn read_past_cache_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = buf.len();
        let describe = || format!("read past cache {offset}+{len}");
        self.call(Call::Read, describe, |machine, fault| {
            State::aligned(buf, offset)?;
            self.readable(machine, offset)?;
            let len = shortened(buf.len(), fault);
            machine.state.check_readable(self.slot, len, offset)?;
            machine.state.read_device(self.slot, &mut buf[..len], offset)
        })
    }

    fn clone_range(&self, from: &dyn File, from_offset: u64, offset: u64, len: u64) -> io::Result<()> {
        let describe = || format!("clone {offset}+{len} from {from_offset}");
        let from = (from as &dyn Any).downcast_ref::<SimFile>().ok_or_else(|| errno(libc::EXDEV))?.slot;
        self.change(Call::Write, describe, |machine| {
            if !matches!(machine.state.options.profile, Profile::Xfs | Profile::Btrfs) {
                return Err(errno(libc::EOPNOTSUPP));
            }
            self.refused(machine, Act::Write)?;
            machine.state.clone_range(from, from_offset, self.slot, offset, len)
        })
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        let describe = || format!("set_len {size}");
        self.call(Call::Size, describe, |machine, _| {
            // Linux returns `EINVAL` here, and `EBADF` in the other calls.
            if !self.write {
                return Err(errno(libc::EINVAL));
            }
            if size > machine.state.meta(self.slot)?.size {
                self.refused(machine, Act::Write)?;
            }
            machine.set_len(self.slot, size)
        })
    }

    fn size_max(&self) -> io::Result<u64> {
        self.call(Call::Look, || "size_max".to_owned(), |_, _| Ok(SIZE_MAX))
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let describe = || format!("allocate {offset}+{len}");
        self.change(Call::Size, describe, |machine| {
            self.refused(machine, Act::Write)?;
            machine.state.allocate(self.slot, offset, len)
        })
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        let describe = || format!("zero {offset}+{len}");
        self.change(Call::Size, describe, |machine| {
            self.refused(machine, Act::Write)?;
            machine.state.zero(self.slot, offset, len)
        })
    }

    fn sync_data(&self, step: SyncPoint) -> io::Result<()> {
        self.sync(false, step)
    }

    fn sync_all(&self, step: SyncPoint) -> io::Result<()> {
        self.sync(true, step)
    }

    fn write_out(&self, step: SyncPoint) -> io::Result<()> {
        self.call(
            Call::Sync(step),
            || format!("write_out ({step:?})"),
            |machine, fault| {
                if machine.state.options.skips(step) {
                    return Ok(());
                }
                if let Some(What::Writeback(how)) = fault {
                    machine.fail_writeback(Some(self.slot), how);
                } else {
                    machine.state.write_out(self.slot);
                }
                told(&self.failures_seen, machine.failures.get(&self.slot).copied().unwrap_or(0))
            },
        )
    }

    fn meta(&self) -> io::Result<Meta> {
        self.call(Call::Look, || "meta".to_owned(), |machine, _| machine.state.meta(self.slot))
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        let describe = || format!("set_mode {mode:o}");
        self.call(Call::Attribute, describe, |machine, _| {
            self.refused(machine, Act::SetMode)?;
            machine.state.set_mode(self.slot, mode)
        })
    }

    fn attribute(&self) -> io::Result<Option<Vec<u8>>> {
        self.call(
            Call::Look,
            || "attribute".to_owned(),
            |machine, _| {
                let value = machine.state.inode(self.slot)?.attribute.as_deref();
                Ok(value.map(|value| if value.len() > ATTRIBUTE_BYTES_READ_MAX { Vec::new() } else { value.to_vec() }))
            },
        )
    }

    fn set_attribute(&self, value: &[u8]) -> io::Result<()> {
        let describe = || format!("set_attribute {} bytes", value.len());
        self.call(Call::Attribute, describe, |machine, _| machine.state.set_attribute(self.slot, Some(value)))
    }

    fn remove_attribute(&self) -> io::Result<()> {
        let describe = || "remove_attribute".to_owned();
        self.call(Call::Attribute, describe, |machine, _| machine.state.set_attribute(self.slot, None))
    }

    fn try_claim(&self) -> io::Result<bool> {
        self.call(Call::Look, || "try_claim".to_owned(), |machine, _| Ok(self.try_lock(machine, Lock::Claim)))
    }

    fn lock(&self, wait: bool) -> io::Result<bool> {
        let describe = || format!("lock, wait: {wait}");
        let got = self.change(Call::Look, describe, |machine| Ok(self.try_lock(machine, Lock::WholeFile)))?;
        if got || !wait {
            return Ok(got);
        }
        assert!(self.life.seat.get().is_none(), "a process that takes turns must not wait for a lock");
        // A wait is one call, however long it takes.
        let mut machine = self.shared.machine();
        loop {
            if !self.life.alive.load(SeqCst) {
                return Err(errno(libc::EBADF));
            }
            if self.try_lock(&mut machine, Lock::WholeFile) {
                return Ok(true);
            }
            self.shared.unlocked.wait(&mut machine);
        }
    }

    fn is_locked(&self) -> io::Result<bool> {
        self.call(
            Call::Look,
            || "is locked".to_owned(),
            |machine, _| Ok(self.is_locked_by_another(machine) || self.is_held_by_another(machine)),
        )
    }

    fn hold(&self, range: Range<u64>) -> io::Result<bool> {
        let describe = || format!("hold {range:?}");
        self.call(Call::Look, describe, |machine, _| {
            if self.is_locked_by_another(machine) {
                return Ok(false);
            }
            machine.held.entry((self.slot, self.handle)).or_default().insert(range.clone());
            Ok(true)
        })
    }

    fn release(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let describe = || format!("release {range:?}");
        self.call(Call::Look, describe, |machine, _| {
            if let Some(ranges) = machine.held.get_mut(&(self.slot, self.handle)) {
                ranges.remove(range.clone());
            }
            Ok(())
        })
    }

    fn held(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        if range.is_empty() {
            return Ok(None);
        }
        let describe = || format!("held {range:?}");
        self.call(Call::Look, describe, |machine, _| {
            let clipped = |found: Range<u64>| found.start.max(range.start)..found.end.min(range.end);
            // A lock on the whole file covers every range.
            let whole = self.is_locked_by_another(machine).then(|| range.clone());
            Ok(whole.or_else(|| self.held_by_others(machine).map(clipped).find(|found| !found.is_empty())))
        })
    }

    fn view(&self, len: usize) -> io::Result<Box<dyn View>> {
        let describe = || format!("view of {len} bytes");
        let handle = self.call(Call::Look, describe, |machine, _| Ok(machine.opened(self.slot, &self.life)))?;
        let (shared, life, path) = (self.shared.clone(), self.life.clone(), self.path.clone());
        Ok(Box::new(SimView { shared, life, path, slot: self.slot, handle, len }))
    }

    fn lines(&self, len: u64) -> io::Result<Box<dyn Lines>> {
        // No call elsewhere, where nothing depends on it.
        if !self.shared.machine().state.options.lines {
            return Err(errno(libc::EOPNOTSUPP));
        }
        SimLines::open(&self.shared, &self.life, &self.path, self.slot, len)
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn map(&self, request: &MapRequest) -> io::Result<Box<dyn Mapping>> {
        SimMapping::open(&self.shared, &self.life, &self.path, self.slot, request)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        // Nothing happens if the process was killed, because its files were closed then.
        self.shared.machine().close(self.handle);
        self.shared.unlocked.notify_all();
    }
}

/// The first bytes of a file, shared with everybody who writes them.
struct SimView {
    shared: Arc<Shared>,
    life: Arc<Life>,
    path: Box<Path>,
    slot: Slot,
    /// Keeps the inode, as a mapping does.
    handle: u64,
    len: usize,
}

impl View for SimView {
    fn load(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "a load at {at} of {} bytes", self.len);
        let describe = || format!("{} load {at}", self.path.display());
        let loaded = self.shared.call(&self.life, Call::Load, describe, |machine, _| {
            let inode = machine.state.inode(self.slot)?;
            let end = machine.state.meta(self.slot)?.size.next_multiple_of(BLOCK_BYTES as u64);
            assert!(at as u64 + 8 <= end, "SIGBUS: a load at {at}, behind the end of the file");
            let mut bytes = [0; 8];
            inode.read(&mut bytes, at as u64);
            Ok(u64::from_ne_bytes(bytes))
        });
        // A killed process loads nothing any more.
        loaded.unwrap_or(0)
    }
}

impl Drop for SimView {
    fn drop(&mut self) {
        self.shared.machine().close(self.handle);
    }
}
