//! Scenarios over names: permission bits, and files of other programs.

use super::opening::{failed, open};
use crate::simulation::{Options, SimDisk};
use std::path::Path;
use untorn::{FailureClass, Store};

/// A transaction creates a directory in which its owner has no right to create anything, and a file in it.
pub(crate) fn a_directory_that_is_closed_is_filled() -> Result<(), String> {
    let disk = SimDisk::new(Options { permissions: true, ..Options::default() });
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let mut txn = store.begin();
    txn.mkdir("d", 0o500).map_err(failed)?;
    let file = txn.create("d/a", 0o600).map_err(failed)?;
    file.write_all_at(b"text", 0).and_then(|()| txn.commit()).map_err(failed)?;
    let after = disk.fork();
    drop((file, store));
    open(&after, FailureClass::Power).and_then(Store::close).map_err(failed)?;
    let mode = after.entry("d").map_err(|e| e.to_string())?.mode;
    match after.get("d/a") {
        Ok(text) if text == b"text" && mode == 0o500 => Ok(()),
        other => Err(format!("d/a is {other:?} in a directory of mode {mode:o}")),
    }
}

/// A file is to be renamed to a name that another program's file has taken: it stays where it is, at every moment.
pub(crate) fn a_file_that_waits_keeps_its_place() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let file = store.open_or_create_file("a").map_err(failed)?;
    file.write_all_at(b"text", 0).and_then(|()| file.commit()).map_err(failed)?;
    store.checkpoint().map_err(failed)?;
    disk.record();
    let mut txn = store.begin();
    txn.rename("a", "b").and_then(|()| txn.commit()).map_err(failed)?;
    let mut waited = 0;
    for snapshot in disk.recorded() {
        let crashed = snapshot.killed();
        if crashed.get("b").is_ok() {
            continue;
        }
        crashed.put("b", b"another program's").map_err(|e| e.to_string())?;
        crashed.record();
        let recovered = open(&crashed, FailureClass::Power).map_err(failed)?;
        waited += recovered.status().quarantined.len();
        let has_a = |disk: &SimDisk| disk.tree().iter().any(|(path, _)| path == Path::new("a"));
        if let Some(moment) = crashed.recorded().iter().find(|moment| !has_a(&moment.killed())) {
            return Err(format!(
                "right before call {} of a recovery, the file is in no place of its own",
                moment.call()
            ));
        }
    }
    if waited > 0 { Ok(()) } else { Err("nothing had to wait".into()) }
}
