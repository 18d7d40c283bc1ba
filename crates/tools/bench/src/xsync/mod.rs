//! Sessions of `untorn xsync`: their costs, and the gains of programs in them.

pub mod apache_build;
pub mod clients;
mod costs;
pub mod guest;
mod latencies;
pub mod mail;
pub mod postgres;
pub mod postmark;
pub mod programs;
pub mod runs;
pub mod servers;
pub mod session;
pub mod web;

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::unavailable::need_root;
use crate::report::section::{Chart, Section};
use anyhow::Result;
use runs::section;
use session::Setting;

/// The sections of one place.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    need_root("xsync")?;
    let setting = Setting::new(run, place)?;
    let wanted = |name: &str| !run.without.iter().any(|without| name.starts_with(without.as_str()));
    let mut sections = Vec::new();
    if wanted("session") {
        let rows = costs::rows(run, &setting)?;
        sections.push(section(place, "xsync: a session", Chart::Bars, rows, costs::NOTES));
    }
    if wanted("server") {
        let rows = servers::over_clients(run, &setting)?;
        sections.push(section(place, "xsync: a server that logs, over clients", Chart::Curves, rows, servers::NOTES));
        let rows = servers::over_sizes(run, &setting)?;
        sections.push(section(place, "xsync: one client, over the answer's size", Chart::Curves, rows, servers::NOTES));
        let rows = servers::unchanged(run, &setting)?;
        sections.push(section(place, "xsync: a server that changes nothing", Chart::Bars, rows, servers::NOTES));
    }
    if wanted("postmark") {
        let rows = mail::rows(run, &setting)?;
        sections.push(section(place, "xsync: PostMark, over files", Chart::Curves, rows, mail::NOTES));
    }
    if wanted("postgresql") {
        let rows = postgres::rows(run, &setting)?;
        if !rows.is_empty() {
            sections.push(section(place, "xsync: PostgreSQL, over clients", Chart::Curves, rows, postgres::NOTES));
        }
    }
    if wanted("programs") {
        let rows = programs::rows(run, &setting)?;
        sections.push(section(place, "xsync: programs", Chart::Bars, rows, programs::NOTES));
    }
    std::fs::remove_dir_all(&setting.dir)?;
    drop(setting);
    if wanted("flush") {
        sections.extend(latencies::sections(run)?);
    }
    Ok(sections)
}
