//! The simulated machine: one disk, one cache, any number of processes, and a power switch.
//!
//! A program that runs on it must survive these faults, and the tests of this crate show each of
//! them happen:
//! - the process is killed before any call: cache kept, locks and claims gone;
//! - the power goes before any call: of what was not flushed anything may be lost, whole writes or
//!   single 512-byte sectors, new names and renames, sizes, attributes, modes; times prove nothing;
//! - a new size becomes durable without its data, which then is zeros, random bytes, or what some
//!   removed file held ([`Profile::AnyPosix`](crate::Profile::AnyPosix));
//! - with [`Model::PageGarbage`](crate::Model::PageGarbage), a page that was being overwritten holds anything;
//! - any call fails, is interrupted, or does less than asked; the disk is full, also for overwriting;
//! - a writeback fails: one sync tells it, the next says OK, and the old data comes back later;
//! - what one process wrote into the cache is not on the device, though every reader sees it;
//! - a truncation takes pages out of a private mapping, those that were stored to included;
//! - inode numbers are reused at once; other programs write, move, copy and remove files.
//!
//! Not modelled: old data of other files in the holes of a file; a device that loses what it said was flushed, or returns other bytes than it
//! stored; sectors that tear; blocks reused while the removal of their old file is not yet durable;
//! writes of two threads mixing within one call; `fsync` making more durable than it must;
//! permission checks; quotas; room taken by names and attributes.

use crate::cut::{Cut, Outcome, Snapshot};
use crate::image::Slot;
use crate::mapping::Mapped;
use crate::options::{Call, Failed, Fault, Options, What};
use crate::process::SimProcess;
use crate::state::{State, errno};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use untorn_os::{Counters, STEPS, Step, Storage};

/// Two kinds of lock that know nothing of each other, as in Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lock {
    Claim,
    WholeFile,
}

/// The life of one process, and what it did.
pub(crate) struct Life {
    pub alive: AtomicBool,
    counters: Mutex<Counters>,
}

