//! Scenarios over files and mappings: damage, and a second thread.

use super::opening::{failed, open};
use crate::simulation::Options;
use crate::simulation::SimDisk;
use std::path::PathBuf;
use untorn::{Error, FailureClass, MapOptions, Store, StoreOptions, Tracker};
use untorn_journal::format::{BLOCK_BYTES, HEADER_SLOTS, Key, RECORD_HEAD_BYTES, RecordHead, RecordKind};
use untorn_journal::store_dir::StoreDir;

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

/// Bytes of a commit that fills most of a segment.
const FILLING_BYTES: usize = 11 << 10;

/// A store whose one segment was full of these bytes. A smaller commit, which is not applied yet, has taken the place
/// where their record began.
fn recycled(filling: &[u8]) -> Result<SimDisk, String> {
    let disk = SimDisk::new(Options::default());
    let options = StoreOptions::default().background(false).sizes(16 << 10, 16 << 10, 12 << 10);
    let opened = options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new());
    let store = opened.map_err(failed)?;
    let file = store.open_or_create("a").map_err(failed)?;
    // Blocks 1 to 3 of the segment, then 0 to 2, 3, and 0.
    for bytes in [filling, filling, b"first", b"small"] {
        store.checkpoint().map_err(failed)?;
        file.write_all_at(bytes, 0).and_then(|()| file.commit()).map_err(failed)?;
    }
    disk.kill();
    Ok(disk)
}

/// A program writes what would be records if their checksums had no key. Once the segment is used again, recovery
/// meets these bytes.
pub(crate) fn contents_that_look_like_records_are_none() -> Result<(), String> {
    let segment = |disk: &SimDisk| disk.get(".untorn/journal/segment.0").map_err(|e| e.to_string());
    // Where the bytes come to lie, as everything happens again from the same seed.
    let mut rng = fastrand::Rng::with_seed(1);
    let marked: Vec<u8> = (0..FILLING_BYTES).map(|_| rng.u8(1..)).collect();
    let found = segment(&recycled(&marked)?)?;
    let mut filling = vec![0; FILLING_BYTES];
    let mut made = 0;
    for position in (0..found.len()).step_by(BLOCK_BYTES) {
        let left = &found[position..position + RECORD_HEAD_BYTES];
        let Some(at) = marked.windows(RECORD_HEAD_BYTES).position(|bytes| bytes == left) else { continue };
        let head = RecordHead {
            kind: RecordKind::DurableMark,
            body_by_reference: false,
            len: RECORD_HEAD_BYTES as u64,
            lsn: 1_000_000,
            epoch: 1,
            generation: 1_000_000,
            position: position as u64,
            previous_crc: 0,
            durable_lsn: 999_999,
        };
        head.seal(&mut filling[at..at + RECORD_HEAD_BYTES], Key(0));
        made += 1;
    }
    if made == 0 {
        return Err("nothing of the first commit is left in the segment".into());
    }
    let disk = recycled(&filling)?;
    open(&disk, FailureClass::Power).and_then(Store::close).map_err(failed)?;
    filling[..5].copy_from_slice(b"small");
    if disk.get("a").is_ok_and(|found| found == filling) { Ok(()) } else { Err("another file is there".into()) }
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
