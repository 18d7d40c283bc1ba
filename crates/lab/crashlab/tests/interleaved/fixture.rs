//! A store under the scheduler, and a ledger of the allowed and required contents of its files.

use crate::interleaved::interleaved;
use parking_lot::Mutex;
use shuttle::rand::{Rng, thread_rng};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use untorn::__private::OpenStoreOn;
use untorn::{Error, File, Outcome, Result, Store, StoreOptions};
use untorn_crashlab::{Options, SimDisk, SimProcess, Snapshot};
use untorn_journal::directories::store_dir::StoreDir;

/// The size of an area. Each thread writes an area of its own, in one call: it is always full of one number.
const AREA_BYTES: usize = 1300;
/// The number of power cuts that are tried at the moment of a crash.
const CUTS: usize = 3;

/// For each area: the number that was acknowledged, and the highest that was tried.
type Areas = BTreeMap<(&'static str, u64), (u8, u8)>;

#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Areas>>);

impl Ledger {
    fn areas(&self) -> Areas {
        self.0.lock().clone()
    }

    fn with(&self, name: &'static str, area: u64, change: impl FnOnce(&mut (u8, u8))) {
        change(self.0.lock().entry((name, area)).or_default());
    }

    fn of(&self, name: &'static str, area: u64) -> (u8, u8) {
        self.areas().get(&(name, area)).copied().unwrap_or_default()
    }

    pub fn tried(&self, name: &'static str, area: u64, number: u8) {
        self.with(name, area, |(_, tried)| *tried = number);
    }

    pub fn done(&self, name: &'static str, area: u64, number: u8) {
        self.with(name, area, |(done, _)| *done = number);
    }

    /// Notes that the last number is not there, and will not come back.
    pub fn refused(&self, name: &'static str, area: u64) {
        self.with(name, area, |(_, tried)| *tried -= 1);
    }

    pub fn acknowledged(&self, name: &'static str, area: u64) -> u8 {
        self.of(name, area).0
    }
}

/// The state at the moment of a crash.
struct Moment {
    snapshot: Snapshot,
    areas: Areas,
}

pub struct Fixture {
    pub disk: SimDisk,
    process: Arc<SimProcess>,
    pub store: Store,
    options: StoreOptions,
    pub ledger: Ledger,
    crash: Mutex<Option<Moment>>,
    /// Set when calls may be refused.
    ending: AtomicBool,
}

impl Fixture {
    pub fn new(disk: Options, options: StoreOptions) -> Arc<Fixture> {
        Fixture::with_files(disk, options, &[])
    }

    /// A store with plain files that exist before it, in which all areas are zero.
    pub fn with_files(disk: Options, options: StoreOptions, names: &[&str]) -> Arc<Fixture> {
        let disk = SimDisk::new(disk);
        for name in names {
            disk.put(name, &[0; 4 * AREA_BYTES]).expect("an empty disk");
        }
        disk.settle();
        let process = disk.spawn();
        let store = open(interleaved(process.clone()), &options).expect("a healthy disk");
        let (ledger, crash) = (Ledger::default(), Mutex::new(None));
        Arc::new(Fixture { disk, process, store, options, ledger, crash, ending: AtomicBool::new(false) })
    }

    pub fn may_end(&self) {
        self.ending.store(true, SeqCst);
    }

    /// Returns a success; ends quietly if the end has begun; fails otherwise.
    pub fn ok<T>(&self, result: Result<T>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(e) if self.ending.load(SeqCst) => {
                assert!(!matches!(e, Error::Corrupt { .. }), "{e}");
                None
            }
            Err(e) => panic!("nothing stands in the way, and yet: {e}"),
        }
    }

    /// Writes the next numbers into an area and commits each.
    pub fn commit_numbers(&self, name: &'static str, area: u64, count: u8) {
        let Some(file) = self.ok(self.store.open_or_create_file(name)) else { return };
        for number in 1..=count {
            self.ledger.tried(name, area, number);
            if self.ok(write(&file, area, number).and_then(|()| file.commit())).is_none() {
                return;
            }
            self.ledger.done(name, area, number);
        }
    }

    /// Runs a checkpoint; the store may be closed already.
    pub fn checkpoint(&self) {
        self.ok(self.store.checkpoint());
    }

    /// Commits while a flush of the journal may fail: a commit that is reported as not committed must not be there.
    pub fn commit_while_it_goes_well(&self, name: &'static str, count: u8) {
        let file = self.store.open_file(name).expect("a file that is there");
        for number in 1..=count {
            self.ledger.tried(name, 0, number);
            match write(&file, 0, number).and_then(|()| file.commit()) {
                Ok(()) => self.ledger.done(name, 0, number),
                Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. }) => return,
                Err(e) => {
                    assert!(matches!(e, Error::SyncFailed { .. } | Error::Io { .. }), "{e}");
                    self.ledger.refused(name, 0);
                    return;
                }
            }
        }
    }

    /// Reads an area a few times: it must never be a mixture, older than acknowledged, or older than before.
    pub fn watch(&self, name: &'static str, area: u64, times: usize) {
        let mut last = 0;
        for _ in 0..times {
            let (done, _) = self.ledger.of(name, area);
            let file = match self.store.open_file(name) {
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound && done == 0 => continue,
                opened => opened,
            };
            let Some(number) = self.ok(file.and_then(|file| read(&file, area))) else { return };
            let (_, tried) = self.ledger.of(name, area);
            assert!((done..=tried).contains(&number), "{name}: {number} of {done}..={tried}");
            // A number that was refused at the end is discarded with the handle.
            assert!(last <= number || self.ending.load(SeqCst), "{name}: {number} after {last}");
            last = number;
        }
    }

    /// Kills the process at some moment, and keeps that moment.
    pub fn kill_at_some_time(&self, steps_most: usize) {
        for _ in 0..thread_rng().gen_range(0..steps_most) {
            shuttle::thread::yield_now();
        }
        self.may_end();
        // No other thread runs in between, as nothing here is a point of the scheduler.
        let moment = Moment { snapshot: self.disk.snapshot(), areas: self.ledger.areas() };
        self.process.kill();
        *self.crash.lock() = Some(moment);
    }

    /// Checks the state after the crash, or after one now, when all threads have ended.
    pub fn verify(&self) {
        let crash = self.crash.lock().take();
        let moment = crash.unwrap_or_else(|| Moment { snapshot: self.disk.snapshot(), areas: self.ledger.areas() });
        self.verify_after(&moment.snapshot.killed(), &moment.areas, "killed");
        for cut in moment.snapshot.cuts(CUTS, thread_rng().r#gen()) {
            self.verify_after(&moment.snapshot.power_cut(cut).disk, &moment.areas, &cut.to_string());
        }
    }

    fn verify_after(&self, disk: &SimDisk, areas: &Areas, how: &str) {
        let options = self.options.clone().background(false);
        let store = open(disk.process(), &options).unwrap_or_else(|e| panic!("{how}: {e}"));
        let quarantined: Vec<String> = store.status().quarantined.iter().map(|q| q.reason.clone()).collect();
        assert!(quarantined.is_empty(), "{how}: {quarantined:?}");
        for ((name, area), (done, tried)) in areas {
            let number = match store.open_file(name) {
                Ok(file) => read(&file, *area).unwrap_or_else(|e| panic!("{how}: {e}")),
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => 0,
                Err(e) => panic!("{how}: {e}"),
            };
            assert!((*done..=*tried).contains(&number), "{how}: {name} {area}: {number} of {done}..={tried}");
        }
        store.close().unwrap_or_else(|e| panic!("{how}: {e}"));
    }

    /// The number in the data file itself, without the journal.
    pub fn plain_number(&self, name: &str, area: u64) -> u8 {
        let contents = self.disk.get(name).unwrap_or_default();
        let from = (area as usize * AREA_BYTES).min(contents.len());
        uniform(&contents[from..(from + AREA_BYTES).min(contents.len())])
    }
}

