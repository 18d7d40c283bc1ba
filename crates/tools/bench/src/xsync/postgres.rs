//! PostgreSQL and its clients, in a session.

use super::runs::{NAMES, ON_JOURNALING, row};
use super::session::{Host, Setting, let_others_enter, shell};
use crate::measuring::bench_run::Run;
use crate::report::section::{Row, Target};
use crate::report::statistics::Measured;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

pub const NOTES: &[&str] = &[
    "pgbench's own transactions, scale 5, for 4 s; server and clients run in the session. Durable: the same outside of a \
     session, in the benchmark's own directory; asynchronous: with fsync=off, there or on an ext4 of its own with data=journal. A time is that of one transaction: one \
     second divided by the transactions in it, as pgbench gives them.",
];

/// The contenders outside of sessions.
pub const DURABLE: &str = "durable, without a session";
pub const ASYNCHRONOUS: &str = "asynchronous";

/// The transactions of the clients.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Transactions {
    /// pgbench's own.
    Simple,
    /// A small TPC-C: of 25 transactions 11 orders, 11 payments, 3 readers.
    TpcC,
}

/// The files of TPC-C: the tables, and the transactions with their weights. These lie beside the server's directory.
const TABLES: &str = include_str!("tpcc/tables.sql");
const TPC_C: [(&str, &str, u32); 3] = [
    ("new_order", include_str!("tpcc/new_order.sql"), 11),
    ("payment", include_str!("tpcc/payment.sql"), 11),
    ("order_status", include_str!("tpcc/order_status.sql"), 3),
];
/// The directory of the server's socket. It is the session's own in a session.
const TEMPORARY: &str = "/var/tmp";

/// The directory of the newest PostgreSQL's programs, in Debian's layout.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|version| version.path().join("bin"));
    versions.filter(|bin| ["initdb", "pg_ctl", "pgbench", "psql"].iter().all(|name| bin.join(name).exists())).max()
}

/// Rows over the number of clients.
pub fn rows(run: &Run, setting: &Setting) -> Result<Vec<Row>> {
    let Some(cluster) = Cluster::set_up(run, usual(setting), Transactions::Simple)? else { return Ok(Vec::new()) };
    let counts = if run.quick { vec![2] } else { vec![1, 4, 16] };
    let row = |clients| cluster.row(run, clients, 3, format!("{clients} clients"));
    counts.into_iter().map(row).collect()
}

/// A contender: the session of its server and clients, the server's files, and whether the server flushes.
pub struct Way<'a> {
    pub name: &'static str,
    pub host: Option<&'a Host>,
    pub at: PathBuf,
    pub fsync: bool,
}

impl<'a> Way<'a> {
    /// Server and clients in a session on the volume that is kept.
    pub fn session(name: &'static str, host: &'a Host) -> Way<'a> {
        Way { name, host: Some(host), at: "/data/pg".into(), fsync: true }
    }

    pub fn outside(name: &'static str, at: PathBuf, fsync: bool) -> Way<'a> {
        Way { name, host: None, at, fsync }
    }
}

/// The contenders: in a session, durable without one, asynchronous.
pub fn usual(setting: &Setting) -> Vec<Way<'_>> {
    let mut ways = vec![
        Way::session(NAMES[0], &setting.host),
        Way::outside(DURABLE, setting.dir.join("pg"), true),
        Way::outside(ASYNCHRONOUS, setting.dir.join("pg-asynchronous"), false),
    ];
    ways.extend(setting.journaling.as_ref().map(|dir| Way::outside(ON_JOURNALING, dir.join("pg"), false)));
    ways
}

/// Servers in a session's volume and outside.
pub struct Cluster<'a> {
    bin: PathBuf,
    ways: Vec<Way<'a>>,
    transactions: Transactions,
}

