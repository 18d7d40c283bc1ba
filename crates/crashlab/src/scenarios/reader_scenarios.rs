//! Scenarios with readers beside an owner.

use super::opening::failed;
use crate::lease_moments;
use crate::lease_stand_in::lease_newest;
use crate::readers::{readers_of, readers_of_what_waits};
use crate::runner::KillOnDrop;
use crate::simulation::{Options, SimDisk};
use std::path::PathBuf;
use std::time::Duration;
use untorn::{Error, StoreOptions};
use untorn_journal::leases::LEASES_HONOURED;
use untorn_journal::store_dir::StoreDir;

/// So many programs, each with so many readers, show each care for readers that is left out.
const PROGRAMS: u64 = 90;
const READERS: u64 = 60;

/// Readers at interleavings of their calls with those of owners.
pub(crate) fn readers_see_one_moment() -> Result<(), String> {
    (0..PROGRAMS).try_for_each(|seed| readers_of(seed, READERS, 0).map(drop))
}

/// Readers of a file that waits, whose commits are restated.
pub(crate) fn readers_see_what_waits() -> Result<(), String> {
    readers_of_what_waits(4 * READERS).map(drop)
}

/// A lease at each moment of what an owner does, by a reader anywhere in its own steps.
pub(crate) fn a_lease_comes_at_any_moment() -> Result<(), String> {
    match lease_moments::a_lease_comes_at_any_moment()? {
        0 => Err("no reader came to take a lease".into()),
        _ => Ok(()),
    }
}

/// How long an owner may pause beyond what it promises.
const SLACK: Duration = Duration::from_millis(50);

/// One timer bounds the wait for all leases, and one that was broken is waited for no more.
pub(crate) fn leases_bound_the_wait() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let open = || {
        let process = KillOnDrop(disk.spawn());
        let options = StoreOptions::default().background(false).sizes(64 << 10, 16 << 10, 32 << 10).page(true);
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
    let file = store.open_or_create("a").map_err(failed)?;
    let commit = |n: u8| file.write_all_at(&[n; 100], 0).and_then(|()| file.commit()).map_err(failed);
    let mut leases = Vec::new();
    for n in 1..4 {
        commit(n)?;
        leases.push(lease_newest(&disk).ok_or("the page tells of no commit")?);
    }
    commit(4)?;
    // The first two end before they must, the third does not.
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
