//! Takes a lease at each moment of a checkpoint and of a removal, by a reader that is at any of its own steps.
//!
//! Few readers at random moments hit the one call between two of the owner's calls. Here all of them are tried.

use crate::programs::runner::KillOnDrop;
use crate::readers::lease_stand_in::lease_newest;
use crate::simulation::replayed::{Pace, Recording, Replayed};
use crate::simulation::{Options, SimDisk};
use std::path::PathBuf;
use std::sync::Arc;
use untorn::__private::{OpenStoreOn, open_reader_on};
use untorn::{Error, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;

/// Calls of a reader that takes a lease.
const STEPS: usize = 14;
/// The number of the owner's pauses after which a lease ends.
const PAUSES: usize = 3;
/// The number of the owner's calls within which the lease is taken.
const CALLS: u64 = 60;

const OLD: &[u8] = &[1; 5000];

/// The owner's action while the lease is taken.
#[derive(Clone, Copy, Debug)]
enum Act {
    Checkpoint,
    Remove,
    Replace,
}

fn said(what: &str) -> impl Fn(Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

fn act(store: &Store, what: Act) -> untorn::Result<()> {
    match what {
        Act::Checkpoint => {
            let file = store.open_file("a")?;
            file.write_all_at(&[2; 6000], 0)?;
            file.commit()?;
            store.checkpoint()
        }
        Act::Remove => {
            let mut txn = store.begin();
            txn.unlink("a")?;
            txn.commit()
        }
        Act::Replace => store.rename("b", "a"),
    }
}

/// Records an action, and takes a lease of the commit before it after this many calls. None: the action was over by
/// then.
fn recorded(what: Act, after: u64) -> Result<Option<Arc<Recording>>, String> {
    let disk = SimDisk::new(Options::default());
    let life = KillOnDrop(disk.spawn());
    let options = StoreOptions::new().create(true).background(false).sizes(256 << 10, 16 << 10, 8 << 10).page(true);
    let store = options.open_on(life.0.clone(), StoreDir::of_directory(), PathBuf::new()).map_err(said("open"))?;
    for name in ["a", "b"] {
        let mut txn = store.begin();
        txn.create(name, 0o644).and_then(|file| file.write_all_at(OLD, 0)).map_err(said("create"))?;
        txn.commit().map_err(said("create"))?;
    }
    // Afterwards the reader's data is only in the data files. Before, the log has all contents of the files that it
    // creates.
    store.checkpoint().map_err(said("a checkpoint"))?;
    let lease = lease_newest(&disk).ok_or("the page tells of no commit")?;
    let slot = disk.machine().leases.pop().expect("just taken").0;
    let (at, mut pauses, mut taken) = (disk.calls() + after, 0, false);
    disk.record();
    disk.let_others(Box::new(move |machine, is_pause| {
        pauses += usize::from(is_pause);
        if !taken && machine.calls > at {
            taken = true;
            machine.leases.push((slot, lease, None));
        }
        if pauses >= PAUSES {
            machine.leases.clear();
        }
    }));
    act(&store, what).map_err(said("an act of the owner"))?;
    let is_over = disk.calls() <= at;
    let recording = Recording::new(disk.recorded());
    drop(store);
    Ok((!is_over).then_some(recording))
}

/// Runs a reader that has a snapshot of the commit before, and takes the lease while this many moments pass before one
/// of its calls.
fn read(recording: &Arc<Recording>, call: usize, moments: usize) -> Result<(), String> {
    let replayed = Replayed::new(recording, 0, Pace::Steps { one_in: usize::MAX, most: 0 }, 0);
    let reader = open_reader_on(replayed.storage(), StoreDir::of_directory(), PathBuf::new());
    let view = reader.and_then(|reader| reader.snapshot()).map_err(said("a snapshot"))?;
    replayed.leap(call, moments);
    if view.hold().is_err() {
        return Ok(());
    }
    let until = replayed.leased_until();
    replayed.pass(until.saturating_sub(replayed.now()));
    let read = || {
        let file = view.open("a")?;
        let mut bytes = vec![0; file.len()? as usize];
        file.read_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) if bytes == OLD => Ok(()),
        Ok(_) => Err("it shows another commit".into()),
        Err(Error::SnapshotExpired { .. }) if replayed.now() > until => Ok(()),
        Err(Error::SnapshotExpired { .. }) => Err("it has expired under a lease".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// Tries all of them; returns the number of readers.
pub(crate) fn a_lease_comes_at_any_moment() -> Result<u64, String> {
    let mut readers = 0;
    for what in [Act::Checkpoint, Act::Remove, Act::Replace] {
        for after in 0..CALLS {
            let Some(recording) = recorded(what, after)? else { break };
            for call in 1..=STEPS {
                for moments in 0..recording.moments.len() {
                    readers += 1;
                    read(&recording, call, moments)
                        .map_err(|e| format!("{what:?}, a lease after {after} calls, {moments} moments before call {call} of the reader: {e}"))?;
                }
            }
        }
    }
    Ok(readers)
}
