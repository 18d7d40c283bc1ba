//! Commits that wait for the acknowledgement of a slot, which another process writes.

use super::opening::failed;
use crate::simulation::{Options, SimDisk};
use std::path::{Path, PathBuf};
use std::time::Duration;
use untorn::__private::OpenStoreOn;
use untorn::{FailureClass, OnTimeout, Remote, Store, StoreOptions, Ticket};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::slots::epochs::Point;
use untorn_journal::slots::slot_dir::Acknowledged;
use untorn_os::{Open, write_all_at};

fn open(disk: &SimDisk) -> Result<Store, String> {
    let how = Remote { timeout: Duration::from_secs(3600), on_timeout: OnTimeout::Hold };
    let options = StoreOptions::new().create(true).background(false).remote("backup", how);
    options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new()).map_err(failed)
}

fn commit(store: &Store, text: &[u8]) -> Result<Ticket, String> {
    let file = store.open_or_create_file("a").map_err(failed)?;
    let ticket = file.append(text).and_then(|_| file.commit_async()).map_err(failed)?;
    ticket.wait().map_err(failed)?;
    Ok(ticket)
}

/// The consumer's write, which needs no flush.
fn acknowledge(disk: &SimDisk, epoch: u64, lsn: u64) -> Result<(), String> {
    let storage = disk.process();
    let slot = Path::new(".untorn/slots/backup");
    for dir in [Path::new(".untorn/slots"), slot] {
        // They are there from the second time on.
        let _ = storage.mkdir(dir, 0o700);
    }
    let path = slot.join("acknowledged");
    let file = storage.open(&path, Open::WRITE).or_else(|_| storage.open(&path, Open::create(0o600)));
    let bytes = Acknowledged { point: Point { epoch, lsn }, ..Acknowledged::default() }.encode();
    file.and_then(|file| write_all_at(&*file, &bytes, 0)).map_err(|e| e.to_string())
}

fn is_remote(ticket: &Ticket) -> Result<bool, String> {
    ticket.poll_for(FailureClass::Remote).transpose().map(|done| done.is_some()).map_err(failed)
}

/// The power fails, and takes nothing back: the next owner makes other commits, with LSNs that the slot has acknowledged
/// for an epoch that is not of this store.
pub(crate) fn another_epochs_acknowledgement_releases_nothing() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let store = open(&disk)?;
    let ticket = commit(&store, b"one")?;
    let lsn = ticket.lsn().ok_or("a commit without an LSN")?;
    for (epoch, lsn) in [(1, lsn), (1, lsn + 100)] {
        acknowledge(&disk, epoch, lsn)?;
        if is_remote(&ticket)? {
            return Err(format!("the acknowledgement of commit {lsn} of another store released a commit"));
        }
    }
    disk.kill();
    let store = open(&disk)?;
    let ticket = commit(&store, b"two")?;
    if is_remote(&ticket)? {
        return Err("an old acknowledgement of another store released a commit".into());
    }
    store.close().map_err(failed)
}
