//! PostgreSQL and its clients, in a session.

use super::runs::{NAMES, row};
use super::session::{Host, command};
use crate::measuring::bench_run::Run;
use crate::report::section::{Row, Target};
use crate::report::statistics::Measured;
use anyhow::{Context, Result, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub const NOTES: &[&str] = &[
    "pgbench's own transactions, scale 5, for 5 s; server and clients run in the session. Durable: the same outside of a \
     session, in the benchmark's own directory; asynchronous: with fsync=off. A time is that of one transaction: one \
     second divided by the transactions in it, as pgbench gives them.",
];

/// The directory of the newest PostgreSQL's programs, in Debian's layout.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|version| version.path().join("bin"));
    versions.filter(|bin| ["initdb", "pg_ctl", "pgbench"].iter().all(|program| bin.join(program).exists())).max()
}

/// Rows over the number of clients.
pub fn rows(run: &Run, host: &Host, dir: &Path) -> Result<Vec<Row>> {
    let Some(cluster) = Cluster::set_up(run, host, dir)? else { return Ok(Vec::new()) };
    let counts = if run.quick { vec![2] } else { vec![1, 4, 16] };
    let row = |clients| cluster.row(run, clients, 3, format!("{clients} clients"));
    counts.into_iter().map(row).collect()
}

/// A server's directory in a session's volume, and one outside.
pub struct Cluster<'a> {
    host: &'a Host,
    bin: PathBuf,
    outside: PathBuf,
}

impl Cluster<'_> {
    /// Sets up the servers. None, with a message, if there is no PostgreSQL.
    pub fn set_up<'a>(run: &Run, host: &'a Host, dir: &Path) -> Result<Option<Cluster<'a>>> {
        let Some(bin) = programs() else {
            run.progress.print("PostgreSQL is not measured: install the package postgresql.");
            return Ok(None);
        };
        run.progress.cell("xsync: PostgreSQL");
        // The server refuses to run as root, so its user must be able to enter these directories.
        for above in dir.ancestors().take(2) {
            fs::set_permissions(above, Permissions::from_mode(0o755))?;
        }
        let cluster = Cluster { host, bin, outside: dir.join("pg") };
        for who in 0..2 {
            let at = cluster.at(who).display();
            let (start, stop) = (cluster.start(who), cluster.stop(who));
            let bin = cluster.bin.display();
            let script = format!(
                "rm -rf {at}; mkdir {at}; chown postgres: {at}; {AS_POSTGRES} {bin}/initdb -D {at} >/dev/null; \
                 {start}; {AS_POSTGRES} {bin}/pgbench -h /tmp -i -q -s 5 postgres 2>/dev/null; {stop}"
            );
            let output = shell(host, who, &script)?.output()?;
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
        run.progress.cell(format!("xsync: PostgreSQL, {clients} clients"));
        let (rounds, seconds) = if run.quick { (1, 1) } else { (rounds, 5) };
        let mut times = [NAMES[0], "durable, without a session", "asynchronous"].map(Measured::new);
        for _ in 0..rounds {
            for (who, measured) in times.iter_mut().enumerate() {
                let (start, stop, bin) = (self.start(who), self.stop(who), self.bin.display());
                let script = format!(
                    "{start}; {AS_POSTGRES} {bin}/pgbench -h /tmp -n -c {clients} -j 2 -T {seconds} postgres; {stop}"
                );
                rustix::fs::sync();
                let output = shell(self.host, who, &script)?.stderr(Stdio::null()).output()?;
                let text = String::from_utf8_lossy(&output.stdout);
                let rate =
                    text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
                let rate = rate.with_context(|| format!("pgbench told no rate: {text}"))?;
                measured.begin_round();
                measured.push(Duration::from_secs_f64(1.0 / rate));
            }
        }
        let target = match clients {
            1 => 20.0,
            _ => 8.0,
        };
        let asynchronous = [(2, Target::AtMost(1.25))];
        let row = row(run, cell, &times, (1, Target::AtLeast(target)), &asynchronous);
        Ok(Row { load: format!("{clients} clients"), ..row })
    }

    fn at(&self, who: usize) -> &Path {
        if who == 0 { Path::new("/data/pg") } else { &self.outside }
    }

    fn start(&self, who: usize) -> String {
        let fsync = if who < 2 { "on" } else { "off" };
        let options = format!("-k /tmp -c listen_addresses= -c max_wal_size=128MB -c fsync={fsync}");
        let (bin, at) = (self.bin.display(), self.at(who).display());
        format!("{AS_POSTGRES} {bin}/pg_ctl -D {at} -w -s -l /dev/null -o '{options}' start")
    }

    fn stop(&self, who: usize) -> String {
        format!("{AS_POSTGRES} {}/pg_ctl -D {} -w -s -m fast stop", self.bin.display(), self.at(who).display())
    }
}

const AS_POSTGRES: &str = "setpriv --reuid=postgres --regid=postgres --init-groups --reset-env";

/// A shell script, in a session or outside of one.
fn shell(host: &Host, who: usize, script: &str) -> Result<Command> {
    let words = ["sh", "-e", "-c", &format!("cd /; {script}")].map(str::to_owned);
    let mut shell = match who {
        0 => command(&host.on_volume(true, None, words.to_vec()))?,
        _ => {
            let mut shell = Command::new(&words[0]);
            shell.args(&words[1..]);
            shell
        }
    };
    shell.stdin(Stdio::null());
    Ok(shell)
}
