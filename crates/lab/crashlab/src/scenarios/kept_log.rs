//! The kept log and the list of epochs, where no crash at a random call shows that a step is needed.

use super::opening::failed;
use super::slot::{reader, slot, written};
use crate::simulation::{Options, SimDisk};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use untorn::__private::OpenStoreOn;
use untorn::reader::{Acknowledged, Followed};
use untorn::{Point, Reader, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::format::BLOCK_BYTES;
use untorn_journal::slots::epochs::EPOCH_START_BYTES;
use untorn_os::Storage;

const LIST: &str = ".untorn/epochs";

/// Opens the store, with a commit if the file `a` is not there yet.
fn open(disk: &SimDisk) -> Result<Store, String> {
    open_with(disk, StoreOptions::new().sizes(32 << 10, 8 << 10, 2 << 10))
}

/// With room for some larger commits in a segment.
fn open_roomy(disk: &SimDisk) -> Result<Store, String> {
    open_with(disk, StoreOptions::new().sizes(128 << 10, 32 << 10, 16 << 10))
}

fn open_with(disk: &SimDisk, options: StoreOptions) -> Result<Store, String> {
    let options = options.create(true).background(false).page(true);
    options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new()).map_err(failed)
}

fn commit(store: &Store, byte: u8) -> Result<(), String> {
    let file = store.open_or_create_file("a").map_err(failed)?;
    file.write_all_at(&[byte; 700], 0).and_then(|()| file.commit()).map_err(failed)
}

/// A closed store with one commit and a slot that has it; its consumer, and that commit.
fn store_with_slot(options: Options) -> Result<(SimDisk, Arc<dyn Storage>, Point), String> {
    let disk = SimDisk::new(options);
    let store = open(&disk)?;
    commit(&store, 1)?;
    store.close().map_err(failed)?;
    let consumer: Arc<dyn Storage> = disk.spawn();
    let point = slot(&consumer)?.acknowledged().map_err(failed)?.ok_or("a new slot has nothing")?.point;
    Ok((disk, consumer, point))
}

/// The first bytes of the commits behind this one.
fn shipped(consumer: &Arc<dyn Storage>, from: Point) -> Result<Vec<u8>, String> {
    let reader = reader(consumer)?;
    let last = Reader::last_commit(&reader).map_err(failed)?.lsn;
    let mut follow = reader.follow_from_point(from).map_err(failed)?;
    let mut found = Vec::new();
    while follow.lsn() < last {
        match follow.next_within(Duration::ZERO).map_err(failed)? {
            Some(Followed::Commit(commit)) => found.extend(written(&commit)?.first()),
            Some(missed) => return Err(format!("behind {found:?}: {missed:?}")),
            None => {}
        }
    }
    Ok(found)
}

fn is_shipped(consumer: &Arc<dyn Storage>, from: Point, expected: &[u8]) -> Result<(), String> {
    let found = shipped(consumer, from)?;
    match found == expected {
        true => Ok(()),
        false => Err(format!("the slot has {found:?}, and {expected:?} were committed")),
    }
}

/// Many openings without a commit must not push the epochs of commits out of the list.
pub(crate) fn openings_without_commits_leave_no_epochs() -> Result<(), String> {
    let (disk, consumer, point) = store_with_slot(Options::default())?;
    let bytes = || disk.get(LIST).map(|list| list.len()).map_err(|e| e.to_string());
    let open_and_close = || open(&disk)?.close().map_err(failed);
    open_and_close()?;
    let before = bytes()?;
    for _ in 0..8 {
        open_and_close()?;
    }
    if bytes()? > before + 2 * EPOCH_START_BYTES {
        return Err("the list of epochs grows with every opening".into());
    }
    let store = open(&disk)?;
    commit(&store, 2)?;
    store.close().map_err(failed)?;
    is_shipped(&consumer, point, &[2])
}

/// The list of epochs is put back to an older state than the journal. A commit that another copy of the store made in the
/// last epoch of that list is not one of this store, although it has the LSN.
pub(crate) fn an_older_list_of_epochs_claims_no_commits() -> Result<(), String> {
    let (disk, consumer, _) = store_with_slot(Options::default())?;
    let store = open(&disk)?;
    commit(&store, 2)?;
    let last = Reader::last_commit(&reader(&consumer)?).map_err(failed)?;
    store.close().map_err(failed)?;
    let older = disk.get(LIST).map_err(|e| e.to_string())?;
    let store = open(&disk)?;
    (3..9).try_for_each(|byte| commit(&store, byte))?;
    store.close().map_err(failed)?;
    disk.put(LIST, &older).map_err(|e| e.to_string())?;
    let _store = open(&disk)?;
    let other = Point { lsn: last.lsn + 2, ..last };
    match reader(&consumer)?.contains(other).map_err(failed)? {
        true => Err(format!("commit {other} counts as one of this store, which made another one")),
        false => Ok(()),
    }
}

