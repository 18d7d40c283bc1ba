//! The simulated machine: one disk, one cache, any number of processes, and a power switch.
//!
//! A program that runs on it must survive these faults, and the tests of this crate show that each of
//! them happens:
//! - the process is killed before any call: cache kept, locks and claims gone;
//! - the power is cut before any call: everything unflushed may be lost, whole writes or single
//!   512-byte sectors, new names and renames, sizes, attributes, modes; times prove nothing;
//! - a new size becomes durable without its data, which then is zeros, random bytes, or the contents
//!   of a removed file ([`Profile::AnyPosix`](crate::Profile::AnyPosix));
//! - with [`Model::PageGarbage`](crate::Model::PageGarbage), a page that was being overwritten has any contents;
//! - any call fails, is interrupted, or does less than asked; the disk is full, also for overwriting;
//! - the kernel refuses changes of names, modes or contents in a directory, for good, with any error;
//! - a writeback fails: one sync reports it, the next returns OK, and the old data comes back later;
//! - bytes that one process wrote into the cache are not on the device, though every reader sees them;
//! - a truncation takes pages out of a private mapping, including those that were stored to;
//! - inode numbers are reused at once; other programs write, move, copy and remove files.
//!
//! Not modelled: old data of other files in the holes of a file; a device that loses flushed data, or returns other
//! bytes than it stored; sectors that tear; blocks reused before the removal of their old file is durable; writes of
//! two threads mixing within one call; `fsync` making more durable than it must; other owners; quotas (but their errors
//! are); room taken by names and attributes.

use crate::mutation::sync_point_index;
use crate::simulation::processes::machine::{Machine, Shared};
use crate::simulation::processes::process::SimProcess;
use crate::simulation::state::disk_options::{Failed, Fault, Options};
use crate::simulation::state::disk_state::State;
use crate::simulation::state::power_cut::{Cut, Snapshot};
use parking_lot::MutexGuard;
use std::io;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{Counters, Storage, SyncPoint};

/// A disk in memory, the cache in front of it, and the processes that use it.
pub struct SimDisk {
    pub(crate) shared: Arc<Shared>,
}

impl SimDisk {
    /// An empty disk.
    pub fn new(options: Options) -> SimDisk {
        SimDisk::boot(State::new(options))
    }

    pub(crate) fn boot(state: State) -> SimDisk {
        let machine = Machine::new(state);
        SimDisk { shared: Arc::new(Shared::new(machine)) }
    }

