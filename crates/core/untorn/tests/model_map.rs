//! Random programs that mix maps, the file interface, transactions, growth, truncation, rollback, checkpoints and
//! reopening of one file. They run on a store and on a model of plain vectors, and are compared in full after every
//! step, in memory and through the file interface. `UNTORN_TEST_SEED` chooses the programs; a failing program is
//! printed in its smallest form.

mod common;

use common::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::path::Path;
use untorn::__private::{Checkpoint, OpenStoreOn, StoreSteps};
use untorn::{File, Map, MapOptions, Store, StoreOptions, TrackerKind};
use untorn_testkit::Mount;

const PROGRAMS: u32 = 300;
/// Programs on each file system that shares blocks.
const PROGRAMS_SHARING: u32 = 60;
const STEPS_MAX: usize = 50;
const FILE_BYTES_MAX: usize = 60_000;
const PAGE: usize = 4096;

/// One step.
#[derive(Clone, Debug)]
enum Step {
    Map {
        offset: usize,
        whole: bool,
    },
    Unmap {
        map: usize,
    },
    /// An ordinary store of the program; clipped to the accessible bytes, including the last page's tail.
    Store {
        offset: usize,
        len: usize,
        byte: u8,
    },
    /// A store of the bytes that are there already, or of the committed ones.
    StoreOld {
        offset: usize,
        len: usize,
        committed: bool,
    },
    Write {
        offset: usize,
        len: usize,
        byte: u8,
    },
    Zero {
        offset: usize,
        len: usize,
    },
    Truncate {
        size: usize,
    },
    Commit,
    CommitAsync,
    Rollback,
    Syncv,
    Txn {
        commit: bool,
    },
    MarkDirty {
        offset: usize,
    },
    Quiesce,
    Checkpoint,
    /// Begins a checkpoint, which a later step of these ends.
    Cut,
    Apply,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![8 => 1..300usize, 2 => Just(PAGE), 1 => 8_000..FILE_BYTES_MAX];
    let offset = prop_oneof![6 => 0..FILE_BYTES_MAX, 2 => (0..10usize).prop_map(|page| page * PAGE), 2 => 0..128usize];
    prop_oneof![
        3 => (offset.clone(), prop::bool::weighted(0.7)).prop_map(|(offset, whole)| Step::Map { offset, whole }),
        1 => (0..3usize).prop_map(|map| Step::Unmap { map }),
        14 => (offset.clone(), len.clone(), any::<u8>()).prop_map(|(offset, len, byte)| Step::Store { offset, len, byte }),
        3 => (offset.clone(), len.clone(), any::<bool>())
            .prop_map(|(offset, len, committed)| Step::StoreOld { offset, len, committed }),
        4 => (offset.clone(), len.clone(), any::<u8>()).prop_map(|(offset, len, byte)| Step::Write { offset, len, byte }),
        2 => (offset.clone(), len).prop_map(|(offset, len)| Step::Zero { offset, len }),
        4 => offset.clone().prop_map(|size| Step::Truncate { size }),
        7 => Just(Step::Commit),
        2 => Just(Step::CommitAsync),
        3 => Just(Step::Rollback),
        1 => Just(Step::Syncv),
        2 => any::<bool>().prop_map(|commit| Step::Txn { commit }),
        1 => offset.prop_map(|offset| Step::MarkDirty { offset }),
        1 => Just(Step::Quiesce),
        2 => Just(Step::Checkpoint),
        2 => Just(Step::Cut),
        3 => Just(Step::Apply),
        1 => Just(Step::Reopen),
    ]
}

/// The settings of one program.
#[derive(Clone, Copy, Debug)]
struct Setup {
    tracker: TrackerKind,
    quiet: bool,
    full_page: bool,
    /// Whether commits write large ranges to a spill file whose blocks the file will share.
    shares: bool,
}

fn setup() -> impl Strategy<Value = Setup> {
    let tracker = prop_oneof![Just(TrackerKind::Scan), Just(TrackerKind::PageMap), Just(TrackerKind::Explicit)];
    let others = (any::<bool>(), prop::bool::weighted(0.2), any::<bool>());
    (tracker, others).prop_map(|(tracker, (quiet, full_page, shares))| Setup { tracker, quiet, full_page, shares })
}

struct Fixture {
    setup: Setup,
    file: Option<File>,
    maps: Vec<Map>,
    committed: Vec<u8>,
    working: Vec<u8>,
}

impl Fixture {
    fn file(&self) -> &File {
        self.file.as_ref().expect("open")
    }

    fn range(&self, offset: usize, len: usize) -> (usize, usize) {
        let start = offset.min(self.working.len());
        (start, (start + len).min(self.working.len()))
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        self.working.resize(self.working.len().max(end), 0);
        self.working[offset..end].copy_from_slice(bytes);
    }

