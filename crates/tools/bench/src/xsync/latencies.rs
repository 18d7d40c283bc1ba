//! The gain of sessions on disks with slower flushes.

use super::clients::{Load, MESSAGE_BYTES, WRITES};
use super::postgres::{Cluster, Transactions, usual};
use super::runs::section;
use super::session::Setting;
use super::{programs, servers};
use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::report::section::{Chart, Row, Section};
use anyhow::Result;
use std::time::Duration;

const NOTES: &[&str] = &[
    "ext4 on a disk that answers a flush after the time of the row; its writes take no longer than usual, and go on \
     meanwhile. Real disks: some 0.05 ms with a capacitor, 1 to 5 ms without, 10 ms and more if they turn.",
    "Otherwise as the sections of the same names without `over the flush`; PostgreSQL once.",
];

/// The commits of SQLite. More would take minutes on a disk on which each takes 20 ms.
const COMMITS: u64 = 100;

pub fn sections(run: &Run) -> Result<Vec<Section>> {
    let flushes_us: &[u64] = if run.quick { &[1000] } else { &[100, 1000, 5000] };
    let names =
        ["SQLite", "PostgreSQL, 1 client", "PostgreSQL, 16 clients", "a server, 1 client", "a server, 50 clients"];
    let mut rows: [Vec<Row>; 5] = Default::default();
    let mut places = None;
    for &flush_us in flushes_us {
        let place = Place::on_slow_disk(&run.dir, 3 << 30, Duration::from_micros(flush_us))?;
        let setting = Setting::new(run, &place)?;
        let cell = || format!("{} ms", flush_us as f64 / 1e3);
        let sqlite = programs::database(run, &setting, if run.quick { 20 } else { COMMITS })?;
        rows[0].extend(sqlite.map(|row| Row { cell: cell(), ..row }));
        if let Some(cluster) = Cluster::set_up(run, usual(&setting), Transactions::Simple)? {
            rows[1].push(cluster.row(run, 1, 1, cell())?);
            if !run.quick {
                rows[2].push(cluster.row(run, 16, 1, cell())?);
            }
        }
        for (n, clients) in [(3, 1), (4, 50)] {
            run.progress.cell(format!("xsync: a server, {clients} clients, flushes of {}", cell()));
            let load = Load { clients, kind: WRITES, answer_bytes: MESSAGE_BYTES };
            rows[n].push(servers::logged(run, &setting, load, cell())?);
        }
        places = Some(place);
    }
    let Some(place) = places else { return Ok(Vec::new()) };
    let measured = names.into_iter().zip(rows).filter(|(_, rows)| !rows.is_empty());
    let titled = |name| format!("xsync: {name}, over the flush");
    Ok(measured.map(|(name, rows)| section(&place, &titled(name), Chart::Curves, rows, NOTES)).collect())
}
