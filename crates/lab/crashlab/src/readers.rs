//! Readers beside an owner, at interleavings of all their calls: a reader must never see a mixture, a commit that is not
//! durable, a name as of another moment, or anything older than it saw before; and what it holds must last.
//!
//! Owners and readers run on one simulated disk, each in a thread of its own, and make their calls in turns that a seed
//! decides (`simulation::turns`). Owners commit bytes and names, make checkpoints with commits in
//! between, close the store, are killed, and follow each other. Readers take snapshots, keep several of them, read them
//! in pieces, and die. The power is cut at any moment. `world` knows the tree after each commit, and all that a
//! snapshot ever shows must be of the one commit that its LSN names.

mod owner;
mod plan;
mod program;
mod reading;
mod totals;
mod world;

use crate::programs::runner::KillOnDrop;
use crate::simulation::{Cut, Options, PROFILES, SimDisk};
use fastrand::Rng;
use owner::{Owner, open};
use parking_lot::Mutex;
use plan::{LARGE, LifePlan, Plan};
use std::path::PathBuf;
pub use totals::ReaderTotals;
use untorn::__private::open_reader_on;
use untorn_journal::directories::store_dir::StoreDir;
use world::World;

/// Of so many programs, one is compared with the same owner without readers.
const COMPARED_ONE_IN: u64 = 4;

/// Runs the program of a seed.
pub fn readers_of(seed: u64) -> Result<ReaderTotals, String> {
    let plan = Plan::of_seed(seed);
    let failed = |what: String| format!("program {seed}: {what}");
    let done = plan.run().map_err(failed)?;
    if seed.is_multiple_of(COMPARED_ONE_IN) {
        plan.check_calls(&done).map_err(failed)?;
    }
    Ok(done.totals)
}

/// Runs readers beside an owner with a file that waits.
pub fn readers_of_what_waits(seed: u64) -> Result<ReaderTotals, String> {
    let done = Plan::with_a_file_that_waits(seed).run();
    done.map(|done| done.totals).map_err(|what| format!("program {seed}, a file waits: {what}"))
}

/// All calls of the program of a seed in their order, and its result.
pub fn interleaving_of(seed: u64) -> Vec<String> {
    Plan::of_seed(seed).trace()
}

/// Kills an owner that has no page for readers, so that its last commits may be in the page cache only. A commit that a
/// reader shows then must survive a power cut. `skipped` are sync points that do nothing for the reader, as bits.
pub fn reader_after_a_killed_owner(seed: u64, skipped: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let profile = PROFILES[rng.usize(..PROFILES.len())];
    let disk = SimDisk::new(Options { profile, direct: rng.bool(), seed, ..Options::default() });
    let (world, mut plan) = (Mutex::new(World::new()), Plan::of_seed(seed));
    plan.sizes = LARGE;
    let mut owner = Owner { rng, disk: &disk, world: &world, plan: &plan, calls: Vec::new(), kept_most: 0 };
    let life = LifePlan { has_page: false, closes: true, ..LifePlan::default() };
    // Nobody is killed in the first life, so a violation is the only way to stop.
    if owner.live(&life, None).is_err() {
        return Err(format!("program {seed}: creating the store"));
    }
    disk.settle();
    let dies_at = Some(owner.rng.u64(20..700));
    if let Err(plan::Stop::Wrong(what)) = owner.live(&LifePlan { steps: 16, dies_at, closes: false, ..life }, None) {
        return Err(format!("program {seed}: {what}"));
    }
    disk.set_options(|options| options.skipped = skipped);
    let reading = KillOnDrop(disk.spawn());
    let failed = |e: untorn::Error| format!("program {seed}, without an owner: {e}");
    let reader = open_reader_on(reading.0.clone(), StoreDir::of_directory(), PathBuf::new()).map_err(failed)?;
    let shown = reader.snapshot().map_err(failed)?.lsn();
    let disk = disk.snapshot().power_cut(Cut::Nothing).disk;
    let life = KillOnDrop(disk.spawn());
    let left = open(&life.0, &plan, true).map_err(failed)?.status().lsn;
    match left < shown {
        true => Err(format!("program {seed}: LSN {shown} was shown, and a power cut leaves {left}")),
        false => Ok(()),
    }
}
