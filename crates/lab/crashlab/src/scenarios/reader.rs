//! Scenarios with readers beside an owner.

use super::opening::failed;
use crate::programs::runner::KillOnDrop;
use crate::readers::{ReaderTotals, readers_of, readers_of_what_waits};
use crate::simulation::{Fault, On, Options, SimDisk, What};
use std::path::{Path, PathBuf};
use untorn::__private::{OpenStoreOn, open_reader_on};
use untorn::{Error, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::Storage;

/// The numbers of programs that show every broken invariant of readers.
const PROGRAMS: u64 = 800;
const PROGRAMS_THAT_KEEP: u64 = 40;
const PROGRAMS_WITH_WAITING: u64 = 200;

/// Readers in turns with owners.
pub(crate) fn readers_see_one_commit() -> Result<(), String> {
    let all = (0..PROGRAMS).chain(RARE);
    all.into_iter().try_for_each(|seed| readers_of(seed).map(drop))
}

/// Programs with turns that few others have: the first two show a first commit that does not wait for the note of an open
/// store, the others an index that is read before the header. Another order of calls needs others, which the test
/// `programs_of_readers_that_show_rare_invariants` finds: only two of 8,000 have the second kind.
const RARE: [u64; 4] = [1595, 2879, 1634, 5077];

/// Readers of a file that waits, and whose commits are restated.
pub(crate) fn readers_see_what_waits() -> Result<(), String> {
    (0..PROGRAMS_WITH_WAITING).try_for_each(|seed| readers_of_what_waits(seed).map(drop))
}

/// Owners keep old bytes for readers, and free them when the readers are gone. Each program checks the second at its
/// end.
pub(crate) fn kept_space_is_freed() -> Result<(), String> {
    let mut totals = ReaderTotals::default();
    for seed in 0..PROGRAMS_THAT_KEEP {
        totals += readers_of(seed)?;
    }
    match totals.kept_most {
        0 => Err("no owner kept anything for a reader".into()),
        _ => Ok(()),
    }
}

/// A reader of a closed store that has no page cannot lock anything, so its snapshot ends when somebody opens the store.
pub(crate) fn a_closed_store_without_a_page_is_watched() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let open = || {
        let process = KillOnDrop(disk.spawn());
        let options = StoreOptions::new().create(true).background(false);
        let store = options.open_on(process.0.clone(), StoreDir::of_directory(), PathBuf::new()).map_err(failed)?;
        Ok::<_, String>((store, process))
    };
    let write = |store: &Store, n: u8| {
        let file = store.open_or_create_file("a").map_err(failed)?;
        file.write_all_at(&[n; 5000], 0).and_then(|()| file.commit()).map_err(failed)
    };
    let (store, process) = open()?;
    write(&store, 1)?;
    store.close().map_err(failed)?;
    drop(process);
    disk.spawn().unlink(Path::new(".untorn/readers")).map_err(|e| e.to_string())?;
    let reading = KillOnDrop(disk.spawn());
    let reader = open_reader_on(reading.0.clone(), StoreDir::of_directory(), PathBuf::new()).map_err(failed)?;
    let file = reader.snapshot().and_then(|snapshot| snapshot.open("a")).map_err(failed)?;
    let mut byte = [0];
    file.read_at(&mut byte, 0).map_err(failed)?;
    if byte != [1] {
        return Err(format!("{byte:?} before"));
    }
    let (store, _process) = open()?;
    write(&store, 2)?;
    store.checkpoint().map_err(failed)?;
    match file.read_at(&mut byte, 0) {
        Err(Error::SnapshotEnded { .. }) => Ok(()),
        Ok(_) => Err(format!("{byte:?} of a snapshot that nobody keeps")),
        Err(e) => Err(e.to_string()),
    }
}

/// A commit whose flush fails is shown to no reader: it may be lost.
pub(crate) fn a_commit_whose_flush_fails_is_not_shown() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let process = KillOnDrop(disk.spawn());
    let options = StoreOptions::new().create(true).background(false);
    let store = options.open_on(process.0.clone(), StoreDir::of_directory(), PathBuf::new()).map_err(failed)?;
    let file = store.open_or_create_file("a").map_err(failed)?;
    let write = |n: u8| file.write_all_at(&[n], 0).and_then(|()| file.commit());
    write(1).map_err(failed)?;
    disk.fail(Fault { on: On::Sync, after: 0, times: 1, what: What::Errno(libc::EIO) });
    match write(2) {
        Err(Error::SyncFailed { .. }) => {}
        done => return Err(format!("a commit without its flush: {done:?}")),
    }
    let reading = KillOnDrop(disk.spawn());
    let reader = open_reader_on(reading.0.clone(), StoreDir::of_directory(), PathBuf::new()).map_err(failed)?;
    match &reader.read("a").map_err(failed)?[..] {
        [1] => Ok(()),
        other => Err(format!("a reader is shown {other:?}, which was not flushed")),
    }
}