impl Cluster<'_> {
    /// Sets up the servers; of contenders with one directory, only the first's. None, with a message, if there is no
    /// PostgreSQL.
    pub fn set_up<'a>(run: &Run, ways: Vec<Way<'a>>, transactions: Transactions) -> Result<Option<Cluster<'a>>> {
        let Some(bin) = programs() else {
            run.progress.print("PostgreSQL is not measured: install the package postgresql.");
            return Ok(None);
        };
        run.progress.cell("xsync: PostgreSQL");
        let cluster = Cluster { bin, ways, transactions };
        for (n, way) in cluster.ways.iter().enumerate() {
            if way.host.is_none() {
                // The server refuses to run as root, so its user must be able to enter these directories.
                way.at.parent().map_or(Ok(()), let_others_enter)?;
            }
            if cluster.ways[..n].iter().any(|before| before.at == way.at) {
                continue;
            }
            let (start, stop, at, bin) =
                (cluster.start(way), cluster.stop(way), way.at.display(), cluster.bin.display());
            let fill = match transactions {
                Transactions::Simple => {
                    let scale = if run.quick { 1 } else { 5 };
                    format!("{bin}/pgbench -h {TEMPORARY} -i -q -s {scale} postgres 2>/dev/null")
                }
                Transactions::TpcC => {
                    let write = |(name, text, _): &(&str, &str, u32)| {
                        format!("cat >{at}.{name} <<'END'\n{text}END\nchmod 644 {at}.{name}\n")
                    };
                    let files: String = TPC_C.iter().map(write).collect();
                    format!(
                        "{bin}/psql -h {TEMPORARY} -q -v ON_ERROR_STOP=1 -d postgres <<'END'\n{TABLES}\nEND\n{files}"
                    )
                }
            };
            let script = format!(
                "rm -rf {at}; mkdir {at}; chown postgres: {at}; {AS_POSTGRES} {bin}/initdb -N -D {at} >/dev/null; \
                 {start}; {AS_POSTGRES} {fill}\n{stop}"
            );
            let output = shell(way.host, None, &script)?.output()?;
            ensure!(
                output.status.success(),
                "PostgreSQL cannot be set up: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(Some(cluster))
    }

    /// A row with the time of a transaction with so many clients.
    pub fn row(&self, run: &Run, clients: usize, rounds: usize, cell: String) -> Result<Row> {
        let times = self.measure(run, clients, run.rounds(rounds))?;
        let target = match clients {
            1 => 20.0,
            _ => 8.0,
        };
        let asynchronous = [(2, Target::AtMost(1.25))];
        let row = row(run, cell, &times, (1, Target::AtLeast(target)), &asynchronous);
        Ok(Row { load: format!("{clients} clients"), ..row })
    }

    /// The times of a transaction with so many clients, of each contender.
    pub fn measure(&self, run: &Run, clients: usize, rounds: usize) -> Result<Vec<Measured>> {
        run.progress.cell(format!("xsync: PostgreSQL, {clients} clients"));
        let seconds = if run.quick { 1 } else { 4 };
        let load = format!("-c {clients} -j 2 -T {seconds}");
        let mut times: Vec<_> = self.ways.iter().map(|way| Measured::new(way.name)).collect();
        for _ in 0..rounds {
            for (way, measured) in self.ways.iter().zip(&mut times) {
                let (start, stop, bin) = (self.start(way), self.stop(way), self.bin.display());
                let files: String = match self.transactions {
                    Transactions::Simple => String::new(),
                    Transactions::TpcC => TPC_C
                        .iter()
                        .map(|(name, _, weight)| format!(" -f {}.{name}@{weight}", way.at.display()))
                        .collect(),
                };
                let script =
                    format!("{start}; {AS_POSTGRES} {bin}/pgbench -h {TEMPORARY} -n {load}{files} postgres; {stop}");
                rustix::fs::sync();
                let output = shell(way.host, None, &script)?.output()?;
                let text = String::from_utf8_lossy(&output.stdout);
                let rate =
                    text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
                let rate = rate.with_context(|| {
                    format!("pgbench told no rate: {text}{}", String::from_utf8_lossy(&output.stderr))
                })?;
                measured.begin_round();
                measured.push(Duration::from_secs_f64(1.0 / rate));
            }
        }
        Ok(times)
    }

    fn start(&self, way: &Way<'_>) -> String {
        let fsync = if way.fsync { "on" } else { "off" };
        let options = format!("-k {TEMPORARY} -c listen_addresses= -c max_wal_size=128MB -c fsync={fsync}");
        let (bin, at) = (self.bin.display(), way.at.display());
        format!("{AS_POSTGRES} {bin}/pg_ctl -D {at} -w -s -l /dev/null -o '{options}' start")
    }

    fn stop(&self, way: &Way<'_>) -> String {
        format!("{AS_POSTGRES} {}/pg_ctl -D {} -w -s -m fast stop", self.bin.display(), way.at.display())
    }
}

const AS_POSTGRES: &str = "setpriv --reuid=postgres --regid=postgres --init-groups --reset-env";
