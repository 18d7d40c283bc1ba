//! Sessions of `untorn xsync`: what they cost, and what programs in them gain.

pub mod clients;
mod costs;
pub mod guest;
pub mod postmark;
mod programs;
mod servers;
pub mod session;

use crate::bench_run::Run;
use crate::fs::Place;
use crate::section::{Chart, Row, Section, TimeUnit};
use anyhow::{Result, ensure};

/// The sections of one place.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    ensure!(rustix::process::geteuid().is_root(), "sessions need root: run this by sudo");
    let dir = place.directory("xsync")?;
    let host = session::Host::new(&dir);
    let wanted = |name: &str| !run.without.iter().any(|without| name.starts_with(without.as_str()));
    let mut sections = Vec::new();
    if wanted("session") {
        let rows = costs::rows(run, &host)?;
        sections.push(section(place, "xsync: a session", TimeUnit::Microseconds, rows, costs::NOTES));
    }
    if wanted("server") {
        let rows = servers::rows(run, &host, &dir)?;
        sections.push(section(place, "xsync: a server", TimeUnit::Microseconds, rows, servers::NOTES));
    }
    if wanted("programs") {
        let rows = programs::rows(run, &host, &dir)?;
        sections.push(section(place, "xsync: programs", TimeUnit::Milliseconds, rows, programs::NOTES));
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(sections)
}

fn section(place: &Place, title: &str, unit: TimeUnit, rows: Vec<Row>, notes: &[&str]) -> Section {
    Section {
        title: title.to_owned(),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit,
        chart: Chart::Bars,
        ratio_means: "how many times as fast as the row says; for a limit, the share of it that is used",
        rows,
        notes: notes.iter().map(|note| (*note).to_owned()).collect(),
    }
}
