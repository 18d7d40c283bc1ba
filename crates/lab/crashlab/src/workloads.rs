//! Programs for the recording device, each with an oracle: Untorn's own, and controls with a deliberate mistake, which
//! must be found.

mod controls;
mod heap;
mod managed;
mod names;
mod plan;

pub use controls::{CONTROLS, Control};
pub use heap::OverHeap;
pub use managed::{Ended, FLAVOURS, Flavour, Killed, Managed, Recovers, Reopening, settled};
pub use names::OverNames;

use crate::device::FileSystem;
use crate::replay::{Check, Program};
use anyhow::{Context, Result};
use managed::ASKED;
use std::path::Path;

/// A program and its oracle.
pub trait Workload: Program + Check {}

impl<T: Program + Check> Workload for T {}

/// One of Untorn's own programs and its name; the kinds take turns.
pub fn in_turn(turn: u64, seed: u64) -> (String, Box<dyn Recovers>) {
    match turn as usize % (FLAVOURS.len() + 2) {
        nth if nth < FLAVOURS.len() => {
            let flavour = FLAVOURS[nth];
            (format!("untorn/{}/{seed}", flavour.name()), Box::new(Managed::new(flavour, seed)))
        }
        nth if nth == FLAVOURS.len() => (format!("{OVER_NAMES}/{seed}"), Box::new(OverNames::new(seed))),
        _ => (format!("{OVER_HEAP}/{seed}"), Box::new(OverHeap::new(seed))),
    }
}

const OVER_HEAP: &str = "untorn/heap";
const OVER_NAMES: &str = "untorn/trees";

/// A workload by its name in a report: `untorn/many/17`, `control/early-ack/3`.
pub fn by_name(name: &str) -> Result<Box<dyn Workload>> {
    let parts: Vec<_> = name.split('/').collect();
    let [kind, which, seed] = parts[..] else { anyhow::bail!("`{name}` names no workload") };
    let seed = seed.parse().context("a workload's name ends in its seed")?;
    Ok(match kind {
        _ if name.starts_with(OVER_HEAP) => Box::new(OverHeap::new(seed)),
        _ if name.starts_with(OVER_NAMES) => Box::new(OverNames::new(seed)),
        "untorn" => Box::new(Managed::new(Flavour::by_name(which).context("no such flavour")?, seed)),
        "control" => Box::new(CONTROLS.iter().find(|c| c.name() == which).context("no such control")?.seeded(seed)),
        _ => anyhow::bail!("`{name}` names no workload"),
    })
}

/// The controls that must be found on a file system.
pub fn controls_of(fs: FileSystem) -> impl Iterator<Item = Control> {
    CONTROLS.into_iter().filter(move |control| control.must_be_found_on(fs))
}

/// If this process was started to run a program, does so and ends the process; otherwise does nothing.
pub fn run_if_asked() {
    let Ok(order) = std::env::var(ASKED) else { return };
    let words: Vec<_> = order.split('\t').collect();
    let [name, dir, acks] = words[..] else { panic!("program, directory and acknowledgements are wanted") };
    let done = by_name(name).and_then(|program| program.run(Path::new(dir), Path::new(acks)));
    std::process::exit(i32::from(done.is_err()));
}
