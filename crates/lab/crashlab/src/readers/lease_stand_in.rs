//! Leases beside a recorded owner, which waits for them and keeps files for them.
//!
//! A recorded owner cannot see the readers that read the recording later. So a stand-in takes leases for them: of
//! commits that are the newest or were so a while ago, between any two calls of the owner, and of the last commit of a
//! closed or killed owner. It ends them while the owner, or the next one, waits. A reader of the recording has a lease
//! where and as long as the stand-in had one.

use crate::programs::runner::KillOnDrop;
use crate::simulation::{Machine, Others, SimDisk};
use fastrand::Rng;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn::__private::open_reader_on;
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::readers::leases::lease_at;
use untorn_journal::readers::moment::READ_AT;
use untorn_journal::readers::readers_page::{
    Cell, PAGE_CELL_BYTES, PAGE_CELLS_AT, PAGE_HEAD_BYTES, PageHead, encode_cell,
};

/// The path of the readers' page.
const PAGE: &str = ".untorn/readers";
/// The number of recent commits of which the stand-in may take a lease late.
const REMEMBERED: usize = 3;

/// The leases of one recording. Each is taken only once, so that a reader that takes its place sees where it ends.
pub(crate) type Taken = Arc<Mutex<BTreeSet<u64>>>;

/// A stand-in that takes leases, in one of `one_in` calls.
pub(crate) fn stand_in(seed: u64, one_in: usize, taken: Taken) -> Others {
    let (mut rng, mut seen) = (Rng::with_seed(seed), Vec::new());
    Box::new(move |machine, pauses| {
        let release_one_in = if pauses { 4 } else { 150 };
        machine.leases.retain(|(_, at, holder)| holder.is_some() || *at == READ_AT || rng.usize(..release_one_in) > 0);
        let Ok(slot) = machine.state.resolve(Path::new(PAGE)) else { return };
        if let Some(at) = newest(machine, slot) {
            if seen.last() != Some(&at) {
                seen.push(at);
            }
            if seen.len() > REMEMBERED {
                seen.remove(0);
            }
        }
        if !pauses && !seen.is_empty() && rng.usize(..one_in) == 0 {
            let at = if rng.u8(..3) == 0 { seen[rng.usize(..seen.len())] } else { seen[seen.len() - 1] };
            if taken.lock().insert(at) {
                machine.leases.push((slot, at, None));
            }
        }
    })
}

/// The byte of the newest commit's lease, if the page has an owner.
fn newest(machine: &Machine, slot: u32) -> Option<u64> {
    let mut page = vec![0; PAGE_CELLS_AT + PAGE_CELL_BYTES];
    let inode = machine.state.inode(slot).ok()?;
    if inode.read(&mut page, 0) < page.len() {
        return None;
    }
    let (head, _) = PageHead::decode(page[..PAGE_HEAD_BYTES].try_into().expect("as many bytes"))?;
    let cell = &page[PAGE_CELLS_AT..];
    let lsn = u64::from_le_bytes(cell[..8].try_into().expect("eight bytes"));
    (head.life != 0 && *cell == encode_cell(Cell::Durable, lsn)).then(|| lease_at(head.life, lsn))?
}

/// Announces a reader from now on.
pub(crate) fn read_on(disk: &SimDisk) -> Result<(), String> {
    let mut machine = disk.machine();
    let slot = machine.state.resolve(Path::new(PAGE)).map_err(|e| format!("the page: {e}"))?;
    machine.leases.push((slot, READ_AT, None));
    Ok(())
}

/// Takes a lease of the last commit of a store that nobody has open, if that is possible.
pub(crate) fn lease_closed(disk: &SimDisk) {
    let process = KillOnDrop(disk.spawn());
    let reader = open_reader_on(process.0.clone(), StoreDir::of_directory(), PathBuf::new());
    let Ok(_held) = reader.and_then(|reader| reader.held_snapshot()) else { return };
    // The lease outlives this process.
    let mut machine = disk.machine();
    let taken = machine.leases.iter_mut().filter(|(_, at, holder)| holder.is_some() && *at != READ_AT);
    taken.for_each(|(_, _, holder)| *holder = None);
}

/// Takes a lease of the newest commit; returns its byte.
pub(crate) fn lease_newest(disk: &SimDisk) -> Option<u64> {
    let mut machine = disk.machine();
    let slot = machine.state.resolve(Path::new(PAGE)).ok()?;
    let at = newest(&machine, slot)?;
    machine.leases.push((slot, at, None));
    Some(at)
}
