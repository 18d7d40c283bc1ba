//! Commits whose large ranges go to the spill file that all commits share, on file systems that share blocks: the record
//! and the contents are flushed at the same time, so either may reach the disk without the other.

use super::opening::failed;
use super::owners::{FILE_BYTES, NAMES, Run, new_disk, open, shown};
use crate::simulation::{Cut, Failed, Fault, On, Profile, What};
use untorn::__private::{OpenStoreOn, StoreSteps, sync_point};
use untorn::{Error, StoreOptions};
use untorn_os::SyncPoint;

const SHARING: [Profile; 2] = [Profile::Xfs, Profile::Btrfs];
const SEEDS: u64 = 2;

fn options() -> StoreOptions {
    let options = StoreOptions::new().create(true).background(false).sizes(128 << 10, 16 << 10, 64 << 10);
    options.shared_bytes_least(1000)
}

/// Spilled contents of durable commits are checked when they are used first.
fn unread() -> StoreOptions {
    options().index_bytes_least(0)
}

/// Owners crash at every call, three in a row.
pub(crate) fn shared_ranges_survive_every_crash() -> Result<(), String> {
    SHARING.into_iter().try_for_each(|profile| (0..SEEDS).try_for_each(|seed| crash_shared(profile, seed, None)))
}

/// Crashes owners at every call, on a disk of this kind, with this flush left out. The seed draws their commits.
pub fn crash_shared(profile: Profile, seed: u64, skipped: Option<SyncPoint>) -> Result<(), String> {
    let disk = new_disk(profile, seed);
    skipped.into_iter().for_each(|point| disk.skip(point));
    let options = if seed.is_multiple_of(2) { options() } else { unread() };
    Run::new(seed, options).live(&disk, 0).map_err(|what| format!("profile {profile:?}, seed {seed}: {what}"))
}

/// A flush of the spill file fails, and the page cache shows contents that the disk does not have. The next owner shows
/// one state, and the same after a power cut.
pub(crate) fn a_failed_flush_of_shared_ranges_is_noticed() -> Result<(), String> {
    for (profile, what) in
        SHARING.into_iter().flat_map(|profile| [Failed::Lost, Failed::Half].map(|what| (profile, what)))
    {
        let disk = new_disk(profile, 1);
        let mut run = Run::new(1, options());
        let (store, life) = open(&options(), &disk).map_err(failed)?;
        run.commit_bytes(&disk, &store, 5000).map_err(failed)?;
        let on = On::SyncPoint(sync_point::SPILL_CONTENTS);
        disk.fail(Fault { on, after: 0, times: 1, what: What::Writeback(what) });
        match run.commit_bytes(&disk, &store, 5000) {
            Err(Error::SyncFailed { .. }) => {}
            done => return Err(format!("a commit without the flush of its contents: {done:?}")),
        }
        drop((store, life));
        disk.kill();
        let (store, life) = open(&options(), &disk).map_err(failed)?;
        let found = shown(&store).map_err(failed)?;
        if !run.states.contains(&found) {
            return Err("a torn commit is shown".into());
        }
        let cut = disk.power_cut(Cut::Nothing).disk;
        drop((store, life));
        let (store, _life) = open(&options(), &cut).map_err(failed)?;
        if shown(&store).map_err(failed)? != found {
            return Err("a commit that was shown is lost".into());
        }
    }
    Ok(())
}

/// Damage in a range that a later record calls durable is no torn end.
pub(crate) fn damage_in_shared_ranges_is_no_torn_end() -> Result<(), String> {
    [options(), unread()].iter().try_for_each(damage_is_found)
}

fn damage_is_found(options: &StoreOptions) -> Result<(), String> {
    let disk = new_disk(Profile::Xfs, 1);
    let mut run = Run::new(1, options.clone());
    let (store, life) = open(options, &disk).map_err(failed)?;
    run.commit_bytes(&disk, &store, 5000).map_err(failed)?;
    for marked in [false, true] {
        if marked {
            store.write_durable_mark().map_err(failed)?;
        }
        let damaged = disk.fork();
        damaged.kill();
        for (path, entry) in damaged.tree() {
            let at = entry.contents.iter().position(|byte| *byte != 0);
            if let (true, Some(at)) = (path.to_string_lossy().starts_with(".untorn/journal/spill."), at) {
                damaged.overwrite(&path, at as u64, &[0]).map_err(|e| e.to_string())?;
            }
        }
        damaged.settle();
        let checkpointed = damaged.fork();
        match open(options, &damaged).and_then(|(store, _life)| shown(&store)) {
            Err(Error::Corrupt { .. }) if marked => {}
            Ok(state) if !marked && state == run.states[0] => {}
            shown => return Err(format!("durable {marked}: {:?}", shown.map(drop))),
        }
        // A checkpoint writes no damage to a data file.
        if let Ok((store, _life)) = open(options, &checkpointed) {
            let _ = store.checkpoint();
        }
        let untouched = |name: &&str| checkpointed.get(name).is_ok_and(|bytes| bytes == vec![1; FILE_BYTES]);
        if !NAMES.iter().all(untouched) {
            return Err(format!("durable {marked}: a checkpoint wrote damage"));
        }
    }
    drop((store, life));
    Ok(())
}
