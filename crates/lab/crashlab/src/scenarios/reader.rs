//! Scenarios with readers beside an owner.

use super::opening::failed;
use crate::programs::runner::KillOnDrop;
use crate::readers::lease_moments;
use crate::readers::lease_stand_in::lease_newest;
use crate::readers::{readers_of, readers_of_what_waits};
use crate::simulation::{Options, SimDisk};
use std::path::{Path, PathBuf};
use std::time::Duration;
use untorn::__private::{OpenStoreOn, open_reader_on};
use untorn::reader::Snapshot;
use untorn::{Error, Reader, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::readers::leases::LEASES_HONOURED;
use untorn_journal::readers::readers_page::{Cell, PAGE_CELL_BYTES, PAGE_CELLS_AT};
use untorn_os::{Open, Storage};

/// The numbers of programs, and of readers of each, that show every broken invariant of readers.
const PROGRAMS: u64 = 90;
const READERS: u64 = 60;

/// Readers at interleavings of their calls with those of owners.
pub(crate) fn readers_see_one_moment() -> Result<(), String> {
    (0..PROGRAMS).try_for_each(|seed| readers_of(seed, READERS, 0).map(drop))
}

/// Readers of a file that waits, and whose commits are restated.
pub(crate) fn readers_see_what_waits() -> Result<(), String> {
    readers_of_what_waits(4 * READERS).map(drop)
}

/// A lease at each moment of an owner's action, by a reader at any of its own steps.
pub(crate) fn a_lease_comes_at_any_moment() -> Result<(), String> {
    match lease_moments::a_lease_comes_at_any_moment()? {
        0 => Err("no reader came to take a lease".into()),
        _ => Ok(()),
    }
}

/// The time by which an owner's wait may exceed its promise.
const SLACK: Duration = Duration::from_millis(50);

/// One timer bounds the wait for all leases, and a broken lease is not waited for again.
pub(crate) fn leases_bound_the_wait() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let open = || {
        let process = KillOnDrop(disk.spawn());
        let options = StoreOptions::new().create(true).background(false).sizes(64 << 10, 16 << 10, 32 << 10).page(true);
        let store = options.open_on(process.0.clone(), StoreDir::of_directory(), PathBuf::new()).map_err(failed)?;
        Ok::<_, String>((store, process))
    };
    let took = |act: &dyn Fn() -> untorn::Result<()>, least: Duration, what: &str| {
        let since = disk.machine().uptime;
        act().map_err(failed)?;
        let waited = disk.machine().uptime - since;
        match waited >= least && waited <= least + SLACK {
            true => Ok(()),
            false => Err(format!("{what} waited {waited:?}, not {least:?}")),
        }
    };
    let (store, process) = open()?;
    let file = store.open_or_create_file("a").map_err(failed)?;
    let commit = |n: u8| file.write_all_at(&[n; 100], 0).and_then(|()| file.commit()).map_err(failed);
    let mut leases = Vec::new();
    for n in 1..4 {
        commit(n)?;
        leases.push(lease_newest(&disk).ok_or("the page tells of no commit")?);
    }
    commit(4)?;
    // The first two leases end before they must, the third does not.
    let ends = [Duration::from_secs(9), Duration::from_secs(18)];
    disk.let_others(Box::new(move |machine, _| {
        for (end, lease) in ends.iter().zip(&leases) {
            if machine.uptime >= *end {
                machine.leases.retain(|(_, at, _)| at != lease);
            }
        }
    }));
    took(&|| store.checkpoint(), LEASES_HONOURED, "a checkpoint, for three leases,")?;
    commit(5)?;
    took(&|| store.checkpoint(), Duration::ZERO, "a checkpoint, for a broken lease,")?;
    lease_newest(&disk).ok_or("the page tells of no commit")?;
    commit(6)?;
    drop(file);
    took(&|| store.clone().close(), LEASES_HONOURED, "closing")?;
    drop((store, process));
    took(
        &|| open().map(drop).map_err(|_| Error::Closed),
        Duration::ZERO,
        "opening, for a lease of a life that ended,",
    )?;
    let (store, process) = open()?;
    lease_newest(&disk).ok_or("the page tells of no commit")?;
    process.0.kill();
    drop(store);
    took(
        &|| open().map(drop).map_err(|_| Error::Closed),
        LEASES_HONOURED,
        "opening, for a lease that a killed owner left,",
    )
}

