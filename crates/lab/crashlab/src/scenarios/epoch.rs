//! Scenarios over epochs that are not applied: repeated crashes, and bytes that are read from the journal.

use super::opening::{failed, open};
use crate::enumeration::crash_loops::crash_loop;
use crate::simulation::{Options, SimDisk};
use untorn::{Error, FailureClass, Store};

/// The number of stores that show every broken invariant of epochs.
const LOOPS: u64 = 1500;

/// Stores that crash again and again.
pub(crate) fn epochs_upon_epochs_are_kept() -> Result<(), String> {
    (0..LOOPS).try_for_each(|seed| crash_loop(seed, 0, &|_| {}).map(drop))
}

fn contents(store: &Store, name: &str) -> Result<Vec<u8>, Error> {
    let file = store.open_file(name)?;
    let mut bytes = vec![0; file.len()? as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Two files with commits in the journal of a killed owner.
fn unapplied() -> Result<SimDisk, String> {
    let disk = SimDisk::new(Options::default());
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    for (name, byte) in [("a", 7), ("b", 9)] {
        let file = store.open_or_create_file(name).map_err(failed)?;
        store.checkpoint().map_err(failed)?;
        file.write_all_at(&[byte; 3000], 0).and_then(|()| file.commit()).map_err(failed)?;
    }
    let file = store.open_file("a").map_err(failed)?;
    file.write_all_at(&[8; 3000], 0).and_then(|()| file.commit()).map_err(failed)?;
    disk.kill();
    Ok(disk)
}

/// The disk damages bytes of a commit after the store was opened: that file alone cannot be read.
pub(crate) fn damage_in_the_journal_is_not_shown() -> Result<(), String> {
    let disk = unapplied()?;
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let segments = disk.tree().into_iter().filter(|(path, _)| path.starts_with(".untorn/journal"));
    let mut found = segments
        .filter_map(|(path, entry)| Some((path, entry.contents.windows(3000).position(|bytes| bytes == [8; 3000])?)));
    let (path, at) = found.next_back().ok_or("no such bytes in the journal")?;
    disk.overwrite(path, at as u64 + 1000, &[1]).map_err(|e| e.to_string())?;
    disk.settle();
    match contents(&store, "a") {
        Err(Error::Corrupt { .. }) => {}
        Err(e) => return Err(format!("another error: {e}")),
        Ok(_) => return Err("damaged bytes are shown".into()),
    }
    match contents(&store, "b").map_err(failed)? == [9; 3000] {
        true => Ok(()),
        false => Err("`b` shows something else".into()),
    }
}

/// A file with commits in the journal cannot be written; the journal goes on, and its segments are reused.
pub(crate) fn what_waits_outlives_its_segment() -> Result<(), String> {
    let disk = unapplied()?;
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let text = |e: std::io::Error| e.to_string();
    disk.rename("a", "elsewhere").map_err(text)?;
    let file = store.open_file("b").map_err(failed)?;
    for n in 0..60u64 {
        file.write_all_at(&[n as u8; 2000], 0).and_then(|()| file.commit()).map_err(failed)?;
    }
    disk.rename("elsewhere", "a").map_err(text)?;
    store.checkpoint().map_err(failed)?;
    match contents(&store, "a").map_err(failed)? == [8; 3000] && disk.get("a").map_err(text)? == [8; 3000] {
        true => Ok(()),
        false => Err("`a` has something else".into()),
    }
}

/// A store is opened on a full disk that has no room for overwriting either. Then there is room, and a commit succeeds.
/// After any crash, that commit and those in the journal are still there.
pub(crate) fn commits_wait_for_the_list_of_epochs() -> Result<(), String> {
    let disk = unapplied()?;
    disk.record();
    disk.set_options(|options| (options.copy_on_write, options.capacity_bytes) = (true, Some(0)));
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let is = |store: &Store, name, byte| Ok::<_, String>(contents(store, name).map_err(failed)? == [byte; 3000]);
    if !is(&store, "a", 8)? || !is(&store, "b", 9)? {
        return Err("what is in the journal is not shown".into());
    }
    disk.set_capacity(None);
    let file = store.open_file("b").map_err(failed)?;
    file.write_all_at(&[3; 3000], 0).and_then(|()| file.commit()).map_err(failed)?;
    disk.set_mark(1);
    // The last snapshot is of the present moment.
    for snapshot in disk.recorded() {
        let cuts = snapshot.cuts(8, snapshot.call());
        let crashed = cuts.into_iter().map(|cut| snapshot.power_cut(cut).disk).chain([snapshot.killed()]);
        for disk in crashed {
            disk.set_capacity(None);
            let store = open(&disk, FailureClass::Power).map_err(failed)?;
            let old = snapshot.mark() == 0 && is(&store, "b", 9)?;
            if !is(&store, "a", 8)? || !(old || is(&store, "b", 3)?) {
                return Err(format!("after a crash before call {} a commit is not shown", snapshot.call()));
            }
            store.close().map_err(failed)?;
        }
    }
    Ok(())
}
