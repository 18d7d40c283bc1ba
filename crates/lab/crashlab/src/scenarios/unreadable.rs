//! Scenarios in which the disk returns read errors for a block of the journal.

use super::opening::{failed, open};
use crate::simulation::{Options, SimDisk};
use std::path::PathBuf;
use untorn::{Error, FailureClass, Store};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::journal::Options as JournalOptions;
use untorn_journal::recovery::{OpenOptions, open as open_journal};

const BLOCK: u64 = 4096;

fn text(e: std::io::Error) -> String {
    e.to_string()
}

fn commit(store: &Store, name: &str, bytes: &[u8]) -> Result<(), String> {
    let file = store.open_or_create_file(name).map_err(failed)?;
    file.write_all_at(bytes, 0).and_then(|()| file.commit()).map_err(failed)
}

fn contents(store: &Store, name: &str) -> Result<Vec<u8>, Error> {
    let file = store.open_file(name)?;
    let mut bytes = vec![0; file.len()? as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// A killed owner's commits to `long`, of three blocks, and to `short`, in that order.
fn killed(rounds: &[u8], end_with_long: bool) -> Result<SimDisk, String> {
    let disk = SimDisk::new(Options::default());
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    commit(&store, "long", &[1; 9000])?;
    commit(&store, "short", &[1; 100])?;
    store.checkpoint().map_err(failed)?;
    for (n, byte) in rounds.iter().enumerate() {
        commit(&store, "long", &[*byte; 9000])?;
        if !end_with_long || n + 1 < rounds.len() {
            commit(&store, "short", &[*byte; 100])?;
        }
    }
    disk.kill();
    Ok(disk)
}

/// The first place of these bytes in the journal's segments.
fn find(disk: &SimDisk, bytes: &[u8]) -> Result<(PathBuf, u64), String> {
    let segments = disk.tree().into_iter().filter(|(path, _)| path.starts_with(".untorn/journal"));
    let found = segments.filter_map(|(path, entry)| {
        Some((path, entry.contents.windows(bytes.len()).position(|found| found == bytes)?))
    });
    found.map(|(path, at)| (path, at as u64)).next().ok_or("no such bytes in the journal".into())
}

/// Makes the block of the first of these bytes, or one behind it, unreadable.
fn take_away(disk: &SimDisk, bytes: &[u8], blocks_on: u64) -> Result<(), String> {
    let (path, at) = find(disk, bytes)?;
    let block = at - at % BLOCK + blocks_on * BLOCK;
    disk.set_unreadable(path, block..block + BLOCK).map_err(text)
}

/// The block of the last commit cannot be read: the store must not continue from the commit before it.
pub(crate) fn what_cannot_be_read_is_not_the_end() -> Result<(), String> {
    let disk = killed(&[2], false)?;
    take_away(&disk, &[2; 100][..], 3)?;
    match open(&disk, FailureClass::Power) {
        Err(e) if e.kind() == "io" => {}
        Err(e) => return Err(failed(e)),
        Ok(_) => return Err("the store is served without the last commit".into()),
    }
    disk.set_readable();
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    match contents(&store, "short").map_err(failed)? == [2; 100] {
        true => Ok(()),
        false => Err("the last commit is lost".into()),
    }
}

/// A block of an incomplete commit cannot be read: the bytes behind that block may be anything.
pub(crate) fn what_is_torn_is_not_what_cannot_be_read() -> Result<(), String> {
    let disk = killed(&[2], true)?;
    take_away(&disk, &[2; 9000], 1)?;
    match open(&disk, FailureClass::Power) {
        Err(e) if e.kind() == "io" => Ok(()),
        Err(e) => Err(failed(e)),
        Ok(_) => Err("the end of the log is taken for whole".into()),
    }
}

/// The contents of a commit cannot be read: their file waits, other files do not.
pub(crate) fn contents_that_cannot_be_read_wait() -> Result<(), String> {
    let disk = killed(&[2], false)?;
    take_away(&disk, &[2; 9000], 1)?;
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    if contents(&store, "short").map_err(failed)? != [2; 100] {
        return Err("`short` shows something else".into());
    }
    if let Ok(bytes) = contents(&store, "long") {
        return Err(format!("`long` is shown with {} zeros in it", bytes.iter().filter(|byte| **byte == 0).count()));
    }
    store.close().map_err(failed)?;
    disk.set_readable();
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    match contents(&store, "long").map_err(failed)? == [2; 9000] {
        true => Ok(()),
        false => Err("`long` does not have what waited".into()),
    }
}

/// Unreadable contents were overwritten by a later commit. Wherever an opening crashes, everything is there.
pub(crate) fn what_cannot_be_read_stays_until_it_is_given_up() -> Result<(), String> {
    let disk = killed(&[2, 3], false)?;
    take_away(&disk, &[2; 9000], 1)?;
    disk.record();
    open(&disk, FailureClass::Power).map_err(failed)?;
    for snapshot in disk.recorded() {
        let disk = snapshot.killed();
        let store = open(&disk, FailureClass::Power).map_err(|e| format!("before call {}: {e}", snapshot.call()))?;
        for (name, bytes) in [("long", vec![3; 9000]), ("short", vec![3; 100])] {
            if contents(&store, name).map_err(failed)? != bytes {
                return Err(format!("after a crash before call {}, `{name}` shows something else", snapshot.call()));
            }
        }
    }
    Ok(())
}

fn salvage(disk: &SimDisk) -> Result<(), Error> {
    let journal = JournalOptions {
        durable: true,
        journal_bytes: 64 << 10,
        segment_bytes_first: 16 << 10,
        inline_bytes_max: 32 << 10,
        shared_bytes_least: u64::MAX,
        clone_bytes_least: 1 << 20,
        in_memory_max: 64,
        window_bytes: 4096,
        index_bytes_least: u64::MAX,
        memory: true,
        spare: false,
        readers: false,
        readers_space: None,
        dir_mode: 0o700,
    };
    let progress = &|_, _| {};
    let (create, wait, accept_unknown) = (false, false, false);
    let options = OpenOptions { journal, create, wait, accept_unknown, salvage: true, redo: true, progress };
    open_journal(&disk.process(), &StoreDir::of_directory(), &options)?.store_lock.release();
    Ok(())
}

/// A block of a last commit that may be torn cannot be read, and the user accepts the loss: that commit is not redone
/// in part.
pub(crate) fn what_may_be_torn_is_not_salvaged() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    commit(&store, "long", &[1; 9000])?;
    commit(&store, "gone", &[1; 100])?;
    store.checkpoint().map_err(failed)?;
    let file = store.open_file("long").map_err(failed)?;
    let mut txn = store.begin();
    file.write_all_at(&[2; 9000], 0).and_then(|()| txn.add(&file)).and_then(|()| txn.unlink("gone")).map_err(failed)?;
    disk.record();
    txn.commit().map_err(failed)?;
    let mut salvaged = 0;
    for snapshot in disk.recorded() {
        let disk = snapshot.killed();
        let is_there = disk.tree().iter().any(|(path, _)| path.as_os_str() == "gone");
        if !is_there || take_away(&disk, &[2; 9000], 1).is_err() || open(&disk, FailureClass::Power).is_ok() {
            continue;
        }
        salvaged += 1;
        salvage(&disk).map_err(failed)?;
        let store = open(&disk, FailureClass::Power).map_err(failed)?;
        if contents(&store, "gone").is_err() && contents(&store, "long").map_err(failed)? == [1; 9000] {
            return Err("a commit of which nobody knows that it is whole was redone in part".into());
        }
    }
    if salvaged == 0 { Err("nothing was to be salvaged".into()) } else { Ok(()) }
}

/// An opening has accepted two commits. The block in which the first ends and the second begins cannot be read at the
/// next opening: the second is not reported as damaged.
pub(crate) fn what_is_listed_and_cannot_be_read_is_not_damaged() -> Result<(), String> {
    let disk = killed(&[2], false)?;
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let mut tickets = Vec::new();
    for (name, bytes) in [("long", &[3; 9000][..]), ("short", &[3; 100])] {
        let file = store.open_file(name).map_err(failed)?;
        file.write_all_at(bytes, 0).map_err(failed)?;
        tickets.push(file.commit_async().map_err(failed)?);
    }
    tickets.into_iter().try_for_each(|ticket| ticket.wait()).map_err(failed)?;
    disk.kill();
    let _again = open(&disk, FailureClass::Power).map_err(failed)?;
    disk.kill();
    // They are in one write: the short one begins in the third block.
    take_away(&disk, &[3; 9000], 2)?;
    match open(&disk, FailureClass::Power) {
        Err(e) if e.kind() == "io" => {}
        Err(e) => return Err(failed(e)),
        Ok(_) => return Err("the store is served without a commit".into()),
    }
    disk.set_readable();
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    match contents(&store, "short").map_err(failed)? == [3; 100] {
        true => Ok(()),
        false => Err("a commit is lost".into()),
    }
}

/// One of the two headers cannot be read: the other one may be the older one.
pub(crate) fn a_header_that_cannot_be_read_may_be_the_newest() -> Result<(), String> {
    let disk = killed(&[2, 3], false)?;
    for slot in 0..2 {
        let disk = disk.fork();
        disk.set_unreadable(".untorn/journal/header", slot * BLOCK..(slot + 1) * BLOCK).map_err(text)?;
        match open(&disk, FailureClass::Power) {
            Err(e) if e.kind() == "io" => {}
            Err(e) => return Err(failed(e)),
            Ok(_) => return Err("the store is served by a header that may be old".into()),
        }
        disk.set_readable();
        let store = open(&disk, FailureClass::Power).map_err(failed)?;
        if contents(&store, "short").map_err(failed)? != [3; 100] {
            return Err("a commit is lost".into());
        }
    }
    Ok(())
}
