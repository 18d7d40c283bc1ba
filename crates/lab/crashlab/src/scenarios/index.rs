//! Recovery by the indexes of the log: crashes between any two calls of owners that use all segments again and again,
//! and damage to indexes and segments.

use super::opening::failed;
use super::owners::{Run, new_disk, open, shown};
use crate::simulation::{Cut, PROFILES, Profile, SimDisk};
use std::path::{Path, PathBuf};
use untorn::__private::{OpenStoreOn, StoreSteps};
use untorn::{Error, StoreOptions};
use untorn_os::SyncPoint;

/// Segments of 4, 8, 8 and 8 blocks, of which the index tells from the first block on.
fn options() -> StoreOptions {
    let options = StoreOptions::new().create(true).background(false).sizes(128 << 10, 16 << 10, 8 << 10);
    options.index_bytes_least(0)
}

/// Owners crash at every call, three in a row.
pub(crate) fn an_indexed_log_survives_every_crash() -> Result<(), String> {
    PROFILES.into_iter().try_for_each(|profile| {
        begin_in_a_bounded_segment(profile, None)?;
        crash_indexed(profile, 1, None)
    })
}

/// Crashes owners at every call, on a disk of this kind, with this flush left out. The seed draws their commits.
pub fn crash_indexed(profile: Profile, seed: u64, skipped: Option<SyncPoint>) -> Result<(), String> {
    let disk = new_disk(profile, seed);
    skipped.into_iter().for_each(|point| disk.skip(point));
    Run::new(seed, options()).live(&disk, 0).map_err(|what| format!("profile {profile:?}, seed {seed}: {what}"))
}

/// A store begins in a segment of which an earlier use left a bound, and the owner is killed at some call of its first
/// commit; so the head that takes the bound back may be in the page cache only. The next owner commits, and the power
/// fails, without this flush.
pub fn begin_in_a_bounded_segment(profile: Profile, skipped: Option<SyncPoint>) -> Result<(), String> {
    let disk = new_disk(profile, 1);
    skipped.into_iter().for_each(|point| disk.skip(point));
    let mut run = Run::new(1, options());
    let (store, life) = open(&options(), &disk).map_err(failed)?;
    for _ in 0..20 {
        run.commit(&disk, &store).map_err(failed)?;
    }
    store.close().map_err(failed)?;
    drop(life);
    disk.record();
    let (store, life) = open(&options(), &disk).map_err(failed)?;
    run.commit_bytes(&disk, &store, 100).map_err(failed)?;
    let snapshots = disk.recorded();
    drop((store, life));
    for snapshot in snapshots {
        let (disk, mut run) = (snapshot.killed(), run.clone());
        let (store, _life) = open(&options(), &disk).map_err(failed)?;
        run.states = vec![shown(&store).map_err(failed)?];
        run.commit_bytes(&disk, &store, 100).map_err(failed)?;
        let cut = disk.power_cut(Cut::Nothing).disk;
        let (store, _life) = open(&options(), &cut).map_err(failed)?;
        if shown(&store).map_err(failed)? != run.states[1] {
            return Err(format!("killed before call {}: an earlier commit is shown", snapshot.call()));
        }
    }
    Ok(())
}

/// The store of a killed owner, with its states.
fn killed(seed: u64) -> Result<(SimDisk, Run), String> {
    let disk = new_disk(Profile::Ext4, seed);
    let mut run = Run::new(seed, options());
    let (store, _life) = open(&options(), &disk).map_err(failed)?;
    for n in 0..12 {
        if n == 4 {
            store.checkpoint().map_err(failed)?;
        }
        run.commit(&disk, &store).map_err(failed)?;
    }
    store.write_durable_mark().map_err(failed)?;
    disk.kill();
    Ok((disk, run))
}

fn logs(disk: &SimDisk, beginning: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let is_one = |path: &Path| path.to_string_lossy().starts_with(&format!(".untorn/journal/{beginning}."));
    disk.tree().into_iter().filter(|(path, _)| is_one(path)).map(|(path, entry)| (path, entry.contents)).collect()
}

/// Damages every fourth byte that is not zero in the indexes, and many in the segments: an opening shows the last commit,
/// or says that something is damaged, and shows no other one.
pub(crate) fn an_index_hides_no_damage() -> Result<(), String> {
    let (disk, run) = killed(5)?;
    let last = run.states.last().expect("a state");
    let mut found = 0;
    for (kind, step) in [("index", 4), ("segment", 59)] {
        for (path, bytes) in logs(&disk, kind) {
            for at in (0..bytes.len()).step_by(step).filter(|at| bytes[*at] != 0) {
                let damaged = disk.fork();
                damaged.overwrite(&path, at as u64, &[!bytes[at]]).map_err(|e| e.to_string())?;
                damaged.settle();
                match open(&options(), &damaged).and_then(|(store, _life)| shown(&store)) {
                    Ok(state) if state == *last => {}
                    Err(Error::Corrupt { .. }) if kind == "segment" => found += 1,
                    Ok(_) => return Err(format!("byte {at} of {}: another commit is shown", path.display())),
                    Err(e) => return Err(format!("byte {at} of {}: {e}", path.display())),
                }
            }
        }
    }
    if found == 0 { Err("no damage was found".into()) } else { Ok(()) }
}

/// The indexes of an earlier time are put in the place of the newest ones, as by an incomplete backup.
pub(crate) fn an_index_of_another_time_is_not_believed() -> Result<(), String> {
    let disk = new_disk(Profile::Ext4, 3);
    let mut run = Run::new(3, options());
    let (store, _life) = open(&options(), &disk).map_err(failed)?;
    let mut earlier = Vec::new();
    for _ in 0..12 {
        run.commit(&disk, &store).map_err(failed)?;
        earlier.push(logs(&disk, "index"));
    }
    disk.kill();
    for indexes in earlier {
        let mixed = disk.fork();
        for (n, (path, _)) in logs(&disk, "index").into_iter().enumerate() {
            // Not removed, so that no copy gets the inode number.
            mixed.rename(&path, format!("newest-{n}")).map_err(|e| e.to_string())?;
        }
        for (path, bytes) in indexes {
            mixed.put(&path, &bytes).map_err(|e| e.to_string())?;
        }
        let (store, _life) = open(&options(), &mixed).map_err(failed)?;
        if shown(&store).map_err(failed)? != run.states[run.states.len() - 1] {
            return Err("an earlier commit is shown".into());
        }
    }
    Ok(())
}
