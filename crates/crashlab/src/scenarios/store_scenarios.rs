//! Scenarios over files and mappings: damage, and a second thread.

use super::opening::{failed, open};
use crate::simulation::Options;
use crate::simulation::SimDisk;
use untorn::{Error, FailureClass, MapOptions, Store, Tracker};
use untorn_journal::format::{BLOCK_BYTES, HEADER_SLOTS};

fn is_refused(opened: Result<Store, Error>) -> Result<(), String> {
    match opened {
        Err(Error::Corrupt { .. }) => Ok(()),
        Err(e) => Err(format!("another error: {e}")),
        Ok(_) => Err("the store opens as if nothing were missing".into()),
    }
}

/// The first of two records is damaged: the second tells that it was durable.
pub(crate) fn damage_before_durable_commits_is_no_torn_end() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let file = store.open_or_create("a").map_err(failed)?;
    for text in [b"one", b"two"] {
        file.write_all_at(text, 0).and_then(|()| file.commit()).map_err(failed)?;
    }
    disk.kill();
    disk.overwrite(".untorn/journal/segment.0", 20, &[0xff]).map_err(|e| e.to_string())?;
    is_refused(open(&disk, FailureClass::Power))
}

/// The header that named the boot is damaged, the machine went down, and the header before it knows nothing
/// of commits that were never flushed.
pub(crate) fn a_lost_header_is_missed() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    open(&disk, FailureClass::Process).and_then(Store::close).map_err(failed)?;
    let before = disk.get(".untorn/journal/header").map_err(|e| e.to_string())?;
    let store = open(&disk, FailureClass::Process).map_err(failed)?;
    let file = store.open_or_create("a").map_err(failed)?;
    file.write_all_at(b"one", 0).and_then(|()| file.commit()).map_err(failed)?;
    let after = disk.get(".untorn/journal/header").map_err(|e| e.to_string())?;
    disk.settle();
    disk.power_cut(crate::Cut::Nothing);
    let newest = (0..HEADER_SLOTS as usize).map(|slot| slot * BLOCK_BYTES).find(|at| before[*at..] != after[*at..]);
    let newest = newest.ok_or("no header names the boot")?;
    disk.overwrite(".untorn/journal/header", newest as u64 + 30, &[0xff]).map_err(|e| e.to_string())?;
    is_refused(open(&disk, FailureClass::Power))
}

/// Another thread stores to a page while it is being committed, at every moment in turn.
pub(crate) fn a_racing_store_is_in_this_commit_or_the_next() -> Result<(), String> {
    for tracker in [Tracker::Scan, Tracker::PageMap] {
        for nth in 0.. {
            let disk = SimDisk::new(Options::default());
            disk.put("a", &[b'.'; 6000]).map_err(|e| e.to_string())?;
            let store = open(&disk, FailureClass::Power).map_err(failed)?;
            let file = store.open_file("a").map_err(failed)?;
            let map = file.map_with(&MapOptions::new().tracker(tracker).address_space(1 << 16)).map_err(failed)?;
            let store_to = |at: usize| map.as_ptr().wrapping_add(at);
            disk.store(store_to(10), b"first").map_err(|e| e.to_string())?;
            let race = disk.calls() + nth;
            disk.store_at(race, store_to(200), b"race");
            map.msync().map_err(failed)?;
            if disk.calls() <= race {
                break;
            }
            map.msync().map_err(failed)?;
            let after = disk.fork();
            drop((map, file));
            open(&after, FailureClass::Power).and_then(Store::close).map_err(failed)?;
            let found = after.get("a").map_err(|e| e.to_string())?;
            if (&found[10..15], &found[200..204]) != (b"first", b"race") {
                return Err(format!("tracker {tracker}: a store right before call {nth} of a commit is lost"));
            }
        }
    }
    Ok(())
}

/// A large change that is changed again and again leaves another large change of the same commit alone.
pub(crate) fn what_is_spilled_is_overwritten_by_nothing_else() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let file = store.open_or_create("a").map_err(failed)?;
    file.write_all_at(&[1; 40_000], 100_000).map_err(failed)?;
    for round in 2..8 {
        file.write_all_at(&[round; 40_000], 0).map_err(failed)?;
    }
    for when in ["uncommitted", "committed"] {
        let mut found = vec![0; 140_000];
        file.read_exact_at(&mut found, 0).map_err(failed)?;
        if found[..40_000] != [7; 40_000] || found[100_000..] != [1; 40_000] {
            return Err(format!("{when}, the file has bytes of another change"));
        }
        file.commit().map_err(failed)?;
    }
    let after = disk.fork();
    open(&after, FailureClass::Power).and_then(Store::close).map_err(failed)?;
    let found = after.get("a").map_err(|e| e.to_string())?;
    match found[..40_000] == [7; 40_000] && found[100_000..] == [1; 40_000] {
        true => Ok(()),
        false => Err("recovery finds bytes of another change".into()),
    }
}