    pub(crate) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.shared.machine()
    }

    // --- processes

    /// Starts a new process; returns its storage.
    pub fn process(&self) -> Arc<dyn Storage> {
        self.spawn()
    }

    /// Starts a new process that can be killed by itself.
    pub fn spawn(&self) -> Arc<SimProcess> {
        let user = self.machine().state.options.user;
        self.spawn_as(user)
    }

    /// Starts a new process with this effective user.
    pub fn spawn_as(&self, user: u32) -> Arc<SimProcess> {
        let mut machine = self.machine();
        let life = machine.begin_life();
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
        machine.snapshot(machine.calls)
    }

    /// A second machine in the same state, without its processes.
    pub fn fork(&self) -> SimDisk {
        self.snapshot().killed()
    }

    /// From now on keeps a snapshot before every call that changes something.
    pub fn record(&self) {
        self.machine().snapshots = Some(Vec::new());
    }

    /// Ends recording; returns the snapshots, followed by one of this moment. Together they are all states in which a
    /// crash can find the machine.
    pub fn recorded(&self) -> Vec<Snapshot> {
        let now = self.snapshot();
        let mut snapshots = self.machine().snapshots.take().unwrap_or_default();
        snapshots.push(now);
        snapshots
    }

    /// Makes the machine die right before call number `call` (of [`SimDisk::calls`]): from there on every call fails
    /// and nothing changes, until [`SimDisk::power_cut`].
    pub fn crash_at(&self, call: u64) {
        self.machine().crash_at = call;
    }

    /// Makes the machine die right after call number `call`.
    pub fn crash_after(&self, call: u64) {
        self.crash_at(call.saturating_add(1));
    }

    /// The number of storage and file calls so far, which is the number of the next one.
    pub fn calls(&self) -> u64 {
        self.machine().calls
    }

    /// Sets a number of the driver's that snapshots copy, such as the number of acknowledged commits.
    pub fn set_mark(&self, mark: u64) {
        self.machine().state.mark = mark;
    }

    /// A hash of all names, contents, sizes, modes, owners and attributes as programs see them; right after a power
    /// cut, that is the state on the disk.
    pub fn image_hash(&self) -> u64 {
        self.machine().state.live.hash()
    }

    // --- faults

    /// Plans a fault.
    pub fn fail(&self, fault: Fault) {
        self.machine().faults.push(fault);
    }

    /// Plans a store by another thread right before this call.
    pub fn store_at(&self, call: u64, address: *const u8, bytes: &[u8]) {
        self.machine().races.push((call, address as usize, bytes.to_vec()));
    }

    /// Whether a planned fault has not happened completely yet.
    pub fn faults_left(&self) -> bool {
        self.machine().faults.iter().any(|fault| fault.times > 0)
    }

    /// Forgets planned faults.
    pub fn clear_faults(&self) {
        self.machine().faults.clear();
    }

    /// The kernel writes a file back on its own, and fails.
    pub fn fail_writeback(&self, path: &Path, how: Failed) -> io::Result<()> {
        let mut machine = self.machine();
        let slot = machine.state.resolve(path)?;
        machine.fail_writeback(Some(slot), how);
        Ok(())
    }

    /// The kernel needs memory, and drops cached pages that are not waiting to be written.
    pub fn drop_caches(&self) {
        let mut machine = self.machine();
        for slot in 0..machine.state.live.slots() {
            machine.state.drop_cache(slot, 0, u32::MAX);
        }
    }

    /// The properties of the disk.
    pub fn options(&self) -> Options {
        self.machine().state.options
    }

    /// Changes the disk's properties from now on: room, skipped sync points, read-only and so on.
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) {
        change(&mut self.machine().state.options);
    }

    /// Skips a sync point: its syncs return OK and do nothing, here and in every machine made from this.
    pub fn skip(&self, step: SyncPoint) {
        self.set_options(|options| *options = options.skip(step));
    }

    /// Limits the room for contents.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.set_options(|options| options.capacity_bytes = bytes);
    }

    /// Fills the disk: no room for contents beyond the allocated ones, for files beyond the existing ones, or for
    /// either.
    pub fn fill_up(&self, contents: bool, files: bool) {
        let mut machine = self.machine();
        let (bytes, inodes) = machine.state.used();
        machine.state.options.capacity_bytes = contents.then_some(bytes);
        machine.state.options.inodes_max = files.then_some(inodes);
    }

    // --- counts

    /// The number of syncs of this sync point so far, including skipped ones.
    pub fn syncs(&self, step: SyncPoint) -> u64 {
        self.machine().syncs[sync_point_index(step)]
    }

    /// The totals of all processes.
    pub fn counters(&self) -> Counters {
        self.machine().counters
    }

    /// From now on keeps one line per call.
    pub fn trace(&self) {
        self.machine().trace = Some(Vec::new());
    }

    /// Ends tracing and returns the lines.
    pub fn traced(&self) -> Vec<String> {
        self.machine().trace.take().unwrap_or_default()
    }
}

/// The machine after a power cut.
pub struct Outcome {
    /// The machine, booted again.
    pub disk: SimDisk,
    /// [`SimDisk::image_hash`] of it.
    pub image_hash: u64,
    /// Whether any change of the programs is missing, torn or damaged.
    pub something_lost: bool,
}

impl Snapshot {
    /// The machine after its processes were killed: nothing is lost, and nothing is open or locked.
    pub fn killed(&self) -> SimDisk {
        let disk = SimDisk::boot(self.state_after_kill());
        disk.machine().uptime = self.uptime();
        disk
    }

    /// Cuts the power and boots again.
    pub fn power_cut(&self, cut: Cut) -> Outcome {
        let (state, something_lost) = self.state_after(cut);
        Outcome { image_hash: state.live.hash(), disk: SimDisk::boot(state), something_lost }
    }
}

impl SimDisk {
    /// Loads bytes from memory as a program does. `EFAULT`: the program would have got a signal.
    pub fn load(&self, address: *const u8, into: &mut [u8]) -> io::Result<()> {
        self.machine().access(address as usize, |mapped, inode, offset| mapped.load(inode, offset, into))
    }

    /// Stores bytes to memory as a program does, without a system call. `EFAULT`: the program would have got a signal.
    pub fn store(&self, address: *const u8, bytes: &[u8]) -> io::Result<()> {
        self.machine().access(address as usize, |mapped, inode, offset| mapped.store(inode, offset, bytes))
    }
}
