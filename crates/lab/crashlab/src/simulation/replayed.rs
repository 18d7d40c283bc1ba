//! A reading process on a recorded run of the machine, which moves on while the process reads.
//!
//! Before each call of the reader, the recording may move on by any number of moments. So a reader meets every
//! interleaving with the calls of the recorded processes, without running them again. Its flushes do nothing.

use super::disk::SimDisk;
use crate::simulation::processes::process::SimProcess;
use crate::simulation::state::disk_state::errno;
use crate::simulation::state::inodes::Slot;
use crate::simulation::state::power_cut::Snapshot;
use fastrand::Rng;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use untorn_journal::readers::moment::READ_AT;
use untorn_os::{Access, Counters, File, MapRequest, Mapping, Meta, Open, Space, Storage, SyncPoint};

/// A machine in one of the recorded states, and a process on it that reads.
type Still = (SimDisk, Arc<SimProcess>);

/// The recorded moments.
pub(crate) struct Recording {
    pub moments: Vec<Snapshot>,
    stills: Vec<OnceLock<Still>>,
}

impl Recording {
    pub fn new(moments: Vec<Snapshot>) -> Arc<Recording> {
        let stills = moments.iter().map(|_| OnceLock::new()).collect();
        Arc::new(Recording { moments, stills })
    }

    fn still(&self, moment: usize) -> &Still {
        self.stills[moment].get_or_init(|| {
            let disk = self.moments[moment].killed();
            let process = disk.spawn();
            (disk, process)
        })
    }

    /// The leases of commits: the first moment, and the last one of each.
    pub fn leases(&self) -> Vec<(usize, usize)> {
        let mut found: BTreeMap<(Slot, u64), (usize, usize)> = BTreeMap::new();
        for (at, moment) in self.moments.iter().enumerate() {
            let of_commits = moment.leases().iter().filter(|(_, byte)| *byte != READ_AT);
            of_commits.for_each(|lease| found.entry(*lease).or_insert((at, at)).1 = at);
        }
        found.into_values().collect()
    }

    /// The last moment up to `to` at which an inode was still the same as at `from`; also whether that is `to`.
    fn last_of(&self, slot: Slot, from: usize, to: usize) -> (usize, bool) {
        let gone = (from..=to).find(|moment| !self.moments[*moment].has(slot));
        gone.map_or((to, true), |gone| (gone.saturating_sub(1).max(from), false))
    }
}

/// The way in which a reader's calls and the recorded moments interleave.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Before one call of `one_in`, at most `most` moments pass.
    Steps { one_in: usize, most: usize },
    /// Before this call, this many moments pass; none before other calls.
    Leap { call: usize, moments: usize },
}

struct Clock {
    rng: Rng,
    pace: Pace,
    calls: usize,
    now: usize,
}

/// A process that reads while the recording goes on.
pub(crate) struct Replayed {
    recording: Arc<Recording>,
    clock: Mutex<Clock>,
    /// The last lease: its inode, its byte, and its first moment.
    leased: Mutex<Option<(Slot, u64, usize)>>,
}

impl Replayed {
    pub fn new(recording: &Arc<Recording>, from: usize, pace: Pace, seed: u64) -> Arc<Replayed> {
        let clock = Clock { rng: Rng::with_seed(seed), pace, calls: 0, now: from };
        Arc::new(Replayed { recording: recording.clone(), clock: Mutex::new(clock), leased: Mutex::default() })
    }

    /// The last moment at which the last lease was still held.
    pub fn leased_until(&self) -> usize {
        let Some((slot, at, since)) = *self.leased.lock() else { return 0 };
        let moments = &self.recording.moments;
        let ended = (since..moments.len()).find(|moment| !moments[*moment].is_leased(slot, at));
        ended.map_or(moments.len() - 1, |ended| ended.saturating_sub(1))
    }

    /// The present moment.
    pub fn now(&self) -> usize {
        self.clock.lock().now
    }

    /// Lets this many moments pass before the given call, counted from now.
    pub fn leap(&self, call: usize, moments: usize) {
        let mut clock = self.clock.lock();
        clock.pace = Pace::Leap { call: clock.calls + call, moments };
    }

    /// Lets this many moments pass.
    pub fn pass(&self, moments: usize) {
        let mut clock = self.clock.lock();
        clock.now = (clock.now + moments).min(self.recording.moments.len() - 1);
    }

    /// Begins a call; returns its moment.
    fn call(&self) -> usize {
        let moments = {
            let mut clock = self.clock.lock();
            clock.calls += 1;
            let pace = clock.pace;
            match pace {
                Pace::Steps { one_in, most } if clock.rng.usize(..one_in) == 0 => clock.rng.usize(..=most),
                Pace::Leap { call, moments } if call == clock.calls => moments,
                _ => 0,
            }
        };
        self.pass(moments);
        self.now()
    }

    fn process(&self) -> &Arc<SimProcess> {
        &self.recording.still(self.call()).1
    }
}

fn read_only<T>() -> io::Result<T> {
    Err(errno(libc::EROFS))
}

/// The storage of a reader.
struct Handle(Arc<Replayed>);

impl Replayed {
    /// The process as a storage.
    pub fn storage(self: &Arc<Replayed>) -> Arc<dyn Storage> {
        Arc::new(Handle(self.clone()))
    }
}

