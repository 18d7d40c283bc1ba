//! Programs for the recording device, each with an oracle: Untorn's own, and controls that are wrong on
//! purpose and must be found.

mod controls;
mod managed;
mod plan;

pub use controls::{CONTROLS, Control};
pub use managed::{Ended, FLAVOURS, Flavour, Killed, Managed, Reopening, run_if_asked, settled};

use crate::device::FileSystem;
use crate::replay::{Check, Program};
use anyhow::{Context, Result};

/// A program and what to hold it to.
pub trait Workload: Program + Check {}

impl<T: Program + Check> Workload for T {}

/// A workload by its name, as a report gives it: `untorn/many/17`, `control/early-ack/3`.
pub fn by_name(name: &str) -> Result<Box<dyn Workload>> {
    let parts: Vec<_> = name.split('/').collect();
    let [kind, which, seed] = parts[..] else { anyhow::bail!("`{name}` names no workload") };
    let seed = seed.parse().context("a workload's name ends in its seed")?;
    Ok(match kind {
        "untorn" => Box::new(Managed::new(Flavour::by_name(which).context("no such flavour")?, seed)),
        "control" => Box::new(CONTROLS.iter().find(|c| c.name() == which).context("no such control")?.seeded(seed)),
        _ => anyhow::bail!("`{name}` names no workload"),
    })
}

/// Controls that must be found on a file system.
pub fn controls_of(fs: FileSystem) -> impl Iterator<Item = Control> {
    CONTROLS.into_iter().filter(move |control| control.must_be_found_on(fs))
}
