//! PostgreSQL and its clients, in a session.

use super::runs::{NAMES, ON_JOURNALING, row};
use super::session::{Host, Setting, command};
use crate::measuring::bench_run::Run;
use crate::report::section::{Row, Target};
use crate::report::statistics::Measured;
use anyhow::{Context, Result, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

pub const NOTES: &[&str] = &[
    "pgbench's own transactions, scale 5, for 5 s; server and clients run in the session. Durable: the same outside of a \
     session, in the benchmark's own directory; asynchronous: with fsync=off, there or on an ext4 of its own with data=journal. A time is that of one transaction: one \
     second divided by the transactions in it, as pgbench gives them.",
];

/// The contenders outside of sessions.
pub const DURABLE: &str = "durable, without a session";
pub const ASYNCHRONOUS: &str = "asynchronous";

/// The directory of the newest PostgreSQL's programs, in Debian's layout.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|version| version.path().join("bin"));
    versions.filter(|bin| ["initdb", "pg_ctl", "pgbench"].iter().all(|program| bin.join(program).exists())).max()
}

/// Rows over the number of clients.
pub fn rows(run: &Run, setting: &Setting) -> Result<Vec<Row>> {
    let Some(cluster) = Cluster::set_up(run, setting)? else { return Ok(Vec::new()) };
    let counts = if run.quick { vec![2] } else { vec![1, 4, 16] };
    let row = |clients| cluster.row(run, clients, 3, format!("{clients} clients"));
    counts.into_iter().map(row).collect()
}

/// A contender: where its server's files are, and whether the server flushes.
struct Way {
    name: &'static str,
    in_a_session: bool,
    at: PathBuf,
    fsync: bool,
}

/// Servers in a session's volume and outside.
pub struct Cluster<'a> {
    host: &'a Host,
    bin: PathBuf,
    ways: Vec<Way>,
}

impl Cluster<'_> {
    /// Sets up the servers. None, with a message, if there is no PostgreSQL.
    pub fn set_up<'a>(run: &Run, setting: &'a Setting) -> Result<Option<Cluster<'a>>> {
        let Some(bin) = programs() else {
            run.progress.print("PostgreSQL is not measured: install the package postgresql.");
            return Ok(None);
        };
        run.progress.cell("xsync: PostgreSQL");
        let way = |name, in_a_session, at, fsync| Way { name, in_a_session, at, fsync };
        let mut ways = vec![
            way(NAMES[0], true, "/data/pg".into(), true),
            way(DURABLE, false, setting.dir.join("pg"), true),
            way(ASYNCHRONOUS, false, setting.dir.join("pg-asynchronous"), false),
        ];
        ways.extend(setting.journaling.as_ref().map(|dir| way(ON_JOURNALING, false, dir.join("pg"), false)));
        // The server refuses to run as root, so its user must be able to enter these directories.
        for dir in [Some(&setting.dir), setting.journaling.as_ref()].into_iter().flatten() {
            for above in dir.ancestors().take(2) {
                fs::set_permissions(above, Permissions::from_mode(0o755))?;
            }
        }
        let cluster = Cluster { host: &setting.host, bin, ways };
        for way in &cluster.ways {
            let (start, stop, at, bin) =
                (cluster.start(way), cluster.stop(way), way.at.display(), cluster.bin.display());
            let script = format!(
                "rm -rf {at}; mkdir {at}; chown postgres: {at}; {AS_POSTGRES} {bin}/initdb -D {at} >/dev/null; \
                 {start}; {AS_POSTGRES} {bin}/pgbench -h /var/tmp -i -q -s 5 postgres 2>/dev/null; {stop}"
            );
            let output = cluster.shell(way, &script)?.output()?;
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

    /// The times of a transaction with so many clients: in a session, durable without one, asynchronous.
    pub fn measure(&self, run: &Run, clients: usize, rounds: usize) -> Result<Vec<Measured>> {
        run.progress.cell(format!("xsync: PostgreSQL, {clients} clients"));
        let seconds = if run.quick { 1 } else { 5 };
        let mut times: Vec<_> = self.ways.iter().map(|way| Measured::new(way.name)).collect();
        for _ in 0..rounds {
            for (way, measured) in self.ways.iter().zip(&mut times) {
                let (start, stop, bin) = (self.start(way), self.stop(way), self.bin.display());
                let script = format!(
                    "{start}; {AS_POSTGRES} {bin}/pgbench -h /var/tmp -n -c {clients} -j 2 -T {seconds} postgres; {stop}"
                );
                rustix::fs::sync();
                let output = self.shell(way, &script)?.stderr(Stdio::null()).output()?;
                let text = String::from_utf8_lossy(&output.stdout);
                let rate =
                    text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
                let rate = rate.with_context(|| format!("pgbench told no rate: {text}"))?;
                measured.begin_round();
                measured.push(Duration::from_secs_f64(1.0 / rate));
            }
        }
        Ok(times)
    }

    fn start(&self, way: &Way) -> String {
        let fsync = if way.fsync { "on" } else { "off" };
        let options = format!("-k /var/tmp -c listen_addresses= -c max_wal_size=128MB -c fsync={fsync}");
        let (bin, at) = (self.bin.display(), way.at.display());
        format!("{AS_POSTGRES} {bin}/pg_ctl -D {at} -w -s -l /dev/null -o '{options}' start")
    }

    fn stop(&self, way: &Way) -> String {
        format!("{AS_POSTGRES} {}/pg_ctl -D {} -w -s -m fast stop", self.bin.display(), way.at.display())
    }

    /// A shell script, in a session or outside of one.
    fn shell(&self, way: &Way, script: &str) -> Result<Command> {
        let words = ["sh", "-e", "-c", &format!("cd /; {script}")].map(str::to_owned);
        let mut shell = if way.in_a_session {
            command(&self.host.on_volume(true, None, words.to_vec()))?
        } else {
            let mut shell = Command::new(&words[0]);
            shell.args(&words[1..]);
            shell
        };
        shell.stdin(Stdio::null());
        Ok(shell)
    }
}

const AS_POSTGRES: &str = "setpriv --reuid=postgres --regid=postgres --init-groups --reset-env";
