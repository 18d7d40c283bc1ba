//! MariaDB on a mounted store, where InnoDB need not write its pages twice, against the file system below.

use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, job_command};
use crate::measuring::fs::Place;
use crate::measuring::harness::{Contender, Plan, ROUNDS_MIN, interleave};
use crate::mounts::mounted::Mounted;
use crate::report::section::{Chart, Extras, Other, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Transactions that are timed together, and rows of the table.
pub const EVENTS: u32 = 500;
const ROWS: u32 = 20_000;

/// The limit for the start of a server.
const START_MAX: Duration = Duration::from_secs(60);

/// The section of one place. `None`, with a message, if MariaDB or sysbench is missing.
pub fn run(run: &Run, place: &Place) -> Result<Option<Section>> {
    if !is_here() {
        run.progress.print("MariaDB is not measured: install the packages mariadb-server and sysbench.");
        return Ok(None);
    }
    let dir = place.directory("mariadb")?;
    let native = dir.join("native");
    fs::create_dir(&native)?;
    let mounted = Mounted::new(&dir)?;
    run.progress.cell(format!("{}: MariaDB starts", place.name));
    let servers = [
        ("on the mount, pages once", Server::start(&mounted.at.join("once"), false)?),
        ("natively, pages twice", Server::start(&native.join("twice"), true)?),
        ("natively, pages once: torn by a power cut", Server::start(&native.join("once"), false)?),
    ];
    let mut rows = Vec::new();
    let works = [("oltp_write_only", 1), ("oltp_write_only", 16), ("oltp_read_write", 16)];
    for (work, threads) in works.into_iter().take(if run.quick { 1 } else { usize::MAX }) {
        run.progress.cell(format!("{}: MariaDB, {work}, {threads} threads", place.name));
        let mut bytes = [0u64; 3];
        let mut contenders = Vec::new();
        for ((name, server), bytes) in servers.iter().zip(&mut bytes) {
            contenders.push(Contender::new(*name, 1, move || {
                let before = place.device_bytes_written()?;
                let time = server.work(work, threads)?;
                if let (Some(from), Some(to)) = (before, place.device_bytes_written()?) {
                    *bytes += to - from;
                }
                Ok(time)
            }));
        }
        let plan = Plan::spread(if run.quick { 2 } else { ROUNDS_MIN }, 1, run.quick, Duration::ZERO);
        let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
        drop(contenders);
        let mut extras = Extras::default();
        let per_event = |n: usize| bytes[n] as f64 / 1024.0 / f64::from(EVENTS) / measured[n].summary().samples as f64;
        extras.add("device KiB per transaction", per_event(0), 1);
        extras.add("pages twice", per_event(1), 1);
        extras.add("pages once", per_event(2), 1);
        let others = Other::new("", Ratio::speedup(&measured[0], &[&measured[2]]), None, run.quick);
        let row = Row {
            cell: work.to_owned(),
            load: format!("{threads} threads"),
            contenders: measured.iter().map(Measured::summary).collect(),
            ratio: Some(Ratio::speedup(&measured[0], &[&measured[1]])),
            others: vec![others],
            extras,
            ..Row::default()
        };
        rows.push(row.against_target(Some(Target::AtLeast(1.0)), Waited::Allowed, run.quick));
    }
    drop(servers);
    drop(mounted);
    fs::remove_dir_all(&dir)?;
    Ok(Some(Section {
        title: "mount: MariaDB, class power".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Milliseconds,
        ratio_means: "median natively ÷ median on the mount: times faster",
        rows,
        notes: vec![
            format!(
                "sysbench, {EVENTS} transactions a time, a table of {ROWS} rows; innodb_flush_log_at_trx_commit=1, buffer \
                 pool of 64 MiB. Pages twice: InnoDB's doublewrite buffer, its default."
            ),
            "Device bytes: of the whole file system, while the contender works.".to_owned(),
        ],
    }))
}

/// Whether server, client and sysbench are installed.
pub fn is_here() -> bool {
    let is_here = |name: &str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    ["mariadbd", "mariadb", "sysbench"].into_iter().all(is_here)
}

/// A server with a table of sysbench.
pub struct Server {
    process: Child,
    socket: PathBuf,
}

impl Server {
    /// Starts a server on a new directory. `twice`: InnoDB writes its pages twice.
    pub fn start(data: &Path, twice: bool) -> Result<Server> {
        fs::create_dir(data)?;
        // A socket's path is short.
        let socket = tempfile::Builder::new().prefix("untorn-mariadb-").tempdir()?.path().with_extension("socket");
        let log = File::create(socket.with_extension("log"))?;
        let mut arguments: Vec<PathBuf> = ["--no-defaults", "--user=root", "--skip-grant-tables", "--skip-networking"]
            .into_iter()
            .chain(["--skip-log-bin", "--innodb-buffer-pool-size=64M", "--performance-schema=0"])
            .chain([
                "--innodb-flush-log-at-trx-commit=1",
                ["--innodb-doublewrite=0", "--innodb-doublewrite=1"][usize::from(twice)],
            ])
            .map(PathBuf::from)
            .collect();
        arguments.extend([option("--datadir", data), option("--socket", &socket)]);
        arguments.push(option("--pid-file", &socket.with_extension("pid")));
        let mut command = job_command(&Job::Server { program: "mariadbd".into(), arguments })?;
        let process = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut server = Server { process, socket };
        let start = Instant::now();
        while std::os::unix::net::UnixStream::connect(&server.socket).is_err() {
            if start.elapsed() > START_MAX || server.process.try_wait()?.is_some() {
                bail!("MariaDB does not start; its log is {}", server.socket.with_extension("log").display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut make = Command::new("mariadb");
        make.arg("--no-defaults").arg(option("--socket", &server.socket)).args(["-e", "CREATE DATABASE sbtest"]);
        let made = make.output()?;
        ensure!(made.status.success(), "mariadb: {}", String::from_utf8_lossy(&made.stderr));
        server.sysbench("oltp_write_only", &["prepare".to_owned()])?;
        Ok(server)
    }

    /// Makes the table of YCSB. Returns the workload's name.
    pub fn prepare_ycsb(&self) -> Result<String> {
        let script = self.socket.with_extension("lua");
        fs::write(&script, include_str!("ycsb_a.lua"))?;
        let name = script.display().to_string();
        self.sysbench(&name, &["prepare".to_owned()])?;
        Ok(name)
    }

    /// The time of `EVENTS` transactions, as sysbench gives it.
    pub fn work(&self, work: &str, threads: u32) -> Result<Duration> {
        let limits = ["--time=0".to_owned(), format!("--events={EVENTS}"), format!("--threads={threads}")];
        let text = self.sysbench(work, &[&limits[..], &["run".to_owned()]].concat())?;
        let line = text.lines().find_map(|line| line.trim().strip_prefix("total time:"));
        let seconds = line.and_then(|time| time.trim().strip_suffix('s')?.parse().ok());
        Ok(Duration::from_secs_f64(seconds.with_context(|| format!("sysbench says nothing of its time: {text}"))?))
    }

    fn sysbench(&self, work: &str, arguments: &[String]) -> Result<String> {
        let mut command = Command::new("sysbench");
        command.args([work, "--db-driver=mysql", "--mysql-user=root", "--tables=1"]);
        command.arg(format!("--table-size={ROWS}")).arg(option("--mysql-socket", &self.socket)).args(arguments);
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "sysbench {work}: {text}");
        Ok(text)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.process.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.process.wait();
        for kind in ["socket", "log", "pid", "lua"] {
            let _ = fs::remove_file(self.socket.with_extension(kind));
        }
    }
}

fn option(name: &str, value: &Path) -> PathBuf {
    format!("{name}={}", value.display()).into()
}