impl Life {
    pub fn counters(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What dies with the processes, and what only the laboratory knows.
pub(crate) struct Machine {
    pub state: State,
    /// Open files: by handle, the inode and the life of the process.
    open: BTreeMap<u64, (Slot, Arc<Life>)>,
    pub locks: BTreeMap<(Slot, Lock), u64>,
    /// Mappings, by the handle that each has of its file.
    pub maps: BTreeMap<u64, Mapped>,
    next_handle: u64,
    /// Failed writebacks, per file and in all.
    pub failures: BTreeMap<Slot, u64>,
    pub all_failures: u64,
    processes: Vec<Arc<Life>>,
    calls: u64,
    crash_at: u64,
    faults: Vec<Fault>,
    /// Stores of another thread: before which call, where, what.
    races: Vec<(u64, usize, Vec<u8>)>,
    syncs: Vec<u64>,
    pub counters: Counters,
    snapshots: Option<Vec<Snapshot>>,
    trace: Option<Vec<String>>,
}

pub(crate) struct Shared {
    machine: Mutex<Machine>,
    pub unlocked: Condvar,
}

impl Shared {
    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        // A test that panicked inside a call has failed already.
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one call of a process: counts it, stops it if the machine is off, lets planned faults
    /// happen, and keeps a snapshot of the moment before it.
    pub fn call<T>(
        &self,
        life: &Life,
        call: Call,
        describe: impl FnOnce() -> String,
        act: impl FnOnce(&mut Machine, Option<What>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut machine = self.machine();
        if !life.alive.load(SeqCst) {
            return Err(errno(libc::EBADF));
        }
        let number = machine.calls;
        if number >= machine.crash_at {
            return Err(io::Error::other("the machine is off"));
        }
        machine.calls += 1;
        machine.race(number);
        if call.changes() && machine.snapshots.is_some() {
            let snapshot = Snapshot::new(machine.state.clone(), number);
            machine.snapshots.iter_mut().for_each(|kept| kept.push(snapshot.clone()));
        }
        let result = match machine.fault(call) {
            Some(What::Errno(code)) => Err(errno(code)),
            Some(What::Writeback(_)) if !matches!(call, Call::Sync(_)) => Err(errno(libc::EIO)),
            fault => {
                if let Call::Sync(step) = call {
                    machine.syncs[step as usize] += 1;
                    machine.counters.syncs += 1;
                    life.counters().syncs += 1;
                }
                let writes = matches!(call, Call::Write | Call::Size);
                if writes {
                    machine.learn_stores().expect("memory of this machine");
                }
                let done = act(&mut machine, fault);
                if writes {
                    machine.follow_files().expect("memory of this machine");
                }
                done
            }
        };
        if let Some(trace) = &mut machine.trace {
            let outcome = result.as_ref().err().map_or_else(|| "ok".to_owned(), ToString::to_string);
            trace.push(format!("{number:5} {} -> {outcome}", describe()));
        }
        result
    }
}

impl Machine {
    fn fault(&mut self, call: Call) -> Option<What> {
        let mut found = None;
        for fault in self.faults.iter_mut().filter(|f| f.on.matches(call)) {
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.times > 0 && found.is_none() {
                fault.times -= 1;
                found = Some(fault.what);
            }
        }
        found
    }

    fn race(&mut self, call: u64) {
        for (_, address, bytes) in self.races.extract_if(.., |(at, ..)| *at == call).collect::<Vec<_>>() {
            // Where the page is gone by then, the thread got a signal.
            let _ = self.access(address, |mapped, inode, offset| mapped.store(inode, offset, &bytes));
        }
    }

    /// A writeback fails; whoever has the file open learns it at the next sync.
    pub fn fail_writeback(&mut self, slot: Option<Slot>, how: Failed) {
        match slot {
            Some(slot) => *self.failures.entry(slot).or_default() += 1,
            None => {
                let mut hit: Vec<Slot> = self.open.values().map(|(slot, _)| *slot).collect();
                hit.sort_unstable();
                hit.dedup();
                for slot in hit.into_iter().filter(|slot| self.state.waits(*slot)) {
                    *self.failures.entry(slot).or_default() += 1;
                }
            }
        }
        self.all_failures += 1;
        self.state.fail_writeback(slot, how);
    }

    pub fn opened(&mut self, slot: Slot, life: &Arc<Life>) -> u64 {
        self.next_handle += 1;
        self.open.insert(self.next_handle, (slot, life.clone()));
        self.next_handle
    }

    pub fn close(&mut self, handle: u64) {
        if let Some((slot, _)) = self.open.remove(&handle) {
            self.locks.retain(|_, holder| *holder != handle);
            self.maps.remove(&handle);
            self.unnamed(slot);
        }
    }

    /// Gives up an inode that lost its last name, unless it is open.
    pub fn unnamed(&mut self, slot: Slot) {
        if !self.open.values().any(|(open, _)| *open == slot) {
            self.state.reap(slot);
        }
    }

    /// `ftruncate`, which reaches into mappings.
    pub fn set_len(&mut self, slot: Slot, to: u64) -> io::Result<()> {
        self.state.set_len(slot, to)?;
        self.maps.values_mut().for_each(|mapped| mapped.cut(slot, to));
        Ok(())
    }

    /// Ends one process: its files close now, not when their handles are dropped.
    pub fn kill(&mut self, process: &Arc<Life>) {
        process.alive.store(false, SeqCst);
        let own = self.open.iter().filter(|(_, (_, life))| Arc::ptr_eq(life, process));
        for handle in own.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            self.close(handle);
        }
        self.processes.retain(|other| !Arc::ptr_eq(other, process));
    }

    fn kill_all(&mut self) {
        for process in std::mem::take(&mut self.processes) {
            self.kill(&process);
        }
    }
}

/// A disk in memory, the cache before it, and the processes that use it.
pub struct SimDisk {
    pub(crate) shared: Arc<Shared>,
}

impl SimDisk {
    /// An empty disk.
    pub fn new(options: Options) -> SimDisk {
        SimDisk::boot(State::new(options))
    }

    pub(crate) fn boot(state: State) -> SimDisk {
        let machine = Machine {
            state,
            open: BTreeMap::new(),
            locks: BTreeMap::new(),
            maps: BTreeMap::new(),
            next_handle: 0,
            failures: BTreeMap::new(),
            all_failures: 0,
            processes: Vec::new(),
            calls: 0,
            crash_at: u64::MAX,
            faults: Vec::new(),
            races: Vec::new(),
            syncs: vec![0; STEPS.len()],
            counters: Counters::default(),
            snapshots: None,
            trace: None,
        };
        SimDisk { shared: Arc::new(Shared { machine: Mutex::new(machine), unlocked: Condvar::new() }) }
    }

    pub(crate) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.shared.machine()
    }

    // --- processes

    /// A new process, as a storage.
    pub fn process(&self) -> Arc<dyn Storage> {
        self.spawn()
    }

    /// A new process that can be killed by itself.
    pub fn spawn(&self) -> Arc<SimProcess> {
        let user = self.machine().state.options.user;
        self.spawn_as(user)
    }

    /// A new process of this effective user.
    pub fn spawn_as(&self, user: u32) -> Arc<SimProcess> {
        let mut machine = self.machine();
        let life = Arc::new(Life { alive: AtomicBool::new(true), counters: Mutex::default() });
        machine.processes.push(life.clone());
        SimProcess::new(&self.shared, &machine, life, user)
    }

    /// Kills all processes. The cache survives; nothing stays open or locked.
    pub fn kill(&self) {
        self.machine().kill_all();
        self.shared.unlocked.notify_all();
    }

    // --- crashes

    /// Cuts the power of this machine and boots it again, in place.
    pub fn power_cut(&self, cut: Cut) -> Outcome {
        let outcome = self.snapshot().power_cut(cut);
        let mut machine = self.machine();
        machine.kill_all();
        machine.state = outcome.disk.machine().state.clone();
        machine.crash_at = u64::MAX;
        machine.failures.clear();
        drop(machine);
        self.shared.unlocked.notify_all();
        outcome
    }

    /// The machine as it is now.
    pub fn snapshot(&self) -> Snapshot {
        let machine = self.machine();
        Snapshot::new(machine.state.clone(), machine.calls)
    }

    /// A second machine in the same state, without its processes.
    pub fn fork(&self) -> SimDisk {
        self.snapshot().killed()
    }

    /// From now on keeps a snapshot of the moment before every call that changes something.
    pub fn record(&self) {
        self.machine().snapshots = Some(Vec::new());
    }

    /// Ends recording and hands out the snapshots, with one of this moment at the end: together every
    /// state in which a crash could find the machine.
    pub fn recorded(&self) -> Vec<Snapshot> {
        let now = self.snapshot();
        let mut snapshots = self.machine().snapshots.take().unwrap_or_default();
        snapshots.push(now);
        snapshots
    }

    /// The machine dies right before call number `call` (of [`SimDisk::calls`]): from there on every
    /// call fails and nothing changes, until [`SimDisk::power_cut`].
    pub fn crash_at(&self, call: u64) {
        self.machine().crash_at = call;
    }

    /// The machine dies right after call number `call`.
    pub fn crash_after(&self, call: u64) {
        self.crash_at(call.saturating_add(1));
    }

    /// Storage and file calls so far; the number of the next one.
    pub fn calls(&self) -> u64 {
        self.machine().calls
    }

    /// A number of the driver's that snapshots carry, such as how many commits were acknowledged.
    pub fn set_mark(&self, mark: u64) {
        self.machine().state.mark = mark;
    }

    /// A hash of all names, contents, sizes, modes, owners and attributes as programs see them;
    /// right after a power cut that is what is on the disk.
    pub fn image_hash(&self) -> u64 {
        self.machine().state.live.hash()
    }

    // --- faults

    /// Plans a fault.
    pub fn fail(&self, fault: Fault) {
        self.machine().faults.push(fault);
    }

    /// Plans a store by another thread, right before this call.
    pub fn store_at(&self, call: u64, address: *const u8, bytes: &[u8]) {
        self.machine().races.push((call, address as usize, bytes.to_vec()));
    }

    /// Forgets planned faults.
    pub fn clear_faults(&self) {
        self.machine().faults.clear();
    }

    /// The kernel writes a file back by itself, and fails.
    pub fn fail_writeback(&self, path: &Path, how: Failed) -> io::Result<()> {
        let mut machine = self.machine();
        let slot = machine.state.resolve(path)?;
        machine.fail_writeback(Some(slot), how);
        Ok(())
    }

    /// The kernel needs memory: cached pages that are not waiting to be written are forgotten.
    pub fn drop_caches(&self) {
        let mut machine = self.machine();
        for slot in 0..machine.state.live.slots() {
            machine.state.drop_cache(slot, 0, u32::MAX);
        }
    }

    /// What kind of disk this is.
    pub fn options(&self) -> Options {
        self.machine().state.options
    }

    /// Changes the disk's properties from now on: room, skipped steps, read-only and so on.
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) {
        change(&mut self.machine().state.options);
    }

    /// Takes a step away: its syncs say OK and do nothing, here and in every machine made from this.
    pub fn skip(&self, step: Step) {
        self.set_options(|options| *options = options.skip(step));
    }

    /// Limits the room for contents.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.set_options(|options| options.capacity_bytes = bytes);
    }

    // --- counts

    /// Syncs of this step so far, skipped ones included.
    pub fn syncs(&self, step: Step) -> u64 {
        self.machine().syncs[step as usize]
    }

    /// Totals of all processes.
    pub fn counters(&self) -> Counters {
        self.machine().counters
    }

    /// From now on keeps one line per call.
    pub fn trace(&self) {
        self.machine().trace = Some(Vec::new());
    }

    /// Ends tracing and hands out the lines.
    pub fn traced(&self) -> Vec<String> {
        self.machine().trace.take().unwrap_or_default()
    }
}