/// A slot of a store that was put back acknowledges a commit that this store does not hold: the log stays.
pub(crate) fn another_stores_acknowledgement_frees_no_log() -> Result<(), String> {
    let (disk, consumer, point) = store_with_slot(Options::default())?;
    let other = Point { epoch: 1, lsn: point.lsn + 1000 };
    slot(&consumer)?.acknowledge(&Acknowledged { point: other, ..Acknowledged::default() }).map_err(failed)?;
    let store = open(&disk)?;
    for byte in 2..12 {
        commit(&store, byte)?;
        store.checkpoint().map_err(failed)?;
    }
    store.close().map_err(failed)?;
    is_shipped(&consumer, point, &(2..12).collect::<Vec<u8>>())
}

/// The disk has room for a list of epochs, and not for a segment: the next owner needs none, and the slot keeps its log.
pub(crate) fn a_store_with_a_slot_opens_on_a_full_disk() -> Result<(), String> {
    let (disk, consumer, point) = store_with_slot(Options::default())?;
    let store = open(&disk)?;
    commit(&store, 2)?;
    store.close().map_err(failed)?;
    disk.fill_up(true, false);
    disk.set_options(|options| options.capacity_bytes = options.capacity_bytes.map(|bytes| bytes + 4096));
    let store = open(&disk)?;
    commit(&store, 3)?;
    is_shipped(&consumer, point, &[2, 3])
}

/// The offset of the first of these bytes in the segments of the journal, which lie one behind the other.
fn place_in_log(disk: &SimDisk, byte: u8) -> Result<usize, String> {
    let segments = disk.process().list(Path::new(".untorn/journal")).map_err(|e| e.to_string())?;
    let mut log = Vec::new();
    for name in segments.iter().filter(|name| name.to_string_lossy() != "header") {
        let bytes = disk.get(Path::new(".untorn/journal").join(name)).map_err(|e| e.to_string())?;
        log.extend(bytes);
    }
    log.windows(64).position(|window| window == [byte; 64]).ok_or_else(|| format!("no {byte} in the log"))
}

/// Commits 2 and 3 in one group.
fn commit_two(store: &Store, first_bytes: usize) -> Result<(), String> {
    let (a, b) = (store.open_file("a").map_err(failed)?, store.open_file("b").map_err(failed)?);
    a.write_all_at(&vec![2; first_bytes], 0).and_then(|()| b.write_all_at(&[3; 700], 0)).map_err(failed)?;
    let tickets = [a.commit_async().map_err(failed)?, b.commit_async().map_err(failed)?];
    tickets.iter().try_for_each(|ticket| ticket.wait()).map_err(failed)
}

/// The power fails in the flush of two commits, of which recovery drops the first one, and so the second one. The next
/// owner writes one commit in their place, so that the dropped second one follows it in the segment that is kept.
pub(crate) fn what_recovery_dropped_is_not_shipped() -> Result<(), String> {
    let (disk, consumer, _) = store_with_slot(Options::default())?;
    let store = open_roomy(&disk)?;
    commit(&store, 1)?;
    store
        .open_or_create_file("b")
        .and_then(|b| b.write_all_at(&[1; 700], 0).and_then(|()| b.commit()))
        .map_err(failed)?;
    // The second record is to begin on a block, where a scan finds it although the first one is broken.
    commit_two(&store, 704)?;
    let between = place_in_log(&disk, 3)? - place_in_log(&disk, 2)?;
    let point = Reader::last_commit(&reader(&consumer)?).map_err(failed)?;
    slot(&consumer)?.acknowledge(&Acknowledged { point, ..Acknowledged::default() }).map_err(failed)?;
    disk.record();
    commit_two(&store, 704 + between.next_multiple_of(BLOCK_BYTES) - between)?;
    for snapshot in disk.recorded() {
        for cut in snapshot.cuts(64, snapshot.call()) {
            let disk = snapshot.power_cut(cut).disk;
            let consumer: Arc<dyn Storage> = disk.spawn();
            let store = open_roomy(&disk)?;
            let mut expected = shipped(&consumer, point)?;
            commit(&store, 4)?;
            store.close().map_err(failed)?;
            let store = open_roomy(&disk)?;
            commit(&store, 5)?;
            store.close().map_err(failed)?;
            expected.extend([4, 5]);
            let at = |what| format!("after a crash before call {}, {cut}: {what}", snapshot.call());
            is_shipped(&consumer, point, &expected).map_err(at)?;
        }
    }
    Ok(())
}
