//! The machine: disk and cache, processes with their open files, and the plans and records of the laboratory.

use super::mapped_pages::Mapped;
use crate::mutation::{sync_point_index, sync_points};
use crate::simulation::state::disk_options::{Call, Failed, Fault, What};
use crate::simulation::state::disk_state::{State, errno};
use crate::simulation::state::inodes::{Inode, PAGE_BYTES, Slot};
use crate::simulation::state::power_cut::Snapshot;
use crate::simulation::turns::{Next, Seat};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rangemap::RangeSet;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use untorn_os::Counters;

/// Two kinds of lock that do not affect each other, as in Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lock {
    Claim,
    WholeFile,
}

/// The life of one process, and its counters.
pub(crate) struct Life {
    pub alive: AtomicBool,
    counters: Mutex<Counters>,
    /// The number of its calls so far, of the call before which it dies, and of its last allowed one.
    pub calls: AtomicU64,
    pub dies_at: AtomicU64,
    pub calls_max: AtomicU64,
    /// Its seat, if it takes turns with others.
    pub seat: OnceLock<Seat>,
}

impl Life {
    fn new() -> Life {
        Life {
            alive: AtomicBool::new(true),
            counters: Mutex::default(),
            calls: AtomicU64::new(0),
            dies_at: AtomicU64::new(u64::MAX),
            calls_max: AtomicU64::new(u64::MAX),
            seat: OnceLock::new(),
        }
    }

    pub fn counters(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock()
    }
}

/// Disk and cache, everything that ends with the processes, and the laboratory's plans and counts.
pub(crate) struct Machine {
    pub state: State,
    /// Open files: by handle, the inode and the life of the process.
    pub open: BTreeMap<u64, (Slot, Arc<Life>)>,
    pub locks: BTreeMap<(Slot, Lock), u64>,
    /// The ranges of bytes that each opening of a file holds.
    pub held: BTreeMap<(Slot, u64), RangeSet<u64>>,
    /// The simulated time, which advances in pauses.
    pub uptime: Duration,
    /// Mappings, by the mapping's own handle of its file.
    pub maps: BTreeMap<u64, Mapped>,
    pub next_handle: u64,
    /// Failed writebacks, per file and in total.
    pub failures: BTreeMap<Slot, u64>,
    pub all_failures: u64,
    pub processes: Vec<Arc<Life>>,
    pub calls: u64,
    pub crash_at: u64,
    pub faults: Vec<Fault>,
    /// Stores of another thread: the call before which each happens, its address, its bytes.
    pub races: Vec<(u64, usize, Vec<u8>)>,
    pub syncs: Vec<u64>,
    pub counters: Counters,
    pub snapshots: Option<Vec<Snapshot>>,
    pub trace: Option<Vec<String>>,
}

pub(crate) struct Shared {
    machine: Mutex<Machine>,
    pub unlocked: Condvar,
}