impl Storage for Handle {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        if how.write || how.create.is_some() {
            return read_only();
        }
        let moment = self.0.call();
        let (disk, process) = self.0.recording.still(moment);
        let file = process.open(path, how)?;
        let slot = disk.machine().state.resolve(path)?;
        let files = Mutex::new(BTreeMap::from([(moment, file)]));
        Ok(Arc::new(ReplayedFile { replayed: self.0.clone(), slot, opened: moment, how, files }))
    }
    fn stat(&self, path: &Path) -> io::Result<Meta> {
        self.0.process().stat(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.0.process().list(path)
    }
    fn check_access(&self, path: &Path, access: Access) -> io::Result<()> {
        self.0.process().check_access(path, access)
    }
    fn create_unnamed(&self, _: &Path) -> io::Result<Arc<dyn File>> {
        read_only()
    }
    fn rename(&self, _: &Path, _: &Path, _: bool) -> io::Result<()> {
        read_only()
    }
    fn link(&self, _: &Path, _: &Path) -> io::Result<()> {
        read_only()
    }
    fn unlink(&self, _: &Path) -> io::Result<()> {
        read_only()
    }
    fn mkdir(&self, _: &Path, _: u32) -> io::Result<()> {
        read_only()
    }
    fn set_dir_mode(&self, _: &Path, _: u32) -> io::Result<()> {
        read_only()
    }
    fn rmdir(&self, _: &Path) -> io::Result<()> {
        read_only()
    }
    fn sync_dir(&self, _: &Path, _: SyncPoint) -> io::Result<()> {
        Ok(())
    }
    fn sync_file_system(&self, _: SyncPoint) -> io::Result<()> {
        Ok(())
    }
    fn sync_file_system_reports_errors(&self) -> bool {
        true
    }
    fn keeps_order(&self) -> bool {
        false
    }
    fn space(&self) -> io::Result<Space> {
        self.0.process().space()
    }
    fn open_files_max(&self) -> usize {
        self.0.process().open_files_max()
    }
    fn effective_user(&self) -> u32 {
        self.0.process().effective_user()
    }
    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.0.process().boot_id()
    }
    fn file_size_limit(&self) -> u64 {
        u64::MAX
    }
    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.process().random(bytes)
    }
    fn pause(&self) {
        let most = self.0.recording.moments.len() / 50 + 2;
        let moments = self.0.clock.lock().rng.usize(1..=most);
        self.0.pass(moments);
    }
    fn pause_for(&self, _: Duration) {
        self.pause();
    }
    fn uptime(&self) -> Duration {
        self.0.recording.moments[self.0.now()].uptime()
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// A file that a reader has open: it keeps the state in which it lost its last name.
struct ReplayedFile {
    replayed: Arc<Replayed>,
    slot: Slot,
    opened: usize,
    how: Open,
    /// The open file at each moment.
    files: Mutex<BTreeMap<usize, Arc<dyn File>>>,
}

impl ReplayedFile {
    /// The file now, and whether it still has a name.
    fn now(&self) -> io::Result<(Arc<dyn File>, bool)> {
        let moment = self.replayed.call();
        let (last, named) = self.replayed.recording.last_of(self.slot, self.opened, moment);
        let mut files = self.files.lock();
        if let Some(file) = files.get(&last) {
            return Ok((file.clone(), named));
        }
        let file = self.replayed.recording.still(last).1.open_slot(self.slot, self.how)?;
        files.insert(last, file.clone());
        Ok((file, named))
    }
}

impl File for ReplayedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.now()?.0.read_at(buf, offset)
    }
    fn read_past_cache_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // A flush would have brought the cache to the device.
        self.now()?.0.read_at(buf, offset)
    }
    fn meta(&self) -> io::Result<Meta> {
        let (file, named) = self.now()?;
        let meta = file.meta()?;
        Ok(if named { meta } else { Meta { links: 0, ..meta } })
    }
    fn attribute(&self) -> io::Result<Option<Vec<u8>>> {
        self.now()?.0.attribute()
    }
    fn is_locked(&self) -> io::Result<bool> {
        let moment = self.replayed.call();
        Ok(self.replayed.recording.moments[moment].is_locked(self.slot))
    }
    fn lease(&self, at: u64) -> io::Result<bool> {
        // The recorded owner cannot see this reader, so the reader gets a lease only where a stand-in had one.
        let moment = self.replayed.call();
        let is_leased = self.replayed.recording.moments[moment].is_leased(self.slot, at);
        if is_leased && at != READ_AT {
            *self.replayed.leased.lock() = Some((self.slot, at, moment));
        }
        Ok(is_leased)
    }
    fn leased(&self, _: Range<u64>) -> io::Result<Option<u64>> {
        read_only()
    }
    fn sync_data(&self, _: SyncPoint) -> io::Result<()> {
        Ok(())
    }
    fn sync_all(&self, _: SyncPoint) -> io::Result<()> {
        Ok(())
    }
    fn write_out(&self, _: SyncPoint) -> io::Result<()> {
        read_only()
    }
    fn is_direct(&self) -> bool {
        false
    }
    fn size_max(&self) -> io::Result<u64> {
        self.now()?.0.size_max()
    }
    fn give_name(&self, _: &OsStr) -> io::Result<()> {
        read_only()
    }
    fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
        read_only()
    }
    fn clone_range(&self, _: &dyn File, _: u64, _: u64, _: u64) -> io::Result<()> {
        read_only()
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        read_only()
    }
    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        read_only()
    }
    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        read_only()
    }
    fn set_mode(&self, _: u32) -> io::Result<()> {
        read_only()
    }
    fn set_attribute(&self, _: &[u8]) -> io::Result<()> {
        read_only()
    }
    fn remove_attribute(&self) -> io::Result<()> {
        read_only()
    }
    fn try_claim(&self) -> io::Result<bool> {
        read_only()
    }
    fn lock(&self, _: bool) -> io::Result<bool> {
        read_only()
    }
    fn map(&self, _: &MapRequest) -> io::Result<Box<dyn Mapping>> {
        read_only()
    }
}