    /// Stores as a program does, through a map that covers the offset.
    fn poke(&mut self, offset: usize, bytes: &[u8]) {
        let size = self.working.len().next_multiple_of(PAGE);
        let Some(map) = self.maps.iter().find(|m| m.offset() == 0) else { return };
        if offset >= size {
            return;
        }
        let bytes = &bytes[..bytes.len().min(size - offset)];
        // SAFETY: up to the end of the file's last page memory can be accessed, and only by this thread.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_mut_ptr().add(offset), bytes.len()) };
        if map.tracker().expect("a map") == TrackerKind::Explicit {
            map.mark_dirty(map.as_ptr().wrapping_add(offset), bytes.len()).expect("bytes of the map");
        }
        let inside = self.working.len().saturating_sub(offset).min(bytes.len());
        if inside > 0 {
            self.put(offset, &bytes[..inside]);
        }
    }

    fn open(&mut self, dir: &Path) -> Store {
        let store = StoreOptions::new()
            .create(true)
            .background(false)
            .full_page(self.setup.full_page)
            .sizes(64 << 10, 16 << 10, 8 << 10)
            .shared_bytes_least(if self.setup.shares { PAGE as u64 } else { u64::MAX })
            .open(dir)
            .expect("open");
        self.file = Some(store.open_or_create_file("f").expect("file"));
        store
    }

    fn close(&mut self, store: Store) {
        self.maps.clear();
        self.file = None;
        store.close().expect("close");
        self.working.clone_from(&self.committed);
    }

    /// Runs steps until the store is to be reopened.
    fn epoch<'a>(&mut self, store: &Store, steps: &mut impl Iterator<Item = &'a Step>) -> Result<bool, TestCaseError> {
        let mut begun: Option<(Checkpoint<'_>, bool)> = None;
        for step in steps {
            let finish = |begun: &mut Option<(Checkpoint<'_>, bool)>| {
                if let Some((checkpoint, applied)) = begun.take() {
                    let checkpoint = if applied { checkpoint } else { checkpoint.apply().expect("apply") };
                    checkpoint.truncate_log().expect("retire");
                }
            };
            match step {
                // A whole checkpoint cannot run beside one that has begun, and the small journal needs the checkpoint
                // to end.
                Step::Quiesce | Step::Checkpoint | Step::Reopen => finish(&mut begun),
                Step::Commit | Step::CommitAsync | Step::Syncv | Step::Txn { .. } if self.working.len() > 20_000 => {
                    finish(&mut begun);
                }
                _ => {}
            }
            match step {
                Step::Reopen => return Ok(true),
                Step::Cut if begun.is_none() => begun = store.begin_checkpoint().expect("cut").map(|c| (c, false)),
                Step::Cut => {}
                Step::Apply => match begun.take() {
                    Some((checkpoint, false)) => begun = Some((checkpoint.apply().expect("apply"), true)),
                    other => {
                        begun = other;
                        finish(&mut begun);
                    }
                },
                Step::Checkpoint => store.checkpoint().expect("checkpoint"),
                other => self.perform(store, other),
            }
            self.compare(step)?;
        }
        if let Some((checkpoint, false)) = begun {
            checkpoint.apply().expect("apply").truncate_log().expect("retire");
        }
        Ok(false)
    }

    fn perform(&mut self, store: &Store, step: &Step) {
        match *step {
            Step::Map { offset, whole } => {
                let offset = if whole || self.maps.is_empty() { 0 } else { offset.min(self.working.len()) };
                let options = MapOptions::new().tracker(self.setup.tracker).quiet(self.setup.quiet).debug_races(true);
                // Every store is declared, so the check finds nothing.
                let options = options.debug_unmarked(self.setup.quiet);
                let map = self.file().map_with(&options.offset(offset as u64)).expect("map");
                self.maps.push(map);
            }
            Step::Unmap { map } => {
                if map < self.maps.len() {
                    self.maps.remove(map).unmap().expect("unmap");
                }
            }
            Step::Store { offset, len, byte } => self.poke(offset, &vec![byte; len]),
            Step::StoreOld { offset, len, committed } => {
                let from = if committed { &self.committed } else { &self.working };
                let start = offset.min(from.len());
                let old = from[start..(start + len).min(from.len())].to_vec();
                if start + old.len() <= self.working.len() {
                    self.poke(start, &old);
                }
            }
            Step::Write { offset, len, byte } => {
                self.file().write_all_at(&vec![byte; len], offset as u64).expect("write");
                self.put(offset, &vec![byte; len]);
            }
            Step::Zero { offset, len } => {
                self.file().zero(offset as u64, len as u64).expect("zero");
                self.put(offset, &vec![0; len]);
            }
            Step::Truncate { size } => {
                self.file().set_len(size as u64).expect("truncate");
                self.working.resize(size, 0);
            }
            Step::Commit => {
                match self.maps.first() {
                    Some(map) => map.msync().expect("msync"),
                    None => self.file().commit().expect("commit"),
                }
                self.committed.clone_from(&self.working);
            }
            Step::CommitAsync => {
                let ticket = match self.maps.first() {
                    Some(map) => map.msync_async().expect("msync"),
                    None => self.file().commit_async().expect("commit"),
                };
                self.committed.clone_from(&self.working);
                ticket.wait().expect("durable");
            }
            Step::Rollback => {
                self.file().rollback().expect("rollback");
                self.working.clone_from(&self.committed);
            }
            Step::Syncv => {
                store.syncv(&[self.file()]).expect("syncv");
                self.committed.clone_from(&self.working);
            }
            Step::Txn { commit } => {
                let mut txn = store.begin();
                txn.add(self.file()).expect("add");
                self.poke(77, b"transaction");
                if commit {
                    txn.commit().expect("commit");
                    self.committed.clone_from(&self.working);
                } else {
                    txn.abort().expect("abort");
                    self.working.clone_from(&self.committed);
                }
            }
            Step::MarkDirty { offset } => {
                let (start, end) = self.range(offset, 1000);
                if let Some(map) = self.maps.iter().find(|m| m.offset() == 0) {
                    map.mark_dirty(map.as_ptr().wrapping_add(start), end - start).expect("mark");
                }
            }
            Step::Quiesce => {
                if let Some(map) = self.maps.first() {
                    map.reclaim().expect("quiesce");
                }
            }
            Step::Cut | Step::Apply | Step::Checkpoint | Step::Reopen => unreachable!("done above"),
        }
    }

    fn compare(&self, step: &Step) -> Result<(), TestCaseError> {
        prop_assert!(contents(self.file()) == self.working, "the file interface after {:?}", step);
        for map in &self.maps {
            let start = (map.offset() as usize).min(self.working.len());
            prop_assert_eq!(map.len() as usize, self.working.len() - start, "length after {:?}", step);
            // SAFETY: nobody else is here, and the slice is gone before the next step.
            let memory = unsafe { map.as_slice() };
            let wrong = memory.iter().zip(&self.working[start..]).position(|(a, b)| a != b);
            prop_assert_eq!(wrong, None, "memory at this offset of the map after {:?}", step);
        }
        Ok(())
    }
}