fn owner_on(disk: &SimDisk, leases: Duration) -> Result<(Store, KillOnDrop), String> {
    let process = KillOnDrop(disk.spawn());
    let options = StoreOptions::new().create(true).background(false).leases(leases).page(true);
    let store = options.open_on(process.0.clone(), StoreDir::of_directory(), PathBuf::new()).map_err(failed)?;
    Ok((store, process))
}

fn reader_on(disk: &SimDisk) -> Result<(Reader, KillOnDrop), String> {
    let process = KillOnDrop(disk.spawn());
    let reader = open_reader_on(process.0.clone(), StoreDir::of_directory(), PathBuf::new()).map_err(failed)?;
    Ok((reader, process))
}

fn first_byte(snapshot: &Snapshot, name: &str) -> untorn::Result<u8> {
    let mut byte = [0];
    snapshot.open(name)?.read_at(&mut byte, 0).map(|_| byte[0])
}

/// Two owners with the same process id, as in containers, are killed one after the other. Data read beside the first is
/// not of one moment with the state that the second left.
pub(crate) fn two_owners_of_one_process_id_are_told_apart() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let (store, process) = owner_on(&disk, LEASES_HONOURED)?;
    for name in ["a", "b"] {
        let file = store.open_or_create_file(name).map_err(failed)?;
        file.write_all_at(&[1; 100], 0).and_then(|()| file.commit()).map_err(failed)?;
    }
    store.close().map_err(failed)?;
    drop(process);
    let (store, process) = owner_on(&disk, LEASES_HONOURED)?;
    process.0.kill();
    drop((store, process));
    let (reader, _process) = reader_on(&disk)?;
    let snapshot = reader.snapshot().map_err(failed)?;
    let before = first_byte(&snapshot, "a").map_err(failed)?;
    let (store, process) = owner_on(&disk, LEASES_HONOURED)?;
    let mut txn = store.begin();
    let names = [("new a", "a"), ("new b", "b")];
    for (made, name) in names {
        let file = txn.create(made, 0o644).map_err(failed)?;
        file.write_all_at(&[2; 100], 0).and_then(|()| txn.rename(made, name)).map_err(failed)?;
    }
    txn.commit().map_err(failed)?;
    process.0.kill();
    drop((store, process));
    match first_byte(&snapshot, "b") {
        Ok(after) => Err(format!("of one snapshot, {before} in one file and {after} in the other")),
        Err(Error::SnapshotExpired { .. }) => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

/// The commits that the owner wants to apply.
fn wanted_to(storage: &dyn Storage) -> Result<u64, String> {
    let page = storage.open(Path::new(".untorn/readers"), Open::READ).map_err(|e| e.to_string())?;
    let mut lsn = [0; 8];
    let at = PAGE_CELLS_AT + Cell::WantedTo as usize * PAGE_CELL_BYTES;
    untorn_os::read_full_at(&*page, &mut lsn, at as u64).map_err(|e| e.to_string())?;
    Ok(u64::from_le_bytes(lsn))
}

/// A file is removed during a checkpoint, which therefore leaves it out, and truncates the log with the file's commits.
/// A reader with a lease on such a commit still sees it, after any look at the log.
pub(crate) fn what_a_checkpoint_leaves_out_is_kept_for_who_holds_it() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let (store, _process) = owner_on(&disk, Duration::MAX)?;
    let mut txn = store.begin();
    txn.mkdir("d", 0o700).and_then(|()| txn.commit()).map_err(failed)?;
    let write = |name: &str, n: u8| {
        let file = store.open_or_create_file(name).map_err(failed)?;
        file.write_all_at(&[n; 5000], 0).and_then(|()| file.commit()).map_err(failed)
    };
    write("a", 1)?;
    write("b", 1)?;
    store.checkpoint().map_err(failed)?;
    let (reader, reading) = reader_on(&disk)?;
    let older = reader.held_snapshot().map_err(failed)?;
    write("b", 2)?;
    write("a", 2)?;
    let held = reader.held_snapshot().map_err(failed)?;
    // The checkpoint has chosen its files, and waits for the lease on the older commit. Meanwhile the file is removed.
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| store.checkpoint());
        let removed = loop {
            match wanted_to(&*reading.0) {
                Ok(to) if to < held.lsn() && !checkpoint.is_finished() => std::thread::yield_now(),
                told => break told,
            }
        }
        .and_then(|_| {
            let mut txn = store.begin();
            txn.unlink("a").and_then(|()| txn.chmod("d", 0o750)).and_then(|()| txn.commit()).map_err(failed)
        });
        drop(older);
        checkpoint.join().expect("no panic").map_err(failed)?;
        removed
    })?;
    // The log does not have the directory's old mode, so the reader looks at the log again.
    match held.metadata("d") {
        Err(Error::SnapshotExpired { .. }) => {}
        other => return Err(format!("{other:?} of a directory with another mode")),
    }
    match (first_byte(&held, "a").map_err(failed)?, first_byte(&held, "b").map_err(failed)?) {
        (2, 2) => Ok(()),
        seen => Err(format!("{seen:?}, and not what was committed")),
    }
}