fn open(storage: Arc<dyn untorn_os::Storage>, options: &StoreOptions) -> Result<Store> {
    options.open_on(storage, StoreDir::of_directory(), PathBuf::new())
}

/// Opens the store as another process would.
pub fn open_next(fixture: &Fixture) -> Result<Store> {
    open(fixture.disk.process(), &fixture.options.clone().background(false))
}

pub fn write(file: &File, area: u64, number: u8) -> Result<()> {
    file.write_all_at(&[number; AREA_BYTES], area * AREA_BYTES as u64)
}

fn read(file: &File, area: u64) -> Result<u8> {
    let mut bytes = [0; AREA_BYTES];
    let n = file.read_at(&mut bytes, area * AREA_BYTES as u64)?;
    Ok(uniform(&bytes[..n]))
}

fn uniform(bytes: &[u8]) -> u8 {
    let first = bytes.first().copied().unwrap_or(0);
    let mixture = bytes.iter().position(|b| *b != first);
    assert!(mixture.is_none(), "a mixture: {first}, and at {mixture:?} of {} another", bytes.len());
    first
}

/// Whether a file is plain: its attribute says that nothing is pending.
pub fn is_plain(disk: &SimDisk, path: &Path) -> bool {
    use untorn_journal::format::{Attribute, AttributeFound};
    let attribute = disk.entry(path).ok().and_then(|entry| entry.attribute);
    !matches!(Attribute::decode(attribute.as_deref()), AttributeFound::Valid(a) if a.pending)
}