impl Shared {
    pub fn new(machine: Machine) -> Shared {
        Shared { machine: Mutex::new(machine), unlocked: Condvar::new() }
    }

    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock()
    }

    /// Runs one call of a process: counts it, stops it if the machine is off, applies planned faults, and keeps a
    /// snapshot of the moment before it.
    pub fn call<T>(
        &self,
        life: &Arc<Life>,
        call: Call,
        describe: impl FnOnce() -> String,
        act: impl FnOnce(&mut Machine, Option<What>) -> io::Result<T>,
    ) -> io::Result<T> {
        let Some(seat) = life.seat.get().filter(|_| life.alive.load(SeqCst)) else {
            return self.call_now(life, call, describe, act);
        };
        let description = describe();
        match seat.before(&description) {
            // Nobody else runs now.
            Next::Call => self.end_life(life, seat, &description),
            Next::Off => {
                self.machine().kill_all();
                seat.switch_off();
            }
        }
        let result = self.call_now(life, call, || format!("{} {description}", seat.name()), act);
        if life.alive.load(SeqCst) {
            seat.after(&description, result.as_ref().err());
        }
        result
    }

    /// Kills a process if its time has come.
    fn end_life(&self, life: &Arc<Life>, seat: &Seat, description: &str) {
        let number = life.calls.load(SeqCst);
        let is_too_many = number >= life.calls_max.load(SeqCst);
        if is_too_many {
            seat.fail(format!("{} makes too many calls; the next one is {description}", seat.name()));
        }
        if is_too_many || number >= life.dies_at.load(SeqCst) {
            self.machine().kill(life);
        }
    }

    fn call_now<T>(
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
        life.calls.fetch_add(1, SeqCst);
        machine.race(number);
        if call.changes() && machine.snapshots.is_some() {
            let snapshot = machine.snapshot(number);
            machine.snapshots.iter_mut().for_each(|kept| kept.push(snapshot.clone()));
        }
        let result = match machine.fault(call) {
            Some(What::Errno(code)) => Err(errno(code)),
            Some(What::Writeback(_)) if !matches!(call, Call::Sync(_)) => Err(errno(libc::EIO)),
            fault => {
                if let Call::Sync(step) = call {
                    machine.syncs[sync_point_index(step)] += 1;
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
    pub fn new(state: State) -> Machine {
        Machine {
            state,
            open: BTreeMap::new(),
            locks: BTreeMap::new(),
            held: BTreeMap::new(),
            uptime: Duration::ZERO,
            maps: BTreeMap::new(),
            next_handle: 0,
            failures: BTreeMap::new(),
            all_failures: 0,
            processes: Vec::new(),
            calls: 0,
            crash_at: u64::MAX,
            faults: Vec::new(),
            races: Vec::new(),
            syncs: vec![0; sync_points().len()],
            counters: Counters::default(),
            snapshots: None,
            trace: None,
        }
    }

    /// The machine before this call.
    pub fn snapshot(&self, call: u64) -> Snapshot {
        Snapshot::new(self.state.clone(), call, self.uptime)
    }

    /// A new process.
    pub fn begin_life(&mut self) -> Arc<Life> {
        let life = Arc::new(Life::new());
        self.processes.push(life.clone());
        life
    }

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
            // If the page is gone, the thread gets a signal.
            let _ = self.access(address, |mapped, inode, offset| mapped.store(inode, offset, &bytes));
        }
    }

    /// Fails a writeback; every opening of the file gets the error at its next sync.
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
            self.held.remove(&(slot, handle));
            self.maps.remove(&handle);
            self.unnamed(slot);
        }
    }

    /// Removes an inode that has lost its last name, unless it is open.
    pub fn unnamed(&mut self, slot: Slot) {
        if !self.open.values().any(|(open, _)| *open == slot) {
            self.state.reap(slot);
        }
    }

    /// `ftruncate`, which also affects mappings.
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

    pub fn kill_all(&mut self) {
        for process in std::mem::take(&mut self.processes) {
            self.kill(&process);
        }
    }
}

impl Machine {
    /// Takes over the stores of programs to real memory, before the next operation.
    pub fn learn_stores(&mut self) -> io::Result<()> {
        self.maps.values_mut().try_for_each(Mapped::learn)
    }

    /// Updates the memory of mappings after files were written.
    pub fn follow_files(&mut self) -> io::Result<()> {
        let Machine { state, maps, .. } = self;
        maps.values_mut()
            .try_for_each(|mapped| state.live.get(mapped.slot).map_or(Ok(()), |inode| mapped.follow(inode)))
    }

    pub fn access(
        &mut self,
        address: usize,
        act: impl FnOnce(&mut Mapped, &Inode, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mapped = self.maps.values_mut().find(|mapped| mapped.addresses.contains(&address));
        let mapped = mapped.ok_or_else(|| errno(libc::EFAULT))?;
        let inode = self.state.inode(mapped.slot)?;
        mapped.learn()?;
        act(mapped, inode, (address - mapped.addresses.start) as u64)?;
        mapped.refresh(inode, 0..mapped.addresses.len() as u64 / PAGE_BYTES as u64)
    }
}