fn run(home: &Path, setup: Setup, start: usize, steps: &[Step]) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir_in(home).expect("a directory");
    let first: Vec<u8> = (0..start).map(|i| (i / 100) as u8 | 1).collect();
    std::fs::write(dir.path().join("f"), &first).expect("write");
    let mut fixture = Fixture { setup, file: None, maps: Vec::new(), committed: first.clone(), working: first };
    let mut steps = steps.iter();
    loop {
        let store = fixture.open(dir.path());
        let again = fixture.epoch(&store, &mut steps)?;
        fixture.close(store);
        prop_assert!(plain(dir.path().join("f")) == fixture.committed, "the plain file after a clean close");
        if !again {
            return Ok(());
        }
    }
}

#[test]
fn maps_files_and_transactions_agree_with_the_model() {
    agree(directory().path(), PROGRAMS);
}

#[test]
fn mappings_agree_with_the_model_where_their_files_share_blocks() {
    let dir = directory();
    for make in ["mkfs.xfs -q -m reflink=1", "mkfs.btrfs -q"] {
        let Some(mount) = Mount::made(make, 512 << 20, "", &dir.path().join("mount")) else { return };
        agree(mount.path(), PROGRAMS_SHARING);
    }
}

/// Runs random programs in a directory.
fn agree(home: &Path, programs: u32) {
    let seed = seed();
    let scan_works = File::open_or_create(home.join("probe"))
        .and_then(|f| f.map_with(&MapOptions::new().tracker(TrackerKind::Scan)).map(drop))
        .is_ok();
    if !scan_works {
        skipped("tracker scan: not on this kernel");
    }
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases: programs, failure_persistence: None, max_shrink_iters: 4000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let programs = (setup(), 0..FILE_BYTES_MAX, prop::collection::vec(step(), 1..STEPS_MAX));
    let done = runner.run(&programs, |(mut setup, start, steps)| {
        if !scan_works && setup.tracker == TrackerKind::Scan {
            setup.tracker = TrackerKind::PageMap;
        }
        run(home, setup, start, &steps)
    });
    if let Err(e) = done {
        panic!("seed {seed}: {e}");
    }
}