/// An event between two looks of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// The owner applies newer commits.
    Applied,
    /// The next owner of a store that nobody had open applies them.
    ClosedThenApplied,
    /// The readers' page is removed when its owner was killed, so that the next owner cannot see the readers.
    PageTaken,
}

/// A reader that has just looked at the page relies on that look for a short time. A write after that look must never
/// be shown, however soon it comes: no time passes here at all, unless the owner lets some pass.
pub(crate) fn what_was_seen_counts_for_a_moment() -> Result<(), String> {
    [Behind::Applied, Behind::ClosedThenApplied, Behind::PageTaken].into_iter().try_for_each(behind)
}

fn behind(what: Behind) -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let write = |store: &Store, n: u8| {
        let file = store.open_or_create_file("a").map_err(failed)?;
        file.write_all_at(&[n; 100], 0).and_then(|()| file.commit()).map_err(failed)
    };
    let (store, process) = owner_on(&disk, LEASES_HONOURED)?;
    write(&store, 1)?;
    store.checkpoint().map_err(failed)?;
    let owner = match what {
        Behind::ClosedThenApplied => {
            store.close().map_err(failed)?;
            None
        }
        _ => Some((store, process)),
    };
    let (reader, _reading) = reader_on(&disk)?;
    let snapshot = reader.snapshot().map_err(failed)?;
    let file = snapshot.open("a").map_err(failed)?;
    let read = || {
        let mut bytes = [0; 100];
        file.read_at(&mut bytes, 0).map(|_| bytes)
    };
    let calls = disk.calls();
    (0..10).try_for_each(|_| read().map(drop)).map_err(failed)?;
    let asked = disk.calls() - calls;
    if asked > 10 {
        return Err(format!("{what:?}: {asked} calls for 10 reads, right after a look"));
    }
    let (store, process) = match owner {
        Some((store, process)) if what == Behind::PageTaken => {
            process.0.kill();
            drop((store, process));
            disk.spawn().unlink(Path::new(".untorn/readers")).map_err(|e| e.to_string())?;
            owner_on(&disk, LEASES_HONOURED)?
        }
        Some(owner) => owner,
        None => owner_on(&disk, LEASES_HONOURED)?,
    };
    write(&store, 2)?;
    store.checkpoint().map_err(failed)?;
    let shown = read();
    drop((store, process));
    match shown {
        Err(Error::SnapshotExpired { .. }) => Ok(()),
        Ok(bytes) => Err(format!("{what:?}: {} after a checkpoint of what is newer", bytes[0])),
        Err(e) => Err(e.to_string()),
    }
}
